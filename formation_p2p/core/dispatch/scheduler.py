"""The scheduler: jobs come in, tasks find workers, results go out, each counted once.

Tasks with the same scheduling key (placement/task_options.py) form a group, which shares what
discovery found and the leases held, so that one lease runs any number of tasks. Each task waits in
the queue of the worker that its policy names, by default the nearest by XOR, or of none in
particular; a worker that is free while its own queue is empty takes over from the longest other
one. One concept: what each event means for tasks, groups and leases; their parts do the work.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import assert_never

from formation_p2p.core.announce.caller import Caller
from formation_p2p.core.discovery.finder import Finder, Found
from formation_p2p.core.dispatch.active_lease import ActiveLease
from formation_p2p.core.dispatch.attempts import Attempts
from formation_p2p.core.dispatch.candidates import Facts
from formation_p2p.core.dispatch.effects import SchedulerEffect
from formation_p2p.core.dispatch.fetch import CheckpointEvent, CheckpointKept, FetchEvent
from formation_p2p.core.dispatch.job import Job
from formation_p2p.core.dispatch.jobs import Jobs, Outbox
from formation_p2p.core.dispatch.leasing import Leasing, Note
from formation_p2p.core.dispatch.moves import attempts_of, notice_to
from formation_p2p.core.dispatch.parameters import DISPATCH_DEFAULTS, DispatchParameters
from formation_p2p.core.dispatch.placement_decider import Authorised, PlacementDecider
from formation_p2p.core.dispatch.quorum_elections import Elections, Jury
from formation_p2p.core.dispatch.rebalancer import Rebalancer
from formation_p2p.core.dispatch.saved import SavedJob, SavedLease, revive
from formation_p2p.core.dispatch.task_group import TaskGroup
from formation_p2p.core.dispatch.task_run import JobRun, TaskRun, TaskState
from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.errors import ensure
from formation_p2p.core.identity import PeerId
from formation_p2p.core.negotiation import messages as work
from formation_p2p.core.negotiation.held_lease import LeaseKey
from formation_p2p.core.negotiation.lessee import (
    LeaseHeld,
    LeaseLost,
    LeaseRecovered,
    LeaseYields,
    Lessee,
    NegotiationEvent,
    RoundClosed,
)
from formation_p2p.core.placement.decision import Decision
from formation_p2p.core.placement.hinted import may_hold
from formation_p2p.core.placement.learnt import Learnt
from formation_p2p.core.placement.task_options import SchedulingKey
from formation_p2p.core.records.profile import Profile
from formation_p2p.core.records.resources import encode_requirements
from formation_p2p.core.trust.experience import Experience
from formation_p2p.core.workload.hints import Kind
from formation_p2p.core.workload.scope import Scope


class Scheduler:
    """`authorised` and `facts` are as for PlacementDecider, `experienced` as for Attempts. `note`
    gets what a task's story tells of searches and rounds; `caller` reaches workers not asked.
    `jury` judges the answers of copies; `gave` gets for how many core-seconds a worker ran what
    brought results.

    A group is kept for as long as tasks of it wait or run, a round of it is open, or a lease of it
    is held. Others read `groups`, and change nothing there.
    """

    def __init__(
        self,
        finder: Finder,
        lessee: Lessee,
        authorised: Authorised,
        facts: Facts,
        experienced: Callable[[PeerId, Experience, Moment], None],
        note: Note,
        caller: Caller,
        jury: Jury,
        parameters: DispatchParameters = DISPATCH_DEFAULTS,
        gave: Callable[[PeerId, float, Moment], None] = lambda worker, core_s, now: None,
    ) -> None:
        self._gave = gave
        self._lessee = lessee
        self._parameters = parameters
        self._outbox = Outbox()
        self._jury = jury
        self._jobs = Jobs(self._outbox, parameters, lambda: f"{jury.rng.getrandbits(64):016x}")
        self.live = self._jobs.live
        self.saved = self._jobs.checkpoints.numbers
        self._facts = facts
        self._decider = PlacementDecider(authorised, facts, self.leases)
        self._leasing = Leasing(
            finder, lessee, self._decider.candidates, self._outbox, note, caller, parameters
        )
        self._elections = Elections(self._jobs, jury, self._judged, parameters)
        self._experienced = experienced
        self._attempts = Attempts(
            self._jobs, self._outbox, experienced, parameters.max_printed_bytes, self._elections
        )
        self.rebalancer = Rebalancer(self._decider, self._leasing.look_around, self._outbox.emit)
        self.groups: dict[SchedulingKey, TaskGroup] = {}

    def submit(self, job: Job, now: Moment, *, durable: bool = False) -> list[SchedulerEffect]:
        """A `durable` job waits while no worker is in sight. Raises InvalidInput where too many
        jobs are running, this one already is, or no worker could be asked for what it needs."""
        for needs in dict.fromkeys(task.needs for task in job.tasks):
            encode_requirements(needs)
        run = self._jobs.begin(job, now, durable=durable)
        if job.options.rebalance:
            self.rebalancer.begun(now)
        ready: list[TaskRun] = []
        for task in job.tasks:
            task_run = TaskRun(task, run, task.key)
            if task.goes_on_from:
                self._jobs.checkpoints.inherit(task_run)
            if task.after:
                task_run.block(dict.fromkeys(task.after))
            else:
                ready.append(task_run)
        for group in self._queue(ready):
            self._pump(group, now, f"submit of {job.job_id}")
        return self._outbox.take()

    def resume(
        self, jobs: Iterable[SavedJob], leases: Iterable[SavedLease], incarnation: str, now: Moment
    ) -> list[SchedulerEffect]:
        """Go on where an earlier incarnation stopped. What was in flight waits for its worker's
        answer: that it is still there, with the results so far, or that it is not. `incarnation`
        goes with the ids of attempts from now on: some of those before may not be known.
        """
        runs: dict[str, TaskRun] = {}
        for saved in jobs:
            job = self._jobs.begin(saved.job, now, incarnation, durable=True)
            if saved.job.options.rebalance:
                self.rebalancer.begun(now)
            left, failed = revive(saved, job)
            runs |= {run.task.task_id: run for run in left}
            for each in saved.begun:
                if each.checkpoint is not None and each.task_id in runs:
                    self._jobs.checkpoints.revived(runs[each.task_id], each.checkpoint)
            for task_id in failed:
                self._jobs.upstream_failed(job, task_id)
            self._jobs.close(job)
        for lease in leases:
            self._adopt(lease, runs, now)
        touched = {self._group(run.scheduling_key): None for run in runs.values()}
        self._queue(run for run in runs.values() if run.state is TaskState.WAITING)
        for group in touched:
            self._pump(group, now, "resume")
        return self._outbox.take()

    def _adopt(self, saved: SavedLease, runs: Mapping[str, TaskRun], now: Moment) -> None:
        known = [(a, runs[task_id]) for a, task_id in saved.attempts if task_id in runs]
        # One lease runs tasks of one key.
        group = (
            self._group(known[0][1].scheduling_key)
            if known
            else self._group(SchedulingKey(saved.needs, saved.priority))
        )
        active = self._leasing.adopt(group, saved, now)
        for attempt_id, run in known:
            run.move("dispatch")
            active.add(attempt_id, run, now)

    def cancel(self, job_id: str, now: Moment) -> list[SchedulerEffect]:
        """Take back what waits, stop what runs. Ends in JobEnded, at the latest when the leases
        of what runs expire."""
        if (run := self._jobs.runs.get(job_id)) is not None:
            run.move("cancel")
            self._stop(run, now, f"cancel of {job_id}")
        return self._outbox.take()

    def move(self, job_id: str, task_id: str, grace_s: float, now: Moment) -> list[SchedulerEffect]:
        """Have a task that runs go on elsewhere. One that does not run is where it is to be."""
        for active in self.leases():
            attempt_ids = attempts_of(active, job_id, task_id)
            for notice in notice_to(active, attempt_ids, grace_s, f"{task_id} is to move"):
                self._outbox.emit(notice)
        return self._outbox.take()

    def _stop(self, job: JobRun, now: Moment, cause: str) -> None:
        self._jobs.stop_blocked(job)
        for group in list(self.groups.values()):
            for waiting in group.queues.drain(job):
                self._jobs.stopped(waiting)
            for active in group.leases.values():
                unwanted = [a for a, run in active.attempts.items() if run.job is job]
                self._attempts.cancel(active, unwanted, cause)
                self._attempts.stop_fetching(active, job, now, cause)
            self._pump(group, now, cause)

    def leave(self) -> list[SchedulerEffect]:
        """End every job as cancelled. The leases are the lessee's to give back."""
        for job in list(self._jobs.runs.values()):
            job.move("cancel")
            self._jobs.stop_blocked(job)
        for group in list(self.groups.values()):
            self._end(group, "")
        return self._outbox.take()

    def ranks_ended(self, members: Collection[tuple[str, int]], why: str) -> list[SchedulerEffect]:
        """End the tasks of these members of gangs; as cancelled where there is no `why`."""
        for group in [each for each in self.groups.values() if each.key.member in members]:
            self._end(group, why)
        return self._outbox.take()

    def _end(self, group: TaskGroup, why: str) -> None:
        self._attempts.end_all(group, why)
        for active in list(group.leases.values()):
            self._leasing.ended(group, active)
        del self.groups[group.key]

    def jobs(self) -> Iterator[JobRun]:
        return iter(self._jobs.runs.values())

    def leases(self) -> Iterator[ActiveLease]:
        return (active for group in self.groups.values() for active in group.leases.values())

    @property
    def is_idle(self) -> bool:
        """Whether no task waits, runs or is being placed, and no lease is kept."""
        return not self.groups

    def explain(
        self, key: SchedulingKey | None, name: str, profiles: Iterable[Profile], now: Moment
    ) -> Decision:
        """As it would decide now for a task of this name; with what workers have answered, where
        tasks of the same key are in flight. Without a key, who may work at all."""
        if key is not None and isinstance(key.policy, Learnt):
            key = key._replace(policy=self._jobs.learner.explained())
        group = None if key is None else self.groups.get(key)
        return self._decider.explain(key, name, profiles, group, now)

    def found(self, found: Found, now: Moment) -> list[SchedulerEffect]:
        group = next((g for g in self.groups.values() if g.acquisition.find == found.find), None)
        if group is None:
            return []
        group.acquisition.search_ended(answered=found.heard, holders=found.holders)
        head = group.first()
        if self._leasing.awaits_notice(group, found, now):
            pass  # those found are asked after the next look
        elif head is not None:
            decision = self._decider.decide(
                group.key, head.task.task_id, head.key, found.profiles, now
            )
            self._leasing.searched(group, decision, now)
            if group.candidates.learn(decision.ranked, decision.rejected):
                group.acquisition.found_more()
            # A worker that was dropped just now is reviewed no more, and may have a lease of ours.
            dropped = dict(decision.rejected)
            profiles = (each for each in found.profiles if each.peer_id in dropped)
            self._decider.bar(group, head, profiles, now)
        self._elections.searched(group)
        for told in self._leasing.to_tell(group, now):
            self._jobs.waits(*told)
        self._pump(group, now, "discovery ended")
        return self._outbox.take()

    def negotiated(self, events: list[NegotiationEvent], now: Moment) -> list[SchedulerEffect]:
        """What the lessee reports."""
        for event in events:
            match event:
                case RoundClosed():
                    asking = self.groups.values()
                    rounds = ((g.acquisition.round, g.acquisition.call_round, g) for g in asking)
                    group = next(g for *either, g in rounds if event.round in either)
                    group.acquisition.round_ended(event.round, event.committed)
                    for worker, refusal in event.refusals:
                        group.candidates.refused(worker, refusal, now)
                    if not event.committed:
                        self._leasing.leave_notice(group, now)
                    self._pump(group, now, "a round closed")
                case LeaseHeld(lease):
                    group = self._group(lease.scheduling_key)
                    self._leasing.granted(group, lease, now)
                    self._pump(group, now, f"lease {lease.lease_id}")
                case LeaseRecovered(lease):
                    cause = "the worker answers again"
                    group = self._group(lease.scheduling_key)
                    self._attempts.repeat(group.leases[lease.key], cause)
                    self._pump(group, now, cause)
                case LeaseYields(lease):
                    self._lease_yields(lease.key, now)
                case LeaseLost():
                    self._lease_lost(event, now)
                case _:
                    assert_never(event)
        return self._outbox.take()

    def _lease_yields(self, key: LeaseKey, now: Moment) -> None:
        """It gives way to an equal: what has begun may end; or after all it does not."""
        group = self._of_lease(key)
        if group is None:
            return
        active, cause = group.leases[key], "an equal has its turn"
        if active.lease.yields:
            self._attempts.cancel(active, active.recall_all(), cause, begun=False)
        self._pump(group, now, cause)

    def volunteered(
        self, worker: Contact, number: int, profile: Profile, now: Moment
    ) -> list[SchedulerEffect]:
        """A worker that was not asked makes an offer by the number of a call. It is expected where
        tasks wait and the worker is a candidate for them; else the lessee gives it back."""
        call = self._lessee.called(number, now)
        group = None if call is None else self.groups.get(call.key)
        head = None if group is None else group.queues.first()
        if call is None or group is None or head is None:
            return []
        decision = self._decider.decide(group.key, head.task.task_id, head.key, (profile,), now)
        group.candidates.learn(decision.ranked, decision.rejected)
        self._leasing.expect(group, head, call, worker, now)
        return self._outbox.take()

    def _lease_lost(self, event: LeaseLost, now: Moment) -> None:
        lease, worker = event.lease, event.lease.lessor.peer_id
        group = self.groups.get(lease.scheduling_key)
        if group is None:
            return  # it was given back at the moment when it was lost
        group.acquisition.committing.discard(worker)
        group.candidates.refused(worker, event.refusal, now)
        if (active := group.leases.get(lease.key)) is not None:
            self._leasing.ended(group, active)
            self._attempts.lost(group, active, event, now)
        self._pump(group, now, f"lease {lease.lease_id} is lost")

    def received(
        self, sender: Contact, message: work.ToScheduler, now: Moment
    ) -> list[SchedulerEffect]:
        """What comes under no lease of ours has no effect, and is not acknowledged: any peer could
        have it queued."""
        group = self._of_lease(key := (sender.peer_id, message.lease_id))
        if group is None:
            return []
        active = group.leases[key]
        match message:
            case work.TaskStarted():
                if self._attempts.began(active, message, now):
                    self._pump(group, now, f"{message.attempt_id} runs")
            case work.TaskOutput():
                self._attempts.printed(active, message)
            case work.TaskCheckpoint():
                if active.lease.fence == message.fence:
                    self._attempts.saved(active, message, now)
            case work.Notice():
                if active.lease.fence == message.fence and not active.leaving:
                    active.leave()
                    group.candidates.refused(active.worker, message.refusal, now)
                    self._pump(group, now, f"lease {message.lease_id} ends: {message.refusal}")
            case work.TasksEnded():
                # Each result counts only under the fencing token of its lease, and once.
                if active.lease.fence != message.fence:
                    return []
                cause = f"attempts under {message.lease_id} ended"
                mean_s = active.mean_s(message.ended, now)
                group.estimates.took(mean_s)
                if mean_s is not None:
                    core_s = mean_s * active.succeeded(message.ended) * group.key.needs.cpu_milli
                    self._gave(active.worker, core_s / 1000, now)
                self._attempts.ended(group, active, message.ended, now)
                self._ended(group, now, cause)
            case _:
                assert_never(message)
        return self._outbox.take()

    def checkpoint_told(self, event: CheckpointEvent, now: Moment) -> list[SchedulerEffect]:
        if isinstance(event, CheckpointKept):
            run = self._jobs.checkpoints.run_of(event.task_id)
            awaited = run is not None and run.is_awaiting
            self._jobs.checkpoints.kept(event, now)
            group = None if run is None else self.groups.get(run.scheduling_key)
            if group is not None:
                self._decider.review(group, now)
                self.rebalancer.leave_barred(group)
            if group is not None and awaited:
                self._pump(group, now, f"what {event.task_id} has saved is here")
        else:
            self._jobs.checkpoints.spread_ended(event, now)
        self._spread_checkpoints(now)
        return self._outbox.take()

    def _spread_checkpoints(self, now: Moment) -> None:
        for run in self._jobs.checkpoints.due(now):
            group = self.groups.get(run.scheduling_key)
            pool = {} if group is None else group.candidates.pool
            leases = list(self.leases())
            key = run.scheduling_key
            if key.scope < Scope.COMMONS or Kind.REGION in key.hints.required:
                inside = partial(may_hold, key.scope, key.hints)
                pool = {who: x for who, x in pool.items() if inside(self._facts(x, key, now))}
                leases = [each for each in leases if each.worker in pool]
            enough = self._attempts.spread(run, pool, leases, now)
            if not enough and group is not None:
                self._leasing.look_around(group, run, now, "others are to hold a checkpoint")

    def fetch_ended(self, event: FetchEvent, now: Moment) -> list[SchedulerEffect]:
        """Of a lease that is lost, or an attempt that is wanted no more, it has no effect."""
        group = self._of_lease(key := (event.worker, event.lease_id))
        if group is not None:
            self._attempts.fetch_ended(group, group.leases[key], event, now)
            self._ended(group, now, f"the fetch of {event.attempt_id} ended")
        return self._outbox.take()

    def _of_lease(self, key: LeaseKey) -> TaskGroup | None:
        return next((group for group in self.groups.values() if key in group.leases), None)

    def _ended(self, group: TaskGroup, now: Moment, cause: str) -> None:
        """Attempts of a group have."""
        touched = self._bind_again() + self._queue(self._jobs.take_ready())
        if touched:
            # Before a lease is given back to make room for what comes next.
            self._outbox.flush_events()
        for each in dict.fromkeys([group, *touched]):
            self._pump(each, now, cause)

    def licensed(self, until_unix_s: float, now: Moment) -> None:
        """This node has a grant, or a new one, until then."""
        self._leasing.licensed(until_unix_s)
        for group in self.groups.values():
            group.renewed(now)

    def heard(self, worker: PeerId) -> None:
        """A message outside the work protocol came from a peer: it lives."""
        for group in self.groups.values():
            group.wake_by(group.candidates.heard(worker))

    def tick(self, now: Moment) -> list[SchedulerEffect]:
        for job in self._jobs.overdue(now):
            self._stop(job, now, f"the deadline of {job.job.job_id} passed")
        for group in list(self.groups.values()):
            if group.wake_s <= now.mono_s:
                self._pump(group, now, "time to look again")
        self._spread_checkpoints(now)
        self.rebalancer.look(self.groups.values(), now)
        return self._outbox.take()

    def next_timeout(self) -> float:
        if not self.groups:
            return float("inf")  # as a rule; it is asked for after every message
        wake_s = min(group.wake_s for group in self.groups.values())
        own_s = min(self._jobs.checkpoints.due_s, self.rebalancer.due_s)
        return min(wake_s, self._jobs.next_deadline_s(), own_s)

    def validate(self) -> None:
        """Raises InvariantBroken."""
        self._jobs.validate()
        for key, group in self.groups.items():
            ensure(key == group.key, "a group is kept under another key")
            ensure(not group.is_idle, "a group is kept without need")
            group.validate()
        used = {active.lease.key: active.lease for active in self.leases()}
        held = {k: x for k, x in self._lessee.held.items() if not x.is_committing}
        # Those of a gang's members come here once it is complete.
        held = {k: x for k, x in held.items() if k in used or not x.scheduling_key.member}
        ensure(used == held, f"{used.keys() ^ held.keys()} are held, or used, but not both")

    def _judged(self, worker: PeerId, experience: Experience, now: Moment) -> None:
        self._experienced(worker, experience, now)
        if experience is Experience.WRONG:
            for group in self.groups.values():
                group.candidates.doubted()

    # -- groups ---------------------------------------------------------------------------------

    def _group(self, key: SchedulingKey) -> TaskGroup:
        """The group of tasks with this key, from now on."""
        if key not in self.groups:
            draw = self._jury.rng, self._jury.marks
            self.groups[key] = TaskGroup(key, self._parameters, draw)
        return self.groups[key]

    def _queue(self, runs: Iterable[TaskRun]) -> list[TaskGroup]:
        """Have tasks wait for workers. Returns their groups."""
        touched: dict[TaskGroup, None] = {}
        last: TaskRun | None = None
        for run in runs:
            # Most have the very needs of the one before. To look them up costs more than the rest.
            if last is None or not last.goes_with(run):
                group = self._group(run.scheduling_key)
                touched[group] = None
            last = run
            group.queues.wait(run)
        return list(touched)

    def _bind_again(self) -> list[TaskGroup]:
        """As `Queues.bind_again`, in all groups: these, where there is a reason."""
        jobs = self._jobs.take_unbound()
        groups = list(self.groups.values()) if jobs else []
        for group in groups:
            for job in jobs:
                group.queues.bind_again(job)
        return groups

    def _pump(self, group: TaskGroup, now: Moment, cause: str) -> None:
        """Do all that can be done for a group now. Called after everything that touches it."""
        group.awake()
        self._leasing.release_left(group, cause)
        group.candidates.forget_expired(now)
        self._decider.review(group, now)
        if group.candidates.barred:
            self.rebalancer.leave_barred(group)
            self._leasing.release_barred(group, cause)
        self._leasing.release_yielding(group, cause)
        group.draw(now)
        self._attempts.fill(group, 1, 0, now, cause)
        if group.queues.is_ready:
            # Tasks are left over for the leases that may yet come.
            coming = self._seek(group, now, cause)
            self._attempts.fill(group, 0, coming, now, cause)
        if not group.queues.waiting:
            kept = self._attempts.rebalance(group, now, cause)
            self._leasing.linger(group, kept, now, cause)
            self._forget_idle(group)

    def _seek(self, group: TaskGroup, now: Moment, cause: str) -> int:
        """Go for more leases. Returns how many may yet come of what is in flight."""
        if group.key.member is not None:
            return 0  # its gang does
        if group.acquisition.is_open:
            return max(1, len(group.acquisition.committing))
        for other in list(self.groups.values()):
            if other is not group:  # what it keeps warm may be in the way
                self._leasing.release(other, cause)
                self._forget_idle(other)
        if self._leasing.is_hopeless(group):
            self._attempts.give_up(group, durable=not self._leasing.outlasts(group, now))
        head = group.queues.first()
        return 0 if head is None else self._leasing.seek(group, head, now, cause)

    def _forget_idle(self, group: TaskGroup) -> None:
        if group.is_idle:
            self.groups.pop(group.key, None)
