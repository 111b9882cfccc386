"""The whole peer: how it joins, works, asks, explains and leaves."""

import random
from collections.abc import Callable
from dataclasses import replace

import pytest

from formation_p2p.assembly import DEFAULT_PARAMETERS, Peer, PeerParameters
from formation_p2p.core.errors import InvariantBroken
from formation_p2p.core.refusals import Denied, Gone, Infeasible, Leaving
from formation_p2p.dht.core.messages import GetValue, PutValue
from formation_p2p.dht.core.parameters import DhtParameters
from formation_p2p.discovery.core.parameters import DiscoveryParameters
from formation_p2p.drivers.core.effects import ExecutionsEnded, ExecutionStarted
from formation_p2p.jobs.core.job_events import (
    EmitJobEvent,
    JobEnded,
    TaskCancelled,
    TaskSucceeded,
    TaskUnplaceable,
    WorkerLost,
)
from formation_p2p.leases.core.budget import Budget
from formation_p2p.leases.core.held_lease import HeldState
from formation_p2p.leases.core.lease import LeaseState
from formation_p2p.leases.core.messages import (
    Assignment,
    Cancel,
    Commit,
    CommitRefused,
    Dispatch,
    Leased,
    LeaseEnded,
    Offer,
    OutputRead,
    PlacementRequest,
    Release,
    Renew,
    RequestRefused,
    ResultAck,
    TasksEnded,
)
from formation_p2p.leases.core.session import (
    Disconnected,
    Fence,
    Fenced,
    Received,
    Send,
    Undelivered,
)
from formation_p2p.machine.core.capability import Capability
from formation_p2p.machine.core.fits import Ledger
from formation_p2p.machine.core.python import Python
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.peer.core.effects import Left, RejectRequest
from formation_p2p.peer.core.events import (
    AddressesChanged,
    FoundNearby,
    Joined,
    Leave,
    Serve,
    Submit,
    Tick,
)
from formation_p2p.peer.core.part import offered
from formation_p2p.workload.core.outcome import Ended, Failed, FailureKind, Succeeded
from formation_p2p.workload.core.scope import Scope, ScopeShares
from simulations.simulator.node import SimNode
from simulations.simulator.world import LATENCY_S, World
from tests.support.stories import (
    NEEDS,
    at,
    at_work,
    ends,
    free,
    identity,
    is_idle,
    job,
    mend,
    named,
    only,
    passed,
    peer_of,
    town,
    town_with,
    worker_of,
)

LASTING = 60.0


def lasting(**cores: int) -> World:
    return town(7, lambda x: (LASTING, Succeeded(b"")), **cores)


def granted(node: SimNode) -> bytes:
    """The grant that a node shows, as everyone whom it asks sees it."""
    return peer_of(node).network.grant


# -- joining --------------------------------------------------------------------------------


def test_a_worker_announces_itself_once_it_has_joined_and_not_before() -> None:
    world = World(1)
    world.add("gate")
    alice = world.add("alice", serve=world.machine())
    assert peer_of(alice).worker is None
    world.elapse(LATENCY_S)
    assert peer_of(alice).worker is None  # the gate has not answered yet
    world.elapse(1)
    assert is_idle(alice)
    bob = world.add("bob")
    world.elapse(1)
    bob.explain(None)
    world.elapse(1)
    assert [each.contact for each in bob.explained[0].decision.ranked] == [alice.contact]


def test_a_worker_without_a_gate_is_found_by_who_is_told_of_it_on_the_lan() -> None:
    world = World(1)
    alice = world.add("alice", serve=world.machine(), gates=())
    bob = world.add("bob", gates=())
    world.elapse(5)
    bob.explain(None)
    world.elapse(1)
    assert [each.contact for each in bob.explained[0].decision.ranked] == []
    world.deliver(bob, FoundNearby((alice.contact,)))
    world.elapse(1)
    bob.explain(None)
    world.elapse(1)
    assert [each.contact for each in bob.explained[1].decision.ranked] == [alice.contact]


