"""Rounds that end together, and slices that stay where they were."""

import heapq
from typing import Any

import pytest

from formation_p2p.core.errors import InvalidInput
from formation_p2p.features.gangs.core.part import MemberCapacity, Part
from formation_p2p.features.gangs.core.partition import partition
from formation_p2p.features.gangs.core.recovery import (
    GiveUp,
    Loss,
    Recompute,
    Recovery,
    Replace,
    TakeOver,
    parse_recovery,
    remedy_of,
)
from formation_p2p.features.gangs.core.resizing import (
    Complete,
    GraceExpired,
    Lacking,
    Phase,
    Reconciler,
    ResizeFailure,
    Resizing,
)
from formation_p2p.features.gangs.core.rounds import (
    GoOn,
    Paces,
    Rounds,
    Runner,
    Slices,
    UpdateAfter,
    batch_size,
    foresee,
)
from formation_p2p.features.gangs.core.usage import Window
from formation_p2p.workload.core.scaling import Autoscaler, ScalingPolicy


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
    # Its update counts where it is lost after that.
    play = Rounds({0: 10, 1: 10}, 20, 1, 0)
    assert play.progressed(1, 10) != UpdateAfter(0)
    assert not play.updated(1, 11)
    assert not play.lost(1, 12)
    assert play.left == 10
    assert play.progressed(0, 12) == UpdateAfter(0), "a round that has enough asks at once"
    assert play.progressed(0, 12) == GoOn()
    assert play.updated(0, 13)
    assert play.is_over
    assert not play.lost(0, 14)


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


# -- sizes that follow use, members that are too few, windows, recovery --------------------------


