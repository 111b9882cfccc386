"""What holds of leases whatever happens, in whatever order: both tables under random play."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from formation_p2p.core.effects import Contact
from formation_p2p.core.negotiation.held import HeldResources, shortfall
from formation_p2p.core.negotiation.lease import LeaseState
from formation_p2p.core.negotiation.lessee import Lessee
from formation_p2p.core.negotiation.lessor import Lessor, LessorEffect
from formation_p2p.core.negotiation.messages import (
    MAX_MS,
    Commit,
    CommitRefused,
    Leased,
    LeaseEnded,
    Offer,
    PlacementRequest,
    Release,
    Renew,
    Renewed,
)
from formation_p2p.core.negotiation.parameters import LEASE_DEFAULTS
from formation_p2p.core.negotiation.preemption import to_displace
from formation_p2p.core.negotiation.session import Fence, Send
from formation_p2p.core.placement.task_options import SchedulingKey
from formation_p2p.core.records.codec import MAX_INT
from formation_p2p.core.refusals import Preempted
from formation_p2p.core.resources.capability import Capability, idle
from formation_p2p.core.resources.fits import Ledger, Reservation
from formation_p2p.core.resources.requirements import Requirements
from formation_p2p.core.units import GIB
from tests.support import resources_world
from tests.support.resources_world import a100, h100, machine
from tests.support.stories import ALICE, BOB, CAROL, DAVE, Lenient, at, sent, unshared

MACHINE = machine(a100("G0"), h100("G1"), cpu_milli=4000)
owners = st.sampled_from([BOB, CAROL, DAVE])
wishes = st.builds(
    lambda cpu, gpus, share: Requirements(
        driver="process", cpu_milli=cpu, gpu_count=gpus, gpu_share_milli=share if gpus else 1000
    ),
    st.sampled_from([1000, 2000, 4000]),
    st.integers(0, 2),
    st.sampled_from([400, 1000]),
)


class Worker(RuleBasedStateMachine):
    """alice's lessor, and three schedulers who do as they please."""

    @initialize(seed=st.integers(0, 2**32))
    def begin(self, seed: int) -> None:
        self.lessor = Lessor(
            MACHINE,
            {},
            ("process",),
            Lenient(),
            random.Random(seed),
            unshared(MACHINE),
            lambda lease_id: int(lease_id, 16) % 2 == 0,
            price_micro=5,
        )
        self.now_s = 0.0
        self.offered: list[tuple[Contact, str, int]] = []
        self.fences: dict[str, int] = {}
        self.last_fence = 0
        self.ending: list[str] = []
        self.over: set[str] = set()

    def perform(self, effects: list[LessorEffect]) -> None:
        for effect in effects:
            if isinstance(effect, Fence):
                assert effect.lease_id not in self.over, "it was fenced before"
                self.ending.append(effect.lease_id)
                self.over.add(effect.lease_id)

    @rule(owner=owners, needs=wishes, priority=st.sampled_from([0, 0, 3, 9]))
    def ask(self, owner: Contact, needs: Requirements, priority: int) -> None:
        request = PlacementRequest(1, needs, b"", priority)
        effects = self.lessor.requested(owner, request, at(self.now_s))
        ((_, answer),) = sent(effects[:1])
        self.perform(effects)
        if isinstance(answer, Offer):
            assert shortfall(answer.holds, needs) is None
            self.offered.append((owner, answer.lease_id, priority))

    @precondition(lambda self: self.offered)
    @rule(data=st.data())
    def commit(self, data: st.DataObject) -> None:
        owner, lease_id, priority = data.draw(st.sampled_from(self.offered))
        ((_, answer),) = sent(self.lessor.committed(owner, Commit(lease_id), at(self.now_s)))
        if isinstance(answer, Leased):
            if lease_id in self.fences:  # said again
                assert answer.fence == self.fences[lease_id]
            else:
                assert answer.fence > self.last_fence
                self.last_fence = self.fences[lease_id] = answer.fence
            assert lease_id not in self.over
        else:
            assert isinstance(answer, CommitRefused)
            if isinstance(answer.refusal, Preempted):
                assert answer.refusal.priority > priority

    @precondition(lambda self: self.fences)
    @rule(data=st.data(), off_by=st.sampled_from([0, 0, 0, -1, 1]))
    def renew(self, data: st.DataObject, off_by: int) -> None:
        owner, lease_id, priority = data.draw(
            st.sampled_from([each for each in self.offered if each[1] in self.fences])
        )
        renew = Renew(lease_id, max(0, self.fences[lease_id] + off_by))
        effects = self.lessor.renewed(owner, renew, at(self.now_s))
        assert isinstance(effects[0], Send)
        answer = effects[0].message
        if isinstance(answer, Renewed):
            assert off_by == 0
            assert lease_id not in self.over
        else:
            assert isinstance(answer, LeaseEnded)
            if isinstance(answer.refusal, Preempted):
                assert answer.refusal.priority > priority
        self.perform(effects)

    @precondition(lambda self: self.offered)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        owner, lease_id, _ = data.draw(st.sampled_from(self.offered))
        self.perform(self.lessor.released(owner, Release(lease_id), at(self.now_s)))

    @precondition(lambda self: self.ending)
    @rule(data=st.data())
    def fenced(self, data: st.DataObject) -> None:
        lease_id = data.draw(st.sampled_from(self.ending))
        self.ending.remove(lease_id)
        self.lessor.fenced(lease_id)

    @rule(seconds=st.sampled_from([0.1, 1.0, 2.0, 5.0, 60.0]))
    def elapse(self, seconds: float) -> None:
        self.now_s += seconds
        self.perform(self.lessor.tick(at(self.now_s)))

    @invariant()
    def nothing_is_given_twice(self) -> None:
        leases = list(self.lessor)
        free = self.lessor.ledger.free
        kept = [lease for lease in leases if lease.kept]  # and other offers take nothing
        assert 0 <= free.cpu_milli == MACHINE.cpu_milli - sum(x.needs.cpu_milli for x in kept)
        assert free.memory_bytes >= 0
        shares: Counter[str] = Counter()
        for lease in leases:
            for claim in lease.reservation.gpus:
                shares[claim.device_id] += claim.share_milli * lease.kept
            assert len(set(lease.device_ids)) == lease.needs.gpu_count
        assert all(share <= 1000 for share in shares.values())

    @invariant()
    def only_the_fence_in_force_opens_a_lease(self) -> None:
        for owner, lease_id, _ in self.offered:
            lease = next((x for x in self.lessor if x.lease_id == lease_id), None)
            in_force = lease is not None and lease.state is LeaseState.LEASED
            for fence in range(self.last_fence + 2):
                opens = not hasattr(self.lessor.lease(owner, lease_id, fence), "why")
                assert opens == (in_force and fence == self.fences.get(lease_id))

    def teardown(self) -> None:
        """With nobody left, all that there was is free again."""
        if hasattr(self, "lessor"):
            self.perform(self.lessor.tick(at(self.now_s + LEASE_DEFAULTS.lease_s + 1)))
            for lease_id in self.ending:
                self.lessor.fenced(lease_id)
            assert self.lessor.ledger.free == idle(MACHINE)
            assert len(self.lessor) == 0


