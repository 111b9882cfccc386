"""From what a task needs to the workers that could run it."""

import itertools
from collections.abc import Iterable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import key_of_peer, peer_id_to_bytes
from formation_p2p.core.keyspace import Key, Span, key_of
from formation_p2p.core.units import GIB
from formation_p2p.dht.core.messages import MAX_PROVIDERS, GetProviders
from formation_p2p.dht.core.operations import Searched
from formation_p2p.dht.core.parameters import DhtParameters
from formation_p2p.discovery.core.finder import ROOMY, Finder, FindId, Found, suits
from formation_p2p.discovery.core.parameters import DiscoveryParameters
from formation_p2p.discovery.core.shard_membership import names_of
from formation_p2p.discovery.core.trace import Step, Trace
from formation_p2p.machine.core.capability import Capability, idle
from formation_p2p.machine.core.gpu import Gpu
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.records.core.buckets import bucket_key, buckets_of
from formation_p2p.records.core.profile import Profile
from formation_p2p.records.core.resources import encode_requirements
from tests.support import dht_world as world
from tests.support.dht_world import Completed, DhtNode, DhtWorld, find_closest

DISCOVERY = DiscoveryParameters()

DHT = DhtParameters()

TASK = key_of(b"task 1")
SMALL = Requirements(cpu_milli=1000, memory_bytes=GIB)
H100 = Gpu("GPU-0", "nvidia", "h100", 80 * 10**9, 90)


class Finding:
    """A finder on a node of the world."""

    def __init__(self, node: DhtNode, parameters: DiscoveryParameters = DISCOVERY) -> None:
        self.finder = Finder(node.dht, world.NETWORK, parameters=parameters)
        self.found: list[Found] = []
        node.upper = self

    def completed(self, completed: Completed, now: Moment) -> None:
        if isinstance(completed, Searched):
            self.finder.searched(completed, now)
            self.found += self.finder.take()

    def tick(self, now: Moment) -> None:
        pass

    def next_timeout(self) -> float:
        return float("inf")


class Market(DhtWorld):
    """Alice looks for workers among bob, carol and dave; the profiles are at all of them."""

    def __init__(self, parameters: DiscoveryParameters = DISCOVERY) -> None:
        super().__init__(seed=1)
        self.alice, self.bob, self.carol, self.dave = self.join("alice", "bob", "carol", "dave")
        self.elapse(5)
        self.finding = Finding(self.alice, parameters)

    def offer(
        self,
        name: str,
        capability: Capability = world.MACHINE,
        labels: tuple[tuple[str, str], ...] = (),
        depth: int = 0,
        free_milli: int | None = None,
    ) -> Profile:
        """A worker that is in a shard of each of its buckets at this depth."""
        profile = replace(
            world.profile(name, self.now),
            capability=capability,
            capacity=idle(capability)
            if free_milli is None
            else replace(idle(capability), cpu_milli=free_milli),
            labels=labels,
            spans=(Span(depth, depth),) * len(buckets_of(capability, dict(labels), ("process",))),
        )
        signed = world.sealed(profile, world.person(name))
        for node in (self.bob, self.carol, self.dave):
            names = names_of(profile, world.NETWORK)
            assert node.records.keep(node.contact, world.added(signed, *names), self.now)
        return profile

    def start(
        self, needs: Requirements, target: Key = TASK, *, fresh: bool = False, roomy: bool = False
    ) -> FindId | None:
        find = self.finding.finder.find(needs, target, self.now, "a test", fresh=fresh, roomy=roomy)
        self.perform(self.alice)
        self.finding.found += self.finding.finder.take()
        return find

    def find(
        self, needs: Requirements, target: Key = TASK, *, fresh: bool = True, roomy: bool = False
    ) -> Found:
        find = self.start(needs, target, fresh=fresh, roomy=roomy)
        self.elapse(0.8)
        [found] = self.finding.found
        self.finding.found.clear()
        assert found.find == find
        return found

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


def step(bucket: str = "any", prefix: str = "", *, asked: int = 3, **counts: int) -> Step:
    every = {"members": 0, "deeper": 0, "found": 0} | counts
    return Step(bucket, prefix, asked, every["members"], every["deeper"], every["found"])


def ids(found: Found) -> set[str]:
    return {profile.peer_id for profile in found.profiles}


def test_workers_that_suit_are_found_in_the_bucket_of_all(market: Market) -> None:
    erin, frank = market.offer("erin"), market.offer("frank")
    found = market.find(SMALL)
    assert ids(found) == {erin.peer_id, frank.peer_id}
    assert found.trace == Trace((step(members=2, found=2),))
    assert (found.trace.lookups, found.trace.asked) == (1, 3)
    assert found.suited
    assert found.complete
    assert market.asked_for() == [(bucket("any"), encode_requirements(SMALL))]
    asked = [each.message for each in market.carried if isinstance(each.message, GetProviders)]
    assert {each.query.target for each in asked if each.query is not None} == {TASK}


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
    found = market.find(needs)
    assert found.trace == Trace((step("gpu/model/h100", members=2, found=1),))
    assert found.profiles == (frank,)
    assert market.asked_for() == [(bucket("gpu/model/h100"), encode_requirements(needs))]


