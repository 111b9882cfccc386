"""The iterative lookup, in networks of peers who only know their own tables."""

import random
from collections.abc import Callable, Iterable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.dht.lookup import ALPHA, MAX_ASKED, Lookup
from formation_p2p.dht.routing import RoutingTable
from formation_p2p.effects import Contact
from formation_p2p.identity import PeerId
from formation_p2p.keyspace import Key

OWN = PeerId("100000")
Closer = Callable[[PeerId], Iterable[Contact] | None]
"""Whom a peer names when it is asked; None if it never answers."""


def key_of(peer_id: PeerId) -> Key:
    return Key(int(peer_id))


def contact(number: int) -> Contact:
    return Contact(PeerId(str(number)), (f"/ip4/10.0.0.1/tcp/{number}",))


def contacts(*numbers: int) -> tuple[Contact, ...]:
    return tuple(contact(number) for number in numbers)


def numbers(found: Iterable[Contact]) -> list[int]:
    return [int(each.peer_id) for each in found]


def lookup_for(target: int, seeds: Sequence[int], *, width: int = 20, alpha: int = 10) -> Lookup:
    return Lookup(Key(target), contacts(*seeds), own=OWN, width=width, alpha=alpha, key_of=key_of)


def run(lookup: Lookup, closer: Closer, rng: random.Random) -> list[PeerId]:
    """Ask until it is finished; answers come in any order. Returns who was asked, in order."""
    asked: list[PeerId] = []
    under_way: list[PeerId] = []
    before = lookup.asked
    while not lookup.finished:
        new = [each.peer_id for each in lookup.next_peers()]
        asked += new
        under_way += new
        assert 0 < len(under_way) <= ALPHA
        peer_id = under_way.pop(rng.randrange(len(under_way)))
        named = closer(peer_id)
        if named is None:
            lookup.failed(peer_id)
        else:
            lookup.answered(peer_id, named)
    assert len(asked) == len(set(asked)) == lookup.asked - before
    assert lookup.asked <= MAX_ASKED
    assert lookup.next_peers() == ()
    return asked


