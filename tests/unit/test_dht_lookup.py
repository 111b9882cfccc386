"""The iterative lookup, in networks of peers who only know their own tables."""

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.core.keyspace import Key
from formation_p2p.dht.core.lookup import Lookup, PeerState
from formation_p2p.dht.core.parameters import DhtParameters
from formation_p2p.dht.core.routing import RoutingTable
from simulations.hostile import World, measure, starts

DHT = DhtParameters()

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


def states(lookup: Lookup) -> dict[PeerId, PeerState]:
    """What it knows of each peer."""
    return {peer_id: known.state for peer_id, known in lookup._known.items()}


def lookup_for(target: int, seeds: Sequence[int], *, width: int = 20, alpha: int = 10) -> Lookup:
    return lookup_of(Key(target), contacts(*seeds), width=width, alpha=alpha)


def lookup_of(
    target: Key,
    seeds: Iterable[Contact],
    *,
    width: int = 20,
    alpha: int = 10,
    spare: int = 0,
    there: Iterable[PeerId] = (),
) -> Lookup:
    return Lookup(
        target,
        seeds,
        own=OWN,
        width=width,
        alpha=alpha,
        spare=spare,
        key_of=key_of,
        there=frozenset(there),
    )


def run(
    lookup: Lookup, closer: Closer, rng: random.Random, before: Iterable[str] = ()
) -> list[PeerId]:
    """Ask until it is finished; answers come in any order. Returns who was asked, in order."""
    asked: list[PeerId] = []
    in_flight = [PeerId(peer_id) for peer_id in before]
    asked_before = lookup.asked
    while not lookup.finished:
        new = [each.peer_id for each in lookup.next_peers()]
        asked += new
        in_flight += new
        assert 0 < len(in_flight) <= DHT.alpha
        peer_id = in_flight.pop(rng.randrange(len(in_flight)))
        named = closer(peer_id)
        if named is None:
            lookup.failed(peer_id)
        else:
            lookup.answered(peer_id, named)
    assert len(asked) == len(set(asked)) == lookup.asked - asked_before
    assert lookup.asked <= DHT.max_asked
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
        table = RoutingTable(Key(own), parameters=DhtParameters(k=k), key_of=key_of)
        for number in nearest + rng.sample(keys, size // 2):
            table.saw(contact(number), 0.0)
        tables[PeerId(str(own))] = table
    return tables


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.at_length
def test_it_finds_the_k_closest_of_a_random_network(seed: int) -> None:
    rng = random.Random(seed)
    tables = network(rng, 200, 20)
    target = Key(rng.randrange(1 << 16))
    for start in rng.sample(sorted(tables), 8):
        lookup = lookup_of(target, tables[start].closest(target, 20))
        run(lookup, lambda peer: tables[peer].closest(target, 20), rng)
        truth = sorted(map(int, tables), key=lambda key: key ^ target)[:20]
        assert numbers(lookup.closest()) == truth
        assert lookup.asked < 60


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.at_length
def test_where_a_third_has_died_it_finds_the_closest_of_the_living(seed: int) -> None:
    rng = random.Random(seed)
    tables = network(rng, 200, 20)
    dead = set(rng.sample(sorted(tables), 66))
    start = tables[min(set(tables) - dead)]
    target = Key(rng.randrange(1 << 16))
    lookup = lookup_of(Key(target), start.closest(target, 20))
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
    assert len(asked) == DHT.max_asked
    assert len(lookup.closest()) == width


def test_where_all_in_the_own_table_have_died_few_timeouts_follow_one_another() -> None:
    lookup = lookup_for(0, range(1, 21), width=3)
    rounds = 0
    while not lookup.finished:
        rounds += 1
        for each in lookup.next_peers():  # all of a round wait at once
            lookup.failed(each.peer_id)
    assert rounds == 4  # of 3, 6, 10 and 1 peers; three at a time it would take seven
    assert lookup.closest() == ()


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
    few = lookup_for(0, range(1, 21), alpha=4)
    assert [numbers(few.next_peers()) for _ in range(2)] == [[1, 2, 3, 4], []]
    few.answered(PeerId("3"))
    assert numbers(few.next_peers()) == [5]


def test_it_does_not_wait_for_those_who_are_no_longer_among_the_nearest() -> None:
    lookup = lookup_for(0, [8, 9], width=2)
    lookup.next_peers()
    lookup.answered(PeerId("8"), contacts(1))
    lookup.next_peers()
    lookup.answered(PeerId("1"))
    assert lookup.finished
    assert numbers(lookup.closest()) == [1, 8]  # 9 has not answered


def test_oneself_and_one_that_is_named_without_an_address_are_not_asked() -> None:
    lookup = lookup_of(Key(0), [Contact(OWN, ("/ip4/10.0.0.1/tcp/1",)), *contacts(2)])
    assert numbers(lookup.next_peers()) == [2]
    lookup.answered(PeerId("2"), [Contact(PeerId("1"))])
    assert lookup.next_peers() == ()
    assert lookup.finished
    assert numbers(lookup.closest()) == [2]
    # A seed without an address may be connected, and is asked once.
    lookup = lookup_of(Key(0), [Contact(PeerId("1")), Contact(PeerId("2"))], width=2)
    assert numbers(lookup.next_peers()) == [1, 2]
    lookup.failed(PeerId("1"))
    lookup.answered(PeerId("2"), [Contact(PeerId("1"))])
    assert lookup.next_peers() == ()
    assert numbers(lookup.closest()) == [2]


def test_of_all_that_it_hears_it_keeps_a_bounded_number_and_those_are_the_nearest() -> None:
    lookup = lookup_for(0, [1 << 20])
    [first] = lookup.next_peers()
    heard = list(range(1, 5000))
    random.Random(2).shuffle(heard)
    lookup.answered(first.peer_id, contacts(*heard))
    assert Counter(states(lookup).values()) == {
        PeerState.CANDIDATE: DHT.max_candidates,
        PeerState.ANSWERED: 1,
    }
    asked = run(lookup, lambda peer: (), random.Random(3))
    assert sorted(map(int, asked)) == list(range(1, 21))


def test_the_doubtful_are_forgotten_before_those_who_are_believed() -> None:
    lookup = lookup_for(0, [5000, 6000], width=2)
    lookup.next_peers()
    lookup.answered(PeerId("5000"), contacts(*range(1, 400)))
    for number in (1, 2, 3):
        lookup.next_peers()
        lookup.failed(PeerId(str(number)))
    lookup.answered(PeerId("6000"), contacts(*range(1000, 1020)))
    kept = {int(each) for each, state in states(lookup).items() if state is PeerState.CANDIDATE}
    assert len(kept) == DHT.max_candidates
    assert kept >= set(range(1000, 1020))
    assert numbers(lookup.next_peers()) == [1000, 1001]


def test_who_failed_at_one_place_and_was_forgotten_may_come_back_at_another() -> None:
    lookup = lookup_for(0, [5000, 6000, 7000], width=3)
    lookup.next_peers()
    lookup.answered(PeerId("5000"), contacts(4000))
    lookup.next_peers()
    moved = Contact(PeerId("4000"), ("/ip4/10.0.0.2/tcp/1",))
    lookup.answered(PeerId("6000"), [moved])
    lookup.failed(PeerId("4000"))  # and waits to be asked at the second place
    lookup.answered(PeerId("7000"), contacts(*range(1, 450)))
    assert states(lookup)[PeerId("4000")] is PeerState.FAILED
    [*_, last] = lookup.next_peers()
    again = Contact(PeerId("4000"), ("/ip4/10.0.0.3/tcp/1",))
    lookup.answered(last.peer_id, [again])
    assert states(lookup)[PeerId("4000")] is PeerState.CANDIDATE


def test_it_is_narrow_on_its_way_and_wide_at_its_end() -> None:
    lookup = lookup_for(0, [50, 60, 70, 80], width=4, alpha=2)
    assert numbers(lookup.next_peers()) == [50, 60]
    lookup.answered(PeerId("50"), contacts(5, 6, 7, 8))
    assert numbers(lookup.next_peers()) == [5]
    asked = run(lookup, lambda peer: (), random.Random(1), before=["60", "5"])
    assert sorted(map(int, asked)) == [6, 7, 8]
    assert numbers(lookup.closest()) == [5, 6, 7, 8]


def test_one_that_is_slow_is_not_waited_for_where_there_is_one_to_spare() -> None:
    for spare in (0, 1):
        lookup = lookup_of(Key(0), contacts(1, 2, 3, 4), width=2, spare=spare)
        assert numbers(lookup.next_peers()) == [1, 2, 3][: 2 + spare]
        lookup.answered(PeerId("2"))
        assert not lookup.finished
        if spare:
            lookup.answered(PeerId("3"))
            assert numbers(lookup.closest()) == [2, 3]
        assert lookup.finished == bool(spare)


@given(st.data())
def test_nobody_who_was_named_and_is_nearer_is_left_unasked(data: st.DataObject) -> None:
    some = st.lists(st.integers(0, 255), max_size=20)
    named = {number: data.draw(some) for number in data.draw(some)}
    seeds = data.draw(some)
    width, alpha = data.draw(st.integers(1, 20)), data.draw(st.integers(1, 10))
    lookup = lookup_for(data.draw(st.integers(0, 255)), seeds, width=width, alpha=alpha)
    heard = set(seeds)

    def answer(peer: PeerId) -> tuple[Contact, ...]:
        heard.update(named.get(int(peer), []))
        return contacts(*named.get(int(peer), []))

    run(lookup, answer, random.Random(1))
    nearest = sorted(heard, key=lambda number: number ^ lookup.target)
    assert numbers(lookup.closest()) == nearest[:width]


def few_bits(rng: random.Random, size: int, k: int) -> dict[PeerId, RoutingTable]:
    """Peers with 8-bit keys, who joined one after the other: each knows its k nearest, and of the
    others what its buckets hold of a random half."""
    keys = rng.sample(range(256), size)
    tables = {}
    for own in keys:
        table = RoutingTable(Key(own), parameters=DhtParameters(k=k), key_of=key_of)
        others = [key for key in keys if key != own]
        nearest = sorted(others, key=lambda key: key ^ own)[:k]
        for number in nearest + rng.sample(others, size // 2):
            table.saw(contact(number), 0.0)
        tables[PeerId(str(own))] = table
    return tables


@given(st.integers(0, 1 << 32), st.integers(2, 200), st.integers(0, 255))
def test_who_is_surely_there_need_not_be_asked_and_all_is_found_that_was_found_before(
    seed: int, size: int, target: int
) -> None:
    rng = random.Random(seed)
    tables = few_bits(rng, size, 20)
    table = tables[rng.choice(sorted(tables))]
    seeds = table.known(Key(target), 20)

    def closer(peer: PeerId) -> tuple[Contact, ...]:
        return tables[peer].closest(Key(target), 20)

    plain = lookup_of(Key(target), seeds)
    run(plain, closer, rng)
    quick = lookup_of(Key(target), seeds, there=table.there(seeds, 0.0))
    run(quick, closer, rng)
    assert quick.closest() == plain.closest()
    assert quick.asked <= plain.asked
    if table.known(Key(target), 20) == plain.closest():
        assert quick.asked == min(DHT.beta, len(seeds))


@given(st.data())
def test_for_each_that_fails_one_more_of_those_who_are_there_is_asked(data: st.DataObject) -> None:
    alive = data.draw(st.sets(st.integers(1, 20)))
    lookup = lookup_of(Key(0), contacts(*range(1, 21)), there=map(PeerId, map(str, range(1, 21))))
    asked = run(lookup, lambda peer: () if int(peer) in alive else None, random.Random(1))
    answered = [int(peer) for peer in asked if int(peer) in alive]
    assert answered == sorted(alive)[: len(answered)]
    assert len(answered) == min(DHT.beta, len(alive))
    # Those beyond are believed, whether they have died since or not.
    assert numbers(lookup.closest()) == [*answered, *range(max(map(int, asked)) + 1, 21)]


def test_who_crowd_around_a_key_do_not_keep_it_from_asking_others() -> None:
    ground = [at(number, "45.9.0.1") for number in range(1, 9)]
    honest = [peer(number) for number in range(100, 112)]
    hidden = peer(50)
    lookup = lookup_of(
        Key(0), (*ground, *honest), there=(each.peer_id for each in (*ground, *honest))
    )
    run(lookup, lambda asked: [hidden] if int(asked) >= 100 else ground, random.Random(1))
    assert hidden in lookup.closest()


def anywhere(rng: random.Random) -> tuple[str, ...]:
    """A few of the addresses in three public subnets, and of private ones."""
    hosts = ["81.2.3.4", "81.2.4.5", "62.7.8.9", "10.0.0.1", "10.0.0.2"]
    return tuple(f"/ip4/{host}/tcp/1" for host in rng.sample(hosts, rng.randrange(1, 5)))


@given(st.integers(0, 1 << 32), st.integers(1, 20), st.integers(0, 2))
def test_wherever_peers_are_said_to_be_it_ends_and_tries_no_address_of_one_twice_alone(
    seed: int, width: int, spare: int
) -> None:
    rng = random.Random(seed)
    failing = rng.random()

    def anyone() -> list[Contact]:
        return [Contact(PeerId(str(rng.randrange(64))), anywhere(rng)) for _ in range(10)]

    lookup = lookup_of(Key(0), anyone(), width=width, spare=spare)
    tried: dict[PeerId, set[str]] = {}
    times: Counter[PeerId] = Counter()
    in_flight: list[PeerId] = []
    while not lookup.finished:
        for each in lookup.next_peers():
            assert each.peer_id not in in_flight
            assert not tried.get(each.peer_id, set()).issuperset(each.addresses)
            tried.setdefault(each.peer_id, set()).update(each.addresses)
            times[each.peer_id] += 1
            in_flight.append(each.peer_id)
        peer_id = in_flight.pop(rng.randrange(len(in_flight)))
        if rng.random() < failing:
            lookup.failed(peer_id)
        else:
            lookup.answered(peer_id, anyone())
    assert max(times.values()) <= DHT.max_places
    assert lookup.asked == sum(times.values()) <= DHT.max_asked


# Lookups among liars: each story is about one way to lie, and fails where nothing is done.


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
    for credulous in (False, True)[: 1 + (lie == "invent")]:
        world = World(300, 0.2, lie, 1, keys=8)
        reader = starts(5, 4, 1, credulous=credulous)
        writer = starts(8, 10, 0, credulous=credulous)
        figures[credulous] = measure(world, reader, writer, random.Random(1), 1 if credulous else 3)
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
