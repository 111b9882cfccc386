"""Which worker gets which rank, of the places that there are."""

import itertools
import random
from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.features.gangs.core.acquisition import FAR_US, Trips
from formation_p2p.features.gangs.core.choice import (
    MAX_PLACES,
    Arrangement,
    Place,
    choose,
    matched,
    nearest_together,
    plan,
)
from formation_p2p.leases.core.held import HeldResources
from formation_p2p.leases.core.lessee import CollectedOffer
from formation_p2p.leases.core.messages import Offer
from formation_p2p.machine.core.requirements import Requirements

SMALL = Requirements(cpu_milli=1000, driver="process")
LARGE = Requirements(cpu_milli=4000, driver="process")
A, B, C, D = (PeerId(name) for name in "abcd")


def places(*of: tuple[PeerId, Requirements, int]) -> list[Place]:
    return [Place(worker, needs) for worker, needs, count in of for _ in range(count)]


def flat(a: PeerId, b: PeerId) -> int:
    return 1


def seated(
    arrange: Arrangement,
    ranks: Sequence[Requirements],
    of: Sequence[Place],
    taken: Sequence[PeerId] = (),
) -> list[PeerId | None]:
    chosen = choose(arrange, dict(enumerate(ranks)), of, taken, flat)
    for rank, index in chosen.items():
        assert of[index].needs == ranks[rank]
    assert len(set(chosen.values())) == len(chosen)
    return [of[chosen[r]].worker if r in chosen else None for r in range(len(ranks))]


def test_a_worker_moves_to_another_rank_where_that_lets_one_more_in() -> None:
    assert matched({A: [0, 1], B: [0]}) == {0: B, 1: A}
    assert matched({A: [0], B: [0]}) == {0: A}
    assert matched({A: [0, 1], B: [0, 1], C: [0]}) == {0: A, 1: B}


@given(st.lists(st.sets(st.integers(0, 3)), max_size=5))
def test_as_many_are_matched_as_can_be(able: list[set[int]]) -> None:
    seats = matched({n: sorted(each) for n, each in enumerate(able)})
    assert all(seat in able[who] for seat, who in seats.items())
    choices = itertools.product(*([None, *each] for each in able))
    sizes = (
        len(used) if len(used) == len(set(used)) else 0
        for used in ([seat for seat in choice if seat is not None] for choice in choices)
    )
    assert len(seats) == max(sizes)


def test_packed_ones_take_as_few_workers_as_can_be() -> None:
    of = places((A, SMALL, 1), (B, SMALL, 3), (C, SMALL, 2))
    assert seated(Arrangement.PACK, [SMALL] * 4, of) == [B, B, B, A]
    assert seated(Arrangement.PACK, [SMALL] * 2, of, [A]) == [B, B]
    assert seated(Arrangement.PACK, [SMALL] * 7, of) == [B, B, B, C, C, A, None]
    assert seated(Arrangement.STRICT_PACK, [SMALL] * 3, of) == [B, B, B]
    assert seated(Arrangement.STRICT_PACK, [SMALL] * 4, of) == [None] * 4
    assert seated(Arrangement.STRICT_PACK, [SMALL] * 2, of, [C]) == [C, C]
    assert seated(Arrangement.STRICT_PACK, [SMALL], of, [D]) == [None]
    assert seated(Arrangement.PACK, [SMALL, LARGE], places((A, SMALL, 1), (B, LARGE, 1))) == [A, B]
    assert seated(Arrangement.PACK, [LARGE], places((A, SMALL, 1))) == [None]


def test_spread_ones_take_a_second_rank_after_all_have_one() -> None:
    of = places((A, SMALL, 3), (B, SMALL, 1))
    assert seated(Arrangement.SPREAD, [SMALL] * 4, of) == [A, B, A, A]
    assert seated(Arrangement.SPREAD, [SMALL] * 5, of) == [A, B, A, A, None]
    assert seated(Arrangement.SPREAD, [SMALL], of, [A]) == [B]
    assert seated(Arrangement.STRICT_SPREAD, [SMALL] * 2, of, [A]) == [B, None]


def asked(
    arrange: Arrangement,
    ranks: Sequence[Requirements],
    cores: dict[PeerId, int],
    before: Sequence[Place] = (),
    taken: Sequence[PeerId] = (),
) -> Counter[tuple[PeerId, Requirements]]:
    def fits(worker: PeerId, needs: Sequence[Requirements]) -> bool:
        return sum(each.cpu_milli for each in needs) <= cores[worker] * 1000

    kinds = list(dict.fromkeys(ranks))
    able = {w: [k for k in kinds if k.cpu_milli <= n * 1000] for w, n in cores.items()}
    able = {w: k for w, k in able.items() if k}
    found = plan(arrange, dict(enumerate(ranks)), able, Counter(before), taken, fits, 1.5)
    return Counter((place.worker, place.needs) for place in found)


