"""A worker's presence: published, republished, changed and withdrawn."""

import random
from dataclasses import replace

import pytest

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.keyspace import Span, key_of
from formation_p2p.core.refusals import Denied
from formation_p2p.core.units import GIB
from formation_p2p.dht.core import messages as kad
from formation_p2p.dht.core.messages import AddProvider, GetProviders, PutValue, Reply, Request
from formation_p2p.dht.core.operations import Published, Searched
from formation_p2p.dht.core.parameters import DhtParameters
from formation_p2p.dht.core.store import value_name
from formation_p2p.discovery.core.announcer import Announcer
from formation_p2p.discovery.core.parameters import DiscoveryParameters
from formation_p2p.discovery.core.shard_membership import names_of
from formation_p2p.machine.core.capability import Capability, Capacity, GpuFree, idle
from formation_p2p.machine.core.gpu import Gpu
from formation_p2p.records.core.buckets import buckets_of
from formation_p2p.records.core.profile import SignedProfile, open_profile
from tests.support import dht_world as world
from tests.support.dht_world import LATENCY_S, Completed, DhtNode, DhtWorld

DISCOVERY = DiscoveryParameters()

MACHINE = Capability(
    10_000, 100 * GIB, 100 * GIB, gpus=(Gpu("GPU-0", "nvidia", "h100", 80 * GIB, 90),)
)
FREE = idle(MACHINE)
PARAMETERS = DiscoveryParameters()
TTL_S, REPUBLISH_S, REPLICAS = PARAMETERS.ttl_s, PARAMETERS.republish_s, PARAMETERS.replicas
LATEST = 1 + DISCOVERY.jitter / 2


class Worker:
    """An announcer on a node of the world, and the machine that it speaks of."""

    def __init__(
        self,
        town: DhtWorld,
        node: DhtNode,
        parameters: DiscoveryParameters = PARAMETERS,
        seed: int = 1,
    ) -> None:
        self.town = town
        self.node = node
        self.free = FREE
        self.issued: list[SignedProfile] = []
        self.issued_s: list[float] = []
        self.may_go = 0
        self.announcer = Announcer(
            node.contact,
            node.dht,
            world.NETWORK,
            buckets_of(MACHINE, {}, ("process",)),
            MACHINE,
            self.issue,
            random.Random(seed),
            parameters,
        )
        node.upper = self

    def issue(self, now: Moment, spans: tuple[Span, ...], withdrawn: bool) -> SignedProfile:
        unsigned = replace(
            world.profile(self.node.name, now, sequence=len(self.issued)),
            capability=MACHINE,
            capacity=self.free,
            withdrawn=withdrawn,
            spans=spans,
        )
        signed = world.sealed(unsigned, self.node.identity)
        self.issued.append(signed)
        self.issued_s.append(now.mono_s)
        return signed

    def start(self) -> None:
        self.announcer.start(self.town.now)
        self.town.perform(self.node)

    def rest(self) -> None:
        """Until it has just published itself, as it does every 84 s or so from then on."""
        self.town.elapse(200)
        count = len(self.issued)
        while len(self.issued) == count:
            self.town.elapse(0.5)
        self.town.elapse(DISCOVERY.min_interval_s)

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
        elif isinstance(completed, Searched):
            self.announcer.searched(completed, now)

    def tick(self, now: Moment) -> None:
        self.announcer.tick(now)

    def next_timeout(self) -> float:
        return self.announcer.next_timeout()

    @property
    def names(self) -> list[bytes]:
        return list(names_of(self.issued[0].profile, world.NETWORK))


def settled(
    *names: str, seed: int = 1, k: int = 20, parameters: DiscoveryParameters = PARAMETERS
) -> tuple[DhtWorld, Worker]:
    """A town whose first citizen is a worker that has not announced itself yet."""
    town = DhtWorld(seed, parameters=DhtParameters(k=k))
    worker, *_ = town.join(*names)
    town.elapse(5)
    return town, Worker(town, worker, parameters)


