"""Placement and responsibility by XOR distance, as Kademlia has it.

Every node that knows the same workers names the same one, without a question to any of them. The
shares are not even: each worker gets what lies in the gap around its key (see `balanced`).

The keys are those of the DHT (core/keyspace.py). In a mixed cluster every node has to name the same
worker as the nodes of another system, Formation, beside it: for that there are its hashes of names.

Sources of these: Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012; what Rust's
`DefaultHasher` makes of a `str` (SipHash-1-3, both keys zero, the text and a byte 0xff).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeAlias, TypeVar

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.keyspace import Key, key_of
from formation_p2p.machine.core.bounds import shown
from formation_p2p.placement.core.candidate import Candidate, TaskView
from formation_p2p.placement.core.policy import Peers, Policy, Score, Term, scored

# Two of three outvote one that is wrong.
CLUSTER_SIZE: Final = 3

_MASK: Final = 2**64 - 1
# "somepseudorandomlygeneratedbytes": the state that both keys are mixed into.
_START: Final = (0x736F6D6570736575, 0x646F72616E646F6D, 0x6C7967656E657261, 0x7465646279746573)


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

    `task` is its key, or its name. `hashed`, one of `HASHES` or its name, makes numbers of
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
        raise InvalidInput("size", f"{shown(size)} is not a size of a cluster; write 1 or more")
    return rank_by_xor(task, workers, hashed)[:size]


def default_hasher(name: str) -> int:
    """As Formation's form-pack ranks nodes for a build: Rust's `DefaultHasher`."""
    return _siphash13(name.encode() + b"\xff")


def sha256_low64(name: str) -> int:
    """As Formation's form-state ranks nodes for a task: the first 8 bytes of SHA-256, the lowest
    first."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "little")


HASHES: Final[Mapping[str, Callable[[str], int]]] = {
    "default-hasher": default_hasher,
    "sha256-64": sha256_low64,
}
"""By the name that a policy is written with: `xor(sha256-64)`."""


def hash_of(field: str, name: str) -> Callable[[str], int]:
    """Raises InvalidInput for a name that none of them has."""
    if name not in HASHES:
        known = " and ".join(sorted(HASHES))
        raise InvalidInput(field, f"{shown(name)} is not a hash of names; there are {known}")
    return HASHES[name]


def _siphash13(message: bytes) -> int:
    """One round for each word, three at the end; both keys zero."""
    tail = len(message) % 8
    padded = message + bytes(7 - tail) + bytes([len(message) & 0xFF])
    a, b, c, d = _START
    for at in range(0, len(padded), 8):
        word = int.from_bytes(padded[at : at + 8], "little")
        a, b, c, d = _round(a, b, c, d ^ word)
        a ^= word
    c ^= 0xFF
    for _ in range(3):
        a, b, c, d = _round(a, b, c, d)
    return a ^ b ^ c ^ d


def _round(a: int, b: int, c: int, d: int) -> tuple[int, int, int, int]:
    a = a + b & _MASK
    b = _rotated(b, 13) ^ a
    a = _rotated(a, 32)
    c = c + d & _MASK
    d = _rotated(d, 16) ^ c
    a = a + d & _MASK
    d = _rotated(d, 21) ^ a
    c = c + b & _MASK
    b = _rotated(b, 17) ^ c
    c = _rotated(c, 32)
    return a, b, c, d


def _rotated(word: int, bits: int) -> int:
    return (word << bits | word >> 64 - bits) & _MASK


@dataclass(frozen=True, slots=True)
class Xor(Policy):
    """The nearest first: all score alike, so that the distance decides.

    `hashing` names one of `HASHES`, by which the ranks go then. Raises InvalidInput.
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
