"""What members have together, whose it is, and how it is divided."""

from dataclasses import replace

from formation_p2p.core.refusals import Infeasible
from formation_p2p.core.units import GIB
from formation_p2p.features.gangs.core.pool import Pool, PoolMember, less
from formation_p2p.machine.core.capability import Capability, GpuFree, idle
from formation_p2p.machine.core.gpu import Gpu
from formation_p2p.machine.core.requirements import Requirements, parse_requirements
from tests.support.stories import contact

A100 = Gpu("G0", "nvidia", "a100", 80 * GIB, 80)
H100 = Gpu("G1", "nvidia", "h100", 80 * GIB, 90)


def machine(name: str, cores: int, gib: int, *gpus: Gpu) -> PoolMember:
    capability = Capability(cores * 1000, gib * GIB, 100 * GIB, 1000, gpus)
    return PoolMember(contact(name).peer_id, capability, idle(capability))


def member(rank: int, of: PoolMember, needs: str, *device_ids: str) -> PoolMember:
    reserved = parse_requirements(needs)
    return replace(of, rank=rank, reserved=reserved, device_ids=device_ids)


KITCHEN = machine("kitchen", 4, 16, A100)
CELLAR = machine("cellar", 8, 8, A100, H100)


def test_a_pool_adds_up_and_maps_back() -> None:
    pool = Pool(
        (
            member(0, KITCHEN, "cpu=2,memory=4GiB,gpu=1", "G0"),
            replace(
                member(1, CELLAR, "cpu=3,memory=1GiB"), used_cpu_milli=2500, used_memory_bytes=GIB
            ),
        )
    )
    assert (pool.total.cpu_milli, pool.total.memory_bytes) == (12_000, 24 * GIB)
    assert pool.total.gpus == {"a100": 2, "h100": 1}
    assert (pool.reserved.cpu_milli, pool.reserved.memory_bytes) == (5000, 5 * GIB)
    assert pool.reserved.gpus == {"a100": 1}
    assert (pool.used.cpu_milli, pool.used.memory_bytes) == (2500, GIB)
    assert pool.free.gpus == {"a100": 2, "h100": 1}
    assert [each.rank for each in pool.whose("G1")] == [1]
    assert len(pool.whose("G0")) == 2
    assert pool.member(1) is pool.members[1]
    assert pool.member(2) is None


def test_what_is_leased_is_not_free_and_of_a_device_that_is_shared_the_rest_is() -> None:
    needs = parse_requirements("cpu=2,memory=4GiB,gpu=1")
    left = less(KITCHEN.free, needs, ("G0",))
    assert (left.cpu_milli, left.memory_bytes, left.storage_bytes) == (2000, 12 * GIB, 100 * GIB)
    assert left.gpus == (GpuFree("G0", 0, 0),)
    assert less(left, needs, ("G0",)).cpu_milli == less(left, needs, ("G0",)).gpu_share_milli == 0
    assert less(less(left, needs), needs).cpu_milli == 0  # it was announced without some of it
    half = parse_requirements("cpu=1,memory=1GiB,gpu=1,gpu.share=0.5")
    left = less(CELLAR.free, half, ("G1",))
    assert left.gpus == (GpuFree("G0", 1000, 80 * GIB), GpuFree("G1", 500, 40 * GIB))
    assert less(left, half, ("G1",)).gpus[1] == GpuFree("G1", 0, 0)
    some = parse_requirements("cpu=1,memory=1GiB,gpu=1,gpu.share=0.5,gpu.memory=10GiB")
    assert less(left, some, ("G1",)).gpus[1] == GpuFree("G1", 0, 30 * GIB)


def test_gpus_are_divided_whole_and_only_among_those_that_have_them() -> None:
    small = machine("small", 1, 4)
    needs = parse_requirements("cpu=9,memory=10GiB,gpu=3,gpu.memory=80GiB,gpu.vendor=nvidia")
    divided = Pool((small, KITCHEN, CELLAR)).divided(needs)
    assert not isinstance(divided, Infeasible)
    assert {peer: each.gpu_count for peer, each in divided.items()} == {
        CELLAR.peer_id: 2,
        KITCHEN.peer_id: 1,
    }
    assert sum(each.cpu_milli for each in divided.values()) == 9000
    assert sum(each.memory_bytes for each in divided.values()) == 10 * GIB
    alone = Pool((small, KITCHEN)).divided(parse_requirements("cpu=5,gpu=1"))
    assert not isinstance(alone, Infeasible)
    assert alone[small.peer_id].gpu_count == 0
    assert alone[KITCHEN.peer_id].gpu_count == 1


def test_what_all_together_lack_is_named() -> None:
    pool = Pool((KITCHEN, CELLAR))
    assert pool.divided(parse_requirements("cpu=13")) == Infeasible("cpu", 13_000, 12_000)
    assert pool.divided(parse_requirements("cpu=1,gpu=4")) == Infeasible("gpu", 4, 3)
    assert pool.divided(parse_requirements("cpu=1,gpu=2,gpu.model=h100")) == Infeasible("gpu", 2, 1)
    assert Pool(()).divided(Requirements()) == Infeasible("cpu", 1000, 0)


def test_what_one_machine_holds_is_not_divided_and_one_without_room_has_no_share() -> None:
    small, large = (parse_requirements(f"cpu={n},memory=1GiB") for n in (6, 8))
    assert Pool((KITCHEN, CELLAR)).divided(small) == {CELLAR.peer_id: small}
    busy = replace(KITCHEN, free=replace(KITCHEN.free, cpu_milli=0))
    assert Pool((busy, CELLAR)).divided(large) == {CELLAR.peer_id: large}
    assert Pool(()).total == Pool(()).reserved == Pool(()).used
