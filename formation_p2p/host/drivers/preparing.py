"""What takes long before an execution can run: its owner may end it meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import trio

from formation_p2p.host.drivers.driver import Turns

T = TypeVar("T")


async def unless_killed(turns: Turns, prepare: Callable[[], Awaitable[T]]) -> T | None:
    """What `prepare` returns or raises; None where the call that it is for is killed meanwhile."""
    done, results, problems = trio.Event(), list[T](), list[Exception]()

    async def run() -> None:
        try:
            results.append(await prepare())
        except Exception as problem:  # noqa: BLE001 - raised below, for a nursery puts it in a group
            problems.append(problem)
        finally:
            done.set()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            while not done.is_set() and not turns.is_killed:
                with trio.CancelScope() as scope:
                    turns.watch(scope)
                    await done.wait()
            nursery.cancel_scope.cancel()
    finally:
        turns.watch(None)
    if problems:
        raise problems[0]
    return results[0] if results else None
