"""Where a worker is at home in one bucket: each row of the table in `home.py`."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.capability.shards import MERGE, SPLIT
from formation_p2p.core.dht.messages import ShardCount
from formation_p2p.core.discovery.shard_membership import MAX_MOVE_TTLS, ShardMembership
from formation_p2p.core.keyspace import MAX_DEPTH, Span
from tests.support import dht_world as world

TTL_S = 120.0
FEW, ROOM = ShardCount(MERGE - 1), SPLIT - MERGE


def at_home(low: int, high: int | None = None, *, since_s: float = 0.0) -> ShardMembership:
    home = ShardMembership("any")
    home.settle(Span(low, low if high is None else high), since_s)
    return home


# -- looking -> settled -------------------------------------------------------------------------


def test_at_first_a_worker_looks_for_its_home_from_the_top() -> None:
    home = ShardMembership("any")
    assert home.walk is not None
    assert home.walk.depth == 0
    assert home.span == Span(0, 0)


def test_when_it_has_found_it_it_looks_no_more() -> None:
    home = ShardMembership("any")
    assert home.settle(Span(3, 3), 7.0)
    assert (home.walk, home.span, home.moved_s) == (None, Span(3, 3), 7.0)


def test_where_it_already_was_nothing_changes() -> None:
    home = at_home(3, since_s=7.0)
    home.heard(3, ShardCount(9))
    assert not home.settle(Span(3, 3), 50.0)
    assert (home.moved_s, home.counts) == (7.0, {3: ShardCount(9)})


def test_what_was_heard_of_another_span_is_forgotten() -> None:
    home = at_home(3)
    home.heard(3, ShardCount(40))
    home.settle(Span(3, 4), 50.0)
    assert home.counts == {}


# -- settled -> moving: full --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "doubt"),
    [
        (ShardCount(SPLIT, SPLIT), None),
        (ShardCount(SPLIT + 1, SPLIT + 1), "full"),
        (ShardCount(30, 20, 0, 10, 4), "full"),  # many are leaving
        (ShardCount(12, 2, 0, 10, 4), None),  # many are coming: there is room
        (ShardCount(MERGE, 1, 0, MERGE, 4), "full"),  # all but one have left, and a sample is here
        (ShardCount(MERGE, MERGE), None),
        (ShardCount(MERGE - 1, MERGE - 1), "sparse"),
    ],
)
def test_one_holders_word_raises_a_doubt(count: ShardCount, doubt: str | None) -> None:
    assert at_home(3).heard(3, count) == doubt


def test_whatever_one_holder_says_the_span_stays() -> None:
    """It takes a poll of all that hold the shard; see `is_full` and `is_sparse`."""
    home = at_home(3)
    for count in (ShardCount(10**6), ShardCount(9, 0, 0, 9, MAX_DEPTH), ShardCount()):
        home.heard(3, count)
        assert home.span == Span(3, 3)
        assert home.arrived(TTL_S, 10**6) is None


def test_a_whole_bucket_with_few_members_is_as_it_should_be() -> None:
    assert at_home(0).heard(0, ShardCount(1)) is None


def test_while_it_moves_only_the_deeper_shard_can_be_full_and_none_sparse() -> None:
    moving = at_home(2, 3)
    assert moving.heard(2, ShardCount(SPLIT + 1, 30, 0, 9, 3)) is None
    assert moving.heard(2, FEW) is None
    assert moving.heard(3, FEW) is None
    assert moving.heard(3, ShardCount(SPLIT + 1)) == "full"


@pytest.mark.parametrize(
    ("count", "span"),
    [
        (ShardCount(SPLIT, SPLIT), None),
        (ShardCount(SPLIT + 1, SPLIT), Span(3, 4)),
        (ShardCount(2 * SPLIT, SPLIT), Span(3, 4)),
        (ShardCount(2 * SPLIT + 1, SPLIT), Span(3, 5)),
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
    assert at_home(3).is_full(count) == span


def test_while_it_moves_a_worker_may_move_further_down() -> None:
    """From the deeper of its two shards. The other is left at once: everybody is deeper."""
    assert at_home(2, 3).is_full(ShardCount(SPLIT + 1)) == Span(3, 4)


def test_at_the_deepest_there_is_nowhere_to_go() -> None:
    deepest = at_home(MAX_DEPTH)
    assert deepest.is_full(ShardCount(10**6)) is None
    assert deepest.is_full(ShardCount(20, 15, 0, 5, MAX_DEPTH)) in (None, deepest.span)


# -- settled -> moving: sparse ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "above", "moves"),
    [
        (MERGE - 1, 0, True),
        (MERGE, 0, False),
        (MERGE - 1, ROOM - (MERGE - 1), True),
        (MERGE - 1, ROOM - (MERGE - 1) + 1, False),
        (1, ROOM - 1, True),
        (1, ROOM, False),
    ],
)
def test_who_is_nearly_alone_moves_up_where_there_is_room_for_as_many_again(
    own: int, above: int, moves: bool
) -> None:
    home = at_home(3)
    home.heard(3, ShardCount(own))
    assert home.is_sparse(ShardCount(above)) == (Span(2, 3) if moves else None)


def test_before_its_own_shard_was_heard_of_nobody_moves_up() -> None:
    assert at_home(3).is_sparse(ShardCount()) is None


def test_who_is_moving_already_does_not_move_up() -> None:
    home = at_home(2, 3)
    home.heard(3, FEW)
    assert home.is_sparse(ShardCount()) is None


# -- moving -> settled --------------------------------------------------------------------------


def moving(above: ShardCount, below: ShardCount) -> ShardMembership:
    home = at_home(2, 3, since_s=1000.0)
    home.heard(2, above)
    home.heard(3, below)
    return home


EMPTIED, FULL = ShardCount(20, 0, 0, 20, 3), ShardCount(20, 0, 20)


def test_a_move_lasts_a_ttl_in_which_all_others_hear_of_it() -> None:
    home = moving(EMPTIED, FULL)
    assert home.arrived(TTL_S, 1000.0 + TTL_S - 1) is None
    assert home.arrived(TTL_S, 1000.0 + TTL_S) == Span(3, 3)


def test_before_both_shards_were_heard_of_it_is_not_over() -> None:
    for depth in (2, 3):
        home = at_home(2, 3)
        home.heard(depth, EMPTIED)
        assert home.arrived(TTL_S, 10 * TTL_S) is None


def test_who_is_not_moving_does_not_arrive() -> None:
    home = at_home(3)
    home.heard(3, FULL)
    assert home.arrived(TTL_S, 10 * TTL_S) is None


def test_up_it_goes_where_few_are_below_and_above_is_not_full() -> None:
    below = ShardCount(MERGE - 1, 0, MERGE - 1)
    assert moving(ShardCount(SPLIT), below).arrived(TTL_S, 1120.0) == Span(2, 2)
    assert moving(ShardCount(SPLIT + 1), below).arrived(TTL_S, 1120.0) == Span(3, 3)
    enough = ShardCount(MERGE, 0, MERGE)
    assert moving(ShardCount(SPLIT), enough).arrived(TTL_S, 1120.0) == Span(3, 3)


def test_a_move_that_most_do_not_make_is_given_up() -> None:
    few_went = moving(ShardCount(SPLIT, settled=MERGE), ShardCount(MERGE, 0, MERGE))
    assert few_went.arrived(TTL_S, 1120.0) == Span(2, 2)


def test_nobody_leaves_a_shard_while_somebody_is_in_it_alone() -> None:
    going_down = moving(ShardCount(20, settled=1), FULL)
    assert going_down.arrived(TTL_S, 1000.0 + 2 * TTL_S) is None
    going_up = moving(ShardCount(5), ShardCount(5, settled=1))
    assert going_up.arrived(TTL_S, 1000.0 + 2 * TTL_S) is None


def test_one_that_stands_still_does_not_hold_the_others_for_ever() -> None:
    going_down = moving(ShardCount(20, settled=1), FULL)
    late_s = 1000.0 + MAX_MOVE_TTLS * TTL_S
    assert going_down.arrived(TTL_S, late_s - 1) is None
    assert going_down.arrived(TTL_S, late_s) == Span(3, 3)


@given(st.integers(0, MAX_DEPTH), st.integers(0, MAX_DEPTH), st.integers(0, 2**32))
def test_wherever_it_moves_it_keeps_one_shard_and_stays_within_bounds(
    a: int, b: int, seed: int
) -> None:
    """So that whoever reads both always finds it."""
    rng = random.Random(seed)
    home = at_home(min(a, b), max(a, b))
    one, other = world.any_count(rng), world.any_count(rng)
    home.heard(home.span.low, one)
    doubt = home.heard(home.span.high, other)
    moves = [home.arrived(TTL_S, 10 * TTL_S)]
    if doubt is not None:
        moves.append(home.is_full(other) if doubt == "full" else home.is_sparse(one))
    for span in moves:
        if span is not None:
            assert 0 <= span.low <= span.high <= MAX_DEPTH
            assert set(span) & set(home.span)


def test_who_finds_neighbours_settled_above_is_in_both_until_it_is_told_who_follows_whom() -> None:
    """They came at the same time and did not see each other."""
    home = ShardMembership("any")
    home.settle(Span(2, 2), 0.0)
    assert home.is_apart(ShardCount(members=9, settled=4)) == Span(1, 2)
    assert home.is_apart(ShardCount(members=9, shallower=4)) is None  # they are moving already
    home.settle(Span(1, 2), 1.0)
    assert home.is_apart(ShardCount(members=9, settled=4)) is None
    home.settle(Span(0, 0), 2.0)
    assert home.is_apart(ShardCount(members=9, settled=4)) is None
