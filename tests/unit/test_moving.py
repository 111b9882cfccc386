"""Notice: a task that runs is told to save what it has, and goes on elsewhere from there."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from formation_p2p.assembly import PeerEvent
from formation_p2p.core.effects import Contact
from formation_p2p.core.refusals import Denied, GivingWay, Leaving, Preempted
from formation_p2p.core.units import GIB
from formation_p2p.drivers.core.effects import ExecutionSaved, Kill
from formation_p2p.jobs.core.active_lease import ActiveLease
from formation_p2p.jobs.core.fetch import CheckpointKept, CheckpointSpread
from formation_p2p.jobs.core.job_events import (
    JobEnded,
    RetryReason,
    TaskRecalled,
    TaskRetried,
    TaskSaved,
    WorkerLost,
)
from formation_p2p.jobs.core.rebalancer import EVERY_S, STAYS_S
from formation_p2p.jobs.core.saved import SavedJob
from formation_p2p.leases.core.held_lease import HeldLease
from formation_p2p.leases.core.lease import LeaseState
from formation_p2p.leases.core.lessor import Lessor
from formation_p2p.leases.core.messages import (
    Assignment,
    Cancel,
    Commit,
    Dispatch,
    LeaseEnded,
    Notice,
    Offer,
    PlacementRequest,
    Release,
    Renew,
    Renewed,
    RequestRefused,
    TasksEnded,
)
from formation_p2p.leases.core.parameters import LEASE_DEFAULTS
from formation_p2p.leases.core.session import Received, Send
from formation_p2p.machine.core.capability import Capability
from formation_p2p.peer.core.events import MoveTask, Reopen, Vacate
from formation_p2p.trust.core.admission import AdmissionController
from formation_p2p.trust.core.experience import Experience
from formation_p2p.trust.core.membership import Membership
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.checkpoint import inline
from formation_p2p.workload.core.outcome import Ended, Failed, FailureKind, Outcome, Succeeded
from formation_p2p.workload.core.quorum import Quorum
from simulations.simulator.executor import Running
from simulations.simulator.node import SimNode
from simulations.simulator.world import World
from tests.support.stories import (
    BOB,
    CAROL,
    NEEDS,
    Lenient,
    at,
    at_work,
    job,
    name_of,
    only,
    peer_of,
    sent,
    town,
    unshared,
    where,
    worker_of,
    workers_of,
)

GRACE_S = 10.0
DEFAULTS = LEASE_DEFAULTS


def half_a_minute(running: Running) -> tuple[float, Outcome]:
    return 30.0, Succeeded(b"done")


def content(text: bytes, *sources: Contact) -> Blob:
    return Blob(Cid(RAW, digest_of(text)), len(text), sources)


def saves(worker: SimNode, text: bytes) -> None:
    (key,) = worker.running
    worker.world.deliver(worker, ExecutionSaved(*key, content(text, worker.contact)))


def saves_little(worker: SimNode, text: bytes) -> None:
    (key,) = worker.running
    worker.world.deliver(worker, ExecutionSaved(*key, inline(text), text))


def begun(**cores: int) -> tuple[World, SimNode, SimNode]:
    """A job of bob's runs: the world, bob, and the worker."""
    world, bob = at_work(town(7, half_a_minute, **cores), job(), for_s=2)
    (worker,) = [node for node in world.nodes.values() if node.running]
    return world, bob, worker


def is_vacated(node: SimNode) -> bool:
    return node.vacated


def other_than(world: World, worker: SimNode) -> SimNode:
    names = {"alice", "carol"} - {worker.name}
    return world.nodes[names.pop()]


# -- a worker that leaves ---------------------------------------------------------------------


def test_what_runs_on_a_worker_that_leaves_goes_on_elsewhere_from_its_last_words() -> None:
    world, bob, first = begun(alice=1, carol=1)
    second = other_than(world, first)
    world.noticed_s = lambda running: 2.0
    world.deliver(first, Vacate(GRACE_S))
    world.elapse(1)
    saves(first, b"its last words")
    world.elapse(2)
    (running,) = second.running.values()
    assert running.work.restored is not None
    assert running.work.restored.cid == content(b"its last words").cid
    (moved,) = only(bob.reported, TaskRetried)
    assert (moved.counts, moved.reason) == (False, RetryReason.MOVED)
    assert not only(bob.reported, WorkerLost)
    # Its lease was given back, so that nothing keeps it from leaving.
    assert first.vacated
    world.elapse(31)
    assert bob.reported[-1] == JobEnded(1, 0, 0, 0)
    assert workers_of(bob) == [first.name, second.name]


