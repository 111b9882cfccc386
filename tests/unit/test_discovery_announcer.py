"""A worker's presence: published, republished, changed and withdrawn."""

import random
from dataclasses import replace

import pytest

from formation_p2p.dht import messages as kad
from formation_p2p.dht.messages import AddProvider, PutValue, Reply, Request
from formation_p2p.dht.operations import Completed, Published
from formation_p2p.discovery import announcer as announcer_module
from formation_p2p.discovery.announcer import (
    CHANGE_SHARE,
    JITTER,
    MIN_INTERVAL_S,
    REPUBLISH_S,
    RETRY_S,
    SETTLE_S,
    TTL_S,
    Announcer,
    names_of,
)
from formation_p2p.effects import Moment
from formation_p2p.keyspace import Key
from formation_p2p.records.profile import SignedProfile, open_profile
from formation_p2p.resources.capability import Capability, Capacity, GpuFree, idle
from formation_p2p.resources.gpu import Gpu
from formation_p2p.units import GIB
from tests.unit import dht_world as world
from tests.unit.dht_world import DhtNode, DhtWorld

MACHINE = Capability(
    10_000, 100 * GIB, 100 * GIB, gpus=(Gpu("GPU-0", "nvidia", "h100", 80 * GIB, 90),)
)
FREE = idle(MACHINE)


class Worker:
    """An announcer on a node of the world, and the machine that it speaks of."""

    def __init__(self, town: DhtWorld, node: DhtNode) -> None:
        self.town = town
        self.node = node
        self.free = FREE
        self.issued: list[SignedProfile] = []
        self.may_go = 0
        self.announcer = Announcer(
            node.contact, node.dht, world.NETWORK, MACHINE, self.issue, random.Random(1)
        )
        node.upper = self

    def issue(self, now: Moment, withdrawn: bool) -> SignedProfile:
        unsigned = replace(
            world.profile(self.node.name, now, sequence=len(self.issued)),
            capability=MACHINE,
            capacity=self.free,
            withdrawn=withdrawn,
        )
        signed = world.sealed(unsigned, self.node.identity)
        self.issued.append(signed)
        return signed

    def start(self) -> None:
        self.announcer.start(self.town.now, "a test")
        self.town.perform(self.node)

    def change(self, free: Capacity) -> None:
        self.free = free
        self.announcer.changed(free, self.town.now)
        self.town.perform(self.node)

    def withdraw(self) -> None:
        self.announcer.withdraw(self.town.now, "a test")
        self.town.perform(self.node)

    def completed(self, completed: Completed, now: Moment) -> None:
        if isinstance(completed, Published):
            self.may_go += self.announcer.published(completed, now)

    def tick(self, now: Moment) -> None:
        self.announcer.tick(now)

    def next_timeout(self) -> float:
        return self.announcer.next_timeout()

    @property
    def names(self) -> frozenset[bytes]:
        return names_of(self.issued[0].profile, world.NETWORK)


def settled(*names: str, seed: int = 1, k: int = 20) -> tuple[DhtWorld, Worker]:
    """A town whose first citizen is a worker that has not announced itself yet."""
    town = DhtWorld(seed, k=k)
    worker, *_ = town.join(*names)
    town.elapse(5)
    return town, Worker(town, worker)


def stored(node: DhtNode, name: bytes, now: Moment) -> list[int]:
    """The sequence numbers under a name."""
    query = kad.ProviderQuery(Key(0), b"", 32)
    found = node.dht.store.providers(name, query, lambda profile: True, now)
    return [signed.profile.sequence for signed in found]


def test_a_worker_is_announced_under_every_name_that_it_belongs_to() -> None:
    town, alice = settled("alice", "bob", "carol")
    alice.start()
    town.elapse(1)
    assert len(alice.issued) == 1
    assert len(alice.names) > 10
    for node in town.nodes.values():
        for name in alice.names:
            assert stored(node, name, town.now) == [0]


def test_it_is_announced_again_at_half_its_life_give_or_take() -> None:
    town, alice = settled("alice", "bob")
    alice.start()
    earliest, latest = (REPUBLISH_S * (1 + way * JITTER / 2) for way in (-1, 1))
    town.elapse(earliest - 0.1)
    assert len(alice.issued) == 1
    town.elapse(latest - earliest + 0.2)
    assert len(alice.issued) == 2
    town.elapse(10 * TTL_S)
    assert 19 <= len(alice.issued) - 2 <= 23
    assert latest < TTL_S
    for name in alice.names:
        assert stored(town.nodes["bob"], name, town.now) == [len(alice.issued) - 1]


BUSY = replace(FREE, cpu_milli=9000)


