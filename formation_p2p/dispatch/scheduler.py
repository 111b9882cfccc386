"""The scheduler: jobs come in, tasks find workers, results go out, each counted once.

Tasks with the same needs, priority and price limit form a group, which shares what discovery
found and the leases held, so that one lease runs any number of tasks. Each task waits in the queue
of the worker nearest to it by XOR; a worker that is free while its own queue is empty takes over
from the longest other one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Final, assert_never

from formation_p2p.discovery.finder import Finder, Found
from formation_p2p.dispatch.group import Facts, Group
from formation_p2p.dispatch.job_events import (
    Hold,
    LetGo,
    TaskBegan,
    TaskPlaced,
    TaskPrinted,
    WorkerLost,
)
from formation_p2p.dispatch.jobs import Jobs
from formation_p2p.dispatch.recruiting import Recruiter
from formation_p2p.dispatch.revival import revive
from formation_p2p.dispatch.saved import SavedJob, SavedLease
from formation_p2p.dispatch.slot import Slot
from formation_p2p.dispatch.stragglers import idle_of, is_stuck, overtake_s, to_recall
from formation_p2p.dispatch.task_run import JobRun, TaskRun, TaskState
from formation_p2p.effects import Contact, Effect, Moment
from formation_p2p.identity import PeerId, key_of_peer
from formation_p2p.keyspace import Key, key_of
from formation_p2p.negotiation.lessee import (
    HeldLease,
    LeaseHeld,
    LeaseLost,
    LeaseRecovered,
    Lessee,
    NegotiationEvent,
    RoundClosed,
)
from formation_p2p.negotiation.messages import (
    Cancel,
    ResultAck,
    TaskOutput,
    TasksEnded,
    TaskStarted,
    WorkMessage,
)
from formation_p2p.negotiation.session import Send
from formation_p2p.negotiation.under_way import MAX_UNDER_WAY_BYTES
from formation_p2p.placement.candidate import Candidate
from formation_p2p.placement.decision import Decision, decide
from formation_p2p.placement.names import parse_policy
from formation_p2p.placement.policy import PlacementPolicy
from formation_p2p.placement.terms import AskedTerms
from formation_p2p.records.profile import Profile
from formation_p2p.records.resources import encode_requirements
from formation_p2p.refusals import Denied, Faulty, Preempted, Refusal
from formation_p2p.resources.requirements import Requirements
from formation_p2p.trust.experience import Experience
from formation_p2p.units import MIB
from formation_p2p.workload.outcome import Ended, FailureKind, Succeeded
from formation_p2p.workload.task import Job, Task

# Of one attempt; what comes after is dropped, since whoever keeps it would fill a disk. Our own
# workers pass on 16 MiB (host/drivers/output.py), and say so where there is more.
MAX_PRINTED_BYTES: Final = 64 * MIB
# A lease under which nothing runs is given back after this long, at once where another kind of
# task of ours looks for room: the next call of a loop finds it warm.
LINGER_S: Final = 0.25


class Scheduler:
    """`authorised` says whether a worker's own grant lets it work in this network, `facts` what
    this node knows of it beside what it signed."""

    def __init__(
        self,
        own: PeerId,
        finder: Finder,
        lessee: Lessee,
        authorised: Callable[[Profile, Moment], Denied | None],
        facts: Facts,
        experienced: Callable[[PeerId, Experience, Moment], None],
    ) -> None:
        self._own = own
        self._facts = facts
        self._experienced = experienced
        self._recruiter = Recruiter(finder, lessee, self._candidates)
        self._lessee = lessee
        self._authorised = authorised
        self._jobs = Jobs()
        self._groups: dict[AskedTerms, Group] = {}
        self._effects: list[Effect] = []
        self._acks: list[Effect] = []

    # -- the person -----------------------------------------------------------------------------

    def submit(self, job: Job, now: Moment, policy: PlacementPolicy | None = None) -> list[Effect]:
        """`policy` is for one that has no text form, which the job's would be.

        Raises InvalidInput where too many jobs are under way, this one already is, or nobody
        could be asked for what it needs."""
        for needs in dict.fromkeys(task.needs for task in job.tasks):
            encode_requirements(needs)
        run = self._jobs.begin(job, now, policy or parse_policy(job.policy))
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

    def _queue(self, runs: Iterable[TaskRun]) -> list[Group]:
        """Have tasks wait for workers. Returns their groups."""
        touched: dict[tuple[JobRun, Requirements], Group] = {}
        for run in runs:
            key = (run.job, run.task.needs)
            group = touched.get(key)
            if group is None:
                group = touched[key] = self._group(_terms_of(run.job, run.task))
            group.wait(run)
        return list(dict.fromkeys(touched.values()))

    def resume(
        self, jobs: Iterable[SavedJob], leases: Iterable[SavedLease], life: str, now: Moment
    ) -> list[Effect]:
        """Go on where an earlier life stopped. What was under way waits for its worker's answer:
        that it is still there, with the results so far, or that it is not. `life` names this one
        (revival.py).
        """
        runs: dict[str, TaskRun] = {}
        for saved in jobs:
            job = self._jobs.begin(saved.job, now, parse_policy(saved.job.policy))
            left, fallen = revive(saved, job, life)
            runs |= {run.task.task_id: run for run in left}
            for task_id in fallen:
                self._jobs.fell(job, task_id)
            self._jobs.close(job)
        for lease in leases:
            self._adopt(lease, runs, now)
        touched: dict[AskedTerms, Group] = {}
        for run in runs.values():
            terms = _terms_of(run.job, run.task)
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
            (_terms_of(run.job, run.task) for run in known),
            AskedTerms(saved.needs, saved.priority),
        )
        held = self._lessee.adopt(
            saved.lessor,
            saved.lease_id,
            terms,
            saved.fence,
            saved.device_ids,
            now,
        )
        slot = Slot(held, idle_s=now.mono_s, adopted=True)
        self._group(held.terms).slots[held.key] = slot
        for attempt_id, task_id in saved.attempts:
            run = runs.get(task_id)
            if run is not None:
                run.move("dispatch")
                slot.add(attempt_id, run, now)

    def cancel(self, job_id: str, now: Moment) -> list[Effect]:
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
                self._cancel(slot, [a for a, run in slot.attempts.items() if run.job is job], cause)
            self._pump(group, now, cause)

    def leave(self) -> list[Effect]:
        """End every job as cancelled. The leases are the lessee's to give back."""
        for job in list(self._jobs):
            job.cancelled = True
            self._jobs.stop_blocked(job)
        for group in self._groups.values():
            running = [run for slot in group.slots.values() for run in slot.attempts.values()]
            for run in (*group.drain(), *running):
                self._jobs.cancelled(run)
            for slot in group.slots.values():
                self._let_go_of(slot)
        self._groups.clear()
        return self._take()

    # -- whoever looks on -------------------------------------------------------------------------

    def jobs(self) -> Iterator[JobRun]:
        return iter(self._jobs)

    def slots(self) -> Iterator[Slot]:
        return (slot for group in self._groups.values() for slot in group.slots.values())

    def explain(
        self, terms: AskedTerms, name: str, profiles: Iterable[Profile], now: Moment
    ) -> Decision:
        """As it would decide now for a task of this name; with what workers have answered, where
        tasks of the same terms are under way."""
        decision = self.decide(terms, name, key_of(name.encode()), profiles, now)
        group = self._groups.get(terms)
        reasons = {} if group is None else dict(group.reasons())
        known = {each.profile.peer_id for each in decision.ranked}
        rejected = dict(decision.rejected)
        for worker, refusal in reasons.items():
            if worker not in known:
                rejected.setdefault(worker, refusal)
        return replace(decision, rejected=tuple(rejected.items()))

    def decide(
        self, terms: AskedTerms, name: str, key: Key, profiles: Iterable[Profile], now: Moment
    ) -> Decision:
        """Who of these workers is to run a task, and why not the others."""
        return decide(
            terms.asked(name, key),
            self._candidates(profiles, terms, now),
            terms.policy,
            authorised=lambda profile: self._authorised(profile, now),
            now_unix_s=now.unix_s,
        )

    # -- discovery and negotiation ----------------------------------------------------------------

    def found(self, found: Found, now: Moment) -> list[Effect]:
        group = next((g for g in self._groups.values() if g.find == found.find), None)
        if group is None:
            return []
        group.find, group.answered = None, found.heard
        decision = self.decide(group.terms, self._own, key_of_peer(self._own), found.profiles, now)
        if group.learn(decision.ranked, decision.rejected):
            group.looked_s = float("-inf")  # where there were more, there may be more yet
        self._pump(group, now, "discovery ended")
        return self._take()

    def negotiated(self, events: list[NegotiationEvent], now: Moment) -> list[Effect]:
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
        worker = lease.lessor.peer_id
        group.committing.discard(worker)
        group.welcome(worker)
        group.slots[lease.key] = Slot(lease, idle_s=now.mono_s)
        group.had_leases = True
        self._effects.append(
            Hold(
                lease.lease_id,
                lease.lessor,
                lease.terms.needs,
                lease.terms.priority,
                lease.fence,
                lease.device_ids,
                cause="a lease was granted",
            )
        )
        self._pump(group, now, f"lease {lease.lease_id}")

    def _lease_recovered(self, lease: HeldLease, now: Moment) -> None:
        group = self._groups[lease.terms]
        slot = group.slots[lease.key]
        cause = "the worker answers again"
        slot.adopted = False
        slot.parts.forget()
        self._dispatch(slot, list(slot.attempts.items()), cause)
        unwanted = [a for a, run in slot.attempts.items() if not run.is_wanted]
        self._cancel(slot, unwanted, cause)
        self._take_back(slot, slot.recalled, False, cause)
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
            self._slot_lost(group, slot, refusal, now)
        self._pump(group, now, f"lease {lease.lease_id} is lost")

    def _slot_lost(self, group: Group, slot: Slot, refusal: Refusal, now: Moment) -> None:
        self._let_go_of(slot)
        runs = list(slot.attempts.items())
        why = str(refusal)
        # A worker runs one at a time, in order: only the oldest was running. It had no part in
        # the loss where it had to make room, or where this scheduler was away meanwhile.
        blamed = None if isinstance(refusal, Preempted) or slot.adopted else next(iter(runs), None)
        if blamed is not None:
            self._experienced(slot.worker, Experience.LOST, now)
            under_way = (run for _, run in runs if run.state is TaskState.DISPATCHED)
            for job in dict.fromkeys(run.job for run in under_way):
                self._jobs.tell(job, WorkerLost(slot.worker, why))
        again = []
        for attempt_id, run in runs:
            slot.remove(attempt_id, now)
            is_over = run.state is not TaskState.DISPATCHED
            report = self._jobs.lost if (attempt_id, run) == blamed else self._jobs.returned
            if not is_over and report(run, attempt_id, slot.worker, why):
                again.append(run)
        for run in reversed(again):
            group.wait(run, first=True)

    # -- what workers tell ------------------------------------------------------------------------

    def started(self, sender: Contact, message: TaskStarted, now: Moment) -> list[Effect]:
        slot = self._slot((sender.peer_id, message.lease_id))
        run = None if slot is None else slot.attempts.get(message.attempt_id)
        if slot is not None and run is not None and run.is_wanted:
            slot.began, slot.began_s = message.attempt_id, now.mono_s
            self._jobs.tell(run.job, TaskBegan(run.task.task_id, sender.peer_id))
            self._pump(self._group_of(slot), now, f"{message.attempt_id} runs")
        return self._take()

    def printed(self, sender: Contact, message: TaskOutput) -> list[Effect]:
        slot = self._slot((sender.peer_id, message.lease_id))
        run = None if slot is None else slot.attempts.get(message.attempt_id)
        if run is not None and run.is_wanted and run.printed_bytes < MAX_PRINTED_BYTES:
            run.printed_bytes += len(message.data)
            printed = TaskPrinted(run.task.task_id, message.is_stderr, message.data)
            self._jobs.tell(run.job, printed)
        return self._take()

    def ended(self, sender: Contact, message: TasksEnded, now: Moment) -> list[Effect]:
        """Results. Each counts only under the lease in force and its fencing token, and once. What
        comes under no lease of ours is not acknowledged either: anybody could have it queued."""
        slot = self._slot((sender.peer_id, message.lease_id))
        if slot is None or slot.lease.fence != message.fence:
            return []
        cause = f"attempts under {message.lease_id} ended"
        group = self._group_of(slot)
        group.took(slot.mean_s(message.ended, now))
        for ended in message.ended:
            self._attempt_ended(group, slot, ended, now)
        touched = self._queue(self._jobs.take_ready())
        if touched:
            # Told before a lease is let go to make room for what comes next.
            self._effects += self._jobs.take()
        for each in dict.fromkeys([group, *touched]):
            self._pump(each, now, cause)
        ack = ResultAck(message.lease_id, tuple(ended.attempt_id for ended in message.ended))
        self._acks.append(Send(sender, ack, cause=cause))
        return self._take()

    def _attempt_ended(self, group: Group, slot: Slot, ended: Ended, now: Moment) -> None:
        attempt_id, outcome = ended.attempt_id, ended.outcome
        recalled = attempt_id in slot.recalled
        run = slot.remove(attempt_id, now)
        if run is None or run.state is not TaskState.DISPATCHED:
            return  # told before, or another attempt of the task was faster
        if isinstance(outcome, Succeeded):
            group.succeeded(slot.worker)
            self._experienced(slot.worker, Experience.SUCCESS, now)
            ran_ms = ended.ran_us // 1000
            self._jobs.succeeded(run, slot.worker, outcome.result, ran_ms, ended.used)
            if run.copies:
                self._cancel_copies(group, run, f"{attempt_id} was faster")
            return
        if recalled and outcome.kind is FailureKind.CANCELLED:
            again = self._jobs.recalled(run, attempt_id)
        else:
            if outcome.kind is FailureKind.DRIVER:
                group.back_off(slot.worker, Faulty(outcome.message), now)
                self._experienced(slot.worker, Experience.ERROR, now)
            again = self._jobs.failed(run, attempt_id, slot.worker, outcome)
        if again:
            group.wait(run, first=True)

    def _cancel_copies(self, group: Group, run: TaskRun, cause: str) -> None:
        for slot in group.slots.values():
            self._cancel(slot, [a for a, other in slot.attempts.items() if other is run], cause)

    def heard(self, worker: PeerId) -> None:
        """A message outside the work protocol came from a peer: it lives."""
        for group in self._groups.values():
            group.heard(worker)

    # -- time -------------------------------------------------------------------------------------

    def tick(self, now: Moment) -> list[Effect]:
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

    def _pump(self, group: Group, now: Moment, cause: str) -> None:
        """Do all that can be done for a group now. Called after everything that touches it."""
        group.wake_s = float("inf")
        group.forget_expired(now)
        self._fill(group, 1, 0, now, cause)
        head = group.first_waiting()
        if head is not None:
            # Tasks are left over for the leases that may yet come.
            self._fill(group, 0, self._seek(group, head, now, cause), now, cause)
        if not group.waiting:
            self._let_go(group, self._rebalance(group, now, cause), now, cause)

    def _fill(self, group: Group, depth: int, coming: int, now: Moment, cause: str) -> None:
        """Give leases more to do, up to `depth` each, or as deep as pays for 0."""
        slots = [
            slot
            for slot in group.slots.values()
            if not slot.lease.doubtful
            and not group.is_failing(slot.worker, now)
            and not is_stuck(slot, group.mean_s, now)
        ]
        for left, slot in zip(range(len(slots), 0, -1), slots, strict=True):
            deep = depth or group.depth(slot)
            under_way = len(slot.attempts)
            if under_way * 2 > deep or slot.load.total_bytes * 2 > MAX_UNDER_WAY_BYTES:
                continue  # half of it is still to be done: more at once costs less
            share = -(-group.waiting // (left + coming))
            count = min(deep - under_way, share)
            self._place(slot, group.take(slot.worker, count, slot.has_room_for, now), now, cause)

    def _place(
        self, slot: Slot, taken: Iterable[tuple[TaskRun, bool]], now: Moment, cause: str
    ) -> None:
        attempts: list[tuple[str, TaskRun]] = []
        for run, nearest in taken:
            run.move("dispatch")
            run.tried += 1
            run.printed_bytes = 0
            task_id = run.task.task_id
            attempt_id = f"{task_id}#{run.tried}{run.job.life}"
            slot.add(attempt_id, run, now)
            attempts.append((attempt_id, run))
            lease_id = slot.lease.lease_id
            placed = TaskPlaced(task_id, attempt_id, slot.worker, lease_id, nearest)
            self._jobs.tell(run.job, placed)
        self._dispatch(slot, attempts, cause)

    def _dispatch(self, slot: Slot, attempts: list[tuple[str, TaskRun]], cause: str) -> None:
        for message in slot.messages(attempts):
            self._send(slot.lease.lessor, message, cause)

    def _cancel(self, slot: Slot, attempt_ids: Iterable[str], cause: str) -> None:
        self._take_back(slot, attempt_ids, True, cause)

    def _take_back(self, slot: Slot, attempt_ids: Iterable[str], begun: bool, cause: str) -> None:
        if ids := tuple(attempt_ids):
            self._send(slot.lease.lessor, Cancel(slot.lease.lease_id, ids, begun), cause)

    def _rebalance(self, group: Group, now: Moment, cause: str) -> set[Slot]:
        """Nothing waits here: see to what waits on a lease, and to what is slow. Returns the idle
        leases that are to be kept, since a slow task gets its second attempt there soon."""
        idle = [s for s in idle_of(group.slots.values()) if not group.is_failing(s.worker, now)]
        kept: set[Slot] = set()
        for slot in list(group.slots.values()):
            behind, again_s = to_recall(slot, group.mean_s, bool(idle), now)
            self._take_back(slot, behind, False, cause)
            group.wake_s = min(group.wake_s, again_s)
            due_s = overtake_s(slot, group.mean_s)
            if due_s == float("inf"):
                continue
            run = slot.attempts[slot.began]
            elsewhere = [s for s in idle if s.worker != slot.worker and not run.avoids(s.worker)]
            for other in elsewhere[:1]:
                idle.remove(other)
                if due_s <= now.mono_s:
                    self._place(other, [(run, False)], now, "it takes long elsewhere")
                else:
                    kept.add(other)
                    group.wake_s = min(group.wake_s, due_s)
        return kept

    def _seek(self, group: Group, head: TaskRun, now: Moment, cause: str) -> int:
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

    def _make_room(self, group: Group, cause: str) -> None:
        """Leases that are kept warm for other kinds of tasks may be in the way."""
        for other in list(self._groups.values()):
            if other is not group:
                self._release_idle(other, set(), float("inf"), cause)

    def _let_go(self, group: Group, kept: set[Slot], now: Moment, cause: str) -> None:
        """Nothing waits: give back the leases under which nothing has run for a while."""
        self._release_idle(group, kept, now.mono_s, cause)
        ends = [slot.idle_s + LINGER_S for slot in group.slots.values() if slot not in kept]
        group.wake_s = min([group.wake_s, *ends])

    def _release_idle(self, group: Group, kept: set[Slot], now_s: float, cause: str) -> None:
        idle = [slot for slot in group.slots.values() if not slot.attempts and slot not in kept]
        for slot in [each for each in idle if each.idle_s + LINGER_S <= now_s]:
            del group.slots[slot.lease.key]
            self._let_go_of(slot)
            self._lessee.release(slot.lease, cause)
        if group.is_idle:
            self._groups.pop(group.terms, None)

    def _let_go_of(self, slot: Slot) -> None:
        self._effects.append(LetGo(slot.worker, slot.lease.lease_id, cause="the lease ended"))

    def _group(self, terms: AskedTerms) -> Group:
        group = self._groups.get(terms)
        if group is None:
            group = self._groups[terms] = Group(terms)
        return group

    def _candidates(
        self, profiles: Iterable[Profile], terms: AskedTerms, now: Moment
    ) -> list[Candidate]:
        """With what of ours is under way there."""
        under_way: dict[PeerId, list[TaskRun]] = {}
        for slot in self.slots():
            under_way.setdefault(slot.worker, []).extend(slot.attempts.values())
        return [
            replace(
                self._facts(profile, terms, now),
                queue=len(runs := under_way.get(profile.peer_id, [])),
                tasks=frozenset(name for run in runs for name in run.task.names),
            )
            for profile in profiles
        ]

    def _slot(self, key: tuple[PeerId, str]) -> Slot | None:
        return next((g.slots[key] for g in self._groups.values() if key in g.slots), None)

    def _group_of(self, slot: Slot) -> Group:
        return self._groups[slot.lease.terms]

    def _send(self, to: Contact, message: WorkMessage, cause: str) -> None:
        self._effects.append(Send(to, message, cause=cause))

    def _take(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        acks, self._acks = self._acks, []
        # First what others wait for; and acknowledged is what has been told.
        return effects + self._jobs.take() + acks


def _terms_of(run: JobRun, task: Task) -> AskedTerms:
    job = run.job
    return AskedTerms(
        task.needs, job.priority, job.max_price_micro, run.policy, job.hints, job.scope
    )
