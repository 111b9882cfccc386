"""Which worker gets which rank: chosen for all ranks together, as they are to lie.

A place is one lease that a worker offers, or could, for a rank of one kind. What is asked of whom
is planned here too, by the same rules.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar, assert_never

from formation_p2p.core.identity import PeerId
from formation_p2p.machine.core.requirements import Requirements

Seat = TypeVar("Seat", bound=Hashable)
Who = TypeVar("Who", bound=Hashable)

# Offers that one worker keeps open for one owner (leases/core/parameters.py).
MAX_PLACES: Final = 16
# Of a choice by distance: so many workers are begun from. In 360 clustered cases of 20 workers the
# best of all choices is found in 356, and what is found instead takes 1.13 times as long at worst.
STARTS: Final = 16

# Whether a worker could have all of these at once.
Fits = Callable[[PeerId, Sequence[Requirements]], bool]
# How far two workers are from each other, in microseconds of a round trip.
Far = Callable[[PeerId, PeerId], int]


class Arrangement(StrEnum):
    """How the members of a gang lie."""

    STRICT_SPREAD = "strict_spread"  # each on a worker of its own
    SPREAD = "spread"  # over as many workers as there are
    PACK = "pack"  # on as few workers as can be
    STRICT_PACK = "strict_pack"  # all on one
    RTT = "rtt"  # each on a worker of its own, near to each other

    @property
    def is_apart(self) -> bool:
        """Whether a worker gets one rank at most."""
        return self in (Arrangement.STRICT_SPREAD, Arrangement.RTT)


@dataclass(frozen=True, slots=True)
class Place:
    worker: PeerId
    needs: Requirements


def matched(able: Mapping[Who, Sequence[Seat]]) -> dict[Seat, Who]:
    """One worker for each rank, and one rank for each worker: as many ranks as can be, by the
    workers that come first. `able` says for which ranks each worker would do, the best first.

    The workers that can be matched together are a transversal matroid, so that taking them one
    after the other, each where the others still fit, gives the best of all sets. Source: Edmonds
    and Fulkerson, "Transversals and matroid partition", 1965.
    """
    seats: dict[Seat, Who] = {}

    def seated(who: Who, tried: set[Seat]) -> bool:
        free = next((seat for seat in able[who] if seat not in seats), None)
        if free is not None:
            seats[free] = who
            return True
        for seat in able[who]:
            if seat not in tried:
                tried.add(seat)
                if seated(seats[seat], tried):
                    seats[seat] = who
                    return True
        return False

    for who in able:
        seated(who, set())
    return seats


def choose(
    arrange: Arrangement,
    ranks: Mapping[int, Requirements],
    places: Sequence[Place],
    taken: Collection[PeerId],
    far: Far,
) -> dict[int, int]:
    """The index of a place for each rank, as far as there is one. Places come in the order in
    which their workers are preferred; `taken` are the workers of the gang's other members."""
    stock: dict[PeerId, dict[Requirements, list[int]]] = {}
    for index, place in enumerate(places):
        stock.setdefault(place.worker, {}).setdefault(place.needs, []).append(index)
    match arrange:
        case Arrangement.STRICT_SPREAD:
            order = [worker for worker in stock if worker not in taken]
            return _taken(_one_each(ranks, order, stock), ranks, stock)
        case Arrangement.RTT:
            order = [worker for worker in stock if worker not in taken]
            order = nearest_together(ranks, order, stock, taken, far)
            return _taken(_one_each(ranks, order, stock), ranks, stock)
        case Arrangement.SPREAD:
            return _spread(ranks, stock, taken)
        case Arrangement.PACK | Arrangement.STRICT_PACK:
            return _packed(ranks, stock, taken, whole=arrange is Arrangement.STRICT_PACK)
        case _:
            assert_never(arrange)


Stock = Mapping[PeerId, Mapping[Requirements, list[int]]]