def test_a_change_that_matters_and_lasts_is_told_soon() -> None:
    town, alice = settled("alice", "bob")
    alice.start()
    town.elapse(20)
    alice.change(BUSY)
    town.elapse(SETTLE_S - 0.1)
    assert len(alice.issued) == 1
    town.elapse(0.2)
    assert [signed.profile.capacity for signed in alice.issued] == [FREE, BUSY]
    town.elapse(SETTLE_S + MIN_INTERVAL_S)
    assert len(alice.issued) == 2


def test_a_change_that_passes_is_not_worth_a_word() -> None:
    """An offer holds capacity for a moment; most are not taken up."""
    town, alice = settled("alice", "bob")
    alice.start()
    town.elapse(20)
    for _ in range(5):
        alice.change(BUSY)
        town.elapse(SETTLE_S / 2)
        alice.change(FREE)
        town.elapse(SETTLE_S / 2)
    town.elapse(SETTLE_S)
    assert len(alice.issued) == 1


def test_one_change_after_another_is_told_at_intervals_with_the_latest_state() -> None:
    town, alice = settled("alice", "bob")
    alice.start()
    start_s = town.now_s
    for step in range(1, 90):
        town.elapse(0.1)
        alice.change(replace(FREE, cpu_milli=10_000 - 100 * step))
    told = [signed.profile.capacity.cpu_milli for signed in alice.issued]
    # One at the start; one when 5 s have passed since; and 5 s later nothing yet.
    assert town.now_s - start_s < 2 * MIN_INTERVAL_S
    assert len(told) == 2
    assert told[1] == 10_000 - 100 * round(MIN_INTERVAL_S / 0.1)


def smaller(free: Capacity, **fields: int) -> Capacity:
    return replace(free, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("free", "matters"),
    [
        (FREE, False),
        (smaller(FREE, cpu_milli=9001), False),
        (smaller(FREE, cpu_milli=9000), True),
        (smaller(FREE, memory_bytes=90 * GIB + 1), False),
        (smaller(FREE, memory_bytes=90 * GIB), True),
        (smaller(FREE, storage_bytes=90 * GIB + 1), False),
        (smaller(FREE, storage_bytes=90 * GIB), True),
        (replace(FREE, gpus=(GpuFree("GPU-0", 901, 80 * GIB),)), False),
        (replace(FREE, gpus=(GpuFree("GPU-0", 900, 80 * GIB),)), True),
    ],
)
def test_a_tenth_of_any_resource_matters(free: Capacity, matters: bool) -> None:
    town, alice = settled("alice", "bob")
    alice.start()
    town.elapse(20)
    alice.change(free)
    town.elapse(2 * SETTLE_S)
    assert len(alice.issued) == 1 + matters
    assert CHANGE_SHARE == 0.1


def test_before_it_is_announced_no_change_matters() -> None:
    town, alice = settled("alice", "bob")
    alice.change(BUSY)
    town.elapse(MIN_INTERVAL_S)
    assert alice.issued == []
    assert alice.announcer.next_timeout() == float("inf")


def test_while_nobody_else_keeps_it_the_worker_tries_again_soon() -> None:
    town = DhtWorld(seed=1)
    [gate] = town.join("gate")
    gate.silent = True
    [node] = town.join("alice")
    alice = Worker(town, node)
    alice.start()
    town.elapse(20)
    assert 3 <= len(alice.issued) <= 20 / RETRY_S
    gate.silent = False
    town.elapse(20)
    tries = len(alice.issued)
    assert stored(gate, min(alice.names), town.now) == [tries - 1]
    town.elapse(20)
    assert len(alice.issued) == tries


def test_when_nobody_keeps_it_any_more_the_worker_tries_again_soon() -> None:
    town, alice = settled("alice", "bob")
    alice.start()
    town.elapse(REPUBLISH_S / 2)
    assert len(alice.issued) == 1
    town.nodes["bob"].silent = True
    town.elapse(REPUBLISH_S)
    assert len(alice.issued) > 4


def test_a_worker_that_is_alone_keeps_its_own_profile() -> None:
    town, alice = settled("alice")
    alice.start()
    town.elapse(1)
    for name in alice.names:
        assert stored(alice.node, name, town.now) == [0]


def test_who_keeps_some_of_it_is_enough_not_to_hurry() -> None:
    """One of the two is silent; the other took what it was sent."""
    town, alice = settled("alice", "bob", "carol")
    town.nodes["carol"].silent = True
    alice.start()
    town.elapse(REPUBLISH_S / 2)
    assert len(alice.issued) == 1


def test_a_withdrawal_reaches_everyone_who_stored_the_profile_and_then_the_node_may_go() -> None:
    town, alice = settled(*("alice", *(f"node {number}" for number in range(20))), k=3)
    alice.start()
    town.elapse(REPUBLISH_S * 2)
    holders = [
        node
        for node in town.nodes.values()
        if any(stored(node, name, town.now) for name in alice.names)
    ]
    assert len(holders) > 10  # three for each name
    alice.withdraw()
    assert alice.may_go == 0
    town.elapse(1)
    assert alice.may_go == 1
    for node in holders:
        for name in alice.names:
            assert stored(node, name, town.now) == []
    town.elapse(2 * TTL_S)
    assert alice.issued[-1].profile.withdrawn
    assert [signed.profile.withdrawn for signed in alice.issued].count(True) == 1


