"""Experience with one peer: what is remembered of it, and how it fades."""

from collections.abc import Sequence
from dataclasses import fields

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from formation_p2p.trust.core.experience import (
    APART,
    HALF_LIFE_S,
    LOST_TOGETHER_S,
    MEMORY,
    WRONG_WEIGHT,
    Age,
    Experience,
    PeerHistory,
    age_of,
)

# The beginning of a half-life, in 2026.
MONDAY = 2922 * HALF_LIFE_S
histories = st.lists(
    st.tuples(st.sampled_from(Experience), st.integers(LOST_TOGETHER_S, HALF_LIFE_S)), max_size=30
)


def account_of(*experiences: Experience, at_s: float = MONDAY) -> PeerHistory:
    account = PeerHistory()
    for each in experiences:
        account.add(each, age_of(at_s), at_s)
    return account


def lived(history: Sequence[tuple[Experience, int]]) -> tuple[PeerHistory, float]:
    """After each experience so many seconds pass."""
    account, at_s = PeerHistory(), float(MONDAY)
    for experience, pause_s in history:
        account.add(experience, age_of(at_s), at_s)
        at_s += pause_s
    return account, at_s


def test_what_is_older_than_dates_may_be_apart_still_counts() -> None:
    later_s = MONDAY + (APART + 1) * HALF_LIFE_S
    account = account_of(Experience.SUCCESS)
    account.add(Experience.SUCCESS, age_of(later_s), later_s)
    unit = age_of(later_s).unit
    assert account.aged(age_of(later_s)) == (unit + (unit >> (APART + 1)), 0)


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


def test_a_machine_that_goes_away_again_and_again_is_lost_as_often() -> None:
    account = PeerHistory()
    for n in range(100):
        now_s = MONDAY + 50 * n
        account.add(Experience.LOST, age_of(now_s), now_s)
    good, bad = account.aged(age_of(now_s))
    assert good == 0
    assert bad // age_of(now_s).unit in (49, 50)  # one in 60 s, and that is every second one


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
    if experience in (Experience.SUCCESS, Experience.AGREED):
        assert more_good * (good + bad) >= good * (more_good + more_bad)
    else:
        assert more_good * (good + bad) <= good * (more_good + more_bad)


# -- clocks that are wrong ------------------------------------------------------------------------

YEAR_S = 365 * 24 * 3600
# More than anybody takes for a pause.
FAR_S = (APART + 2) * HALF_LIFE_S
far_off_s = st.integers(2 * FAR_S, 60 * YEAR_S) | st.integers(-MONDAY, -2 * FAR_S)


def note(account: PeerHistory, experience: Experience, at_s: float) -> None:
    account.add(experience, age_of(at_s), at_s)


