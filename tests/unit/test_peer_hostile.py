"""What others may send: anything, at any time. It grows nothing, breaks nothing, gains nothing."""

from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formation_p2p.assembly import PeerMessage
from formation_p2p.core.refusals import Leaving
from formation_p2p.features.gangs.core.roster import Roster
from formation_p2p.features.gangs.core.usage import LeaseUsage
from formation_p2p.jobs.core.job_events import TaskSucceeded
from formation_p2p.leases.core.held import HeldResources
from formation_p2p.leases.core.messages import (
    Assignment,
    Commit,
    Dispatch,
    Leased,
    LeaseEnded,
    Offer,
    OutputRead,
    PlacementRequest,
    Renew,
    Renewed,
    RequestRefused,
    ResultAck,
    TaskOutput,
    TasksEnded,
    TaskStarted,
    WorkMessage,
)
from formation_p2p.leases.core.parameters import LEASE_DEFAULTS
from formation_p2p.leases.core.session import Received
from formation_p2p.trust.core.quota import Used
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.checkpoint import Checkpoint
from formation_p2p.workload.core.outcome import Ended, Succeeded
from simulations.simulator.node import TRUE, Clock, SimNode
from simulations.simulator.world import World
from tests.support.feature_messages import messages as of_features
from tests.support.stories import (
    NEEDS,
    contact,
    ends,
    free,
    is_idle,
    job,
    only,
    passed,
    peer_of,
    town,
    worker_of,
)
from tests.support.work_messages import messages

TINY = replace(NEEDS, cpu_milli=1, memory_bytes=1)


def busy_town() -> World:
    """bob's tasks run with alice; dave may submit as well, and mallory may nothing."""
    world = town(7, lambda x: (2.0, Succeeded(x.work.payload)), alice=2)
    world.add("dave")
    world.add("mallory", stranger=True)
    world.elapse(1)
    world.nodes["bob"].submit(job(6))
    world.elapse(1)
    return world


def grant_of(node: SimNode) -> bytes:
    return peer_of(node).network.grant


def entries(node: SimNode) -> int:
    """All that a peer remembers of its dealings with others, counted."""
    peer = peer_of(node)
    count = len(peer.lessee.held) + len(peer.lessee.rounds) + len(peer.scheduler.groups)
    for group in peer.scheduler.groups.values():
        count += len(group.candidates.pool) + len(group.candidates.reasons())
        count += sum(len(active.attempts) for active in group.leases.values())
    if peer.worker is not None:
        count += len(peer.worker.lessor)
        for run in peer.worker.executions.runs.values():
            count += 1 + len(run.in_flight) + len(run.outbox) + len(run.shared_blobs)
    return count


# -- clocks ---------------------------------------------------------------------------------


@pytest.mark.parametrize("off_s", [3600.0, -3600.0])
@pytest.mark.parametrize("wrong", ["gate", "alice dave"])
def test_a_clock_that_is_an_hour_off_costs_its_own_node_alone(wrong: str, off_s: float) -> None:
    """Its records are of the past or the future to the others, and theirs to it."""
    world = World(3)
    world.clock_of = lambda name: Clock(1.0, 0.0, off_s) if name in wrong.split() else TRUE
    bob = [world.add("gate"), world.add("bob")][1]
    workers = {name: world.add(name, serve=world.machine(cpu=1)) for name in ("alice", "carol")}
    workers |= {name: world.add(name, serve=world.machine(cpu=1)) for name in ("dave", "erin")}
    world.elapse(20)
    bob.submit(job(4))
    world.elapse(40)
    done = [each for each in ends(bob).values() if isinstance(each, TaskSucceeded)]
    right = {node.identity.peer_id for name, node in workers.items() if name not in wrong.split()}
    assert len(done) == 4
    assert {each.worker for each in done} == right
    counts = [peer_of(node).records.untimely for node in (*workers.values(), world.nodes["gate"])]
    assert sum(counts) > 0


# -- floods ---------------------------------------------------------------------------------