def test_where_nobody_suits_everyone_is_looked_up_once_so_that_each_can_be_told_why(
    market: Market,
) -> None:
    erin = market.offer("erin")
    needs = Requirements(cpu_milli=1000, memory_bytes=GIB, gpu_count=1)
    found = market.find(needs)
    assert found.profiles == (erin,)
    assert found.trace == Trace((step("gpu/1"), step(members=1, found=1)))
    assert not found.suited
    assert found.complete
    assert market.asked_for() == [
        (bucket("gpu/1"), encode_requirements(needs)),
        (bucket("any"), b""),
    ]


def test_everyone_is_found_without_a_question_asked(market: Market) -> None:
    erin = market.offer("erin", Capability(1, 1))
    find = market.finding.finder.find(None, TASK, market.now, "a test", fresh=True)
    market.perform(market.alice)
    market.elapse(1)
    trace = Trace((step(members=1, found=1),))
    [found] = market.finding.found
    assert replace(found, holders=()) == Found(find or FindId(0), (erin,), trace, False, True)
    assert found.holders


def test_a_node_that_is_alone_finds_itself() -> None:
    town = DhtWorld(seed=1)
    [alice] = town.join("alice")
    finding = Finding(alice)
    own = world.signed("alice", town.now)
    alice.keep(bucket("any"), own, town.now)
    finding.finder.find(SMALL, TASK, town.now, "a test")
    town.perform(alice)
    [found] = finding.found
    assert (found.profiles, found.suited) == ((own.profile,), True)
    assert (found.trace.lookups, found.trace.asked) == (0, 0)


# -- shards -------------------------------------------------------------------------------------


def crowd(
    market: Market,
    number: int,
    depth: int,
    *prefixes: str,
    capability: Capability = world.MACHINE,
    free_milli: int | None = None,
) -> list[Profile]:
    """So many workers with each of the prefixes, in shards at one depth."""
    profiles, cores = [], capability.cpu_milli // 1000
    for prefix in prefixes:
        names = (f"{prefix}-worker {cores} {n}" for n in itertools.count())
        inside = (name for name in names if f"{world.person(name).key:0256b}".startswith(prefix))
        for name in itertools.islice(inside, number):
            profiles.append(market.offer(name, capability, depth=depth, free_milli=free_milli))
    return profiles


def at(prefix: str) -> Key:
    """The first key with a prefix."""
    return Key(int(prefix.ljust(256, "0"), 2))


def nearest(profiles: Iterable[Profile], target: Key) -> set[str]:
    by_distance = sorted(profiles, key=lambda profile: key_of_peer(profile.peer_id) ^ target)
    return {profile.peer_id for profile in by_distance[: DISCOVERY.wanted]}


def prefixes(found: Found) -> list[str]:
    return [step.prefix for step in found.trace.steps]


def test_cold_it_takes_two_lookups_and_warm_it_takes_one(market: Market) -> None:
    everybody = crowd(market, 12, 2, "00", "01", "10", "11")
    cold = market.find(SMALL, at("01"))
    assert prefixes(cold) == ["", "01"]
    assert cold.trace.steps[0].members == 0
    assert cold.trace.steps[0].deeper > 0
    assert nearest(everybody, at("01")) <= ids(cold)
    warm = market.find(SMALL, at("110101"))
    assert prefixes(warm) == ["11"]
    assert nearest(everybody, at("110101")) <= ids(warm)
    assert not warm.complete


def test_how_deep_a_bucket_is_is_forgotten_after_a_while(market: Market) -> None:
    depths = market.finding.finder.depths
    depths.learn("any", 2, market.now)
    for age_s, known in ((DISCOVERY.depth_s - 1, 2), (DISCOVERY.depth_s, None)):
        now = Moment(market.now.mono_s + age_s, market.now.unix_s + age_s)
        assert depths.get("any", now) == known


def test_of_how_deep_buckets_are_a_bounded_number_is_remembered() -> None:
    market = Market(DiscoveryParameters(max_depths=1))
    crowd(market, 12, 1, "0", "1")
    assert len(prefixes(market.find(SMALL))) == 2
    assert len(prefixes(market.find(SMALL))) == 1
    market.find(replace(SMALL, gpu_count=1))  # and of another, which it tries next
    known = [market.finding.finder.depths.get(bucket, market.now) for bucket in ("gpu/1", "any")]
    assert known.count(None) == 1


