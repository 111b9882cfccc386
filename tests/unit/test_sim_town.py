"""What happens to the many: a lean world, silent deaths, loss, partitions, sleepers and liars."""

from itertools import pairwise

import pytest

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import Identity
from formation_p2p.dht.core.messages import (
    FindNode,
    Nodes,
    Pong,
    Provider,
    Providers,
    ShardCount,
    Value,
)
from formation_p2p.dht.core.rpc import (
    PeerIdentified,
    RequestFailed,
    RequestReceived,
    ResponseReceived,
    SendRequest,
    SendResponse,
)
from formation_p2p.jobs.core.job import Job
from formation_p2p.leases.core.session import Undelivered
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.peer.core.effects import Explained, PeerEffect
from formation_p2p.peer.core.events import PeerEvent
from formation_p2p.peer.core.peer import Peer
from formation_p2p.workload.core.work import Task
from simulations.liars import Liar, Lie, lying
from simulations.residents import Residents
from simulations.simulator.connections import Connections
from simulations.simulator.node import SimNode
from simulations.simulator.world import EPOCH_UNIX_S, World
from simulations.trace import TraceDigest

NEEDS = Requirements(driver="process")


def village(world: World, count: int = 30) -> list[SimNode]:
    """Nodes with public addresses, the first of them the gate, each third one a worker."""
    nodes = [
        world.add(f"node{number}", public=True, serve=None if number % 3 else world.machine(cpu=2))
        for number in range(count)
    ]
    world.elapse(30)
    return nodes


def listens(node: SimNode) -> list[PeerEvent]:
    """What a node is told from now on. It does nothing more about it."""
    heard: list[PeerEvent] = []

    def handle(event: PeerEvent, now: Moment) -> list[PeerEffect]:
        heard.append(event)
        return []

    node.peer.handle = handle  # type: ignore[method-assign]
    return heard


def found_by(node: SimNode) -> int:
    node.explain(NEEDS)
    node.world.elapse(10)
    return len(node.explained[-1].decision.ranked)


def test_a_lean_world_says_the_same_and_keeps_only_counts() -> None:
    digests = []
    for lean in (False, True):
        trace = TraceDigest()
        world = World(4, lean=lean, trace=trace.delivered)
        nodes = village(world, 12)
        nodes[1].submit(Job("sums", (Task("sums/0", NEEDS, b""),)))
        world.elapse(5)
        assert bool(world.sent) is not lean
        assert world.messages.total() > 100
        digests.append(trace.hexdigest())
    assert digests[0] == digests[1]


@pytest.mark.at_length
def test_what_each_node_asks_is_counted_by_its_cause() -> None:
    world = World(4)
    nodes = village(world, 12)
    before = nodes[1].messages["explain"]
    assert found_by(nodes[1]) == 4
    # As many requests as replies: nothing is lost here.
    assert nodes[1].messages["explain"] - before == 2 * nodes[1].explained[0].trace.asked
    assert sum(node.messages["explain"] for node in nodes) == world.messages["explain"]


def test_who_hears_of_the_answer_is_handed_it() -> None:
    world = World(4)
    nodes = village(world, 6)
    heard: list[Explained] = []
    nodes[1].heard = heard.append
    found_by(nodes[1])
    assert heard == nodes[1].explained


def test_who_vanishes_is_waited_for_until_the_deadline() -> None:
    world = World(5)
    nodes = village(world, 6)
    gone = nodes[3]
    asker = nodes[1]
    world.vanish(gone)
    events = listens(asker)
    ask = SendRequest(99, gone.contact, FindNode(b"x"), 3.0, cause="a test")
    world.performer.requests.send(asker, ask)
    world.elapse(2.9)
    assert RequestFailed(99, "no answer in time") not in events
    world.elapse(0.2)
    assert RequestFailed(99, "no answer in time") in events


def test_who_vanishes_while_a_question_is_on_its_way_is_waited_for_as_well() -> None:
    world = World(5)
    nodes = village(world, 6)
    began_s = world.now_s
    nodes[1].explain(None)
    world.vanish(nodes[0])
    world.elapse(0.5)
    assert nodes[1].explained == []
    world.elapse(10)
    assert nodes[1].explained
    assert world.now_s > began_s + 3


def test_an_answer_that_comes_too_late_is_no_answer() -> None:
    world = World(6)
    nodes = village(world, 6)
    world.latency = lambda a, b: 1.6
    asker = nodes[1]
    events = listens(asker)
    world.performer.requests.send(
        asker, SendRequest(99, nodes[2].contact, FindNode(b"x"), 3.0, cause="a test")
    )
    world.elapse(4)
    assert RequestFailed(99, "no answer in time") in events
    assert not any(isinstance(event, ResponseReceived) for event in events)


@pytest.mark.at_length
def test_what_is_lost_is_waited_for_and_most_gets_through() -> None:
    world = World(7, loss=0.1)
    nodes = village(world)
    requests = sum(kind.message.__class__.__name__ == "FindNode" for kind in world.sent)
    replies = sum(isinstance(kind.message, Nodes) for kind in world.sent)
    assert 0.8 < replies / requests < 0.97
    assert found_by(nodes[1]) == 10


