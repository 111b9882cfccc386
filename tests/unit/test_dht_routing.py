"""K-buckets, in a world of eight bits: our own key is 0, so a peer's number is its distance."""

import random
from collections.abc import Iterable
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.core.keyspace import KEY_BITS, Key
from formation_p2p.core.keyspace import key_of as key_of_name
from formation_p2p.dht.core.kademlia import Refresh
from formation_p2p.dht.core.parameters import DhtParameters
from formation_p2p.dht.core.reachability import NAMED, WIDTHS, endpoints, subnets
from formation_p2p.dht.core.routing import MAX_KEPT, RoutingTable
from tests.support.dht_world import common_prefix

DHT = DhtParameters()

LATER = DHT.suspect_after_s


def key_of(peer_id: PeerId) -> Key:
    return Key(int(peer_id))


def peer(number: int) -> PeerId:
    return PeerId(str(number))


def contact(number: int, *addresses: str) -> Contact:
    return Contact(peer(number), addresses or (f"/ip4/10.0.0.{number}/tcp/4001",))


def table_of(numbers: Iterable[int], *, k: int, own: int = 0) -> RoutingTable:
    table = RoutingTable(Key(own), parameters=DhtParameters(k=k), key_of=key_of)
    for number in numbers:
        table.saw(contact(number), 0.0)
    return table


def numbers(contacts: Iterable[Contact]) -> list[int]:
    return [int(each.peer_id) for each in contacts]


def test_a_node_knows_neither_itself_nor_who_tells_no_address() -> None:
    table = table_of([7], k=2, own=7)
    assert not table.has_room_for(contact(7))
    assert table.saw(Contact(peer(3)), 0.0) is None
    assert len(table) == 0
    table.saw(contact(3), 0.0)
    table.saw(Contact(peer(3)), 1.0)
    assert list(table) == [contact(3)]
    moved = contact(3, "/ip4/10.9.9.9/tcp/1")
    table.saw(moved, 2.0)
    for stranger in (129, 1):
        table.lost(peer(stranger))
    assert list(table) == [moved]


def test_a_full_bucket_doubts_its_least_recently_seen_and_drops_it_when_its_ping_fails() -> None:
    table = table_of([128, 129], k=2)
    assert table.saw(contact(130), LATER - 1) is None, "they have answered lately"
    assert table.saw(contact(130), LATER) == contact(128)
    assert numbers(table) == [128, 129]  # the newcomer waits
    table.saw(contact(128), LATER)  # it answers the ping, and is doubted last
    assert table.saw(contact(131), LATER) == contact(129)
    table.lost(peer(129))
    assert numbers(table) == [128, 131]


def test_of_a_bounded_number_who_wait_the_newest_moves_up() -> None:
    table = table_of([128, 130, 131, 132, 133], k=1)
    table.saw(contact(130), 1.0)  # it answered again since the others
    table.lost(peer(133))  # one that waits and fails waits no more
    for gone, next_ in ((128, 130), (130, 132)):
        table.lost(peer(gone))
        assert numbers(table) == [next_]
    few = DhtParameters(k=1, max_waiting=3)
    table = RoutingTable(Key(0), parameters=few, key_of=key_of)
    for number in (128, 129, 130, 131, 64, 65):
        table.saw(contact(number), 0.0)
    for gone in (131, 130):
        table.lost(peer(gone))
    table.lost(peer(128))
    assert numbers(table) == [64], "129, the first that waited where most do, was pushed out"
    table.lost(peer(64))
    assert numbers(table) == [65]


@pytest.mark.parametrize(
    ("number", "room"), [(128, False), (130, False), (64, False), (65, True), (1, True), (0, False)]
)
def test_there_is_room_for_strangers_in_buckets_that_are_not_full(number: int, room: bool) -> None:
    table = table_of([128, 129, 64], k=2)
    assert table.has_room_for(contact(number)) == room


