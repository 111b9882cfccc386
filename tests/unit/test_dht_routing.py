"""K-buckets, in a world of eight bits: our own key is 0, so a peer's number is its distance."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.dht.routing import DOUBT_AFTER_S, MAX_REPLACEMENTS, RoutingTable
from formation_p2p.effects import Contact
from formation_p2p.identity import PeerId
from formation_p2p.keyspace import Key

LATER = DOUBT_AFTER_S


def key_of(peer_id: PeerId) -> Key:
    return Key(int(peer_id))


def peer(number: int) -> PeerId:
    return PeerId(str(number))


def contact(number: int, *addresses: str) -> Contact:
    return Contact(peer(number), addresses or (f"/ip4/10.0.0.{number}/tcp/4001",))


def table_of(numbers: Iterable[int], *, k: int, own: int = 0) -> RoutingTable:
    table = RoutingTable(Key(own), k=k, key_of=key_of)
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
    assert not table.has_room_for(peer(7))


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
    assert table.saw(contact(130), DOUBT_AFTER_S - 1) is None
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
    table = table_of(range(128, 130 + MAX_REPLACEMENTS), k=1)
    for gone in range(130 + MAX_REPLACEMENTS - 1, 129, -1):
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
    assert table.has_room_for(peer(number)) == room


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
