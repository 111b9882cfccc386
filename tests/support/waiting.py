"""Waiting for what other threads, tasks or processes bring about: `until` for asyncio and trio,
`wait_until` for plain threads. Both fail the test once the time is up, and have it show what was
waited for (evidence.py). `run` runs a story of trio, and a test that is `in_trio` is one. None of
them counts the time in which the machine does not run this process."""

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from inspect import Signature, signature
from typing import Any, TypeVar

import trio
from sniffio import current_async_library
from trio.testing import MockClock

from tests.support.evidence import gather

# A wait looks for the first time after so long, and then ever more rarely: what comes late is not
# looked for a hundred times a second, by tests that other tests run beside.
EVERY_S = 0.005
SELDOM_S = 0.05
RARER = 1.2
# For what hangs otherwise: no test waits so long, on the busiest machine either.
HANGS_S = 300.0
# For what comes at once, and without that much later, by a timer, or never. Longer than a busy
# machine may take.
AT_ONCE_S = 10.0
# A condition that does not come about is told of before the test that waits for it is given up.
UNTIL_S = 150.0
# Where nothing has come for so long everyone waits, and a mocked clock may go on: what was written
# to a socket of this machine is there at once.
IDLE_S = 0.02
DAY_S = 86_400.0
# Of one step of this process so much is counted at most. It takes longer where the machine is busy
# or stands still, and then the peers of a test would find each other silent.
STEP_S = 0.25

T = TypeVar("T")


class RunningTime(trio.abc.Clock):
    """A clock that stands still while the machine does not run this process."""

    def __init__(self) -> None:
        self._now_s, self._read_s = 0.0, time.monotonic()

    def start_clock(self) -> None:
        self._read_s = time.monotonic()

    def current_time(self) -> float:
        now_s = time.monotonic()
        self._now_s += min(now_s - self._read_s, STEP_S)
        self._read_s = now_s
        return self._now_s

    def deadline_to_sleep_time(self, deadline: float) -> float:
        return min(deadline - self.current_time(), STEP_S)

    def jump(self, seconds: float) -> None:
        self._now_s += seconds


def run(
    story: Callable[[], Awaitable[T]],
    within_s: float = HANGS_S,
    clock: trio.abc.Clock | None = None,
) -> T:
    """A story, under trio and a deadline. All its timers count the time of this process, those of
    the library as well, unless there is another clock."""

    async def bounded() -> T:
        with trio.fail_after(within_s):
            return await story()

    return trio.run(bounded, clock=clock or RunningTime())


def told_by(
    tell: Callable[..., object],
) -> Callable[[Callable[..., Awaitable[None]]], Callable[..., None]]:
    """Makes a test of a story that `tell` runs. What `tell` hands over are the positional-only
    arguments of the story. Pytest fills in the others, and what `tell` needs beside a story."""
    of_tell = list(signature(tell).parameters.values())[1:]
    needed = [p for p in of_tell if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]

    def of(story: Callable[..., Awaitable[None]]) -> Callable[..., None]:
        of_story = signature(story).parameters.values()
        own = {p.name: p for p in of_story if p.kind is not p.POSITIONAL_ONLY}

        asked = Signature([*own.values(), *(p for p in needed if p.name not in own)])

        @wraps(story)
        def test(*args: Any, **kwargs: Any) -> None:
            given = asked.bind(*args, **kwargs).arguments
            filled = partial(story, **{name: given[name] for name in own})
            tell(filled, **{p.name: given[p.name] for p in needed})

        test.__signature__ = asked  # type: ignore[attr-defined]
        return test

    return of


def _run_skipping(story: Callable[[], Awaitable[None]]) -> None:
    run(story, DAY_S, MockClock(autojump_threshold=IDLE_S))


in_trio = told_by(run)
# Time passes as soon as everyone waits for it.
in_mocked_time = told_by(_run_skipping)


async def until(
    condition: Callable[[], Awaitable[object] | object],
    within_s: float = UNTIL_S,
    every_s: float = EVERY_S,
) -> None:
    sleep = trio.sleep if current_async_library() == "trio" else asyncio.sleep
    clock = RunningTime()
    while True:
        holds = condition()
        if inspect.isawaitable(holds):
            holds = await holds
        if holds:
            return
        _check(clock, within_s)
        await sleep(every_s)
        every_s = rarer(every_s)


def wait_until(
    condition: Callable[[], object],
    within_s: float = UNTIL_S,
    every_s: float = EVERY_S,
    otherwise: Callable[[], str] = str,
) -> None:
    """`otherwise` is what the failure tells besides, such as the output of a program."""
    clock = RunningTime()
    while not condition():
        _check(clock, within_s, otherwise)
        time.sleep(every_s)
        every_s = rarer(every_s)


def rarer(every_s: float) -> float:
    return max(every_s, min(RARER * every_s, SELDOM_S))


def _check(clock: RunningTime, within_s: float, otherwise: Callable[[], str] = str) -> None:
    if clock.current_time() < within_s:
        return
    why = f"not within {within_s:g} s {otherwise()}".rstrip()
    gather(why)
    raise AssertionError(why)
