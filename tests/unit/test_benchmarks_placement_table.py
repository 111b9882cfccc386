"""The table names exactly those that one would find by asking each worker, one by one."""

import random
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.placement import columns
from benchmarks.placement.key_trie import LEAF_SLOTS, KeyTrie
from benchmarks.placement.question import Question
from benchmarks.placement.table import Table
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId, key_of_peer, peer_id_of
from formation_p2p.core.keyspace import KEY_BITS, Key, distance
from formation_p2p.core.units import GIB, MIB, TIB
from formation_p2p.machine.core.capability import Capability, Capacity, GpuFree, idle
from formation_p2p.machine.core.fits import fits, fits_now
from formation_p2p.machine.core.requirements import Requirements, parse_requirements
from formation_p2p.records.core.profile import Profile
from tests.support import resources_world as world
from tests.support.resources_world import a100, h100, machine

NOW = 1_767_225_600
pytestmark = pytest.mark.at_length

PEERS = [peer_id_of(number.to_bytes(32, "big")) for number in range(700)]
ALICE, BOB, CAROL = PEERS[:3]
IDLE = machine()
PIECE = Requirements(cpu_milli=1000, memory_bytes=GIB)
HERE = Key(0)
# What a large table does in a small one: several blocks, then a scan in several parts.
SMALL_STEPS = columns.Steps(
    first_block=8, ordered_at_once=3, neighbourhood=2, scanned_at_once=100, least_room=2
)


def profile(peer_id: PeerId, has: Capability = IDLE, **fields: object) -> Profile:
    said: dict[str, object] = {
        "peer_id": peer_id,
        "sequence": 1,
        "issued_unix_s": NOW,
        "expires_unix_s": NOW + 120,
        "capability": has,
        "capacity": idle(has),
    }
    return Profile(**(said | fields))  # type: ignore[arg-type]


def table_of(profiles: Iterable[Profile], town: Table | None = None) -> Table:
    town = Table() if town is None else town
    for each in profiles:
        assert town.put(each)
    return town


def by_hand(
    profiles: Iterable[Profile],
    needs: Requirements,
    target: Key,
    now_unix_s: float,
    free_now: bool,
    max_price_micro: int | None,
) -> list[Profile]:
    """Each asked by itself, and put in order."""

    def serves(each: Profile) -> bool:
        has, labels = each.capability, dict(each.labels)
        if free_now:
            lacking = fits_now(needs, has, labels, each.drivers, each.capacity)
        else:
            lacking = fits(needs, has, labels, each.drivers)
        cheap = max_price_micro is None or each.price_micro <= max_price_micro
        return lacking is None and cheap and each.expires_unix_s > now_unix_s

    def far(each: Profile) -> tuple[int, PeerId]:
        return distance(key_of_peer(each.peer_id), target), each.peer_id

    return sorted(filter(serves, profiles), key=far)


def crowd(count: int, rng: random.Random) -> list[Profile]:
    """Half of them in use, some of them gone."""
    return [_one_of_many(peer_id, rng) for peer_id in PEERS[:count]]


