"""The scheduler: jobs come in, tasks find workers, results go out, each counted once.

Tasks of equal terms (placement/scheduling_key.py) form a group, which shares what discovery found
and the leases held, so that one lease runs any number of tasks. Each task waits in the queue of the
worker that its policy names, by default the nearest by XOR, or of nobody in particular; a worker
that is free while its own queue is empty takes over from the longest other one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import assert_never

from formation_p2p.core.discovery.finder import Finder, Found
from formation_p2p.core.dispatch.active_lease import ActiveLease
from formation_p2p.core.dispatch.attempts import Attempts
from formation_p2p.core.dispatch.dispatcher import Dispatcher
from formation_p2p.core.dispatch.job import Job
from formation_p2p.core.dispatch.job_events import SchedulerEffect
from formation_p2p.core.dispatch.jobs import Jobs
from formation_p2p.core.dispatch.lease_acquirer import LeaseAcquirer
from formation_p2p.core.dispatch.leases import Leases
from formation_p2p.core.dispatch.notes import Note, search_of
from formation_p2p.core.dispatch.placement_decider import Authorised, PlacementDecider
from formation_p2p.core.dispatch.resume import revive
from formation_p2p.core.dispatch.saved import SavedJob, SavedLease
from formation_p2p.core.dispatch.task_group import Facts, TaskGroup
from formation_p2p.core.dispatch.task_run import JobRun, TaskRun, TaskState
from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.core.keyspace import key_of
from formation_p2p.core.negotiation.lessee import (
    HeldLease,
    LeaseHeld,
    LeaseLost,
    LeaseRecovered,
    Lessee,
    NegotiationEvent,
    RoundClosed,
)
from formation_p2p.core.negotiation.messages import (
    ResultAck,
    TaskOutput,
    TasksEnded,
    TaskStarted,
    ToScheduler,
)
from formation_p2p.core.negotiation.session import Send
from formation_p2p.core.placement.decision import Decision
from formation_p2p.core.placement.scheduling_key import SchedulingKey
from formation_p2p.core.records.profile import Profile
from formation_p2p.core.records.resources import encode_requirements
from formation_p2p.core.refusals import Refusal
from formation_p2p.core.resources.requirements import Requirements
from formation_p2p.core.trust.experience import Experience


class Scheduler:
    """`authorised` and `facts` are as for Choosing, `experienced` as for Attempts. `note` is called
    with what a task's story tells of searches and rounds."""

    def __init__(
        self,
        own: PeerId,
        finder: Finder,
        lessee: Lessee,
        authorised: Authorised,
        facts: Facts,
        experienced: Callable[[PeerId, Experience, Moment], None],
        note: Note,
    ) -> None:
        self._note = note
        self._own = own
        self._groups: dict[SchedulingKey, TaskGroup] = {}
        self._effects: list[SchedulerEffect] = []
        self._acks: list[Send] = []
        self._jobs = Jobs()
        self._choosing = PlacementDecider(authorised, facts, self.slots)
        self._recruiter = LeaseAcquirer(finder, lessee, self._choosing.candidates, note)
        self._leases = Leases(lessee, self._effects)
        self._dispatcher = Dispatcher(self._jobs, self._effects)
        self._attempts = Attempts(self._jobs, self._dispatcher, experienced)

    # -- the person -----------------------------------------------------------------------------

    def submit(self, job: Job, now: Moment) -> list[SchedulerEffect]:
        """Raises InvalidInput where too many jobs are under way, this one already is, or nobody
        could be asked for what it needs."""
        for needs in dict.fromkeys(task.needs for task in job.tasks):
            encode_requirements(needs)
        run = self._jobs.begin(job, now)
        ready: list[TaskRun] = []
        for task in job.tasks:
            if task.after:
                blocked = TaskRun(task, run, task.key, TaskState.BLOCKED)
                run.blocked.add(blocked, dict.fromkeys(task.after))
            else:
                ready.append(TaskRun(task, run, task.key))
        for group in self._queue(ready):
            self._pump(group, now, f"submit of {job.job_id}")
        return self._take()

    def _queue(self, runs: Iterable[TaskRun]) -> list[TaskGroup]:
        """Have tasks wait for workers. Returns their groups."""
        touched: dict[tuple[JobRun, Requirements], TaskGroup] = {}
        for run in runs:
            key = (run.job, run.task.needs)
            group = touched.get(key)
            if group is None:
                group = touched[key] = self._group(run.scheduling_key)
            group.wait(run)
        return list(dict.fromkeys(touched.values()))

    def resume(
        self, jobs: Iterable[SavedJob], leases: Iterable[SavedLease], life: str, now: Moment
    ) -> list[SchedulerEffect]:
        """Go on where an earlier life stopped. What was under way waits for its worker's answer:
        that it is still there, with the results so far, or that it is not. `life` names this one
        (resume.py).
        """
        runs: dict[str, TaskRun] = {}
        for saved in jobs:
            job = self._jobs.begin(saved.job, now)
            left, fallen = revive(saved, job, life)
            runs |= {run.task.task_id: run for run in left}
            for task_id in fallen:
                self._jobs.fell(job, task_id)
            self._jobs.close(job)
        for lease in leases:
            self._adopt(lease, runs, now)
        touched: dict[SchedulingKey, TaskGroup] = {}
        for run in runs.values():
            terms = run.scheduling_key
            group = touched[terms] = self._group(terms)
            if run.state is TaskState.WAITING:
                group.wait(run)
        for group in touched.values():
            self._pump(group, now, "resume")
        return self._take()

    def _adopt(self, saved: SavedLease, runs: Mapping[str, TaskRun], now: Moment) -> None:
        # One lease runs tasks of equal terms.
        known = (runs[task_id] for _, task_id in saved.attempts if task_id in runs)
        terms = next(
            (run.scheduling_key for run in known),
            SchedulingKey(saved.needs, saved.priority),
        )
        slot = self._leases.adopt(self._group(terms), saved, now)
        for attempt_id, task_id in saved.attempts:
            run = runs.get(task_id)
            if run is not None:
                run.move("dispatch")
                slot.add(attempt_id, run, now)

    def cancel(self, job_id: str, now: Moment) -> list[SchedulerEffect]:
        """Take back what waits, stop what runs. Ends in JobEnded, at the latest when the leases
        of what runs expire."""
        run = self._jobs.named(job_id)
        if run is None:
            return []
        run.cancelled = True
        self._stop(run, now, f"cancel of {job_id}")
        return self._take()

    def _stop(self, job: JobRun, now: Moment, cause: str) -> None:
        self._jobs.stop_blocked(job)
        for group in list(self._groups.values()):
            for waiting in group.drain(job):
                self._jobs.stopped(waiting)
            for slot in group.slots.values():
                unwanted = [a for a, run in slot.attempts.items() if run.job is job]
                self._dispatcher.cancel(slot, unwanted, cause)
            self._pump(group, now, cause)

    def leave(self) -> list[SchedulerEffect]:
        """End every job as cancelled. The leases are the lessee's to give back."""
        for job in list(self._jobs):
            job.cancelled = True
            self._jobs.stop_blocked(job)
        for group in self._groups.values():
            running = [run for slot in group.slots.values() for run in slot.attempts.values()]
            for run in (*group.drain(), *running):
                self._jobs.cancelled(run)
            for slot in group.slots.values():
                self._leases.let_go(slot)
        self._groups.clear()
        return self._take()

    # -- whoever looks on -------------------------------------------------------------------------

    def jobs(self) -> Iterator[JobRun]:
        return iter(self._jobs)

    def slots(self) -> Iterator[ActiveLease]:
        return (slot for group in self._groups.values() for slot in group.slots.values())

    def live(self, task_id: str) -> tuple[str, SchedulingKey] | None:
        """The job and the scheduling key of a task whose job has not ended."""
        for run in self._jobs:
            for task in run.job.tasks:
                if task.task_id == task_id:
                    return run.job.job_id, run.job.options.scheduling_key(task.needs)
        return None

    def explain(
        self, terms: SchedulingKey | None, name: str, profiles: Iterable[Profile], now: Moment
    ) -> Decision:
        """As it would decide now for a task of this name; with what workers have answered, where
        tasks of the same terms are under way. Without terms, who may work at all."""
        decision = self._choosing.decide(terms, name, key_of(name.encode()), profiles, now)
        group = None if terms is None else self._groups.get(terms)
        reasons = {} if group is None else dict(group.reasons())
        known = {each.profile.peer_id for each in decision.ranked}
        rejected = dict(decision.rejected)
        for worker, refusal in reasons.items():
            if worker not in known:
                rejected.setdefault(worker, refusal)
        return replace(decision, rejected=tuple(rejected.items()))

    # -- discovery and negotiation ----------------------------------------------------------------

    def found(self, found: Found, now: Moment) -> list[SchedulerEffect]:
        group = next((g for g in self._groups.values() if g.find == found.find), None)
        if group is None:
            return []
        group.find, group.answered = None, found.heard
        head = group.first()
        if head is not None:
            decision = self._choosing.decide(
                group.terms, head.task.task_id, head.key, found.profiles, now
            )
            self._note(search_of(group.terms, decision), now)
            if group.learn(decision.ranked, decision.rejected):
                group.looked_s = float("-inf")  # where there were more, there may be more yet
            # Whoever was dropped just now is judged no more, and may have a lease of ours.
            dropped = dict(decision.rejected)
            profiles = (each for each in found.profiles if each.peer_id in dropped)
            self._choosing.bar(group, head, profiles, now)
        self._pump(group, now, "discovery ended")
        return self._take()

    def negotiated(self, events: list[NegotiationEvent], now: Moment) -> list[SchedulerEffect]:
        """What the lessee tells."""
        for event in events:
            match event:
                case RoundClosed():
                    self._round_closed(event, now)
                case LeaseHeld(lease):
                    self._lease_held(lease, now)
                case LeaseRecovered(lease):
                    self._lease_recovered(lease, now)
                case LeaseLost(lease, refusal):
                    self._lease_lost(lease, refusal, now)
                case _:
                    assert_never(event)
        return self._take()

    # A group lasts for as long as a round of it is open or a lease of it is held.

    def _round_closed(self, closed: RoundClosed, now: Moment) -> None:
        group = next(g for g in self._groups.values() if g.round == closed.round)
        group.round = None
        for worker, refusal in closed.refusals:
            group.back_off(worker, refusal, now)
        group.committing |= set(closed.committed)
        self._pump(group, now, "a round closed")

    def _lease_held(self, lease: HeldLease, now: Moment) -> None:
        group = self._groups[lease.terms]
        self._leases.granted(group, lease, now)
        self._pump(group, now, f"lease {lease.lease_id}")

    def _lease_recovered(self, lease: HeldLease, now: Moment) -> None:
        group = self._groups[lease.terms]
        slot = group.slots[lease.key]
        slot.adopted = False
        cause = "the worker answers again"
        self._dispatcher.repeat(slot, cause)
        self._pump(group, now, cause)

    def _lease_lost(self, lease: HeldLease, refusal: Refusal, now: Moment) -> None:
        group = self._groups.get(lease.terms)
        if group is None:
            return  # it was given back at the moment when it was lost
        worker = lease.lessor.peer_id
        group.committing.discard(worker)
        group.back_off(worker, refusal, now)
        slot = group.slots.pop(lease.key, None)
        if slot is not None:
            self._leases.let_go(slot)
            self._attempts.lost(group, slot, refusal, now)
        self._pump(group, now, f"lease {lease.lease_id} is lost")

    # -- what workers tell ------------------------------------------------------------------------

    def received(self, sender: Contact, message: ToScheduler, now: Moment) -> list[SchedulerEffect]:
        match message:
            case TaskStarted():
                return self.started(sender, message, now)
            case TaskOutput():
                return self.printed(sender, message)
            case TasksEnded():
                return self.ended(sender, message, now)
            case _:
                assert_never(message)

    def started(self, sender: Contact, message: TaskStarted, now: Moment) -> list[SchedulerEffect]:
        slot = self._slot((sender.peer_id, message.lease_id))
        if slot is not None and self._attempts.began(slot, message, now):
            self._pump(self._group_of(slot), now, f"{message.attempt_id} runs")
        return self._take()

    def printed(self, sender: Contact, message: TaskOutput) -> list[SchedulerEffect]:
        slot = self._slot((sender.peer_id, message.lease_id))
        if slot is not None:
            self._attempts.printed(slot, message)
        return self._take()

    def ended(self, sender: Contact, message: TasksEnded, now: Moment) -> list[SchedulerEffect]:
        """Results. Each counts only under the lease in force and its fencing token, and once. What
        comes under no lease of ours is not acknowledged either: anybody could have it queued."""
        slot = self._slot((sender.peer_id, message.lease_id))
        if slot is None or slot.lease.fence != message.fence:
            return []
        cause = f"attempts under {message.lease_id} ended"
        group = self._group_of(slot)
        self._attempts.ended(group, slot, message.ended, now)
        touched = self._queue(self._jobs.take_ready())
        if touched:
            # Told before a lease is let go to make room for what comes next.
            self._effects += self._jobs.take()
        for each in dict.fromkeys([group, *touched]):
            self._pump(each, now, cause)
        ack = ResultAck(message.lease_id, tuple(ended.attempt_id for ended in message.ended))
        self._acks.append(Send(sender, ack, cause=cause))
        return self._take()

    def heard(self, worker: PeerId) -> None:
        """A message outside the work protocol came from a peer: it lives."""
        for group in self._groups.values():
            group.heard(worker)

    # -- time -------------------------------------------------------------------------------------

    def tick(self, now: Moment) -> list[SchedulerEffect]:
        for job in self._jobs.overdue(now):
            self._stop(job, now, f"the deadline of {job.job.job_id} passed")
        for group in list(self._groups.values()):
            if group.wake_s <= now.mono_s:
                self._pump(group, now, "time to look again")
        return self._take()

    def next_timeout(self) -> float:
        if not self._groups:
            return float("inf")  # as a rule; it is asked for after every message
        wake_s = min(group.wake_s for group in self._groups.values())
        return min(wake_s, self._jobs.next_deadline_s())

    # -- the insides ------------------------------------------------------------------------------

    def _pump(self, group: TaskGroup, now: Moment, cause: str) -> None:
        """Do all that can be done for a group now. Called after everything that touches it."""
        group.wake_s = float("inf")
        group.forget_expired(now)
        self._choosing.judge(group, now)
        if group.bars:
            self._leases.release_barred(group, cause)
        self._dispatcher.fill(group, 1, 0, now, cause)
        head = group.first_waiting()
        if head is not None:
            # Tasks are left over for the leases that may yet come.
            coming = self._seek(group, head, now, cause)
            self._dispatcher.fill(group, 0, coming, now, cause)
        if not group.waiting:
            kept = self._dispatcher.rebalance(group, now, cause)
            self._leases.linger(group, kept, now, cause)
            self._forget_idle(group)

    def _seek(self, group: TaskGroup, head: TaskRun, now: Moment, cause: str) -> int:
        """Go for more leases. Returns how many may yet come of what is under way."""
        if group.round is not None or group.committing:
            return max(1, len(group.committing))
        self._make_room(group, cause)
        coming = self._recruiter.seek(group, head, now, cause)
        if not coming and self._recruiter.is_hopeless(group):
            reasons = group.reasons()
            for run in group.drain():
                self._jobs.unplaceable(run, reasons)
        return coming

    def _make_room(self, group: TaskGroup, cause: str) -> None:
        """Leases that are kept warm for other kinds of tasks may be in the way."""
        for other in list(self._groups.values()):
            if other is not group:
                self._leases.release_idle(other, cause)
                self._forget_idle(other)

    def _forget_idle(self, group: TaskGroup) -> None:
        if group.is_idle:
            self._groups.pop(group.terms, None)

    def _group(self, terms: SchedulingKey) -> TaskGroup:
        group = self._groups.get(terms)
        if group is None:
            group = self._groups[terms] = TaskGroup(terms)
        return group

    def _slot(self, key: tuple[PeerId, str]) -> ActiveLease | None:
        return next((g.slots[key] for g in self._groups.values() if key in g.slots), None)

    def _group_of(self, slot: ActiveLease) -> TaskGroup:
        return self._groups[slot.lease.terms]

    def _take(self) -> list[SchedulerEffect]:
        # First what others wait for; and acknowledged is what has been told.
        effects = [*self._effects, *self._jobs.take(), *self._acks]
        self._effects.clear()  # which the parts add to
        self._acks.clear()
        return effects
