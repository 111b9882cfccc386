"""The scheduler: jobs come in, tasks find workers, results go out, each counted once.

Tasks with the same needs and priority form a group, which shares what discovery found and the
leases held, so that one lease runs any number of tasks. Each task waits in the queue of the
worker nearest to it by XOR; a worker that is free while its own queue is empty takes over from
the longest other one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, assert_never

from formation_p2p.discovery.finder import Finder, Found
from formation_p2p.dispatch.group import PIPELINE, Group, Slot
from formation_p2p.dispatch.job_events import TaskBegan, TaskPlaced, TaskPrinted, WorkerLost
from formation_p2p.dispatch.jobs import Jobs
from formation_p2p.dispatch.task_run import TaskRun
from formation_p2p.effects import Contact, Effect, Moment
from formation_p2p.identity import PeerId, key_of_peer
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
    Dispatch,
    ResultAck,
    TaskEnded,
    TaskOutput,
    TaskStarted,
    WorkMessage,
)
from formation_p2p.negotiation.session import Send
from formation_p2p.placement.decision import decide
from formation_p2p.records.profile import Profile
from formation_p2p.records.resources import encode_requirements
from formation_p2p.refusals import Denied, Refusal
from formation_p2p.resources.requirements import Requirements
from formation_p2p.units import MIB
from formation_p2p.workload.outcome import Succeeded
from formation_p2p.workload.task import Job

# With nobody capable, discovery is tried again once after this long: a worker that has just
# been started is still announcing itself.
SECOND_LOOK_S: Final = 1.0
# While tasks wait and nobody is left to ask, discovery is tried again this often.
LOOK_AGAIN_S: Final = 5.0
# Of one attempt; what comes after is dropped, since whoever keeps it would fill a disk. Our own
# workers pass on 16 MiB (host/drivers/output.py), and say so where there is more.
MAX_PRINTED_BYTES: Final = 64 * MIB
# Workers asked in one round: the nearest few.
ASK_AT_ONCE: Final = 3
# ...and at most this many when that many tasks wait.
MAX_ASK_AT_ONCE: Final = 16


class Scheduler:
    """`authorised` says whether a worker's own grant lets it work in this network."""

    def __init__(
        self,
        own: PeerId,
        finder: Finder,
        lessee: Lessee,
        authorised: Callable[[Profile, Moment], Denied | None],
    ) -> None:
        self._own = own
        self._finder = finder
        self._lessee = lessee
        self._authorised = authorised
        self._jobs = Jobs()
        self._groups: dict[tuple[Requirements, int], Group] = {}
        self._effects: list[Effect] = []

    # -- the person -----------------------------------------------------------------------------

    def submit(self, job: Job, now: Moment) -> list[Effect]:
        """Raises InvalidInput where too many jobs are under way, this one already is, or nobody
        could be asked for what it needs."""
        for needs in dict.fromkeys(task.needs for task in job.tasks):
            encode_requirements(needs)
        run = self._jobs.begin(job)
        touched: dict[Requirements, Group] = {}
        for task in job.tasks:
            group = touched.get(task.needs)
            if group is None:
                group = touched[task.needs] = self._group(task.needs, job.priority)
            group.wait(TaskRun(task, run, task.key))
        for group in touched.values():
            self._pump(group, now, f"submit of {job.job_id}")
        return self._take()

    def cancel(self, job_id: str, now: Moment) -> list[Effect]:
        """Take back what waits, stop what runs. Ends in JobEnded, at the latest when the leases
        of what runs expire."""
        run = self._jobs.named(job_id)
        if run is None:
            return []
        run.cancelled = True
        cause = f"cancel of {job_id}"
        for group in list(self._groups.values()):
            for waiting in group.drain(run):
                self._jobs.cancelled(waiting)
            for slot in group.slots.values():
                for attempt_id, attempt in slot.attempts.items():
                    if attempt.job is run:
                        self._cancel(slot, attempt_id, cause)
            self._pump(group, now, cause)
        return self._take()

    def leave(self) -> list[Effect]:
        """End every job as cancelled. The leases are the lessee's to give back."""
        for group in self._groups.values():
            running = [run for slot in group.slots.values() for run in slot.attempts.values()]
            for run in (*group.drain(), *running):
                self._jobs.cancelled(run)
        self._groups.clear()
        return self._take()

    # -- discovery and negotiation ----------------------------------------------------------------

    def found(self, found: Found, now: Moment) -> list[Effect]:
        group = next((g for g in self._groups.values() if g.find == found.find), None)
        if group is None:
            return []
        group.find = None
        decision = decide(
            key_of_peer(self._own),
            group.needs,
            found.profiles,
            authorised=lambda profile: self._authorised(profile, now),
            now_unix_s=now.unix_s,
        )
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
        group = self._groups[lease.needs, lease.priority]
        worker = lease.lessor.peer_id
        group.committing.discard(worker)
        group.welcome(worker)
        group.slots[lease.key] = Slot(lease)
        self._pump(group, now, f"lease {lease.lease_id}")

    def _lease_recovered(self, lease: HeldLease, now: Moment) -> None:
        group = self._groups[lease.needs, lease.priority]
        slot = group.slots[lease.key]
        cause = "the worker answers again"
        for attempt_id, run in slot.attempts.items():
            self._dispatch(slot, attempt_id, run, cause)
            if run.job.cancelled:
                self._cancel(slot, attempt_id, cause)
        self._pump(group, now, cause)

    def _lease_lost(self, lease: HeldLease, refusal: Refusal, now: Moment) -> None:
        group = self._groups[lease.needs, lease.priority]
        worker = lease.lessor.peer_id
        group.committing.discard(worker)
        group.back_off(worker, refusal, now)
        slot = group.slots.pop(lease.key, None)
        if slot is not None:
            self._slot_lost(group, slot, str(refusal))
        self._pump(group, now, f"lease {lease.lease_id} is lost")

    def _slot_lost(self, group: Group, slot: Slot, why: str) -> None:
        runs = list(slot.attempts.values())
        for job in dict.fromkeys(run.job for run in runs):
            self._jobs.tell(job, WorkerLost(slot.worker, why))
        again = []
        for place, run in enumerate(runs):
            # A worker runs one at a time, in order: only the oldest was running.
            report = self._jobs.lost if place == 0 else self._jobs.returned
            if report(run, slot.worker, why):
                again.append(run)
        for run in reversed(again):
            group.wait(run, first=True)

    # -- what workers tell ------------------------------------------------------------------------

    def started(self, sender: Contact, message: TaskStarted) -> list[Effect]:
        run = self._running(sender, message.lease_id, message.attempt_id)
        if run is not None:
            self._jobs.tell(run.job, TaskBegan(run.task.task_id, sender.peer_id))
        return self._take()

    def printed(self, sender: Contact, message: TaskOutput) -> list[Effect]:
        run = self._running(sender, message.lease_id, message.attempt_id)
        if run is not None and run.printed_bytes < MAX_PRINTED_BYTES:
            run.printed_bytes += len(message.data)
            printed = TaskPrinted(run.task.task_id, message.is_stderr, message.data)
            self._jobs.tell(run.job, printed)
        return self._take()

    def ended(self, sender: Contact, message: TaskEnded, now: Moment) -> list[Effect]:
        """A result. It counts only under the lease in force and its fencing token, and once."""
        ack = ResultAck(message.lease_id, message.attempt_id)
        self._send(sender, ack, f"{message.attempt_id} ended")
        slot = self._slot((sender.peer_id, message.lease_id))
        if slot is None or slot.lease.fence != message.fence:
            return self._take()
        run = slot.attempts.pop(message.attempt_id, None)
        if run is None:
            return self._take()
        group = self._groups[(slot.lease.needs, slot.lease.priority)]
        outcome = message.outcome
        if isinstance(outcome, Succeeded):
            self._jobs.succeeded(run, sender.peer_id, outcome.result, message.ran_ms)
        elif self._jobs.failed(run, sender.peer_id, outcome):
            group.wait(run, first=True)
        self._pump(group, now, f"{message.attempt_id} ended")
        return self._take()

    # -- time -------------------------------------------------------------------------------------

    def tick(self, now: Moment) -> list[Effect]:
        for group in list(self._groups.values()):
            if group.wake_s <= now.mono_s:
                self._pump(group, now, "time to look again")
        return self._take()

    def next_timeout(self) -> float:
        if not self._groups:
            return float("inf")  # as a rule; it is asked for after every message
        return min(group.wake_s for group in self._groups.values())

    # -- the insides ------------------------------------------------------------------------------

    def _pump(self, group: Group, now: Moment, cause: str) -> None:
        """Do all that can be done for a group now. Called after everything that touches it."""
        group.wake_s = float("inf")
        group.forget_expired(now)
        self._fill(group, 1, now, cause)
        head = group.first_waiting()
        if head is not None and not self._seek(group, head, now, cause):
            self._fill(group, PIPELINE, now, cause)
        if not group.waiting:
            self._let_go(group, cause)

    def _fill(self, group: Group, depth: int, now: Moment, cause: str) -> None:
        for slot in group.slots.values():
            while len(slot.attempts) < depth and not slot.lease.doubtful:
                run = group.next_for(slot.worker, now)
                if run is None:
                    break
                self._place(group, slot, run, cause)

    def _place(self, group: Group, slot: Slot, run: TaskRun, cause: str) -> None:
        run.move("dispatch")
        run.tried += 1
        run.printed_bytes = 0
        attempt_id = f"{run.task.task_id}#{run.tried}"
        nearest = group.nearest(run) == slot.worker
        slot.attempts[attempt_id] = run
        self._dispatch(slot, attempt_id, run, cause)
        placed = TaskPlaced(run.task.task_id, attempt_id, slot.worker, nearest)
        self._jobs.tell(run.job, placed)

    def _dispatch(self, slot: Slot, attempt_id: str, run: TaskRun, cause: str) -> None:
        task = run.task
        timeout_ms = 0 if task.timeout_s is None else max(1, round(task.timeout_s * 1000))
        message = Dispatch(
            slot.lease.lease_id,
            slot.lease.fence,
            attempt_id,
            task.needs.driver,
            task.payload,
            timeout_ms,
        )
        self._send(slot.lease.lessor, message, cause)

    def _cancel(self, slot: Slot, attempt_id: str, cause: str) -> None:
        self._send(slot.lease.lessor, Cancel(slot.lease.lease_id, attempt_id), cause)

    def _seek(self, group: Group, head: TaskRun, now: Moment, cause: str) -> bool:
        """Go for more leases, or for more workers. Returns whether leases may yet come of what
        is under way."""
        if group.round is not None or group.committing:
            return True
        order = group.ask_order(head, now)
        if order:
            at_once = max(ASK_AT_ONCE, min(group.waiting, MAX_ASK_AT_ONCE))
            group.round = self._lessee.ask(
                order[:at_once],
                group.needs,
                wanted=group.waiting,
                priority=group.priority,
                now=now,
                cause=cause,
            )
            return True
        if group.find is None:
            self._look(group, head, now, cause)
        group.wake_s = min(group.wake_s, group.next_askable_s())
        return False

    def _look(self, group: Group, head: TaskRun, now: Moment, cause: str) -> None:
        """Ask discovery, if it is time; give up where it has nobody to name, twice."""
        stranded = not group.has_candidates and not group.slots
        if stranded and group.looks >= 2:
            self._nobody(group)
            return
        pause_s = SECOND_LOOK_S if stranded else LOOK_AGAIN_S
        due_s = group.looked_s + pause_s
        if now.mono_s < due_s:
            group.wake_s = min(group.wake_s, due_s)
            return
        target = group.look_around(head)
        # Who looks again wants to see others.
        group.find = self._finder.find(
            group.needs, target, now, cause, fresh=group.looked_s > float("-inf")
        )
        if group.find is None:  # too many are under way
            group.wake_s = now.mono_s + SECOND_LOOK_S
            return
        group.looked_s = now.mono_s
        group.looks = group.looks + 1 if stranded else 0

    def _nobody(self, group: Group) -> None:
        reasons = group.reasons()
        for run in group.drain():
            self._jobs.unplaceable(run, reasons)

    def _let_go(self, group: Group, cause: str) -> None:
        """Nothing waits: give back the leases under which nothing runs."""
        for slot in [s for s in group.slots.values() if not s.attempts]:
            del group.slots[slot.lease.key]
            self._lessee.release(slot.lease, cause)
        if group.is_idle:
            self._groups.pop((group.needs, group.priority), None)

    def _group(self, needs: Requirements, priority: int) -> Group:
        group = self._groups.get((needs, priority))
        if group is None:
            group = self._groups[needs, priority] = Group(needs, priority)
        return group

    def _slot(self, key: tuple[PeerId, str]) -> Slot | None:
        return next((g.slots[key] for g in self._groups.values() if key in g.slots), None)

    def _running(self, sender: Contact, lease_id: str, attempt_id: str) -> TaskRun | None:
        slot = self._slot((sender.peer_id, lease_id))
        return None if slot is None else slot.attempts.get(attempt_id)

    def _send(self, to: Contact, message: WorkMessage, cause: str) -> None:
        self._effects.append(Send(to, message, cause=cause))

    def _take(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects + self._jobs.take()
