"""A new charter is with everyone soon, and whom it bans is refused everywhere."""

from dataclasses import replace
from typing import Any

import pytest

from formation_p2p.core.effects import Contact
from formation_p2p.dht.core import messages as kad
from formation_p2p.dht.core.operations import OperationId, Published
from formation_p2p.dht.core.rpc import RequestReceived, ResponseReceived, SendRequest, SendResponse
from formation_p2p.jobs.core.job_events import TaskSucceeded, TaskUnplaceable
from formation_p2p.leases.core.held_lease import HeldLease, HeldState
from formation_p2p.peer.core.charter_news import (
    ASK_EVERY_S,
    EMPTY_S,
    LOOK_S,
    SEARCH_S,
    CharterAdopted,
    CharterNews,
    CharterSpread,
)
from formation_p2p.peer.core.events import OfferCharter
from formation_p2p.peer.core.placement_context import PlacementContext
from formation_p2p.placement.core.round_trips import RoundTrips
from formation_p2p.placement.core.task_options import SchedulingKey
from formation_p2p.trust.core.charter import Region
from formation_p2p.trust.core.grants import Rights, issue, read_grant
from formation_p2p.trust.core.membership import CharterShelf, Membership, charter_name
from formation_p2p.trust.core.network import Circles
from formation_p2p.trust.core.reputation import Reputation
from formation_p2p.trust.core.root_keys import KeySet
from formation_p2p.trust.core.signed_charter import draft, sign
from formation_p2p.workload.core.hints import Hints, Kind
from formation_p2p.workload.core.scope import Place
from simulations.simulator.node import SimNode
from simulations.simulator.world import EPOCH_UNIX_S, World
from tests.support.charters import charter_of
from tests.support.placement_world import profile
from tests.support.stories import ALICE, CAROL, NEEDS, ends, identity, job, peer_of


def town(seed: int = 7, workers: int = 6) -> tuple[World, list[SimNode]]:
    world = World(seed)
    nodes = [world.add("gate"), world.add("bob")]
    nodes += [world.add(f"w{n}", serve=world.machine(cpu=2)) for n in range(workers)]
    world.elapse(10)
    return world, nodes


def versions(nodes: list[SimNode]) -> set[int]:
    return {peer_of(node).membership.version for node in nodes}


@pytest.mark.at_length
def test_a_charter_that_one_node_was_given_is_adopted_by_all() -> None:
    world, nodes = town()
    first = charter_of(world)
    world.deliver(nodes[3], OfferCharter(first.raw))
    world.elapse(5)
    spread = [each for each in nodes[3].told if isinstance(each, CharterSpread)]
    assert [(each.version, each.holders > 3, each.refused) for each in spread] == [(1, True, "")]
    world.elapse(60)
    assert versions(nodes) == {1}
    assert all(any(isinstance(x, CharterAdopted) for x in node.told) for node in nodes)
    # The next one goes through gossip alone: it was written to one node.
    second = charter_of(world, first, identities=3)
    peer_of(nodes[4]).membership.adopt(second.raw, world.moment(nodes[4]))
    world.elapse(120)
    assert versions(nodes) == {2}
    assert peer_of(nodes[0]).membership.share_of("acme") == 1
    # And a newcomer has it within a minute or so, also one that only submits.
    late = world.add("late")
    world.elapse(60)
    assert versions([late]) == {2}


@pytest.mark.at_length
def test_of_two_charters_of_one_version_all_come_to_go_by_the_same() -> None:
    """The signers made both, and half of the nodes have adopted each."""
    world, nodes = town()
    made = sorted((charter_of(world, identities=n) for n in (3, 5)), key=lambda each: each.digest)
    for number, node in enumerate(nodes):
        peer_of(node).membership.adopt(made[number % 2].raw, world.moment(node))
    world.elapse(SEARCH_S + 2 * LOOK_S)
    assert {peer_of(node).membership.signed for node in nodes} == {made[0]}


def test_a_charter_that_is_none_is_refused_and_says_why() -> None:
    world, nodes = town(workers=1)
    forged = sign(
        draft(charter_of(world).charter, KeySet(1, (world.root.public_key,))), nodes[0].identity
    )
    world.deliver(nodes[0], OfferCharter(forged.raw))
    (told,) = (each for each in nodes[0].told if isinstance(each, CharterSpread))
    assert told.holders == 0
    assert "0 of 1 signatures" in told.refused
    assert versions(nodes) == {0}
    assert peer_of(nodes[0]).membership.share_of("acme") == 1
    # A search that ends here, and nothing of which is this part's.
    news = peer_of(nodes[0]).charters
    assert not news.ended(Published(OperationId(10**6), ()), world.moment(nodes[0]))


