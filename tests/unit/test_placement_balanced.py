"""Shares by lot: even where those by XOR are not, and as deterministic."""

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId, key_of_peer, peer_id_of
from formation_p2p.core.keyspace import KEY_BITS, Key, distance, key_of
from formation_p2p.dht.core.messages import MAX_PROVIDERS
from formation_p2p.placement.core.policies import NEAREST, Balanced, lot, rendezvous
from formation_p2p.placement.core.policy import Peers
from formation_p2p.placement.core.xor import (
    HASHES,
    Xor,
    cluster,
    default_hasher,
    rank_by_xor,
    responsible,
    sha256_low64,
)
from tests.support.placement_world import nearest_first, order, peer, placed, task, worker

TASKS = 10_000


def network(seed: int, count: int) -> list[PeerId]:
    rng = random.Random(seed)
    return [peer_id_of(rng.randbytes(32)) for _ in range(count)]


def busiest(seed: int, home: Callable[[Key, Peers], PeerId | None]) -> float:
    """Of 50 workers, against the mean."""
    workers = Peers(network(seed, 50))
    shares = Counter(home(key_of(b"%d/%d" % (seed, n)), workers) for n in range(TASKS))
    return max(shares.values()) / (TASKS / 50)


@pytest.mark.at_length
@pytest.mark.parametrize("seed", range(4))
def test_of_fifty_workers_the_busiest_has_at_most_half_as_much_again_as_the_mean(seed: int) -> None:
    by_lot = busiest(seed, Balanced().home)
    assert by_lot <= 1.5
    assert by_lot < busiest(seed, Xor().home)


@pytest.mark.at_length
def test_by_xor_alone_the_busiest_has_several_times_the_mean() -> None:
    assert max(busiest(seed, Xor().home) for seed in range(4)) > 3


@given(st.integers(0, 2**16), st.integers(0, 80), st.randoms(use_true_random=False))
def test_whoever_waits_and_whoever_ranks_agree_in_any_order(
    seed: int, count: int, rng: random.Random
) -> None:
    asked = task(f"job/{seed}")
    peers = network(seed, count)
    home = Balanced().home(asked.key, Peers(peers))
    rng.shuffle(peers)
    assert Balanced().home(asked.key, Peers(peers)) == home
    near = sorted(peers, key=lambda each: key_of_peer(each) ^ asked.key)[:NEAREST]
    assert rendezvous(asked.key, near) == home


def test_only_the_nearest_draw_and_the_others_follow_by_distance() -> None:
    asked = task()
    names = [f"worker-{n}" for n in range(40)]
    candidates = [worker(name) for name in names]
    by_lot, by_distance = order(asked, candidates, Balanced()), order(asked, candidates, Xor())
    assert by_lot[0] == Balanced().home(asked.key, Peers(map(peer, names)))
    assert set(by_lot[:NEAREST]) == set(by_distance[:NEAREST])
    assert by_lot[:NEAREST] != by_distance[:NEAREST]
    assert by_lot[NEAREST:] == by_distance[NEAREST:]
    ranked = placed(asked, candidates, Balanced()).ranked
    assert all(0 < each.score.value <= 1 for each in ranked[:NEAREST])
    assert [term.name for each in ranked for term in each.score.terms] == ["lot"] * NEAREST


def test_who_leaves_leaves_its_own_tasks_and_no_others() -> None:
    peers = network(1, 20)
    gone, left = peers[0], peers[1:]
    for n in range(200):
        key = key_of(b"%d" % n)
        before = rendezvous(key, peers)
        if before != gone:
            assert rendezvous(key, left) == before


def test_of_nobody_nobody_draws() -> None:
    assert rendezvous(Key(0), []) is None
    assert Balanced().home(Key(0), Peers(())) is None


def test_as_many_draw_as_one_answer_of_discovery_names() -> None:
    assert NEAREST == MAX_PROVIDERS


def test_lots_are_the_same_in_every_release() -> None:
    """Else nodes of two releases would name different workers for the same task."""
    names = ["alice", "bob", "carol", "dave", "erin"]
    workers = [peer(name) for name in names]
    named = [rendezvous(key_of(b"job/%d" % n), workers) for n in range(5)]
    assert named == list(map(peer, ["alice", "bob", "carol", "carol", "dave"]))
    asked = task("job/0")
    scores = Balanced().scores(asked, [worker(name) for name in names])
    assert [int(score.value * 2**52) for score in scores] == [
        3890734612359659,
        2638869320108471,
        2916233098966454,
        1332245668965602,
        1966387248731933,
    ]


def test_both_keys_of_a_lot_are_made_odd() -> None:
    """A key that ends in zeros would draw few of the numbers, and a key of 0 nothing but 0."""
    assert lot(Key(0), Key(0)) == 1
    assert lot(Key(2), Key(4)) == 3 * 5
    assert lot(Key(2), Key(5)) == 3 * 5


def test_the_lowest_lot_still_comes_before_workers_without_one() -> None:
    candidates = [worker(f"worker-{n}") for n in range(NEAREST + 1)]
    unlucky = key_of_peer(candidates[0].peer_id)
    # The inverse of one key is the key of a task whose lot with it is 1 of 2**256.
    asked = replace(task(), key=Key(pow(unlucky | 1, -1, 1 << KEY_BITS)))
    assert lot(asked.key, unlucky) == 1
    ranked = placed(asked, candidates, Balanced()).ranked
    assert ranked[NEAREST - 1].profile == candidates[0].profile
    assert [each.score.value > 0 for each in ranked] == [True] * NEAREST + [False]


# -- who is responsible by XOR: the same for everybody, however they heard of the workers ---


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


# The walk down the sorted keys names the same peer as measuring every distance does.

PEERS = [peer_id_of(bytes([n]) * 32) for n in range(64)]
keys = st.integers(0, 2**KEY_BITS - 1).map(Key)
beside_a_peer = st.builds(
    lambda peer_id, flipped: Key(key_of_peer(peer_id) ^ flipped),
    st.sampled_from(PEERS),
    st.integers(0, KEY_BITS).map(lambda bit: (1 << bit) >> 1),
)


@settings(max_examples=150)
@given(st.lists(st.sampled_from(PEERS), unique=True), keys | beside_a_peer)
def test_the_nearest_is_the_one_at_the_least_distance(peers: list[PeerId], target: Key) -> None:
    measured = min(peers, key=lambda peer: distance(key_of_peer(peer), target), default=None)
    assert Peers(peers).nearest(target) == measured


@settings(max_examples=150)
@given(
    st.lists(st.sampled_from(PEERS), unique=True), keys | beside_a_peer, st.integers(1, len(PEERS))
)
def test_the_nearest_few_are_those_at_the_least_distances(
    peers: list[PeerId], target: Key, count: int
) -> None:
    measured = sorted(peers, key=lambda peer: distance(key_of_peer(peer), target))
    assert Peers(peers).nearest_few(target, count) == measured[:count]


def test_of_nobody_nobody_is_nearest() -> None:
    assert Peers(()).nearest(Key(0)) is None
    assert Peers(()).nearest_few(Key(0), 3) == []


@pytest.mark.parametrize("count", [0, -1])
def test_a_policy_that_wants_none_of_them_gets_none(count: int) -> None:
    """It runs on the thread of its node, which has to come back."""
    assert Peers(PEERS[:2]).nearest_few(Key(0), count) == []