def test_joining_or_serving_again_starts_no_second_worker() -> None:
    world = town(alice=2)
    alice = world.nodes["alice"]
    worker = peer_of(alice).worker
    world.deliver(alice, world.machine(cpu=64))
    world.deliver(alice, Joined(alice.contact.addresses, (world.nodes["gate"].contact,)))
    world.elapse(5)
    assert peer_of(alice).worker is worker


def test_a_worker_that_is_reached_elsewhere_is_found_there_at_once() -> None:
    world = town(alice=2)
    alice, bob = world.nodes["alice"], world.add("bob")
    world.elapse(20)
    direct = alice.contact.addresses
    announced = (*direct, "/ip4/9.9.9.9/tcp/4001")
    world.deliver(alice, AddressesChanged(direct, announced))
    world.elapse(2)
    bob.explain(None)
    world.elapse(1)
    assert [each.contact.addresses for each in bob.explained[0].decision.ranked] == [announced]
    assert peer_of(alice).worker is not None
    world.deliver(alice, AddressesChanged(direct, announced))  # nothing new
    world.deliver(bob, AddressesChanged(direct, announced))  # which does not work
    world.elapse(2)
    bob.explain(None)
    world.elapse(1)
    assert bob.explained[1].decision.ranked == bob.explained[0].decision.ranked


def test_before_it_has_joined_a_node_is_nowhere() -> None:
    world = World(7)
    alice = world.add("alice", asleep=True)
    assert peer_of(alice).handle(AddressesChanged((), ("/ip4/9.9.9.9/tcp/1",)), at(1)) == []


def test_a_machine_that_no_profile_has_room_for_is_refused_with_the_reason() -> None:
    world = town()
    labels = tuple((f"label-{n}", "x") for n in range(9))
    late = world.add("late", serve=Serve(Capability(1000, 2**30), ("process",), labels))
    world.elapse(1)
    (refused,) = late.refused
    assert (refused.what, "more than 8" in refused.why) == ("serve", True)
    assert peer_of(late).worker is None


# -- a node alone, and for itself -----------------------------------------------------------


@pytest.mark.parametrize("gate", [True, False])
def test_a_node_works_for_itself(gate: bool) -> None:
    """With nobody else in the network: the first thing that anyone tries."""
    world = town() if gate else World(7)
    alice = world.add("alice", serve=world.machine(cpu=2))
    world.elapse(1)
    alice.submit(job(5))
    world.elapse(5)
    assert len(only(ends(alice).values(), TaskSucceeded)) == 5
    assert alice.reported[-1] == JobEnded(5, 0, 0, 0)
    assert is_idle(alice)
    assert passed(world, "alice", "alice") == []  # no network was needed for it


def test_a_node_that_works_for_itself_cancels_and_leaves_too() -> None:
    world = lasting(alice=1)
    alice = world.nodes["alice"]
    alice.submit(job(3))
    world.elapse(1)
    assert len(alice.running) == 1
    alice.cancel("job")
    world.elapse(1)
    assert alice.reported[-1] == JobEnded(0, 0, 0, 3)
    alice.submit(job(3, job_id="another"))
    world.elapse(1)
    alice.leave()
    world.elapse(1)
    assert (alice.left, alice.running) == (True, {})


# -- strangers ------------------------------------------------------------------------------


def test_a_stranger_is_refused_before_anything_else_and_sees_why() -> None:
    world = town(alice=1, carol=1)
    mallory = world.add("mallory", stranger=True)
    world.elapse(2)
    mallory.submit(job(needs=replace(NEEDS, cpu_milli=1000)))
    world.elapse(5)
    (unplaceable,) = ends(mallory).values()
    assert isinstance(unplaceable, TaskUnplaceable)
    why = Denied("submit", "the grant is refused: it is of another network, or was altered")
    assert named(world, unplaceable.reasons) == {"alice": why, "carol": why}
    for name in ("alice", "carol"):
        assert {type(x) for x in passed(world, "mallory", name)} == {PlacementRequest}
        assert len(passed(world, "mallory", name)) == 1  # and is not asked again
        assert is_idle(world.nodes[name])


