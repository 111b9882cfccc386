"""The walk along a key's prefix: which shards it reads, and where it says that a worker belongs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formation_p2p.core.capability import shards
from formation_p2p.core.capability.shards import SPLIT, places_of, shard_key
from formation_p2p.core.dht.messages import GetProviders, ProviderQuery, ShardCount
from formation_p2p.core.dht.store import RecordStore
from formation_p2p.core.discovery.depth_search import DepthSearch, agreed, deeper_by, is_left
from formation_p2p.core.discovery.finder import suits
from formation_p2p.core.identity import Identity
from formation_p2p.core.keyspace import KEY_BITS, MAX_DEPTH, Key, Span, common_prefix
from formation_p2p.core.records.profile import SignedProfile
from tests.support import dht_world as world
from tests.support.dht_world import NOW

NOBODY = ShardCount()


def told(*, settled: int = 0, shallower: int = 0, deeper: int = 0, depth: int = 0) -> ShardCount:
    """The count of a shard whose members are all on the side of the key. Of the deeper ones
    those are members who are not settled, nor in a shallower shard."""
    return ShardCount(settled + shallower, settled, shallower, deeper, depth)


def splitting(*, settled: int, gone_too: int, depth: int) -> ShardCount:
    """Some are in this shard alone, the others in the one at `depth` as well."""
    return ShardCount(settled + gone_too, settled, 0, gone_too, depth)


def walked(start: int, counts: dict[int, ShardCount]) -> tuple[list[int], DepthSearch]:
    """The depths that a walk reads, in order, where the shards hold this; nobody elsewhere."""
    walk = DepthSearch(start)
    depths = [start]
    while (step := walk.learn(counts.get(walk.depth, NOBODY))) is not None:
        assert step == walk.depth
        depths.append(step)
    return depths, walk


def test_a_small_bucket_is_one_shard() -> None:
    depths, walk = walked(0, {0: told(settled=SPLIT)})
    assert (depths, walk.home()) == ([0], Span(0, 0))
    assert (walk.reach, walk.inhabited) == (0, 0)


def test_where_nobody_is_yet_the_first_is_at_home_at_the_top() -> None:
    depths, walk = walked(0, {})
    assert (depths, walk.home()) == ([0], Span(0, 0))


def test_the_root_tells_how_deep_to_go() -> None:
    depths, walk = walked(0, {0: told(deeper=8, depth=3), 3: told(settled=20)})
    assert (depths, walk.home()) == ([0, 3], Span(3, 3))
    assert (walk.reach, walk.inhabited) == (3, 3)


def test_a_hint_that_is_right_takes_one_step() -> None:
    depths, walk = walked(3, {3: told(settled=20)})
    assert (depths, walk.home()) == ([3], Span(3, 3))


def test_a_hint_that_is_too_shallow_takes_two() -> None:
    depths, walk = walked(1, {1: told(deeper=5, depth=3), 3: told(settled=20)})
    assert (depths, walk.home()) == ([1, 3], Span(3, 3))


def test_a_hint_that_is_too_deep_is_climbed_from_one_by_one() -> None:
    depths, walk = walked(5, {3: told(settled=12)})
    assert (depths, walk.home()) == ([5, 4, 3], Span(3, 3))
    assert (walk.reach, walk.inhabited) == (5, 3)


def test_some_who_are_deeper_than_most_are_followed() -> None:
    """The root's samples say 2, since most are there; near the key they have split once more."""
    counts = {
        0: told(deeper=8, depth=2),
        2: told(deeper=9, depth=3),
        3: told(settled=20),
    }
    assert walked(0, counts)[0] == [0, 2, 3]


def test_while_a_shard_splits_both_are_read_and_who_comes_is_in_both() -> None:
    counts = {
        0: splitting(settled=30, gone_too=10, depth=1),
        1: told(shallower=10),
    }
    depths, walk = walked(0, counts)
    assert (depths, walk.home()) == ([0, 1], Span(0, 1))
    depths, walk = walked(1, counts)  # from below as well
    assert (depths, walk.home()) == ([1, 0], Span(0, 1))