@given(
    histories,
    st.lists(st.tuples(far_off_s, st.sampled_from(Experience)), min_size=1, max_size=5),
    st.integers(LOST_TOGETHER_S, APART * HALF_LIFE_S),
)
def test_what_comes_while_the_clock_is_wrong_counts_as_if_it_had_been_right(
    history: list[tuple[Experience, int]], wrongly_dated: list[tuple[int, Experience]], pause_s: int
) -> None:
    """Where it is right once before it is wrong in another way."""
    history = [(Experience.SUCCESS, LOST_TOGETHER_S), *history]
    (wandering, at_s), (right, _) = lived(history), lived(history)
    at_s += pause_s
    # What is right again dates from within a month of what was before: more is no longer believed.
    again = age_of(at_s + LOST_TOGETHER_S)
    assume(again.epoch - right.seen_unix_s // HALF_LIFE_S <= APART)
    for by_s, experience in wrongly_dated:
        note(wandering, experience, max(at_s + by_s, 0))
        note(right, experience, at_s)
        at_s += LOST_TOGETHER_S
        for account in (wandering, right):
            note(account, Experience.SUCCESS, at_s)
        at_s += LOST_TOGETHER_S
    age = age_of(at_s)
    counts = zip(wandering.aged(age), right.aged(age), strict=True)
    assert all(abs(one - other) <= age.unit / 10 for one, other in counts)
    assert wandering.seen_unix_s == right.seen_unix_s


def test_a_clock_that_is_ahead_by_no_more_than_a_month_is_believed() -> None:
    for weeks, left in ((APART, MEMORY >> APART), (APART + 1, MEMORY)):
        account = account_of(*[Experience.WRONG] * 2)
        note(account, Experience.SUCCESS, MONDAY + weeks * HALF_LIFE_S)
        note(account, Experience.SUCCESS, MONDAY)
        _, bad = account.aged(age_of(MONDAY))
        assert left - 2 <= bad / 1024 <= left


def test_a_clock_that_is_set_right_by_less_than_all_ages_nothing_twice() -> None:
    sunday = MONDAY + HALF_LIFE_S
    account = account_of(*[Experience.ERROR] * 8, at_s=sunday)
    note(account, Experience.ERROR, MONDAY + 10 * YEAR_S)
    note(account, Experience.ERROR, MONDAY)
    assert account.seen_unix_s == sunday
    assert account.aged(age_of(sunday)) == (0, 10 * 1024)


@given(st.integers(2 * FAR_S, 60 * YEAR_S), st.integers(0, APART))
def test_a_clock_that_was_ahead_from_the_first_is_set_right_and_all_fades_from_then(
    ahead_s: int, weeks: int
) -> None:
    account = account_of(*[Experience.ERROR] * 10, at_s=MONDAY + ahead_s)
    note(account, Experience.SUCCESS, MONDAY)
    good, bad = account.aged(age_of(MONDAY + weeks * HALF_LIFE_S))
    assert good == 1024 >> weeks
    assert 0 <= (10 * 1024 >> weeks) - bad <= 10


def test_a_clock_that_is_put_back_neither_ages_nor_revives_anything() -> None:
    account = account_of(*[Experience.SUCCESS] * 8)
    earlier = age_of(MONDAY - 5 * HALF_LIFE_S)
    assert account.aged(earlier) == (8 * 1024, 0)
    note(account, Experience.SUCCESS, MONDAY - 5 * HALF_LIFE_S)
    assert account.aged(earlier) == (9 * 1024, 0)


def test_a_clock_that_is_put_back_a_little_counts_as_much_as_before() -> None:
    """From the end of a half-life, when everything counts twice, to its beginning."""
    sunday = MONDAY + HALF_LIFE_S - 1
    account = account_of(*[Experience.SUCCESS] * MEMORY, at_s=sunday)
    assert account.aged(age_of(MONDAY)) == (MEMORY * 1024, 0)
    note(account, Experience.ERROR, MONDAY)
    good, bad = account.aged(age_of(sunday))
    assert (good + bad, bad // age_of(sunday).unit) == (MEMORY * age_of(sunday).unit, 0)
    assert account.seen_unix_s == sunday


def test_before_1970_it_is_1970() -> None:
    account = account_of(Experience.SUCCESS, Experience.WRONG, at_s=-5)
    assert account == account_of(Experience.SUCCESS, Experience.WRONG, at_s=0)
    assert account.aged(age_of(-5)) == (1024, WRONG_WEIGHT * 1024)
    assert min(getattr(account, field.name) for field in fields(account)) == 0


@given(
    st.lists(st.tuples(st.sampled_from(Experience), st.integers(0, 20 * HALF_LIFE_S)), max_size=30)
)
def test_with_long_pauses_everything_counts_as_if_there_were_one_part_alone(
    history: list[tuple[Experience, int]],
) -> None:
    """Or nearly: what is before a pause is displaced later, when little is left of it."""
    weights = dict.fromkeys((Experience.SUCCESS, Experience.AGREED), (1, 0))
    weights[Experience.WRONG] = 0, WRONG_WEIGHT
    good = bad = last = 0
    account, at_s = PeerHistory(), MONDAY
    for experience, pause_s in history:
        note(account, experience, at_s)
        age = age_of(at_s)
        more = [each * age.unit for each in weights.get(experience, (0, 1))]
        good, bad = (good >> age.epoch - last) + more[0], (bad >> age.epoch - last) + more[1]
        most = max(good + bad, MEMORY * age.unit)
        good, bad = (each * MEMORY * age.unit // most for each in (good, bad))
        last = age.epoch
        at_s += pause_s + LOST_TOGETHER_S
        for now, counts in ((age, (good, bad)), (age_of(at_s), ())):
            found = account.aged(now)
            expected = counts or (good >> now.epoch - last, bad >> now.epoch - last)
            apart = (abs(x - y) for x, y in zip(found, expected, strict=True))
            assert max(apart) <= now.unit * MEMORY >> APART


@pytest.mark.parametrize("experience", Experience)
def test_when_a_peer_was_last_met_is_known_of_every_kind(experience: Experience) -> None:
    assert account_of(experience, at_s=MONDAY + 7.5).seen_unix_s == MONDAY + 7