def test_leases_of_a_banned_peer_end_at_the_next_renewal_and_it_gets_no_more() -> None:
    world = World(3, run=lambda running: (300.0, _never()))
    gate, bob, carol = world.add("gate"), world.add("bob"), world.add("carol")
    alice = world.add("alice", serve=world.machine(cpu=4))
    world.elapse(5)
    bob.submit(job(2, job_id="bobs"))
    carol.submit(job(2, job_id="carols"))
    world.elapse(5)
    assert len(alice.running) == 4
    banned = charter_of(world, banned_keys=frozenset({bob.identity.peer_id}))
    world.deliver(gate, OfferCharter(banned.raw))
    world.elapse(10)
    shares = [peer_of(x).leases_of(alice.identity.peer_id) for x in (bob, carol, gate)]
    assert shares == [False, True, False]
    assert not peer_of(alice).leases_of(carol.identity.peer_id)
    assert {running.work.attempt_id[:4] for running in alice.running.values()} == {"caro"}
    bob.submit(job(1, job_id="more"))
    world.elapse(30)
    assert len(alice.running) == 2
    refused = [each for each in ends(bob).values() if isinstance(each, TaskUnplaceable)]
    assert "bans this peer" in str(refused)


def test_leases_at_a_banned_worker_are_lost_and_its_tasks_run_elsewhere() -> None:
    world = World(5, run=lambda running: (20.0, _done()))
    gate, bob = world.add("gate"), world.add("bob")
    workers = [world.add(name, serve=world.machine(cpu=1)) for name in ("alice", "dave")]
    world.elapse(5)
    bob.submit(job(2, job_id="j"))
    world.elapse(3)
    first = workers[0]
    assert first.running
    banned = charter_of(world, banned_keys=frozenset({first.identity.peer_id}))
    world.deliver(bob, OfferCharter(banned.raw))
    world.elapse(120)
    done = [each for each in bob.reported if isinstance(each, TaskSucceeded)]
    assert len(done) == 2
    assert {each.worker for each in done} == {workers[1].identity.peer_id}
    # Its profile is with nobody any more.
    assert not first.running
    assert (
        peer_of(gate).dht.records.value(
            b"/formation/" + first.identity.peer_id.encode(), world.moment(gate)
        )
        is None
    )


def test_a_worker_whose_grant_was_forgotten_is_in_no_region() -> None:
    world = World(6)
    bob = world.add("bob", rights=Rights(int(EPOCH_UNIX_S) + 9999, place=Place(org="acme")))
    own, network, now = bob.identity.peer_id, bob.network(), world.moment(bob)
    trust = Membership(world.root.public_key)
    regions = (Region("eu", frozenset({"acme"})),)
    trust.adopt(charter_of(world, regions=regions).raw, now)
    parts = trust, Reputation(own), Circles(own, network), RoundTrips(own)
    context = PlacementContext(network, *parts, max_grants=1)
    hints = Hints(region="eu", required={Kind.REGION})
    terms = SchedulingKey(NEEDS, hints=hints)

    def lease_of(of: Contact) -> HeldLease:
        grant = issue(world.root, network.rights, of.peer_id)
        context.candidate(replace(profile(of), grant=grant), terms, now)
        return HeldLease("lease", of, terms, HeldState.HELD, 9.0)

    first = lease_of(ALICE)
    assert context.refuses(first, now) is None
    second = lease_of(CAROL)
    assert context.refuses(second, now) is None
    assert "does not have it in eu any more" in str(context.refuses(first, now))


@pytest.mark.at_length
def test_a_node_is_told_that_the_charter_bans_it_and_others_are_not() -> None:
    world, (gate, bob, *workers) = town()
    peers = charter_of(world, banned_keys=frozenset({workers[0].identity.peer_id}))
    world.deliver(gate, OfferCharter(peers.raw))
    world.elapse(60)
    invitation = read_grant(bob.network().grant, world.root.public_key).invitation
    all_of_it = charter_of(world, peers, banned_invitations=frozenset({invitation}))
    world.deliver(gate, OfferCharter(all_of_it.raw))
    world.elapse(60)

    def bans(node: SimNode) -> list[str]:
        return [each.banned for each in node.told if isinstance(each, CharterAdopted)]

    assert bans(workers[0])[0] == "the charter (version 1) bans this peer"
    assert bans(bob) == ["", "the charter (version 2) bans the invitation of the grant"]
    assert bans(gate) == ["", ""]


def test_a_bearer_of_a_foreign_grant_is_banned_by_its_key_alone() -> None:
    world = World(4)
    membership = Membership(world.root.public_key)
    assert membership.bans_bearer(ALICE.peer_id, b"") is None
    banned = charter_of(world, banned_keys=frozenset({ALICE.peer_id}))
    membership.adopt(banned.raw, world.moment(world.add("gate")))
    assert membership.bans_bearer(ALICE.peer_id, b"") is not None
    assert membership.bans_bearer(CAROL.peer_id, b"") is None


