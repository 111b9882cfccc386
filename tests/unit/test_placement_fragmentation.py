"""How much of a machine's free GPUs is of no use, and which devices a task should take."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.refusals import Infeasible
from formation_p2p.core.units import GIB
from formation_p2p.machine.core.capability import Capability, Capacity, GpuFree, idle
from formation_p2p.machine.core.fits import Ledger, claims_on
from formation_p2p.machine.core.gpu import Gpu
from formation_p2p.machine.core.requirements import Requirements, parse_requirements
from formation_p2p.placement.core import fragmentation
from formation_p2p.placement.core.fragmentation import (
    MAX_SCARCITY,
    SCARCITY_MILLI,
    best_devices,
    best_fit,
    by_scarcity,
    shares_of,
)
from formation_p2p.workload.core.mix import EMPTY_MIX, Mix, Shape
from tests.support import resources_world as world
from tests.support.resources_world import GB, a100, h100, machine


def mix(*texts: str) -> Mix:
    return Mix(tuple((Shape.of(parse_requirements(text)), 1) for text in texts))


def left(*shares: int, cpu_milli: int = 64_000) -> tuple[Capability, Capacity]:
    """A machine with so much free of each of its A100s."""
    able = machine(*(a100(f"G{n}") for n in range(len(shares))), cpu_milli=64_000)
    free = tuple(GpuFree(f"G{n}", share, share * 40_000_000) for n, share in enumerate(shares))
    return able, replace(idle(able), cpu_milli=cpu_milli, gpus=free)


def fragments(able: Capability, free: Capacity, expected: Mix) -> int:
    return fragmentation.fragments(able, free.cpu_milli, shares_of(free), expected)


def wasted(text: str, *shares: int, cpu_milli: int = 64_000) -> int:
    """For one task: twice so many thousandths, as both halves of the measure count."""
    return fragments(*left(*shares, cpu_milli=cpu_milli), mix(text))


def test_a_machine_with_nothing_free_has_no_fragments() -> None:
    assert wasted("gpu=1", 0, 0) == 0
    assert fragments(machine(), idle(machine()), EMPTY_MIX) == 0


def test_an_idle_machine_has_none_for_whole_devices() -> None:
    assert wasted("gpu=1", 1000, 1000) == 0
    assert wasted("gpu=2", 1000, 1000) == 0
    assert wasted("gpu=1,gpu.cc=8.0,gpu.memory=40GB,gpu.model=a100", 1000) == 0


def test_where_a_task_does_not_fit_all_is_wasted() -> None:
    assert wasted("gpu=3", 1000, 1000) == 2 * 2000
    assert wasted("gpu=1,cpu=65", 1000, 1000) == 2 * 2000
    assert wasted("gpu=1,gpu.model=h100", 1000) == 2 * 1000
    assert wasted("gpu=1,gpu.memory=80GB", 1000) == 2 * 1000
    assert wasted("gpu=1,gpu.cc=9.0", 1000) == 2 * 1000
    assert wasted("gpu=2", 1000, 400) == 2 * 1400


def test_devices_too_full_for_it_are_wasted() -> None:
    assert wasted("gpu=1", 1000, 400) == 2 * 400
    assert wasted("gpu=1,gpu.share=0.4", 400, 390, 0) == 2 * 390


def test_what_remains_once_as_many_as_fit_have_come_counts_half() -> None:
    assert wasted("gpu=1,gpu.share=0.45", 1000) == 100
    assert wasted("gpu=1,gpu.share=0.81", 1000, 1000) == 2 * 190
    assert wasted("gpu=3", *[1000] * 8) == 2000


def test_cores_that_will_run_out_count_half() -> None:
    assert wasted("gpu=1,cpu=16", *[1000] * 8) == 4000
    assert wasted("gpu=1,cpu=16", *[1000] * 8, cpu_milli=31_000) == 7000


def test_a_mix_is_the_sum_of_its_tasks() -> None:
    able, free = left(1000, 400)
    both = Mix(((Shape.of(parse_requirements("gpu=1")), 3), *mix("gpu=1,gpu.share=0.4").shapes))
    parts = 3 * wasted("gpu=1", 1000, 400) + wasted("gpu=1,gpu.share=0.4", 1000, 400)
    assert fragments(able, free, both) == parts


def test_only_devices_that_will_do_are_of_use() -> None:
    able = machine(a100("G0"), h100("G1"))
    assert fragments(able, idle(able), mix("gpu=1,gpu.model=h100")) == 2 * 1000


def test_a_part_goes_where_it_leaves_no_rest() -> None:
    """Best fit would take the fullest device that has room, and leave 200 that nobody wants."""
    able, free = left(500, 600)
    needs = parse_requirements("gpu=1,gpu.share=0.3")
    expected = mix("gpu=1,gpu.share=0.3", "gpu=1,gpu.share=0.5")
    chosen = best_devices(needs, able, free, expected)
    assert not isinstance(chosen, Infeasible)
    assert [claim.device_id for claim in chosen] == ["G1"]
    usual = claims_on(needs, able, free)
    assert not isinstance(usual, Infeasible)
    assert [claim.device_id for claim in usual] == ["G0"]


def test_of_devices_that_serve_alike_the_fullest_is_taken() -> None:
    able, free = left(1000, 500, 500)
    chosen = best_devices(parse_requirements("gpu=1,gpu.share=0.5"), able, free, mix("gpu=2"))
    assert not isinstance(chosen, Infeasible)
    assert [claim.device_id for claim in chosen] == ["G1"]


def test_a_device_without_the_memory_is_not_taken() -> None:
    able, free = left(500, 900)
    full = replace(free, gpus=(replace(free.gpus[0], memory_bytes=GIB), free.gpus[1]))
    needs = parse_requirements("gpu=1,gpu.share=0.5,gpu.memory=20GB")
    chosen = best_devices(needs, able, full, EMPTY_MIX)
    assert not isinstance(chosen, Infeasible)
    assert [claim.device_id for claim in chosen] == ["G1"]


def test_a_machine_without_room_says_why() -> None:
    able, free = left(400, 400)
    needs = parse_requirements("gpu=1")
    assert best_devices(needs, able, free, EMPTY_MIX) == claims_on(needs, able, free)
    assert best_fit(needs, able, free, EMPTY_MIX) == Infeasible("gpu", 1, 0)


def test_a_task_without_gpus_costs_the_cores_that_they_need() -> None:
    able, free = left(1000, 1000, cpu_milli=16_000)
    fit = best_fit(parse_requirements("cpu=12"), able, free, mix("cpu=8,gpu=1"))
    assert not isinstance(fit, Infeasible)
    assert (fit.claims, fit.added, fit.idle_milli) == ((), 2 * 2000, 2000)


def test_the_cost_is_in_thousandths_of_a_gpu() -> None:
    able, free = left(1000)
    expected = mix("gpu=1", "gpu=1,gpu.share=0.5")
    fit = best_fit(parse_requirements("gpu=1,gpu.share=0.75"), able, free, expected)
    assert not isinstance(fit, Infeasible)
    above, below = fit.cost(expected.weight)
    assert above / below == 250 + 250 / 256  # and nothing was wasted before


mixes = st.lists(
    world.needs.filter(lambda needs: needs.gpu_count > 0),
    min_size=1,
    max_size=4,
    unique_by=Shape.of,
).map(lambda each: Mix(tuple((Shape.of(needs), 1 + n) for n, needs in enumerate(each))))


@given(world.capabilities, st.lists(world.needs, max_size=4), world.needs, mixes)
def test_whatever_has_room_is_placed_on_devices_that_have_it(
    able: Capability, running: list[Requirements], needs: Requirements, expected: Mix
) -> None:
    ledger = Ledger(able)
    for number, task in enumerate(running):
        ledger.reserve(str(number), task)
    free = ledger.free
    chosen = best_devices(needs, able, free, expected)
    usual = claims_on(needs, able, free)
    if isinstance(usual, Infeasible):
        assert chosen == usual
        return
    assert not isinstance(chosen, Infeasible)
    room = {each.device_id: each for each in free.gpus}
    assert len({claim.device_id for claim in chosen}) == needs.gpu_count
    for claim in chosen:
        assert room[claim.device_id].share_milli >= claim.share_milli == needs.gpu_share_milli
        assert room[claim.device_id].memory_bytes >= claim.memory_bytes


@given(world.capabilities, st.lists(world.needs, max_size=4), mixes)
def test_fragments_are_never_more_than_what_is_free(
    able: Capability, running: list[Requirements], expected: Mix
) -> None:
    ledger = Ledger(able)
    for number, task in enumerate(running):
        ledger.reserve(str(number), task)
    free = sum(each.share_milli for each in ledger.free.gpus)
    assert 0 <= fragments(able, ledger.free, expected) <= 2 * expected.weight * free


def test_a_device_that_the_machine_has_not_is_never_taken() -> None:
    able, free = left(500)
    stray = replace(free, gpus=(GpuFree("G9", 400, 40 * GB), *free.gpus))
    chosen = best_devices(parse_requirements("gpu=1,gpu.share=0.3"), able, stray, EMPTY_MIX)
    assert not isinstance(chosen, Infeasible)
    assert [claim.device_id for claim in chosen] == ["G0"]


def test_devices_of_another_kind_are_tried_too() -> None:
    able = machine(Gpu("G0", "nvidia", "t4", 16 * GB, 75), h100("G1"))
    chosen = best_devices(
        parse_requirements("gpu=1,gpu.share=0.5"), able, idle(able), mix("gpu=1,gpu.model=t4")
    )
    assert not isinstance(chosen, Infeasible)
    assert [claim.device_id for claim in chosen] == ["G1"]


def scarcity(text: str, *machines: Capability) -> int:
    """In thousandths: how many times a task of a mix counts among these machines."""
    [(_, times_milli)] = by_scarcity(mix(text), machines).shapes
    return times_milli


def test_a_task_counts_by_the_devices_there_are_for_each_that_may_run_it() -> None:
    many, one = machine(*(a100(f"G{n}") for n in range(5))), machine(h100("G0"))
    assert scarcity("gpu=1", many, one) == SCARCITY_MILLI
    assert scarcity("gpu=1,gpu.model=a100", many, one) == SCARCITY_MILLI * 6 // 5
    assert scarcity("gpu=1,gpu.model=h100", many, one) == 6 * SCARCITY_MILLI
    assert scarcity("gpu=1,gpu.cc=9.0", many, one) == 6 * SCARCITY_MILLI


def test_what_is_very_scarce_does_not_outweigh_all_else() -> None:
    many = [machine(*(a100(f"G{n}") for n in range(8)))] * 4
    assert scarcity("gpu=1,gpu.model=h100", *many, machine(h100("G0"))) == (
        MAX_SCARCITY * SCARCITY_MILLI
    )


def test_what_none_may_run_does_not_count() -> None:
    assert by_scarcity(mix("gpu=1,gpu.model=h100"), [machine(a100("G0"))]) == Mix(())