def test_a_worker_that_leaves_takes_no_more_until_it_is_back() -> None:
    world, bob, alice = begun(alice=2)
    world.noticed_s = lambda running: 0.5
    world.deliver(alice, Vacate(GRACE_S))
    world.elapse(5)
    assert alice.vacated
    assert not alice.running
    world.deliver(alice, Reopen())
    world.elapse(45)
    assert bob.reported[-1] == JobEnded(1, 0, 0, 0)


def test_what_ends_well_meanwhile_is_a_result() -> None:
    world, bob, first = begun(alice=1, carol=1)
    world.noticed_s = lambda running: 1000.0
    world.elapse(25)
    world.deliver(first, Vacate(GRACE_S))
    world.elapse(6)
    assert bob.reported[-1] == JobEnded(1, 0, 0, 0)
    assert first.vacated
    assert workers_of(bob) == [first.name]


def test_what_has_not_begun_comes_back_at_once() -> None:
    world, bob = at_work(town(7, half_a_minute, alice=1), job(2), for_s=0.6)
    alice = world.nodes["alice"]
    assert len(alice.running) == 1
    world.noticed_s = lambda running: 5.0
    world.deliver(alice, Vacate(GRACE_S))
    world.add("carol", serve=world.machine(cpu=1))
    world.elapse(4)
    assert only(bob.reported, TaskRecalled)
    assert not only(bob.reported, TaskRetried)
    world.elapse(100)
    assert bob.reported[-1] == JobEnded(2, 0, 0, 0)


def test_a_node_that_does_not_work_is_vacant_at_once() -> None:
    world, bob = at_work(town())
    world.deliver(bob, Vacate(GRACE_S))
    assert bob.vacated
    world.deliver(bob, Reopen())
    world.deliver(bob, Vacate(GRACE_S, (CAROL,)))  # for whom it holds something since it worked
    assert bob.vacated


def test_a_worker_that_has_left_does_not_come_back() -> None:
    world = town(alice=1)
    alice = world.nodes["alice"]
    worker_of(alice).leave(at(world.now_s))
    worker_of(alice).reopen()
    asked = PlacementRequest(1, NEEDS, peer_of(alice).network.grant)
    ((_, answer),) = sent(worker_of(alice).lessor.requested(BOB, asked, at(world.now_s)))
    assert isinstance(answer, RequestRefused)


def test_its_own_tasks_go_on() -> None:
    world = town(7, half_a_minute, alice=1)
    alice = world.nodes["alice"]
    alice.submit(job())
    world.elapse(1)
    world.deliver(alice, Vacate(GRACE_S))
    world.elapse(0.1)
    assert alice.vacated
    assert alice.running


# -- the last checkpoint ----------------------------------------------------------------------


def held_back(world: World) -> list[tuple[SimNode, PeerEvent]]:
    """Checkpoints that are fetched arrive when the test hands them on, and no other holds any."""
    waiting: list[tuple[SimNode, PeerEvent]] = []
    deliver = world.deliver

    def slowly(node: SimNode, event: PeerEvent) -> None:
        if isinstance(event, CheckpointKept):
            waiting.append((node, event))
        elif isinstance(event, CheckpointSpread):
            deliver(node, replace(event, holders=()))
        else:
            deliver(node, event)

    world.deliver = slowly  # type: ignore[method-assign]
    return waiting


def test_a_task_waits_for_its_last_checkpoint_and_so_does_its_worker() -> None:
    world, _, first = begun(alice=1, carol=1)
    waiting = held_back(world)
    saves(first, b"before")
    world.deliver(first, Vacate(GRACE_S))
    world.elapse(0.3)
    saves(first, b"its last words")
    world.elapse(2)
    assert not other_than(world, first).running
    assert not is_vacated(first)
    del world.deliver
    world.deliver(*waiting.pop(0))  # and now the next one is fetched
    world.elapse(2)
    (running,) = other_than(world, first).running.values()
    assert running.work.restored is not None
    assert running.work.restored.cid == content(b"its last words").cid
    assert first.vacated
    assert not waiting


def test_where_the_last_checkpoint_does_not_come_the_one_before_counts() -> None:
    world, bob, first = begun(alice=1, carol=1)
    saves(first, b"before")
    world.elapse(1)
    waiting = held_back(world)
    saves(first, b"its last words")
    world.deliver(first, Vacate(GRACE_S))
    world.elapse(2)
    ((_, kept),) = waiting
    assert isinstance(kept, CheckpointKept)
    del world.deliver
    world.deliver(bob, replace(kept, holder=None))
    world.elapse(1)
    (running,) = other_than(world, first).running.values()
    assert running.work.restored is not None
    assert running.work.restored.cid == content(b"before").cid