def started(*names: str, parameters: DiscoveryParameters = PARAMETERS) -> tuple[DhtWorld, Worker]:
    """It has begun to announce itself."""
    town, worker = settled(*names, parameters=parameters)
    worker.start()
    return town, worker


def rested(*names: str) -> tuple[DhtWorld, Worker]:
    """It has just published itself, and does so every 84 s or so."""
    town, worker = started(*names)
    worker.rest()
    return town, worker


def stored(node: DhtNode, name: bytes, now: Moment) -> list[int]:
    """The sequence numbers under a name."""
    return [profile.sequence for profile in node.held(name, now)]


def replicas_of(town: DhtWorld, name: bytes) -> list[DhtNode]:
    return [node for node in town.nodes.values() if node.alive and stored(node, name, town.now)]


def people(count: int) -> list[str]:
    return ["alice", *(f"node {number}" for number in range(count - 1))]


# -- when and where -------------------------------------------------------------------------------


@pytest.mark.at_length
def test_of_many_peers_the_nearest_to_each_name_hold_it() -> None:
    town, alice = started(*people(25))
    town.elapse(1)
    for name in alice.names:
        found = {node.peer_id for node in replicas_of(town, name)}
        assert found == set(town.nearest(key_of(name), REPLICAS))


def test_a_worker_that_has_just_started_is_announced_again_soon_and_then_more_rarely() -> None:
    """Its network may be starting as well. Then what it says lasts for 0.7 of its life."""
    town, alice = started("alice", "bob")
    start_s = town.now_s
    town.elapse(1000)
    said = [at_s - start_s for at_s in alice.issued_s]
    pauses = [
        DISCOVERY.first_republish_s,
        2 * DISCOVERY.first_republish_s,
        4 * DISCOVERY.first_republish_s,
    ]
    pauses += [REPUBLISH_S] * (len(said) - 4)
    # The first waits for the homes to be found, not for its turn.
    turns = [0.0, *said[1:]]
    for before_s, at_s, pause_s in zip(turns, said[1:], pauses, strict=False):
        assert at_s - before_s == pytest.approx(pause_s, rel=DISCOVERY.jitter / 2)
    assert REPUBLISH_S * LATEST < TTL_S
    for name in alice.names:
        assert stored(town.nodes["bob"], name, town.now) == [len(alice.issued) - 1]


@pytest.mark.at_length
def test_it_is_announced_again_without_looking_anybody_up() -> None:
    """One message to each holder whatever the number of names, and one more for the value."""
    town, alice = rested(*people(25))
    before = len(town.carried)
    count = len(alice.issued)
    while len(alice.issued) == count:
        town.elapse(0.5)
    town.elapse(1)
    sent = [each for each in town.carried[before:] if each.sender == "alice"]
    assert not [e for e in sent if isinstance(e.message, GetProviders)]
    adds = [each for each in sent if isinstance(each.message, AddProvider)]
    puts = [each for each in sent if isinstance(each.message, PutValue)]
    assert len({each.receiver for each in adds}) == len(adds)
    others = {n.name for name in alice.names for n in replicas_of(town, name)} - {"alice"}
    assert {each.receiver for each in adds} | {each.receiver for each in puts} == others
    assert REPLICAS - 1 <= len(puts) <= REPLICAS
    # One holder of each name tells how full it is, and who is nearer.
    named = [each.message.names for each in adds if isinstance(each.message, AddProvider)]
    assert sum(map(len, named)) >= (len(alice.names) - 1) * (REPLICAS - 1)
    asked = [
        e.message for e in adds if isinstance(e.message, AddProvider) and e.message.acknowledged
    ]
    assert {message.name for message in asked} <= set(alice.names)
    assert len(asked) <= len(alice.names)


@pytest.mark.at_length
def test_a_holder_that_dies_is_replaced_by_the_next_nearest() -> None:
    town, alice = rested(*people(25))
    name = alice.names[0]
    dead = next(node for node in replicas_of(town, name) if node is not alice.node)
    dead.alive = False
    town.elapse(REPUBLISH_S * LATEST + 10)
    found = {node.peer_id for node in replicas_of(town, name)}
    assert set(town.nearest(key_of(name), REPLICAS)) <= found


