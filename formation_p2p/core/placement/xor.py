"""Placement and responsibility by XOR distance, as Kademlia has it.

Every node that knows the same workers names the same one, without a question to any of them. The
shares are not even: each worker gets what lies in the gap around its key (see `balanced`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias, TypeVar

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.keyspace import Key, key_of
from formation_p2p.core.placement.candidate import Candidate, TaskView
from formation_p2p.core.placement.hashing import hash_of
from formation_p2p.core.placement.nearest import Peers
from formation_p2p.core.placement.policy import Policy, Score, Term, scored
from formation_p2p.core.resources.bounds import shown

# Two of three outvote one that is wrong.
CLUSTER_SIZE: Final = 3


class Named(Protocol):
    """Has a peer id: a profile, a candidate, a contact."""

    @property
    def peer_id(self) -> PeerId: ...


_W = TypeVar("_W", bound=Named)
Hashed: TypeAlias = Callable[[str], int] | str


def rank_by_xor(
    task: Key | str, workers: Iterable[_W], hashed: Hashed | None = None
) -> tuple[_W, ...]:
    """The workers, nearest to the task first; of two at the same distance, the lower id. A worker
    that is named twice is ranked once.

    `task` is its key, or its name. `hashed`, one of `hashing.HASHES` or its name, makes numbers of
    the task's name and of the workers' ids; without it they are the keys of the DHT. Raises
    InvalidInput.
    """
    number = hash_of("hashed", hashed) if isinstance(hashed, str) else hashed
    if isinstance(task, str):
        target: int = number(task) if number else key_of(task.encode())
    elif isinstance(task, int):
        target = task
    else:
        raise InvalidInput("task", f"{shown(task)} is neither the name of a task nor its key")
    far = number or key_of_peer
    each_once = {each.peer_id: each for each in workers}.values()
    return tuple(sorted(each_once, key=lambda each: (far(each.peer_id) ^ target, each.peer_id)))


def responsible(
    task: Key | str,
    workers: Iterable[Named],
    me: PeerId,
    hashed: Hashed | None = None,
) -> bool:
    """Whether `me` is the nearest of these workers, all of which could run the task."""
    return [each.peer_id for each in rank_by_xor(task, workers, hashed)[:1]] == [me]


def cluster(
    task: Key | str,
    workers: Iterable[_W],
    size: int = CLUSTER_SIZE,
    hashed: Hashed | None = None,
) -> tuple[_W, ...]:
    """The `size` nearest workers, or all where there are fewer; the first of them is responsible.
    Raises InvalidInput for a size below 1."""
    if type(size) is not int or size < 1:
        problem = f"{shown(size)} is not a size of a cluster; write 1 or more"
        raise InvalidInput("size", problem)
    return rank_by_xor(task, workers, hashed)[:size]


@dataclass(frozen=True, slots=True)
class Xor(Policy):
    """The nearest first: all score alike, so that the distance decides.

    `hashing` names one of `hashing.HASHES`, by which the ranks go then. Raises InvalidInput.
    """

    hashing: str = ""

    def __post_init__(self) -> None:
        if self.hashing:
            hash_of("policy", self.hashing)

    def scores(self, task: TaskView, candidates: Sequence[Candidate]) -> Sequence[Score]:
        if not self.hashing:
            return Policy.scores(self, task, candidates)
        ranked = rank_by_xor(task.name, candidates, self.hashing)
        place = {each.peer_id: place for place, each in enumerate(ranked)}
        count = len(place)
        return [
            scored([Term(self.hashing, (count - place[each.peer_id]) / count)])
            for each in candidates
        ]

    def home(self, key: Key, workers: Peers) -> PeerId | None:
        return None if self.hashing else workers.nearest(key)

    def __str__(self) -> str:
        return f"xor({self.hashing})" if self.hashing else "xor"