def test_a_worker_that_dies_while_it_leaves_costs_what_it_alone_had() -> None:
    world, bob, first = begun(alice=1, carol=1)
    saves(first, b"before")
    world.elapse(1)
    assert only(bob.reported, TaskSaved)
    world.noticed_s = lambda running: 5.0
    world.deliver(first, Vacate(GRACE_S))
    world.elapse(1)
    world.kill(first)
    world.elapse(20)
    (running,) = other_than(world, first).running.values()
    assert running.work.restored is not None
    assert running.work.restored.cid == content(b"before").cid
    assert not [each for each in only(bob.reported, TaskRetried) if each.counts]


# -- as its submitter asks --------------------------------------------------------------------


def test_a_task_moves_when_its_submitter_says_so() -> None:
    world, bob, first = begun(alice=1, carol=1)
    saves(first, b"half of it")
    world.elapse(1)
    world.deliver(bob, MoveTask("job", "job/0", GRACE_S))
    world.deliver(bob, MoveTask("job", "job/0", GRACE_S))  # it does so already
    world.deliver(bob, MoveTask("another", "job/0", GRACE_S))
    world.elapse(3)
    second = other_than(world, first)
    (running,) = second.running.values()
    assert running.work.restored is not None
    assert len(only(bob.reported, TaskRetried)) == 1
    world.elapse(31)
    assert bob.reported[-1] == JobEnded(1, 0, 0, 0)


def test_where_there_is_no_other_worker_it_goes_on_where_it_was() -> None:
    world, bob, _alice = begun(alice=1)
    world.deliver(bob, MoveTask("job", "job/0", GRACE_S))
    world.elapse(40)
    assert bob.reported[-1] == JobEnded(1, 0, 0, 0)
    assert workers_of(bob) == ["alice", "alice"]


def test_a_worker_that_says_moved_without_notice_has_failed() -> None:
    world, bob, alice = begun(alice=1)
    ((lease_id, attempt_id),) = alice.running
    lease = the_lease(bob)
    moved = Failed(FailureKind.MOVED, "so I say")
    told = TasksEnded(lease_id, lease.fence, (Ended(attempt_id, moved, 0),))
    world.deliver(bob, Received(alice.contact, told))
    (retried,) = only(bob.reported, TaskRetried)
    assert name_of(world, retried.attempt.worker) == "alice"
    assert (retried.counts, retried.reason) == (True, RetryReason.FAILED)


def the_lease(bob: SimNode) -> HeldLease:
    (lease,) = peer_of(bob).lessee.held.values()
    return lease


def is_leaving(active: ActiveLease) -> bool:
    return active.leaving


def test_notice_counts_under_its_fence_alone_and_once() -> None:
    world, bob, alice = begun(alice=1, carol=1)
    lease = the_lease(bob)
    told = Notice(lease.lease_id, lease.fence + 1, 5000, Leaving())
    world.deliver(bob, Received(alice.contact, told))
    (active,) = peer_of(bob).scheduler.leases()
    assert not is_leaving(active)
    for _ in range(2):
        world.deliver(bob, Received(alice.contact, replace(told, fence=lease.fence)))
    assert is_leaving(active)
    assert name_of(world, active.worker) == alice.name


# -- the worker's side ------------------------------------------------------------------------


class Strict(Lenient):
    """Denies all, from `denies` on; the grant is good while `member`."""

    denies = False
    member = True

    def denied(self, *args: object, **kwargs: object) -> Denied | None:
        return Denied("submit", "the hours are over") if self.denies else None

    def is_member(self, *args: object, **kwargs: object) -> bool:
        return self.member


class Alice:
    def __init__(self) -> None:
        self.door = Strict()
        machine = Capability(2000, 4 * GIB, 0)
        self.saved: set[str] = set()
        self.lessor = Lessor(
            machine,
            {},
            ("process",),
            self.door,
            random.Random(1),
            unshared(machine),
            lambda lease_id: False,
            saves=lambda lease_id: lease_id in self.saved,
        )

    def lease(self, to: Contact = BOB) -> str:
        request = PlacementRequest(1, NEEDS, b"a grant", 0)
        ((_, offer),) = sent(self.lessor.requested(to, request, at(0)))
        assert isinstance(offer, Offer)
        self.lessor.committed(to, Commit(offer.lease_id), at(0))
        self.saved.add(offer.lease_id)
        return offer.lease_id

    def urgent(self, now_s: float = 0.0) -> object:
        """Carol wants all that there is. What she is told."""
        needs = replace(NEEDS, cpu_milli=2000)
        asked = PlacementRequest(2, needs, b"a grant", 9)
        ((_, answer),) = sent(self.lessor.requested(CAROL, asked, at(now_s)))
        assert isinstance(answer, RequestRefused)
        return answer.refusal

    def renewed(self, lease_id: str, now_s: float) -> list[object]:
        effects = self.lessor.renewed(BOB, Renew(lease_id, 1), at(now_s))
        return [message for _, message in sent(each for each in effects if isinstance(each, Send))]


