"""The hours of the week in which a grant is good."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.errors import InvalidInput
from formation_p2p.trust.core.hours import (
    MAX_SPANS,
    WEEK_MINUTES,
    Hours,
    opening_in_words,
    parse_hours,
)

MONDAY = datetime(2026, 11, 23, tzinfo=UTC)

minutes = st.integers(0, WEEK_MINUTES) | st.integers(0, 14).map(lambda half: half * 720)
spans = st.tuples(minutes, minutes).filter(lambda span: span[0] < span[1])
weeks = st.lists(spans, max_size=5).map(lambda some: Hours(tuple(some)))


def at(day: int, hour: int, minute: int = 0, second: float = 0) -> float:
    """In the week of MONDAY, which is day 0."""
    return (MONDAY + timedelta(days=day, hours=hour, minutes=minute, seconds=second)).timestamp()


def test_nights_of_weekdays_go_on_until_the_next_morning() -> None:
    nights = parse_hours("mon-fri 18:00-08:00")
    assert not nights.include(at(0, 0))  # the night from Sunday is none of them
    assert not nights.include(at(0, 17, 59, 59.9))
    assert nights.include(at(0, 18))
    assert nights.include(at(1, 7, 59, 59.9))
    assert not nights.include(at(1, 8))
    assert nights.include(at(5, 3))  # Friday's, on Saturday
    assert not nights.include(at(5, 18))


def test_it_says_when_they_begin_next() -> None:
    nights = parse_hours("mon-fri 18:00-08:00")
    assert nights.opening(at(1, 12, 30, 5)) == at(1, 18)
    assert nights.opening(at(5, 12)) == at(7, 18)
    assert opening_in_words(int(at(7, 18))) == "Mon 18:00 UTC"
    assert Hours(()).opening(at(0, 0)) is None
    assert not Hours(()).include(at(0, 0))
    assert str(Hours(())) == "never"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("mon-fri 18:00-08:00", "mon-fri 18:00-08:00"),
        ("MON 09:00-17:00,fri   09:00-17:00", "mon 09:00-17:00, fri 09:00-17:00"),
        ("sun 22:00-06:00", "sun 22:00-06:00"),
        ("fri-mon 09:00-17:00", "mon 09:00-17:00, fri-sun 09:00-17:00"),
        ("mon-sun 00:00-24:00", "mon-sun 00:00-24:00"),
        ("mon 00:00-12:00, mon 12:00-24:00, tue 00:00-01:00", "mon 00:00-24:00, tue 00:00-01:00"),
        ("sun 12:00-24:00, mon 00:00-12:00", "mon 00:00-12:00, sun 12:00-24:00"),  # 24 h, whole
        ("sun 12:00-24:00, mon 00:00-11:59", "sun 12:00-11:59"),
        ("sat 12:00-24:00, sun 00:00-12:00", "sat 12:00-24:00, sun 00:00-12:00"),
    ],
)
def test_hours_are_written_as_people_do(text: str, shown: str) -> None:
    assert str(parse_hours(text)) == shown
    assert parse_hours(shown) == parse_hours(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "mon",
        "mon 8-10",
        "foo 08:00-10:00",
        "mon 24:00-10:00",
        "mon 08:00-24:30",
        "mon 25:00-26:00",
        "mon 08:00-08:00",
        "mon 08:00-10:00,",
        "mon \N{ARABIC-INDIC DIGIT ZERO}0:00-10:00",
    ],
)
def test_what_are_no_hours_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidInput, match="write it like mon-fri 18:00-08:00"):
        parse_hours(text)


@pytest.mark.parametrize("span", [(-1, 5), (5, 5), (6, 5), (0, WEEK_MINUTES + 1)])
def test_spans_lie_within_a_week(span: tuple[int, int]) -> None:
    with pytest.raises(InvalidInput, match="no part of a week"):
        Hours((span,))


def test_there_are_few_spans() -> None:
    many = tuple((start, start + 1) for start in range(0, 2 * (MAX_SPANS + 1), 2))
    assert len(Hours(many[1:]).spans) == MAX_SPANS
    with pytest.raises(InvalidInput, match="more than 14 spans"):
        Hours(many)


@given(weeks.filter(lambda week: week.spans != ()))
def test_hours_survive_as_text(week: Hours) -> None:
    assert parse_hours(str(week)) == week


@given(weeks, weeks, st.integers(0, WEEK_MINUTES - 1))
def test_the_hours_of_both_are_those_that_each_has(one: Hours, other: Hours, minute: int) -> None:
    unix_s = MONDAY.timestamp() + minute * 60
    assert (one & other).include(unix_s) == (one.include(unix_s) and other.include(unix_s))


@given(weeks, st.floats(0, 10**10))
def test_they_are_shut_until_they_begin(week: Hours, unix_s: float) -> None:
    opening = week.opening(unix_s)
    if opening is None or week.include(unix_s):
        return
    assert week.include(opening)
    assert not week.include(opening - 1)
    assert unix_s < opening < unix_s + WEEK_MINUTES * 60
