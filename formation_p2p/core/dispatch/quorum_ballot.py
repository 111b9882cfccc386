"""The answers to one task, and what follows from them: the quorum's arithmetic.

A worker that was found wrong meanwhile has no vote. Answers are compared with one of them, since
closeness is not transitive: a is close to b, and b to c, and a is not to c.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from formation_p2p.core.dispatch.job_events import Answer
from formation_p2p.core.identity import PeerId
from formation_p2p.core.refusals import TooClose, Unalike
from formation_p2p.core.trust.marks import of_kinds
from formation_p2p.core.workload.quorum import Quorum


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


def tally(
    quorum: Quorum,
    answers: Sequence[Answer],
    same: Callable[[Answer, Answer], bool],
    has_vote: Callable[[PeerId], bool],
) -> Accepted | NoQuorum | None:
    """None while it is open. `same` compares two answers; `has_vote` is whether a worker does."""
    votes = [each for each in answers if has_vote(each.worker)]
    support = [sum(one is each or same(one, each) for each in votes) for one in votes]
    most = max(support, default=0)
    if most >= quorum.need:
        chosen = votes[support.index(most)]
        agreeing = [each for each in answers if each is chosen or same(chosen, each)]
        wrong = tuple(each.worker for each in answers if each not in agreeing)
        return Accepted(chosen, tuple(each.worker for each in agreeing), wrong)
    left = min(quorum.of - len(votes), 2 * quorum.of - len(answers))
    return NoQuorum() if most + left < quorum.need else None


@dataclass(slots=True, eq=False)
class Ballot:
    """Of one task: its answers so far, and the worker that its next copy is for, with that one's
    marks. `looks` counts the searches that brought no worker that may give a further one."""

    quorum: Quorum
    answers: tuple[Answer, ...] = ()
    drawn: PeerId | None = None
    looks: int = 0

    def add(self, answer: Answer) -> None:
        self.answers += (answer,)
        self.looks = 0

    def draw(self, worker: PeerId | None) -> None:
        self.drawn = worker

    def looked(self) -> None:
        self.looks += 1

    def bars(self, worker: PeerId, marks: frozenset[str]) -> TooClose | Unalike | None:
        """Why this worker may not give a further answer."""
        for each in self.answers:
            if each.worker == worker:
                return TooClose("", each.worker)
            shared = of_kinds(marks, self.quorum.apart) & frozenset(each.marks)
            if shared:
                return TooClose(min(shared), each.worker)
        for kind in self.quorum.alike if self.answers else ():
            first = of_kinds(self.answers[0].marks, (kind,))
            if first != of_kinds(marks, (kind,)):
                return Unalike(", ".join(sorted(first)) or f"without {kind}")
        return None
