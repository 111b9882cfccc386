"""A gang and its store, without `await`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from concurrent import futures
from contextlib import contextmanager
from typing import Any, Self, TypeVar

from formation_p2p.api.sync_loop import Synchronous, SyncLoop, calls, job_of, made, waits
from formation_p2p.features.gangs.api.gang import Gang
from formation_p2p.features.gangs.api.node import GangNode
from formation_p2p.features.gangs.api.pool import Autoscaling
from formation_p2p.features.gangs.api.rounds import GangRound, GangRounds
from formation_p2p.features.gangs.api.store import GangStore
from formation_p2p.features.gangs.core.events import GangMember
from formation_p2p.features.gangs.core.pool import Pool

R = TypeVar("R")


class SyncGangStore(Synchronous[GangStore]):
    """A `GangStore` whose answers are waited for."""

    set = waits(GangStore.set)
    get = waits(GangStore.get)
    wait = waits(GangStore.wait)
    add = waits(GangStore.add)
    compare_set = waits(GangStore.compare_set)
    delete_key = waits(GangStore.delete_key)
    num_keys = waits(GangStore.num_keys)
    read = waits(GangStore.read)
    watch = made(GangStore.watch, SyncLoop.iterate)


class SyncGangRounds(Synchronous[GangRounds[R]]):
    """The rounds of a gang, each of which is waited for. See `GangRounds`."""

    @property
    def shared(self) -> Any:
        return self._wrapped.shared

    @shared.setter
    def shared(self, shared: Any) -> None:
        self._wrapped.shared = shared

    def __iter__(self) -> Iterator[GangRound[R]]:
        return self._loop.iterate(self._wrapped.__aiter__)


def _future(loop: SyncLoop, begin: Callable[[], Awaitable[R]]) -> futures.Future[R]:
    async def begun() -> R:
        return await begin()

    return loop.begin(begun)


def _rounds(loop: SyncLoop, begin: Callable[[], GangRounds[R]]) -> SyncGangRounds[R]:
    return SyncGangRounds(loop.call(begin), loop)


@contextmanager
def _autoscaling(loop: SyncLoop, begin: Callable[[], Autoscaling]) -> Iterator[Autoscaling]:
    scaling = loop.call(begin)
    loop.run(scaling.__aenter__)
    try:
        yield scaling
    finally:
        loop.run(scaling.__aexit__)


class SyncGang(Synchronous[Gang]):
    """A `Gang` for a script: use it in a `with` block, or `close` it. `call` returns a future of
    `concurrent.futures`. For a stream, connect a socket to the port that `forward` returns."""

    def __init__(self, gang: Gang, loop: SyncLoop) -> None:
        super().__init__(gang, loop)
        self.gang_id = gang.gang_id
        self.store = SyncGangStore(gang.store, loop)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    @property
    def members(self) -> tuple[GangMember, ...]:
        return self._loop.call(lambda: self._wrapped.members)

    @property
    def size(self) -> int:
        return self._wrapped.size

    @property
    def is_over(self) -> bool:
        return self._wrapped.is_over

    @property
    def pool(self) -> Pool:
        return self._loop.call(lambda: self._wrapped.pool)

    run = waits(Gang.run)
    work = waits(Gang.work)
    slices = waits(Gang.slices)
    usage = calls(Gang.usage)
    partition = calls(Gang.partition)
    repartition = calls(Gang.repartition)
    measured_links = calls(Gang.measured_links)
    forward = waits(Gang.forward)
    resize = waits(Gang.resize)
    close = waits(Gang.close)

    call = made(Gang.call, _future)
    submit = made(Gang.submit, job_of)
    rounds = made(Gang.rounds, _rounds)
    autoscale = made(Gang.autoscale, _autoscaling)
    events = made(Gang.events, SyncLoop.iterate)


def gang_of(loop: SyncLoop, begin: Callable[[], Awaitable[Gang]]) -> SyncGang:
    async def formed() -> Gang:
        return await begin()

    return SyncGang(loop.run(formed), loop)


class SyncGangs:
    """What `SyncNode` has of gangs."""

    gang = made(GangNode.gang, gang_of)
    pool = waits(GangNode.pool)