def newcomer_near(town: DhtWorld, name: bytes) -> DhtNode:
    """Joins, and is nearer to the name than nearly all."""
    near = next(
        candidate
        for n in range(1000)
        if world.person(candidate := f"newcomer {n}").peer_id
        in town.nearest(key_of(name), 2, among=[*town.nodes.values(), stranger(candidate)])
    )
    [node] = town.join(near)
    return node


@pytest.mark.at_length
def test_a_nearer_peer_that_joins_gets_the_record_at_the_next_round() -> None:
    town, alice = rested(*people(25))
    name = alice.names[0]
    node = newcomer_near(town, name)
    assert stored(node, name, town.now) == []
    town.elapse(2 * REPUBLISH_S * LATEST)
    assert stored(node, name, town.now) == [len(alice.issued) - 1]


def stranger(name: str) -> DhtNode:
    return DhtWorld(0).add(name)


def test_workers_that_start_together_do_not_announce_together() -> None:
    town, alice = started("alice", "bob")
    due = set()
    for seed in range(20):
        other = Worker(town, alice.node, seed=seed).announcer
        other.start(town.now)
        town.now_s += DISCOVERY.start_s
        other.tick(town.now)
        due.add(round(other.next_timeout() - town.now_s, 1))
    assert len(due) > 5
    spread_s = DISCOVERY.first_republish_s * DISCOVERY.jitter / 2
    latest_s = DISCOVERY.first_republish_s - DISCOVERY.start_s
    assert all(abs(each - latest_s) <= spread_s + 0.1 for each in due)


def test_a_worker_whose_names_are_more_than_one_message_holds_is_announced_in_several() -> None:
    town, alice = started("alice", "bob", parameters=DiscoveryParameters(max_names=4))
    town.elapse(1)
    adds = [each.message for each in town.carried if isinstance(each.message, AddProvider)]
    assert max(len(add.names) for add in adds) == 4
    for name in alice.names:
        assert stored(town.nodes["bob"], name, town.now) == [0]


# -- changes --------------------------------------------------------------------------------------


BUSY = replace(FREE, cpu_milli=9000)


def test_a_change_that_matters_and_lasts_is_told_soon() -> None:
    town, alice = rested("alice", "bob")
    before = len(alice.issued)
    alice.change(BUSY)
    town.elapse(DISCOVERY.settle_s - 0.1)
    assert len(alice.issued) == before
    town.elapse(0.2)
    assert [signed.profile.capacity for signed in alice.issued[before - 1 :]] == [FREE, BUSY]
    town.elapse(DISCOVERY.settle_s + DISCOVERY.min_interval_s)
    assert len(alice.issued) == before + 1
    for name in alice.names:
        assert stored(town.nodes["bob"], name, town.now) == [before]


def move(alice: Worker, number: int) -> None:
    own = Contact(alice.node.contact.peer_id, (f"/ip4/10.0.0.{number}/tcp/1",))
    alice.announcer.moved(own, alice.town.now)
    alice.town.perform(alice.node)


def test_a_worker_that_moves_tells_so_at_once_and_several_moves_together() -> None:
    town, alice = rested("alice", "bob")
    before = len(alice.issued)
    for number in range(5):
        move(alice, number)
        town.elapse(DISCOVERY.move_settle_s / 10)
        alice.announcer.changed(alice.free, town.now)
    assert len(alice.issued) == before
    town.elapse(DISCOVERY.move_settle_s)
    assert len(alice.issued) == before + 1
    move(alice, 9)
    town.elapse(DISCOVERY.move_interval_s + 0.1)
    assert len(alice.issued) == before + 2
    for name in alice.names:
        assert stored(town.nodes["bob"], name, town.now) == [before + 1]


