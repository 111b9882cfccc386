"""K-buckets, in a world of eight bits: our own key is 0, so a peer's number is its distance."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.core.keyspace import Key
from formation_p2p.dht.core.parameters import DhtParameters
from formation_p2p.dht.core.routing import RoutingTable
from formation_p2p.dht.core.subnets import NAMED, WIDTHS, endpoints, subnets

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


def test_who_answered_is_known() -> None:
    table = table_of([200, 3], k=2)
    assert peer(200) in table
    assert peer(201) not in table
    assert peer(70) not in table
    assert numbers(table) == [200, 3]
    assert len(table) == 2


def test_a_node_never_knows_itself() -> None:
    table = table_of([7], k=2, own=7)
    assert len(table) == 0
    assert not table.has_room_for(contact(7))


def test_who_tells_no_address_does_not_enter() -> None:
    table = table_of([], k=2)
    assert table.saw(Contact(peer(3)), 0.0) is None
    assert len(table) == 0


def test_an_answer_without_addresses_keeps_those_that_were_known_and_newer_ones_replace_them() -> (
    None
):
    table = table_of([3], k=2)
    table.saw(Contact(peer(3)), 1.0)
    assert list(table) == [contact(3)]
    moved = contact(3, "/ip4/10.9.9.9/tcp/1")
    table.saw(moved, 2.0)
    assert list(table) == [moved]


def test_a_full_bucket_doubts_its_least_recently_seen_and_drops_it_when_its_ping_fails() -> None:
    table = table_of([128, 129], k=2)
    assert table.saw(contact(130), LATER) == contact(128)
    assert numbers(table) == [128, 129]  # the newcomer waits
    table.lost(peer(128))
    assert numbers(table) == [129, 130]


def test_who_answers_the_ping_stays_and_is_doubted_last() -> None:
    table = table_of([128, 129], k=2)
    assert table.saw(contact(130), LATER) == contact(128)
    table.saw(contact(128), LATER)
    assert numbers(table) == [129, 128]
    assert table.saw(contact(131), LATER) == contact(129)


def test_who_answered_lately_is_not_doubted() -> None:
    table = table_of([128, 129], k=2)
    assert table.saw(contact(130), DHT.suspect_after_s - 1) is None
    table.lost(peer(128))
    assert numbers(table) == [129, 130]  # it waits all the same


def test_of_those_who_wait_the_newest_moves_up() -> None:
    table = table_of([128, 130, 131, 132], k=1)
    table.saw(contact(130), 1.0)  # it answered again since the others
    table.lost(peer(128))
    assert numbers(table) == [130]
    table.lost(peer(130))
    assert numbers(table) == [132]


def test_who_waits_and_fails_waits_no_more() -> None:
    table = table_of([128, 130, 131], k=1)
    table.lost(peer(131))
    table.lost(peer(128))
    assert numbers(table) == [130]


def test_a_bounded_number_waits_and_the_oldest_goes_first() -> None:
    table = table_of(range(128, 130 + DHT.max_replacements), k=1)
    for gone in range(130 + DHT.max_replacements - 1, 129, -1):
        assert gone != 129, "the first that waited was pushed out"
        table.lost(peer(gone))
    table.lost(peer(128))
    assert len(table) == 0


def test_losing_a_stranger_changes_nothing() -> None:
    table = table_of([128], k=1)
    table.lost(peer(129))
    table.lost(peer(1))
    assert numbers(table) == [128]


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


# -- caps ---------------------------------------------------------------------------------------

SITE, PROVIDER = WIDTHS


def of_site(number: int, site: str = "8.8.8") -> Contact:
    return contact(number, f"/ip4/{site}.{number}/tcp/4001")


def of_provider(number: int) -> Contact:
    return contact(number, f"/ip4/8.8.{number}.1/tcp/4001")


def test_one_site_has_few_places_in_a_bucket_and_in_the_table() -> None:
    table = table_of([], k=20)
    for number in range(1, 256):
        table.saw(of_site(number), 0.0)
    in_bucket = [sum(n.bit_length() == length for n in numbers(table)) for length in range(1, 9)]
    assert max(in_bucket) == SITE.in_bucket
    assert len(table) == SITE.in_table
    assert not table.has_room_for(of_site(255))
    assert table.has_room_for(of_site(255, "9.9.9"))


def test_one_provider_has_a_quarter_of_a_bucket() -> None:
    table = table_of([], k=20)
    for number in range(128, 256):
        table.saw(of_provider(number), 0.0)
    assert len(table) == PROVIDER.in_bucket


def test_one_provider_has_its_part_of_the_whole_table() -> None:
    table = table_of([], k=20)
    for number in range(1, 1 << 12):
        table.saw(contact(number, f"/ip4/9.8.{number % 256}.{number // 256}/tcp/4001"), 0.0)
    assert len(table) == PROVIDER.in_table


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


def test_who_moves_is_counted_where_it_is_now() -> None:
    table = table_of([], k=20)
    for number in (128, 129):
        table.saw(of_site(number), 0.0)
    assert not table.has_room_for(of_site(130))
    table.saw(of_site(128, "9.9.9"), 1.0)
    assert table.has_room_for(of_site(130))
    assert sorted(numbers(table)) == [128, 129]


def test_who_moves_to_where_there_are_enough_goes_and_another_takes_its_place() -> None:
    table = table_of([128], k=3)
    for number in (129, 130):
        table.saw(of_site(number), 0.0)
    table.saw(contact(131), 0.0)
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


def test_all_that_a_peer_tells_of_counts() -> None:
    table = table_of([], k=20)
    for number in (128, 129):
        table.saw(of_site(number), 0.0)
    both = contact(130, "/ip4/9.9.9.9/tcp/1", *of_site(130).addresses)
    table.saw(both, 0.0)
    assert peer(130) not in table


def test_there_is_a_bound_in_all() -> None:
    table = RoutingTable(Key(0), parameters=DhtParameters(max_peers=10), key_of=key_of)
    for number in range(1, 256):
        table.saw(contact(number), 0.0)
    assert len(table) == 10
    assert not table.has_room_for(contact(255))


def test_names_lead_anywhere_and_count_as_one_place() -> None:
    assert {s.name for s in subnets(("/dns4/a.example/tcp/1", "/dns6/b.example/tcp/1"))} == {NAMED}
    assert {s.name for s in subnets(("nonsense",))} == {NAMED}
    assert subnets(()) == subnets(("/ip6/fe80::1/tcp/1", "/ip4/10.1.2.3/tcp/1")) == frozenset()


def test_a_site_is_a_24_or_a_48_and_a_provider_a_16_or_a_32() -> None:
    reported = ("/ip4/8.8.4.4/tcp/1", "/ip6/2a00:1450:4001:830::200e/tcp/1")
    assert {subnet.name for subnet in subnets(reported)} == {
        "8.8.4.0/24",
        "8.8.0.0/16",
        "2a00:1450:4001::/48",
        "2a00:1450::/32",
    }


def test_an_endpoint_is_host_and_port_whatever_follows() -> None:
    assert endpoints(("/ip4/8.8.4.4/tcp/1/p2p/someone", "/ip4/8.8.4.4/tcp/1")) == {
        "/ip4/8.8.4.4/tcp/1"
    }


# -- what was looked into -----------------------------------------------------------------------


def test_the_nearest_k_are_covered_by_looking_up_ourselves_and_the_other_buckets_are_not() -> None:
    table = table_of([1, 2, 3, 8, 9, 64, 65, 128], k=3)
    never = float("-inf")
    assert table.looks() == [(never, 0), (never, 4), (never, 5), (never, 6), (never, 7), (never, 8)]
    table.looked_into(Key(200), 5.0)
    table.looked_into(Key(0), 4.0)
    table.looked_into(Key(30), 3.0)
    assert table.looks()[-3:] == [(3.0, 5), (4.0, 0), (5.0, 8)]


def test_a_table_that_knows_nobody_has_only_itself_to_look_up() -> None:
    assert table_of([], k=3).looks() == [(float("-inf"), 0)]
