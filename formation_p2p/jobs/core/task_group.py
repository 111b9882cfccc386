"""Tasks with the same scheduling key: their workers, their queues, and their leases.

A group knows no messages. Each part of its state has one owner, which alone writes it.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Final

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.errors import ensure
from formation_p2p.core.identity import PeerId
from formation_p2p.discovery.core.finder import FindId
from formation_p2p.jobs.core.active_lease import ActiveLease
from formation_p2p.jobs.core.candidates import Candidates
from formation_p2p.jobs.core.job_events import Awaited
from formation_p2p.jobs.core.parameters import DISPATCH_DEFAULTS, DispatchParameters, one_by_one
from formation_p2p.jobs.core.queues import Queues
from formation_p2p.jobs.core.quorum_draw import DrawnQueues, Marks
from formation_p2p.jobs.core.task_run import JobRun, TaskRun, TaskState
from formation_p2p.leases.core.held_lease import LeaseKey
from formation_p2p.leases.core.round import RoundId
from formation_p2p.placement.core.task_options import SchedulingKey
from formation_p2p.trust.core.marks import of_kinds


# How long tasks of one kind take, what waits behind one that takes much longer, and who tries it. A
# lease has more than one task in flight, so that none waits for the network. Where the first of
# them turns out to be slow, those behind it are better off elsewhere; where its job allows it, an
# idle worker tries to overtake it (Dean and Ghemawat, "MapReduce", 2004, section 3.6).
class Estimates:
    """Of one group. `mean_s` is the duration of a task, as far as is known; infinite where none has
    ended."""

    def __init__(self, parameters: DispatchParameters) -> None:
        self._parameters = parameters
        self.mean_s = float("inf")

    def took(self, mean_s: float) -> None:
        """Some tasks took so long each. Longer than thought counts at once, shorter bit by bit."""
        unknown = self.mean_s == float("inf")
        self.mean_s = mean_s if unknown else max(mean_s, 0.8 * self.mean_s + 0.2 * mean_s)

    def depth(self, window: int) -> int:
        """How many attempts to have in flight on a lease that takes so many."""
        parameters, mean_s = self._parameters, self.mean_s
        if parameters.alone_s < mean_s < float("inf"):
            return 1
        wanted = int(parameters.horizon_s / max(mean_s, 1e-6))
        return min(max(wanted, parameters.pipeline), window)

    def is_stuck(self, active: ActiveLease, now: Moment) -> bool:
        """Whether the lease runs a slow task, and nothing is to wait behind that any more."""
        slow = active.slow
        if slow is None:
            return False
        return active.cleared == slow or now.mono_s >= active.began_s + self._patience_s

    def to_recall(
        self, active: ActiveLease, any_idle: bool, now: Moment
    ) -> tuple[list[str], float]:
        """The attempts to take back from a lease, and when to ask again. Marks them as recalled."""
        slow = active.slow
        if slow is None or active.lease.is_suspect or not (behind := active.behind(slow)):
            return [], float("inf")
        due_s = active.began_s + self._patience_s
        if not any_idle and now.mono_s < due_s:
            return [], due_s
        active.recall(behind, slow)
        return behind, float("inf")

    def overtake_s(self, active: ActiveLease) -> float:
        """When the slow task of a lease should get a second attempt; infinity for never, or while
        it is not known how long others take."""
        slow, parameters = active.slow, self._parameters
        if slow is None:
            return float("inf")
        run = active.attempts[slow]
        if not run.job.job.options.speculate or run.copies > 1 or not run.is_wanted:
            return float("inf")
        return active.began_s + max(parameters.min_straggler_s, parameters.straggler * self.mean_s)

    @property
    def _patience_s(self) -> float:
        """For how long a task may run before others wait behind it no longer."""
        patient_s = max(self._parameters.min_patience_s, self._parameters.patience * self.mean_s)
        return min(patient_s, self._parameters.max_patience_s)


# Workers that lack the same thing, while others have it, are rarely so many.
_TELLING: Final = 2
# What is in flight for so long has started.
_STARTS_S: Final = 1.0


class Acquisition:
    """How far the group has come in getting leases. `find` and `round` are open, `committing` have
    not answered a commit. `searched_s` is when discovery was asked last, minus infinity where it is
    to be asked at once; `fruitless` searches in a row began with no worker in sight.
    `was_answered`: whether any peer answered the last. `call_round` is open for workers that were
    not asked; `spread_s` is when a want was spread last, `in_vain` how many were since the last
    offer, and `left_s` when one was left, by holder; `holders` are those of the last search.
    `asks`: workers were asked, and not told since that nothing waits."""

    def __init__(self) -> None:
        self.find: FindId | None = None
        self.round: RoundId | None = None
        self.call_round: RoundId | None = None
        self.spread_s = float("-inf")
        self.in_vain = 0
        self.left_s: dict[PeerId, float] = {}
        self.holders: tuple[Contact, ...] = ()
        self.committing: set[PeerId] = set()
        self.asks = False
        self.searched_s = float("-inf")
        self.fruitless = 0
        self.was_answered = True
        self._had_leases = False

    @property
    def is_open(self) -> bool:
        return self.has_round or bool(self.committing)

    @property
    def has_round(self) -> bool:
        return self.round is not None or self.call_round is not None

    @property
    def is_patient(self) -> bool:
        """Whether workers may come back: there was one, or no peer answered the last search."""
        return self._had_leases or not self.was_answered

    def search_began(self, find: FindId, now_s: float, *, stranded: bool) -> None:
        self.find, self.searched_s = find, now_s
        self.fruitless = self.fruitless + 1 if stranded else 0

    def search_ended(self, *, answered: bool, holders: tuple[Contact, ...] = ()) -> None:
        """`answered`: whether any peer did."""
        self.find, self.was_answered = None, answered
        self.holders = holders or self.holders

    def want_spread(self, now_s: float) -> None:
        """That is a search of its own, whose answers come by themselves."""
        self.spread_s = self.searched_s = now_s
        self.in_vain += 1

    def want_left(self, holders: Iterable[PeerId], now_s: float, since_s: float) -> None:
        """Those of before `since_s` have expired."""
        self.left_s = {peer_id: at_s for peer_id, at_s in self.left_s.items() if at_s > since_s}
        self.left_s |= dict.fromkeys(holders, now_s)

    def found_more(self) -> None:
        """Where there were more workers, there may be more yet."""
        self.searched_s = float("-inf")

    def begin_again(self) -> None:
        """What searches did not bring counts no more."""
        self.searched_s, self.fruitless = float("-inf"), 0

    def round_began(self, asked: RoundId) -> None:
        self.round, self.asks = asked, True

    def withdrew(self) -> None:
        """Workers were told that nothing waits."""
        self.asks = False

    def call_began(self, expected: RoundId) -> None:
        self.call_round = expected
        self.in_vain = 0

    def round_ended(self, ended: RoundId, committed: Iterable[PeerId]) -> None:
        if ended == self.round:
            self.round = None
        else:
            self.call_round = None
        self.committing |= set(committed)

    def leased(self, worker: PeerId) -> None:
        self.committing.discard(worker)
        self._had_leases = True


class TaskGroup:
    """`wake_s` is when to look at it again, if nothing happens before; `told` is what its jobs were
    told last that their tasks wait for. Other modules read the attributes, of the parts too, and
    write none of them. `draw` is what tasks with a quorum are drawn by."""

    def __init__(
        self,
        key: SchedulingKey,
        parameters: DispatchParameters = DISPATCH_DEFAULTS,
        draw: tuple[random.Random, Marks] | None = None,
    ) -> None:
        self.key = key
        self.linger_s = parameters.linger_s if key.linger_s is None else key.linger_s
        self.acquisition = Acquisition()
        self.estimates = Estimates(parameters if key.quorum is None else one_by_one(parameters))
        self.candidates = Candidates(
            key,
            parameters,
            leased=lambda: {active.worker for active in self.leases.values()},
            changed=lambda: self.queues.reroute(),
            rng=None if draw is None else draw[0],
        )
        scanned = parameters.max_steal_scan
        self.queues = (
            Queues(self.candidates, scanned)
            if key.quorum is None or draw is None
            else DrawnQueues(self.candidates, scanned, *draw, self._leased_marks)
        )
        self.leases: dict[LeaseKey, ActiveLease] = {}
        self.told: dict[JobRun, Awaited] = {}
        self.wake_s = float("inf")

    def wake_by(self, due_s: float) -> None:
        self.wake_s = min(self.wake_s, due_s)

    def awake(self) -> None:
        """It is being looked at."""
        self.wake_s = float("inf")

    def renewed(self, now: Moment) -> None:
        """This node has a new grant."""
        self.candidates.renewed()
        self.acquisition.begin_again()
        self.wake_by(now.mono_s)

    @property
    def is_idle(self) -> bool:
        """Whether nothing waits, runs, or is being negotiated."""
        return not (self.leases or self.acquisition.is_open or self.queues.waiting)

    @property
    def is_stranded(self) -> bool:
        """Whether no worker is in sight that could run these tasks, or does."""
        return self.candidates.are_exhausted and not self.leases

    @property
    def awaited(self) -> Awaited | None:
        """What may yet bring a worker, where none is known; None where each of those that were
        considered has said no."""
        if not self.acquisition.was_answered:
            return Awaited.PEERS
        return Awaited.WORKERS if self.candidates.any_absent else None

    def to_tell(self, awaited: Awaited | None) -> list[tuple[JobRun, Awaited]]:
        """The jobs that are now told that their tasks wait for this, and were not told so last."""
        before = self.told
        self.told = {} if awaited is None else dict.fromkeys(self.queues.jobs(), awaited)
        new = ((job, what) for job, what in self.told.items() if before.get(job) is not what)
        return [(job, what) for job, what in new if job.durable or what is not Awaited.GRANT]

    def employs(self, active: ActiveLease, now: Moment) -> bool:
        """Whether a lease gets more to do: it stays, its worker answers, is admitted, and is not
        failing."""
        return (
            not (active.lease.is_suspect or active.lease.yields or active.leaving)
            and active.worker not in self.candidates.barred
            and not self.candidates.is_failing(active.worker, now)
        )

    def marks_of(self, worker: PeerId) -> frozenset[str] | None:
        """What counts of a worker where several are to agree, as far as it is known."""
        if self.key.quorum is None or not isinstance(self.queues, DrawnQueues):
            return None
        marks = self.queues.marks(worker)
        kinds = (*self.key.quorum.apart, *self.key.quorum.alike)
        return None if marks is None else of_kinds(marks, kinds)

    def _leased_marks(self, worker: PeerId) -> frozenset[str] | None:
        return next((x.marks for x in self.leases.values() if x.worker == worker), None)

    def suits(self, run: TaskRun, active: ActiveLease) -> bool:
        """Whether another attempt of the task may be made there."""
        if isinstance(self.queues, DrawnQueues):
            profile = self.candidates.pool.get(active.worker)
            beside = [each.worker for each in self.leases.values() if run in each.runs]
            if profile is None or not self.queues.may(run, profile, beside):
                return False
        return not run.avoids(active.worker)

    def fails_anywhere(self, run: TaskRun, ran_s: float, now: Moment) -> bool:
        """Whether a task that has failed, after `ran_s`, says how the others of its job will: no
        code of any has run, and this one was tried on all workers, or on as many as make chance
        unlikely."""
        if run.job.has_run or run.state is not TaskState.FAILED or not run.attempts:
            return False
        workers = {each.worker for each in run.attempts}
        since_s = now.mono_s - max(_STARTS_S, 4 * ran_s)
        for active in self.leases.values():
            other = active.attempts.get(active.began)
            runs = active.worker not in workers or active.began_s <= since_s
            if other is not None and other.job is run.job and runs:
                return False  # for longer than what cannot start takes to fail, or elsewhere
        return len(workers) >= _TELLING or workers.issuperset(self.candidates.pool)

    def draw(self, now: Moment) -> None:
        """Have copies of tasks with a quorum wait for certain workers."""
        if isinstance(self.queues, DrawnQueues):
            leases = self.leases.values()
            free = {x.worker for x in leases if not self.estimates.is_stuck(x, now)}
            self.queues.draw(now, {x.worker for x in leases} - free, self._in_flight())

    def _in_flight(self) -> dict[TaskRun, list[PeerId]]:
        """Where copies of tasks are of which several go out at once."""
        found: dict[TaskRun, list[PeerId]] = {}
        if self.key.quorum is not None and self.key.quorum.at_once:
            for active in self.leases.values():
                for run in active.runs:
                    if run.is_wanted:
                        found.setdefault(run, []).append(active.worker)
        return found

    def first(self) -> TaskRun | None:
        """The task that has waited longest, or where none waits, one that is in flight."""
        in_flight = (run for active in self.leases.values() for run in active.attempts.values())
        return self.queues.first() or next(in_flight, None)

    def validate(self) -> None:
        """Raises InvariantBroken."""
        self.candidates.validate()
        self.queues.validate()
        for key, active in self.leases.items():
            ensure(key == active.lease.key, f"{active.lease.lease_id} is kept under another name")
            ensure(active.lease.scheduling_key == self.key, f"{key} is of another group")
            active.validate()