def test_a_worker_that_moves_all_the_time_tells_so_as_rarely_as_of_other_changes() -> None:
    town, alice = rested("alice", "bob")
    before, rounds = len(alice.issued), 100
    for number in range(rounds):
        move(alice, number)
        town.elapse(1)
    slow = rounds - DISCOVERY.max_quick_moves
    told = len(alice.issued) - before
    assert DISCOVERY.max_quick_moves < told
    assert told <= DISCOVERY.max_quick_moves + slow / DISCOVERY.min_interval_s + 2


def test_a_worker_that_moves_before_it_is_announced_tells_so_with_the_first_profile() -> None:
    town, alice = settled("alice", "bob")
    move(alice, 1)
    alice.start()
    move(alice, 2)
    town.elapse(DISCOVERY.start_s + 1)
    assert len(alice.issued) == 1


def test_a_change_that_passes_is_not_worth_a_word() -> None:
    """An offer holds capacity for a moment; most are not taken up."""
    town, alice = rested("alice", "bob")
    before = len(alice.issued)
    for _ in range(5):
        alice.change(BUSY)
        town.elapse(DISCOVERY.settle_s / 2)
        alice.change(FREE)
        town.elapse(DISCOVERY.settle_s / 2)
    town.elapse(DISCOVERY.settle_s)
    assert len(alice.issued) == before


def test_one_change_after_another_is_told_at_intervals_with_the_latest_state() -> None:
    town, alice = rested("alice", "bob")
    before = len(alice.issued)
    for step in range(1, 85):
        town.elapse(0.1)
        alice.change(replace(FREE, cpu_milli=10_000 - 100 * step))
    reported = [signed.profile.capacity.cpu_milli for signed in alice.issued[before:]]
    # One after 2 s of change; one when 5 s have passed since.
    steps = [
        10 + round(DISCOVERY.settle_s / 0.1),
        10 + round((DISCOVERY.settle_s + DISCOVERY.min_interval_s) / 0.1),
    ]
    assert reported == [10_000 - 100 * step for step in steps]


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
    town, alice = rested("alice", "bob")
    before = len(alice.issued)
    alice.change(free)
    town.elapse(2 * DISCOVERY.settle_s)
    assert len(alice.issued) == before + matters
    assert DISCOVERY.change_share == 0.1


def test_before_it_is_announced_no_change_matters() -> None:
    town, alice = settled("alice", "bob")
    alice.change(BUSY)
    alice.announcer.disconnected(town.nodes["bob"].peer_id, town.now)
    town.elapse(DISCOVERY.min_interval_s)
    assert alice.issued == []
    assert alice.announcer.next_timeout() == float("inf")


# -- alone, or out of reach ------------------------------------------------------------------------


def test_while_nobody_else_keeps_it_the_worker_tries_again_soon() -> None:
    town = DhtWorld(seed=1)
    [gate] = town.join("gate")
    gate.silent = True
    [node] = town.join("alice")
    alice = Worker(town, node)
    alice.start()
    town.elapse(20)
    assert 3 <= len(alice.issued) <= 1 + 20 / DISCOVERY.retry_s
    gate.silent = False
    town.elapse(40)
    tries = len(alice.issued)
    for name in alice.names:
        assert stored(gate, name, town.now) == [tries - 1]
    town.elapse(DISCOVERY.first_republish_s)
    assert len(alice.issued) <= tries + 1


def test_whom_not_even_its_own_node_lets_in_looks_for_holders_once_in_each_round() -> None:
    town, alice = settled("alice", "bob")
    for node in town.nodes.values():
        node.denied = Denied("work", "it expired")
    alice.start()
    town.elapse(20)
    assert len(town.said(GetProviders)) <= 2 * len(alice.issued) * len(alice.names)


def test_a_worker_that_is_alone_keeps_its_own_profile() -> None:
    town, alice = started("alice")
    town.elapse(DISCOVERY.start_s)
    for name in alice.names:
        assert stored(alice.node, name, town.now) == [len(alice.issued) - 1]


def test_who_keeps_some_of_it_is_enough_not_to_hurry() -> None:
    """One of the two is silent; the other took what it was sent."""
    town, alice = rested("alice", "bob", "carol")
    town.nodes["carol"].silent = True
    before = len(alice.issued)
    town.elapse(REPUBLISH_S * LATEST + 20)
    assert len(alice.issued) == before + 1