Worker.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestAWorker = Worker.TestCase


# -- what a scheduler commits to --------------------------------------------------------------

amounts = st.sampled_from([0, 1, 999, 1000, 1001, GIB - 1, GIB, 16 * GIB])
claimed = st.builds(
    HeldResources,
    amounts,
    amounts,
    amounts,
    amounts,
    st.lists(st.sampled_from(["G0", "G1", "G2"]), max_size=4).map(tuple),
    st.sampled_from([0, 333, 500, 1000]),
    amounts,
)
prices = st.sampled_from([0, 1, 100, 101, MAX_INT])
holds_ms = st.sampled_from([0, 1, 499, 500, 1500, 10_000, 10_001, MAX_MS])


@settings(max_examples=300)
@given(
    resources_world.needs,
    st.lists(st.tuples(claimed, prices, holds_ms), min_size=1, max_size=3),
    st.none() | st.sampled_from([0, 100]),
    st.integers(1, 3),
)
def test_a_scheduler_commits_to_nothing_less_and_nothing_dearer_than_it_asked_for(
    needs: Requirements,
    offers: list[tuple[HeldResources, int, int]],
    max_price_micro: int | None,
    wanted: int,
) -> None:
    lessee = Lessee(b"", random.Random(1))
    order = (ALICE, CAROL, DAVE)[: len(offers)]
    lessee.ask(order, SchedulingKey(needs, 0, max_price_micro), wanted=wanted, now=at(0), cause="")
    requests = sent(lessee.take()[0])
    said = {}
    for contact, (_, request), (holds, price, hold_ms) in zip(order, requests, offers, strict=True):
        assert isinstance(request, PlacementRequest)
        offer = Offer(request.request_id, f"of {contact.peer_id}", holds, price, hold_ms)
        said[contact.peer_id] = offer
        lessee.received(contact, offer, at(0.1))
    lessee.tick(at(3.0))
    effects, _ = lessee.take()
    committed = [to for to, message in sent(effects) if isinstance(message, Commit)]
    released = [to for to, message in sent(effects) if isinstance(message, Release)]
    assert sorted(committed + released) == sorted(said)  # each is answered, once
    assert len(committed) <= wanted
    for worker in committed:
        offer = said[worker]
        assert max_price_micro is None or offer.price_micro <= max_price_micro
        assert 500 <= offer.hold_ms <= 10_000
        holds = offer.holds
        assert holds.cpu_milli >= needs.cpu_milli
        assert holds.memory_bytes >= needs.memory_bytes
        assert holds.storage_bytes >= needs.storage_bytes
        assert holds.network_mbps >= needs.network_mbps
        assert len(holds.device_ids) == len(set(holds.device_ids)) == needs.gpu_count
        if needs.gpu_count:
            assert holds.gpu_share_milli >= needs.gpu_share_milli
            assert holds.gpu_memory_bytes >= needs.gpu_memory_bytes


