"""Sizes that follow use, one change at a time; members that are too few; windows; recovery."""

from __future__ import annotations

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
from formation_p2p.features.gangs.core.resizing import Phase, ResizeFailure, Resizing
from formation_p2p.features.gangs.core.scaling import (
    Autoscaler,
    Complete,
    GraceExpired,
    Lacking,
    Reconciler,
    ScalingPolicy,
)
from formation_p2p.features.gangs.core.window import Window


def test_a_size_does_not_swing_between_two() -> None:
    """Three at 60 % would be fewer at 70 %, of which each would then use 90."""
    scaler = Autoscaler(ScalingPolicy(most=10))
    assert scaler.decide(3, 60.0, 0.0) is None
    assert scaler.decide(3, 54.0, 0.0) == 2


def test_a_size_out_of_bounds_comes_back_into_them() -> None:
    scaler = Autoscaler(ScalingPolicy(least=2, most=4))
    assert scaler.decide(1, 65.0, 0.0) == 2
    assert scaler.decide(6, 90.0, 0.0) == 4
    assert scaler.decide(6, 60.0, 0.0) == 4


def test_growing_again_may_come_sooner_than_shrinking() -> None:
    scaler = Autoscaler(ScalingPolicy(most=8, in_cooldown_s=300, out_cooldown_s=120))
    scaler.changed(0.0)
    assert scaler.decide(4, 10.0, 200.0) is None
    assert scaler.decide(4, 100.0, 200.0) == 6
    assert scaler.decide(4, 10.0, 300.0) == 1


def test_cooldowns_are_checked() -> None:
    with pytest.raises(InvalidInput, match="cooldown"):
        ScalingPolicy(in_cooldown_s=-1.0)
    with pytest.raises(InvalidInput, match="cooldown"):
        ScalingPolicy(out_cooldown_s=float("nan"))


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


def test_bounds_that_cross_are_refused() -> None:
    with pytest.raises(InvalidInput, match="less than the least"):
        ScalingPolicy(least=5, most=4)
