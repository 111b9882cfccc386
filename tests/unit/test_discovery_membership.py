"""The shards of one bucket that a worker is in: each row of the table of its states."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.keyspace import MAX_DEPTH, Span
from formation_p2p.dht.core.messages import ShardCount
from formation_p2p.discovery.core.parameters import DiscoveryParameters
from formation_p2p.discovery.core.shard_membership import (
    TRANSITIONS,
    MembershipState,
    ShardMembership,
)
from formation_p2p.records.core.buckets import ShardParameters
from tests.support import dht_world as world

SHARDS = ShardParameters()

DISCOVERY = DiscoveryParameters()

TTL_S = DISCOVERY.ttl_s
FEW, ROOM = ShardCount(SHARDS.merge - 1), SHARDS.split - SHARDS.merge


def member_at(low: int, high: int | None = None, *, since_s: float = 0.0) -> ShardMembership:
    membership = ShardMembership("any")
    membership.settle(Span(low, low if high is None else high), since_s)
    return membership


# -- looking -> settled -------------------------------------------------------------------------


def test_at_first_a_worker_looks_for_its_home_from_the_top() -> None:
    membership = ShardMembership("any")
    assert membership.state is MembershipState.LOOKING
    assert membership.search.depth == 0
    assert membership.span == Span(0, 0)


def test_what_was_heard_counts_for_the_span_that_it_is_of() -> None:
    membership = member_at(3, since_s=7.0)
    membership.heard(3, ShardCount(9))
    assert not membership.settle(Span(3, 3), 50.0), "where it already was nothing changes"
    assert (membership.moved_s, membership.counts) == (7.0, {3: ShardCount(9)})
    membership.settle(Span(3, 4), 50.0)
    assert membership.counts == {}


@pytest.mark.parametrize("state", MembershipState)
@pytest.mark.parametrize(("event", "span"), [("settle", Span(4, 4)), ("move", Span(4, 5))])
def test_a_membership_follows_the_table(state: MembershipState, event: str, span: Span) -> None:
    membership = {
        MembershipState.LOOKING: lambda: ShardMembership("any"),
        MembershipState.SETTLED: lambda: member_at(3),
        MembershipState.MOVING: lambda: member_at(3, 4),
    }[state]()
    assert membership.state is state
    if event in TRANSITIONS[state]:
        assert membership.settle(span, 1.0)
        assert membership.state is TRANSITIONS[state][event]
    else:
        with pytest.raises(KeyError):
            membership.settle(span, 1.0)


# -- settled -> moving: full --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "doubt"),
    [
        (ShardCount(SHARDS.split, SHARDS.split), None),
        (ShardCount(SHARDS.split + 1, SHARDS.split + 1), "full"),
        (ShardCount(30, 20, 0, 10, 4), "full"),  # many are leaving
        (ShardCount(12, 2, 0, 10, 4), None),  # many are coming: there is room
        (
            ShardCount(SHARDS.merge, 1, 0, SHARDS.merge, 4),
            "full",
        ),  # all but one have left, and a sample is here
        (ShardCount(SHARDS.merge, SHARDS.merge), None),
        (ShardCount(SHARDS.merge - 1, SHARDS.merge - 1), "sparse"),
    ],
)
def test_one_holders_word_raises_a_doubt(count: ShardCount, doubt: str | None) -> None:
    assert member_at(3).heard(3, count) == doubt


def test_whatever_one_holder_says_the_span_stays() -> None:
    """It takes a poll of all that hold the shard; see `confirmed`."""
    membership = member_at(3)
    for count in (ShardCount(10**6), ShardCount(9, 0, 0, 9, MAX_DEPTH), ShardCount()):
        membership.heard(3, count)
        assert membership.span == Span(3, 3)
        assert membership.arrived(10**6) is None


def test_while_it_moves_only_the_deeper_shard_can_be_full_and_none_sparse() -> None:
    moving, full = member_at(2, 3), ShardCount(SHARDS.split + 1)
    assert moving.heard(2, ShardCount(SHARDS.split + 1, 30, 0, 9, 3)) is None
    assert [moving.heard(2, FEW), moving.heard(3, FEW)] == [None, None]
    assert moving.confirmed("sparse", ShardCount()) is None
    assert moving.heard(3, full) == "full"
    # It moves on from the deeper of its two shards; the other is left at once.
    assert moving.confirmed("full", full) == Span(3, 4)
    deepest = member_at(MAX_DEPTH)
    assert deepest.confirmed("full", ShardCount(10**6)) is None
    leaving = ShardCount(20, 15, 0, 5, MAX_DEPTH)
    assert deepest.confirmed("full", leaving) in (None, deepest.span)
    # A whole bucket may have few members.
    assert member_at(0).heard(0, ShardCount(1)) is None


@pytest.mark.parametrize(
    ("count", "span"),
    [
        (ShardCount(SHARDS.split, SHARDS.split), None),
        (ShardCount(SHARDS.split + 1, SHARDS.split), Span(3, 4)),
        (ShardCount(2 * SHARDS.split, SHARDS.split), Span(3, 4)),
        (ShardCount(2 * SHARDS.split + 1, SHARDS.split), Span(3, 5)),
        (ShardCount(10**9), Span(3, MAX_DEPTH)),
        (ShardCount(30, 15, 0, 15, 4), Span(3, 4)),  # it follows those who leave...
        (ShardCount(30, 15, 0, 15, 6), Span(3, 6)),  # ...to where they go
        (ShardCount(30, 15, 0, 15, 3), Span(3, 4)),  # which is deeper, whatever is said
        (ShardCount(30, 25, 0, 5, 6), None),  # a few are not followed
        (ShardCount(12, 2, 0, 10, 4), None),  # nor are those who come
    ],
)
def test_where_all_who_hold_it_say_that_its_shard_is_full_a_worker_moves_down(
    count: ShardCount, span: Span | None
) -> None:
    assert member_at(3).confirmed("full", count) == span


# -- settled -> moving: sparse ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "above", "moves"),
    [
        (SHARDS.merge - 1, 0, True),
        (SHARDS.merge, 0, False),
        (SHARDS.merge - 1, ROOM - (SHARDS.merge - 1), True),
        (SHARDS.merge - 1, ROOM - (SHARDS.merge - 1) + 1, False),
        (1, ROOM - 1, True),
        (1, ROOM, False),
        (None, 0, False),  # its own shard was not heard of yet
    ],
)
def test_who_is_nearly_alone_moves_up_where_there_is_room_for_as_many_again(
    own: int | None, above: int, moves: bool
) -> None:
    membership = member_at(3)
    if own is not None:
        membership.heard(3, ShardCount(own))
    assert membership.confirmed("sparse", ShardCount(above)) == (Span(2, 3) if moves else None)


# -- moving -> moving: astray -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "span"),
    [
        (ShardCount(66, 0, 0, 33, 4), Span(1, 4)),  # most go deeper
        (ShardCount(66, 0, 0, 33, 2), Span(1, 2)),  # or less deep
        (ShardCount(66, 0, 0, 33, 3), None),  # or where we go
        (ShardCount(66, 0, 0, 33, 1), None),  # which is deeper, whatever is said
        (ShardCount(66, 33, 0, 0, 0), None),  # or nowhere yet
        (ShardCount(66, 0, 0, 33, MAX_DEPTH + 1), Span(1, MAX_DEPTH)),
    ],
)
def test_a_worker_on_its_way_goes_where_most_of_its_shard_go(
    count: ShardCount, span: Span | None
) -> None:
    """Those who start at once see different numbers of members: some split further than others."""
    membership = member_at(1, 3)
    assert (membership.heard(1, count) == "astray") == (span is not None)
    assert membership.confirmed("astray", count) == span


def test_who_has_arrived_is_not_astray() -> None:
    membership = member_at(2)
    assert membership.heard(2, ShardCount(20, 19, 0, 1, 3)) is None
    assert membership.confirmed("astray", ShardCount(20, 0, 0, 20, 3)) is None


# -- moving -> settled --------------------------------------------------------------------------


def moving(above: ShardCount, below: ShardCount) -> ShardMembership:
    membership = member_at(2, 3, since_s=1000.0)
    membership.heard(2, above)
    membership.heard(3, below)
    return membership


EMPTIED, FULL = ShardCount(20, 0, 0, 20, 3), ShardCount(20, 0, 20)


def test_a_move_lasts_a_ttl_in_which_all_others_hear_of_it() -> None:
    membership = moving(EMPTIED, FULL)
    assert membership.arrived(1000.0 + TTL_S - 1) is None
    assert membership.arrived(1000.0 + TTL_S) == Span(3, 3)
    for depth in (2, 3):  # the other shard was not heard of
        membership = member_at(2, 3)
        membership.heard(depth, EMPTIED)
        assert membership.arrived(10 * TTL_S) is None
    still = member_at(3)
    still.heard(3, FULL)
    assert still.arrived(10 * TTL_S) is None


def test_up_it_goes_where_few_are_below_and_above_is_not_full() -> None:
    below = ShardCount(SHARDS.merge - 1, 0, SHARDS.merge - 1)
    assert moving(ShardCount(SHARDS.split), below).arrived(1120.0) == Span(2, 2)
    assert moving(ShardCount(SHARDS.split + 1), below).arrived(1120.0) == Span(3, 3)
    enough = ShardCount(SHARDS.merge, 0, SHARDS.merge)
    assert moving(ShardCount(SHARDS.split), enough).arrived(1120.0) == Span(3, 3)
    # A move that most do not make is given up.
    few_went = moving(ShardCount(SHARDS.split, settled=SHARDS.merge), enough)
    assert few_went.arrived(1120.0) == Span(2, 2)


def test_nobody_leaves_a_shard_while_somebody_is_in_it_alone_but_not_for_ever() -> None:
    going_down = moving(ShardCount(20, settled=1), FULL)
    going_up = moving(ShardCount(5), ShardCount(5, settled=1))
    assert [each.arrived(1000.0 + 2 * TTL_S) for each in (going_down, going_up)] == [None, None]
    late_s = 1000.0 + DISCOVERY.max_move_ttls * TTL_S
    assert going_down.arrived(late_s - 1) is None
    assert going_down.arrived(late_s) == Span(3, 3)


@given(st.integers(0, MAX_DEPTH), st.integers(0, MAX_DEPTH), st.integers(0, 2**32))
def test_wherever_it_moves_it_keeps_one_shard_and_stays_within_bounds(
    a: int, b: int, seed: int
) -> None:
    """So that whoever reads both always finds it."""
    rng = random.Random(seed)
    membership = member_at(min(a, b), max(a, b))
    one, other = world.any_count(rng), world.any_count(rng)
    membership.heard(membership.span.low, one)
    doubt = membership.heard(membership.span.high, other)
    moves = [membership.arrived(10 * TTL_S)]
    if doubt is not None:
        moves.append(membership.confirmed(doubt, other if doubt == "full" else one))
    for span in moves:
        if span is not None:
            assert 0 <= span.low <= span.high <= MAX_DEPTH
            assert set(span) & set(membership.span)


def test_who_finds_neighbours_settled_above_is_in_both_until_it_is_told_who_follows_whom() -> None:
    """They came at the same time and did not see each other."""
    membership = member_at(2)
    assert membership.confirmed("apart", ShardCount(members=9, settled=4)) == Span(1, 2)
    assert (
        membership.confirmed("apart", ShardCount(members=9, shallower=4)) is None
    )  # they are moving already
    membership.settle(Span(1, 2), 1.0)
    assert membership.state is MembershipState.MOVING
    assert membership.confirmed("apart", ShardCount(members=9, settled=4)) is None
    membership.settle(Span(0, 0), 2.0)
    assert membership.confirmed("apart", ShardCount(members=9, settled=4)) is None