def test_a_node_that_does_not_work_says_so_but_only_to_who_may_ask() -> None:
    world = town()
    bob, gate, mallory = world.nodes["bob"], world.nodes["gate"], world.add("m", stranger=True)
    for asker in (bob, mallory):
        request = PlacementRequest(5, NEEDS, granted(asker))
        world.deliver(gate, Received(asker.contact, request))
    assert passed(world, "gate", "bob") == [RequestRefused(5, Leaving())]
    ((refused,),) = (passed(world, "gate", "m"),)
    assert isinstance(refused, RequestRefused)
    assert isinstance(refused.refusal, Denied)


def test_a_node_that_works_no_more_says_at_once_that_its_leases_are_gone() -> None:
    world = town()
    bob, gate = world.nodes["bob"], world.nodes["gate"]
    for message in (
        Commit("x"),
        Renew("x", 1),
        Dispatch("x", 1, (), (Assignment("j/0#1", 0, b"", 0),)),
        Release("x"),
        ResultAck("x", ("y",)),
        OutputRead("x", "y", True),
        Cancel("x", ("y",), True),
    ):
        world.deliver(gate, Received(bob.contact, message))
    for event in (ExecutionStarted("x", "y"), Fenced("x")):
        world.deliver(gate, event)
    assert passed(world, "gate", "bob") == [
        CommitRefused("x", Leaving()),
        LeaseEnded("x", Leaving()),
        LeaseEnded("x", Leaving()),
    ]


# -- submitting and explaining --------------------------------------------------------------


def test_a_job_that_is_under_way_already_is_refused_by_its_id() -> None:
    _, bob = at_work(lasting(alice=1), job(), job())
    (refused,) = bob.refused
    assert (refused.what, refused.why) == ("job", "job: job is running already")


def test_explain_names_every_worker_nearest_first_and_why_not_the_others() -> None:
    world, bob = at_work(town(alice=4, carol=1, dave=8))
    bob.explain(replace(NEEDS, cpu_milli=2000), "job/0")
    world.elapse(1)
    (explained,) = bob.explained
    ranked = [(each.distance, each.contact) for each in explained.decision.ranked]
    assert {contact for _, contact in ranked} <= {world.nodes[n].contact for n in ("alice", "dave")}
    assert ranked == sorted(ranked, key=lambda each: each[0])
    [step] = explained.trace.steps
    assert (explained.query, step.shard) == (0, "driver/process")
    assert explained.trace.lookups == 1
    bob.explain(replace(NEEDS, cpu_milli=64_000))
    world.elapse(1)
    why = named(world, bob.explained[1].decision.rejected)
    assert why == {
        "alice": Infeasible("cpu", 64_000, 4000),
        "carol": Infeasible("cpu", 64_000, 1000),
        "dave": Infeasible("cpu", 64_000, 8000),
    }
    assert bob.explained[1].decision.ranked == ()
    assert bob.explained[1].trace.steps[-1].bucket == "any"


