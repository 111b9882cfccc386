"""A town of circles and distances: alice, carol and dave work; bob and a cook have tasks."""

from dataclasses import replace

import pytest

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.core.refusals import Denied, Infeasible, OutOfScope, Refusal, Unwanted
from formation_p2p.jobs.core.job_events import TaskSucceeded, TaskUnplaceable
from formation_p2p.leases.core.messages import RequestRefused
from formation_p2p.peer.core.events import BlobsChanged, Explain, Measured
from formation_p2p.placement.core.round_trips import MAX_PEERS
from formation_p2p.placement.core.task_options import SchedulingKey
from formation_p2p.trust.core.grants import Rights
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.hints import Hints
from formation_p2p.workload.core.outcome import Succeeded
from formation_p2p.workload.core.scope import NOWHERE, Place, Scope, ScopeShares
from simulations.simulator.node import SimNode
from simulations.simulator.world import EPOCH_UNIX_S, World
from tests.support.stories import NEEDS, job, named, only, peer_of, workers_of

KITCHEN = Place(cell="kitchen", org="acme")
GARAGE = Place(cell="garage", org="acme")
DATA = Blob(Cid(RAW, digest_of(b"data")), 1000)


def rights(place: Place) -> Rights:
    return Rights(int(EPOCH_UNIX_S) + 10**6, place=place)


def worker(world: World, name: str, place: Place, *shares: str) -> SimNode:
    """Of eight cores."""
    serve = replace(world.machine(cpu=8), shares=ScopeShares.parse(shares))
    return world.add(name, serve=serve, rights=rights(place))


def refusals(node: SimNode) -> dict[str, Refusal]:
    """Why the one task of a node runs nowhere."""
    (unplaceable,) = only(node.reported, TaskUnplaceable)
    return named(node.world, unplaceable.reasons)


# -- scopes ---------------------------------------------------------------------------------------


def test_a_machine_gives_each_circle_its_share_and_no_more() -> None:
    world = World(7, lambda running: (10.0, Succeeded(b"")))
    world.add("gate")
    alice = worker(world, "alice", KITCHEN, "commons=0.25")
    cook = world.add("cook", rights=rights(KITCHEN))
    bob = world.add("bob")
    world.elapse(3)
    bob.submit(job(6, job_id="bob's"))
    cook.submit(job(4, job_id="cook's"))
    world.elapse(8)
    # By what each showed for his leases.
    shown = [peer_of(alice).grant_of_owner(x.identity.peer_id) for x in (cook, bob, alice)]
    assert shown == [peer_of(cook).network.grant, peer_of(bob).network.grant, None]
    assert peer_of(bob).grant_of_owner(cook.identity.peer_id) is None
    cpu_milli = sum(running.under.needs.cpu_milli for running in alice.running.values())
    assert cpu_milli == 6000  # two cores for bob, and four for the cook
    world.elapse(60)
    assert len(only(bob.reported, TaskSucceeded)) == 6
    assert len(only(cook.reported, TaskSucceeded)) == 4
    refused = [each.message for each in world.sent if isinstance(each.message, RequestRefused)]
    assert {each.refusal for each in refused} == {Infeasible("share.commons", 1000, 0)}


def test_a_machine_that_is_closed_to_a_circle_says_so_to_its_members() -> None:
    world = World(7)
    world.add("gate")
    worker(world, "alice", KITCHEN, "commons=0")
    cook = world.add("cook", rights=rights(KITCHEN))
    bob = world.add("bob")
    mallory = world.add("mallory", stranger=True)
    world.elapse(3)
    for node in (cook, bob, mallory):
        node.submit(job(1, job_id=node.name))
    world.elapse(60)
    assert workers_of(cook) == ["alice"]
    closed = Denied("submit", "this machine takes no tasks of scope commons")
    assert refusals(bob) == {"alice": closed}
    assert refusals(mallory)["alice"] != closed  # a stranger learns nothing


def test_a_job_goes_no_farther_from_home_than_it_may() -> None:
    world = World(7)
    world.add("gate")
    worker(world, "alice", GARAGE)
    worker(world, "carol", NOWHERE)
    cook = world.add("cook", rights=rights(KITCHEN))
    world.elapse(3)
    cook.submit(job(8, scope=Scope.ORG))
    world.elapse(60)
    assert set(workers_of(cook)) == {"alice"}
    cook.submit(job(1, job_id="secret", scope=Scope.CELL))
    world.elapse(60)
    assert refusals(cook) == {
        "alice": OutOfScope("org", "cell"),
        "carol": OutOfScope("commons", "cell"),
    }


def test_a_node_that_works_is_as_local_to_itself_as_can_be() -> None:
    world = World(7)
    world.add("gate")
    worker(world, "alice", NOWHERE)
    bob = worker(world, "bob", NOWHERE, "commons=0")
    world.elapse(3)
    bob.submit(job(2, scope=Scope.LOCAL))
    world.elapse(60)
    assert set(workers_of(bob)) == {"bob"}


