"""Wants in a world of shipped peers: who hears of one, who offers, and what bob gets."""

import random
from collections import Counter
from dataclasses import replace

import pytest

from formation_p2p.assembly import PeerParameters
from formation_p2p.jobs.core.job_events import TaskSucceeded, TaskUnplaceable
from formation_p2p.leases.core import messages as work
from formation_p2p.leases.core.held import HeldResources
from formation_p2p.leases.core.lessee import Lessee
from formation_p2p.leases.core.round import MAX_CALLS
from formation_p2p.leases.core.session import Received, Send
from formation_p2p.peer.core.events import Submit
from formation_p2p.placement.core.task_options import SchedulingKey
from formation_p2p.trust.core.experience import Experience
from formation_p2p.wants.core.caller import Caller
from formation_p2p.wants.core.tree import Relay
from formation_p2p.wants.core.want import AnnounceParameters, Want, seal_want
from formation_p2p.workload.core.outcome import Outcome, Succeeded
from formation_p2p.workload.core.scope import Find, Scope, ScopeShares
from simulations.simulator.executor import Run, Running
from simulations.simulator.node import SimNode
from simulations.simulator.world import EPOCH_UNIX_S, World
from tests.support.stories import (
    BOB,
    NEEDS,
    at,
    at_work,
    identity,
    job,
    only,
    peer_of,
    town,
    town_with,
    worker_of,
)

NOW = int(EPOCH_UNIX_S)


def taking(seconds: float) -> Run:
    return lambda running: (seconds, Succeeded(running.work.payload))


def crowd(count: int, *, cores: int = 1, run: Run | None = None) -> World:
    """worker0, worker1, …, and bob."""
    return town(7, run, **{f"worker{n}": cores for n in range(count)})


def said(world: World) -> Counter[str]:
    """What was said of leases and wants, by the message."""
    return Counter(type(each.message).__name__ for each in world.sent)


def succeeded(node: SimNode) -> int:
    return len(only(node.reported, TaskSucceeded))


def want_of(node: SimNode, **changed: object) -> bytes:
    """A want of a node's own, which it would leave or spread."""
    want = Want(
        author=node.contact,
        number=9,
        issued_unix_s=NOW,
        expires_unix_s=NOW + 60,
        needs=NEEDS,
        reach=300,
        grant=node.network().grant,
    )
    return seal_want(node.identity, replace(want, **changed))  # type: ignore[arg-type]


# -- bob finds workers ----------------------------------------------------------------------


@pytest.mark.parametrize("find", Find)
def test_a_task_finds_a_worker_in_each_way(find: Find) -> None:
    world, bob = at_work(town(alice=1, carol=1, dave=1), job(find=find), for_s=5)
    assert succeeded(bob) == 1
    messages = said(world)
    assert messages["SpreadWant"] == (4 if find is Find.ANNOUNCE else 0)
    assert messages["LeaveWant"] == (4 if find is Find.NOTICE else 0)
    assert messages["Commit"] == messages["Dispatch"] == 1


@pytest.mark.at_length
def test_a_want_that_is_spread_reaches_those_that_are_free() -> None:
    """Of eight workers seven are busy, and bob asks none of them."""
    world = crowd(7, run=taking(30))
    world.add("carol")
    world.elapse(2)
    world.nodes["carol"].submit(job(7, job_id="carol's"))
    world.elapse(5)
    world.add("free", serve=world.machine(cpu=1))
    world.elapse(3)
    world.sent.clear()
    world.nodes["bob"].submit(job(find=Find.ANNOUNCE))
    world.elapse(1)
    assert len(world.nodes["free"].running) == 1
    assert said(world)["PlacementRequest"] == 0
    assert said(world)["Offer"] == 1


def test_where_the_first_brings_no_offer_more_hear_the_next() -> None:
    """Of eleven nodes one alone is to hear the first: bob himself, who does not work."""
    announce = AnnounceParameters(first_reach=1)
    names = {f"worker{n}": 1 for n in range(9)}
    world, bob = at_work(town_with(PeerParameters(announce=announce), 7, None, **names))
    world.sent.clear()
    bob.submit(job(find=Find.ANNOUNCE))
    world.elapse(0.9)
    assert said(world)["SpreadWant"] == 0
    world.elapse(3)
    assert succeeded(bob) == 1
    assert said(world)["SpreadWant"] == 10
    assert said(world)["PlacementRequest"] == 0


