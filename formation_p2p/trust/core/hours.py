"""The hours of the week in which a grant is good, in UTC.

>>> str(parse_hours("mon-fri 18:00-08:00, sat-sun 00:00-24:00") & parse_hours("fri 00:00-24:00"))
'fri 00:00-08:00, fri 18:00-24:00'
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from formation_p2p.core.effects import Effect, Moment
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId
from formation_p2p.core.latest import Latest
from formation_p2p.machine.core.bounds import shown
from formation_p2p.trust.core.shares import HALF_LIFE_S
from formation_p2p.workload.core.scope import Place

# What the organisations of a network have given this node: hours of their workers, for its tasks.
#
# An organisation's share here grows with that, in proportion; the others have a tenth. It is this
# node's own experience: no other is told, and none can hand it on. A node that never had results
# treats all alike.
#
# Source: Levin, LaCurts, Spring and Bhattacharjee, "BitTorrent is an Auction", 2008 (an answer in
# proportion to what was given leaves nothing to gain by lies or by many identities).

# Of what those have that gave most, the part of one that gave nothing yet.
NEWCOMER: Final = 0.1
# Organisations that gave something, the latest; workers whose organisation is known.
MAX_ORGS: Final = 256
MAX_WORKERS: Final = 4096

# A federation, and an organisation in it.
Org = tuple[str, str]


@dataclass(frozen=True, slots=True)
class HoursReceived(Effect):
    """What an organisation's workers have given this node in all, in core-milliseconds as of then:
    to be kept for its next incarnation, in place of what was kept before."""

    org: Org
    core_ms: int
    unix_s: int


class Reciprocity:
    """`own` is where this node belongs. `kept` is what earlier incarnations were given."""

    def __init__(self, own: Callable[[], Place]) -> None:
        self._own = own
        self._workers = Latest[PeerId, Org](MAX_WORKERS)
        self._given = Latest[Org, tuple[float, float]](MAX_ORGS)  # core-seconds, as of
        self._changed: dict[Org, None] = {}

    def begin(self, kept: Iterable[tuple[Org, int, int]]) -> None:
        for org, core_ms, unix_s in kept:
            self._given[org] = core_ms / 1000, unix_s

    def met(self, worker: PeerId, place: Place) -> None:
        """A worker has shown a grant of these circles."""
        self._workers[worker] = (place.federation, place.org)

    def gave(self, worker: PeerId, core_s: float, now: Moment) -> None:
        """It has run tasks of this node for so long, and they brought results."""
        org = self._workers.get(worker)
        if org is None or not org[1]:
            return  # one of no organisation has no share that could grow
        total_s = self._given_s(org, now) + core_s
        self._given[org] = total_s, now.unix_s
        self._changed[org] = None

    def factor(self, org: Org, now: Moment) -> float:
        """What an organisation's share is multiplied with."""
        given_s = {each: self._given_s(each, now) for each in self._given}
        most_s = max(given_s.values(), default=0.0)
        if most_s <= 0:
            return 1.0
        place = self._own()
        given_s[place.federation, place.org] = most_s  # a machine is its own organisation's first
        return max(given_s.get(org, 0.0) / most_s, NEWCOMER)

    def take(self, now: Moment) -> list[HoursReceived]:
        """What has changed since the last time."""
        changed, self._changed = self._changed, {}
        cause = "results have arrived"
        return [
            HoursReceived(org, round(self._given[org][0] * 1000), int(now.unix_s), cause=cause)
            for org in changed
            if org in self._given
        ]

    def _given_s(self, org: Org, now: Moment) -> float:
        given_s, at_s = self._given.get(org, (0.0, now.unix_s))
        return given_s * math.pow(0.5, max(now.unix_s - at_s, 0.0) / HALF_LIFE_S)


_DAY_MINUTES: Final = 24 * 60
WEEK_MINUTES: Final = 7 * _DAY_MINUTES
# Two in a day. Each takes 45 bytes of a grant.
MAX_SPANS: Final = 14

_DAYS: Final = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_EPOCH_MINUTE: Final = 3 * _DAY_MINUTES  # 1970 began on a Thursday
_DAY: Final = "|".join(_DAYS)
_TIME: Final = r"([01]\d|2[0-4]):([0-5]\d)"
_SPANS: Final = re.compile(rf"({_DAY})(?:-({_DAY}))? {_TIME}-{_TIME}", re.ASCII)
_HINT: Final = "write it like mon-fri 18:00-08:00, sat-sun 00:00-24:00"


