"""The search along a key's prefix: the shards that it reads, and where a worker belongs."""

import random
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.identity import Identity
from formation_p2p.core.keyspace import KEY_BITS, MAX_DEPTH, Key, Span
from formation_p2p.dht.core.messages import GetProviders, ProviderQuery, ShardCount
from formation_p2p.dht.core.store import RecordStore
from formation_p2p.discovery.core.depth_search import DepthSearch, agreed, deeper_by, is_left
from formation_p2p.discovery.core.finder import suits
from formation_p2p.records.core.buckets import ShardParameters, places_of, shard_key
from formation_p2p.records.core.profile import SignedProfile
from tests.support import dht_world as world
from tests.support.dht_world import NOW

SHARDS = ShardParameters()

NOBODY = ShardCount()


def reported(
    *, settled: int = 0, shallower: int = 0, deeper: int = 0, depth: int = 0
) -> ShardCount:
    """The count of a shard whose members are all on the side of the key. Of the deeper ones
    those are members who are not settled, nor in a shallower shard."""
    return ShardCount(settled + shallower, settled, shallower, deeper, depth)


def splitting(*, settled: int, gone_too: int, depth: int) -> ShardCount:
    """Some are in this shard alone, the others in the one at `depth` as well."""
    return ShardCount(settled + gone_too, settled, 0, gone_too, depth)


def searched(start: int, counts: dict[int, ShardCount]) -> tuple[list[int], DepthSearch]:
    """The depths that a search reads, in order, where the shards hold this; nobody elsewhere."""
    search = DepthSearch(start)
    depths = [start]
    while (step := search.learn(counts.get(search.depth, NOBODY))) is not None:
        assert step == search.depth
        depths.append(step)
    return depths, search


@pytest.mark.parametrize(
    ("start", "counts", "depths"),
    [
        (0, {}, [0]),  # the first is at home at the top
        (0, {0: reported(settled=SHARDS.split)}, [0]),
        (0, {0: reported(deeper=8, depth=3), 3: reported(settled=20)}, [0, 3]),
        (3, {3: reported(settled=20)}, [3]),
        (1, {1: reported(deeper=5, depth=3), 3: reported(settled=20)}, [1, 3]),
        (5, {3: reported(settled=12)}, [5, 4, 3]),
    ],
    ids=["nobody", "one shard", "a root", "a right hint", "too shallow", "too deep"],
)
def test_a_search_goes_to_where_others_are(
    start: int, counts: dict[int, ShardCount], depths: list[int]
) -> None:
    read, search = searched(start, counts)
    home = depths[-1]
    assert (read, search.span()) == (depths, Span(home, home))
    assert (search.reach, search.inhabited) == (max(depths), home)


def test_while_a_shard_splits_both_are_read_and_who_comes_is_in_both() -> None:
    counts = {0: splitting(settled=30, gone_too=10, depth=1), 1: reported(shallower=10)}
    for start, order in ((0, [0, 1]), (1, [1, 0])):  # from below as well
        depths, search = searched(start, counts)
        assert (depths, search.span()) == (order, Span(0, 1))
    # Where all are leaving it who comes does not enter it.
    counts = {0: splitting(settled=0, gone_too=30, depth=1), 1: reported(settled=2, shallower=28)}
    depths, search = searched(0, counts)
    assert (depths, search.span()) == ([0, 1], Span(1, 1))


def test_a_full_shard_that_nobody_has_left_yet_is_split_by_who_comes() -> None:
    _, search = searched(0, {0: reported(settled=SHARDS.split + 1)})
    assert search.span() == Span(0, 1)
    _, search = searched(
        0, {0: reported(settled=8 * SHARDS.split)}
    )  # a whole network that starts at once
    assert search.span() == Span(0, 3)


@pytest.mark.parametrize(
    ("counts", "read"),
    [
        # A network that starts grows faster than its workers move: some are still above two.
        (
            {
                0: splitting(settled=2, gone_too=5, depth=1),
                1: ShardCount(members=30, settled=5, shallower=5, deeper=20, depth=2),
                2: reported(shallower=20),
            },
            {2: [2, 1, 0], 1: [1, 2, 0], 0: [0, 1, 2]},
        ),
        # The root's samples say 2; near the key they have split once more.
        (
            {
                0: reported(deeper=8, depth=2),
                2: reported(deeper=9, depth=3),
                3: reported(settled=20),
            },
            {0: [0, 2, 3]},
        ),
        # A few who claim to be deeper lead nobody there.
        ({0: reported(settled=20, deeper=3, depth=9)}, {0: [0]}),
        # Some stayed above an empty region: it climbs to them.
        ({0: reported(settled=9, deeper=8, depth=3)}, {0: [0, 3, 2, 1]}),
        # Of eight who leave the root, those on the other side are in the deeper shard already.
        (
            {3: ShardCount(members=2), 0: splitting(settled=3, gone_too=2, depth=3)},
            {3: [3, 2, 1, 0]},
        ),
    ],
    ids=["three at once", "deeper than most", "a few", "above", "the other side"],
)
def test_all_shards_are_read_in_which_somebody_may_be(
    counts: dict[int, ShardCount], read: dict[int, list[int]]
) -> None:
    assert {start: searched(start, counts)[0] for start in read} == read


