"""Lookups among liars: each story is about one way to lie, and fails where nothing is done."""

import random
from collections.abc import Iterable, Mapping

import pytest

from formation_p2p.core.dht.lookup import Lookup
from formation_p2p.core.dht.parameters import DhtParameters
from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.core.keyspace import Key
from simulations.hostile import World, measure, starts

DHT = DhtParameters()

OWN = PeerId("100000")


def key_of(peer_id: PeerId) -> Key:
    return Key(int(peer_id))


def at(number: int, *hosts: str) -> Contact:
    return Contact(PeerId(str(number)), tuple(f"/ip4/{host}/tcp/{number}" for host in hosts))


def peer(number: int) -> Contact:
    return at(number, f"{60 + number % 40}.{number // 40 % 256}.1.1")


def peers(numbers: Iterable[int]) -> list[Contact]:
    return [peer(number) for number in numbers]


def lookup_of_nought(seeds: Iterable[Contact], *, width: int) -> Lookup:
    return Lookup(Key(0), seeds, own=OWN, width=width, alpha=DHT.alpha, key_of=key_of)


def drive(lookup: Lookup, network: Mapping[Contact, Iterable[Contact]]) -> list[Contact]:
    """Whoever is asked where it is answers in its turn; all others fail. Returns the asked."""
    asked: list[Contact] = []
    while not lookup.finished:
        for each in lookup.next_peers():
            asked.append(each)
            if each in network:
                lookup.answered(each.peer_id, network[each])
            else:
                lookup.failed(each.peer_id)
    return asked


def found(lookup: Lookup) -> list[int]:
    return [int(each.peer_id) for each in lookup.closest()]


def test_who_invents_peers_is_believed_for_a_few_of_them_and_then_no_more() -> None:
    network = {peer(1000): peers(range(1, 21)), peer(2000): [], peer(3000): []}
    lookup = lookup_of_nought(network, width=3)
    asked = drive(lookup, network)
    assert len(asked) == 3 + DHT.credit
    assert found(lookup) == [1000, 2000, 3000]


def test_no_more_wait_on_one_peers_word_than_its_credit_is_worth() -> None:
    lookup = lookup_of_nought(peers([1000, 2000]), width=8)
    lookup.next_peers()
    lookup.answered(PeerId("1000"), peers(range(1, 21)))
    assert len(lookup.next_peers()) == DHT.credit
    lookup.answered(PeerId("2000"), peers(range(100, 120)))
    assert [int(each.peer_id) for each in lookup.next_peers()] == [100, 101, 102]


def test_whom_an_honest_one_names_too_is_asked_whatever_else_a_liar_said() -> None:
    network = {peer(1000): peers(range(1, 21)), peer(2000): peers([7]), peer(7): []}
    lookup = lookup_of_nought(peers([1000, 2000]), width=2)
    drive(lookup, network)
    assert found(lookup) == [7, 1000]


def test_a_gate_that_knows_mostly_dead_ones_still_lets_a_newcomer_in() -> None:
    living = {peer(number): peers(range(1, 21)) for number in (8, 13, 20)}
    network = {peer(1000): peers(range(1, 21)), **living}
    lookup = lookup_of_nought(peers([1000]), width=4)
    drive(lookup, network)
    assert found(lookup) == [8, 13, 20, 1000]


def test_a_peer_that_a_liar_misplaced_is_asked_where_another_one_says_it_is() -> None:
    network = {peer(1000): [at(1, "99.9.9.9")], peer(2000): peers([1]), peer(1): []}
    lookup = lookup_of_nought(peers([1000, 2000]), width=2)
    asked = drive(lookup, network)
    assert asked[2:] == [at(1, "99.9.9.9"), peer(1)]
    assert found(lookup) == [1, 1000]
    assert lookup.closest()[0] == peer(1)