def test_a_withdrawal_reaches_who_stored_only_an_earlier_profile() -> None:
    """It was out of reach when the profile was announced twice more."""
    town, alice = settled("alice", "bob", "carol")
    alice.start()
    town.elapse(MIN_INTERVAL_S)
    bob = town.nodes["bob"]
    bob.silent = True
    for free in (BUSY, FREE):
        alice.change(free)
        town.elapse(2 * MIN_INTERVAL_S)
    assert len(alice.issued) == 3
    assert stored(bob, min(alice.names), town.now) == [0]
    bob.silent = False
    alice.withdraw()
    town.elapse(1)
    assert stored(bob, min(alice.names), town.now) == []


def test_a_withdrawal_in_the_middle_of_an_announcement_overtakes_it() -> None:
    town, alice = settled("alice", "bob", "carol")
    alice.start()
    while not town.said(AddProvider):
        town.elapse(0.001)
    alice.withdraw()
    town.elapse(5)
    assert alice.may_go == 1
    for node in town.nodes.values():
        for name in alice.names:
            assert stored(node, name, town.now) == []


def test_withdrawn_while_it_still_looks_for_a_place_nothing_is_announced_any_more() -> None:
    town = DhtWorld(seed=1)
    [gate] = town.join("gate")
    gate.silent = True
    [node] = town.join("alice")
    alice = Worker(town, node)
    alice.start()
    town.elapse(0.5)
    alice.withdraw()
    assert alice.may_go == 1
    town.elapse(100)
    assert [signed.profile.withdrawn for signed in alice.issued] == [False, True]
    assert alice.announcer.next_timeout() == float("inf")


def test_after_the_withdrawal_no_change_brings_the_worker_back() -> None:
    town, alice = settled("alice", "bob")
    alice.start()
    town.elapse(5)
    alice.withdraw()
    alice.change(BUSY)
    town.elapse(TTL_S)
    assert len(alice.issued) == 2


def test_a_peer_whose_copy_has_expired_hears_of_no_withdrawal() -> None:
    town, alice = settled("alice", "bob", "carol")
    alice.start()
    town.elapse(1)
    town.nodes["bob"].silent = True
    town.elapse(TTL_S + REPUBLISH_S)
    town.nodes["bob"].silent = False
    carried = len(town.carried)
    alice.withdraw()
    town.elapse(1)
    assert {each.receiver for each in town.carried[carried:]} == {"carol", "alice"}
    assert alice.may_go == 1


def test_of_those_who_hold_its_profile_a_worker_remembers_a_bounded_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(announcer_module, "MAX_HOLDERS", 1)
    town, alice = settled("alice", "bob", "carol")
    alice.start()
    town.elapse(1)
    carried = len(town.carried)
    alice.withdraw()
    town.elapse(1)
    told = [each for each in town.carried[carried:] if each.sender == "alice"]
    assert len(told) == 1


def test_the_end_of_another_publish_is_not_the_announcers() -> None:
    town, alice = settled("alice", "bob")
    alice.start()
    town.elapse(1)
    due_s = alice.announcer.next_timeout()
    other = alice.node.dht.put_value(b"/formation/other", b"junk", town.now, "a test")
    town.perform(alice.node)
    town.elapse(1)
    assert alice.node.published(other).stored_at == ()
    assert alice.announcer.next_timeout() == due_s


def test_workers_that_start_together_do_not_announce_together() -> None:
    town, alice = settled("alice", "bob")
    alice.start()
    due = set()
    for seed in range(20):
        other = Announcer(
            alice.node.contact,
            alice.node.dht,
            world.NETWORK,
            MACHINE,
            alice.issue,
            random.Random(seed),
        )
        other.start(town.now, "a test")
        due.add(round(other.next_timeout() - town.now_s))
    assert len(due) > 5
    assert all(abs(each - REPUBLISH_S) <= REPUBLISH_S * JITTER / 2 + 1 for each in due)


def test_what_is_withdrawn_is_told_as_a_value_which_is_answered() -> None:
    """So that the node knows when it may go."""
    town, alice = settled("alice", "bob")
    alice.start()
    town.elapse(1)
    answers: list[tuple[Request, Reply | None]] = []

    def noted(request: Request, reply: Reply | None) -> Reply | None:
        answers.append((request, reply))
        return reply

    town.nodes["bob"].lie = noted
    alice.withdraw()
    town.elapse(1)
    [(request, reply)] = answers
    assert isinstance(request, PutValue)
    assert reply == kad.Stored(request.name, request.value)
    assert open_profile(request.value, town.now.unix_s).profile.withdrawn