@pytest.mark.at_length
@pytest.mark.parametrize("who", ["dave", "mallory"])
def test_a_flood_of_requests_holds_a_bounded_part_for_a_moment(who: str) -> None:
    world = town(alice=2)
    alice, flooder = world.nodes["alice"], world.add(who, stranger=who == "mallory")
    before = free(alice).cpu_milli
    for n in range(300):
        request = PlacementRequest(n, TINY, grant_of(flooder))
        world.deliver(alice, Received(flooder.contact, request))
    taken = before - free(alice).cpu_milli
    assert taken == (LEASE_DEFAULTS.max_offers_per_owner if who == "dave" else 0)
    world.elapse(LEASE_DEFAULTS.hold_s)
    assert is_idle(alice)


@pytest.mark.parametrize("who", ["dave", "mallory"])
def test_what_refers_to_nothing_is_answered_and_not_remembered(who: str) -> None:
    world = busy_town()
    flooder = world.nodes[who]
    before = {name: entries(world.nodes[name]) for name in ("alice", "bob")}
    for n in range(50):
        x, y = f"lease {n}", f"attempt {n}"
        for name, message in (
            ("alice", Dispatch(x, 1, (), (Assignment(y, 0, b"", 0),))),
            ("alice", Renew(x, n)),
            ("alice", Commit(x)),
            ("alice", ResultAck(x, (y,))),
            ("alice", OutputRead(x, y, True)),
            ("bob", Offer(n, x, HeldResources(1000, 10**9, device_ids=("GPU-0",) * 64), 0, 10**6)),
            ("bob", RequestRefused(n, Leaving())),
            ("bob", Leased(x, n, 10**6, 512)),
            ("bob", Renewed(x, 10**6, 512)),
            ("bob", LeaseEnded(x, Leaving())),
            ("bob", TaskStarted(x, y)),
            ("bob", TaskOutput(x, y, False, b"spam")),
            ("bob", TasksEnded(x, n, (Ended(y, Succeeded(b"false"), 1),))),
        ):
            reported = len(world.nodes["bob"].reported)
            sent = len(passed(world, name, who))
            world.deliver(world.nodes[name], Received(flooder.contact, message))
            assert len(passed(world, name, who)) - sent <= 1  # no more than was sent
            assert len(world.nodes["bob"].reported) == reported
    assert {name: entries(world.nodes[name]) for name in ("alice", "bob")} == before


def test_a_lease_is_nothing_to_anybody_but_its_owner() -> None:
    """mallory has overheard every id and fence there is."""
    world = busy_town()
    bob, alice, mallory = (world.nodes[name] for name in ("bob", "alice", "mallory"))
    running = dict(alice.running)
    for lease_id, attempt_id in running:
        for fence in range(4):
            for message in everything_about(lease_id, attempt_id, fence):
                for target in (alice, bob):
                    world.deliver(target, Received(mallory.contact, message))
    assert alice.running == running
    world.elapse(10)
    results = [each.result for each in only(ends(bob).values(), TaskSucceeded)]
    assert sorted(results) == [b"%d" % n for n in range(6)]


def everything_about(lease_id: str, attempt_id: str, fence: int) -> list[WorkMessage]:
    values: dict[str, Any] = {
        "lease_id": lease_id,
        "attempt_id": attempt_id,
        "fence": fence,
        "request_id": fence,
        "refusal": Leaving(),
        "ttl_ms": 0,
        "hold_ms": 0,
        "grace_ms": 0,
        "ends_ms": 0,
        "profile": None,
        "window": 1,
        "price_micro": 0,
        "holds": HeldResources(1000, 10**9),
        "shared_blobs": ((1, b"mine"),),
        "assignments": (Assignment(attempt_id, 1, b"mine", 0), Assignment("x", 0, b"mine", 0)),
        "is_stderr": False,
        "data": b"mine",
        "ended": (Ended(attempt_id, Succeeded(b"mine"), 0),),
        "attempt_ids": (attempt_id,),
        "begun": True,
        "needs": NEEDS,
        "grant": b"",
        "attestations": (b"mine",),
        "priority": 0,
        "name": "",
        "near": (Cid(RAW, digest_of(b"mine")),),
        "there": (0, 15),
        "checkpoint": Checkpoint(1, Blob(Cid(RAW, digest_of(b"mine")), 4)),
        "rank": 0,
        "want": b"mine",
        "voucher": None,
        "extension": None,
        "account": "mine",
        "month": "2026-11",
        "sequence": fence,
        "wanted": Used(1000),
        "could": Used(1000),
        "total": Used(1000),
        "is_kept": True,
        "is_known": True,
        "rows": (),
        "depth": 0,
        "reach": 1,
        "since_ms": 0,
        "beside": (),
        "yields_ms": None,
        "roster": Roster("ab" * 16, 1, 1, contact("mallory"), ()),
        "more": True,
        "reports": (LeaseUsage(lease_id, fence, 1, 1),),
    }
    kinds = PeerMessage.__args__
    return [kind(**{each.name: values[each.name] for each in fields(kind)}) for kind in kinds]


