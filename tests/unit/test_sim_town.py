"""What happens to the many: a lean world, silent deaths, loss, partitions, sleepers and liars."""

import random
from collections.abc import Iterator
from itertools import combinations, pairwise

import pytest

from formation_p2p.assembly import Peer, PeerEffect, PeerEvent
from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import Identity, key_of_peer
from formation_p2p.core.keyspace import distance
from formation_p2p.core.refusals import Leaving
from formation_p2p.dht.core.messages import (
    AddProvider,
    FindNode,
    Nodes,
    Ping,
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
from formation_p2p.peer.core.effects import Explained
from formation_p2p.records.core.addresses import address_bytes
from formation_p2p.workload.core.outcome import FailureKind
from formation_p2p.workload.core.work import Task
from simulations.churn import GOLEM_ALWAYS_SHARE, Churn
from simulations.latency import Latencies
from simulations.layout import Layout
from simulations.liars import Liar, Lie, lying
from simulations.residents import Residents, host_of
from simulations.simulator.connections import Connections, private_address, public_address
from simulations.simulator.node import SimNode
from simulations.simulator.world import EPOCH_UNIX_S, World
from simulations.trace import TraceDigest, said

NEEDS = Requirements(driver="process")


def village(world: World, count: int = 18) -> list[SimNode]:
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
    assert found_by(nodes[1]) == 6


@pytest.mark.at_length
def test_a_town_that_is_cut_in_two_does_not_hear_itself() -> None:
    world = World(8)
    nodes = village(world)
    for node in nodes[::2]:
        node.side = 1
    at_s = world.now_s
    world.elapse(60)
    later = [each for each in world.sent if each.at_s > at_s]
    assert later
    assert all(world.nodes[s.sender].side == world.nodes[s.receiver].side for s in later)
    for node in nodes:
        node.side = 0
    world.elapse(200)
    assert found_by(nodes[1]) == 6


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


def sleepy_town(count: int = 200, *, connected: bool = True) -> tuple[World, list[SimNode]]:
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
    assert 1 < sum(node.awake for node in nodes) < 200
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


# What a large world is made of: latencies, churn, connections, tables, addresses, digests.


def contacts(count: int) -> Iterator[Contact]:
    for number in range(count):
        identity = Identity.from_seed(number.to_bytes(32, "big"))
        yield Contact(identity.peer_id, (public_address(number),))


# -- latencies ------------------------------------------------------------------------------------


def test_a_matrix_of_milliseconds_is_read_in_whole_microseconds() -> None:
    latencies = Latencies.read("0 19.25\n19.25 0\n\n")
    assert latencies.rtt_us == ((0, 19_250), (19_250, 0))
    assert latencies.sites == 2


def test_a_message_takes_half_a_round_trip_and_some_time_within_a_site() -> None:
    one_way_s = Latencies.read("0 20\n20 0").one_way_s()
    assert one_way_s == [[0.00025, 0.01], [0.01, 0.00025]]


@pytest.mark.parametrize("text", ["", "1 2\n3", "0 -1\n-1 0", "0 70000\n70000 0", "a"])
def test_what_is_no_matrix_of_round_trips_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"matrix|milliseconds|convert"):
        Latencies.read(text)


def test_a_made_up_matrix_has_the_shape_of_the_measured_one() -> None:
    made_up = Latencies.made_up(7, 200)
    assert made_up == Latencies.made_up(7, 200) != Latencies.made_up(8, 200)
    assert made_up.percentile_ms(5) == pytest.approx(19, rel=0.1)
    assert made_up.percentile_ms(50) == pytest.approx(135, rel=0.1)
    assert made_up.percentile_ms(90) == pytest.approx(291, rel=0.1)
    assert made_up.percentile_ms(100) <= 420
    assert all(made_up.rtt_us[a][b] == made_up.rtt_us[b][a] for a, b in combinations(range(50), 2))


# -- churn ----------------------------------------------------------------------------------------


def test_sessions_last_as_long_as_they_were_measured_to() -> None:
    churn = Churn(random.Random(1), 1000)
    hours = sorted(churn.session_s() / 3600 for _ in range(20_000))
    assert hours[10_000] == pytest.approx(1.25, rel=0.1)
    assert hours[15_000] == pytest.approx(10.6, rel=0.1)
    assert hours[18_000] == pytest.approx(50, rel=0.1)


def test_of_those_online_some_always_are_and_the_others_are_in_long_sessions() -> None:
    churn = Churn(random.Random(2), 1000)
    remaining = [churn.remaining_s() for _ in range(20_000)]
    always = remaining.count(float("inf")) / len(remaining)
    assert always == pytest.approx(GOLEM_ALWAYS_SHARE, rel=0.1)
    soon = sum(left_s < 600 for left_s in remaining) / len(remaining)
    # In steady state as many leave as arrive.
    assert soon == pytest.approx((1 - always) * 600 / churn.mean_session_s, rel=0.4)


def test_as_many_arrive_as_keep_the_number_online() -> None:
    churn = Churn(random.Random(3), 10_000)
    hour = list(churn.arrivals_s(3600.0))
    assert hour == sorted(hour)
    assert all(0 <= at_s < 3600 for at_s in hour)
    assert len(hour) == pytest.approx(8794 * 3600 / churn.mean_session_s, abs=1)