def test_a_bucket_holds_at_most_k_and_near_ones_have_more_room_than_they_need() -> None:
    table = table_of(range(1, 256), k=4)
    assert sorted(numbers(table)) == [
        *(1, 2, 3, 4, 5, 6, 7),
        *range(8, 12),
        *range(16, 20),
        *range(32, 36),
        *range(64, 68),
        *range(128, 132),
    ]


@given(st.integers(0, 255), st.sets(st.integers(0, 255)), st.integers(0, 255), st.integers(0, 30))
def test_the_closest_are_those_of_a_sort_by_distance(
    own: int, others: set[int], key: int, count: int
) -> None:
    table = table_of(sorted(others), k=5, own=own)
    by_distance = sorted(numbers(table), key=lambda number: number ^ key)
    assert numbers(table.closest(Key(key), count)) == by_distance[:count]


def test_the_closest_are_right_also_after_more_was_asked_than_is_kept() -> None:
    table = table_of([1, 6, 7], k=5)
    for key in range(MAX_KEPT + 1):
        assert numbers(table.closest(Key(key), 1)) == [min((1, 6, 7), key=lambda n: n ^ key)]
    table.saw(contact(5), 0.0)
    assert numbers(table.closest(Key(5), 1)) == [5]


# -- caps ---------------------------------------------------------------------------------------

SITE, PROVIDER = WIDTHS


def of_site(number: int, site: str = "8.8.8") -> Contact:
    return contact(number, f"/ip4/{site}.{number}/tcp/4001")


def of_provider(number: int) -> Contact:
    return contact(number, f"/ip4/8.8.{number}.1/tcp/4001")


def test_one_site_and_one_provider_have_few_places_in_a_bucket_and_in_the_table() -> None:
    table = table_of([], k=20)
    for number in range(1, 256):
        table.saw(of_site(number), 0.0)
    in_bucket = [sum(n.bit_length() == length for n in numbers(table)) for length in range(1, 9)]
    assert max(in_bucket) == SITE.in_bucket
    assert len(table) == SITE.in_table
    assert not table.has_room_for(of_site(255))
    assert table.has_room_for(of_site(255, "9.9.9"))
    table = table_of([], k=20)
    for number in range(128, 256):
        table.saw(of_provider(number), 0.0)
    assert len(table) == PROVIDER.in_bucket
    table = table_of([], k=20)
    for number in range(1, 1 << 12):
        table.saw(contact(number, f"/ip4/9.8.{number % 256}.{number // 256}/tcp/4001"), 0.0)
    assert len(table) == PROVIDER.in_table
    table = RoutingTable(Key(0), parameters=DhtParameters(max_peers=10), key_of=key_of)
    for number in range(1, 256):
        table.saw(contact(number), 0.0)
    assert len(table) == 10
    assert not table.has_room_for(contact(255))


def test_at_home_all_machines_are_in_one_subnet_and_know_each_other() -> None:
    homes = ("192.168.1", "10.0.0", "172.16.0", "127.0.0", "169.254.0", "100.64.0")
    for membership in homes:
        table = table_of([], k=20)
        for number in range(128, 148):
            table.saw(of_site(number, membership), 0.0)
        assert len(table) == 20


def test_a_campus_with_public_addresses_is_a_home_to_those_within() -> None:
    table = table_of([], k=20)
    table.moved(("/ip4/8.8.8.200/tcp/4001",))
    for number in range(128, 148):
        table.saw(of_site(number), 0.0)
    assert len(table) == 20
    for number in range(64, 84):
        table.saw(of_site(number, "9.9.9"), 0.0)
    assert len(table) == 20 + SITE.in_bucket


def test_the_waiting_of_one_site_do_not_crowd_out_others() -> None:
    table = table_of([128, 129], k=2)
    for number in range(130, 200):
        table.saw(of_site(number), 0.0)
    table.saw(contact(200), 0.0)
    for number in range(201, 256):
        table.saw(of_site(number, "9.9.9"), 0.0)
    table.lost(peer(128))
    assert numbers(table) == [129, 202]  # of each site two wait, the newest moves up
    for gone in (202, 201, 200, 131):
        table.lost(peer(gone))
    assert numbers(table) == [129, 130]


