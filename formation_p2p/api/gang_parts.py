"""Parts of work over a gang, each a call at the member that has it, and what follows a loss."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from formation_p2p.api.gang_base import GangBase
from formation_p2p.api.gang_pool import capacities
from formation_p2p.core.errors import NodeClosed
from formation_p2p.core.gang.events import GangEvent, MemberLost, MemberReleased, Repartitioned
from formation_p2p.core.gang.partition import Partition
from formation_p2p.core.gang.recovery import (
    GiveUp,
    Loss,
    Recompute,
    Recovery,
    Replace,
    TakeOver,
    remedy_of,
)

R = TypeVar("R")


@dataclass(eq=False, slots=True)
class _Doing(Generic[R]):
    """The call of a part. `task_id` names it once it has begun; before, the one that it goes on
    from."""

    part: str
    task_id: str
    task: asyncio.Task[R] = field(init=False)

    @property
    def has_succeeded(self) -> bool:
        task = self.task
        return task.done() and not task.cancelled() and task.exception() is None


class PartsRun(Generic[R]):
    """Calls `function(member, name, *args)` for each part, at its rank."""

    def __init__(
        self,
        gang: GangBase,
        function: Callable[..., R],
        partition: Partition,
        recovery: Recovery,
        args: tuple[Any, ...],
    ) -> None:
        self._gang = gang
        self._function = function
        self.partition = partition
        self._recovery = recovery
        self._args = args
        self._came: Final[asyncio.Queue[GangEvent | _Doing[R]]] = asyncio.Queue()
        self._doing: dict[str, _Doing[R]] = {}

    async def run(self) -> dict[str, R]:
        """What was returned, by part. Raises what a call raises, after the others were cancelled;
        NodeClosed where the gang ends; InvalidInput for a remedy that is none."""
        results: dict[str, R] = {}
        with self._gang.watching(self._came.put_nowait):
            try:
                for part in self.partition.problem.parts:
                    self._begin(part.name)
                while self._doing:
                    came = await self._came.get()
                    if isinstance(came, _Doing):
                        if self._doing.get(came.part) is came:
                            del self._doing[came.part]
                            results[came.part] = came.task.result()
                    elif isinstance(came, MemberLost | MemberReleased):
                        await self._lost(came.rank)
            finally:
                for doing in self._doing.values():
                    doing.task.cancel()
        return {part.name: results[part.name] for part in self.partition.problem.parts}

    def _begin(self, name: str, *, goes_on: bool = False) -> None:
        """A call that is under way is cancelled once the new one has what it has saved."""
        before = self._doing.get(name)
        source = before.task_id if goes_on and before is not None else ""
        doing = self._doing[name] = _Doing[R](name, source)

        def begun(task_id: str) -> None:
            doing.task_id = task_id
            if before is not None:
                before.task.cancel()

        def done(_: asyncio.Task[R]) -> None:
            if before is not None:
                before.task.cancel()  # also where the new one could not begin
            self._came.put_nowait(doing)

        doing.task = self._gang.begin_part(
            self.partition.assigned[name],
            self._function,
            (name, *self._args),
            begun,
            source,
        )
        doing.task.add_done_callback(done)

    async def _lost(self, rank: int) -> None:
        lost = [name for name in self._doing if self.partition.assigned[name] == rank]
        if not lost:
            return
        saved = await self._gang.saved()
        ids = {name: self._doing[name].task_id for name in lost}
        checkpoints = {name: saved[task] for name, task in ids.items() if task in saved}
        # Another worker may have the rank by now, and wait for parts that go elsewhere.
        living = tuple(each for each in capacities(self._gang) if each.rank != rank)
        loss = Loss(rank, self.partition, living, checkpoints)
        match remedy_of(self._recovery, loss):
            case GiveUp(reason):
                await self._gang.close()
                raise NodeClosed(f"the gang is ended: {reason}")
            case TakeOver(partition, moves, kept):
                before, self.partition = self.partition, partition
                self._gang.notify(Repartitioned(moves))
                for name, doing in list(self._doing.items()):
                    moved = partition.assigned[name] != before.assigned[name]
                    if moved and not doing.has_succeeded:
                        self._begin(name, goes_on=name in kept)
            case Recompute():
                self._begin_anew(checkpoints)
            case Replace(checkpoints=kept):
                self._begin_anew(checkpoints.keys() - kept.keys())
        # What is left waits for the worker that takes the rank, and is begun again there from the
        # newest checkpoint.

    def _begin_anew(self, names: Collection[str]) -> None:
        """Those that would go on from a checkpoint."""
        for name in names:
            self._begin(name)