# -- who gives way ----------------------------------------------------------------------------


@settings(max_examples=200)
@given(resources_world.capabilities, st.lists(resources_world.needs, max_size=6), st.data())
def test_those_who_give_way_are_enough_and_each_of_them_must(
    capability: Capability, holders: list[Requirements], data: st.DataObject
) -> None:
    ledger = Ledger(capability)
    held = [
        str(n)
        for n, needs in enumerate(holders)
        if isinstance(ledger.reserve(str(n), needs), Reservation)
    ]
    ending = [each for each in held if data.draw(st.booleans())]
    candidates = [each for each in held if each not in ending]
    needs = data.draw(resources_world.needs)

    def fits_without(gone: list[str]) -> bool:
        free = ledger.free
        for each in gone:
            free = ledger.with_back(free, each)
        return ledger.lacks(needs, free) is None

    displaced = to_displace(needs, ledger, ending, candidates)
    if displaced is None:
        assert not fits_without([*ending, *candidates])
        return
    assert set(displaced) <= set(candidates)
    assert fits_without([*ending, *displaced])
    for spared in displaced:
        assert not fits_without([*ending, *(x for x in displaced if x != spared)])


def test_the_machine_above_finds_a_fault_that_is_put_in() -> None:
    """A lessor that gives back what still runs is caught: the laws can fail."""
    worker = Worker()
    worker.begin(seed=1)
    worker.ask(BOB, Requirements(driver="process", cpu_milli=4000), 0)
    worker.lessor.ledger.release(worker.offered[0][1])
    worker.ask(CAROL, Requirements(driver="process", cpu_milli=4000), 0)
    with pytest.raises(AssertionError):
        worker.nothing_is_given_twice()
