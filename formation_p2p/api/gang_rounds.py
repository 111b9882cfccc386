"""Rounds of data-parallel work on a gang: each member does batches of its own size, and all end a
round at about the same time (core/gang/rounds.py)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from formation_p2p.api.gang_base import GangBase
from formation_p2p.core.gang.events import GangEvent, MemberLost, MemberReleased
from formation_p2p.core.gang.rounds import Rounds, UpdateAfter
from formation_p2p.host.clock import moment

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class GangRound(Generic[R]):
    """`results` are what the batches of each rank returned, in their order; `samples` how many were
    done in all."""

    number: int
    results: Mapping[int, tuple[R, ...]]
    samples: int


class GangRounds(Generic[R]):
    """Iterate over it for its rounds. What `shared` is set to, batches of the next one are given.
    Batches are `function(member, shared, samples)`."""

    def __init__(
        self,
        gang: GangBase,
        function: Callable[..., R],
        samples: Mapping[int, int],
        target: int,
        rounds: int,
        shared: Any,
    ) -> None:
        self.shared = shared
        self._gang = gang
        self._function = function
        self._samples = dict(samples)
        self._play = Rounds(samples, target, rounds, _now_ms())

    async def __aiter__(self) -> AsyncIterator[GangRound[R]]:
        while not self._play.is_over:
            yield await self._round()

    async def _round(self) -> GangRound[R]:
        self._gang.check_lives()
        play, number = self._play, self._play.round
        results: dict[int, list[R]] = {}
        came: asyncio.Queue[GangEvent | int] = asyncio.Queue()
        doing: dict[int, asyncio.Task[R]] = {}
        more: dict[int, int] = {}

        def begin(rank: int) -> None:
            call = self._gang.call(rank, self._function, self.shared, self._samples[rank])
            doing[rank] = call

            def done(ended: asyncio.Task[R]) -> None:
                if doing.get(rank) is ended:
                    came.put_nowait(rank)

            call.add_done_callback(done)

        with self._gang.watching(came.put_nowait):
            try:
                for member in self._gang.members:
                    if member.rank in self._samples:
                        if member.rank not in play.ranks:  # in the place of one that was lost
                            play.joined(member.rank, self._samples[member.rank], _now_ms())
                        begin(member.rank)
                while play.round == number:
                    event = await came.get()
                    if not isinstance(event, int):
                        self._lost(event, doing, results)
                        continue
                    results.setdefault(event, []).append(doing.pop(event).result())
                    answer = play.progressed(event, _now_ms())
                    if isinstance(answer, UpdateAfter):
                        more[event] = answer.batches
                    elif event in more:
                        more[event] -= 1
                    if more.get(event) == 0:
                        play.updated(event, _now_ms())
                    else:
                        begin(event)
            finally:
                for task in doing.values():
                    task.cancel()
        done = sum(len(each) * self._samples[rank] for rank, each in results.items())
        return GangRound(number, {rank: tuple(x) for rank, x in sorted(results.items())}, done)

    def _lost(
        self, event: GangEvent, doing: dict[int, asyncio.Task[R]], results: dict[int, list[R]]
    ) -> None:
        """The others go on without it; the one in its place joins in the next round."""
        if isinstance(event, MemberLost | MemberReleased) and event.rank in self._play.ranks:
            task = doing.pop(event.rank, None)
            if task is not None:  # its update has not come
                task.cancel()
                results.pop(event.rank, None)
            self._play.lost(event.rank, _now_ms())
        self._gang.check_lives()


def _now_ms() -> int:
    return round(moment().mono_s * 1000)
