"""Rounds of data-parallel work on a gang: each member does batches of its own size, and all end a
round at about the same time (features/gangs/core/rounds.py)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from formation_p2p.features.gangs.api.base import GangBase
from formation_p2p.features.gangs.core.events import GangEvent, MemberLost, MemberReleased
from formation_p2p.features.gangs.core.rounds import Rounds, UpdateAfter
from formation_p2p.machine.clock import moment

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
        came: asyncio.Queue[GangEvent | tuple[int, asyncio.Task[R]]] = asyncio.Queue()
        doing: dict[int, asyncio.Task[R]] = {}
        more: dict[int, int] = {}

        def begin(rank: int) -> None:
            call = self._gang.call(rank, self._function, self.shared, self._samples[rank])
            doing[rank] = call
            call.add_done_callback(lambda ended: came.put_nowait((rank, ended)))

        with self._gang.watching(came.put_nowait):
            try:
                for rank in self._at_work():
                    begin(rank)
                while play.round == number:
                    event = await came.get()
                    if not isinstance(event, tuple):
                        self._gang.check_lives()
                        if isinstance(event, MemberLost | MemberReleased):
                            more.pop(event.rank, None)
                            self._lost(event.rank, doing, results)
                        elif not play.ranks:  # else who comes joins in the next round
                            for rank in self._at_work():
                                begin(rank)
                        continue
                    rank, ended = event
                    if doing.get(rank) is not ended:
                        continue  # its member was lost meanwhile
                    del doing[rank]
                    results.setdefault(rank, []).append(ended.result())
                    answer = play.progressed(rank, _now_ms())
                    if isinstance(answer, UpdateAfter):
                        more[rank] = answer.batches
                    elif rank in more:
                        more[rank] -= 1
                    if more.get(rank) == 0:
                        play.updated(rank, _now_ms())
                    else:
                        begin(rank)
            finally:
                for task in doing.values():
                    task.cancel()
        done = sum(len(each) * self._samples[rank] for rank, each in results.items())
        return GangRound(number, {rank: tuple(x) for rank, x in sorted(results.items())}, done)

    def _at_work(self) -> tuple[int, ...]:
        """The members of now, those in the place of one that was lost too, are at work."""
        play, here = self._play, {member.rank for member in self._gang.members}
        for rank in play.ranks:
            if rank not in here:  # lost between two rounds
                play.lost(rank, _now_ms())
        for rank in sorted(here & self._samples.keys() - set(play.ranks)):
            play.joined(rank, self._samples[rank], _now_ms())
        return play.ranks

    def _lost(
        self, rank: int, doing: dict[int, asyncio.Task[R]], results: dict[int, list[R]]
    ) -> None:
        """The others go on without it; the one in its place joins in the next round."""
        if rank in self._play.ranks:
            task = doing.pop(rank, None)
            if task is not None:  # its update has not come
                task.cancel()
                results.pop(rank, None)
            self._play.lost(rank, _now_ms())


def _now_ms() -> int:
    return round(moment().mono_s * 1000)
