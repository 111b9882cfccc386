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


async def until(
    condition: Callable[[], Awaitable[object] | object],
    within_s: float = 20.0,
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
    within_s: float = 20.0,
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