@pytest.mark.at_length
def test_a_town_that_is_cut_in_two_does_not_hear_itself() -> None:
    world = World(8)
    nodes = village(world)
    for node in nodes[::2]:
        node.side = 1
    at_s = world.now_s
    world.elapse(100)
    later = [each for each in world.sent if each.at_s > at_s]
    assert later
    assert all(world.nodes[s.sender].side == world.nodes[s.receiver].side for s in later)
    for node in nodes:
        node.side = 0
    world.elapse(200)
    assert found_by(nodes[1]) == 10


def test_a_first_contact_takes_a_dial_and_a_death_is_seen_by_the_connected_alone() -> None:
    connections = Connections(5)
    world = World(9, connections=connections)
    nodes = village(world, 6)
    assert connections.are_connected(nodes[0].number, nodes[5].number)
    stranger = world.add("stranger", public=True)
    world.elapse(0.105)  # ten one-way trips of 10 ms for the dial, one for the question
    assert not any(s.sender == "node0" and s.receiver == "stranger" for s in world.sent)
    world.elapse(0.006)
    assert any(s.sender == "node0" and s.receiver == "stranger" for s in world.sent)
    connections.close(stranger.number)
    heard: dict[str, list[PeerEvent]] = {node.name: listens(node) for node in (nodes[1], stranger)}
    world.kill(nodes[0])
    world.elapse(0.02)
    gone = Undelivered(nodes[0].identity.peer_id, "the connection broke")
    assert gone in heard["node1"]
    assert gone not in heard["stranger"]


def test_who_cannot_be_dialled_is_heard_where_it_has_a_connection() -> None:
    connections = Connections(5)
    world = World(10, connections=connections)
    nodes = village(world, 6)
    world.undialable.add("hidden")
    hidden = world.add("hidden", public=True)
    world.elapse(60)
    assert found_by(hidden) == 2
    assert not hidden.serves_dht
    ask = SendRequest(99, hidden.contact, FindNode(b"x"), 3.0, cause="a test")
    events = listens(nodes[0])
    world.performer.requests.send(nodes[0], ask)
    world.elapse(1)
    assert any(isinstance(event, ResponseReceived) for event in events)
    connections.close(hidden.number)
    world.performer.requests.send(nodes[0], ask)
    world.elapse(3.1)
    assert RequestFailed(99, "no answer in time") in events
    world.vanish(nodes[0])
    assert connections.of(nodes[0].number) == []


def sleepy_town(count: int = 400, *, connected: bool = True) -> tuple[World, list[SimNode]]:
    connections = Connections(5) if connected else None
    world = World(11, lean=True, connections=connections)
    nodes = [world.add(f"node{number}", public=True, asleep=True) for number in range(count)]
    world.residents = Residents(world, (node.contact for node in nodes), seed=11)
    return world, nodes


@pytest.mark.at_length
def test_who_sleeps_wakes_when_asked_and_knows_the_town() -> None:
    world, nodes = sleepy_town()
    assert not any(node.awake for node in nodes)
    world.deliver(nodes[0], world.machine(cpu=2, drivers=("process",)))
    world.elapse(1)
    assert nodes[0].awake
    assert nodes[0].serves_dht
    assert len(nodes[0].peer.dht.table) > 20
    assert 1 < sum(node.awake for node in nodes) < 400
    world.elapse(4)
    assert found_by(nodes[1]) == 1
    # All have been there for long: nobody joins.
    assert world.messages["join"] == 0


def test_in_a_laid_out_town_without_connections_nobody_dials() -> None:
    _, nodes = sleepy_town(60, connected=False)
    assert found_by(nodes[0]) == 0
    assert len(nodes[0].peer.dht.table) > 20


def test_who_has_been_there_for_long_is_connected_with_whom_it_knows() -> None:
    world, nodes = sleepy_town()
    world.wake(nodes[0])
    assert world.connections is not None
    known = {contact.peer_id for contact in nodes[0].peer.dht.table}
    connected = {world.numbered[n].identity.peer_id for n in world.connections.of(0)}
    assert connected == known
    # Whoever is asked has been there for as long: who asks it may be known to it.
    [other] = [n for n in nodes if n.identity.peer_id not in known and n is not nodes[0]][:1]
    assert isinstance(world.residents, Residents)
    known_to_other = world.residents.layout.known_to(other.identity.key)
    world.performer.requests.send(
        nodes[0], SendRequest(99, other.contact, FindNode(b"x"), 3.0, cause="a test")
    )
    assert other.awake
    assert len(world.connections.of(other.number)) == len(known_to_other) + 1


def test_whom_everybody_has_known_for_long_need_not_say_that_it_can_be_dialled() -> None:
    world, nodes = sleepy_town(40)
    for node in nodes:
        world.wake(node)
        assert node.serves_dht
    assert not any(
        isinstance(each, PeerIdentified) for *_, arguments in world._queue for each in arguments
    )