def test_explain_names_those_with_other_versions_of_python_beside_the_one_asked_for() -> None:
    world = World(7)
    world.add("gate")
    for name, version in (("alice", "cpython-3.11"), ("carol", "cpython-3.12")):
        serve = world.machine()
        able = replace(serve.capability, pythons=(Python(version, "linux-x86_64-gnu", 3),))
        world.add(name, serve=replace(serve, capability=able))
    bob = world.add("bob")
    world.elapse(3)
    bob.explain(replace(NEEDS, python="cpython-3.11"))
    world.elapse(1)
    (explained,) = bob.explained
    ranked = [each.contact for each in explained.decision.ranked]
    assert ranked == [world.nodes["alice"].contact]
    why = Infeasible("python", "cpython-3.11", "cpython-3.12")
    assert named(world, explained.decision.rejected) == {"carol": why}
    shards = {step.shard for step in explained.trace.steps}
    assert shards == {"python/cpython-3.11", "driver/process"}
    bob.explain(replace(NEEDS, python="any"))
    world.elapse(1)
    assert len(bob.explained[1].decision.ranked) == 2
    assert bob.explained[1].trace.lookups == 1


def test_a_query_that_cannot_be_asked_is_refused_by_its_number() -> None:
    none = DiscoveryParameters(max_finds=0)
    world, bob = at_work(town_with(PeerParameters(discovery=none), alice=1))
    models = tuple(f"{n}" + "m" * 90 for n in range(16))
    labels = tuple((f"{n}" + "k" * 62, "v" * 63) for n in range(8))
    bob.explain(Requirements(gpu_count=1, gpu_models=models, labels=labels))
    bob.explain(NEEDS)
    bob.explain(None)
    assert [refused.what for refused in bob.refused] == ["0", "0", "0"]
    assert "ask for fewer labels or models" in bob.refused[0].why
    assert "too many queries" in bob.refused[1].why
    world.elapse(5)
    assert bob.explained == []


def test_a_commit_that_comes_after_the_hold_is_refused_and_the_job_waits_on() -> None:
    world, bob = at_work(town(alice=1), job())
    alice = world.nodes["alice"]
    while not only(passed(world, "alice", "bob"), Offer):
        world.elapse(0.005)
    world.latency = lambda a, b: 1.6  # longer than alice holds it
    world.elapse(4)
    (refused,) = only(passed(world, "alice", "bob"), CommitRefused)
    assert isinstance(refused.refusal, Gone)
    world.latency = lambda a, b: 0.01
    world.elapse(10)
    assert bob.reported[-1] == JobEnded(1, 0, 0, 0)
    assert is_idle(alice)


# -- leaving --------------------------------------------------------------------------------


def test_a_node_with_nothing_to_do_has_left_at_once_and_once_only() -> None:
    _, bob = at_work(town())
    assert bob.peer.handle(Leave(), at(10)) == [Left(cause="")]
    assert bob.peer.handle(Leave(), at(10)) == []
    assert bob.peer.handle(Tick(), at(11)) == []


def test_a_worker_has_left_when_its_profile_is_withdrawn_and_nothing_runs() -> None:
    world, bob = at_work(lasting(alice=1), job(), for_s=1)
    alice = world.nodes["alice"]
    ((lease_id, _),) = alice.running
    effects = alice.peer.handle(Leave(), at(world.now_s))
    assert Send(bob.contact, LeaseEnded(lease_id, Leaving()), cause="") in effects
    fence = Fence(lease_id, cause="")
    assert fence in effects
    for effect in effects:
        if effect != fence:  # what runs takes its time to die
            world.performer.perform(alice, effect)
    world.elapse(1)
    early = alice.left
    world.performer.perform(alice, fence)
    world.elapse(0.1)
    assert (early, alice.left) == (False, True)
    bob.explain(None)
    world.elapse(1)
    assert bob.explained[0].decision.ranked == ()  # nobody is sent to her any more