def test_a_preempted_lease_under_which_something_was_saved_ends_with_notice() -> None:
    alice = Alice()
    lease_id = alice.lease()
    alice.urgent()
    notice, renewed = alice.renewed(lease_id, 6.5)
    ends_ms = round((DEFAULTS.notice_s + DEFAULTS.saving_s) * 1000)
    assert notice == Notice(lease_id, 1, ends_ms, Preempted(9))
    assert isinstance(renewed, Renewed)
    assert alice.lessor.notices.take() == [(lease_id, DEFAULTS.notice_s)]
    # Who waits for it asks again soon.
    assert alice.urgent(7) == GivingWay("cpu", round(DEFAULTS.fencing_s * 1000))
    # It may have been lost: it is repeated, and what is left of the time with it.
    again, _ = alice.renewed(lease_id, 10.5)
    assert again == Notice(lease_id, 1, ends_ms - 4000, Preempted(9))
    assert alice.lessor.notices.take() == []
    assert alice.lessor.next_timeout() == 16.5
    (ended, _) = alice.lessor.tick(at(16.5))
    assert isinstance(ended, Send)
    assert ended.message == LeaseEnded(lease_id, Preempted(9))
    assert [each.state for each in alice.lessor] == [LeaseState.ENDING]


def test_hours_that_are_over_give_notice_and_a_grant_that_is_bad_does_not() -> None:
    alice = Alice()
    lease_id = alice.lease()
    alice.door.denies = True
    notice, _ = alice.renewed(lease_id, 5)
    assert isinstance(notice, Notice)
    alice.door.member = False
    assert alice.renewed(lease_id, 6) == [
        LeaseEnded(lease_id, Denied("submit", "the hours are over"))
    ]


def test_a_member_is_one_whatever_the_hours() -> None:
    world = town(alice=1)
    bob, alice = world.nodes["bob"], world.nodes["alice"]
    admission = AdmissionController(Membership(world.root.public_key), {})
    grant, now = peer_of(bob).network.grant, world.moment(alice)
    assert admission.is_member(grant, bob.identity.peer_id, NEEDS, 0, now)
    assert not admission.is_member(grant, CAROL.peer_id, NEEDS, 0, now)


def test_the_lease_of_a_machine_that_is_vacated_ends_with_notice_and_offers_at_once() -> None:
    alice = Alice()
    lease_id = alice.lease()
    alice.lessor.requested(CAROL, PlacementRequest(1, NEEDS, b"a grant", 0), at(1))
    effects = alice.lessor.leave(at(2), grace_s=GRACE_S, own=CAROL.peer_id)
    assert [type(message) for _, message in sent(effects)] == [Notice]
    assert alice.lessor.leave(at(3), grace_s=GRACE_S, own=CAROL.peer_id) == []
    assert alice.lessor.notices.take() == [(lease_id, GRACE_S)]
    released = alice.lessor.released(BOB, Release(lease_id), at(4))
    assert len(released) == 1
    assert alice.lessor.lease(BOB, lease_id, 1)


def test_nothing_begins_under_a_lease_that_ends() -> None:
    world, bob, alice = begun(alice=1)
    ((lease_id, _),) = alice.running
    lease = the_lease(bob)
    seen: list[object] = []
    world.witness = lambda node, event, effects: seen.extend(effects)
    world.deliver(alice, Vacate(GRACE_S))
    told = Dispatch(lease_id, lease.fence, (), (Assignment("job/1#1", 0, b"", 0),))
    world.deliver(alice, Received(bob.contact, told))
    ended = [x.message for x in seen if isinstance(x, Send) and isinstance(x.message, TasksEnded)]
    ((back,),) = [each.ended for each in ended]
    assert isinstance(back.outcome, Failed)
    assert back.outcome.kind is FailureKind.CANCELLED
    (kill,) = [x for x in seen if isinstance(x, Kill)]
    assert kill.grace_s == GRACE_S


