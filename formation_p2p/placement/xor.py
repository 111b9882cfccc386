"""Placement and responsibility by XOR distance, as Kademlia has it.

Every node that sees the same workers names the same one, in whatever order it heard of them, so
that nobody has to be asked who is responsible for a task. The shares of workers are not even:
each takes what lies in the gap around its key. Where that matters, see `balanced`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from formation_p2p.errors import InvalidInput
from formation_p2p.identity import PeerId, key_of_peer
from formation_p2p.keyspace import Key, key_of
from formation_p2p.placement.candidate import Asked, Candidate
from formation_p2p.placement.hashing import HASHES
from formation_p2p.placement.nearest import Peers
from formation_p2p.placement.policy import Policy, Score, Term, scored

# Two of three outvote one that is wrong.
CLUSTER_SIZE: Final = 3


class Named(Protocol):
    """Whatever has a peer id: a profile, a candidate, a contact."""

    @property
    def peer_id(self) -> PeerId: ...


_W = TypeVar("_W", bound=Named)


def rank_by_xor(
    task: Key | str, workers: Iterable[_W], hashed: Callable[[str], int] | None = None
) -> tuple[_W, ...]:
    """The workers, nearest to the task first; of two at the same distance, the lower id.

    `task` is its key, or its name. `hashed` is one of `hashing.HASHES`, which then makes the
    numbers of the task's name and of the workers' ids alike, as they are written; without it
    they are the keys that the DHT has for them.
    """
    if hashed is None:
        target: int = key_of(task.encode()) if isinstance(task, str) else task
        number: Callable[[PeerId], int] = key_of_peer
    else:
        target = hashed(task) if isinstance(task, str) else task
        number = hashed
    return tuple(sorted(workers, key=lambda each: (number(each.peer_id) ^ target, each.peer_id)))


def responsible(
    task: Key | str,
    workers: Iterable[Named],
    me: PeerId,
    hashed: Callable[[str], int] | None = None,
) -> bool:
    """Whether of these workers, all of which could run the task, it is `me` that has to."""
    return [each.peer_id for each in rank_by_xor(task, workers, hashed)[:1]] == [me]


def cluster(
    task: Key | str,
    workers: Iterable[_W],
    size: int = CLUSTER_SIZE,
    hashed: Callable[[str], int] | None = None,
) -> tuple[_W, ...]:
    """Those that run it together: the `size` nearest, or all where there are not so many. The
    first of them is responsible. Raises InvalidInput for a size below 1."""
    if size < 1:
        raise InvalidInput("size", f"{size} is no size of a cluster; write 1 or more")
    return rank_by_xor(task, workers, hashed)[:size]


@dataclass(frozen=True, slots=True)
class Xor(Policy):
    """The nearest first: all score alike, so that the distance decides.

    `hashing` names one of `hashing.HASHES`, by which the ranks go then. Raises InvalidInput.
    """

    hashing: str = ""

    def __post_init__(self) -> None:
        if self.hashing and self.hashing not in HASHES:
            known = " and ".join(sorted(HASHES))
            raise InvalidInput("policy", f"{self.hashing!r} is no hash of names; there are {known}")

    def scores(self, task: Asked, candidates: Sequence[Candidate]) -> Sequence[Score]:
        if not self.hashing:
            return Policy.scores(self, task, candidates)
        ranked = rank_by_xor(task.name, candidates, HASHES[self.hashing])
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