def test_more_workers_are_asked_than_there_are_ranks() -> None:
    cores = {A: 1, B: 1, C: 1, D: 1}
    assert asked(Arrangement.STRICT_SPREAD, [SMALL] * 2, cores) == {
        (w, SMALL): 1 for w in (A, B, C)
    }
    before = places((A, SMALL, 1), (B, SMALL, 1))
    assert asked(Arrangement.STRICT_SPREAD, [SMALL], cores, before, [C]) == {(D, SMALL): 1}
    both = asked(Arrangement.STRICT_SPREAD, [SMALL, LARGE], {A: 4, B: 4, C: 1})
    assert both == {(A, SMALL): 1, (B, LARGE): 1, (C, SMALL): 1}
    spare = asked(Arrangement.STRICT_SPREAD, [SMALL, LARGE, LARGE], {A: 4, B: 4, C: 1, D: 4})
    assert spare == {(A, LARGE): 1, (B, LARGE): 1, (C, SMALL): 1, (D, SMALL): 1} or spare[D, LARGE]


def test_few_workers_are_asked_for_several_places() -> None:
    assert asked(Arrangement.SPREAD, [SMALL] * 5, {A: 2, B: 4}) == {(A, SMALL): 2, (B, SMALL): 3}
    assert asked(Arrangement.SPREAD, [SMALL] * 5, {A: 1, B: 2}) == {(A, SMALL): 1, (B, SMALL): 2}
    mixed = asked(Arrangement.SPREAD, [SMALL, LARGE, LARGE], {A: 1, B: 8})
    assert mixed == {(A, SMALL): 1, (B, LARGE): 2}
    assert asked(Arrangement.PACK, [SMALL] * 4, {A: 1, B: 3, C: 4}) == {
        (C, SMALL): 4,
        (B, SMALL): 3,
    }
    assert asked(Arrangement.PACK, [SMALL] * 2, {A: 1, B: 2}, (), [A]) == {
        (B, SMALL): 2,
        (A, SMALL): 1,
    }
    assert asked(Arrangement.STRICT_PACK, [SMALL] * 3, {A: 2, B: 3, C: 9, D: 9}) == {
        (B, SMALL): 3,
        (C, SMALL): 3,
    }
    assert asked(Arrangement.STRICT_PACK, [SMALL], {A: 2, B: 3}, (), [B]) == {(B, SMALL): 1}
    assert asked(Arrangement.PACK, [SMALL] * 20, {A: 64}) == {(A, SMALL): MAX_PLACES}
    again = asked(Arrangement.SPREAD, [SMALL] * 20, {A: 64}, places((A, SMALL, MAX_PLACES)))
    assert again == {}
    assert asked(Arrangement.PACK, [SMALL, LARGE], {A: 4}) == {(A, SMALL): 1}


def together(
    workers: Sequence[PeerId], size: int, far: dict[tuple[PeerId, PeerId], int]
) -> set[PeerId]:
    of = places(*((worker, SMALL, 1) for worker in workers))
    ranks = dict.fromkeys(range(size), SMALL)
    chosen = choose(Arrangement.RTT, ranks, of, (), lambda a, b: far[min(a, b), max(a, b)])
    return {of[index].worker for index in chosen.values()}


def test_the_nearest_to_each_other_are_chosen() -> None:
    """Three in one house, the others far off: whatever the order in which they are preferred."""
    workers = [PeerId(f"w{n}") for n in range(9)]
    house = {workers[2], workers[5], workers[8]}
    far = {(a, b): 1 if {a, b} <= house else 50 for a in workers for b in workers}
    assert together(workers, 3, far) == house
    assert together(workers[:2], 3, far) == set(workers[:2])


def test_a_replacement_is_near_to_those_who_stayed() -> None:
    far = {(A, B): 1, (A, C): 9, (B, C): 5}
    of = {w: {SMALL: [n]} for n, w in enumerate((C, B))}
    pair = nearest_together({0: SMALL}, [C, B], of, [A], lambda a, b: far[min(a, b), max(a, b)])
    assert pair == [B]


def test_the_larger_of_two_round_trips_counts() -> None:
    trips = Trips()

    def offer(worker: PeerId, own_us: int | None, *to: tuple[int, int]) -> CollectedOffer:
        held = Offer(1, "lease", HeldResources(1, 1), 0, 1000, beside=to)
        return CollectedOffer(Contact(worker), held, 1.0, own_us)

    offers = [offer(A, 10, (1, 5)), offer(B, 20, (0, 7), (2, 9)), offer(C, None), offer(D, 1)]
    trips.learn(offers, (A, B))
    assert trips.far_us(A, B) == trips.far_us(B, A) == 7
    assert trips.far_us(A, D) == 11
    assert trips.far_us(A, C) == FAR_US
    assert trips.known_us(A, C) is None
    trips.keep({A, D})
    assert trips.known_us(A, B) == 5
    assert trips.known_us(B, D) is None
    assert trips.known_us(A, D) == 11


@pytest.mark.parametrize("seed", range(2))
def test_the_choice_is_as_good_as_the_best_of_all_in_clusters(seed: int) -> None:
    rng = random.Random(seed)
    workers = [PeerId(f"w{n:02}") for n in range(12)]
    home = {worker: rng.randrange(3) for worker in workers}
    far = {
        (a, b): rng.randint(1, 5) + (0 if home[a] == home[b] else 40)
        for a, b in itertools.combinations(workers, 2)
    }

    def total(chosen: Sequence[PeerId]) -> int:
        return sum(far[min(a, b), max(a, b)] for a, b in itertools.combinations(chosen, 2))

    best = min(map(total, itertools.combinations(workers, 4)))
    assert total(sorted(together(workers, 4, far))) <= 1.15 * best
