"""The scheduler: jobs come in, tasks find workers, results go out, each counted once.

Tasks with the same scheduling key (placement/core/task_options.py) form a group, which shares what
discovery found and the leases held, so that one lease runs any number of tasks. Each task waits in
the queue of the worker that its policy names, by default the nearest by XOR, or of none in
particular; a worker that is free while its own queue is empty takes over from the longest other
one.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import assert_never

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.errors import ensure
from formation_p2p.core.identity import PeerId
from formation_p2p.discovery.core.finder import Finder, Found
from formation_p2p.jobs.core.attempts import Attempts
from formation_p2p.jobs.core.candidates import Facts
from formation_p2p.jobs.core.fetch import (
    CheckpointEvent,
    CheckpointKept,
    FetchEvent,
    OutputsCopied,
    SchedulerEffect,
)
from formation_p2p.jobs.core.holders import Holders
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.jobs import Jobs, Outbox
from formation_p2p.jobs.core.leasing import Leasing
from formation_p2p.jobs.core.parameters import DISPATCH_DEFAULTS, DispatchParameters
from formation_p2p.jobs.core.placement_decider import Authorised, PlacementDecider
from formation_p2p.jobs.core.pump import Pump
from formation_p2p.jobs.core.quorum_elections import Elections, Jury
from formation_p2p.jobs.core.rebalancer import Rebalancer, attempts_of, notice_to
from formation_p2p.jobs.core.reports import Reports
from formation_p2p.jobs.core.resumption import Resumption
from formation_p2p.jobs.core.saved import SavedJob, SavedLease
from formation_p2p.jobs.core.task_group import TaskGroup
from formation_p2p.jobs.core.task_groups import TaskGroups
from formation_p2p.jobs.core.task_run import JobRun, TaskRun
from formation_p2p.jobs.core.wanted import Note, Wanted
from formation_p2p.leases.core import messages as work
from formation_p2p.leases.core.held_lease import LeaseKey
from formation_p2p.leases.core.lessee import (
    LeaseHeld,
    LeaseLost,
    LeaseRecovered,
    LeaseYields,
    Lessee,
    NegotiationEvent,
    RoundClosed,
)
from formation_p2p.placement.core.decision import Decision
from formation_p2p.placement.core.learnt import Learnt
from formation_p2p.placement.core.task_options import SchedulingKey
from formation_p2p.records.core.profile import Profile
from formation_p2p.records.core.resources import encode_requirements
from formation_p2p.trust.core.experience import Experience
from formation_p2p.wants.core.caller import Caller


class Scheduler:
    """`authorised` and `facts` are as for PlacementDecider, `experienced` as for Reports. `note`
    gets what a task's story tells of searches and rounds; `caller` reaches workers not asked.
    `jury` judges the answers of copies; `gave` gets for how many core-seconds a worker ran what
    brought results.

    Others read `groups` and `copies`, which counts those of tasks with a quorum, and change nothing
    there.
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
        self._outbox = Outbox()
        # As the first attempt of a job with one task is named: a name of another form would tell.
        opaque = lambda: f"{jury.rng.getrandbits(64):016x}/0#1"  # noqa: E731
        self._jobs = Jobs(self._outbox, parameters, opaque, jury.marks)
        self.live = self._jobs.live
        self.holders = self._jobs.holders
        self.saved = self._jobs.checkpoints.numbers
        self._groups = TaskGroups(self._jobs, jury, parameters)
        self.groups = self._groups.by_key
        self.leases = self._groups.leases
        self._decider = PlacementDecider(authorised, facts, self.leases)
        told = self._decider.candidates, self._outbox, note
        self._wanted = Wanted(lessee, *told, caller, parameters)
        self._leasing = Leasing(finder, lessee, *told, self._wanted, parameters)
        self._elections = Elections(self._jobs, jury, self._judged, parameters)
        self.copies: Mapping[str, int] = self._elections.copies
        self._experienced = experienced
        self._attempts = Attempts(self._jobs, self._outbox, self._elections)
        placing = self._jobs, self._outbox, self._attempts, self._elections
        self._reports = Reports(*placing, experienced, parameters.max_printed_bytes)
        self.rebalancer = Rebalancer(self._decider, self._leasing.look_around, self._outbox.emit)
        acting = self._decider, self._leasing, self._attempts, self.rebalancer
        self._pump = Pump(self._groups, self._jobs, self._outbox, *acting)
        means = self._jobs, self._groups, self._leasing
        self._resumption = Resumption(*means, self._pump, self.rebalancer)
        held = self._jobs.checkpoints, self.holders
        self._others = Holders(*held, self._groups, self._leasing, facts)

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
                self._jobs.checkpoints.inherit(task_run, now)
            if task.after:
                task_run.block(dict.fromkeys(task.after))
            else:
                ready.append(task_run)
        for group in self._groups.queue(ready):
            self._pump.run(group, now, f"submit of {job.job_id}")
        return self._outbox.take()

    def resume(
        self, jobs: Iterable[SavedJob], leases: Iterable[SavedLease], incarnation: str, now: Moment
    ) -> list[SchedulerEffect]:
        """Go on where an earlier incarnation stopped. `incarnation` goes with the ids of attempts
        from now on: some of those before may not be known."""
        self._resumption.resume(jobs, leases, incarnation, now)
        return self._outbox.take()

    def cancel(self, job_id: str, waiting: Collection[str], now: Moment) -> list[SchedulerEffect]:
        """Take back what waits, stop what runs. Ends in JobEnded, at the latest when the leases
        of what runs expire. With `waiting` only those tasks are taken back, where they wait."""
        if (run := self._jobs.runs.get(job_id)) is not None and waiting:
            for group in [each for each in self._groups if each.key.quorum is None]:
                for each in (taken := group.queues.take_back(run, waiting)):
                    self._jobs.cancelled(each)
                if taken:
                    self._pump.run(group, now, f"cancel of tasks of {job_id}")
        elif run is not None:
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

    def output_seen(
        self, job_id: str, task_id: str, worker: PeerId, *, more: bool
    ) -> list[SchedulerEffect]:
        """Tell a worker that asked: what a task prints there is read."""
        for active in self.leases():
            if active.worker == worker:
                self._reports.seen(active, attempts_of(active, job_id, task_id), more=more)
        return self._outbox.take()

    def _stop(self, job: JobRun, now: Moment, cause: str) -> None:
        self._jobs.stop_blocked(job)
        for group in self._groups:
            for waiting in group.queues.drain(job):
                self._jobs.stopped(waiting)
            for active in group.leases.values():
                unwanted = [a for a, run in active.attempts.items() if run.job is job]
                self._attempts.cancel(active, unwanted, cause)
                self._reports.stop_fetching(active, job, now, cause)
            self._pump.run(group, now, cause)

    def leave(self) -> list[SchedulerEffect]:
        """End every job as cancelled. The leases are the lessee's to give back."""
        for job in list(self._jobs.runs.values()):
            job.move("cancel")
            self._jobs.stop_blocked(job)
        for group in self._groups:
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
        self._groups.forget(group)

    def jobs(self) -> Iterator[JobRun]:
        return iter(self._jobs.runs.values())

    def explain(
        self, key: SchedulingKey | None, name: str, profiles: Iterable[Profile], now: Moment
    ) -> Decision:
        """As it would decide now for a task of this name; with what workers have answered, where
        tasks of the same key are in flight, and whose turn it is, where such wait that need no
        more and are as urgent. Without a key, who may work at all."""
        if key is not None and isinstance(key.policy, Learnt):
            key = key._replace(policy=self._jobs.learner.explained())
        group = None if key is None else self.groups.get(key)
        return self._decider.explain(key, name, profiles, group, now, self._groups)

    def found(self, found: Found, now: Moment) -> list[SchedulerEffect]:
        group = next((g for g in self.groups.values() if g.acquisition.find == found.find), None)
        if group is None:
            return []
        group.acquisition.search_ended(answered=found.heard, holders=found.holders)
        head = group.first()
        if self._wanted.awaits_notice(group, found, now):
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
        self._pump.run(group, now, "discovery ended")
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
                        self._wanted.leave_notice(group, now)
                    self._pump.run(group, now, "a round closed")
                case LeaseHeld(lease):
                    group = self._groups.of(lease.scheduling_key)
                    self._leasing.granted(group, lease, now)
                    self._pump.run(group, now, f"lease {lease.lease_id}")
                case LeaseRecovered(lease):
                    cause = "the worker answers again"
                    group = self._groups.of(lease.scheduling_key)
                    self._attempts.repeat(group.leases[lease.key], cause)
                    self._pump.run(group, now, cause)
                case LeaseYields(lease):
                    self._lease_yields(lease.key, now)
                case LeaseLost():
                    self._lease_lost(event, now)
                case _:
                    assert_never(event)
        return self._outbox.take()

    def _lease_yields(self, key: LeaseKey, now: Moment) -> None:
        """It gives way to an equal: what has begun may end; or after all it does not."""
        group = self._groups.of_lease(key)
        if group is None:
            return
        active, cause = group.leases[key], "an equal has its turn"
        if active.lease.yields:
            self._attempts.cancel(active, active.recall_all(), cause, begun=False)
        self._pump.run(group, now, cause)

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
        self._wanted.expect(group, head, call, worker, now)
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
            self._reports.lost(group, active, event, now)
            self.holders.suspect(active.worker, now)
        self._pump.run(group, now, f"lease {lease.lease_id} is lost")

    def received(
        self, sender: Contact, message: work.ToScheduler, now: Moment
    ) -> list[SchedulerEffect]:
        """What comes under no lease of ours has no effect, and is not acknowledged: any peer could
        have it queued."""
        if isinstance(message, work.Notice) and not message.lease_id:
            return self._holder_leaves(sender.peer_id, now)
        group = self._groups.of_lease(key := (sender.peer_id, message.lease_id))
        if group is None:
            return []
        active = group.leases[key]
        match message:
            case work.TaskStarted():
                if self._reports.began(active, message, now):
                    self._pump.run(group, now, f"{message.attempt_id} runs")
            case work.TaskOutput():
                self._reports.printed(active, message)
            case work.TaskCheckpoint():
                if active.lease.fence == message.fence:
                    self._reports.saved(active, message, now)
                    self._others.look(now)
                    self._decider.review(group, now)
                    self.rebalancer.leave_barred(group)
            case work.Notice():
                if active.lease.fence == message.fence and not active.leaving:
                    active.leave()
                    self.holders.leaves(active.worker, now)
                    group.candidates.refused(active.worker, message.refusal, now)
                    self._pump.run(group, now, f"lease {message.lease_id} ends: {message.refusal}")
            case work.TasksEnded():
                # Each result counts only under the fencing token of its lease, and once.
                if active.lease.fence != message.fence:
                    return []
                cause = f"attempts under {message.lease_id} ended"
                count, ran_s = active.ran(message.ended, now)
                if count:
                    group.estimates.took(ran_s / count)
                    self._gave(active.worker, ran_s * group.key.needs.cpu_milli / 1000, now)
                self._reports.ended(group, active, message.ended, now)
                self._pump.attempts_ended(group, now, cause)
            case _:
                assert_never(message)
        self._others.look(now)
        return self._outbox.take()

    def _holder_leaves(self, holder: PeerId, now: Moment) -> list[SchedulerEffect]:
        """What it holds for this node is to be held by another. Each counts once."""
        self.holders.leaves(holder, now)
        self._jobs.checkpoints.leaves(holder, now)
        self._others.look(now)
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
                self._pump.run(group, now, f"what {event.task_id} has saved is here")
        else:
            self._jobs.checkpoints.spread_ended(event, now)
        self._others.look(now)
        return self._outbox.take()

    def fetch_ended(self, event: FetchEvent, now: Moment) -> list[SchedulerEffect]:
        """Of a lease that is lost, or an attempt that is wanted no more, it has no effect."""
        group = self._groups.of_lease(key := (event.worker, event.lease_id))
        if group is not None:
            self._reports.fetch_ended(group, group.leases[key], event, now)
            self._pump.attempts_ended(group, now, f"the fetch of {event.attempt_id} ended")
        return self._outbox.take()

    def outputs_copied(self, event: OutputsCopied, now: Moment) -> list[SchedulerEffect]:
        self.holders.told(event, now)
        group = self._groups.of_lease(key := (event.worker, event.lease_id))
        if group is not None:
            self._reports.copied(group, group.leases[key], event, now)
            self._pump.attempts_ended(group, now, f"others hold what {event.attempt_id} has made")
        self._others.look(now)
        return self._outbox.take()

    def licensed(self, until_unix_s: float, now: Moment) -> None:
        """This node has a grant, or a new one, until then."""
        self._leasing.licensed(until_unix_s)
        for group in self.groups.values():
            group.renewed(now)

    def heard(self, worker: PeerId) -> None:
        """A message outside the work protocol came from a peer: it lives."""
        for group in self.groups.values():
            group.wake_by(group.candidates.heard(worker))

    def is_checked(self, worker: PeerId) -> bool:
        """Whether it runs what several workers are to agree on: it is told of no other."""
        runs = (run for x in self.leases() if x.worker == worker for run in x.runs)
        return any(run.ballot is not None for run in runs)

    def tick(self, now: Moment) -> list[SchedulerEffect]:
        for job in self._jobs.overdue(now):
            self._stop(job, now, f"the deadline of {job.job.job_id} passed")
        for group in self._groups:
            if group.wake_s <= now.mono_s:
                self._pump.run(group, now, "time to look again")
        self._others.look(now)
        self.rebalancer.look(self.groups.values(), now)
        return self._outbox.take()

    def next_timeout(self) -> float:
        if not self.groups:
            return float("inf")  # as a rule; it is asked for after every message
        wake_s = min(group.wake_s for group in self.groups.values())
        own_s = min(self._jobs.checkpoints.due_s, self.holders.due_s, self.rebalancer.due_s)
        return min(wake_s, self._jobs.next_deadline_s(), own_s)

    def validate(self) -> None:
        """Raises InvariantBroken."""
        self._jobs.validate()
        self._groups.validate()
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
                group.wake_by(now.mono_s)
