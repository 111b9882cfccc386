"""Waiting for what other threads, tasks or processes bring about: `until` for asyncio and trio,
`wait_until` for plain threads. Both fail the test once the time is up."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

import trio
from sniffio import current_async_library

EVERY_S = 0.005
# For what hangs otherwise: no test waits so long, on the busiest machine either.
HANGS_S = 120.0
# For what comes at once, and without that much later, by a timer, or never. Longer than a busy
# machine may take.
AT_ONCE_S = 10.0
# A condition that does not come about is told of before the test that waits for it is given up.
UNTIL_S = 60.0


async def until(
    condition: Callable[[], Awaitable[object] | object],
    within_s: float = UNTIL_S,
    every_s: float = EVERY_S,
) -> None:
    sleep = trio.sleep if current_async_library() == "trio" else asyncio.sleep
    deadline_s = time.monotonic() + within_s
    while True:
        holds = condition()
        if inspect.isawaitable(holds):
            holds = await holds
        if holds:
            return
        _check(deadline_s, within_s)
        await sleep(every_s)


def wait_until(
    condition: Callable[[], object],
    within_s: float = UNTIL_S,
    every_s: float = EVERY_S,
    otherwise: Callable[[], str] = str,
) -> None:
    """`otherwise` is what the failure tells besides, such as the output of a program."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        _check(deadline_s, within_s, otherwise)
        time.sleep(every_s)


def _check(deadline_s: float, within_s: float, otherwise: Callable[[], str] = str) -> None:
    assert time.monotonic() < deadline_s, f"not within {within_s:g} s {otherwise()}".rstrip()