def _one_of_many(peer_id: PeerId, rng: random.Random) -> Profile:
    make = rng.choice((a100, h100))
    gpus = tuple(make(f"G{place}") for place in range(rng.choice((0, 0, 1, 4))))
    gpus = (*gpus, a100("odd")) if rng.random() < 0.1 else gpus
    has = machine(*gpus, cpu_milli=rng.randint(1, 64_000), memory_bytes=rng.randint(MIB, TIB))
    left = tuple(
        GpuFree(gpu.device_id, share, gpu.memory_bytes * share // 1000)
        for gpu in gpus
        for share in [rng.choice((0, 500, 1000))]
    )
    cpu, memory = rng.randint(0, has.cpu_milli), rng.randint(0, has.memory_bytes)
    free = Capacity(cpu, memory, has.storage_bytes, has.network_mbps, left)
    return profile(
        peer_id,
        has,
        expires_unix_s=NOW + rng.choice((-1, 0, 1, 60)),
        capacity=rng.choice((idle(has), free)),
        labels=(("region", rng.choice(("eu", "us"))), ("rack", f"r{rng.randrange(30)}")),
        drivers=tuple(rng.sample(world.DRIVERS, rng.randint(0, 3))),
        price_micro=rng.choice((0, 1000, 5000)),
    )


said = st.builds(
    profile,
    st.sampled_from(PEERS[:12]),
    world.capabilities,
    capacity=st.builds(
        Capacity,
        st.sampled_from([0, 300, 8000, 200_000]),
        st.sampled_from([0, GIB - 1, GIB, 4 * TIB]),
        st.sampled_from([0, TIB, 40 * TIB]),
        st.sampled_from([0, 1000]),
        st.lists(
            st.builds(
                GpuFree,
                st.sampled_from(["G0", "G1", "G2", "elsewhere"]),
                st.sampled_from([0, 333, 1000]),
                st.sampled_from([0, 24 * world.GB, 180 * world.GB]),
            ),
            max_size=4,
            unique_by=lambda left: left.device_id,
        ).map(tuple),
    ),
    labels=world.labels.map(lambda held: tuple(held.items())),
    drivers=world.drivers.map(lambda held: tuple(sorted(held))),
    expires_unix_s=st.sampled_from([NOW, NOW + 1, 2**40]),
    price_micro=st.sampled_from([0, 7, 2**32 - 1, 2**32, 2**40]),
    withdrawn=st.sampled_from([False] * 5 + [True]),
)
prices = st.sampled_from([None, -1, 0, 7, 2**32 - 2, 2**32 - 1, 2**32, 2**41])
times = st.sampled_from([0.0, NOW - 0.5, NOW, NOW + 0.5, 2.0**32 - 1, 2.0**33, 2.0**41])


@given(
    st.lists(said | st.sampled_from(PEERS[:12]), max_size=40),
    st.lists(st.tuples(world.needs, times, st.booleans(), prices), min_size=5, max_size=5),
    st.integers(0, 2**KEY_BITS - 1),
)
def test_after_any_changes_the_table_is_what_was_last_said(
    changes: list[Profile | PeerId],
    questions: list[tuple[Requirements, float, bool, int | None]],
    target: int,
) -> None:
    """A profile is put in, a peer id removed."""
    town, known = Table(), dict[PeerId, Profile]()
    for change in changes:
        if isinstance(change, Profile) and not change.withdrawn:
            assert town.put(change)
            known[change.peer_id] = change
        elif isinstance(change, Profile):
            assert town.put(change)
            known.pop(change.peer_id, None)
        else:
            assert town.remove(change) == (known.pop(change, None) is not None)
    assert len(town) == len(known)
    assert all((peer_id in town) == (peer_id in known) for peer_id in PEERS[:12])
    for needs, now, free_now, price in questions:
        for asked in (needs, Requirements(cpu_milli=1, memory_bytes=1), PIECE):
            nearest = town.nearest(
                asked, Key(target), 3, now, free_now=free_now, max_price_micro=price
            )
            expected = by_hand(known.values(), asked, Key(target), now, free_now, price)
            assert nearest == expected[:3]
            matched = town.match(asked, now, free_now=free_now, max_price_micro=price)
            assert {each.peer_id for each in matched} == {each.peer_id for each in expected}


@pytest.mark.parametrize("size", [1, MIB - 1, MIB, GIB - 1, GIB + 1, 2**52, 2**52 + MIB, 2**60])
def test_a_byte_decides(size: int) -> None:
    """Past 4 PiB as well, which is all that the column can tell."""
    town = table_of([profile(ALICE, Capability(1000, size)), profile(BOB, Capability(1000, 2**53))])
    for asked in (size - 1, size, min(size + 1, 2**60), min(size + MIB, 2**60)):
        if asked > 0:
            matched = town.match(Requirements(memory_bytes=asked), NOW)
            assert (ALICE in {each.peer_id for each in matched}) is (asked <= size)


def test_a_full_table_takes_nobody_new_and_listens_to_those_it_has() -> None:
    town = Table(limit=2)
    assert town.put(profile(ALICE))
    assert town.put(profile(BOB))
    assert not town.put(profile(CAROL))
    assert town.put(profile(BOB, sequence=2))
    assert CAROL not in town
    assert sorted(each.sequence for each in town.match(PIECE, NOW)) == [1, 2]
    assert town.put(profile(ALICE, withdrawn=True))
    assert town.put(profile(CAROL))


def test_keys_that_begin_alike_are_told_apart_and_equal_ones_by_peer_id() -> None:
    """Who can find such keys cannot change the order by it."""
    keys = {peer_id: Key(number // 2) for number, peer_id in enumerate(PEERS[:200])}
    town = table_of(map(profile, reversed(keys)), Table(key_of=keys.__getitem__))
    for target in (0, 50, 2**KEY_BITS - 1):
        nearest = town.nearest(PIECE, Key(target), 20, NOW)
        ranked = sorted(keys, key=lambda peer_id: (keys[peer_id] ^ target, peer_id))
        assert [each.peer_id for each in nearest] == ranked[:20]


def test_a_worker_with_every_name_there_is_has_only_its_own() -> None:
    """Whose names have all the bits passes every condition, and is asked in the end."""
    crowded = tuple((f"k{number}", f"v{number}") for number in range(8))
    crowd = (profile(peer_id, labels=crowded) for peer_id in PEERS[:300])
    town = table_of(crowd, Table(steps=SMALL_STEPS))
    for number in range(300):
        assert town.match(Requirements(labels=((f"k{number}", "else"),)), NOW) == []
    assert len(town.match(Requirements(labels=(("k3", "v3"),)), NOW)) == 300


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"needs": "cpu=1"}, "needs"),
        ({"now_unix_s": float("nan")}, "now_unix_s"),
        ({"now_unix_s": float("inf")}, "now_unix_s"),
        ({"now_unix_s": "now"}, "now_unix_s"),
        ({"max_price_micro": 0.5}, "max_price_micro"),
    ],
)
def test_what_is_no_question_is_refused(wrong: dict[str, Any], field: str) -> None:
    asked = {"needs": PIECE, "now_unix_s": NOW, **wrong}
    town = table_of([profile(ALICE)])
    with pytest.raises(InvalidInput, match="write") as raised:
        town.match(**asked)
    assert raised.value.field == field
    with pytest.raises(InvalidInput, match="write") as raised:
        town.nearest(**asked, target=HERE, count=1)
    assert raised.value.field == field


