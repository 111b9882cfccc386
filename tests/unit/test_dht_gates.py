"""Gates that are gone and come back, and whom to ask where none answers."""

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import peer_id_to_bytes
from formation_p2p.dht.core.gates import Gates
from formation_p2p.dht.core.messages import FindNode, Nodes, Ping, PutValue
from formation_p2p.dht.core.operations import OperationId
from formation_p2p.dht.core.parameters import DhtParameters
from formation_p2p.dht.core.rpc import PeerIdentified, RequestReceived, SendRequest
from tests.support import dht_world as world
from tests.support.dht_world import NOW, Alone

DHT = DhtParameters()
ALICE, BOB, CAROL, GATE, OTHER = map(world.contact, ("alice", "bob", "carol", "gate", "other"))


def after(seconds: float) -> Moment:
    return Moment(NOW.mono_s + seconds, NOW.unix_s + seconds)


def requests(alone: Alone) -> list[SendRequest]:
    effects, _ = alone.dht.take()
    return [effect for effect in effects if isinstance(effect, SendRequest)]


def pings(alone: Alone) -> list[SendRequest]:
    """Those requests of its own id that are no lookup."""
    return [sent for sent in requests(alone) if sent.cause not in ("join", "refresh", "test")]


def asked(alone: Alone) -> list[Contact]:
    """Whom it asks now, by its last requests; none of them answers."""
    sent = requests(alone)
    for each in sent:
        alone.time_out(each)
    return [each.to for each in sent]


def test_where_no_gate_answers_the_remembered_peers_are_asked() -> None:
    alice = Alone()
    first = alice.dht.bootstrap([GATE], NOW, "join", remembered=[BOB, CAROL, GATE, ALICE])
    assert asked(alice) == [GATE]
    again = alice.dht.fall_back(NOW)
    assert again not in (None, first)
    assert {*asked(alice)} == {GATE, BOB, CAROL}
    assert alice.dht.fall_back(NOW) is None  # they are asked again in a while
    alice.dht.tick(after(DHT.first_retry_s * 4))
    assert {*asked(alice)} == {GATE, BOB, CAROL}


def test_where_a_gate_answers_nobody_else_is_asked() -> None:
    alice = Alone()
    alice.dht.bootstrap([GATE], NOW, "join", remembered=[BOB])
    (sent,) = requests(alice)
    assert isinstance(sent.message, FindNode)
    alice.respond(sent, Nodes(()))
    assert alice.dht.fall_back(NOW) is None
    assert requests(alice) == []
    assert [gate.peer_id for gate in alice.dht.take_gates()] == [GATE.peer_id]
    assert alice.dht.take_gates() == []


def test_a_gate_itself_asks_those_that_it_remembers_at_once() -> None:
    alice = Alone()
    alice.dht.bootstrap([ALICE], NOW, "join", remembered=[BOB])
    assert asked(alice) == [BOB]
    assert alice.dht.fall_back(NOW) is None


def test_those_that_were_lost_are_asked_when_none_is_left() -> None:
    alice = Alone()
    alice.dht.bootstrap([GATE], NOW, "join")
    assert asked(alice) == [GATE]
    alice.dht.table.saw(BOB, NOW.mono_s)
    alice.dht.search(FindNode(b"x"), NOW, "test")
    assert asked(alice) == [BOB]
    alice.dht.tick(after(DHT.first_retry_s))
    assert {*asked(alice)} == {GATE, BOB}


def test_a_gate_whose_connection_broke_is_dialled_soon_and_told_of_when_it_answers() -> None:
    alice = Alone()
    alice.dht.bootstrap([GATE], NOW, "join")
    (sent,) = requests(alice)
    alice.respond(sent, Nodes(()))
    alice.dht.take_gates()
    alice.dht.tick(after(1.5))  # all is well
    assert pings(alice) == []
    alice.dht.table.saw(BOB, NOW.mono_s)
    for other in (BOB, CAROL):  # these are none, and one is not even known
        alice.dht.disconnected(other.peer_id, after(2))
    assert not alice.dht.missing_gates
    alice.dht.disconnected(GATE.peer_id, after(2))
    assert alice.dht.missing_gates == {GATE.peer_id}
    alice.dht.tick(after(2.5))
    assert pings(alice) == []
    alice.dht.tick(after(3))
    (ping,) = pings(alice)
    assert ping.to == GATE
    alice.respond(ping, Nodes(()))
    assert [gate.peer_id for gate in alice.dht.take_gates()] == [GATE.peer_id]
    assert not alice.dht.missing_gates
    alice.dht.tick(after(60))
    assert pings(alice) == []


def test_one_that_dials_us_when_it_has_restarted_is_met_at_once() -> None:
    alice = Alone()
    alice.dht.bootstrap([GATE], NOW, "join")
    (sent,) = requests(alice)
    alice.respond(sent, Nodes(()))
    alice.dht.take_gates()
    alice.dht.disconnected(GATE.peer_id, after(2))
    alice.dht.handle(RequestReceived(1, GATE, Ping()), after(2.1))
    (ping,) = pings(alice)
    alice.respond(ping, Nodes(()))
    assert [gate.peer_id for gate in alice.dht.take_gates()] == [GATE.peer_id]


def test_in_a_larger_network_a_broken_connection_to_a_gate_is_no_news() -> None:
    alice = Alone(knows=(BOB, CAROL), parameters=DhtParameters(k=3))
    alice.dht.bootstrap([GATE], NOW, "join")
    alice.dht.table.saw(GATE, NOW.mono_s)
    alice.dht.tick(after(DHT.first_retry_s))
    (ping,) = pings(alice)  # it has not answered yet
    alice.respond(ping, Nodes(()))
    alice.dht.disconnected(GATE.peer_id, after(20))
    for seconds in range(20, 40):
        alice.dht.tick(after(seconds))
        assert pings(alice) == []


def test_those_of_before_have_a_bound_and_the_last_that_were_lost_stay() -> None:
    gates = Gates(ALICE.peer_id, DhtParameters(max_before=2))
    gates.begin((), [BOB, CAROL])
    gates.lost(OTHER, 0.0, last=False)
    gates.lost(CAROL, 0.0, last=False)
    assert gates.seeds == (OTHER, CAROL)
    assert gates.at_s == float("inf")


def test_no_two_nodes_wait_alike() -> None:
    def waits(own: Contact) -> float:
        gates = Gates(own.peer_id, DHT)
        gates.begin([GATE], ())
        for _ in range(9):
            gates.asked(0.0)
        return gates.at_s

    assert len({waits(each) for each in (ALICE, BOB, CAROL)}) == 3


def test_a_client_that_was_never_known_is_not_asked_later() -> None:
    alice = Alone()
    alice.dht.bootstrap([GATE], NOW, "join")
    assert asked(alice) == [GATE]
    alice.dht.handle(PeerIdentified(Contact(CAROL.peer_id)), NOW)
    alice.dht.tick(after(DHT.first_retry_s))
    assert asked(alice) == [GATE]


def test_a_node_is_no_member_that_it_has_met() -> None:
    gates = Gates(ALICE.peer_id, DHT)
    gates.met(ALICE.peer_id)
    gates.met(BOB.peer_id)
    assert gates.members == (Contact(BOB.peer_id),)


# -- peers on the same LAN -----------------------------------------------------------------------


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