@pytest.mark.at_length
def test_a_withdrawal_reaches_everyone_who_stored_the_profile_and_then_the_node_may_go() -> None:
    town, alice = started(*people(25))
    town.elapse(REPUBLISH_S * 2)
    everyone = {node.name: node for name in alice.names for node in replicas_of(town, name)}
    assert len(everyone) > 20  # eight for each name
    alice.withdraw()
    assert alice.may_go == 0
    town.elapse(1)
    assert alice.may_go == 1
    for node in everyone.values():
        for name in alice.names:
            assert stored(node, name, town.now) == []
    town.elapse(2 * TTL_S)
    assert alice.issued[-1].profile.withdrawn
    assert [signed.profile.withdrawn for signed in alice.issued].count(True) == 1


def test_a_withdrawal_reaches_who_stored_only_an_earlier_profile() -> None:
    """It was out of reach when the profile was announced twice more."""
    town, alice = rested("alice", "bob", "carol")
    before = len(alice.issued)
    bob = town.nodes["bob"]
    bob.silent = True
    for free in (BUSY, FREE):
        alice.change(free)
        town.elapse(2 * DISCOVERY.min_interval_s)
    assert len(alice.issued) == before + 2
    assert stored(bob, min(alice.names), town.now) == [before - 1]
    bob.silent = False
    alice.withdraw()
    town.elapse(1)
    assert stored(bob, min(alice.names), town.now) == []


def test_a_withdrawal_in_the_middle_of_an_announcement_overtakes_it() -> None:
    town, alice = started("alice", "bob", "carol")
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
    assert [signed.profile.withdrawn for signed in alice.issued] == [True]
    assert alice.announcer.next_timeout() == float("inf")


def test_after_the_withdrawal_no_change_brings_the_worker_back() -> None:
    town, alice = started("alice", "bob")
    town.elapse(5)
    alice.withdraw()
    before = len(alice.issued)
    alice.change(BUSY)
    alice.announcer.disconnected(town.nodes["bob"].peer_id, town.now)
    town.perform(alice.node)
    town.elapse(TTL_S)
    assert len(alice.issued) == before
    assert alice.issued[-1].profile.withdrawn


def test_a_peer_whose_copy_has_expired_hears_of_no_withdrawal() -> None:
    town, alice = started("alice", "bob", "carol")
    town.elapse(1)
    town.nodes["bob"].silent = True
    town.elapse(TTL_S + REPUBLISH_S)
    town.nodes["bob"].silent = False
    carried = len(town.carried)
    alice.withdraw()
    town.elapse(1)
    reported = {each.receiver for each in town.carried[carried:] if each.sender == "alice"}
    assert reported == {"carol"}
    assert alice.may_go == 1


def test_of_those_who_hold_its_profile_a_worker_remembers_a_bounded_number() -> None:
    few = DiscoveryParameters(max_written=1)
    town, alice = started("alice", "bob", "carol", parameters=few)
    town.elapse(1)
    carried = len(town.carried)
    alice.withdraw()
    town.elapse(1)
    reported = [each for each in town.carried[carried:] if each.sender == "alice"]
    assert len(reported) == 1


@pytest.mark.at_length
def test_a_holder_whose_connection_broke_is_written_to_again_where_there_are_few() -> None:
    """It may have been restarted. Where there are many, others have it."""
    town, alice = rested("alice", "bob", "carol")
    before = len(alice.issued)
    alice.announcer.disconnected(town.nodes["bob"].peer_id, town.now)
    alice.announcer.disconnected(world.person("a stranger").peer_id, town.now)
    town.perform(alice.node)
    town.elapse(DISCOVERY.settle_s + 0.1)
    assert len(alice.issued) == before + 1
    town, alice = rested(*people(25))
    before = len(alice.issued)
    alice.announcer.disconnected(town.nodes["node 3"].peer_id, town.now)
    town.perform(alice.node)
    town.elapse(DISCOVERY.settle_s + 0.1)
    assert len(alice.issued) == before


