"""Peers on the same LAN: a node joins through them whatever its gates do."""

from __future__ import annotations

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import peer_id_to_bytes
from formation_p2p.dht.core.messages import FindNode, Nodes, PutValue
from formation_p2p.dht.core.operations import OperationId
from formation_p2p.dht.core.parameters import DhtParameters
from formation_p2p.dht.core.rpc import SendRequest
from tests.support import dht_world as world
from tests.support.dht_world import NOW, Alone

DHT = DhtParameters()
ALICE, BOB, CAROL, GATE = map(world.contact, ("alice", "bob", "carol", "gate"))


def requests(alone: Alone) -> list[SendRequest]:
    effects, _ = alone.dht.take()
    return [effect for effect in effects if isinstance(effect, SendRequest)]


def targets(alone: Alone) -> list[Contact]:
    return [request.to for request in requests(alone)]


def ended(alone: Alone) -> set[OperationId]:
    return {each.operation for each in alone.dht.take()[1]}


def test_without_a_gate_the_node_joins_through_those_it_finds() -> None:
    alice = Alone()
    alice.dht.bootstrap([], NOW, "join")
    assert targets(alice) == []
    alice.dht.found_nearby([ALICE], NOW)  # which is itself
    assert targets(alice) == []
    alice.dht.found_nearby([ALICE, BOB], NOW)
    (sent,) = requests(alice)
    assert (sent.to, sent.message) == (BOB, FindNode(peer_id_to_bytes(ALICE.peer_id)))
    alice.respond(sent, Nodes((CAROL,)))
    assert targets(alice) == [CAROL]
    assert BOB.peer_id in alice.dht.table


def test_whom_it_finds_later_is_pinged_where_there_is_room() -> None:
    alice = Alone()
    alice.dht.table.saw(BOB, NOW.mono_s)
    alice.dht.found_nearby([BOB, CAROL], NOW)
    (sent,) = requests(alice)
    assert sent.to == CAROL
    alice.respond(sent, Nodes(()))
    assert CAROL.peer_id in alice.dht.table


def test_those_found_are_asked_again_while_no_peer_is_known() -> None:
    alice = Alone()
    alice.dht.bootstrap([], NOW, "join")
    alice.dht.found_nearby([BOB], NOW)
    for sent in requests(alice):
        alice.time_out(sent)
    later = Moment(NOW.mono_s + 60, NOW.unix_s + 60)
    alice.dht.tick(later)
    assert targets(alice) == [BOB]


def test_as_many_are_kept_as_peers_of_before() -> None:
    alice = Alone()
    alice.dht.bootstrap([], NOW, "join")
    named = [world.contact(f"stranger {number}") for number in range(DHT.max_before)]
    alice.dht.found_nearby([BOB, *named], NOW)
    alice.dht.take()
    later = Moment(NOW.mono_s + 60, NOW.unix_s + 60)
    alice.dht.tick(later)
    asked = set()
    while sent := requests(alice):
        for each in sent:
            asked.add(each.to)
            alice.time_out(each)
    assert asked == set(named)


def test_searches_that_wait_for_dead_gates_go_through_the_first_peer() -> None:
    alice = Alone()
    joining = alice.dht.bootstrap([GATE], NOW, "join")
    search = alice.dht.search(FindNode(b"x"), NOW, "test")
    publish = alice.dht.operations.deliver([(GATE, PutValue(b"x", b"y"))], NOW, "test")
    to_gate = requests(alice)
    assert [sent.to for sent in to_gate] == [GATE, GATE, GATE]
    alice.dht.found_nearby([BOB], NOW)
    (first,) = requests(alice)
    alice.respond(first, Nodes(()))
    again = requests(alice)
    assert [sent.to for sent in again] == [BOB, BOB]
    for sent in again:
        alice.respond(sent, Nodes(()))
    assert ended(alice) == {joining, search}
    for sent in to_gate:
        alice.time_out(sent)
    assert ended(alice) == {publish}


def test_a_search_that_waits_for_the_peer_that_answers_goes_on() -> None:
    alice = Alone()
    alice.dht.bootstrap([GATE], NOW, "join")
    alice.dht.search(FindNode(b"x"), NOW, "test")
    join, search = requests(alice)
    alice.respond(join, Nodes(()))
    assert requests(alice) == []
    alice.respond(search, Nodes(()))
    assert requests(alice) == []
