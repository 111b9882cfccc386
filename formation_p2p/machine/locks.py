"""Locks of the trio thread."""

from __future__ import annotations

from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

import trio

Key = TypeVar("Key", bound=Hashable)


async def acquired(lock: trio.Lock) -> None:
    """It is this task's. Where nobody has it, which is all but always so, that takes no turn of the
    loop, as `lock.acquire` does."""
    if lock.locked():
        await lock.acquire()
    else:
        lock.acquire_nowait()


class KeyedLocks(Generic[Key]):
    """A lock for each key, which is there as long as a task has it or waits for it."""

    def __init__(self) -> None:
        self._locks: dict[Key, trio.Lock] = {}

    def is_wanted(self, key: Key) -> bool:
        """Whether a task waits for it."""
        lock = self._locks.get(key)
        return lock is not None and lock.statistics().tasks_waiting > 0

    @asynccontextmanager
    async def of(self, key: Key) -> AsyncIterator[None]:
        """Have the lock of a key, in the order in which tasks ask for it."""
        lock = self._locks.setdefault(key, trio.Lock())
        try:
            await acquired(lock)
            try:
                yield
            finally:
                lock.release()
        finally:
            if not lock.locked():  # else its next owner, or who waits for it, needs it
                self._locks.pop(key, None)
