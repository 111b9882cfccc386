"""The worker's book: nothing is given twice, and what comes back is what was taken."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.refusals import Busy, Infeasible
from formation_p2p.core.units import GIB, MIB
from formation_p2p.machine.core.bounds import MAX_GPU_MODELS, MAX_GPUS
from formation_p2p.machine.core.capability import (
    Capability,
    Capacity,
    GpuFree,
    Limits,
    idle,
    limited,
)
from formation_p2p.machine.core.fits import (
    MAX_RESERVATIONS,
    GpuClaim,
    Ledger,
    Reservation,
    claims_on,
    fits,
    fits_now,
)
from formation_p2p.machine.core.gpu import Gpu
from formation_p2p.machine.core.requirements import Requirements, parse_requirements
from tests.support import resources_world as world
from tests.support.resources_world import DRIVERS, GB, LABELS, a100, h100, machine


def reserved(ledger: Ledger, reservation_id: str, text: str) -> tuple[str, ...]:
    """The devices given, for what must fit."""
    answer = ledger.reserve(reservation_id, parse_requirements(text))
    assert isinstance(answer, Reservation)
    return tuple(claim.device_id for claim in answer.gpus)


def test_a_tenth_and_two_tenths_fit_into_three_tenths_of_a_core() -> None:
    """In floats the second does not: 0.3 - 0.1 < 0.2."""
    ledger = Ledger(machine(cpu_milli=300))
    reserved(ledger, "alice", "cpu=0.1")
    reserved(ledger, "bob", "cpu=0.2")
    assert ledger.free.cpu_milli == 0


def test_shares_are_packed_and_a_whole_device_stays_whole() -> None:
    ledger = Ledger(machine(a100("G0"), a100("G1")))
    assert reserved(ledger, "alice", "gpu.share=0.5") == ("G0",)
    assert reserved(ledger, "bob", "gpu.share=0.5") == ("G0",)
    assert reserved(ledger, "carol", "gpu=1") == ("G1",)
    refusal = ledger.reserve("dave", parse_requirements("gpu.share=0.001"))
    assert refusal == Infeasible("gpu.share", 1, 0)


def test_a_share_takes_its_part_of_the_memory_or_what_it_asks() -> None:
    ledger = Ledger(machine(a100("G0")))
    alice = ledger.reserve("alice", parse_requirements("gpu.share=0.25"))
    bob = ledger.reserve("bob", parse_requirements("gpu.share=0.25,gpu.memory=25GB"))
    assert isinstance(alice, Reservation)
    assert isinstance(bob, Reservation)
    assert alice.gpus == (GpuClaim("G0", 250, 10 * GB),)
    assert bob.gpus == (GpuClaim("G0", 250, 25 * GB),)
    refusal = ledger.reserve("carol", parse_requirements("gpu.share=0.25"))
    assert refusal == Infeasible("gpu.memory", 10 * GB, 5 * GB)


def test_asking_again_with_the_same_id_is_the_same_reservation() -> None:
    ledger = Ledger(machine(cpu_milli=1000))
    needs = parse_requirements("cpu=1")
    first = ledger.reserve("alice", needs)
    assert ledger.reserve("alice", needs) is first
    with pytest.raises(InvalidInput, match="release it first"):
        ledger.reserve("alice", parse_requirements("cpu=0.5"))


def test_the_book_has_a_last_page() -> None:
    ledger = Ledger(machine(cpu_milli=MAX_RESERVATIONS * 1000))
    crumb = Requirements(cpu_milli=1, memory_bytes=1)
    for place in range(MAX_RESERVATIONS):
        assert isinstance(ledger.reserve(f"{place}", crumb), Reservation)
    assert ledger.reserve("one more", crumb) == Busy("the ledger", MAX_RESERVATIONS)
    assert isinstance(ledger.reserve("0", crumb), Reservation)
    assert ledger.release("0")
    assert isinstance(ledger.reserve("one more", crumb), Reservation)


def test_a_persons_limits_win_below_the_hardware() -> None:
    hardware = machine(a100("G0"), h100("G1"))
    offered = replace(hardware, memory_bytes=7 * GIB, storage_bytes=99 * GIB)
    assert limited(Limits(), offered, hardware) == offered
    limits = Limits(
        cpu_milli=500, memory_bytes=8 * GIB, storage_bytes=0, network_mbps=10, gpu_count=1
    )
    alice = limited(limits, offered, hardware)
    assert alice == Capability(500, 8 * GIB, 0, 10, (a100("G0"),))
    refusal = Ledger(alice).reserve("bob", parse_requirements("cpu=1"))
    assert refusal == Infeasible("cpu", 1000, 500)


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        (Limits(cpu_milli=8001), "cpu"),
        (Limits(cpu_milli=-1), "cpu"),
        (Limits(cpu_milli=True), "cpu"),
        (Limits(memory_bytes=8 * GIB + 1), "memory"),
        (Limits(memory_bytes=1.5), "memory"),  # type: ignore[arg-type]
        (Limits(storage_bytes=101 * GIB), "storage"),
        (Limits(network_mbps=1001), "network"),
        (Limits(gpu_count=2), "gpu"),
    ],
)
def test_a_limit_past_the_hardware_is_refused(limits: Limits, field: str) -> None:
    hardware = machine(a100("G0"))
    with pytest.raises(InvalidInput) as refused:
        limited(limits, hardware, hardware)
    assert refused.value.field == field


def test_a_network_that_nobody_could_measure_may_be_declared() -> None:
    hardware = replace(machine(), network_mbps=0)
    assert limited(Limits(network_mbps=10_000), hardware, hardware).network_mbps == 10_000
    with pytest.raises(InvalidInput, match="network"):
        limited(Limits(network_mbps=1_000_001), hardware, hardware)


class LedgerModel(RuleBasedStateMachine):
    """The ledger against a list: free is always what the machine has less what is held."""

    @initialize(capability=world.capabilities)
    def a_machine(self, capability: Capability) -> None:
        self.capability = capability
        self.ledger = Ledger(capability)
        self.held: dict[str, Reservation] = {}

    @rule(reservation_id=st.sampled_from("abcdef"), needs=world.needs)
    def reserve(self, reservation_id: str, needs: Requirements) -> None:
        before = self.ledger.free
        if reservation_id in self.held:
            return
        answer = self.ledger.reserve(reservation_id, needs)
        if isinstance(answer, Reservation):
            self.held[reservation_id] = answer
        else:
            assert self.ledger.free == before

    @rule(needs=world.needs)
    def reserve_and_release_at_once(self, needs: Requirements) -> None:
        before = self.ledger.free
        answer = self.ledger.reserve("brief", needs)
        assert self.ledger.release("brief") == isinstance(answer, Reservation)
        assert self.ledger.free == before

    @rule(reservation_id=st.sampled_from("abcdef"))
    def release(self, reservation_id: str) -> None:
        was_held = self.held.pop(reservation_id, None) is not None
        assert self.ledger.release(reservation_id) == was_held

    @invariant()
    def free_is_the_machine_less_what_is_held(self) -> None:
        free, whole = self.ledger.free, idle(self.capability)
        held = [each.needs for each in self.held.values()]
        claims = [claim for each in self.held.values() for claim in each.gpus]
        assert free.cpu_milli == whole.cpu_milli - sum(each.cpu_milli for each in held) >= 0
        assert free.memory_bytes == whole.memory_bytes - sum(each.memory_bytes for each in held)
        assert free.storage_bytes == whole.storage_bytes - sum(each.storage_bytes for each in held)
        assert free.network_mbps == whole.network_mbps - sum(each.network_mbps for each in held)
        assert min(free.memory_bytes, free.storage_bytes, free.network_mbps) >= 0
        for left, all_of_it in zip(free.gpus, whole.gpus, strict=True):
            mine = [claim for claim in claims if claim.device_id == left.device_id]
            assert left.share_milli == 1000 - sum(claim.share_milli for claim in mine) >= 0
            taken = sum(claim.memory_bytes for claim in mine)
            assert left.memory_bytes == all_of_it.memory_bytes - taken >= 0
            # A whole device has one owner.
            assert len(mine) <= 1 or all(claim.share_milli < 1000 for claim in mine)


TestLedgerModel = LedgerModel.TestCase
TestLedgerModel.settings = settings(max_examples=50, stateful_step_count=20, deadline=None)


def test_it_says_what_would_be_free_without_giving_anything_back() -> None:
    ledger = Ledger(machine(a100("G0"), cpu_milli=3000))
    reserved(ledger, "alice", "cpu=2,gpu=1")
    free = ledger.free
    needs = parse_requirements("cpu=2,gpu=1")
    assert ledger.lacks(needs, free) == Infeasible("cpu", 2000, 1000)
    more = ledger.with_back(free, "alice")
    assert more == idle(machine(a100("G0"), cpu_milli=3000))
    assert ledger.lacks(needs, more) is None
    assert ledger.with_taken(more, "alice") == free == ledger.free
    assert ledger.with_back(free, "nobody") == ledger.with_taken(free, "nobody") == free


def test_what_is_set_aside_is_there_until_its_release_and_what_has_no_room_is_not() -> None:
    ledger = Ledger(machine(cpu_milli=1000))
    assert ledger.set_aside("a service", parse_requirements("cpu=0.8")) is not None
    assert not ledger.set_aside("another", parse_requirements("cpu=0.8"))
    ledger.validate(())
    assert ledger.free.cpu_milli == 200
    assert ledger.release("a service")
    ledger.validate(())
    assert ledger.free.cpu_milli == 1000


# Whether a machine can run a task, ever and now, and the first reason why not.

BIG = machine(a100("G0"), h100("G1"), h100("G2"))


def why_not(text: str, capability: Capability = BIG) -> Infeasible | None:
    return fits(parse_requirements(text), capability, LABELS, DRIVERS)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cpu=8,memory=8GiB,storage=100GiB,network=1000",
        "gpu=3",
        "gpu=2,gpu.model=h100",
        "gpu=3,gpu.model=H100|A100",
        "gpu=3,gpu.vendor=NVIDIA",
        "gpu=2,gpu.memory=80GB,gpu.cc=9.0",
        "gpu=3,gpu.memory=40GB,gpu.share=0.5",
        "label.region=eu,label.rack=r1,driver=wasm",
    ],
)
def test_what_exactly_fills_the_machine_fits(text: str) -> None:
    assert why_not(text) is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("cpu=8.001", Infeasible("cpu", 8001, 8000)),
        ("memory=8193MiB", Infeasible("memory", 8193 * MIB, 8192 * MIB)),
        ("storage=101GiB", Infeasible("storage", 101 * GIB, 100 * GIB)),
        ("network=1001", Infeasible("network", 1001, 1000)),
        ("gpu=4", Infeasible("gpu", 4, 3)),
        ("gpu.model=t4", Infeasible("gpu.model", "1 of t4", "1 of a100, 2 of h100")),
        ("gpu=2,gpu.vendor=amd", Infeasible("gpu.vendor", "2 by amd", "nvidia")),
        ("gpu=3,gpu.model=h100", Infeasible("gpu.model", "3 of h100", "1 of a100, 2 of h100")),
        ("gpu.cc=10.0", Infeasible("gpu.cc", 100, 90)),
        ("gpu=3,gpu.cc=9.0", Infeasible("gpu.cc", 90, 80)),
        ("gpu.memory=81GB", Infeasible("gpu.memory", 81 * GB, 80 * GB)),
        ("gpu=3,gpu.memory=80GB", Infeasible("gpu.memory", 80 * GB, 40 * GB)),
        ("gpu.model=a100,gpu.memory=80GB", Infeasible("gpu.memory", 80 * GB, 40 * GB)),
        ("gpu.model=a100,gpu.cc=9.0", Infeasible("gpu.cc", 90, 80)),
        ("label.region=us", Infeasible("label.region", "us", "eu")),
        ("label.zone=a", Infeasible("label.zone", "a", "none")),
        ("driver=dask", Infeasible("driver", "dask", "process,python,wasm")),
        # Of several, the first in this order: driver, labels, amounts, devices.
        (
            "gpu=9,cpu=9,label.region=us,driver=dask",
            Infeasible("driver", "dask", ",".join(DRIVERS)),
        ),
        ("gpu=9,cpu=9,label.region=us", Infeasible("label.region", "us", "eu")),
        ("gpu=9,cpu=9", Infeasible("cpu", 9000, 8000)),
    ],
)
def test_the_first_reason_names_the_field(text: str, reason: Infeasible) -> None:
    assert why_not(text) == reason


def test_a_machine_without_drivers_says_so() -> None:
    needs = Requirements(driver="process")
    assert fits(needs, BIG, {}, ()) == Infeasible("driver", "process", "none")


def test_sm_100_serves_sm_80_and_sm_90_does_not_serve_sm_100() -> None:
    b200 = Gpu("G0", "nvidia", "B200", 180 * GB, 100)
    assert why_not("gpu.cc>=8.0", machine(b200)) is None
    assert why_not("gpu.cc>=sm_100", machine(h100("G0"))) == Infeasible("gpu.cc", 100, 90)


def test_three_hundred_gpus_are_three_hundred() -> None:
    """In eight bits they would be 44."""
    rack = machine(*(h100(f"G{place}") for place in range(300)))
    assert why_not("gpu=300", rack) is None
    assert why_not("gpu=301", rack) == Infeasible("gpu", 301, 300)


def test_devices_that_others_use_are_not_free_now() -> None:
    needs = parse_requirements("gpu=2,gpu.model=h100")
    free = replace(idle(BIG), gpus=(GpuFree("G0", 1000, 40 * GB), GpuFree("G1", 999, 80 * GB)))
    assert fits(needs, BIG, LABELS, DRIVERS) is None
    assert fits_now(needs, BIG, LABELS, DRIVERS, idle(BIG)) is None
    assert fits_now(needs, BIG, LABELS, DRIVERS, free) == Infeasible("gpu", 2, 0)


@pytest.mark.parametrize(
    ("text", "gpu", "reason"),
    [
        ("gpu=1,gpu.memory=40GB", GpuFree("G0", 1000, 39 * GB), ("gpu.memory", 40 * GB, 39 * GB)),
        ("gpu.share=0.5", GpuFree("G0", 499, 40 * GB), ("gpu.share", 500, 499)),
        ("gpu.share=0.5", GpuFree("G9", 1000, 40 * GB), ("gpu.share", 500, 0)),
        ("gpu.share=0.5", GpuFree("G0", 500, 20 * GB - 1), ("gpu.memory", 20 * GB, 20 * GB - 1)),
        (
            "gpu.share=0.1,gpu.memory=30GB",
            GpuFree("G0", 500, 20 * GB),
            ("gpu.memory", 30 * GB, 20 * GB),
        ),
    ],
)
def test_what_of_a_device_is_short_is_named(
    text: str, gpu: GpuFree, reason: tuple[str, int, int]
) -> None:
    alice = machine(a100("G0"))
    free = replace(idle(alice), gpus=(gpu,))
    needs = parse_requirements(text)
    assert fits_now(needs, alice, {}, (), free) == Infeasible(*reason)


def test_cores_that_others_use_are_not_free_now() -> None:
    free = replace(idle(BIG), cpu_milli=3999)
    needs = parse_requirements("cpu=4")
    assert fits_now(needs, BIG, {}, (), free) == Infeasible("cpu", 4000, 3999)


def test_devices_are_judged_before_they_are_claimed() -> None:
    needs = parse_requirements("gpu.model=t4")
    reason = Infeasible("gpu.model", "1 of t4", "1 of a100, 2 of h100")
    assert claims_on(needs, BIG, idle(BIG)) == reason


def test_a_whole_device_is_the_smallest_that_will_do() -> None:
    needs = parse_requirements("gpu=1")
    assert claims_on(needs, BIG, idle(BIG)) == (GpuClaim("G0", 1000, 40 * GB),)
    needs = parse_requirements("gpu=1,gpu.cc=9.0")
    assert claims_on(needs, BIG, idle(BIG)) == (GpuClaim("G1", 1000, 80 * GB),)


def test_shares_go_to_the_fullest_device() -> None:
    free = replace(
        idle(BIG),
        gpus=(
            GpuFree("G0", 1000, 40 * GB),
            GpuFree("G1", 400, 32 * GB),
            GpuFree("G2", 500, 40 * GB),
        ),
    )
    needs = parse_requirements("gpu=2,gpu.share=0.4,gpu.memory=1GB")
    assert claims_on(needs, BIG, free) == (GpuClaim("G1", 400, GB), GpuClaim("G2", 400, GB))


@given(world.needs, world.capabilities)
def test_an_idle_machine_takes_at_once_whatever_it_can_ever_run(
    needs: Requirements, capability: Capability
) -> None:
    ever = fits(needs, capability, LABELS, DRIVERS)
    assert fits_now(needs, capability, LABELS, DRIVERS, idle(capability)) == ever


@given(world.needs, world.capabilities)
def test_every_claimed_device_is_distinct_and_satisfies_the_needs(
    needs: Requirements, capability: Capability
) -> None:
    claims = claims_on(needs, capability, idle(capability))
    if isinstance(claims, Infeasible):
        return
    by_id = {gpu.device_id: gpu for gpu in capability.gpus}
    assert len({claim.device_id for claim in claims}) == len(claims) == needs.gpu_count
    for claim in claims:
        gpu = by_id[claim.device_id]
        assert claim.share_milli == needs.gpu_share_milli
        assert needs.gpu_memory_bytes <= claim.memory_bytes <= gpu.memory_bytes
        assert gpu.compute_capability >= needs.gpu_compute_capability
        assert not needs.gpu_models or gpu.model in needs.gpu_models
        assert needs.gpu_vendor in ("", gpu.vendor)


@given(world.needs, world.capabilities)
def test_the_order_of_devices_does_not_matter(needs: Requirements, capability: Capability) -> None:
    """Save among those that leave equally much, where ids decide."""
    turned = replace(capability, gpus=capability.gpus[::-1])
    assert claims_on(needs, capability, idle(capability)) == claims_on(needs, turned, idle(turned))


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"cpu_milli": -1}, "cpu"),
        ({"memory_bytes": 0.5}, "memory"),
        ({"storage_bytes": -1}, "storage"),
        ({"network_mbps": 2**32 - 1}, "network"),
        ({"gpus": [h100("G0")]}, "gpu"),
        ({"gpus": ("G0",)}, "gpu"),
        ({"gpus": (h100("G0"), a100("G0"))}, "gpu.id"),
        ({"gpus": tuple(h100(f"G{place}") for place in range(MAX_GPUS + 1))}, "gpu"),
        (
            {"gpus": tuple(Gpu(f"G{n}", "nvidia", f"m{n}", 1) for n in range(MAX_GPU_MODELS + 1))},
            "gpu.model",
        ),
        (
            {"gpus": tuple(Gpu(f"G{n}", f"v{n}", "m", 1) for n in range(MAX_GPU_MODELS + 1))},
            "gpu.vendor",
        ),
        ({"arch": "X86"}, "arch"),
        ({"os": ""}, "os"),
    ],
)
def test_a_capability_that_cannot_be_is_refused(fields: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Capability(**{"cpu_milli": 1, "memory_bytes": 1, **fields})  # type: ignore[arg-type]
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"cpu_milli": -1}, "cpu"),
        ({"gpus": (h100("G0"),)}, "gpu"),
        ({"gpus": (GpuFree("G0", 1, 1), GpuFree("G0", 2, 2))}, "gpu.id"),
    ],
)
def test_a_capacity_that_cannot_be_is_refused(fields: dict[str, object], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        Capacity(**{"cpu_milli": 1, "memory_bytes": 1, **fields})  # type: ignore[arg-type]
    assert refused.value.field == field


@pytest.mark.parametrize(
    ("free", "field"),
    [(("", 1, 1), "gpu.id"), (("G", 1001, 1), "gpu.share"), (("G", 1, -1), "gpu.memory")],
)
def test_a_free_device_that_cannot_be_is_refused(free: tuple[str, int, int], field: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        GpuFree(*free)
    assert refused.value.field == field