def test_who_waits_moves_up_only_if_its_site_has_room_by_then() -> None:
    table = table_of([], k=2)
    for number in (64, 32, 16, 8, 4):  # all that one site may have, two in each bucket
        table.saw(of_site(number), 0.0)
        table.saw(of_site(number + 1), 0.0)
    assert len(table) == SITE.in_table
    table.saw(contact(128), 0.0)
    table.saw(contact(129), 0.0)
    table.saw(of_site(130), 0.0)
    table.lost(peer(128))
    assert peer(130) not in table
    table.lost(peer(4))  # somewhere else: now there is room
    assert peer(130) in table
    assert len(table) == 11


def test_a_peer_is_counted_at_all_places_that_it_tells_of_now() -> None:
    table = table_of([], k=20)
    for number in (128, 129):
        table.saw(of_site(number), 0.0)
    table.saw(contact(130, "/ip4/9.9.9.9/tcp/1", *of_site(130).addresses), 0.0)
    assert sorted(numbers(table)) == [128, 129]
    table.saw(of_site(128, "9.9.9"), 1.0)
    assert table.has_room_for(of_site(130))
    # Who moves to where there are enough goes, and another takes its place.
    table = table_of([128], k=3)
    for moving in (of_site(129), of_site(130), contact(131)):
        table.saw(moving, 0.0)
    assert peer(131) not in table
    assert table.saw(of_site(128), 1.0) is None
    assert sorted(numbers(table)) == [129, 130, 131]


def test_two_peers_are_not_at_one_host_and_port_and_the_older_one_is_doubted() -> None:
    table = table_of([128], k=20)
    set_up_anew = contact(64, *contact(128).addresses)
    assert not table.has_room_for(set_up_anew)
    assert table.saw(set_up_anew, DHT.contested_after_s - 1) is None
    assert table.saw(set_up_anew, DHT.contested_after_s) == contact(128)
    assert numbers(table) == [128]
    table.lost(peer(128))
    assert numbers(table) == [64]
    table.lost(peer(64))
    assert table.has_room_for(contact(128))


def test_a_site_is_a_24_or_a_48_and_a_provider_a_16_or_a_32_and_all_names_are_one_place() -> None:
    reported = ("/ip4/8.8.4.4/tcp/1", "/ip6/2a00:1450:4001:830::200e/tcp/1")
    by_v4, by_v6 = {"8.8.4.0/24", "8.8.0.0/16"}, {"2a00:1450:4001::/48", "2a00:1450::/32"}
    assert {subnet.name for subnet in subnets(reported)} == by_v4 | by_v6
    assert {s.name for s in subnets(("/dns4/a.example/tcp/1", "/dns6/b.example/tcp/1"))} == {NAMED}
    assert {s.name for s in subnets(("nonsense",))} == {NAMED}
    assert subnets(()) == subnets(("/ip6/fe80::1/tcp/1", "/ip4/10.1.2.3/tcp/1")) == frozenset()
    endpoint = "/ip4/8.8.4.4/tcp/1"
    assert endpoints((f"{endpoint}/p2p/someone", endpoint)) == {endpoint}


# -- what was looked into -----------------------------------------------------------------------


def test_the_nearest_k_are_covered_by_looking_up_ourselves_and_the_other_buckets_are_not() -> None:
    table, never = table_of([1, 2, 3, 8, 9, 64, 65, 128], k=3), float("-inf")
    assert table.looks() == [(never, 0), (never, 4), (never, 5), (never, 6), (never, 7), (never, 8)]
    for key, at_s in ((200, 5.0), (0, 4.0), (30, 3.0)):
        table.looked_into(Key(key), at_s)
    assert table.looks()[-3:] == [(3.0, 5), (4.0, 0), (5.0, 8)]
    assert table_of([], k=3).looks() == [(never, 0)]


# -- when what is looked up ----------------------------------------------------------------------


OWN_NAME = b"our own name"
OWN = key_of_name(OWN_NAME)