def test_where_all_are_leaving_a_shard_who_comes_does_not_enter_it() -> None:
    counts = {
        0: splitting(settled=0, gone_too=30, depth=1),
        1: told(settled=2, shallower=28),
    }
    depths, walk = walked(0, counts)
    assert (depths, walk.home()) == ([0, 1], Span(1, 1))


def test_a_full_shard_that_nobody_has_left_yet_is_split_by_who_comes() -> None:
    _, walk = walked(0, {0: told(settled=SPLIT + 1)})
    assert walk.home() == Span(0, 1)
    _, walk = walked(0, {0: told(settled=8 * SPLIT)})  # a whole network that starts at once
    assert walk.home() == Span(0, 3)


def test_where_some_are_still_above_two_shards_that_split_at_once_all_three_are_read() -> None:
    """A network that starts grows faster than its workers move."""
    counts = {
        0: splitting(settled=2, gone_too=5, depth=1),
        1: ShardCount(members=30, settled=5, shallower=5, deeper=20, depth=2),
        2: told(shallower=20),
    }
    assert walked(2, counts)[0] == [2, 1, 0]
    assert walked(1, counts)[0] == [1, 2, 0]
    assert walked(0, counts)[0] == [0, 1, 2]


@pytest.mark.parametrize(
    ("settled", "deeper", "left"), [(0, 0, False), (0, 1, True), (20, 5, False), (20, 6, True)]
)
def test_a_shard_is_left_where_a_sample_of_most_is_all_that_remains(
    settled: int, deeper: int, left: bool
) -> None:
    assert is_left(told(settled=settled, deeper=deeper, depth=4)) == left


def test_a_few_who_claim_to_be_deeper_lead_nobody_there() -> None:
    assert walked(0, {0: told(settled=20, deeper=3, depth=9)})[0] == [0]


def test_while_a_shard_merges_both_are_read_and_who_comes_is_in_both() -> None:
    counts = {
        4: ShardCount(members=5, settled=2, shallower=3),
        3: splitting(settled=5, gone_too=3, depth=4),
    }
    for start, order in ((4, [4, 3]), (3, [3, 4])):
        depths, walk = walked(start, counts)
        assert (depths, walk.home()) == (order, Span(3, 4))


def test_in_an_empty_region_it_climbs_to_where_others_are_deeper() -> None:
    """Whoever comes is at home where its neighbours begin: below the shard that they have left."""
    counts = {0: told(deeper=8, depth=3), 2: told(deeper=2, depth=3)}
    depths, walk = walked(0, counts)
    assert (depths, walk.home()) == ([0, 3, 2], Span(3, 3))
    depths, walk = walked(0, {0: told(deeper=8, depth=3)})
    assert (depths, walk.home()) == ([0, 3, 2, 1], Span(1, 1))


def test_where_some_stayed_above_the_empty_region_it_climbs_to_them() -> None:
    counts = {0: told(settled=9, deeper=8, depth=3)}
    depths, walk = walked(0, counts)
    assert depths == [0, 3, 2, 1]
    assert walk.inhabited == 0


def test_where_all_members_are_on_the_other_side_it_climbs_to_those_who_have_not_moved_yet() -> (
    None
):
    """Of eight who leave the root, those on the other side are in the deeper shard already."""
    counts = {3: ShardCount(members=2), 0: splitting(settled=3, gone_too=2, depth=3)}
    assert walked(3, counts)[0] == [3, 2, 1, 0]


def test_where_the_other_half_of_the_root_is_deeper_this_one_is_looked_for_there_too() -> None:
    """Of few workers it may be that none leaves a sample on the key's side."""
    counts = {0: ShardCount(depth=2, beyond=3), 2: told(settled=8)}
    assert walked(0, counts)[0] == [0, 2]
    assert walked(0, {0: ShardCount(depth=2, beyond=3)})[0] == [0, 2, 1]