@dataclass(frozen=True, slots=True)
class Hours:
    """`spans` are minutes of the week, from Monday 00:00 UTC: each from its first to before its
    end, all within one week, in order and apart. Whatever was given is put into that form.

    Raises InvalidInput. Empty is never.
    """

    spans: tuple[tuple[int, int], ...]

    def __post_init__(self) -> None:
        merged: list[tuple[int, int]] = []
        for start, end in sorted(self.spans):
            if not 0 <= start < end <= WEEK_MINUTES:
                raise InvalidInput("hours", f"minutes {start} to {end} are no part of a week")
            if merged and start <= merged[-1][1]:
                start, end = merged[-1][0], max(merged.pop()[1], end)
            merged.append((start, end))
        if len(merged) > MAX_SPANS:
            raise InvalidInput("hours", f"there are more than {MAX_SPANS} spans; leave some out")
        object.__setattr__(self, "spans", tuple(merged))

    def __and__(self, other: Hours) -> Hours:
        """The hours of both. Raises InvalidInput where they come to too many spans."""
        common = (
            (max(start, other_start), min(end, other_end))
            for start, end in self.spans
            for other_start, other_end in other.spans
        )
        return Hours(tuple((start, end) for start, end in common if start < end))

    def include(self, unix_s: float) -> bool:
        minute = _minute_of_week(unix_s)
        return any(start <= minute < end for start, end in self.spans)

    def opening(self, unix_s: float) -> int | None:
        """When they begin next, in Unix seconds; None for never."""
        now = int(unix_s) // 60
        waits = ((start - _minute_of_week(unix_s)) % WEEK_MINUTES for start, _ in self.spans)
        wait = min(waits, default=None)
        return None if wait is None else (now + wait) * 60

    def __str__(self) -> str:
        """As `parse_hours` reads it. Days in a row with the same hours are written together."""
        days: dict[tuple[int, int], list[int]] = {}
        for day, start, end in self._pieces():
            days.setdefault((start, end), []).append(day)
        shown_spans: list[tuple[int, str]] = []
        for (start, end), on in days.items():
            shown_spans += (
                (first, _in_words(first, last, start, end)) for first, last in _runs(on)
            )
        return ", ".join(text for _, text in sorted(shown_spans)) or "never"

    def _pieces(self) -> Iterable[tuple[int, int, int]]:
        """Each span as the day on which it begins, and minutes of that. Less than a day goes on
        after midnight, past the 24th hour; what is longer is cut there."""
        spans = list(self.spans)
        wraps = len(spans) > 1 and spans[0][0] == 0 and spans[-1][1] == WEEK_MINUTES
        if wraps and spans[0][1] + spans[-1][1] - spans[-1][0] < _DAY_MINUTES:
            (_, end), (start, _) = spans[0], spans[-1]
            spans = [*spans[1:-1], (start, WEEK_MINUTES + end)]
        for start, end in spans:
            day, minute = divmod(start, _DAY_MINUTES)
            while end - start >= _DAY_MINUTES:
                yield day, minute, _DAY_MINUTES
                day, minute = day + 1, 0
                start = day * _DAY_MINUTES
            if start < end:
                yield day, minute, end - start + minute


def parse_hours(text: str) -> Hours:
    """Of `mon-fri 18:00-08:00`: hours that end before they begin go on into the next day. Raises
    InvalidInput."""
    spans: list[tuple[int, int]] = []
    for part in text.lower().split(","):
        match = _SPANS.fullmatch(" ".join(part.split()))
        if match is None:
            raise InvalidInput("hours", f"{shown(part.strip())} is not a span of hours; {_HINT}")
        first, last = _DAYS.index(match[1]), _DAYS.index(match[2] or match[1])
        start, end = int(match[3]) * 60 + int(match[4]), int(match[5]) * 60 + int(match[6])
        if start >= _DAY_MINUTES or end > _DAY_MINUTES or start == end:
            raise InvalidInput("hours", f"{shown(part.strip())} is not a span of hours; {_HINT}")
        if end < start:
            end += _DAY_MINUTES
        for day in range(first, first + (last - first) % 7 + 1):
            spans += _in_week(day % 7 * _DAY_MINUTES + start, day % 7 * _DAY_MINUTES + end)
    return Hours(tuple(spans))


def _in_week(start: int, end: int) -> tuple[tuple[int, int], ...]:
    """What goes past Sunday is of the next Monday."""
    if end <= WEEK_MINUTES:
        return ((start, end),)
    return ((start, WEEK_MINUTES), (0, end - WEEK_MINUTES))


def _minute_of_week(unix_s: float) -> int:
    return (int(unix_s) // 60 + _EPOCH_MINUTE) % WEEK_MINUTES


def opening_in_words(unix_s: int) -> str:
    """`Mon 18:00 UTC`."""
    day, minute = divmod(_minute_of_week(unix_s), _DAY_MINUTES)
    return f"{_DAYS[day].title()} {_clock(minute)} UTC"


def _runs(days: list[int]) -> Iterable[tuple[int, int]]:
    """Days in a row, as the first and the last of each row."""
    for _, row in groupby(enumerate(days), lambda each: each[1] - each[0]):
        run = [day for _, day in row]
        yield run[0], run[-1]


def _in_words(first: int, last: int, start: int, end: int) -> str:
    days = _DAYS[first] if first == last else f"{_DAYS[first]}-{_DAYS[last]}"
    return f"{days} {_clock(start)}-{_clock(end if end <= _DAY_MINUTES else end - _DAY_MINUTES)}"


def _clock(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"
