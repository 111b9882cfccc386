"""What a large world is made of: latencies, churn, connections, tables, addresses, digests."""

import random
from collections.abc import Iterator
from itertools import combinations

import pytest

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import Identity, key_of_peer
from formation_p2p.core.keyspace import distance
from formation_p2p.core.refusals import Leaving
from formation_p2p.dht.core.messages import AddProvider, FindNode, Nodes, Ping, Provider
from formation_p2p.records.core.addresses import address_bytes
from formation_p2p.workload.core.outcome import FailureKind
from simulations.churn import GOLEM_ALWAYS_SHARE, Churn
from simulations.latency import Latencies
from simulations.layout import Layout
from simulations.residents import host_of
from simulations.simulator.connections import Connections, private_address, public_address
from simulations.trace import TraceDigest, said


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