def test_where_the_other_half_of_a_shard_is_deeper_it_reaches_over_this_half_alone() -> None:
    """Of a shard that has split, one half has come back."""
    _, walk = walked(0, {0: told(settled=4)})
    assert walk.reach == 0
    depths, walk = walked(0, {0: ShardCount(4, 4, depth=1, beyond=2)})
    assert (depths, walk.reach) == ([0], 1)
    _, walk = walked(MAX_DEPTH, {MAX_DEPTH: ShardCount(4, 4, depth=MAX_DEPTH, beyond=2)})
    assert walk.reach == MAX_DEPTH


def test_nothing_is_deeper_than_the_deepest() -> None:
    deepest = {MAX_DEPTH: told(settled=40, deeper=5, depth=MAX_DEPTH)}
    depths, walk = walked(MAX_DEPTH, deepest)
    assert depths == [MAX_DEPTH]
    assert walk.home() == Span(MAX_DEPTH, MAX_DEPTH)
    _, walk = walked(MAX_DEPTH, {MAX_DEPTH: told(settled=100)})
    assert walk.home() == Span(MAX_DEPTH, MAX_DEPTH)


@pytest.mark.parametrize(
    ("members", "levels"),
    [(0, 1), (SPLIT, 1), (SPLIT + 1, 1), (2 * SPLIT, 1), (2 * SPLIT + 1, 2), (16 * SPLIT, 4)],
)
def test_a_shard_splits_into_as_many_as_its_members_fill(members: int, levels: int) -> None:
    assert deeper_by(members) == levels


@settings(max_examples=200, deadline=None)
@given(st.integers(0, MAX_DEPTH), st.integers(0, 2**32))
def test_whatever_it_is_told_a_walk_ends_and_reads_no_depth_twice(start: int, seed: int) -> None:
    rng = random.Random(seed)
    counts = {
        depth: world.any_count(rng)
        for depth in rng.sample(range(MAX_DEPTH + 1), rng.randint(0, MAX_DEPTH + 1))
    }
    depths, walk = walked(start, counts)
    assert len(set(depths)) == len(depths) <= MAX_DEPTH + 1
    assert set(depths) == set(walk.read)
    low, high = walk.home()
    assert 0 <= low <= high <= MAX_DEPTH
    assert walk.inhabited in walk.read
    assert walk.reach - max(depths) in (0, 1)
    assert walk.reach <= MAX_DEPTH


# -- what several say ---------------------------------------------------------------------------


def test_one_of_three_who_lies_is_outvoted() -> None:
    honest = told(settled=20, shallower=1, deeper=2, depth=4)
    for lie in (NOBODY, ShardCount(900, 900, 900, 900, MAX_DEPTH)):
        for said in ([lie, honest, honest], [honest, lie, honest], [honest, honest, lie]):
            assert agreed(said) == honest


def test_of_two_the_higher_is_believed_as_one_may_have_come_too_late_to_know() -> None:
    assert agreed([NOBODY, told(settled=9)]) == told(settled=9)


def test_who_knows_of_nobody_deeper_has_no_say_in_how_deep() -> None:
    said = [told(deeper=1, depth=4), told(deeper=1, depth=4), NOBODY, NOBODY]
    assert agreed(said).depth == 4


def test_nobody_s_word_is_that_there_is_nobody() -> None:
    assert agreed([]) == NOBODY


# -- the law ------------------------------------------------------------------------------------

POOL = [world.person(f"worker {number}") for number in range(400)]


def tree(
    people: list[Identity], depth: int, choose: Callable[[int], int]
) -> Iterator[tuple[Identity, Span]]:
    """Spans such as workers may have: of each half of a shard all are in it, or all are on their
    way down or up, in both until nobody is in one alone, or the half is a shard of its own."""
    for bit in (0, 1):
        half = [each for each in people if each.key >> (KEY_BITS - 1 - depth) & 1 == bit]
        kind = choose(3)
        if kind == 0 or depth >= 6:
            yield from ((each, Span(depth, depth)) for each in half)
        elif kind == 1:
            below = depth + 1 + choose(3)
            alone = (depth, below)[choose(2)]  # from which some have not left, or left already
            for each in half:
                yield each, Span(depth, below) if choose(2) else Span(alone, alone)
        else:
            yield from tree(half, depth + 1, choose)