def _one_each(
    ranks: Mapping[int, Requirements], order: Iterable[PeerId], stock: Stock
) -> dict[int, PeerId]:
    able = {w: [rank for rank, needs in ranks.items() if stock[w].get(needs)] for w in order}
    return matched(able)


def _taken(
    seats: Mapping[int, PeerId], ranks: Mapping[int, Requirements], stock: Stock
) -> dict[int, int]:
    return {rank: stock[worker][ranks[rank]].pop(0) for rank, worker in seats.items()}


def _spread(
    ranks: Mapping[int, Requirements], stock: Stock, taken: Collection[PeerId]
) -> dict[int, int]:
    """One rank for each worker, then a second one for each, and so on."""
    chosen: dict[int, int] = {}
    order = sorted(stock, key=lambda worker: worker in taken)
    while left := {rank: needs for rank, needs in ranks.items() if rank not in chosen}:
        more = _taken(_one_each(left, order, stock), left, stock)
        if not more:
            break
        chosen |= more
    return chosen


def _packed(
    ranks: Mapping[int, Requirements], stock: Stock, taken: Collection[PeerId], *, whole: bool
) -> dict[int, int]:
    """The worker that has places for most ranks, then the one for most of the rest. With `whole`
    one for all of them, that of the other members where there are any."""
    chosen: dict[int, int] = {}
    order = sorted(stock, key=lambda worker: worker not in taken)
    if whole and taken:
        order = [worker for worker in order if worker in taken]

    def has(worker: PeerId) -> list[int]:
        count = Counter({needs: len(places) for needs, places in stock[worker].items()})
        held: list[int] = []
        for rank, needs in ranks.items():
            if rank not in chosen and count[needs]:
                count[needs] -= 1
                held.append(rank)
        return held

    while order and len(chosen) < len(ranks):
        best = max(order, key=lambda worker: len(has(worker)))
        held = has(best)
        if not held or (whole and len(held) < len(ranks)):
            break
        chosen |= {rank: stock[best][ranks[rank]].pop(0) for rank in held}
        order.remove(best)
    return chosen


def nearest_together(
    ranks: Mapping[int, Requirements],
    order: Sequence[PeerId],
    stock: Stock,
    taken: Collection[PeerId],
    far: Far,
) -> list[PeerId]:
    """Of these workers as many as there are ranks, which can have them, with the least round trips
    between all of them and those `taken`: grown from several of them, each bettered by swaps."""
    size = len(ranks)
    if len(order) <= size or len(_one_each(ranks, order, stock)) < size:
        return list(order)
    known = {(a, b): far(a, b) for a in order for b in (*order, *taken) if a != b}

    def suits(workers: Sequence[PeerId]) -> bool:
        return len(_one_each(ranks, workers, stock)) == len(workers)

    def added(worker: PeerId, to: Iterable[PeerId]) -> int:
        return sum(known[worker, other] for other in to if other != worker)

    best: tuple[int, list[PeerId]] | None = None
    for start in order[:STARTS]:
        chosen = [start]
        while len(chosen) < size:
            together = (*chosen, *taken)
            others = [each for each in order if each not in chosen and suits([*chosen, each])]
            chosen.append(min(others, key=lambda each: added(each, together)))
        while swap := _swap(chosen, order, taken, added, suits):
            chosen[chosen.index(swap[0])] = swap[1]
        total = sum(added(each, chosen) + 2 * added(each, taken) for each in chosen)
        if best is None or total < best[0]:
            best = total, chosen
    assert best is not None
    return sorted(best[1], key=order.index)


def _swap(
    chosen: Sequence[PeerId],
    order: Sequence[PeerId],
    taken: Collection[PeerId],
    added: Callable[[PeerId, Iterable[PeerId]], int],
    suits: Callable[[Sequence[PeerId]], bool],
) -> tuple[PeerId, PeerId] | None:
    """One worker for another, where that brings them nearer."""
    for gone in chosen:
        rest = [each for each in chosen if each != gone]
        together = (*rest, *taken)
        for new in order:
            nearer = new not in chosen and added(new, together) < added(gone, together)
            if nearer and suits([*rest, new]):
                return gone, new
    return None