@pytest.mark.parametrize(
    ("settled", "deeper", "left"), [(0, 0, False), (0, 1, True), (20, 5, False), (20, 6, True)]
)
def test_a_shard_is_left_where_a_sample_of_most_is_all_that_remains(
    settled: int, deeper: int, left: bool
) -> None:
    assert is_left(reported(settled=settled, deeper=deeper, depth=4), SHARDS) == left


def test_while_a_shard_merges_both_are_read_and_who_comes_is_in_both() -> None:
    counts = {
        4: ShardCount(members=5, settled=2, shallower=3),
        3: splitting(settled=5, gone_too=3, depth=4),
    }
    for start, order in ((4, [4, 3]), (3, [3, 4])):
        depths, search = searched(start, counts)
        assert (depths, search.span()) == (order, Span(3, 4))


def test_in_an_empty_region_it_climbs_to_where_others_are_deeper() -> None:
    """Whoever comes is at home where its neighbours begin: below the shard that they have left."""
    counts = {0: reported(deeper=8, depth=3), 2: reported(deeper=2, depth=3)}
    depths, search = searched(0, counts)
    assert (depths, search.span()) == ([0, 3, 2], Span(3, 3))
    depths, search = searched(0, {0: reported(deeper=8, depth=3)})
    assert (depths, search.span()) == ([0, 3, 2, 1], Span(1, 1))


def test_where_the_other_half_of_the_root_is_deeper_this_one_is_looked_for_there_too() -> None:
    """Of few workers it may be that none leaves a sample on the key's side."""
    counts = {0: ShardCount(depth=2, beyond=3), 2: reported(settled=8)}
    assert searched(0, counts)[0] == [0, 2]
    assert searched(0, {0: ShardCount(depth=2, beyond=3)})[0] == [0, 2, 1]


def test_where_the_other_half_of_a_shard_is_deeper_it_reaches_over_this_half_alone() -> None:
    """Of a shard that has split, one half has come back."""
    _, search = searched(0, {0: reported(settled=4)})
    assert search.reach == 0
    depths, search = searched(0, {0: ShardCount(4, 4, depth=1, beyond=2)})
    assert (depths, search.reach) == ([0], 1)
    _, search = searched(MAX_DEPTH, {MAX_DEPTH: ShardCount(4, 4, depth=MAX_DEPTH, beyond=2)})
    assert search.reach == MAX_DEPTH


def test_nothing_is_deeper_than_the_deepest() -> None:
    deepest = {MAX_DEPTH: reported(settled=40, deeper=5, depth=MAX_DEPTH)}
    depths, search = searched(MAX_DEPTH, deepest)
    assert depths == [MAX_DEPTH]
    assert search.span() == Span(MAX_DEPTH, MAX_DEPTH)
    _, search = searched(MAX_DEPTH, {MAX_DEPTH: reported(settled=100)})
    assert search.span() == Span(MAX_DEPTH, MAX_DEPTH)


@pytest.mark.parametrize(
    ("members", "levels"),
    [
        (0, 1),
        (SHARDS.split, 1),
        (SHARDS.split + 1, 1),
        (2 * SHARDS.split, 1),
        (2 * SHARDS.split + 1, 2),
        (16 * SHARDS.split, 4),
    ],
)
def test_a_shard_splits_into_as_many_as_its_members_fill(members: int, levels: int) -> None:
    assert deeper_by(members, SHARDS) == levels


@given(st.integers(0, MAX_DEPTH), st.integers(0, 2**32))
def test_whatever_it_is_told_a_walk_ends_and_reads_no_depth_twice(start: int, seed: int) -> None:
    rng = random.Random(seed)
    counts = {
        depth: world.any_count(rng)
        for depth in rng.sample(range(MAX_DEPTH + 1), rng.randint(0, MAX_DEPTH + 1))
    }
    depths, search = searched(start, counts)
    assert len(set(depths)) == len(depths) <= MAX_DEPTH + 1
    assert set(depths) == set(search.read)
    low, high = search.span()
    assert 0 <= low <= high <= MAX_DEPTH
    assert search.inhabited in search.read
    assert search.reach - max(depths) in (0, 1)
    assert search.reach <= MAX_DEPTH


