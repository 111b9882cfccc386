"""What a gang does with its members beside single calls: parts, slices, rounds, sizes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from formation_p2p.core.errors import NodeClosed
from formation_p2p.features.gangs.api.base import GangBase
from formation_p2p.features.gangs.api.pool import (
    GRACE_S,
    Autoscaling,
    MemberUsage,
    capacities,
    links_of,
    pool_of,
    usage_of,
)
from formation_p2p.features.gangs.api.rounds import GangRounds
from formation_p2p.features.gangs.core.events import (
    GangEvent,
    MemberJoined,
    MemberLost,
    MemberReleased,
    MemberReplaced,
    Repartitioned,
)
from formation_p2p.features.gangs.core.part import Links, Part, Strategy
from formation_p2p.features.gangs.core.partition import Partition, Repartition, repartition
from formation_p2p.features.gangs.core.pool import Pool
from formation_p2p.features.gangs.core.recovery import (
    GiveUp,
    Loss,
    Recompute,
    Recovery,
    Replace,
    TakeOver,
    remedy_of,
)
from formation_p2p.features.gangs.core.rounds import Slices, batch_size
from formation_p2p.features.gangs.host.strategies import parse_recovery, partition
from formation_p2p.workload.core.scaling import ScalingPolicy

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


class GangWork(GangBase):
    """The part of `Gang` that divides work among its members (docs/explanation/clusters.md)."""

    @property
    def pool(self) -> Pool:
        """What the members have together, and whose it is: of now."""
        return pool_of(self)

    def usage(self) -> tuple[MemberUsage, ...]:
        """What each member's tasks used when its worker last said so, which it does every two
        seconds; without those that have not yet."""
        return usage_of(self)

    def partition(
        self,
        parts: Iterable[Part],
        strategy: str | Strategy = "proportional",
        *,
        speeds: Mapping[int, int] | None = None,
        links: Links | None = None,
        has: Mapping[int, Iterable[str]] | None = None,
        of_gpus: bool = False,
    ) -> Partition:
        """Which rank has which part. Members are as fast as they have cores, unless `speeds` says
        otherwise, in units of work a second; and have the memory that they hold, or that of the
        devices that they hold. `links` are as they were measured (`measured_links`), unless they
        are given; `has` names the content that is on the machine of a rank. Raises InvalidInput;
        Unplaceable where the parts do not fit."""
        members = capacities(self, speeds, has, of_gpus=of_gpus)
        measured = self.measured_links() if links is None else links
        return partition(parts, members, strategy, links=measured)

    def measured_links(self) -> Links:
        """Round trips between the members, as their workers told them when they were chosen, and
        the rates that streams between them have reached. What is not known is left out."""
        return links_of(self)

    def repartition(
        self, old: Partition, *, speeds: Mapping[int, int] | None = None, of_gpus: bool = False
    ) -> Repartition:
        """The same parts over the members of now, after some have gone or come: as few move as the
        strategy can do with, and `moves` says which. `events` tells of it. Raises as `partition`
        does."""
        members = capacities(self, speeds, old.content(), of_gpus=of_gpus)
        new = repartition(old, members, self.measured_links())
        self.notify(Repartitioned(new.moves))
        return new

    async def work(
        self,
        function: Callable[..., R],
        parts: Iterable[Part] | Partition,
        *args: Any,
        strategy: str | Strategy = "proportional",
        recovery: str | Recovery = "recompute",
    ) -> dict[str, R]:
        """`function(member, name, *args)` for each part, at the member that has it; what each
        returned, by name. After a loss `recovery` decides: `recompute` and `checkpoint` wait for
        the worker that takes the rank, `repartition` has the others take over, `end` ends the
        gang. Raises what the first call that fails raises; NodeClosed where the gang ends."""
        if not isinstance(parts, Partition):
            parts = self.partition(parts, strategy)
        return await PartsRun(self, function, parts, parse_recovery(recovery), args).run()

    async def slices(
        self, function: Callable[..., R], items: Sequence[Any], *, rounds: int = 1
    ) -> list[list[R]]:
        """`function(member, item)` once for each item in each round: results by round, in the order
        of the items. A member has the same items in each round, and takes over from others where
        it has none left; what a lost member had, others do. Raises what a call raises."""
        return await SliceRun(self, function, items, rounds).run()

    def rounds(
        self,
        function: Callable[..., R],
        *,
        target: int,
        rounds: int,
        samples: int | Mapping[int, int],
        sample_bytes: int = 0,
        shared: Any = None,
    ) -> GangRounds[R]:
        """Rounds of `target` samples, done in batches: `function(member, shared, samples)`. A batch
        has `samples`, of each rank its own; with `sample_bytes` as many as fit into the memory that
        the member holds, at most `samples`. Iterate over it with `async for`. Raises
        InvalidInput."""
        ranks = {member.rank: member for member in self.members}
        if isinstance(samples, int):
            memory = {rank: member.needs.memory_bytes for rank, member in ranks.items()}
            sizes = {
                rank: batch_size(memory[rank], sample_bytes, samples) if sample_bytes else samples
                for rank in ranks
            }
        else:
            sizes = {rank: size for rank, size in samples.items() if rank in ranks}
        return GangRounds(self, function, sizes, target, rounds, shared)

    def autoscale(
        self,
        *,
        least: int = 1,
        most: int,
        target_percent: int = 70,
        in_cooldown_s: float = 300.0,
        out_cooldown_s: float = 120.0,
        grace_s: float = GRACE_S,
    ) -> Autoscaling:
        """Within its `async with` the gang has as many members, from `least` to `most`, as let each
        use `target_percent` of its cores; and ends where it has fewer than `least` for `grace_s`.
        Work that is given to ranks that go is cancelled. Raises InvalidInput."""
        policy = ScalingPolicy(
            least=least,
            most=most,
            target_percent=target_percent,
            in_cooldown_s=in_cooldown_s,
            out_cooldown_s=out_cooldown_s,
        )
        return Autoscaling(self, policy, grace_s)