def table_down_to(depth: int) -> RoutingTable:
    """Twenty peers in each bucket of up to `depth` bits in common, and twenty who are nearest."""
    lengths = [KEY_BITS - shared for shared in range(depth + 1)] + [100]
    keys = [OWN ^ (1 << (length - 1)) ^ n for length in lengths for n in range(DHT.k)]
    table = RoutingTable(OWN, key_of=lambda peer_id: Key(int(peer_id)))
    for number, key in enumerate(keys):
        table.saw(Contact(PeerId(str(key)), (f"/ip4/10.0.0.1/tcp/{number + 1}",)), 0.0)
    assert len(table) == len(keys)
    return table


def steps(
    table: RoutingTable, until_s: float, seed: int = 1, parameters: DhtParameters = DHT
) -> list[tuple[float, bytes]]:
    """What is looked up when, by a node that joins at 0 and does nothing else."""
    due = Refresh(OWN_NAME, table, random.Random(seed), parameters)
    due.joined(0.0)
    looked_up = []
    while due.at_s < until_s:
        now_s = due.at_s
        name = due.due(now_s)
        assert due.at_s > now_s
        if name is not None:
            looked_up.append((now_s, name))
    return looked_up


def depth_of(name: bytes) -> int:
    return common_prefix(key_of_name(name), OWN)


def test_after_joining_we_look_ourselves_up_again_and_then_fill_each_bucket_with_its_own_key() -> (
    None
):
    looked_up = steps(table_down_to(6), 9 * DHT.fill_s)
    assert looked_up[0][1] == OWN_NAME
    assert [depth_of(name) for _, name in looked_up[1:]] == list(range(7))


def test_each_has_its_turn_in_time_and_seldom_more_often() -> None:
    looked_up = steps(table_down_to(9), 6000.0)
    for depth in (*range(10), KEY_BITS):
        times = [at_s for at_s, name in looked_up if depth_of(name) == depth]
        gaps = [b - a for a, b in pairwise(times)][1:]
        due_s = DHT.own_refresh_s if depth == KEY_BITS else DHT.bucket_refresh_s
        assert gaps
        assert min(gaps) >= DHT.refresh_early * due_s
        assert max(gaps) <= 1.15 * due_s


def test_whoever_looked_there_for_another_purpose_has_done_it() -> None:
    table = table_down_to(3)
    due = Refresh(OWN_NAME, table, random.Random(1))
    due.joined(0.0)
    assert due.due(2.0) == OWN_NAME
    for length in range(KEY_BITS - 3, KEY_BITS + 1):
        table.looked_into(Key(OWN ^ 1 << (length - 1)), 3.0)
    assert due.due(4.0) is None


def test_a_small_network_needs_no_more_than_ourselves() -> None:
    table = RoutingTable(OWN)
    assert {name for _, name in steps(table, 3000.0)} == {OWN_NAME}


def test_who_starts_together_parts() -> None:
    times = [{at_s for at_s, _ in steps(table_down_to(2), 3000.0, seed)} for seed in range(5)]
    assert not set.intersection(*times)
    assert DHT.refresh_jitter[0] > DHT.refresh_early  # or a turn would be missed now and then


def test_buckets_without_a_name_are_left_to_the_lookup_of_our_own_key() -> None:
    too_deep, unlucky = DhtParameters(max_refresh_depth=3), DhtParameters(max_name_tries=1)
    looked_up = steps(table_down_to(6), 600.0, parameters=too_deep)
    assert {depth_of(name) for _, name in looked_up} == {0, 1, 2, 3, KEY_BITS}
    looked_up = steps(table_down_to(9), 300.0, parameters=unlucky)
    assert len(looked_up) < 9  # of eleven: bad luck costs a turn and no more


@pytest.mark.parametrize("depth", [0, 1, 7, DHT.max_refresh_depth])
def test_a_name_lies_in_the_bucket_that_it_is_for(depth: int) -> None:
    due = Refresh(OWN_NAME, RoutingTable(OWN), random.Random(7))
    name = due.name_at(depth)
    assert name is not None
    assert depth_of(name) == depth