# -- what several say ---------------------------------------------------------------------------


def test_one_of_three_who_lies_is_outvoted() -> None:
    honest = reported(settled=20, shallower=1, deeper=2, depth=4)
    for lie in (NOBODY, ShardCount(900, 900, 900, 900, MAX_DEPTH)):
        for said in ([lie, honest, honest], [honest, lie, honest], [honest, honest, lie]):
            assert agreed(said) == honest
    # Of two the higher is believed: one may have come too late to know.
    assert agreed([NOBODY, reported(settled=9)]) == reported(settled=9)
    # Who knows of nobody deeper has no say in how deep.
    deeper = reported(deeper=1, depth=4)
    assert agreed([deeper, deeper, NOBODY, NOBODY]).depth == 4
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

    def __init__(
        self, population: list[tuple[Identity, Span]], sampled: ShardParameters = SHARDS
    ) -> None:
        self.population = population
        self.records = RecordStore(world.admit_all, lambda profile: {}, suits)
        for person, span in population:
            names = places_of(world.NETWORK, person.peer_id, {"any": span}, sampled)
            profile = replace(UNSIGNED, peer_id=person.peer_id, addresses=())
            # As if it were signed: that takes a millisecond each.
            checked = world.checked(SignedProfile(profile, b""), names)
            self.records.keep_checked(checked, names)

    def count(self, key: Key, depth: int) -> ShardCount:
        name = shard_key(world.NETWORK, "any", key, depth)
        held = self.records.providers(GetProviders(name, ProviderQuery(key, b"", 0)), NOW)
        assert held.count is not None
        return held.count

    def search(self, key: Key, start: int) -> DepthSearch:
        search = DepthSearch(start)
        while search.learn(self.count(key, search.depth)) is not None:
            pass
        return search

    def missed(self, key: Key, search: DepthSearch) -> list[Span]:
        """Of those who share the search's reach with the key, who are in no shard that was read."""
        return [
            span
            for person, span in self.population
            if world.common_prefix(person.key, key) >= search.reach
            and not {span.low, span.high} & set(search.read)
        ]


UNSIGNED = world.profile("worker", NOW)


@given(st.integers(0, 2**32), st.integers(0, 80), st.integers(0, 8))
def test_all_workers_near_a_key_are_in_the_shards_that_its_walk_reads(
    seed: int, size: int, start: int
) -> None:
    """Wherever it starts, and whoever is just moving. Here everybody leaves samples all the way
    up: how few may, is the law below."""
    rng = random.Random(seed)
    all_sampled = ShardParameters(sample=2.0**MAX_DEPTH)
    held = Shards(list(tree(rng.sample(POOL, size), 0, rng.randrange)), all_sampled)
    for key in (Key(rng.getrandbits(KEY_BITS)), rng.choice(POOL).key):
        assert held.missed(key, held.search(key, start)) == []


def grown(people: list[Identity], depth: int = 0) -> Iterator[tuple[Identity, Span]]:
    """Each in the shallowest shard that is not full."""
    if len(people) <= SHARDS.split:
        yield from ((each, Span(depth, depth)) for each in people)
        return
    for bit in (0, 1):
        half = [each for each in people if each.key >> (KEY_BITS - 1 - depth) & 1 == bit]
        yield from grown(half, depth + 1)


@pytest.mark.parametrize("size", [0, 1, SHARDS.split, SHARDS.split + 1, 100, 200, 400])
def test_with_the_samples_that_workers_do_leave_nobody_near_is_missed_from_the_top(
    size: int,
) -> None:
    held = Shards(list(grown(POOL[:size])))
    rng = random.Random(size)
    for _ in range(100):
        key = Key(rng.getrandbits(KEY_BITS))
        search = held.search(key, 0)
        assert held.missed(key, search) == []
        assert len(search.read) <= 3  # the root, the hint, and one more where it is off


@pytest.mark.parametrize("size", [0, 1, SHARDS.split - 1, 100, 200])
def test_who_comes_is_at_home_in_the_shard_that_its_neighbours_are_in(size: int) -> None:
    held = Shards(list(grown(POOL[:size])))
    for person in POOL[size : size + 50]:
        home = held.search(person.key, 0).span()
        near = sorted(held.population, key=lambda each: each[0].key ^ person.key)[:1]
        for _, span in near:
            assert home.low == span.low
            assert home.high in (span.low, span.low + 1)  # it was full already
