"""How a node keeps its table true, and finds out whether others can dial it."""

import pytest

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import peer_id_to_bytes
from formation_p2p.core.keyspace import key_of
from formation_p2p.dht.core import messages
from formation_p2p.dht.core.messages import FindNode, Nodes
from formation_p2p.dht.core.parameters import DhtParameters
from formation_p2p.dht.core.reachability import Reach
from formation_p2p.dht.core.rpc import (
    Advertise,
    DhtEffect,
    InboundConnection,
    PeerIdentified,
    ProbeReachability,
    ReachabilityProbed,
    RequestReceived,
    ResponseReceived,
    SendRequest,
    SendResponse,
)
from simulations.simulator.world import World
from tests.support import dht_world as world
from tests.support.dht_messages import parse_reply, parse_request
from tests.support.dht_world import NOW, Alone, DhtWorld, common_prefix, find_closest, village

DHT = DhtParameters()

ALICE, BOB, CAROL, DAVE = map(world.contact, ("alice", "bob", "carol", "dave"))
HERE = ALICE.addresses


def after(seconds: float) -> Moment:
    return Moment(NOW.mono_s + seconds, NOW.unix_s + seconds)


def effects_of(alice: Alone) -> list[DhtEffect]:
    effects, completed = alice.dht.take()
    assert completed == []
    return effects


def advertised(effects: list[DhtEffect]) -> list[Reach]:
    return [effect.reach for effect in effects if isinstance(effect, Advertise)]


def pings_back(effects: list[DhtEffect]) -> list[SendRequest]:
    requests = [effect for effect in effects if isinstance(effect, SendRequest)]
    return [sent for sent in requests if sent.message == DIAL_BACK]


DIAL_BACK = FindNode(peer_id_to_bytes(ALICE.peer_id), dial_back=True)


# -- refreshing ---------------------------------------------------------------------------------


def test_two_who_join_in_the_same_moment_know_each_other_soon() -> None:
    town = DhtWorld(seed=1)
    [gate] = town.join("gate")
    pair = [town.add(name) for name in ("alice", "bob")]
    for node in pair:
        node.dht.bootstrap([gate.contact], town.now, "join")
    for node in pair:
        town.perform(node)
    town.elapse(DHT.fill_s + 0.2)
    alice, bob = pair
    assert bob.peer_id in alice.dht.table
    assert alice.peer_id in bob.dht.table


@pytest.mark.at_length
def test_each_bucket_is_looked_into_by_a_key_of_its_own() -> None:
    town = village(1, 32, k=4)
    town.elapse(60)
    node = town.nodes["node 7"]
    depths = {256 - length for _, length in node.dht.table.looks() if length}
    assert len(depths) >= 3
    town.carried.clear()
    town.elapse(DHT.bucket_refresh_s)
    looked_up = {
        common_prefix(key_of(each.message.name), node.identity.key)
        for each in town.carried
        if isinstance(each.message, FindNode) and each.sender == node.name
    }
    assert looked_up - {256} == depths


def test_a_lookup_for_any_purpose_refreshes_its_bucket_if_somebody_answers() -> None:
    """Here the nearest one, that of our own key."""
    alice = Alone(knows=(BOB,))
    name = peer_id_to_bytes(ALICE.peer_id)
    for answers in (False, True):
        find_closest(alice.dht, name, after(5))
        [sent] = [sent for sent in alice.requests() if sent.message == FindNode(name)]
        if answers:
            alice.respond(sent, Nodes(()), after(6))
        else:
            alice.time_out(sent)
            alice.dht.table.saw(BOB, NOW.mono_s)
        alice.dht.take()
        [(looked_s, _)] = alice.dht.table.looks()
        assert looked_s == (after(6).mono_s if answers else float("-inf"))


@pytest.mark.at_length
def test_a_quiet_network_costs_little() -> None:
    town = village(1, 25, k=20)
    town.elapse(2 * DHT.fill_s)
    town.carried.clear()
    town.elapse(DHT.own_refresh_s)
    # Each looks itself up once or twice: 20 requests, and as many replies.
    assert len(town.carried) / 25 < 100


# -- can others dial us? ------------------------------------------------------------------------


def test_a_few_are_asked_to_dial_back_and_the_first_who_can_makes_a_server() -> None:
    alice = Alone(knows=(BOB, CAROL, DAVE, world.contact("eve")))
    alice.dht.moved(HERE, NOW)
    alice.dht.tick(NOW)
    effects = effects_of(alice)
    assert advertised(effects) == [Reach.UNKNOWN]
    asked = pings_back(effects)
    assert len(asked) == DHT.voters
    assert {sent.timeout_s for sent in asked} == {DHT.request_timeout_s + DHT.probe_s}
    alice.respond(asked[0], Nodes((), True))
    assert advertised(effects_of(alice)) == [Reach.SERVER]
    alice.respond(asked[1], Nodes((), True))
    assert advertised(effects_of(alice)) == []


def test_whom_most_cannot_dial_is_a_client_and_asks_again_later() -> None:
    alice = Alone(knows=(BOB, CAROL))
    alice.dht.moved(HERE, NOW)
    alice.dht.tick(NOW)
    for sent in pings_back(effects_of(alice)):
        alice.respond(sent, Nodes((), False))
    assert advertised(effects_of(alice)) == [Reach.CLIENT]
    alice.dht.tick(after(DHT.round_s))
    assert pings_back(effects_of(alice)) == []
    alice.dht.tick(after(DHT.round_s + DHT.client_recheck_s))
    assert len(pings_back(effects_of(alice))) == 2