def test_where_too_few_suit_the_neighbouring_shards_are_read_the_nearest_first(
    market: Market,
) -> None:
    """Only the tenth core makes one suit; nothing announces it."""
    strong = replace(world.MACHINE, cpu_milli=10_000)
    crowd(market, 10, 2, "00", "01", "10", "11")
    suiting = crowd(market, 2, 2, "00", "01", "10", "11", capability=strong)
    needs = Requirements(cpu_milli=10_000, memory_bytes=1)
    found = market.find(needs, at("10"))
    assert {profile.peer_id for profile in suiting} == ids(found)
    after_the_root = [step.prefix for step in found.trace.steps if step.bucket == "cpu/8"][1:]
    assert after_the_root == ["10", "11", "00", "01"]
    assert (found.suited, found.complete) == (True, False)  # eight are all it wanted


def test_where_no_shard_is_left_it_is_complete(market: Market) -> None:
    strong = replace(world.MACHINE, cpu_milli=10_000)
    crowd(market, 12, 1, "0", "1")
    [erin] = crowd(market, 1, 1, "0", capability=strong)
    found = market.find(Requirements(cpu_milli=10_000, memory_bytes=1), at("1"))
    assert found.profiles == (erin,)
    assert found.complete


def test_where_half_of_a_shard_is_deeper_than_the_other_both_are_read(market: Market) -> None:
    """Of a bucket that has shrunk, one half has come back to the root, and the other has not."""
    few = crowd(market, 4, 0, "1")
    more = crowd(market, 30, 1, "0")  # of whom the root has a sample, which is not the nearest
    for target in (at("1"), at("0")):
        found = market.find(SMALL, target)
        assert nearest([*few, *more], target) <= ids(found)
    assert market.find(SMALL, at("11")).complete is False


def test_other_buckets_are_tried_before_other_shards(market: Market) -> None:
    """Twelve of those with a GPU are large; a person asks for a little of all."""
    gpu = Capability(8000, 32 * GIB, gpus=(H100,))
    crowd(market, 12, 1, "0", "1", capability=gpu)
    needs = Requirements(
        cpu_milli=8000, memory_bytes=16 * GIB, gpu_count=1, gpu_memory_bytes=79 * 10**9,
        gpu_compute_capability=80, driver="process",
    )  # fmt: skip
    unfit = replace(needs, storage_bytes=1)
    found = market.find(unfit, at("0"))
    assert not found.suited
    tried = list(dict.fromkeys(s.bucket for s in found.trace.steps if s.bucket != "any"))
    assert len(tried) == DISCOVERY.max_buckets_tried
    assert tried[0] == "gpu/memory/40GB"


def test_a_search_that_finds_too_few_ends_after_so_many_lookups(market: Market) -> None:
    crowd(market, 2, 4, *(f"{n:04b}" for n in range(16)))
    market.finding.finder.depths.learn("cpu/8", 4, market.now)
    market.finding.finder.depths.learn("any", 4, market.now)
    needs = Requirements(cpu_milli=8000, memory_bytes=1, storage_bytes=1)
    found = market.find(needs, at("0"))
    assert (found.suited, found.complete) == (False, False)
    assert len(found.trace.steps) == 2 * DISCOVERY.max_steps
    # Nobody suits; then those near the task are looked at whatever they can do.
    buckets = [step.bucket for step in found.trace.steps]
    assert set(buckets[: DISCOVERY.max_steps]) == {"cpu/8", "any"}
    assert buckets[DISCOVERY.max_steps :] == ["any"] * DISCOVERY.max_steps
    assert prefixes(found)[DISCOVERY.max_steps] == "0000"
    assert len(found.profiles) == 2 * DISCOVERY.max_steps
    deep = step("gpu/1", "011")
    assert (step().shard, deep.shard, deep.depth) == ("any", "gpu/1#011", 3)


def test_the_smallest_bucket_that_is_known_is_asked_first(market: Market) -> None:
    """The rule of thumb is for those whose size nobody knows yet."""
    gpu = Capability(8000, 32 * GIB, gpus=(H100,))
    crowd(market, 12, 1, "0", "1", capability=gpu)
    both = Requirements(cpu_milli=8000, memory_bytes=1, gpu_count=1)
    first = market.find(both).trace.steps
    assert {step.bucket for step in first} == {"gpu/1"}
    market.offer("erin", world.MACHINE)
    market.finding.finder.depths.learn("cpu/8", 0, market.now)
    assert market.find(both).trace.steps[0].bucket == "cpu/8"


# -- answers that are remembered ------------------------------------------------------------------


