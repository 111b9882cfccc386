"""When what is looked up, and that a name for a bucket lies in that bucket."""

from __future__ import annotations

import random
from itertools import pairwise

import pytest

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.core.keyspace import KEY_BITS, Key, key_of
from formation_p2p.dht.core.parameters import DhtParameters
from formation_p2p.dht.core.refresh import Refresh
from formation_p2p.dht.core.routing import RoutingTable
from tests.support.dht_world import common_prefix

DHT = DhtParameters()

OWN_NAME = b"our own name"
OWN = key_of(OWN_NAME)


def table_down_to(depth: int) -> RoutingTable:
    """Twenty peers in each bucket of up to `depth` bits in common, and twenty who are nearest."""
    lengths = [KEY_BITS - shared for shared in range(depth + 1)] + [100]
    keys = [OWN ^ (1 << (length - 1)) ^ n for length in lengths for n in range(DHT.k)]
    table = RoutingTable(OWN, key_of=lambda peer_id: Key(int(peer_id)))
    for number, key in enumerate(keys):
        table.saw(Contact(PeerId(str(key)), (f"/ip4/10.0.0.1/tcp/{number + 1}",)), 0.0)
    assert len(table) == len(keys)
    return table


def steps(
    table: RoutingTable, until_s: float, seed: int = 1, parameters: DhtParameters = DHT
) -> list[tuple[float, bytes]]:
    """What is looked up when, by a node that joins at 0 and does nothing else."""
    due = Refresh(OWN_NAME, table, random.Random(seed), parameters)
    due.joined(0.0)
    looked_up = []
    while due.at_s < until_s:
        now_s = due.at_s
        name = due.due(now_s)
        assert due.at_s > now_s
        if name is not None:
            looked_up.append((now_s, name))
    return looked_up


def depth_of(name: bytes) -> int:
    return common_prefix(key_of(name), OWN)


def test_after_joining_we_look_ourselves_up_again_and_then_fill_each_bucket_with_its_own_key() -> (
    None
):
    looked_up = steps(table_down_to(6), 9 * DHT.fill_s)
    assert looked_up[0][1] == OWN_NAME
    assert [depth_of(name) for _, name in looked_up[1:]] == list(range(7))


def test_each_has_its_turn_in_time_and_seldom_more_often() -> None:
    looked_up = steps(table_down_to(9), 6000.0)
    for depth in (*range(10), KEY_BITS):
        times = [at_s for at_s, name in looked_up if depth_of(name) == depth]
        gaps = [b - a for a, b in pairwise(times)][1:]
        due_s = DHT.own_refresh_s if depth == KEY_BITS else DHT.bucket_refresh_s
        assert gaps
        assert min(gaps) >= DHT.refresh_early * due_s
        assert max(gaps) <= 1.15 * due_s


def test_whoever_looked_there_for_another_purpose_has_done_it() -> None:
    table = table_down_to(3)
    due = Refresh(OWN_NAME, table, random.Random(1))
    due.joined(0.0)
    assert due.due(2.0) == OWN_NAME
    for length in range(KEY_BITS - 3, KEY_BITS + 1):
        table.looked_into(Key(OWN ^ 1 << (length - 1)), 3.0)
    assert due.due(4.0) is None


def test_a_small_network_needs_no_more_than_ourselves() -> None:
    table = RoutingTable(OWN)
    assert {name for _, name in steps(table, 3000.0)} == {OWN_NAME}


def test_who_starts_together_parts() -> None:
    times = [{at_s for at_s, _ in steps(table_down_to(2), 3000.0, seed)} for seed in range(5)]
    assert not set.intersection(*times)
    assert DHT.refresh_jitter[0] > DHT.refresh_early  # or a turn would be missed now and then


def test_buckets_too_deep_to_find_a_name_for_are_left_to_the_lookup_of_our_own_key() -> None:
    looked_up = steps(table_down_to(6), 600.0, parameters=DhtParameters(max_refresh_depth=3))
    assert {depth_of(name) for _, name in looked_up} == {0, 1, 2, 3, KEY_BITS}


def test_bad_luck_costs_a_turn_and_no_more() -> None:
    looked_up = steps(table_down_to(9), 300.0, parameters=DhtParameters(max_name_tries=1))
    assert len(looked_up) < 9  # of eleven


@pytest.mark.parametrize("depth", [0, 1, 7, DHT.max_refresh_depth])
def test_a_name_lies_in_the_bucket_that_it_is_for(depth: int) -> None:
    due = Refresh(OWN_NAME, RoutingTable(OWN), random.Random(7))
    name = due.name_at(depth)
    assert name is not None
    assert depth_of(name) == depth
