"""Who is responsible by XOR: the same for everybody, however they heard of the workers."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId, peer_id_of
from formation_p2p.core.keyspace import key_of
from formation_p2p.core.placement.nearest import Peers
from formation_p2p.core.placement.xor import (
    HASHES,
    Xor,
    cluster,
    default_hasher,
    rank_by_xor,
    responsible,
    sha256_low64,
)
from tests.support.placement_world import nearest_first, order, peer, placed, task, worker

NAMES = ("alice", "bob", "carol", "dave", "erin")
WORKERS = [worker(name) for name in NAMES]


@dataclass(frozen=True)
class Node:
    """Of another system, where nodes have names."""

    peer_id: PeerId


def nodes(*names: str) -> list[Node]:
    return [Node(PeerId(name)) for name in names]


def test_the_nearest_come_first() -> None:
    asked = task()
    by_distance = [peer(name) for name in nearest_first(asked, NAMES)]
    assert [each.peer_id for each in rank_by_xor(asked.key, WORKERS)] == by_distance
    assert [each.peer_id for each in rank_by_xor(asked.name, WORKERS)] == by_distance
    assert order(asked, WORKERS, Xor()) == by_distance
    assert Xor().home(asked.key, Peers(by_distance)) == by_distance[0]


@given(
    st.text(max_size=20),
    st.lists(st.binary(min_size=32, max_size=32).map(peer_id_of), unique=True, max_size=9),
    st.randoms(use_true_random=False),
)
def test_every_observer_decides_the_same(
    name: str, peers: list[PeerId], rng: random.Random
) -> None:
    heard_of = nodes(*peers)
    ranked = rank_by_xor(name, heard_of)
    rng.shuffle(heard_of)
    assert rank_by_xor(name, heard_of) == ranked
    assert cluster(name, heard_of) == ranked[:3]
    assert [each for each in heard_of if responsible(name, heard_of, each.peer_id)] == list(
        ranked[:1]
    )


def test_a_cluster_is_of_three_or_of_as_many_as_one_says_or_of_all_there_are() -> None:
    ranked = rank_by_xor("build", WORKERS)
    assert cluster("build", WORKERS) == ranked[:3]
    assert cluster("build", WORKERS, size=4) == ranked[:4]
    assert cluster("build", WORKERS[:2]) == rank_by_xor("build", WORKERS[:2])
    assert cluster("build", []) == ()
    wrong: tuple[Any, ...] = (0, -1, 2.5, "3", None)
    for size in wrong:
        with pytest.raises(InvalidInput, match="write 1 or more"):
            cluster("build", WORKERS, size=size)


def test_nobody_is_responsible_where_nobody_is_capable() -> None:
    assert not responsible("build", [], peer("alice"))


def test_formations_hashes_name_whom_formation_names() -> None:
    five = nodes("node-a", "node-b", "node-c", "node-d", "node-e")

    def ranked(hashing: str) -> list[str]:
        return [each.peer_id for each in rank_by_xor("build-1", five, HASHES[hashing])]

    assert ranked("default-hasher") == ["node-c", "node-e", "node-d", "node-a", "node-b"]
    assert ranked("sha256-64") == ["node-c", "node-a", "node-b", "node-e", "node-d"]
    assert default_hasher("build-1") ^ default_hasher("node-c") == 808589990507023289
    assert sha256_low64("build-1") ^ sha256_low64("node-c") == 3221986407672735969
    # Of several words, as another SipHash-1-3 has it: CPython's, with the seed 0.
    assert default_hasher("a build with a name of several words") == 8047189688069182827


def test_two_at_the_same_distance_are_both_ranked_by_id() -> None:
    both = nodes("node-b", "node-a")
    ranked = rank_by_xor("build", both, hashed=lambda name: 7)
    assert [each.peer_id for each in ranked] == ["node-a", "node-b"]
    assert cluster("build", both, hashed=lambda name: 7) == ranked


@pytest.mark.parametrize("hashing", HASHES)
def test_a_policy_ranks_by_another_hash(hashing: str) -> None:
    asked = task("build-1")
    ranked = placed(asked, WORKERS, Xor(hashing)).ranked
    expected = rank_by_xor(asked.name, WORKERS, HASHES[hashing])
    assert [each.profile.peer_id for each in ranked] == [each.peer_id for each in expected]
    assert [each.score.value for each in ranked] == [1.0, 0.8, 0.6, 0.4, 0.2]
    # Their numbers are not keys of the DHT: whoever is asked first is ranked when it is asked.
    assert Xor(hashing).home(asked.key, Peers([peer("alice")])) is None


def test_there_is_no_other_hash() -> None:
    with pytest.raises(InvalidInput, match="there are default-hasher and sha256-64"):
        Xor("md5")


def test_the_key_of_a_name_is_its_sha_256() -> None:
    assert rank_by_xor(key_of(b"build"), WORKERS) == rank_by_xor("build", WORKERS)


def test_who_is_named_twice_counts_once() -> None:
    """Else it would be two of the three that are to outvote one."""
    twice = [*WORKERS, *WORKERS]
    assert rank_by_xor("build", twice) == rank_by_xor("build", WORKERS)
    assert cluster("build", twice) == cluster("build", WORKERS)
    scores = Xor("sha256-64").scores(task("build"), twice)
    assert sorted({score.value for score in scores}) == [0.2, 0.4, 0.6, 0.8, 1.0]


@pytest.mark.parametrize("hashing", HASHES)
def test_a_hash_may_be_named(hashing: str) -> None:
    by_hash = rank_by_xor("build-1", WORKERS, HASHES[hashing])
    assert rank_by_xor("build-1", WORKERS, hashing) == by_hash
    assert cluster("build-1", WORKERS, hashed=hashing) == by_hash[:3]
    assert responsible("build-1", WORKERS, by_hash[0].peer_id, hashing)


def test_what_is_neither_a_name_nor_a_key_nor_a_hash_is_refused() -> None:
    wrong: tuple[Any, ...] = (b"build", None, 1.5)
    for name in wrong:
        with pytest.raises(
            InvalidInput, match=r"task: .* is neither the name of a task nor its key"
        ):
            rank_by_xor(name, WORKERS)
    with pytest.raises(InvalidInput, match="hashed: 'md5' is not a hash of names; there are"):
        rank_by_xor("build", WORKERS, "md5")


def test_whom_the_keys_of_the_dht_name_is_the_same_in_every_release() -> None:
    names = {peer(name): name for name in NAMES}
    ranked = rank_by_xor("build-1", WORKERS)
    assert [names[each.peer_id] for each in ranked] == ["carol", "bob", "dave", "erin", "alice"]