def test_as_many_are_named_as_a_whole_number_says() -> None:
    wrong: tuple[Any, ...] = (-1, 1.5, None, 2**63)
    for count in wrong:
        with pytest.raises(InvalidInput, match="count: "):
            table_of([profile(ALICE)]).nearest(PIECE, HERE, count, NOW)


def test_a_gpu_of_which_a_part_is_taken_is_no_free_one_in_the_columns_already() -> None:
    """Else each such worker would have to be asked, one by one."""
    able = machine(a100("G0"), a100("G1"))
    free = replace(idle(able), gpus=(GpuFree("G0", 1000, 40 * GIB), GpuFree("G1", 999, 40 * GIB)))
    numbers = columns.Columns()
    numbers.write(0, HERE, profile(ALICE, able, capacity=free))
    numbers.write(1, HERE, profile(BOB, able))
    for text, left in (("gpu=1", [0, 1]), ("gpu=2", [1])):
        conditions = Question(parse_requirements(text), NOW, free_now=True).conditions()
        assert numbers.scan(conditions, 2).tolist() == left


# -- keys in a trie come out in the order of their distance --------------------------------------


def held(trie: KeyTrie, target: int = 0) -> list[list[int]]:
    return [list(leaf) for leaf in trie.leaves(Key(target))]


def test_a_leaf_is_small_unless_its_keys_are_equal() -> None:
    keys = [Key(number) for number in range(3 * LEAF_SLOTS)] + [Key(7)] * (2 * LEAF_SLOTS)
    trie = KeyTrie(keys)
    for slot in range(len(keys)):
        trie.add(slot)
    first, *others = held(trie, 7)
    assert {keys[slot] for slot in first} == {7}
    assert len(first) == 2 * LEAF_SLOTS + 1
    assert all(0 < len(leaf) <= LEAF_SLOTS for leaf in others)


def test_leaves_that_have_become_empty_are_one_again() -> None:
    keys = [Key(number << (KEY_BITS - 12)) for number in range(4096)]
    trie = KeyTrie(keys)
    for slot in range(len(keys)):
        trie.add(slot)
    assert len(held(trie)) >= 4096 / LEAF_SLOTS
    for slot in range(10, len(keys)):
        trie.remove(slot)
    assert held(trie) == [list(range(10))]
    for slot in range(10):
        trie.remove(slot)
    assert held(trie) == []


def test_what_is_not_held_cannot_be_removed() -> None:
    trie = KeyTrie([Key(1), Key(2)])
    trie.add(0)
    with pytest.raises(ValueError, match="not in array"):
        trie.remove(1)
