"""Turns: what is bounded at several levels at once, such as of a pair, of a member, of a node."""

from __future__ import annotations

from dataclasses import dataclass

import trio


@dataclass(frozen=True, slots=True, eq=False)
class Turns:
    """One of each of `levels` at a time, the narrowest first."""

    levels: tuple[trio.Semaphore, ...]

    async def acquire(self) -> None:
        """Waits until each has one."""
        taken: list[trio.Semaphore] = []
        try:
            for each in self.levels:
                await each.acquire()
                taken.append(each)
        except BaseException:
            for each in taken:
                each.release()
            raise

    def lacking(self) -> int | None:
        """The first level that has none now; None where each has one."""
        return next((n for n, each in enumerate(self.levels) if not each.value), None)

    def take(self) -> None:
        """One of each; none is `lacking`."""
        for each in self.levels:
            each.acquire_nowait()

    def release(self) -> None:
        for each in self.levels:
            each.release()