# -- anything at all ------------------------------------------------------------------------


@st.composite
def aimed(draw: st.DrawFn) -> tuple[WorkMessage, int]:
    """A message, and which of the ids in use it is to name (0: none, it keeps its own)."""
    return draw(messages | of_features), draw(st.integers(0, 6))


def named_by(world: World, message: WorkMessage, choice: int, grant: bytes) -> WorkMessage:
    """The message with ids, fences and grants that mean something to those who get it."""
    lessor, lessee = worker_of(world.nodes["alice"]).lessor, peer_of(world.nodes["bob"]).lessee
    leases = [*lessor]
    if choice == 0 or not leases:
        return message
    lease = leases[choice % len(leases)]
    attempts = [attempt for _, attempt in world.nodes["alice"].running] or ["job/0#1"]
    rounds = [asked.requests for asked in lessee.rounds.values()]
    known: dict[str, Any] = {
        "lease_id": lease.lease_id,
        "fence": lease.fence,
        "attempt_id": attempts[choice % len(attempts)],
        "attempt_ids": tuple(attempts),
        "grant": grant,
        "needs": TINY,
    }
    if rounds:
        known["request_id"] = next(iter(rounds[0]))
    mine = {each.name for each in fields(message)}
    for many in mine & {"assignments", "ended"}:
        known[many] = tuple(
            replace(each, attempt_id=attempts[(choice + n) % len(attempts)])
            for n, each in enumerate(getattr(message, many))
        )
    return replace(message, **{name: known[name] for name in known.keys() & mine})


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["dave", "mallory"]),
            st.sampled_from(["alice", "bob"]),
            aimed(),
            st.sampled_from([0, 0, 0.01, 0.5, 3]),
        ),
        max_size=30,
    )
)
def test_whatever_others_send_the_job_comes_to_its_true_results(
    story: list[tuple[str, str, tuple[WorkMessage, int], float]],
) -> None:
    world = busy_town()
    bob, alice = world.nodes["bob"], world.nodes["alice"]
    for sender, target, (message, choice), pause_s in story:
        crafted = named_by(world, message, choice, grant_of(world.nodes[sender]))
        world.deliver(world.nodes[target], Received(world.nodes[sender].contact, crafted))
        world.elapse(pause_s)
    world.elapse(60)
    results = [each.result for each in only(ends(bob).values(), TaskSucceeded)]
    assert sorted(results) == [b"%d" % n for n in range(6)]
    assert is_idle(alice)
    assert not peer_of(bob).scheduler.groups
    assert peer_of(bob).lessee.held == {}


@settings(max_examples=15, deadline=None)
@given(
    st.lists(st.tuples(st.booleans(), aimed(), st.sampled_from([0, 0, 0.01, 0.5, 3])), max_size=30)
)
def test_whatever_a_worker_and_a_scheduler_tell_each_other_each_task_ends_once(
    story: list[tuple[bool, tuple[WorkMessage, int], float]],
) -> None:
    """They lie about everything. It harms the job, but neither of the peers."""
    world = busy_town()
    bob, alice = world.nodes["bob"], world.nodes["alice"]
    for to_bob, (message, choice), pause_s in story:
        sender, target = (alice, bob) if to_bob else (bob, alice)
        crafted = named_by(world, message, choice, grant_of(sender))
        world.deliver(target, Received(sender.contact, crafted))
        assert entries(target) < 100
        world.elapse(pause_s)
    world.add("carol", serve=world.machine(cpu=2))
    world.elapse(120)
    assert set(ends(bob)) == {f"job/{n}" for n in range(6)}
    assert is_idle(alice)
    assert not peer_of(bob).scheduler.groups