def test_a_relay_hands_a_want_to_a_worker_that_has_announced_room() -> None:
    """Where more than those that hear it are to answer; the worker answers once."""
    world = crowd(9)
    world.elapse(5)
    world.sent.clear()
    raw = want_of(world.nodes["bob"], reach=3, places=16)
    deliver(world, "gate", "bob", work.SpreadWant(raw, 0, 1))
    [handed] = [each for each in world.sent if isinstance(each.message, work.HandWant)]
    assert said(world)["Offer"] == 1
    deliver(world, handed.receiver, "bob", work.SpreadWant(raw, 0, 1))
    assert said(world)["Offer"] == 0
    deliver(world, "gate", "worker1", work.SpreadWant(raw, 0, 1))
    assert not {"HandWant", "Offer"} & said(world).keys()


def test_a_notice_brings_the_worker_that_becomes_free() -> None:
    world = town(run=taking(12), alice=1)
    world.add("carol").submit(job(job_id="carol's"))
    world.elapse(5)
    _, bob = at_work(world, job(find=Find.DHT_NOTICE), for_s=1)
    assert said(world)["LeaveWant"] > 0
    assert peer_of(bob).scheduler.groups
    world.elapse(28)
    assert succeeded(bob) == 1
    assert said(world)["HandWant"] > 0


@pytest.mark.at_length
def test_no_task_runs_twice_however_many_offer() -> None:
    world = crowd(6, cores=2)
    ran: Counter[bytes] = Counter()

    def run(running: Running) -> tuple[float, Outcome]:
        ran[running.work.payload] += 1
        return 2.0, Succeeded(running.work.payload)

    world.run = run
    _, bob = at_work(world, job(15, find=Find.ANNOUNCE), for_s=20)
    assert succeeded(bob) == 15
    assert set(ran.values()) == {1}
    for node in world.nodes.values():
        worker = peer_of(node).worker
        if worker is not None:
            counts = peer_of(node).status(world.moment(node)).offers
            assert counts.sent == counts.won + counts.lost


def test_where_none_offers_the_dht_tells_why() -> None:
    world, bob = at_work(town(alice=1))
    bob.submit(job(needs=replace(NEEDS, cpu_milli=64_000), find=Find.ANNOUNCE))
    world.elapse(20)
    [told] = only(bob.reported, TaskUnplaceable)
    assert told.reasons
    assert said(world)["SpreadWant"] == 2


def test_a_worker_that_scope_or_price_forbids_is_given_back() -> None:
    world, bob = at_work(town(alice=1), job(scope=Scope.ORG, find=Find.ANNOUNCE), for_s=2)
    assert said(world)["Offer"] == said(world)["Release"] == 1
    assert succeeded(bob) == 0


def test_a_worker_that_takes_no_such_tasks_says_nothing() -> None:
    world = World(7)
    world.add("gate")
    nothing = ScopeShares((0,) * len(Scope))
    world.add("alice", serve=replace(world.machine(), shares=nothing))
    bob = world.add("bob")
    world.elapse(3)
    bob.submit(job(find=Find.ANNOUNCE))
    world.elapse(0.8)
    assert said(world)["SpreadWant"] == 2
    assert said(world)["Offer"] == said(world)["RequestRefused"] == 0


def test_a_node_that_works_itself_hears_its_own_want() -> None:
    world = World(7)
    bob = world.add("bob", serve=world.machine())
    world.elapse(3)
    bob.submit(job(find=Find.ANNOUNCE))
    world.elapse(3)
    assert succeeded(bob) == 1


def test_another_relay_takes_the_place_of_one_that_died() -> None:
    world = crowd(15)
    world.elapse(10)
    for number in range(0, 15, 3):
        world.kill(world.nodes[f"worker{number}"])
    bob, before = world.nodes["bob"], len(world.sent)
    world.deliver(bob, Received(bob.contact, work.HandWant(b"nonsense")))
    bob.submit(job(find=Find.ANNOUNCE))
    world.elapse(3)
    heard = {e.receiver for e in world.sent[before:] if isinstance(e.message, work.SpreadWant)}
    assert len(heard & {f"worker{n}" for n in range(15) if n % 3}) == 10
    assert succeeded(bob) == 1


# -- those who should get nothing -----------------------------------------------------------


def deliver(world: World, to: str, sender: str, message: work.WorkMessage) -> None:
    world.sent.clear()
    world.deliver(world.nodes[to], Received(world.nodes[sender].contact, message))
    world.elapse(1)


