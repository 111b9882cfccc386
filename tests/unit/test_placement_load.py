"""How full a worker is, and who is the emptiest."""

from __future__ import annotations

from dataclasses import replace

from formation_p2p.core.units import GIB
from formation_p2p.machine.core.capability import Capability, Capacity, GpuFree, idle
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.placement.core.candidate import free_part, task_part
from formation_p2p.placement.core.policies import Spread
from tests.support.placement_world import (
    SMALL,
    nearest_first,
    order,
    peer,
    placed,
    profile,
    task,
    worker,
)
from tests.support.resources_world import GB, a100

BIG = Capability(32_000, 64 * GIB, 100 * GIB)
WITH_GPUS = Capability(8000, 16 * GIB, gpus=(a100("G0"), a100("G1")))


def test_a_worker_is_as_free_as_what_is_scarcest_on_it() -> None:
    assert free_part(SMALL, BIG, idle(BIG)) == 1
    assert free_part(SMALL, BIG, Capacity(8000, 64 * GIB)) == 0.25
    assert free_part(SMALL, BIG, Capacity(32_000, 16 * GIB)) == 0.25


def test_gpus_count_for_who_needs_them() -> None:
    half_taken = replace(idle(WITH_GPUS), gpus=(GpuFree("G0", 1000, 40 * GB),))
    assert free_part(SMALL, WITH_GPUS, half_taken) == 1
    assert free_part(replace(SMALL, gpu_count=1), WITH_GPUS, half_taken) == 0.5


def test_a_task_takes_as_much_as_of_what_it_takes_most() -> None:
    assert task_part(SMALL, BIG) == 1 / 32
    assert task_part(replace(SMALL, memory_bytes=32 * GIB), BIG) == 0.5
    assert task_part(replace(SMALL, storage_bytes=25 * GIB), BIG) == 0.25
    assert task_part(replace(SMALL, gpu_count=1, gpu_share_milli=500), WITH_GPUS) == 0.25
    assert task_part(replace(SMALL, gpu_count=2, gpu_share_milli=500), WITH_GPUS) == 0.5
    # Of a network that nobody measured.
    assert task_part(replace(SMALL, network_mbps=1), BIG) == 1 / 32


def test_the_fewest_attempts_for_its_size_come_first() -> None:
    asked = task()
    small = worker(profile("small"), queue=1)
    big = worker(profile("big", BIG), queue=2)
    assert order(asked, [small, big], Spread()) == [peer("big"), peer("small")]
    assert order(asked, [small, replace(big, queue=5)], Spread()) == [peer("small"), peer("big")]


def test_a_machine_s_worth_of_attempts_halves_the_score() -> None:
    asked = task(needs=Requirements(cpu_milli=1000, memory_bytes=1))
    ranked = placed(asked, [worker("idle"), worker("full", queue=8)], Spread()).ranked
    assert [each.score.value for each in ranked] == [1.0, 0.5]


def test_the_work_of_others_counts_as_much_as_ours() -> None:
    """What it announced has both in it: of the two the larger counts, not the sum."""
    half_free = Capacity(4000, 16 * GIB, 100 * GIB)
    asked = task(needs=Requirements(cpu_milli=1000, memory_bytes=1))
    others = worker(profile("others", capacity=half_free))
    both = worker(profile("both", capacity=half_free), queue=4)
    ours = worker("ours", queue=4)
    ranked = placed(asked, [others, both, ours], Spread()).ranked
    assert {each.score.value for each in ranked} == {1 / 1.5}


def test_where_all_are_idle_the_nearest_comes_first() -> None:
    asked, names = task(), ["alice", "bob", "carol"]
    nearest = [peer(name) for name in nearest_first(asked, names)]
    assert order(asked, map(worker, names), Spread()) == nearest