def test_a_size_follows_use_within_its_bounds_and_does_not_swing() -> None:
    """Three at 60 % would be fewer at 70 %, of which each would then use 90."""
    scaler = Autoscaler(ScalingPolicy(most=10))
    assert [scaler.decide(3, used, 0.0) for used in (60.0, 54.0)] == [None, 2]
    bounded = Autoscaler(ScalingPolicy(least=2, most=4))
    sizes = [bounded.decide(size, used, 0.0) for size, used in ((1, 65.0), (6, 90.0), (6, 60.0))]
    assert sizes == [2, 4, 4]
    # Growing again may come sooner than shrinking.
    scaler = Autoscaler(ScalingPolicy(most=8, in_cooldown_s=300, out_cooldown_s=120))
    scaler.changed(0.0)
    assert [scaler.decide(4, used, 200.0) for used in (10.0, 100.0)] == [None, 6]
    assert scaler.decide(4, 10.0, 300.0) == 1


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"in_cooldown_s": -1.0}, "cooldown"),
        ({"out_cooldown_s": float("nan")}, "cooldown"),
        ({"least": 5, "most": 4}, "less than the least"),
    ],
)
def test_a_policy_is_checked(wrong: dict[str, Any], problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        ScalingPolicy(**wrong)


def test_a_gang_goes_on_with_too_few_for_a_while() -> None:
    kept = Reconciler(2, 3, 10.0)
    assert kept.reconcile(3, 0.0) == Complete()
    assert kept.reconcile(1, 1.0) == Lacking(2)
    assert kept.reconcile(2, 10.9) == Lacking(1)
    assert kept.reconcile(1, 20.0) == Lacking(2)
    assert kept.reconcile(1, 29.9) == Lacking(2)
    ended = kept.reconcile(1, 30.0)
    assert ended == GraceExpired(1, 2, 10.0)
    assert str(ended).startswith("it had 1 of at least 2 members for 10 s; ask for fewer")
    with pytest.raises(InvalidInput, match="target"):
        Reconciler(3, 2, 1.0)
    with pytest.raises(InvalidInput, match="grace_s"):
        Reconciler(1, 2, -1.0)


def test_a_change_that_is_cancelled_is_rolled_back_and_the_next_may_begin() -> None:
    resizing = Resizing()
    change = resizing.begin(2, 4, 0.0)
    change.joined(2)
    undone = change.cancel()
    assert undone is not None
    assert (undone.size, undone.ranks, undone.failure) == (2, (2,), ResizeFailure.CANCELLED)
    assert change.phase is Phase.CANCELLED
    assert change.cancel() is None
    assert change.check(ScalingPolicy(), 1e6) is None
    assert change.advance(1e6) is Phase.CANCELLED
    assert resizing.begin(2, 4, 1.0).phase is Phase.REQUESTED


def test_a_window_is_taken_when_it_is_full_or_its_time_has_come() -> None:
    window: Window[str] = Window(3, 0.2)
    assert window.due_s == float("inf")
    assert window.add("a", 1.0) == []
    assert window.due_s == 1.2
    assert window.add("b", 1.3) == ["a", "b"]
    assert window.due(9.0) == []
    assert [window.add(each, 2.0) for each in "cde"] == [[], [], ["c", "d", "e"]]


MEMBERS = tuple(MemberCapacity(rank, 100, 100) for rank in range(3))
PARTS = partition([Part(f"p{n}", 10, 10) for n in range(12)], MEMBERS)


def loss(living: tuple[MemberCapacity, ...] = MEMBERS[:2]) -> Loss:
    return Loss(2, PARTS, living, {"p1": 7})


def test_a_member_is_replaced_from_its_checkpoint_or_begins_anew_or_all_ends() -> None:
    assert parse_recovery("checkpoint").remedy(loss()) == Replace(2, {"p1": 7})
    assert parse_recovery("recompute").remedy(loss()) == Recompute(2)
    assert parse_recovery("end").remedy(loss()) == GiveUp("the member of rank 2 is lost")


def test_those_that_are_left_take_over_while_they_have_room() -> None:
    recovery = parse_recovery("repartition")
    remedy = remedy_of(recovery, loss())
    assert isinstance(remedy, TakeOver)
    assert {move.part for move in remedy.moves} == set(PARTS.of(2))
    assert remedy.partition.of(2) == ()
    assert remedy.checkpoints == {"p1": 7}
    assert recovery.remedy(loss(())) == Replace(2, {"p1": 7})
    full = tuple(MemberCapacity(rank, 100, 40) for rank in range(2))
    assert recovery.remedy(loss(full)) == Replace(2, {"p1": 7})


def test_ones_own_recovery_is_taken_as_it_is_and_what_is_none_is_refused() -> None:
    class Always:
        def remedy(self, loss: Loss) -> GiveUp:
            return GiveUp("always")

    own: Recovery = Always()
    assert parse_recovery(own) is own
    assert remedy_of(own, loss()) == GiveUp("always")
    with pytest.raises(InvalidInput, match="one of checkpoint"):
        parse_recovery("pray")
    installed: dict[str, Any] = {"own": Always, "none": object}
    assert isinstance(parse_recovery("own", installed), Always)
    with pytest.raises(InvalidInput, match="no method remedy"):
        parse_recovery("none", installed)


@pytest.mark.parametrize(
    "said",
    ["replace it", None, TakeOver(PARTS, ()), TakeOver(partition([Part("p1")], MEMBERS[:2]), ())],
)
def test_a_remedy_of_ones_own_is_checked(said: object) -> None:
    class Own:
        def remedy(self, loss: Loss) -> Any:
            return said

    with pytest.raises(InvalidInput, match="recovery"):
        remedy_of(Own(), loss())


def test_a_change_goes_through_its_phases_one_at_a_time() -> None:
    resizing = Resizing()
    change = resizing.begin(1, 3, 0.0)
    with pytest.raises(InvalidInput, match="under way"):
        resizing.begin(1, 2, 0.0)
    seen = [change.phase]
    while not change.is_over:
        seen.append(change.advance(0.0))
    assert seen == [*Phase][:9]
    assert resizing.begin(3, 1, 1.0).phase is Phase.REQUESTED


def test_a_phase_that_takes_too_long_or_a_target_that_is_forbidden_fails_the_change() -> None:
    change = Resizing().begin(1, 3, 0.0)
    for _ in range(3):
        change.advance(10.0)
    assert change.check(ScalingPolicy(), 309.9) is None
    undone = change.check(ScalingPolicy(), 310.0)
    assert undone is not None
    assert (undone.failure, undone.reason) == (ResizeFailure.TIMEOUT, "Timeout after 300 seconds")
    again = Resizing().begin(1, 3, 0.0)
    assert again.check(ScalingPolicy(least=3, most=3), 0.0) is None
    undone = again.check(ScalingPolicy(most=2), 0.0)
    assert undone is not None
    assert undone.reason == "1 to 2 members are allowed by now, and not 3"
    assert (undone.failure, again.phase) == (ResizeFailure.UNHEALTHY, Phase.FAILED)