def test_a_scheduler_that_leaves_ends_its_jobs_and_gives_its_leases_back() -> None:
    world, bob = at_work(lasting(alice=1, carol=1), job(6), for_s=1)
    leased = {name: only(passed(world, name, "bob"), Leased) for name in ("alice", "carol")}
    effects = bob.peer.handle(Leave(), at(world.now_s))
    reported = [effect.event for effect in only(effects, EmitJobEvent)]
    assert sorted(map(str, reported[:-1])) == [
        f"TaskCancelled(task_id='job/{n}')" for n in range(6)
    ]
    assert reported[-1] == JobEnded(0, 0, 0, 6)
    released = [effect.message for effect in only(effects, Send)]
    waited = ["request " in each.lease_id for each in only(released, Release)]
    assert waited == [False, False, True, True], "where it had no room for more, it is told so too"
    given_back = released[:2]
    assert given_back == [Release(each.lease_id) for (each,) in leased.values()] or given_back == [
        Release(each.lease_id) for (each,) in reversed(leased.values())
    ]
    assert effects[-1] == Left(cause="")  # after all that is still to be sent
    for effect in effects:
        world.performer.perform(bob, effect)
    world.elapse(1)
    assert all(is_idle(world.nodes[name]) for name in ("alice", "carol"))


def test_who_leaves_before_it_has_joined_begins_nothing() -> None:
    world = World(7)
    world.add("gate")
    late = world.add("late", serve=world.machine())
    late.submit(job())
    now = at(0)
    reported = [effect.event for effect in only(late.peer.handle(Leave(), now), EmitJobEvent)]
    assert reported == [TaskCancelled("job/0"), JobEnded(0, 0, 0, 1)]
    assert late.peer.handle(Submit(job()), now) == [
        RejectRequest("job", "the node is leaving", cause="")
    ]
    world.elapse(5)
    assert peer_of(late).worker is None
    assert late.reported == []


# -- time and connections -------------------------------------------------------------------


def test_what_ran_out_while_the_machine_slept_has_run_out_before_anything_arrives() -> None:
    """The lease has expired on both sides: the result comes too late, and does not count."""
    world, bob = at_work(lasting(alice=1), job(), for_s=1)
    alice = world.nodes["alice"]
    ((lease_id, attempt_id),) = alice.running
    result = TasksEnded(lease_id, 1, (Ended(attempt_id, Succeeded(b"late"), 5000),))
    effects = bob.peer.handle(Received(alice.contact, result), at(world.now_s + 60))
    reported = [effect.event for effect in only(effects, EmitJobEvent)]
    assert only(reported, WorkerLost)
    assert only(reported, TaskSucceeded) == []
    assert not [each for each in only(effects, Send) if isinstance(each.message, ResultAck)]
    renew = Renew(lease_id, 1)
    told_by_her = alice.peer.handle(Received(bob.contact, renew), at(world.now_s + 60))
    gone = Gone(f"lease {lease_id}", "it expired, was released, or never was yours")
    assert Fence(lease_id, cause="") in told_by_her
    assert Send(bob.contact, LeaseEnded(lease_id, gone), cause="") in told_by_her


def test_a_closed_connection_is_looked_into_at_once() -> None:
    world, bob = at_work(lasting(alice=1), job(), for_s=1)
    alice = world.nodes["alice"]
    world.deliver(bob, Disconnected(alice.identity.peer_id))
    world.elapse(1)
    assert len(only(passed(world, "bob", "alice"), Renew)) == 1
    assert only(bob.reported, WorkerLost) == []
    world.kill(alice)
    world.elapse(1)
    assert len(only(bob.reported, WorkerLost)) == 1


def test_a_dispatch_without_a_lease_is_told_that_there_is_none() -> None:
    world = town(alice=1)
    bob, alice = world.nodes["bob"], world.nodes["alice"]
    dispatch = Dispatch("x", 1, (), (Assignment("job/0#1", 0, b"", 0),))
    world.deliver(alice, Received(bob.contact, dispatch))
    gone = Gone("lease x", "it expired, was released, or never was yours")
    assert passed(world, "alice", "bob") == [LeaseEnded("x", gone)]
    assert is_idle(alice)


