"""The walk down the sorted keys names the same peer as measuring every distance does."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formation_p2p.core.identity import PeerId, key_of_peer, peer_id_of
from formation_p2p.core.keyspace import KEY_BITS, Key, distance
from formation_p2p.placement.core.policy import Peers

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
