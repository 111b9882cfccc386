"""Rounds that end together, and slices that stay where they were."""

from __future__ import annotations

import heapq

import pytest

from formation_p2p.core.errors import InvalidInput
from formation_p2p.features.gangs.core.rounds import (
    GoOn,
    Paces,
    Rounds,
    Runner,
    UpdateAfter,
    batch_size,
    foresee,
)
from formation_p2p.features.gangs.core.slices import Slices


def played(
    samples: dict[int, int], batch_ms: dict[int, int], target: int, rounds: int
) -> list[int]:
    """Members that do what they are told. When the updates of each round were complete, less when
    the first of them came."""
    now_ms, waits = 0, []
    play = Rounds(samples, target, rounds, now_ms)
    while not play.is_over:
        due = [(now_ms + batch_ms[rank], rank) for rank in samples]
        heapq.heapify(due)
        more: dict[int, int] = {}
        first_ms = None
        while due:
            now_ms, rank = heapq.heappop(due)
            answer = play.progressed(rank, now_ms)
            if isinstance(answer, UpdateAfter):
                more[rank] = answer.batches
            elif rank in more:
                more[rank] -= 1
            if more.get(rank) == 0:
                first_ms = now_ms if first_ms is None else first_ms
                if play.updated(rank, now_ms):
                    waits.append(now_ms - first_ms)
            else:
                heapq.heappush(due, (now_ms + batch_ms[rank], rank))
    return waits


def test_members_of_different_speed_end_a_round_together() -> None:
    """All with as many batches each would have the fast ones wait for most of the round."""
    batch_ms = {0: 100, 1: 230, 2: 610}
    waits = played({0: 10, 1: 10, 2: 10}, batch_ms, 400, 5)
    assert len(waits) == 5
    assert max(waits) <= 2 * max(batch_ms.values())


def test_a_member_that_is_lost_takes_what_it_did_in_the_round_with_it() -> None:
    play = Rounds({0: 10, 1: 10}, 100, 2, 0)
    play.progressed(0, 100)
    play.progressed(1, 100)
    assert play.left == 80
    assert not play.lost(1, 150)
    assert (play.left, play.ranks) == (90, (0,))
    play.joined(1, 20, 150)
    play.progressed(1, 300)
    assert play.left == 70
    assert not play.updated(0, 400)
    assert play.updated(1, 500)
    assert (play.round, play.left) == (1, 100)


def test_the_update_of_a_member_that_is_lost_after_it_counts() -> None:
    play = Rounds({0: 10, 1: 10}, 20, 1, 0)
    play.progressed(1, 10)
    assert not play.updated(1, 11)
    assert not play.lost(1, 12)
    assert play.left == 10
    assert play.updated(0, 13)
    assert play.is_over
    assert not play.lost(0, 14)


def test_a_round_that_has_enough_asks_for_updates_at_once() -> None:
    play = Rounds({0: 10}, 10, 1, 0)
    assert play.progressed(0, 5) == UpdateAfter(0)
    assert play.progressed(0, 9) == GoOn()


def test_one_that_does_no_more_is_not_counted_on() -> None:
    forecast = foresee([Runner(10, 5, most=1), Runner(1, 10), Runner(10, 5, most=0)], 12)
    assert forecast.batches == (1, 2, 0)
    assert (forecast.after_ms, forecast.left, forecast.is_capped) == (20, 0, False)
    assert foresee([Runner(1, None)], 5).is_capped
    assert foresee([], 5).is_capped


@pytest.mark.parametrize(
    ("samples", "target", "rounds"), [({}, 1, 1), ({0: 0}, 1, 1), ({0: 1}, 0, 1), ({0: 1}, 1, 0)]
)
def test_what_is_no_round_is_refused(samples: dict[int, int], target: int, rounds: int) -> None:
    with pytest.raises(InvalidInput):
        Rounds(samples, target, rounds, 0)


def test_a_batch_holds_at_least_one_and_at_most_as_many_as_asked() -> None:
    assert batch_size(24, 10, 600) == 2
    assert batch_size(24_000, 10, 600) == 600
    with pytest.raises(InvalidInput, match="smaller"):
        batch_size(9, 10, 600)


def test_slices_stay_with_the_member_that_had_them() -> None:
    slices = Slices(6)
    first = {rank: [slices.take(rank) for _ in range(2)] for rank in range(3)}
    assert slices.left == 0
    again = {rank: [slices.take(rank) for _ in range(2)] for rank in (2, 0, 1)}
    assert again == first
    assert slices.rounds == 1


def test_what_a_member_had_is_done_by_others_when_it_goes() -> None:
    slices = Slices(4)
    assert [slices.take(0), slices.take(1), slices.take(0)] == [0, 1, 2]
    slices.leave(0, undone=2)
    assert sorted([slices.take(1), slices.take(1)]) == [2, 3]
    assert slices.left == 0
    # The one that it had done is of none in the next round.
    assert sorted(slices.take(1) for _ in range(4)) == [0, 1, 2, 3]
    slices.leave(5)
    assert slices.rounds == 1
    with pytest.raises(InvalidInput):
        Slices(0)


def test_a_member_with_nothing_left_takes_from_the_one_with_most() -> None:
    slices = Slices(5)
    assert [slices.take(rank) for rank in (0, 0, 0, 0, 1)] == [0, 1, 2, 3, 4]
    assert [slices.take(1), slices.take(1), slices.take(0)] == [4, 3, 0]
    assert [slices.take(0), slices.take(0)] == [1, 2]
    # What was taken over stays with who took it.
    assert [slices.take(1), slices.take(1)] == [4, 3]


def test_paces_begin_with_the_first_report_unless_they_are_begun() -> None:
    paces = Paces()
    paces.reported(0, 100)
    assert paces.mean_ms(0) is None
    paces.reported(0, 150)
    paces.reported(0, 170)
    assert paces.mean_ms(0) == 35
    assert paces.since_ms(0, 175) == 5
    paces.begin(1, 0)
    paces.reported(1, 10)
    assert paces.mean_ms(1) == 10
    assert len(paces) == 2
    paces.forget(0)
    paces.forget(2)
    assert (len(paces), paces.mean_ms(0)) == (1, None)