def test_a_result_that_was_lost_with_the_stream_comes_again_as_soon_as_bob_is_heard_of() -> None:
    world, bob = at_work(town(7, lambda x: (3.0, Succeeded(x.work.payload)), alice=1), job())
    alice = world.nodes["alice"]
    world.elapse(1)
    world.cut(bob, alice)
    world.elapse(3)
    assert only(passed(world, "alice", "bob"), TasksEnded) == []
    mend(world, bob, alice)
    world.elapse(0.1)
    assert len(only(passed(world, "alice", "bob"), TasksEnded)) == 1
    assert bob.reported[-1] == JobEnded(1, 0, 0, 0)
    world.elapse(1)
    assert is_idle(alice)


def test_capacity_changes_are_announced() -> None:
    world, bob = at_work(lasting(alice=2), job(), for_s=20)
    alice = world.nodes["alice"]
    assert free(alice).cpu_milli == 1000
    bob.explain(None)
    world.elapse(1)
    (ranked,) = bob.explained[0].decision.ranked
    assert ranked.profile.capacity.cpu_milli == 1000


def test_profiles_of_one_worker_are_numbered_upwards_while_the_clock_stands_still() -> None:
    world = town(alice=1)
    worker = peer_of(world.nodes["alice"]).worker
    assert worker is not None
    now = at(100)
    numbers = [worker._issue(now, (), False).profile.sequence for _ in range(3)]
    assert numbers == sorted(set(numbers))
    assert numbers[0] == int(now.unix_s * 1000)


def test_a_killed_attempt_of_nobody_is_ignored() -> None:
    world = town(alice=1)
    alice = world.nodes["alice"]
    killed = Failed(FailureKind.CANCELLED, "killed")
    world.deliver(alice, ExecutionsEnded("x", (Ended("job/0#1", killed, 0),)))
    world.deliver(alice, Undelivered(world.nodes["bob"].identity.peer_id, "broke"))
    assert is_idle(alice)


def test_a_peer_that_has_joined_nothing_has_nothing_to_do() -> None:
    _, bob = at_work(town())
    fresh = Peer(bob.identity, peer_of(bob).network, random.Random(1))
    assert fresh.next_timeout() == float("inf")
    assert fresh.handle(Tick(), at(0)) == []


def test_what_belongs_to_no_part_is_let_go() -> None:
    """Such as an answer whose asker waits for it no more."""
    world, bob = at_work(town())
    gate, peer = world.nodes["gate"], peer_of(bob)
    asked = [(gate.contact, GetValue(b"of none"))]
    peer.dht.operations.ask(asked, world.moment(bob), "a test", 1)
    world.deliver(bob, Tick())
    world.elapse(1)
    assert peer.dht.take() == ([], [])
    assert offered("of none", (lambda what, now: None,), at(0)) == ()


def test_a_worker_announces_itself_again_when_who_held_its_profile_may_have_lost_it() -> None:
    world = town(alice=1)
    alice, bob, gate = (world.nodes[name] for name in ("alice", "bob", "gate"))
    world.elapse(10)

    def announced_after(other: SimNode) -> int:
        before = len(world.sent)
        world.deliver(alice, Disconnected(other.identity.peer_id))
        world.elapse(8)
        return sum(
            s.sender == "alice" and isinstance(s.message, PutValue) for s in world.sent[before:]
        )

    assert announced_after(gate) > 0
    stranger = world.add("m", stranger=True)
    assert announced_after(stranger) == 0
    world.deliver(gate, Disconnected(bob.identity.peer_id))
    alice.leave()
    world.deliver(alice, Disconnected(gate.identity.peer_id))
    world.elapse(8)
    assert alice.left


# A peer finds out itself where two of its parts disagree: each case breaks one invariant.


def busy_town() -> World:
    """Alice runs a task of bob's."""
    world = town(alice=2)
    world.nodes["bob"].submit(job())
    world.elapse(0.5)
    peer_of(world.nodes["alice"]).validate()
    peer_of(world.nodes["bob"]).validate()
    return world