# -- hints ----------------------------------------------------------------------------------------


def town() -> tuple[World, SimNode]:
    world = World(7)
    world.add("gate")
    for name in ("alice", "carol", "dave"):
        worker(world, name, NOWHERE)
    bob = world.add("bob")
    world.elapse(3)
    return world, bob


def test_tasks_go_where_their_data_is_though_nobody_knew_before_the_offers() -> None:
    world, bob = town()
    for name in ("alice", "carol", "dave"):
        here = world.nodes[name]
        world.deliver(here, BlobsChanged(here=(DATA.cid,)))
        bob.submit(job(1, job_id=name, hints=Hints(near=(DATA,))))
        world.elapse(30)
        world.deliver(here, BlobsChanged(gone=(DATA.cid,)))
    assert workers_of(bob) == ["alice", "carol", "dave"]


@pytest.mark.at_length
def test_who_claims_data_that_it_has_not_takes_no_task_from_whoever_the_reference_names() -> None:
    world, bob = town()
    alice, carol = (world.nodes[name] for name in ("alice", "carol"))
    for node in (alice, carol):  # of whom alice lies
        world.deliver(node, BlobsChanged(here=(DATA.cid,)))
    carols = replace(DATA, sources=(Contact(carol.identity.peer_id),))
    for n in range(20):
        bob.submit(job(1, job_id=str(n), hints=Hints(near=(carols,))))
        world.elapse(12)
    assert workers_of(bob) == ["carol"] * 20


def test_data_that_is_required_and_nowhere_is_the_reason_why_a_task_ends() -> None:
    world, bob = town()
    hints = Hints(near=(DATA,), required=frozenset({"near"}))
    bob.submit(job(1, job_id="early", hints=hints))
    world.elapse(30)
    (unplaceable,) = only(bob.reported, TaskUnplaceable)
    assert {why for _, why in unplaceable.reasons} == {Unwanted("near", "it has 0B of 1000B")}
    world.deliver(world.nodes["dave"], BlobsChanged(here=(DATA.cid,)))
    bob.submit(job(1, job_id="late", hints=hints))
    world.elapse(30)
    assert workers_of(bob) == ["dave"]


@pytest.mark.at_length
def test_who_is_near_is_what_was_measured() -> None:
    world, bob = town()
    for name, rtt_us in (("alice", 80_000), ("carol", 200_000), ("dave", 20_000)):
        world.deliver(bob, Measured(world.nodes[name].identity.peer_id, rtt_us))
    bob.submit(job(1, hints=Hints(max_rtt_ms=50)))
    world.elapse(30)
    assert workers_of(bob) == ["dave"]
    hints = Hints(max_rtt_ms=100, required=frozenset({"rtt"}))
    bob.submit(job(30, job_id="more", hints=hints))
    world.elapse(60)
    assert set(workers_of(bob)) == {"alice", "dave"}


def test_who_is_near_stays_known_whoever_else_connects() -> None:
    world, bob = town()
    for name, rtt_us in (("alice", 80_000), ("carol", 200_000), ("dave", 20_000)):
        world.deliver(bob, Measured(world.nodes[name].identity.peer_id, rtt_us))
    hints = Hints(max_rtt_ms=50)
    bob.submit(job(1, job_id="before", hints=hints))
    world.elapse(30)
    for number in range(MAX_PEERS):
        world.deliver(bob, Measured(PeerId(f"stranger {number}"), 1000))
    bob.submit(job(1, job_id="after", hints=hints))
    world.elapse(30)
    assert workers_of(bob) == ["dave", "dave"]


def test_a_task_keeps_company_or_keeps_away() -> None:
    world, bob = town()
    bob.submit(job(1, job_id="first", hints=Hints(prefer=(end_of(world, "carol"),))))
    world.elapse(0.5)
    first = ("first/0",)
    bob.submit(job(1, job_id="with", hints=Hints(with_tasks=first)))
    bob.submit(job(1, job_id="away", hints=Hints(away_from=first)))
    world.elapse(30)
    placed = workers_of(bob)
    assert placed[:2] == ["carol", "carol"]
    assert placed[2] != "carol"


def test_explain_tells_which_hint_speaks_against_whom() -> None:
    world, bob = town()
    hints = Hints(avoid=(end_of(world, "carol"),), required=frozenset({"avoid"}))
    world.deliver(bob, Explain(0, SchedulingKey(NEEDS, hints=hints), "a task"))
    world.elapse(5)
    (explained,) = bob.explained
    assert named(world, explained.decision.rejected) == {
        "carol": Unwanted("avoid", "it is one of those named")
    }


def end_of(world: World, name: str) -> str:
    """A peer id as tables show it."""
    return world.nodes[name].identity.peer_id[-8:]
