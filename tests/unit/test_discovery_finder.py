"""From what a task needs to the workers that could run it."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.capability.buckets import bucket_key
from formation_p2p.dht.kademlia import MAX_OPERATIONS
from formation_p2p.dht.messages import GetProviders
from formation_p2p.dht.operations import Completed, Searched
from formation_p2p.discovery.announcer import names_of
from formation_p2p.discovery.finder import MAX_FINDS, Finder, FindId, Found, suits
from formation_p2p.effects import Moment
from formation_p2p.keyspace import key_of
from formation_p2p.records.profile import Profile
from formation_p2p.records.resources import encode_requirements
from formation_p2p.resources.capability import Capability, idle
from formation_p2p.resources.gpu import Gpu
from formation_p2p.resources.requirements import Requirements
from formation_p2p.units import GIB
from tests.unit import dht_world as world
from tests.unit.dht_world import DhtNode, DhtWorld

TASK = key_of(b"task 1")
SMALL = Requirements(cpu_milli=1000, memory_bytes=GIB)
H100 = Gpu("GPU-0", "nvidia", "h100", 80 * 10**9, 90)


class Finding:
    """A finder on a node of the world."""

    def __init__(self, node: DhtNode) -> None:
        self.finder = Finder(node.dht, world.NETWORK)
        self.found: list[Found] = []
        node.upper = self

    def completed(self, completed: Completed, now: Moment) -> None:
        if isinstance(completed, Searched):
            found = self.finder.searched(completed, now)
            if found is not None:
                self.found.append(found)

    def tick(self, now: Moment) -> None:
        pass

    def next_timeout(self) -> float:
        return float("inf")


class Market(DhtWorld):
    """Alice looks for workers among bob, carol and dave; the profiles are at all of them."""

    def __init__(self) -> None:
        super().__init__(seed=1)
        self.alice, self.bob, self.carol, self.dave = self.join("alice", "bob", "carol", "dave")
        self.elapse(5)
        self.finding = Finding(self.alice)

    def offer(
        self,
        name: str,
        capability: Capability = world.MACHINE,
        labels: tuple[tuple[str, str], ...] = (),
    ) -> Profile:
        profile = replace(
            world.profile(name, self.now),
            capability=capability,
            capacity=idle(capability),
            labels=labels,
        )
        signed = world.sealed(profile, world.person(name))
        for under in names_of(profile, world.NETWORK):
            for node in (self.bob, self.carol, self.dave):
                node.dht.store.keep(under, signed.raw, self.now)
        return profile

    def find(self, needs: Requirements) -> FindId | None:
        find = self.finding.finder.find(needs, TASK, self.now, "a test")
        self.perform(self.alice)
        return find

    def asked_for(self) -> list[tuple[bytes, bytes]]:
        """The names and requirements that alice asked for, each once, in order."""
        queries = [
            (each.message.name, each.message.query.requirements)
            for each in self.carried
            if isinstance(each.message, GetProviders) and each.message.query is not None
        ]
        return list(dict.fromkeys(queries))


@pytest.fixture
def market() -> Market:
    return Market()


def bucket(name: str) -> bytes:
    return bucket_key(world.NETWORK, name)


def test_workers_that_suit_are_found_in_the_bucket_of_all(market: Market) -> None:
    erin, frank = market.offer("erin"), market.offer("frank")
    find = market.find(SMALL)
    market.elapse(1)
    [found] = market.finding.found
    assert (found.find, found.bucket, found.suited, found.asked) == (find, "any", True, 3)
    assert {profile.peer_id for profile in found.profiles} == {erin.peer_id, frank.peer_id}
    assert market.asked_for() == [(bucket("any"), encode_requirements(SMALL))]


def test_the_most_selective_bucket_is_asked_and_the_rest_filtered_where_it_is_stored(
    market: Market,
) -> None:
    big = Capability(32_000, 128 * GIB, gpus=(H100,))
    market.offer("erin", big)
    frank = market.offer("frank", big, (("region", "eu"),))
    needs = Requirements(
        cpu_milli=16_000,
        memory_bytes=GIB,
        gpu_count=1,
        gpu_models=("h100",),
        labels=(("region", "eu"),),
    )
    market.find(needs)
    market.elapse(1)
    [found] = market.finding.found
    assert found.bucket == "gpu/model/h100"
    assert found.profiles == (frank,)
    assert market.asked_for() == [(bucket("gpu/model/h100"), encode_requirements(needs))]


def test_where_nobody_suits_everyone_is_looked_up_once_so_that_each_can_be_told_why(
    market: Market,
) -> None:
    erin = market.offer("erin")
    needs = Requirements(cpu_milli=1000, memory_bytes=GIB, gpu_count=1)
    find = market.find(needs)
    market.elapse(1)
    [found] = market.finding.found
    assert found == Found(find or FindId(0), (erin,), "any", 6, suited=False)
    assert market.asked_for() == [
        (bucket("gpu/1"), encode_requirements(needs)),
        (bucket("any"), b""),
    ]


def test_where_there_is_nobody_at_all_the_search_ends_all_the_same(market: Market) -> None:
    market.find(SMALL)
    market.elapse(1)
    [found] = market.finding.found
    assert (found.profiles, found.suited) == ((), False)


def test_everyone_is_found_without_a_question_asked(market: Market) -> None:
    erin = market.offer("erin", Capability(1, 1))
    find = market.finding.finder.everyone(TASK, market.now, "a test")
    market.perform(market.alice)
    market.elapse(1)
    assert market.finding.found == [Found(find or FindId(0), (erin,), "any", 3, suited=False)]


def test_a_node_that_is_alone_finds_itself() -> None:
    town = DhtWorld(seed=1)
    [alice] = town.join("alice")
    finding = Finding(alice)
    own = world.signed("alice", town.now)
    alice.dht.store.keep(bucket("any"), own.raw, town.now)
    find = finding.finder.find(SMALL, TASK, town.now, "a test")
    town.perform(alice)
    assert finding.found == [Found(find or FindId(0), (own.profile,), "any", 0, suited=True)]


def test_searches_that_are_not_the_finders_are_left_alone(market: Market) -> None:
    market.alice.dht.find_node(market.bob.peer_id, market.now, "a test")
    market.perform(market.alice)
    market.elapse(1)
    assert market.finding.found == []


def test_with_too_many_under_way_a_find_has_to_wait(market: Market) -> None:
    finds = [market.find(SMALL) for _ in range(MAX_FINDS)]
    assert len(set(finds)) == MAX_FINDS
    assert market.find(SMALL) is None
    assert market.finding.finder.everyone(TASK, market.now, "a test") is None
    market.elapse(1)
    assert len(market.finding.found) == MAX_FINDS
    assert market.find(SMALL) is not None
    assert MAX_FINDS < MAX_OPERATIONS


@given(st.binary(max_size=100))
def test_bytes_that_are_no_requirements_suit_nobody_and_break_nothing(raw: bytes) -> None:
    test = suits(raw)
    assert test(world.profile("alice", Moment(0, 0))) == (raw == b"")


def test_requirements_suit_whom_they_fit() -> None:
    alice = world.profile("alice", Moment(0, 0))
    for cpu, driver in itertools.product((8000, 8001), ("process", "python")):
        needs = Requirements(cpu_milli=cpu, memory_bytes=1, driver=driver)
        fits = (cpu, driver) == (8000, "process")
        assert suits(encode_requirements(needs))(alice) == fits


def test_the_target_is_the_tasks_key(market: Market) -> None:
    market.find(SMALL)
    market.elapse(1)
    targets = {
        each.message.query.target
        for each in market.carried
        if isinstance(each.message, GetProviders) and each.message.query is not None
    }
    assert targets == {TASK}
