"""The answers to one task, and what follows from them: the quorum's arithmetic.

A worker that was found wrong meanwhile has no vote. Answers are compared with one of them, since
closeness is not transitive: a is close to b, and b to c, and a is not to c.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from formation_p2p.core.identity import PeerId
from formation_p2p.core.refusals import TooClose, Unalike
from formation_p2p.jobs.core.job_events import Answer
from formation_p2p.trust.core.marks import of_kinds
from formation_p2p.workload.core.quorum import Quorum

_ALONE: Final[Mapping[PeerId, frozenset[str]]] = {}


@dataclass(frozen=True, slots=True)
class Accepted:
    """`agreeing` are those that are the same as the answer that counts, with itself; `wrong` are
    the workers of the others."""

    answer: Answer
    agreeing: tuple[PeerId, ...]
    wrong: tuple[PeerId, ...]


@dataclass(frozen=True, slots=True)
class NoQuorum:
    """So many as are needed cannot agree any more."""


@dataclass(frozen=True, slots=True)
class Open:
    """So many answers are `missing` at least."""

    missing: int


def tally(
    quorum: Quorum,
    answers: Sequence[Answer],
    same: Callable[[Answer, Answer], bool],
    has_vote: Callable[[PeerId], bool],
) -> Accepted | NoQuorum | Open:
    """`same` compares two answers; `has_vote` is whether a worker does."""
    votes = [each for each in answers if has_vote(each.worker)]
    support = [sum(one is each or same(one, each) for each in votes) for one in votes]
    most = max(support, default=0)
    if most >= quorum.need:
        chosen = votes[support.index(most)]
        agreeing = [each for each in answers if each is chosen or same(chosen, each)]
        wrong = tuple(each.worker for each in answers if each not in agreeing)
        return Accepted(chosen, tuple(each.worker for each in agreeing), wrong)
    left = min(quorum.of - len(votes), 2 * quorum.of - len(answers))
    return NoQuorum() if most + left < quorum.need else Open(quorum.need - most)


@dataclass(slots=True, eq=False)
class Ballot:
    """Of one task: its answers so far, and the workers that its next copies wait for: one, or
    several where these go out at once. So many answers are `missing` at least; `looks` counts the
    searches that brought no worker that may give a further one."""

    quorum: Quorum
    answers: tuple[Answer, ...] = ()
    drawn: tuple[PeerId, ...] = ()
    looks: int = 0
    missing: int = 0

    def __post_init__(self) -> None:
        self.missing = max(1, self.quorum.need - len(self.answers))

    def add(self, answer: Answer) -> None:
        """As far as is known without comparing it, it is the same as those before."""
        self.answers += (answer,)
        self.looks = 0
        self.missing = max(1, self.quorum.need - len(self.answers))

    def lacks(self, missing: int) -> None:
        """The answers have been compared."""
        self.missing = missing

    def draw(self, worker: PeerId) -> None:
        self.drawn += (worker,)

    def undraw(self, worker: PeerId) -> None:
        """Its copy waits for this worker no more."""
        self.drawn = tuple(each for each in self.drawn if each != worker)

    def looked(self) -> None:
        self.looks += 1

    def more(self, in_flight: int) -> int:
        """How many more copies may be drawn now."""
        wanted = self.missing if self.quorum.at_once else 1
        return wanted - in_flight - len(self.drawn)

    def bars(
        self,
        worker: PeerId,
        marks: frozenset[str],
        beside: Mapping[PeerId, frozenset[str]] = _ALONE,
    ) -> TooClose | Unalike | None:
        """Why this worker may not give a further answer. `beside` are those that are to give one
        too, with their marks."""
        others = {each.worker: frozenset(each.marks) for each in self.answers}
        others.update(beside)
        for other, its in others.items():
            shared = of_kinds(marks, self.quorum.apart) & its
            if other == worker or shared:
                return TooClose("" if other == worker else min(shared), other)
        for kind in self.quorum.alike if others else ():
            first = of_kinds(next(iter(others.values())), (kind,))
            if first != of_kinds(marks, (kind,)):
                return Unalike(", ".join(sorted(first)) or f"without {kind}")
        return None