def a_lease_has_ended(world: World) -> None:
    next(iter(worker_of(world.nodes["alice"]).lessor)).state = LeaseState.ENDED


def a_lease_has_no_fence(world: World) -> None:
    next(iter(worker_of(world.nodes["alice"]).lessor)).fence = 0


def a_lease_has_another_id(world: World) -> None:
    next(iter(worker_of(world.nodes["alice"]).lessor)).lease_id = "another"


def capacity_is_free_that_is_leased(world: World) -> None:
    lessor = worker_of(world.nodes["alice"]).lessor
    lessor.ledger.release(next(iter(lessor)).lease_id)


def attempts_run_under_no_lease(world: World) -> None:
    next(iter(worker_of(world.nodes["alice"]).lessor)).state = LeaseState.ENDING


def an_attempt_runs_and_has_ended(world: World) -> None:
    [run] = worker_of(world.nodes["alice"]).executions.runs.values()
    run.outbox["job/0#1"] = Ended("job/0#1", Succeeded(b""), 0)


def the_outbox_has_another_size(world: World) -> None:
    [run] = worker_of(world.nodes["alice"]).executions.runs.values()
    run.outbox_bytes += 1


def what_is_not_in_the_outbox_is_sent(world: World) -> None:
    [run] = worker_of(world.nodes["alice"]).executions.runs.values()
    run.unsent.add("job/0#7")


def a_lease_is_held_that_has_ended(world: World) -> None:
    [lease] = peer_of(world.nodes["bob"]).lessee.held.values()
    lease.state = HeldState.ENDED


def a_lease_is_held_under_another_name(world: World) -> None:
    held = peer_of(world.nodes["bob"]).lessee.held
    [lease] = held.values()
    held[lease.lessor.peer_id, "another"] = lease


def a_lease_is_used_and_not_held(world: World) -> None:
    peer_of(world.nodes["bob"]).lessee.held.clear()


@pytest.mark.parametrize(
    ("breaks", "who", "problem"),
    [
        (a_lease_has_ended, "alice", "has ended, and is kept"),
        (a_lease_has_no_fence, "alice", "with this fence"),
        (a_lease_has_another_id, "alice", "another is kept under another id"),
        (capacity_is_free_that_is_leased, "alice", "the ledger reserves for other leases"),
        (attempts_run_under_no_lease, "alice", "attempts run under"),
        (an_attempt_runs_and_has_ended, "alice", "run, and have ended"),
        (the_outbox_has_another_size, "alice", "has another size"),
        (what_is_not_in_the_outbox_is_sent, "alice", "sends what is not in its outbox"),
        (a_lease_is_held_that_has_ended, "bob", "has ended, and is held"),
        (a_lease_is_held_under_another_name, "bob", "is kept under another name"),
        (a_lease_is_used_and_not_held, "bob", "are held, or used, but not both"),
    ],
)
def test_what_disagrees_is_named(breaks: Callable[[World], None], who: str, problem: str) -> None:
    world = busy_town()
    breaks(world)
    with pytest.raises(InvariantBroken, match=problem):
        peer_of(world.nodes[who]).validate()


def test_a_peer_of_a_world_validates_itself_after_every_event() -> None:
    world = busy_town()
    the_outbox_has_another_size(world)
    with pytest.raises(InvariantBroken, match="has another size"):
        world.deliver(world.nodes["alice"], Tick())
    assert not DEFAULT_PARAMETERS.validate
    assert replace(DEFAULT_PARAMETERS, validate=True).validate


def test_a_ledger_counts_all_that_there_is() -> None:
    ledger = Ledger(Capability(cpu_milli=2000, memory_bytes=2**30))
    ledger.reserve("a", NEEDS)
    ledger.validate(["a"])
    with pytest.raises(InvariantBroken, match="other leases"):
        ledger.validate(["b"])