def _done() -> Any:
    from formation_p2p.workload.core.outcome import Succeeded

    return Succeeded(b"")


_never = _done


# -- hearing of it, and hostile peers -------------------------------------------------------------


class Listener:
    """The news of one node of a world, with what it asks."""

    def __init__(self) -> None:
        self.world, nodes = town(workers=2)
        self.node, self.other = nodes[0], nodes[2]
        self.news: CharterNews = peer_of(self.node).charters

    def asked(self, cause: str = "it has a newer charter") -> int:
        return self.node.messages[cause]


@pytest.mark.at_length
def test_a_claim_without_a_charter_is_followed_once() -> None:
    listener = Listener()
    world, node = listener.world, listener.node
    liar = listener.other.contact
    for _ in range(100):
        listener.news.heard(liar, 2**40, world.moment(node))
        world.elapse(2.0)
        world.deliver(node, OfferCharter(b""))  # any event: what was asked goes out
    assert listener.asked() == 2  # a request and its answer
    assert versions([node]) == {0}
    world.elapse(EMPTY_S)
    listener.news.heard(liar, 2**40, world.moment(node))
    world.elapse(2.0)
    world.deliver(node, OfferCharter(b""))
    world.elapse(2.0)
    assert listener.asked() == 4


def test_a_flood_of_claims_by_many_costs_a_request_a_second() -> None:
    listener = Listener()
    world, node = listener.world, listener.node
    for number in range(50):
        claimed = Contact(identity(f"liar{number}").peer_id)
        listener.news.heard(claimed, 9, world.moment(node))
    world.deliver(node, OfferCharter(b""))
    world.elapse(ASK_EVERY_S / 2)
    assert listener.asked() <= 1


def test_so_many_peers_that_brought_nothing_are_remembered() -> None:
    listener = Listener()
    world, node = listener.world, listener.node
    peer = peer_of(node)
    news = CharterNews(
        peer.membership,
        CharterShelf(peer.membership),
        peer.dht,
        node.identity.peer_id,
        lambda: b"",
        max_empty=1,
    )
    first, second = (world.nodes[name].contact for name in ("w0", "w1"))
    asked = []
    for liar in (first, second, first, first):
        peer.dht.take()
        news.heard(liar, 9, world.moment(node))
        effects, _ = peer.dht.take()
        asked.append([x.to for x in effects if isinstance(x, SendRequest)])
        for sent in effects:
            if isinstance(sent, SendRequest):
                empty = ResponseReceived(sent.request_id, sent.to, kad.Value(None, ()))
                peer.dht.handle(empty, world.moment(node))
        for ended in peer.dht.take()[1]:
            news.ended(ended, world.moment(node))
        world.elapse(2.0)
    assert asked == [[first], [second], [first], []]


def test_an_idle_node_asks_a_neighbour_now_and_then() -> None:
    world = World(8)
    gate, idle = world.add("gate"), world.add("idle")
    world.elapse(2)
    peer_of(gate).membership.adopt(charter_of(world).raw, world.moment(gate))
    world.elapse(2.5 * LOOK_S)
    assert versions([idle]) == {1}
    world.elapse(2 * SEARCH_S)
    # One peer is asked each time: soon after the start, and then every SEARCH_S or so.
    assert 2 <= idle.messages["look for the charter"] <= 4


def test_shelf_keeps_one_name_and_answers_with_the_charter() -> None:
    world, nodes = town(workers=1)
    node, now = nodes[0], world.moment(nodes[0])
    first = charter_of(world)
    name = charter_name(peer_of(node).membership.network_id)
    shelf = CharterShelf(peer_of(node).membership)
    assert shelf.value(name, now) is None
    assert not shelf.keep(b"/formation/charter/other", first.raw, now)
    assert shelf.keep(name, first.raw, now)
    assert shelf.keep(name, first.raw, now)
    assert shelf.value(name, now) == first.raw
    assert shelf.value(b"/formation/charter/other", now) is None
    assert not shelf.keep(name, charter_of(world, identities=2).raw + b"x", now)
    assert "charter" in shelf.refused
    assert shelf.providers(kad.GetProviders(name), now) == kad.Providers(())
    shelf.expire(now)
    # A stranger that writes a good one spreads it, and one that reads it gets it.
    put = RequestReceived(1, Contact(nodes[1].identity.peer_id), kad.PutValue(name, first.raw))
    (answer,) = (x for x in node.peer.handle(put, now) if isinstance(x, SendResponse))
    assert (answer.message, answer.charter) == (kad.Stored(name, first.raw), 1)