def test_a_gate_that_answers_again_is_written_to_at_once_with_what_is_known() -> None:
    town, alice = settled("alice", "bob", "carol")
    gate = town.nodes["bob"].contact
    alice.announcer.met(gate, town.now)  # nothing is announced yet
    assert alice.announcer.next_timeout() == float("inf")
    alice.start()
    alice.rest()
    before, carried = len(alice.issued), len(town.carried)
    for _ in range(2):  # the second time it is about to be written to
        alice.announcer.met(gate, town.now)
    town.perform(alice.node)
    town.elapse(DISCOVERY.gather_s + 0.1)
    writes = [
        each.message
        for each in town.carried[carried:]
        if (each.sender, each.receiver) == ("alice", "bob")
    ]
    names = [
        name
        for write in writes
        if isinstance(write, AddProvider | PutValue)
        for name in (write.names if isinstance(write, AddProvider) else (write.name,))
    ]
    assert len(alice.issued) == before
    assert sorted(names) == sorted(alice.announcer.publications)


def test_a_gate_that_fails_and_is_back_before_it_is_written_to_gets_each_name_once() -> None:
    town, alice = settled("alice", "bob", "carol")
    gate = town.nodes["bob"]
    alice.start()
    alice.rest()
    gate.alive = False
    town.elapse(alice.announcer.next_timeout() - town.now_s + 1.5 * LATENCY_S)
    gate.alive = True
    carried = len(town.carried)
    for _ in range(2):  # before it is known that the write failed, and after
        alice.announcer.met(gate.contact, town.now)
        town.perform(alice.node)
        town.elapse(LATENCY_S)
    town.elapse(DISCOVERY.gather_s + 1)
    written = [
        each.message.names
        for each in town.carried[carried:]
        if each.receiver == "bob" and isinstance(each.message, AddProvider)
    ]
    assert written
    assert all(len(names) == len(set(names)) for names in written)


def test_the_end_of_another_publish_is_not_the_announcers() -> None:
    town, alice = started("alice", "bob")
    town.elapse(1)
    due_s = alice.announcer.next_timeout()
    _, other = town.publish(alice.node, PutValue(b"/formation/other", b"junk"))
    assert other.stored_at == ()
    assert alice.announcer.next_timeout() == due_s


def test_what_is_withdrawn_is_told_as_a_value_which_is_answered() -> None:
    """So that the node knows when it may go."""
    town, alice = started("alice", "bob")
    town.elapse(1)
    answers: list[tuple[Request, Reply | None]] = []

    def noted(request: Request, reply: Reply | None) -> Reply | None:
        answers.append((request, reply))
        return reply

    town.nodes["bob"].lie = noted
    alice.withdraw()
    town.elapse(1)
    [(request, reply)] = [each for each in answers if isinstance(each[0], PutValue)]
    assert isinstance(request, PutValue)
    assert reply == kad.Stored(request.name, request.value)
    assert open_profile(request.value, town.now.unix_s).profile.withdrawn


# -- what comes too late --------------------------------------------------------------------------


def test_what_is_found_for_a_name_that_was_left_meanwhile_is_dropped() -> None:
    town, alice = started("alice", "bob")
    alice.announcer.publications.clear()  # the lookup for its own value is in flight
    town.elapse(1)
    assert alice.issued  # its buckets' names were found later
    assert not replicas_of(town, value_name(alice.node.peer_id))


def test_what_a_holder_says_of_names_that_were_left_meanwhile_is_dropped() -> None:
    town, alice = rested("alice", "bob")
    town.elapse(alice.announcer.next_timeout() - town.now_s)
    alice.announcer.publications.clear()  # the acknowledgements are in flight
    carried = len(town.carried)
    town.elapse(10)
    written = [e for e in town.carried[carried:] if isinstance(e.message, AddProvider | PutValue)]
    assert {each.sender for each in written} == {"alice"}  # what was in flight
    assert max(each.at_s for each in written) < town.now_s - 9
