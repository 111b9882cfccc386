"""The worker's book: nothing is given twice, and what comes back is what was taken."""

from dataclasses import replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.refusals import Busy, Infeasible
from formation_p2p.core.units import GIB
from formation_p2p.machine.core.capability import Capability, Limits, idle, limited
from formation_p2p.machine.core.fits import MAX_RESERVATIONS, GpuClaim, Ledger, Reservation
from formation_p2p.machine.core.requirements import Requirements, parse_requirements
from tests.support import resources_world as world
from tests.support.resources_world import GB, a100, h100, machine


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


def test_of_two_for_the_last_core_one_gets_it() -> None:
    ledger = Ledger(machine(cpu_milli=1000))
    reserved(ledger, "alice", "cpu=1")
    refusal = ledger.reserve("bob", parse_requirements("cpu=0.001"))
    assert refusal == Infeasible("cpu", 1, 0)


def test_a_negative_need_cannot_be_made_and_so_adds_nothing() -> None:
    ledger = Ledger(machine(cpu_milli=8000))
    with pytest.raises(InvalidInput, match="cpu"):
        ledger.reserve("mallory", Requirements(cpu_milli=-5000))
    assert ledger.free.cpu_milli == 8000


def test_a_release_frees_its_own_device_and_no_other() -> None:
    ledger = Ledger(machine(a100("G0"), a100("G1")))
    assert reserved(ledger, "alice", "gpu=1") == ("G0",)
    assert reserved(ledger, "bob", "gpu=1") == ("G1",)
    assert ledger.release("bob")
    assert [gpu.device_id for gpu in ledger.free.gpus if gpu.share_milli] == ["G1"]


def test_a_second_release_gives_nothing_back() -> None:
    ledger = Ledger(machine(h100("G0")))
    reserved(ledger, "alice", "storage=60GiB,network=600,gpu=1")
    reserved(ledger, "bob", "storage=40GiB,network=400")
    assert ledger.release("alice")
    once = ledger.free
    assert not ledger.release("alice")
    assert not ledger.release("carol")
    assert ledger.free == once
    assert (once.storage_bytes, once.network_mbps) == (60 * GIB, 600)


def test_storage_and_network_are_taken_like_the_rest() -> None:
    ledger = Ledger(machine())
    reserved(ledger, "alice", "storage=100GiB,network=1000")
    for text, resource in (("storage=1KiB", "storage"), ("network=1", "network")):
        refusal = ledger.reserve("bob", parse_requirements(text))
        assert isinstance(refusal, Infeasible)
        assert (refusal.resource, refusal.free) == (resource, 0)


def test_a_refused_request_takes_nothing() -> None:
    """The devices are judged last, when the cores would be gone already."""
    ledger = Ledger(machine(a100("G0")))
    before = ledger.free
    answer = ledger.reserve("alice", parse_requirements("cpu=2,gpu=2"))
    assert answer == Infeasible("gpu", 2, 1)
    assert ledger.free == before


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