def network(rng: random.Random, size: int, k: int) -> dict[PeerId, RoutingTable]:
    """Peers with 16-bit keys, each with what its k-buckets hold of a random half of the others.

    Of its k nearest it knows all, as after a lookup of its own key.
    """
    keys = rng.sample(range(1, 1 << 16), size)
    tables = {}
    for own in keys:
        nearest = sorted(keys, key=lambda key: key ^ own)[: k + 1]
        table = RoutingTable(Key(own), k=k, key_of=key_of)
        for number in nearest + rng.sample(keys, size // 2):
            table.saw(contact(number), 0.0)
        tables[PeerId(str(own))] = table
    return tables


@pytest.mark.parametrize("seed", range(8))
def test_it_finds_the_k_closest_of_a_random_network(seed: int) -> None:
    rng = random.Random(seed)
    tables = network(rng, 300, 20)
    target = Key(rng.randrange(1 << 16))
    for start in rng.sample(sorted(tables), 10):
        lookup = Lookup(target, tables[start].closest(target, 20), own=OWN, key_of=key_of)
        run(lookup, lambda peer: tables[peer].closest(target, 20), rng)
        truth = sorted(map(int, tables), key=lambda key: key ^ target)[:20]
        assert numbers(lookup.closest()) == truth
        assert lookup.asked < 60


@pytest.mark.parametrize("seed", range(8))
def test_where_a_third_has_died_it_finds_the_closest_of_the_living(seed: int) -> None:
    rng = random.Random(seed)
    tables = network(rng, 200, 20)
    dead = set(rng.sample(sorted(tables), 66))
    start = tables[min(set(tables) - dead)]
    target = Key(rng.randrange(1 << 16))
    lookup = Lookup(target, start.closest(target, 20), own=OWN, key_of=key_of)
    run(lookup, lambda peer: None if peer in dead else tables[peer].closest(target, 20), rng)
    truth = sorted(map(int, set(tables) - dead), key=lambda key: key ^ target)[:20]
    assert numbers(lookup.closest()) == truth


@given(st.integers(0, 1 << 32), st.integers(1, 20))
def test_whatever_peers_answer_it_ends_and_asks_nobody_twice(seed: int, width: int) -> None:
    rng = random.Random(seed)
    failing = rng.random()
    answered: set[PeerId] = set()

    def anyone() -> list[int]:
        return [rng.randrange(256) for _ in range(rng.randrange(20))]

    def closer(peer: PeerId) -> Iterable[Contact] | None:
        if rng.random() < failing:
            return None
        answered.add(peer)
        return contacts(*anyone())

    lookup = lookup_for(rng.randrange(256), anyone(), width=width)
    run(lookup, closer, rng)
    found = numbers(lookup.closest())
    assert found == sorted(found, key=lambda number: number ^ lookup.target)
    assert len(found) <= width
    assert set(map(str, found)) <= answered


@pytest.mark.parametrize("width", [3, 20])
def test_liars_who_invent_ever_nearer_peers_are_left_after_a_bounded_number(width: int) -> None:
    inventions = iter(range(1 << 60, 0, -1))

    def closer(peer: PeerId) -> Iterable[Contact]:
        return [contact(next(inventions)) for _ in range(20)]

    lookup = lookup_for(0, [1 << 61], width=width)
    asked = run(lookup, closer, random.Random(1))
    assert len(asked) == MAX_ASKED
    assert len(lookup.closest()) == width


def test_what_a_liar_invents_costs_few_timeouts_one_after_the_other() -> None:
    lookup = lookup_for(0, [1000, 2000, 3000], width=3)
    assert numbers(lookup.next_peers()) == [1000, 2000, 3000]
    lookup.answered(PeerId("1000"), contacts(*range(1, 21)))  # none of these exists
    for honest in ("2000", "3000"):
        lookup.answered(PeerId(honest))
    rounds = 0
    while not lookup.finished:
        rounds += 1
        for each in lookup.next_peers():  # all of a round wait at once
            lookup.failed(each.peer_id)
    assert rounds == 4  # of 3, 6, 10 and 1 peers; three at a time it would take seven
    assert numbers(lookup.closest()) == [1000, 2000, 3000]


def test_where_nobody_fails_nobody_is_asked_ahead_of_his_turn() -> None:
    lookup = lookup_for(0, range(1, 11), width=3)
    assert numbers(lookup.next_peers()) == [1, 2, 3]
    for peer in ("1", "2"):
        lookup.answered(PeerId(peer))
        assert lookup.next_peers() == ()
    lookup.failed(PeerId("3"))
    assert numbers(lookup.next_peers()) == [4, 5]
    lookup.answered(PeerId("4"))
    assert lookup.finished  # it needs no word from 5
    assert numbers(lookup.closest()) == [1, 2, 4]


def test_no_more_than_alpha_are_asked_at_once() -> None:
    lookup = lookup_for(0, range(1, 21), alpha=4)
    assert numbers(lookup.next_peers()) == [1, 2, 3, 4]
    assert lookup.next_peers() == ()
    lookup.answered(PeerId("3"))
    assert numbers(lookup.next_peers()) == [5]


def test_a_nearer_peer_that_one_names_is_asked_next() -> None:
    lookup = lookup_for(0, [8, 9], width=2, alpha=2)
    lookup.next_peers()
    lookup.answered(PeerId("9"), contacts(1))
    assert numbers(lookup.next_peers()) == [1]


def test_it_does_not_wait_for_those_who_are_no_longer_among_the_nearest() -> None:
    lookup = lookup_for(0, [8, 9], width=2)
    lookup.next_peers()
    lookup.answered(PeerId("8"), contacts(1))
    lookup.next_peers()
    lookup.answered(PeerId("1"))
    assert lookup.finished
    assert numbers(lookup.closest()) == [1, 8]  # 9 has not answered


def test_oneself_and_who_has_no_address_are_not_asked() -> None:
    lookup = Lookup(Key(0), [Contact(OWN, ("/ip4/10.0.0.1/tcp/1",)), Contact(PeerId("1"))], own=OWN)
    assert lookup.next_peers() == ()
    assert lookup.finished
    assert lookup.closest() == ()
    assert lookup.asked == 0


def test_of_all_that_it_hears_it_keeps_a_bounded_number_and_those_are_the_nearest() -> None:
    lookup = lookup_for(0, [1 << 20])
    [first] = lookup.next_peers()
    heard = list(range(1, 5000))
    random.Random(2).shuffle(heard)
    lookup.answered(first.peer_id, contacts(*heard))
    assert len(lookup._contacts) == MAX_ASKED + 1
    asked = run(lookup, lambda peer: None, random.Random(3))
    # The seed was the first of those that may be asked at all.
    assert sorted(map(int, asked)) == list(range(1, MAX_ASKED))
    assert numbers(lookup.closest()) == [1 << 20]