def test_where_they_differ_a_peer_is_asked_first_where_most_say_it_is() -> None:
    lookup = lookup_of_nought(peers([1000, 2000, 3000]), width=3)
    lookup.next_peers()
    for number, where in ((1000, at(1, "99.9.9.9")), (2000, peer(1)), (3000, peer(1))):
        lookup.answered(PeerId(str(number)), [where])
    assert lookup.next_peers() == (peer(1),)


def test_liars_cannot_have_a_peer_dialled_in_ever_more_places() -> None:
    liars = {peer(1000 + n): [at(1, f"99.9.{n}.9")] for n in range(10)}
    lookup = lookup_of_nought(liars, width=11)
    asked = drive(lookup, liars)
    assert sum(each.peer_id == "1" for each in asked) == DHT.max_places
    assert len(found(lookup)) == 10


def test_of_many_ids_ground_near_a_key_on_one_machine_few_count() -> None:
    sybils = [at(number, "45.9.9.9") for number in range(1, 41)]
    honest = peers(range(1000, 1020))
    network = dict.fromkeys(sybils, sybils) | dict.fromkeys(honest, honest + sybils[:2])
    lookup = lookup_of_nought(honest[10:], width=5)
    asked = drive(lookup, network)
    assert found(lookup) == [1, 2, 1000, 1001, 1002]
    assert len(asked) < 15


def test_where_all_are_in_one_subnet_the_nearest_are_found_all_the_same() -> None:
    campus = [at(number, "129.132.1.1") for number in range(1, 60)]
    network = {each: campus[max(n - 20, 0) : n] for n, each in enumerate(campus)}
    lookup = lookup_of_nought(campus[-3:], width=8)
    drive(lookup, network)
    assert found(lookup) == [1, 2, 3, 4, 5, 6, 7, 8]


def test_who_claims_to_be_everywhere_crowds_nobody_out() -> None:
    honest = peers(range(1000, 1005))
    everywhere = [each.addresses[0].split("/")[2] for each in honest]
    sybils = [at(number, "45.9.9.9", *everywhere) for number in (1, 2)]
    reached = [at(number, "45.9.9.9") for number in (1, 2)]
    network = dict.fromkeys(reached, sybils) | dict.fromkeys(honest, honest + sybils)
    lookup = lookup_of_nought(honest[2:], width=5)
    drive(lookup, network)
    assert found(lookup) == [1, 2, 1000, 1001, 1002]


def test_a_peer_with_addresses_in_two_networks_is_asked_in_both() -> None:
    two = at(1, "62.1.1.1", "10.0.0.1", "81.1.1.1")
    lookup = lookup_of_nought([two], width=1)
    assert lookup.next_peers() == (at(1, "62.1.1.1", "10.0.0.1"),)
    lookup.failed(PeerId("1"))
    assert lookup.next_peers() == (at(1, "81.1.1.1"),)
    lookup.answered(PeerId("1"))
    assert lookup.closest() == (at(1, "81.1.1.1"),)


@pytest.mark.parametrize("lie", ["invent", "collude", "misplace", "truncate", "silent"])
@pytest.mark.at_length
def test_among_a_fifth_of_liars_records_are_found_at_a_bounded_cost(lie: str) -> None:
    figures = {}
    for credulous in (False, True):
        world = World(300, 0.2, lie, 1, keys=8)
        reader = starts(5, 4, 1, credulous=credulous)
        writer = starts(8, 10, 0, credulous=credulous)
        figures[credulous] = measure(world, reader, writer, random.Random(1), 3)
    assert figures[False]["found_share"] >= 0.95
    assert figures[False]["requests_read"] < 20
    if lie == "invent":
        assert figures[True]["requests_read"] > 30


@pytest.mark.at_length
def test_a_machine_full_of_ids_next_to_the_key_hides_nothing() -> None:
    world = World(300, 0.0, "collude", 1, keys=8, sybils=30)
    figures = measure(world, starts(5, 4, 1), starts(8, 10, 0), random.Random(1), 3)
    assert figures["found_share"] == 1.0
    assert figures["honest_holders"] == 6.0
