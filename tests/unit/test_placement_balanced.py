"""Shares by lot: even where those by XOR are not, and as deterministic."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.dht.messages import MAX_PROVIDERS
from formation_p2p.core.identity import PeerId, key_of_peer, peer_id_of
from formation_p2p.core.keyspace import KEY_BITS, Key, key_of
from formation_p2p.core.placement.nearest import Peers
from formation_p2p.core.placement.policies import NEAREST, Balanced, lot, rendezvous
from formation_p2p.core.placement.xor import Xor
from tests.support.placement_world import order, peer, placed, task, worker

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