def test_what_else_there_is_to_do_with_one_who_wakes_is_done_once() -> None:
    world, nodes = sleepy_town(40)
    woken: list[SimNode] = []
    assert isinstance(world.residents, Residents)
    world.residents.woken = woken.append
    world.wake(nodes[0], world.machine(cpu=2, drivers=("process",)))
    world.wake(nodes[0])
    assert woken == nodes[:1]
    assert world.messages.total() == 0  # it was told before it knew anybody
    newcomer = world.add("newcomer", public=True, gates=nodes[:1])
    assert newcomer not in woken


@pytest.mark.at_length
def test_who_comes_to_a_town_that_was_laid_out_joins_it() -> None:
    world, nodes = sleepy_town()
    newcomer = world.add("newcomer", public=True, gates=nodes[:2])
    world.wake(newcomer)  # it is awake already
    world.elapse(30)
    assert world.messages["join"] > 0
    assert len(newcomer.peer.dht.table) > 20


# -- liars ----------------------------------------------------------------------------------------


def lie_about(lie: Lie | None, reply: object) -> object:
    """What a liar makes of a reply that its peer gives."""
    world = World(12)
    node = world.add("eve", public=True, disguise=lying(12, "eve", lie))
    liar = node.peer
    assert isinstance(liar, Liar)
    answer = SendResponse(1, reply, cause="a test")  # type: ignore[arg-type]
    liar.peer.handle = lambda event, now: [answer]  # type: ignore[method-assign]
    now = Moment(0.0, EPOCH_UNIX_S)
    [reported] = liar.handle(
        RequestReceived(1, Contact(node.identity.peer_id), FindNode(b"x")), now
    )
    assert isinstance(reported, SendResponse)
    return reported.message


CLOSER = tuple(
    Contact(Identity.from_seed(bytes([n]) * 32).peer_id, (f"/ip4/192.0.2.{n}/tcp/1",))
    for n in range(4)
)
HELD = Providers(tuple(Provider(c, b"raw") for c in CLOSER), CLOSER, ShardCount(members=4))


def test_a_liar_that_drops_keeps_all_to_itself() -> None:
    assert lie_about(Lie.DROP, HELD) == Providers((), (), ShardCount())
    assert lie_about(Lie.DROP, Nodes(CLOSER)) == Nodes(())
    assert lie_about(Lie.DROP, Value(b"raw", CLOSER)) == Value(None, ())


def test_a_liar_that_invents_names_nobody_real() -> None:
    reported = lie_about(Lie.INVENT, HELD)
    assert isinstance(reported, Providers)
    assert len(reported.providers) == 4
    assert not {p.contact for p in reported.providers} & set(CLOSER)
    assert len(reported.closer) == 20
    assert reported.count is not None
    assert reported.count.members > 4


def test_a_liar_that_reorders_hides_the_nearest() -> None:
    reported = lie_about(Lie.REORDER, HELD)
    assert isinstance(reported, Providers)
    assert [p.contact for p in reported.providers] == [CLOSER[3], CLOSER[2]]
    assert reported.closer == (CLOSER[3], CLOSER[2])
    assert lie_about(Lie.REORDER, Value(b"raw", ())) == Value(b"raw", ())


def test_a_liar_by_chance_tells_different_lies_and_lets_others_pass() -> None:
    assert lie_about(None, Pong()) == Pong()
    assert lie_about(None, None) is None
    world = World(13)
    eve = world.add("eve", public=True, disguise=lying(13, "eve")).peer
    assert isinstance(eve, Liar)
    eve.peer.handle = lambda event, now: [SendResponse(1, Nodes(CLOSER), cause="a test")]  # type: ignore[method-assign]
    now = Moment(0.0, EPOCH_UNIX_S)
    asked = RequestReceived(1, CLOSER[0], FindNode(b"x"))
    reported = {repr(eve.handle(asked, now)) for _ in range(30)}
    assert len(reported) > 10


def test_a_liar_does_otherwise_what_its_peer_does() -> None:
    world = World(14)
    world.add("gate", public=True)
    eve = world.add("eve", public=True, serve=world.machine(), disguise=lying(14, "eve", Lie.DROP))
    bob = world.add("bob", public=True)
    world.elapse(30)
    assert isinstance(eve.peer, Liar)
    assert isinstance(eve.peer.peer, Peer)
    assert found_by(bob) == 1


def test_who_has_gone_for_good_gives_its_memory_back() -> None:
    world = World(15)
    nodes = village(world, 4)
    before = nodes[2].peer
    world.vanish(nodes[2])
    assert nodes[2].peer is not before


def test_time_goes_on_in_order() -> None:
    world = World(16)
    seen: list[float] = []
    for delay_s in (3.0, 1.0, 2.0):
        world.after(delay_s, lambda: seen.append(world.now_s))
    world.elapse(5)
    assert seen == [1.0, 2.0, 3.0]
    assert all(a < b for a, b in pairwise(seen))