def plan(
    arrange: Arrangement,
    ranks: Mapping[int, Requirements],
    able: Mapping[PeerId, Collection[Requirements]],
    asked: Counter[Place],
    taken: Collection[PeerId],
    fits: Fits,
    more: float,
) -> list[Place]:
    """The places to ask for, for these ranks: `more` times as many as these, as far as there are.
    `able` says for which kinds each worker would do, the preferred one first; `asked` are the
    places that it was asked for before."""
    wanted = math.ceil(len(ranks) * more)
    fresh = {w: able[w] for w in able if not any(place.worker == w for place in asked)}
    if arrange.is_apart:
        return _apart(ranks, {w: k for w, k in fresh.items() if w not in taken}, wanted)
    if arrange is Arrangement.SPREAD:
        places = _apart(ranks, fresh, wanted)
        return places + _more_each(
            ranks, able, asked + Counter(places), fits, len(ranks) - len(places)
        )
    workers = [worker for worker in able if not taken or worker in taken]
    if arrange is Arrangement.PACK:
        workers += [worker for worker in able if worker not in workers]
    filled = {w: _filled(ranks, able[w], w, fits) for w in workers if w in fresh}
    if arrange is Arrangement.STRICT_PACK:
        whole = [each for each in filled.values() if len(each) == len(ranks)]
        return [place for each in whole[: math.ceil(more)] for place in each]
    places = []
    for each in sorted(filled.values(), key=len, reverse=True):
        places += each if len(places) < wanted else []
    return places


def _apart(
    ranks: Mapping[int, Requirements],
    able: Mapping[PeerId, Collection[Requirements]],
    wanted: int,
) -> list[Place]:
    """One place of each worker: those that fit together first, then others, of the kinds that are
    asked for least."""
    seats = matched({w: [r for r, needs in ranks.items() if needs in able[w]] for w in able})
    places = {worker: ranks[rank] for rank, worker in seats.items()}
    count = Counter(places.values())
    for worker, kinds in able.items():
        if len(places) >= wanted:
            break
        if worker not in places:
            # By the part of its ranks that a kind has places for.
            share = Counter(ranks.values())
            kind = min(kinds, key=lambda each: count[each] / share[each])
            places[worker] = kind
            count[kind] += 1
    return [Place(worker, places[worker]) for worker in able if worker in places]


def _more_each(
    ranks: Mapping[int, Requirements],
    able: Mapping[PeerId, Collection[Requirements]],
    asked: Counter[Place],
    fits: Fits,
    lacking: int,
) -> list[Place]:
    """So many more places, of workers that were asked for some: one of each, then another."""
    places: list[Place] = []
    left = list(ranks.values())[max(0, len(ranks) - lacking) :]
    grown = True
    while left and grown:
        grown = False
        for worker, kinds in able.items():
            has = [p.needs for p in asked.elements() if p.worker == worker]
            kind = next((each for each in left if each in kinds), None)
            if kind is None or len(has) >= MAX_PLACES or not fits(worker, [*has, kind]):
                continue
            left.remove(kind)
            places.append(Place(worker, kind))
            asked[places[-1]] += 1
            grown = True
    return places


def _filled(
    ranks: Mapping[int, Requirements],
    kinds: Collection[Requirements],
    worker: PeerId,
    fits: Fits,
) -> list[Place]:
    """As many of the ranks as one worker could have together."""
    has: list[Requirements] = []
    for needs in ranks.values():
        if needs in kinds and len(has) < MAX_PLACES and fits(worker, [*has, needs]):
            has.append(needs)
    return [Place(worker, needs) for needs in has]