@pytest.mark.at_length
def test_one_message_leads_to_as_many_as_it_may_and_no_more() -> None:
    """A relay that sends bob's want to all, again and again, gains nothing."""
    world = crowd(9)
    world.elapse(5)
    raw = want_of(world.nodes["bob"], reach=3)
    deliver(world, "worker0", "worker1", work.SpreadWant(raw, 0, 300))
    assert said(world)["SpreadWant"] <= 2
    for number in range(9):
        deliver(world, f"worker{number}", "worker1", work.SpreadWant(raw, 0, 300))
    told = Counter(e.receiver for e in world.sent if isinstance(e.message, work.Offer))
    assert told.keys() <= {"bob"}
    deliver(world, "worker0", "worker1", work.SpreadWant(raw, 0, 300))
    assert said(world)["SpreadWant"] == said(world)["Offer"] == 0


@pytest.mark.at_length
def test_who_does_not_work_has_no_room_or_distrusts_the_author_offers_nothing() -> None:
    world, bob = at_work(town(run=taking(30), alice=1), job(), for_s=3)
    for name in ("gate", "alice"):
        deliver(world, name, "bob", work.HandWant(want_of(bob)))
        assert said(world)["Offer"] == said(world)["RequestRefused"] == 0
    world = town(alice=1)
    alice, bob = world.nodes["alice"], world.nodes["bob"]
    for _ in range(20):
        peer_of(alice).reputation.note(bob.identity.peer_id, Experience.WRONG, world.moment(alice))
    deliver(world, "alice", "bob", work.HandWant(want_of(bob)))
    assert said(world)["Offer"] == 0


def offer(number: int, profile: bytes) -> work.Offer:
    holds = HeldResources(1000, 10**9)
    return work.Offer(number, "lease", holds, 0, 1500, profile=profile)


def test_offers_that_were_not_called_for_are_given_back() -> None:
    """Without a call; of another's profile, of none, and of one that is gone."""
    world = town(run=taking(30), alice=1, carol=1)
    bob, alice, carol = (world.nodes[name] for name in ("bob", "alice", "carol"))
    own = {node.name: worker_of(node).announced or b"" for node in (alice, carol)}
    deliver(world, "bob", "alice", offer(1, own["alice"]))
    assert said(world)["Release"] == 1
    bob.submit(job(9, find=Find.ANNOUNCE))
    world.elapse(1)
    [number, *_] = peer_of(bob).lessee.calls
    for profile in (own["carol"], b"no profile"):
        deliver(world, "bob", "alice", offer(number, profile))
        assert said(world)["Release"] == 1
    bob.cancel("job")
    world.elapse(15)
    deliver(world, "bob", "alice", offer(number, own["alice"]))
    assert said(world)["Release"] == 1


def test_an_offer_that_comes_once_no_task_waits_is_given_back() -> None:
    world, bob = at_work(town(run=taking(30), alice=1), job(find=Find.ANNOUNCE), for_s=1)
    [number] = peer_of(bob).lessee.calls
    deliver(world, "bob", "alice", offer(number, worker_of(world.nodes["alice"]).announced or b""))
    assert said(world)["Release"] == 1


# -- the parts ------------------------------------------------------------------------------


def test_calls_are_bounded() -> None:
    lessee = Lessee(b"", random.Random(7))
    numbers = [lessee.call(SchedulingKey(NEEDS), 1, 1, 60.0) for _ in range(MAX_CALLS + 1)]
    assert lessee.called(numbers[0], at(0)) is None
    assert lessee.called(numbers[1], at(0)) is not None
    assert lessee.called(numbers[1], at(60)) is None
    lessee.leave("leave", at(0))
    assert lessee.called(numbers[1], at(0)) is None


def test_a_node_that_is_not_reached_yet_wants_nothing_of_others() -> None:
    parameters = AnnounceParameters()
    relay = Relay(BOB.peer_id, lambda: (), 20, random.Random(7), parameters)
    lessee = Lessee(b"", random.Random(7))
    caller = Caller(identity("bob"), lessee, relay, lambda: None, lambda: 1, parameters)
    key = SchedulingKey(NEEDS)
    assert caller.spread(key, 1, 0, at(0), "a test") == ()
    assert caller.leave(key, 1, (BOB,), at(0), "a test") == ()
    assert not lessee.calls


def test_a_job_that_comes_before_the_node_has_joined_reads_the_dht() -> None:
    bob = town().nodes["bob"].born(0)
    effects = bob.handle(Submit(job(find=Find.ANNOUNCE)), at(0))
    assert not any(isinstance(effect, Send) for effect in effects)