def test_a_cancel_with_grace_is_notice() -> None:
    world, bob, alice = begun(alice=1)
    ((lease_id, attempt_id),) = alice.running
    seen: list[object] = []
    world.witness = lambda node, event, effects: seen.extend(effects)
    told = Cancel(lease_id, (attempt_id,), True, 2500)
    world.deliver(alice, Received(bob.contact, told))
    (kill,) = [x for x in seen if isinstance(x, Kill)]
    assert (kill.begun, kill.grace_s) == (True, 2.5)


# -- for its own good -------------------------------------------------------------------------


def rebalanced(rebalance: bool = True) -> tuple[World, SimNode, SimNode]:
    """A job of bob's runs for 25 minutes on alice, who takes ten times what carol does, and has
    saved."""
    world = town(7, lambda running: (1500.0, Succeeded(b"done")))
    world.add("alice", serve=replace(world.machine(), price_micro=100))
    world.elapse(3)
    bob, alice = world.nodes["bob"], world.nodes["alice"]
    plain = job()
    bob.submit(replace(plain, options=replace(plain.options, rebalance=rebalance)))
    world.elapse(2)
    saves(alice, b"half of it")
    world.add("carol", serve=replace(world.machine(), price_micro=10))
    return world, bob, alice


def test_a_job_that_asks_for_it_goes_where_it_is_better_off() -> None:
    world, bob, _ = rebalanced()
    world.elapse(STAYS_S)
    assert workers_of(bob) == ["alice"]
    world.elapse(3 * EVERY_S)
    assert workers_of(bob) == ["alice", "carol"]
    (moved,) = only(bob.reported, TaskRetried)
    assert moved.reason is RetryReason.MOVED
    world.elapse(1700)
    assert workers_of(bob) == ["alice", "carol"]
    assert peer_of(bob).scheduler.next_timeout() == float("inf")


def test_what_has_not_saved_or_is_well_off_stays_where_it_is() -> None:
    world = town(7, lambda running: (3600.0, Succeeded(b"done")), alice=1, carol=1, dave=2)
    bob = world.nodes["bob"]
    plain = job(2)
    bob.submit(replace(plain, options=replace(plain.options, rebalance=True)))
    bob.submit(job(job_id="other"))
    world.elapse(2)
    saved = next(node for node in world.nodes.values() if len(node.running) == 1)
    saves(saved, b"half of it")
    world.elapse(1000)
    assert not only(bob.reported, TaskRetried)


@pytest.mark.at_length
def test_another_job_stays_where_it_is() -> None:
    world, bob, _ = rebalanced(rebalance=False)
    world.elapse(1000)
    assert workers_of(bob) == ["alice"]


def test_a_resumed_job_is_looked_at_as_well() -> None:
    world, bob = at_work(town())
    plain = job()
    saved = SavedJob(replace(plain, options=replace(plain.options, rebalance=True)), ())
    peer_of(bob).scheduler.resume((saved,), (), ".x", at(world.now_s))
    assert peer_of(bob).scheduler.rebalancer.due_s == world.now_s + EVERY_S


@pytest.mark.parametrize("save", [saves, saves_little])
def test_what_has_saved_leaves_a_worker_that_falls_below_the_gate(
    save: Callable[[SimNode, bytes], None],
) -> None:
    world = town(7, half_a_minute, alice=1, carol=1)
    _, bob = at_work(world, job(policy="trust>=0.3 & balanced"), for_s=2)
    (first,) = [node for node in world.nodes.values() if node.running]
    save(first, b"half of it")
    world.elapse(1)
    for _ in range(10):
        worker = first.identity.peer_id
        peer_of(bob).reputation.note(worker, Experience.WRONG, at(world.now_s))
    save(first, b"most of it")
    world.elapse(10)
    (running,) = other_than(world, first).running.values()
    assert running.work.restored is not None


def test_what_has_saved_once_leaves_a_worker_that_is_found_wrong() -> None:
    liars: list[str] = []

    def run(running: Running) -> tuple[float, Outcome]:
        if running.work.attempt_id.startswith("job/"):
            return 1000.0, Succeeded(b"done")
        lies = where(world, running).name in liars
        return 1.0, Succeeded(b"a lie" if lies else running.work.payload)

    world = town(7, run, alice=2, carol=2, dave=2)
    _, bob = at_work(world, job(policy="trust>=0.3 & balanced"), for_s=2)
    (first,) = [node for node in world.nodes.values() if node.running]
    liars.append(first.name)
    saves_little(first, b"half of it")
    bob.submit(job(6, job_id="checked", quorum=Quorum(2, of=3, apart=())))
    world.elapse(30)
    (moved,) = [each for each in only(bob.reported, TaskRetried) if each.task_id == "job/0"]
    assert (moved.attempt.worker, moved.reason) == (first.identity.peer_id, RetryReason.MOVED)