class Shards:
    """What the holders of a bucket's shards know of a population."""

    def __init__(self, population: list[tuple[Identity, Span]]) -> None:
        self.population = population
        self.records = RecordStore(world.admit_all, lambda profile: {}, suits)
        for person, span in population:
            names = places_of(world.NETWORK, person.peer_id, {"any": span})
            profile = replace(UNSIGNED, peer_id=person.peer_id, addresses=())
            # As if it were signed: that takes a millisecond each.
            checked = world.checked(SignedProfile(profile, b""), names)
            self.records._keep(checked, names)

    def count(self, key: Key, depth: int) -> ShardCount:
        name = shard_key(world.NETWORK, "any", key, depth)
        held = self.records.providers(GetProviders(name, ProviderQuery(key, b"", 0)), NOW)
        assert held.count is not None
        return held.count

    def walk(self, key: Key, start: int) -> DepthSearch:
        walk = DepthSearch(start)
        while walk.learn(self.count(key, walk.depth)) is not None:
            pass
        return walk

    def missed(self, key: Key, walk: DepthSearch) -> list[Span]:
        """Of those who share the walk's reach with the key, who are in no shard that was read."""
        return [
            span
            for person, span in self.population
            if common_prefix(person.key, key) >= walk.reach
            and not {span.low, span.high} & set(walk.read)
        ]


UNSIGNED = world.profile("worker", NOW)


@settings(max_examples=300, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 80), st.integers(0, 8))
def test_all_workers_near_a_key_are_in_the_shards_that_its_walk_reads(
    seed: int, size: int, start: int
) -> None:
    """Wherever it starts, and whoever is just moving. Here everybody leaves samples all the way
    up: how few may, is the law below."""
    rng = random.Random(seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shards, "_chance", lambda bucket, peer_id: 0.0)
        held = Shards(list(tree(rng.sample(POOL, size), 0, rng.randrange)))
        for key in (Key(rng.getrandbits(KEY_BITS)), rng.choice(POOL).key):
            assert held.missed(key, held.walk(key, start)) == []


def grown(people: list[Identity], depth: int = 0) -> Iterator[tuple[Identity, Span]]:
    """Each in the shallowest shard that is not full."""
    if len(people) <= SPLIT:
        yield from ((each, Span(depth, depth)) for each in people)
        return
    for bit in (0, 1):
        half = [each for each in people if each.key >> (KEY_BITS - 1 - depth) & 1 == bit]
        yield from grown(half, depth + 1)


@pytest.mark.parametrize("size", [0, 1, SPLIT, SPLIT + 1, 100, 200, 400])
def test_with_the_samples_that_workers_do_leave_nobody_near_is_missed_from_the_top(
    size: int,
) -> None:
    held = Shards(list(grown(POOL[:size])))
    rng = random.Random(size)
    for _ in range(100):
        key = Key(rng.getrandbits(KEY_BITS))
        walk = held.walk(key, 0)
        assert held.missed(key, walk) == []
        assert len(walk.read) <= 3  # the root, the hint, and one more where it is off


@pytest.mark.parametrize("size", [0, 1, SPLIT - 1, 100, 200])
def test_who_comes_is_at_home_in_the_shard_that_its_neighbours_are_in(size: int) -> None:
    held = Shards(list(grown(POOL[:size])))
    for person in POOL[size : size + 50]:
        home = held.walk(person.key, 0).home()
        near = sorted(held.population, key=lambda each: each[0].key ^ person.key)[:1]
        for _, span in near:
            assert home.low == span.low
            assert home.high in (span.low, span.low + 1)  # it was full already
