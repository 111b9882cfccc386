"""What work weighs and costs, and who does it for the least."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.tariffs import (
    offered_price_micro,
    price_behind_queue_micro,
    price_under_load_micro,
    starts_in_ms,
    unit_price_micro,
)
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.placement.policies import ONE_UNIT, Cheapest, weight, weight_of
from formation_p2p.core.refusals import TooDear
from formation_p2p.core.resources.capability import Capability, Capacity
from formation_p2p.core.resources.fits import GpuClaim
from formation_p2p.core.resources.gpu import Gpu
from formation_p2p.core.resources.requirements import Requirements
from formation_p2p.core.units import GIB
from tests.support.placement_world import SMALL, order, peer, placed, profile, task, worker


def with_gpu(memory_gib: int) -> Capability:
    card = Gpu("G0", "nvidia", "h100", memory_gib * GIB, 90)
    return Capability(8000, 16 * GIB, gpus=(card,))


def test_a_core_weighs_one_and_all_else_its_part_of_that() -> None:
    assert weight(cpu_milli=1000) == ONE_UNIT
    assert weight(gpu_bytes=GIB) == 25 * ONE_UNIT
    assert weight(memory_bytes=10 * GIB) == ONE_UNIT
    assert weight(storage_bytes=100 * GIB) == ONE_UNIT
    needs = Requirements(cpu_milli=500, memory_bytes=5 * GIB, storage_bytes=10 * GIB, gpu_count=1)
    claims = (GpuClaim("G0", 1000, 2 * GIB),)
    assert weight_of(needs, claims) == 51.1 * ONE_UNIT


def test_the_price_of_a_unit_is_rounded_up_and_of_nothing_there_is_none() -> None:
    assert unit_price_micro(100_000_000, weight(cpu_milli=8000)) == 12_500_000
    assert unit_price_micro(1, weight(cpu_milli=8000)) == 1
    with pytest.raises(InvalidInput, match="nothing is offered"):
        unit_price_micro(100, weight())


def test_the_lowest_price_comes_first_and_twice_of_it_scores_half() -> None:
    candidates = [
        worker(profile("dear", price_micro=399)),
        worker(profile("cheap", price_micro=99)),
        worker(profile("middling", price_micro=199)),
    ]
    ranked = placed(task(), candidates, Cheapest()).ranked
    assert [each.profile.price_micro for each in ranked] == [99, 199, 399]
    assert [each.score.value for each in ranked] == [1.0, 0.5, 0.25]


def test_beside_a_worker_that_is_free_the_cheaper_one_is_still_told_from_the_dearer() -> None:
    candidates = [
        worker(profile("dear", price_micro=2000)),
        worker(profile("free")),
        worker(profile("cheap", price_micro=1000)),
    ]
    assert order(task(), candidates, Cheapest()) == [peer("free"), peer("cheap"), peer("dear")]


def test_a_price_like_the_moon_changes_nothing_for_the_others() -> None:
    asked = task()
    two = [worker(profile("a", price_micro=100)), worker(profile("b", price_micro=101))]
    moon = worker(profile("moon", price_micro=2**63 - 1))
    both = placed(asked, two, Cheapest()).ranked
    assert placed(asked, [*two, moon], Cheapest()).ranked[:2] == both


def test_what_a_task_takes_of_a_worker_is_what_it_costs() -> None:
    """A whole card of 80 GiB, for a task that asks for 10."""
    needs = Requirements(cpu_milli=1000, memory_bytes=GIB, gpu_count=1, gpu_memory_bytes=10 * GIB)
    large = worker(profile("large", with_gpu(80), price_micro=100))
    small = worker(profile("small", with_gpu(10), price_micro=300))
    assert order(task(needs=needs), [large, small], Cheapest()) == [peer("small"), peer("large")]
    # Where it has no room it is asked last, and would cost what it costs when it has.
    taken = Capacity(8000, 16 * GIB)
    busy = worker(profile("small", with_gpu(10), taken, price_micro=300))
    [first, last] = placed(task(needs=needs), [large, busy], Cheapest()).ranked
    assert first.profile.peer_id == peer("large")
    assert last.score.value > first.score.value
    both_busy = [worker(profile("large", with_gpu(80), taken, price_micro=100)), busy]
    assert order(task(needs=needs), both_busy, Cheapest()) == [peer("small"), peer("large")]
    # Asked about one that could never run it, it reckons without the card.
    assert Cheapest().scores(task(needs=needs), [worker("none")])[0].value == 1.0


def test_what_is_above_the_private_maximum_is_left_out() -> None:
    candidates = [worker(profile(f"asks-{p}", price_micro=p)) for p in (150, 160, 161)]
    decision = placed(task(max_price_micro=160), candidates, Cheapest())
    assert [each.profile.price_micro for each in decision.ranked] == [150, 160]
    assert decision.rejected == ((peer("asks-161"), TooDear(161, 160)),)


@given(st.lists(st.integers(0, 2**28), min_size=1, max_size=8, unique=True))
def test_the_order_is_that_of_the_prices_and_every_score_is_in_bounds(prices: list[int]) -> None:
    candidates = [worker(profile(f"w{n}", price_micro=p)) for n, p in enumerate(prices)]
    ranked = placed(task(needs=SMALL), candidates, Cheapest()).ranked
    assert [each.profile.price_micro for each in ranked] == sorted(prices)
    assert all(0 < each.score.value <= 1 for each in ranked)


def test_of_nobody_there_is_no_price() -> None:
    assert Cheapest().scores(task(), []) == []


def test_an_idle_machine_is_cheaper_and_a_full_one_dearer() -> None:
    asked = [price_under_load_micro(1000, used) for used in (0, 299, 300, 699, 700, 899, 900, 1000)]
    assert asked == [800, 800, 1000, 1000, 1500, 1500, 2000, 2000]


def test_behind_a_long_queue_it_is_dearer_and_later() -> None:
    assert [price_behind_queue_micro(10, queue) for queue in (0, 5, 6)] == [10, 10, 15]
    assert starts_in_ms(5) == 50_000
    assert starts_in_ms(5, task_ms=100) == 500


def test_a_part_of_a_worker_goes_for_the_bid_and_all_of_it_for_its_price() -> None:
    def offered(bid_micro: int, *, whole: bool) -> int | None:
        return offered_price_micro(
            price_micro=150, floor_micro=100, bid_micro=bid_micro, whole=whole
        )

    assert offered(110, whole=False) == 110
    assert offered(110, whole=True) == 150
    assert offered(99, whole=False) is offered(99, whole=True) is None
