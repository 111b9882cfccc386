"""What must hold whatever fails, judged from outside the peers.

The evidence is what went over the wires, what the shells were told to do and what runs on them,
and what is on the disks; a peer's own books are only asked whether they agree with it.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

from formation_p2p.assembly import Peer, PeerEffect, PeerEvent
from formation_p2p.core.identity import PeerId
from formation_p2p.core.refusals import Preempted
from formation_p2p.drivers.core.effects import Execute, Pause
from formation_p2p.jobs.core.job_events import (
    EmitJobEvent,
    ForgetLease,
    JobEnded,
    PersistLease,
    TaskCancelled,
    TaskGaveUp,
    TaskPlaced,
    TaskRecalled,
    TaskRetried,
    TaskSucceeded,
    TaskUnplaceable,
)
from formation_p2p.leases.core.messages import (
    Commit,
    Leased,
    LeaseEnded,
    Offer,
    PlacementRequest,
    Release,
    Renew,
    Renewed,
    ResultAck,
    TasksEnded,
)
from formation_p2p.leases.core.session import Fence, Fenced, Received, Send
from formation_p2p.machine.core.capability import idle
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.peer.core.events import Resume, Serve
from formation_p2p.workload.core.outcome import Succeeded
from formation_p2p.workload.core.work import MIN_MEMORY_BYTES
from simulations.cluster import LARGE, MAX_FENCE_S, Cluster, result_of
from simulations.simulator.node import SimNode
from simulations.simulator.world import World

# Whether anything runs after its lease is looked at this often, in virtual time, besides at
# every event: nothing may happen for a while to a worker on which something runs on.
LOOK_S: Final = 0.5
# Rounding, and two clocks.
SLACK_S: Final = 0.01
# How much of what happened is kept for the story of a violation.
REMEMBERED: Final = 4000

_TERMINAL: Final = (TaskSucceeded, TaskGaveUp, TaskUnplaceable, TaskCancelled)


class Violation(AssertionError):
    """`about` are the words to look for in the story: ids, names."""

    def __init__(self, invariant: str, what: str, *about: str) -> None:
        super().__init__(f"{invariant}: {what}")
        self.invariant = invariant
        self.what = what
        self.about = about


@dataclass(slots=True)
class _Lease:
    """As a worker granted it. `expires_s` is on its clock; `ending_s` when its end began."""

    lease_id: str
    owner: PeerId | None
    device_ids: tuple[str, ...]
    cpu_milli: int
    memory_bytes: int
    gpu_share_milli: int = 0
    fence: int = 0
    expires_s: float = float("inf")
    ending_s: float = float("inf")


@dataclass(slots=True)
class _Worker:
    """One incarnation of a worker: the leases in force or being ended, and what was asked of it."""

    incarnation: int
    asked: dict[tuple[PeerId, int], Requirements] = field(default_factory=dict)
    offered: dict[str, _Lease] = field(default_factory=dict)
    leases: dict[str, _Lease] = field(default_factory=dict)
    woke_s: float = float("-inf")


@dataclass(slots=True)
class _Scheduler:
    """One incarnation of a scheduler: until when it may believe in each lease, on its own clock."""

    incarnation: int
    asked_s: dict[tuple[PeerId, str], list[float]] = field(default_factory=dict)
    believes_s: dict[tuple[PeerId, str], float] = field(default_factory=dict)
    gone: set[tuple[PeerId, str]] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    succeeded: set[str] = field(default_factory=set)
    over: set[str] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class Happened:
    at_s: float
    node: str
    incarnation: int
    event: PeerEvent
    effects: tuple[PeerEffect, ...]


class Invariants:
    """Watches a world from its beginning. Raises Violation out of whatever led to it."""

    def __init__(self, world: World) -> None:
        self.story: deque[Happened] = deque(maxlen=REMEMBERED)
        self.seen: Counter[str] = Counter()
        self._world = world
        self._workers: dict[str, _Worker] = {}
        self._schedulers: dict[str, _Scheduler] = {}
        self._fences: dict[tuple[PeerId, str], int] = {}
        self._serves: dict[str, Serve] = {}
        self._accepted: dict[tuple[str, str], str] = {}  # (scheduler, attempt) to task
        self._after: dict[str, dict[str, tuple[str, ...]]] = {}  # by job: what each waits for
        world.witness = self.saw
        world.after(LOOK_S, self._look)

    # -- on the way -----------------------------------------------------------------------------

    def saw(self, node: SimNode, event: PeerEvent, effects: list[PeerEffect]) -> None:
        at = self._world.now_s, node.name, node.incarnation
        self.story.append(Happened(*at, event, tuple(effects)))
        self._count(event, effects)
        if isinstance(event, Serve):
            self._serves[node.name] = event
        if node.name in self._serves:
            self._saw_worker(node, event, effects)
        if node.disk is not None:
            self._saw_scheduler(node, event, effects)

    def _count(self, event: PeerEvent, effects: list[PeerEffect]) -> None:
        """How often what the invariants are about has happened at all."""
        match event:
            case Received(_, LeaseEnded(_, Preempted())):
                self.seen["preempted"] += 1
            case Resume(_, leases):
                self.seen["resumed"] += 1
                self.seen["adopted leases"] += len(leases)
                self.seen["adopted attempts"] += sum(len(lease.attempts) for lease in leases)
        for effect in effects:
            match effect:
                case EmitJobEvent(event=TaskRetried() | TaskRecalled() as reported):
                    self.seen[type(reported).__name__] += 1
                case Fence() | Pause():
                    self.seen[type(effect).__name__] += 1

    def woke(self, node: SimNode) -> None:
        """A machine that slept could not end anything meanwhile."""
        self._worker(node).woke_s = node.clock.mono_s(self._world.now_s)

    # -- workers --------------------------------------------------------------------------------

    def _worker(self, node: SimNode) -> _Worker:
        worker = self._workers.get(node.name)
        if worker is None or worker.incarnation != node.incarnation:
            worker = self._workers[node.name] = _Worker(node.incarnation)
        return worker

    def _saw_worker(self, node: SimNode, event: PeerEvent, effects: list[PeerEffect]) -> None:
        worker = self._worker(node)
        mono_s = node.clock.mono_s(self._world.now_s)
        match event:
            case Received(sender, PlacementRequest(request_id, needs)):
                worker.asked[sender.peer_id, request_id] = needs
            case Received(sender, ResultAck(_, attempt_ids)):
                self._acknowledged(sender.peer_id, attempt_ids)
            case Fenced(lease_id):
                worker.leases.pop(lease_id, None)
        for effect in effects:
            match effect:
                case Send(to, Offer(request_id, lease_id, holds)):
                    needs = worker.asked[to.peer_id, request_id]
                    asked = (needs.cpu_milli, needs.memory_bytes, needs.gpu_count)
                    given = (holds.cpu_milli, holds.memory_bytes, len(set(holds.device_ids)))
                    if any(has < wants for has, wants in zip(given, asked, strict=True)):
                        what = f"{node.name} offers {given} to one who asks for {asked}"
                        raise Violation("offers hold what was asked", what, lease_id)
                    worker.offered[lease_id] = _Lease(
                        lease_id,
                        to.peer_id,
                        holds.device_ids,
                        holds.cpu_milli,
                        max(holds.memory_bytes, MIN_MEMORY_BYTES),
                        holds.gpu_share_milli,
                    )
                case Send(to, Leased(lease_id, fence, ttl_ms)):
                    lease = worker.offered.get(lease_id) or worker.leases.get(lease_id)
                    if lease is None or lease.owner != to.peer_id:
                        what = f"{node.name} leases {lease_id} to one who was not offered it"
                        raise Violation("ownership", what, lease_id)
                    worker.offered.pop(lease_id, None)
                    worker.leases[lease_id] = lease
                    lease.fence = fence
                    lease.expires_s = mono_s + ttl_ms / 1000
                    self._fences[node.identity.peer_id, lease_id] = fence
                    self.seen["leases"] += 1
                    self._within(node, worker)
                case Send(_, Renewed(lease_id, ttl_ms)):
                    worker.leases[lease_id].expires_s = mono_s + ttl_ms / 1000
                case Fence(lease_id):
                    if lease_id in worker.leases:
                        worker.leases[lease_id].ending_s = mono_s
                case Execute():
                    self._executes(node, worker, effect, mono_s)
        self._runs_in_time(node, worker, mono_s)
        self._books(node)

    def _executes(self, node: SimNode, worker: _Worker, execute: Execute, mono_s: float) -> None:
        lease_id, needs = execute.lease_id, execute.needs
        lease = worker.leases.get(lease_id)
        if lease is None:  # of this node with itself: nothing went over a wire
            lease = worker.leases[lease_id] = _Lease(
                lease_id, None, execute.device_ids, needs.cpu_milli, needs.memory_bytes
            )
            self._within(node, worker)
        if lease.ending_s < float("inf") or lease.expires_s + SLACK_S < mono_s:
            what = f"{node.name} begins {[x.attempt_id for x in execute.work]} after its lease"
            raise Violation("nothing runs after its lease", what, lease_id)
        given = (execute.device_ids, needs.cpu_milli)
        if given != (lease.device_ids, lease.cpu_milli):
            what = f"{node.name} runs with {given} what was leased {lease.device_ids}"
            raise Violation("one lease on one resource", what, lease_id)

    def _within(self, node: SimNode, worker: _Worker) -> None:
        """All leases in force, and those whose end is not told yet, against the machine."""
        capability = self._serves[node.name].capability
        leases = list(worker.leases.values())
        cpu_milli = sum(lease.cpu_milli for lease in leases)
        memory_bytes = sum(lease.memory_bytes for lease in leases)
        shares: Counter[str] = Counter()
        for lease in leases:
            for device_id in lease.device_ids:
                shares[device_id] += lease.gpu_share_milli
        known = {gpu.device_id for gpu in capability.gpus}
        over = [device for device, share in shares.items() if share > 1000 or device not in known]
        if cpu_milli > capability.cpu_milli or memory_bytes > capability.memory_bytes or over:
            what = f"{node.name} leased {cpu_milli} m, {memory_bytes} bytes, {dict(shares)}"
            raise Violation("one lease on one resource", what, node.name)

    def _runs_in_time(self, node: SimNode, worker: _Worker, mono_s: float) -> None:
        if node.suspended:
            return
        for lease_id, attempt_id in node.running:
            lease = worker.leases.get(lease_id)
            if lease is None:
                what = f"{node.name} runs {attempt_id} under no lease"
                raise Violation("nothing runs after its lease", what, lease_id, attempt_id)
            over_s = max(min(lease.expires_s, lease.ending_s), worker.woke_s)
            if min(lease.expires_s, lease.ending_s) < mono_s > over_s + MAX_FENCE_S + SLACK_S:
                what = f"{node.name} runs {attempt_id} {mono_s - over_s:.2f} s after its lease"
                raise Violation("nothing runs after its lease", what, lease_id, attempt_id)

    def _books(self, node: SimNode) -> None:
        """The worker's own ledger. Its amounts are checked as they are made: they raise."""
        worker = _peer(node).worker
        if worker is None:
            return
        free = worker.lessor.ledger.free
        whole = self._serves[node.name].capability
        for name in ("cpu_milli", "memory_bytes"):
            if not 0 <= getattr(free, name) <= getattr(whole, name):
                what = f"{node.name} has {getattr(free, name)} {name} free"
                raise Violation("capacity", what, node.name)

    def _look(self) -> None:
        """At machines to which nothing happens."""
        for name in self._workers:
            node = self._world.nodes[name]
            if node.alive and not node.suspended:
                mono_s = node.clock.mono_s(self._world.now_s)
                self._runs_in_time(node, self._worker(node), mono_s)
        self._world.after(LOOK_S, self._look)

    # -- schedulers -----------------------------------------------------------------------------

    def _scheduler(self, node: SimNode) -> _Scheduler:
        scheduler = self._schedulers.get(node.name)
        if scheduler is None or scheduler.incarnation != node.incarnation:
            scheduler = self._schedulers[node.name] = _Scheduler(node.incarnation)
            assert node.disk is not None
            stored = (event for job in node.disk.jobs.values() for event in job.events)
            scheduler.succeeded |= {e.task_id for e in stored if isinstance(e, TaskSucceeded)}
            # What the last incarnation had and did not write is gone, and is done again.
            self._accepted = {
                (name, attempt_id): task
                for (name, attempt_id), task in self._accepted.items()
                if name != node.name
            }
        return scheduler

    def _saw_scheduler(self, node: SimNode, event: PeerEvent, effects: list[PeerEffect]) -> None:
        scheduler = self._scheduler(node)
        mono_s = node.clock.mono_s(self._world.now_s)
        ended: TasksEnded | None = None
        sender: PeerId | None = None
        match event:
            case Received(contact, Leased(lease_id, _, ttl_ms) | Renewed(lease_id, ttl_ms)):
                key = (contact.peer_id, lease_id)
                asked_s = max(scheduler.asked_s.get(key, [mono_s]))
                scheduler.believes_s[key] = asked_s + ttl_ms / 1000
            case Received(contact, LeaseEnded(lease_id)):
                scheduler.gone.add((contact.peer_id, lease_id))
            case Received(contact, TasksEnded() as message):
                sender, ended = contact.peer_id, message
        for effect in effects:
            match effect:
                case EmitJobEvent(job_id, reported) if job_id in scheduler.over:
                    what = f"{node.name} tells {reported} of {job_id}, which has ended"
                    raise Violation("a job's end is its last event", what, job_id)
                case EmitJobEvent(job_id, JobEnded()):
                    scheduler.over.add(job_id)
                case EmitJobEvent(job_id, TaskPlaced(task_id)):
                    self._placed(node, scheduler, job_id, task_id)
                case EmitJobEvent(event=each) if isinstance(each, _TERMINAL):
                    if each.task_id in scheduler.ended:
                        what = f"{node.name} tells the end of {each.task_id} again"
                        raise Violation("no task ends twice", what, each.task_id)
                    scheduler.ended.add(each.task_id)
                    if isinstance(each, TaskSucceeded):
                        scheduler.succeeded.add(each.task_id)
                    if isinstance(each, TaskGaveUp) and each.waited_for in scheduler.succeeded:
                        what = f"{node.name} gives {each.task_id} up for {each.waited_for}"
                        raise Violation("tasks run in order", what, each.task_id)
                    if isinstance(each, TaskSucceeded) and each.worker != node.identity.peer_id:
                        self._accepts(node, scheduler, each, sender, ended, mono_s)
                case Send(to, Commit(lease_id) | Renew(lease_id)):
                    scheduler.asked_s.setdefault((to.peer_id, lease_id), []).append(mono_s)
                case Send(to, Release(lease_id)):
                    scheduler.gone.add((to.peer_id, lease_id))
                case ForgetLease(worker, lease_id):
                    scheduler.gone.add((worker, lease_id))
                case PersistLease():
                    self.seen["holds"] += 1

    def _placed(self, node: SimNode, scheduler: _Scheduler, job_id: str, task_id: str) -> None:
        if job_id not in self._after:
            assert node.disk is not None
            tasks = node.disk.jobs[job_id].job.tasks
            self._after[job_id] = {task.task_id: task.after for task in tasks if task.after}
        before = self._after[job_id].get(task_id, ())
        self.seen["placed in order"] += bool(before)
        if early := [each for each in before if each not in scheduler.succeeded]:
            what = f"{node.name} places {task_id} before {early} have succeeded"
            raise Violation("tasks run in order", what, task_id)

    def _accepts(
        self,
        node: SimNode,
        scheduler: _Scheduler,
        reported: TaskSucceeded,
        sender: PeerId | None,
        ended: TasksEnded | None,
        mono_s: float,
    ) -> None:
        invariant = "no result under a stale token"
        if ended is None or sender != reported.worker:
            what = f"{node.name} has a result of {reported.task_id} that nobody sent"
            raise Violation(invariant, what, reported.task_id)
        about = (reported.task_id, ended.lease_id)
        key = (sender, ended.lease_id)
        if self._fences.get(key) != ended.fence:
            what = f"{node.name} takes {reported.task_id} under token {ended.fence}"
            raise Violation(invariant, what, *about)
        if key in scheduler.gone:
            what = f"{node.name} takes {reported.task_id} under a lease that it let go"
            raise Violation(invariant, what, *about)
        if mono_s > scheduler.believes_s.get(key, float("inf")) + SLACK_S:
            what = f"{node.name} takes {reported.task_id} under a lease that has run out for it"
            raise Violation(invariant, what, *about)
        small = reported.task_id.encode()
        if reported.result != small and reported.result != result_of(small + LARGE):
            what = (
                f"{node.name} takes {reported.result[:99]!r} for the result of {reported.task_id}"
            )
            raise Violation("results are their tasks'", what, *about)
        for each in ended.ended:
            is_its = each.attempt_id.rpartition("#")[0] == reported.task_id
            if is_its and isinstance(each.outcome, Succeeded):
                self._accepted[node.name, each.attempt_id] = reported.task_id
        self.seen["results"] += 1

    def _acknowledged(self, peer_id: PeerId, attempt_ids: tuple[str, ...]) -> None:
        """A worker forgets these results now."""
        node = self._world.peers.get(peer_id)
        if node is None or node.disk is None:
            return
        for attempt_id in attempt_ids:
            task = self._accepted.get((node.name, attempt_id))
            if task is not None and task not in node.disk.settled:
                what = f"{node.name} acknowledges {attempt_id}, which its disk does not have"
                raise Violation("nothing acknowledged is lost", what, task, attempt_id)

    # -- at the end -----------------------------------------------------------------------------

    def at_the_end(self, cluster: Cluster) -> None:
        """When faults have stopped for long."""
        for given in cluster.given:
            self._ended_once(given.scheduler, given.job.job_id)
        for node in cluster.members:
            if not node.alive:
                continue
            peer = _peer(node)
            if node.disk is not None:
                _, leases = node.disk.saved()
                left = ([*peer.scheduler.groups.values()], peer.lessee.held, leases)
                if any(left):
                    what = f"{node.name} keeps {left} when all is done"
                    raise Violation("leases are given back", what, node.name)
            worker = peer.worker
            if node.name in cluster.serves:
                if worker is None:
                    raise Violation("workers serve", f"{node.name} does not", node.name)
                free, whole = worker.lessor.ledger.free, idle(worker.lessor.capability)
                if free != whole or worker.has_leases or node.running:
                    what = f"{node.name} has {free} of {whole} free when all is done"
                    raise Violation("capacity is full when idle", what, node.name)
                if worker.executions.runs:
                    what = f"{node.name} keeps {list(worker.executions.runs)}"
                    raise Violation("capacity is full when idle", what, node.name)

    def is_over(self, cluster: Cluster) -> bool:
        return all(_stored(given.scheduler, given.job.job_id) for given in cluster.given)

    def _ended_once(self, node: SimNode, job_id: str) -> None:
        invariant = "every task ends once"
        assert node.disk is not None
        stored = node.disk.jobs[job_id]
        ends = Counter(e.task_id for e in stored.events if isinstance(e, _TERMINAL))
        for task in stored.job.tasks:
            if ends[task.task_id] != 1:
                what = f"{task.task_id} ended {ends[task.task_id]} times on {node.name}"
                raise Violation(invariant, what, task.task_id)
        over = [event for event in stored.events if isinstance(event, JobEnded)]
        kinds = Counter(type(e) for e in stored.events if isinstance(e, _TERMINAL))
        counts = JobEnded(*(kinds[kind] for kind in _TERMINAL))
        if over != [counts] or stored.events[-1] != counts:
            raise Violation(invariant, f"{job_id} ended as {over}, and was {counts}", job_id)
        self.seen.update({kind.__name__: count for kind, count in kinds.items()})


def _stored(node: SimNode, job_id: str) -> bool:
    assert node.disk is not None
    return node.disk.jobs[job_id].is_over


def _peer(node: SimNode) -> Peer:
    assert isinstance(node.peer, Peer)
    return node.peer
