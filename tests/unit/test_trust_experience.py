"""Experience with one peer: what is remembered of it, and how it fades."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.trust.experience import (
    HALF_LIFE_S,
    LOST_TOGETHER_S,
    MEMORY,
    WRONG_WEIGHT,
    Account,
    Age,
    Experience,
    age_of,
)

# The beginning of a half-life, in 2026.
MONDAY = 2922 * HALF_LIFE_S
histories = st.lists(
    st.tuples(st.sampled_from(Experience), st.integers(LOST_TOGETHER_S, HALF_LIFE_S)), max_size=30
)


def account_of(*experiences: Experience, at_s: float = MONDAY) -> Account:
    account = Account()
    for each in experiences:
        account.add(each, age_of(at_s), at_s)
    return account


def lived(history: Sequence[tuple[Experience, int]]) -> tuple[Account, float]:
    """After each experience so many seconds pass."""
    account, at_s = Account(), float(MONDAY)
    for experience, pause_s in history:
        account.add(experience, age_of(at_s), at_s)
        at_s += pause_s
    return account, at_s


def test_each_kind_is_counted_and_weighs_what_it_should() -> None:
    account = account_of(*[Experience.SUCCESS] * 3, Experience.ERROR, Experience.LOST)
    assert (account.successes, account.errors, account.lost, account.wrong) == (3, 1, 1, 0)
    assert account.aged(age_of(MONDAY)) == (3 * 1024, 2 * 1024)
    account.add(Experience.WRONG, age_of(MONDAY), MONDAY)
    assert account.wrong == 1
    assert account.aged(age_of(MONDAY)) == (3 * 1024, (2 + WRONG_WEIGHT) * 1024)


def test_a_machine_that_goes_away_with_several_leases_is_lost_once() -> None:
    account = account_of(Experience.LOST, Experience.LOST, Experience.LOST)
    assert account.lost == 3
    assert account.aged(age_of(MONDAY)) == (0, 1024)
    later = MONDAY + LOST_TOGETHER_S
    account.add(Experience.LOST, age_of(later), later)
    assert account.aged(age_of(later)) == (0, 2 * 1024)


@given(st.integers(0, 10**6), st.integers(1, 10**6))
def test_one_half_life_later_everything_counts_exactly_half(then_s: int, weeks: int) -> None:
    then, later = age_of(then_s), age_of(then_s + weeks * HALF_LIFE_S)
    assert later == Age(then.epoch + weeks, then.unit)
    account = account_of(*[Experience.SUCCESS] * 8, Experience.ERROR, at_s=then_s)
    good, bad = account.aged(then)
    assert account.aged(later) == (good >> weeks, bad >> weeks)


@given(st.integers(0, 2 * HALF_LIFE_S), st.integers(0, 2 * HALF_LIFE_S))
def test_what_is_later_counts_more_and_at_most_twice_as_much_within_a_half_life(
    one_s: int, other_s: int
) -> None:
    early, late = (age_of(MONDAY + each) for each in sorted((one_s, other_s)))
    assert 1024 <= early.unit < 2048
    assert early.unit << early.epoch <= late.unit << late.epoch


@given(st.permutations([Experience.SUCCESS] * 5 + [Experience.ERROR] * 3 + [Experience.WRONG]))
def test_below_what_is_remembered_the_order_does_not_matter(order: list[Experience]) -> None:
    assert account_of(*order).aged(age_of(MONDAY)) == (5 * 1024, (3 + WRONG_WEIGHT) * 1024)


@given(histories)
def test_no_more_is_remembered_than_there_is_room_for(
    history: list[tuple[Experience, int]],
) -> None:
    account, at_s = lived(history)
    age = age_of(at_s)
    good, bad = account.aged(age)
    assert good >= 0
    assert bad >= 0
    assert good + bad <= MEMORY * age.unit


@given(histories, st.sampled_from(Experience))
def test_a_success_raises_the_share_of_good_and_all_else_lowers_it(
    history: list[tuple[Experience, int]], experience: Experience
) -> None:
    account, at_s = lived(history)
    age = age_of(at_s)
    good, bad = account.aged(age)
    account.add(experience, age, at_s)
    more_good, more_bad = account.aged(age)
    if experience is Experience.SUCCESS:
        assert more_good * (good + bad) >= good * (more_good + more_bad)
    else:
        assert more_good * (good + bad) <= good * (more_good + more_bad)


def test_a_clock_that_is_put_back_neither_ages_nor_revives_anything() -> None:
    account = account_of(*[Experience.SUCCESS] * 8)
    earlier = age_of(MONDAY - 5 * HALF_LIFE_S)
    assert account.aged(earlier) == (8 * 1024, 0)
    account.add(Experience.SUCCESS, earlier, MONDAY - 5 * HALF_LIFE_S)
    assert account.aged(earlier) == (9 * 1024, 0)


@pytest.mark.parametrize("experience", Experience)
def test_when_a_peer_was_last_met_is_known_of_every_kind(experience: Experience) -> None:
    assert account_of(experience, at_s=MONDAY + 7.5).seen_unix_s == MONDAY + 7