def test_time_that_runs_faster_makes_sessions_shorter() -> None:
    slow, fast = Churn(random.Random(4), 100), Churn(random.Random(4), 100, 10.0)
    assert fast.mean_session_s == pytest.approx(slow.mean_session_s / 10)
    assert fast.session_s() == pytest.approx(slow.session_s() / 10)
    left_s = [churn.remaining_s() for churn in (slow, fast)]
    assert left_s[1] == pytest.approx(left_s[0] / 10)


def test_few_say_goodbye() -> None:
    churn = Churn(random.Random(5), 100)
    crashes = sum(churn.crashes() for _ in range(1000))
    assert 860 < crashes < 940


# -- connections ----------------------------------------------------------------------------------


def test_a_first_message_waits_for_the_dial_and_the_next_for_nothing() -> None:
    connections = Connections(5)
    assert connections.delay_s(1, 2, 0.05, now_s=10.0) == pytest.approx(0.55)
    # Sent meanwhile, it waits for the same dial; and whoever was dialled answers on it.
    assert connections.delay_s(1, 2, 0.05, now_s=10.2) == pytest.approx(0.35)
    assert connections.delay_s(2, 1, 0.05, now_s=11.0) == pytest.approx(0.05)
    assert connections.are_connected(1, 2)
    assert not connections.are_connected(1, 3)


def test_the_connection_that_is_idle_the_longest_makes_room() -> None:
    connections = Connections(5, most=2)
    connections.connect(1, 2)
    connections.connect(1, 3)
    connections.connect(1, 2)  # used again
    connections.connect(1, 4)
    assert connections.of(1) == [2, 4]
    assert connections.of(3) == []


def test_who_closes_is_no_longer_connected_on_either_side() -> None:
    connections = Connections(5)
    connections.connect(1, 2)
    connections.connect(3, 1)
    assert connections.close(1) == [2, 3]
    assert connections.of(2) == connections.of(3) == []
    assert connections.close(1) == []
    assert connections.delay_s(2, 1, 0.05, now_s=0.0) == pytest.approx(0.55)


# -- tables ---------------------------------------------------------------------------------------


def test_a_laid_out_table_knows_k_of_each_distance_and_all_of_those_near() -> None:
    town = list(contacts(300))
    layout = Layout(town, seed=1, k=4)
    own = key_of_peer(town[0].peer_id)
    known = layout.known_to(own)
    by_length: dict[int, int] = {}
    for contact in known:
        length = distance(own, key_of_peer(contact.peer_id)).bit_length()
        by_length[length] = by_length.get(length, 0) + 1
    assert town[0] not in known
    assert len(set(known)) == len(known)
    for length, count in by_length.items():
        there = [c for c in town if distance(own, key_of_peer(c.peer_id)).bit_length() == length]
        assert count == min(4, len(there))
    assert len(known) > 20
    assert own in layout
    assert known == Layout(reversed(town), seed=1, k=4).known_to(own)
    assert known != Layout(town, seed=2, k=4).known_to(own)


def test_a_newcomer_to_a_town_is_known_by_nobody_and_knows_its_neighbours() -> None:
    town = list(contacts(40))
    layout = Layout(town[1:], seed=1, k=50)
    assert key_of_peer(town[0].peer_id) not in layout
    assert key_of_peer(town[1].peer_id) in layout
    assert set(layout.known_to(key_of_peer(town[0].peer_id))) == set(town[1:])
    assert Layout((), seed=1).known_to(key_of_peer(town[0].peer_id)) == []


# -- addresses ------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", [private_address, public_address])
def test_every_node_has_an_address_of_its_own(address: object) -> None:
    assert callable(address)
    addresses = [address(number) for number in range(5000)]
    assert len(set(addresses)) == 5000
    for each in addresses:
        address_bytes(each)  # raises for what is none


def test_public_addresses_are_strewn_over_many_subnets() -> None:
    hosts = [host_of(contact) for contact in contacts(500)]
    assert len({host.rsplit(".", 2)[0] for host in hosts}) > 480


# -- digests --------------------------------------------------------------------------------------


def test_a_message_is_told_without_its_profile_which_holds_a_grant() -> None:
    [alice, bob] = contacts(2)
    one, other = Provider(alice, b"signed once"), Provider(alice, b"and again")
    reported = said(AddProvider(b"a name", one))
    assert reported == said(AddProvider(b"a name", other))
    assert reported != said(AddProvider(b"a name", Provider(bob)))
    assert b"a name".hex() in reported
    assert alice.peer_id in reported
    assert said(Nodes((alice, bob))) != said(Nodes((bob, alice)))
    assert said(FailureKind.CANCELLED) == "cancelled"
    assert said(Leaving()) == "Leaving()"


def test_the_digest_covers_who_said_what_to_whom_and_when() -> None:
    def digest(at_s: float, sender: str, receiver: str, message: object) -> str:
        trace = TraceDigest()
        trace.delivered(at_s, sender, receiver, message)
        return trace.hexdigest()

    same = digest(1.5, "alice", "bob", Ping())
    assert same == digest(1.5, "alice", "bob", Ping())
    others = {
        digest(1.25, "alice", "bob", Ping()),
        digest(1.5, "alicia", "bob", Ping()),
        digest(1.5, "alice", "carol", Ping()),
        digest(1.5, "alice", "bob", FindNode(b"x")),
    }
    assert len(others | {same}) == 5
