"""What follows from the answer of a copy: the task's result, another copy, or disagreement.

Workers that agree gain trust, and those that do not lose it. What was not compared with another
answer earns none.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, assert_never

from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.jobs.core.job_events import Answer, RetryReason
from formation_p2p.jobs.core.jobs import Jobs
from formation_p2p.jobs.core.parameters import DispatchParameters
from formation_p2p.jobs.core.quorum_ballot import Accepted, NoQuorum, Open, tally
from formation_p2p.jobs.core.quorum_draw import DrawnQueues, Marks
from formation_p2p.jobs.core.task_group import TaskGroup
from formation_p2p.jobs.core.task_run import TaskRun
from formation_p2p.trust.core.experience import Experience
from formation_p2p.trust.core.marks import of_kinds
from formation_p2p.workload.core.comparers import Read, bytes_of, read_plain

# Of a caller's function. `sys.exit()` in one is to end no node.
_FAILURES: Final = (Exception, SystemExit)


@dataclass(frozen=True, slots=True)
class Jury:
    """What elections go by. `marks` are those of a worker, `has_vote` is whether it is trusted at
    all, `doubt` the share of its answers that are to be checked; `read` reads answers."""

    rng: random.Random
    marks: Marks
    has_vote: Callable[[PeerId, Moment], bool]
    doubt: Callable[[PeerId, Moment], float]
    read: Read = read_plain


class Elections:
    """`experienced` gets to know who agreed, and who did not. `copies` counts those that were sent,
    and of these those whose answer was that of the task, and those whose answer was not."""

    def __init__(
        self,
        jobs: Jobs,
        jury: Jury,
        experienced: Callable[[PeerId, Experience, Moment], None],
        parameters: DispatchParameters,
    ) -> None:
        self._jobs = jobs
        self._jury = jury
        self._experienced = experienced
        self._parameters = parameters
        self.copies = Counter(sent=0, agreed=0, disagreed=0)

    def chosen(self, group: TaskGroup, run: TaskRun, answer: Answer, now: Moment) -> Answer | None:
        """The answer that is the task's result, now that this one is here. None where there is
        none yet, or will be none: then the task waits again, or has ended."""
        assert isinstance(group.queues, DrawnQueues)
        ballot, worker = run.voting, answer.worker
        marks = group.queues.marks(worker)
        has_vote = self._jury.has_vote(worker, now)
        # The one that answers first of two copies in flight may bar the other.
        close = None if marks is None else ballot.bars(worker, marks)
        if marks is None or not has_vote or close is not None:
            why = "its place is not known" if close is None else str(close)
            why = why if has_vote else "it is trusted no longer"
            reason = RetryReason.RESULT_LOST
            if self._jobs.lost(run, answer.attempt_id, worker, why, counts=False, reason=reason):
                group.queues.wait(run, first=True)
            return None
        kinds = (*ballot.quorum.apart, *ballot.quorum.alike)
        answer = replace(answer, marks=tuple(sorted(of_kinds(marks, kinds))))
        if not ballot.answers and self._is_enough(run, worker, now):
            return answer
        ballot.add(answer)
        problems: list[str] = []
        same = partial(self._same, run, problems)
        found = tally(
            ballot.quorum, ballot.answers, same, lambda peer: self._jury.has_vote(peer, now)
        )
        match found:
            case Accepted():
                self.copies.update(agreed=len(found.agreeing), disagreed=len(found.wrong))
                for each in found.agreeing:
                    self._experienced(each, Experience.AGREED, now)
                for each in found.wrong:
                    self._experienced(each, Experience.WRONG, now)
                return found.answer
            case NoQuorum():
                self.copies.update(disagreed=len(ballot.answers))
                self._jobs.disagreed(run, ballot.answers, (), "; ".join(problems[:1]))
            case Open(missing):
                ballot.lacks(missing)
                if self._jobs.answered(run, answer):
                    group.queues.wait(run, first=True)
            case _:
                assert_never(found)
        return None

    def _is_enough(self, run: TaskRun, worker: PeerId, now: Moment) -> bool:
        check = run.voting.quorum.check
        if check is None:
            return False
        return self._jury.rng.random() >= max(check, self._jury.doubt(worker, now))

    def _same(self, run: TaskRun, problems: list[str], one: Answer, other: Answer) -> bool:
        """What cannot be read, or compared, is the same as nothing."""
        comparer, driver = run.voting.quorum.comparer, run.task.needs.driver
        read = self._jury.read if comparer.reads else bytes_of
        if one.result == other.result and one.content is None and not comparer.reads:
            return True
        try:
            values = (read(driver, each.result, each.content) for each in (one, other))
            return comparer.same(*values)
        except _FAILURES as error:  # whatever it is, it is told
            problems.append(f"{comparer}: {type(error).__name__}: {error}"[:256])
            return False

    def searched(self, group: TaskGroup) -> None:
        """A search has ended: a task for which no worker is left, time and again, has no quorum."""
        if not isinstance(group.queues, DrawnQueues):
            return
        parameters = self._parameters
        for run, reasons in group.queues.barred():
            run.voting.looked()
            most = parameters.looks_for_away if run.job.durable else parameters.looks_for_any
            if run.voting.looks >= most:
                group.queues.remove(run)
                self.copies.update(disagreed=len(run.voting.answers))
                self._jobs.disagreed(run, run.voting.answers, reasons)