def test_a_budget_counts_the_leases_that_there_are() -> None:
    budget = Budget(ScopeShares(), 2000, lambda grant, peer_id: Scope.COMMONS)
    budget.opened("a", b"", identity("bob").peer_id, 1000)
    budget.validate(["a"])
    with pytest.raises(InvariantBroken, match="other leases"):
        budget.validate([])


# A gate that dies, for good or for a while: who finds back to whom, and how soon.

# A newcomer's job takes a second of these.
SOON_S = 5.0


def die(world: World, gate: SimNode) -> None:
    """Its peers see their connections break."""
    world.kill(gate)
    for node in world.nodes.values():
        if node is not gate:
            world.deliver(node, Disconnected(gate.identity.peer_id))


def without_gate(**cores: int) -> tuple[World, SimNode]:
    """A town whose gate has died after a minute, and that gate."""
    world = town(7, None, **cores)
    gate = world.nodes["gate"]
    world.elapse(60)
    die(world, gate)
    return world, gate


def newcomer_runs(world: World, name: str, within_s: float = SOON_S) -> bool:
    """Whether one that knows the gate alone has a job done."""
    newcomer = world.add(name)
    newcomer.submit(job())
    world.elapse(within_s)
    return newcomer.reported[-1:] == [JobEnded(1, 0, 0, 0)]


@pytest.mark.parametrize(
    ("gone_s", "remembers", "back_s"),
    [
        (0.2, False, 0.0),
        pytest.param(3 * 3600, True, 0.0, marks=pytest.mark.at_length),
        # One that remembers nobody is dialled again and again.
        pytest.param(3600, False, DhtParameters().last_retry_s, marks=pytest.mark.at_length),
    ],
)
def test_a_gate_that_comes_back_has_the_workers_records_in_some_seconds(
    gone_s: float, remembers: bool, back_s: float
) -> None:
    world, gate = without_gate(alice=1, carol=1)
    world.elapse(gone_s)
    if remembers:
        gate.remembered = (world.nodes["alice"].contact,)
    world.restart(gate)
    if back_s:
        world.elapse(back_s)
    assert newcomer_runs(world, "dave")


def test_with_the_gate_dead_one_that_remembers_a_worker_runs_jobs() -> None:
    world, gate = without_gate(alice=1, carol=1)
    bob = world.nodes["bob"]
    world.kill(bob)
    bob.remembered = (world.nodes["alice"].contact, gate.contact)
    world.restart(bob, Submit(job()))
    world.elapse(SOON_S)
    assert bob.reported == [*bob.reported[:-1], JobEnded(1, 0, 0, 0)]
    stranger = world.add("eve")
    stranger.submit(job())
    world.elapse(60)
    assert len(only(stranger.reported, TaskUnplaceable)) == 1


def test_a_worker_that_remembers_others_joins_without_the_gate_and_tells_it_later() -> None:
    world, gate = without_gate(alice=1)
    carol = world.add("carol", asleep=True)
    carol.remembered = (world.nodes["alice"].contact,)
    world.wake(carol)
    world.deliver(carol, world.machine())
    world.elapse(30)
    world.kill(world.nodes["alice"])
    world.restart(gate)
    world.elapse(DhtParameters().last_retry_s)
    assert newcomer_runs(world, "dave")


@pytest.mark.at_length
def test_workers_that_lost_all_peers_find_each_other_without_the_gate() -> None:
    """As when a switch restarts while the gate is down."""
    world, gate = without_gate(alice=1, carol=1)
    bob = world.nodes["bob"]
    others = [node for node in world.nodes.values() if node is not gate]
    for side, node in enumerate(others):
        node.side = side
    world.elapse(1200)
    for node in others:
        node.side = 0
    world.elapse(2 * DhtParameters().last_retry_s)
    bob.submit(job())
    world.elapse(SOON_S)
    assert bob.reported[-1:] == [JobEnded(1, 0, 0, 0)]
