"""Slices of data over the members of a gang, in rounds: who is idle takes over from who is not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from formation_p2p.api.gang_base import GangBase
from formation_p2p.core.gang.events import (
    GangEvent,
    MemberJoined,
    MemberLost,
    MemberReleased,
    MemberReplaced,
)
from formation_p2p.core.gang.slices import Slices

R = TypeVar("R")


class SliceRun(Generic[R]):
    """Calls `function(member, item)` once for each item in each round."""

    def __init__(
        self, gang: GangBase, function: Callable[..., R], items: Sequence[Any], rounds: int
    ) -> None:
        self._gang = gang
        self._function = function
        self._items = items
        self._rounds = rounds
        self._slices = Slices(len(items))
        self._doing: dict[int, tuple[int, asyncio.Task[R]]] = {}
        self._came: asyncio.Queue[GangEvent | tuple[int, asyncio.Task[R]]] = asyncio.Queue()
        self._idle: set[int] = set()

    async def run(self) -> list[list[R]]:
        """What was returned, by round, in the order of the items. Raises what a call raises."""
        with self._gang.watching(self._came.put_nowait):
            try:
                return [await self._round() for _ in range(self._rounds)]
            finally:
                for _, task in self._doing.values():
                    task.cancel()

    async def _round(self) -> list[R]:
        results: dict[int, R] = {}
        self._idle.update(member.rank for member in self._gang.members)
        first = True
        while len(results) < len(self._items):
            for rank in sorted(self._idle):
                # None is left once all were given out: the next round begins when all are done.
                if first or self._slices.left:
                    first = False
                    self._begin(rank)
            came = await self._came.get()
            if not isinstance(came, tuple):
                self._changed(came)
                continue
            rank, ended = came
            index, task = self._doing.get(rank, (0, None))
            if task is ended:  # else its member was lost meanwhile, and another does the slice
                del self._doing[rank]
                results[index] = ended.result()
                self._idle.add(rank)
        return [results[index] for index in range(len(self._items))]

    def _begin(self, rank: int) -> None:
        index = self._slices.take(rank)
        task = self._gang.call(rank, self._function, self._items[index])
        self._doing[rank] = index, task
        self._idle.discard(rank)

        task.add_done_callback(lambda ended: self._came.put_nowait((rank, ended)))

    def _changed(self, event: GangEvent) -> None:
        """Others do what a member that is gone had; one that comes works along."""
        match event:
            case MemberLost(rank=rank) | MemberReleased(rank=rank):
                index, task = self._doing.pop(rank, (None, None))
                if task is not None:
                    task.cancel()
                self._slices.leave(rank, index)
                self._idle.discard(rank)
            case MemberReplaced(member) | MemberJoined(member):
                self._idle.add(member.rank)
            case _:
                self._gang.check_lives()