def test_for_a_moment_an_answer_serves_other_tasks_as_well(market: Market) -> None:
    nobody = market.find(SMALL, fresh=False)  # which is not remembered
    assert (nobody.profiles, nobody.suited, nobody.complete) == ((), False, True)
    erin = market.offer("erin")
    assert market.find(SMALL, fresh=False).trace.lookups == 1
    for number in range(3):
        found = market.find(SMALL, key_of(b"task %d" % number), fresh=False)
        assert (found.profiles, found.suited) == ((erin,), True)
        assert (found.trace.lookups, found.trace.asked, len(found.trace.steps)) == (0, 0, 1)
    assert market.find(SMALL, fresh=True).trace.lookups == 1
    assert market.find(replace(SMALL, cpu_milli=2000), fresh=False).trace.lookups == 1
    market.elapse(DISCOVERY.answer_s)
    assert market.find(SMALL, fresh=False).trace.lookups == 1


def test_an_answer_that_may_not_be_all_is_not_remembered(market: Market) -> None:
    """Of forty in one shard 32 are told, those nearest to one task."""
    for number in range(40):
        market.offer(f"worker {number}")
    for _ in range(2):
        found = market.find(SMALL, fresh=False)
        assert found.trace.lookups == 1
        assert len(found.profiles) >= MAX_PROVIDERS


def test_a_bounded_number_of_answers_is_remembered() -> None:
    market = Market(DiscoveryParameters(max_answers=1))
    market.offer("erin")
    other = replace(SMALL, cpu_milli=2000)
    for needs, lookups in ((SMALL, 1), (SMALL, 0), (other, 1), (other, 0), (SMALL, 1)):
        assert market.find(needs, fresh=False).trace.lookups == lookups


# -- bounds, and others' searches ----------------------------------------------------------------


def test_searches_that_are_not_the_finders_are_left_alone(market: Market) -> None:
    find_closest(market.alice.dht, peer_id_to_bytes(market.bob.peer_id), market.now)
    market.perform(market.alice)
    market.elapse(1)
    assert market.finding.found == []


def test_with_too_many_under_way_a_find_has_to_wait(market: Market) -> None:
    finds = [market.start(SMALL) for _ in range(DISCOVERY.max_finds)]
    assert len(set(finds)) == DISCOVERY.max_finds
    assert market.start(SMALL) is None
    assert market.finding.finder.find(None, TASK, market.now, "a test", fresh=True) is None
    market.elapse(1)
    assert len(market.finding.found) == DISCOVERY.max_finds
    assert market.start(SMALL) is not None
    assert DISCOVERY.max_finds < DHT.max_operations


@given(st.binary(max_size=100))
def test_bytes_that_are_no_requirements_suit_nobody_and_break_nothing(raw: bytes) -> None:
    test = suits(raw)
    assert test(world.profile("alice", Moment(0, 0))) == (raw == b"")


def test_requirements_suit_whom_they_fit_and_who_has_room_where_that_is_asked() -> None:
    alice = world.profile("alice", Moment(0, 0))
    for cpu, driver in itertools.product((8000, 8001), ("process", "python")):
        needs = Requirements(cpu_milli=cpu, memory_bytes=1, driver=driver)
        fits = (cpu, driver) == (8000, "process")
        assert suits(encode_requirements(needs))(alice) == fits
    busy = replace(alice, capacity=replace(alice.capacity, cpu_milli=100))
    raw = ROOMY + encode_requirements(SMALL)
    assert [suits(raw)(each) for each in (alice, busy)] == [True, False]
    assert suits(raw.removeprefix(ROOMY))(busy)


def test_a_search_for_room_names_those_who_have_it_or_else_all_that_suit(market: Market) -> None:
    frank = market.offer("frank", free_milli=100)
    found = market.find(SMALL, roomy=True)
    assert (ids(found), found.suited, found.trace.lookups) == ({frank.peer_id}, True, 2)
    erin = market.offer("erin")
    found = market.find(SMALL, roomy=True)
    assert (ids(found), found.suited) == ({erin.peer_id}, True)


@pytest.mark.at_length
@pytest.mark.parametrize("free", [13, 18, 25])
def test_a_search_goes_on_while_nobody_has_room(market: Market, free: int) -> None:
    """Of 26 shards, read in the order of their distance, one has some with room."""
    places = [f"{n:05b}" for n in range(26)]
    for place in places:
        crowd(market, 3, 5, place, free_milli=None if place == places[free] else 100)
    market.finding.finder.depths.learn("any", 5, market.now)
    found = market.find(SMALL, at("0"), roomy=True)
    steps = prefixes(found)
    if free == 25:  # those without room are better than none
        assert steps[DISCOVERY.max_steps_to_room] == places[0]
        assert len(found.profiles) > DISCOVERY.wanted
    else:  # past the lookups that find enough, the first with room are enough
        assert DISCOVERY.max_steps < len(steps) <= DISCOVERY.max_steps_to_room
        assert steps[-1] == places[free]
        assert len(found.profiles) == 3
