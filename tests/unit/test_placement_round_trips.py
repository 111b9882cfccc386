"""How far others are, as measured on the connections with them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.identity import PeerId
from formation_p2p.placement.core.round_trips import (
    FAR_US,
    FORGET_S,
    MAX_PEERS,
    MAX_RTT_US,
    RoundTrips,
    nearness,
    step_ms,
)
from formation_p2p.records.core.profile import MAX_GATE_RTT_MS
from tests.support.stories import ALICE, BOB, CAROL, at

ALICES, BOBS = ALICE.peer_id, BOB.peer_id
NOW = at(0)


def known(*measured_us: int) -> int | None:
    round_trips = RoundTrips(CAROL.peer_id)
    for rtt_us in measured_us:
        round_trips.measured(ALICES, rtt_us, NOW)
    return round_trips.rtt_us(ALICES, NOW)


def test_a_shorter_round_trip_counts_at_once_and_a_longer_one_bit_by_bit() -> None:
    assert known() is None
    assert known(80_000) == 80_000
    assert known(80_000, 20_000) == 20_000
    assert known(80_000, 20_000, 100_000) == 30_000  # a queue, perhaps
    assert 90_000 < (known(20_000, *[100_000] * 20) or 0) < 100_000  # no: another route


def test_of_several_peers_the_median_is_told_in_coarse_steps() -> None:
    round_trips = RoundTrips(CAROL.peer_id)
    assert round_trips.median_ms([ALICES, BOBS, CAROL.peer_id], NOW) is None
    round_trips.measured(ALICES, 300, NOW)
    assert round_trips.median_ms([ALICES, BOBS, CAROL.peer_id], NOW) == 1
    round_trips.measured(BOBS, 30_000, NOW)
    assert round_trips.median_ms([ALICES, BOBS], NOW) == 1  # the lower one
    assert round_trips.median_ms([BOBS], NOW) == 50
    assert round_trips.median_ms([BOBS], at(FORGET_S + 1)) is None


@given(st.integers(1, MAX_RTT_US))
def test_a_step_is_the_next_of_one_two_five_and_fits_in_a_profile(rtt_us: int) -> None:
    step = step_ms(rtt_us)
    assert rtt_us <= step * 1000 <= max(2.5 * rtt_us, 1000)
    assert str(step).rstrip("0") in {"1", "2", "5"}
    assert step <= MAX_GATE_RTT_MS


def test_what_no_round_trip_can_take_is_brought_within_bounds() -> None:
    assert known(0) == 1
    assert known(-5) == 1
    assert known(10**12) == MAX_RTT_US


def test_a_peer_is_no_distance_from_itself() -> None:
    assert RoundTrips(ALICES).rtt_us(ALICES, NOW) == 0


def test_what_was_measured_long_ago_is_not_known_any_more() -> None:
    round_trips = RoundTrips(CAROL.peer_id)
    round_trips.measured(ALICES, 20_000, at(0))
    assert round_trips.rtt_us(ALICES, at(FORGET_S)) == 20_000
    assert round_trips.rtt_us(ALICES, at(FORGET_S + 1)) is None
    round_trips.measured(ALICES, 90_000, at(FORGET_S + 1))
    assert round_trips.rtt_us(ALICES, at(FORGET_S + 1)) == 90_000


def test_whoever_was_measured_longest_ago_makes_room() -> None:
    round_trips = RoundTrips(CAROL.peer_id)
    round_trips.measured(ALICES, 1000, NOW)
    round_trips.measured(BOBS, 1000, NOW)
    round_trips.measured(ALICES, 1000, NOW)
    for number in range(MAX_PEERS - 1):
        round_trips.measured(PeerId(f"peer {number}"), 1000, NOW)
    assert len(round_trips) == MAX_PEERS
    assert round_trips.rtt_us(BOBS, NOW) is None
    assert round_trips.rtt_us(ALICES, NOW) == 1000


def crowd(round_trips: RoundTrips, count: int, name: str = "stranger") -> None:
    for number in range(count):
        round_trips.measured(PeerId(f"{name} {number}"), 1000, NOW)


def test_strangers_who_connect_push_out_nobody_that_was_asked_for() -> None:
    round_trips = RoundTrips(CAROL.peer_id)
    round_trips.measured(ALICES, 20_000, NOW)
    assert round_trips.rtt_us(ALICES, NOW) == 20_000
    crowd(round_trips, 2 * MAX_PEERS)
    assert round_trips.rtt_us(ALICES, NOW) == 20_000
    round_trips.measured(ALICES, 10_000, NOW)
    crowd(round_trips, 2 * MAX_PEERS)
    assert round_trips.rtt_us(ALICES, NOW) == 10_000


def test_of_those_that_were_asked_for_only_so_many_are_kept() -> None:
    round_trips = RoundTrips(CAROL.peer_id)
    for name in ("worker", "another"):
        crowd(round_trips, MAX_PEERS, name)
        for number in range(MAX_PEERS):
            assert round_trips.rtt_us(PeerId(f"{name} {number}"), NOW) == 1000
    assert len(round_trips) == MAX_PEERS
    assert round_trips.rtt_us(PeerId("worker 0"), NOW) is None
    crowd(round_trips, MAX_PEERS)
    assert len(round_trips) == 2 * MAX_PEERS


@pytest.mark.parametrize(
    ("rtt_us", "near"),
    [(0, 1.0), (10_000, 0.98), (250_000, 0.5), (FAR_US, 0.0), (900_000, 0.0), (None, 0.0)],
)
def test_nearness_falls_in_proportion_to_half_a_second(rtt_us: int | None, near: float) -> None:
    assert nearness(rtt_us) == near


@given(st.lists(st.integers(1, MAX_RTT_US), min_size=1, max_size=30))
def test_what_is_known_is_never_less_than_the_shortest_nor_more_than_the_longest(
    measured_us: list[int],
) -> None:
    rtt_us = known(*measured_us)
    assert rtt_us is not None
    assert min(measured_us) <= rtt_us <= max(measured_us)
    assert rtt_us <= measured_us[-1]