def test_a_client_keeps_nothing_for_others_to_look_for() -> None:
    alice = Alone(knows=(BOB,))
    assert alice.own.peer_id in {c.peer_id for c in alice.dht.nearest(b"name", (BOB,), 2)}
    alice.dht.moved((), NOW)
    assert alice.dht.nearest(b"name", (BOB,), 2) == (BOB,)


def test_for_one_who_fails_or_does_not_try_another_one_is_asked() -> None:
    alice = Alone(knows=(BOB, CAROL, DAVE, world.contact("eve"), world.contact("frank")))
    alice.dht.moved(HERE, NOW)
    alice.dht.tick(NOW)
    first, second, _ = pings_back(effects_of(alice))
    alice.time_out(first)
    assert len(pings_back(effects_of(alice))) == 1
    alice.respond(second, Nodes(()))
    assert len(pings_back(effects_of(alice))) == 1


def test_a_gate_with_nobody_to_ask_is_a_server_once_somebody_dials_it() -> None:
    alice = Alone()
    alice.dht.moved(HERE, NOW)
    assert advertised(effects_of(alice)) == [Reach.UNKNOWN]
    alice.dht.handle(InboundConnection(BOB.peer_id, "10.9.9.9"), NOW)
    assert advertised(effects_of(alice)) == [Reach.SERVER]


def test_who_asks_for_it_is_dialled_back_and_told() -> None:
    alice = Alone()
    client = Contact(BOB.peer_id)
    for number, reached in ((7, True), (8, False)):
        alice.dht.handle(RequestReceived(number, client, FindNode(b"x", dial_back=True)), NOW)
        assert effects_of(alice) == [ProbeReachability(number, client, DHT.probe_s, cause="")]
        alice.dht.handle(ReachabilityProbed(number, reached), NOW)
        assert effects_of(alice) == [SendResponse(number, Nodes((), reached), cause="")]


def test_who_asks_too_often_is_answered_and_not_dialled() -> None:
    alice = Alone()
    for number in range(DHT.max_probes_of_one):
        alice.dht.handle(RequestReceived(number, BOB, FindNode(b"x", dial_back=True)), NOW)
        alice.dht.handle(ReachabilityProbed(number, True), NOW)
    alice.dht.take()
    alice.dht.handle(RequestReceived(9, Contact(BOB.peer_id), FindNode(b"x", dial_back=True)), NOW)
    assert effects_of(alice) == [SendResponse(9, Nodes(()), cause="")]


def test_one_after_the_other_any_number_is_dialled_back() -> None:
    alice = Alone()
    for number in range(3 * DHT.max_probes_in_flight):
        stranger = Contact(world.contact(f"stranger {number}").peer_id)
        alice.dht.handle(RequestReceived(number, stranger, FindNode(b"x", dial_back=True)), NOW)
        [dial] = effects_of(alice)
        assert isinstance(dial, ProbeReachability)
        alice.dht.handle(ReachabilityProbed(number, False), NOW)
        alice.dht.take()


def test_who_becomes_a_server_is_met_and_who_becomes_a_client_is_let_go() -> None:
    alice = Alone()
    alice.dht.handle(PeerIdentified(BOB), NOW)
    [ping] = alice.requests()
    assert (ping.to, ping.message) == (BOB, FindNode(DIAL_BACK.name))
    alice.respond(ping, Nodes(()))
    assert BOB.peer_id in alice.dht.table
    alice.dht.handle(PeerIdentified(Contact(BOB.peer_id)), NOW)
    assert BOB.peer_id not in alice.dht.table


def test_who_answers_and_does_not_say_where_it_is_does_not_enter() -> None:
    alice = Alone()
    alice.dht.handle(PeerIdentified(BOB), NOW)
    [ping] = alice.requests()
    alice.dht.handle(ResponseReceived(ping.request_id, Contact(BOB.peer_id), Nodes(())), NOW)
    assert BOB.peer_id not in alice.dht.table


def test_it_is_said_on_the_wire_whether_to_dial_back_and_what_came_of_it() -> None:
    plain, asked = FindNode(b"x"), FindNode(b"x", dial_back=True)
    assert [parse_request(messages.encode(each)) for each in (plain, asked)] == [
        plain,
        asked,
    ]
    # To those who know no dialling back it is a question like others.
    assert messages.encode(asked).startswith(messages.encode(plain))
    for reached in (None, True, False):
        nodes = Nodes((BOB,), reached)
        assert parse_reply(messages.encode(nodes), asked) == nodes


# -- a small network ----------------------------------------------------------------------------


def test_whom_nobody_can_dial_gets_into_nobodys_table_and_finds_its_way_all_the_same() -> None:
    town = World(seed=1)
    town.undialable = {"carol"}
    for name in ("gate", "alice", "bob", "carol", "dave"):
        town.add(name)
        town.elapse(1)
    town.elapse(30)
    ids = {name: node.identity.peer_id for name, node in town.nodes.items()}
    for name, node in town.nodes.items():
        known = {contact.peer_id for contact in node.peer.dht.table}
        assert known == {ids[other] for other in ids if other not in (name, "carol")}
