"""The node for scripts: the same methods, without `await`.

with SyncNode.join() as node:
    print(node.map(abs, [-1, -2, -3]))
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar

from formation_p2p.api.config import NodeBase, NodeConfig
from formation_p2p.api.job import JobHandle
from formation_p2p.api.node import Node
from formation_p2p.core.dispatch.job_events import JobEvent
from formation_p2p.core.identity import PeerId
from formation_p2p.core.workload.plan import MemoryEstimate
from formation_p2p.core.workload.work import Task

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")


class _Loop:
    """An asyncio loop in a thread of its own. What it runs is waited for; Ctrl-C cancels that."""

    def __init__(self) -> None:
        self._up = threading.Event()
        self._thread = threading.Thread(target=self._main, name="formation-sync", daemon=True)

    def open(self) -> None:
        self._thread.start()
        self._up.wait()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            # Ctrl-C is none of Exception. What has ended by itself is not cancelled any more.
            future.cancel()
            raise

    def call(self, function: Callable[[], T]) -> T:
        async def call() -> T:
            return function()

        return self.run(call())

    def close(self) -> None:
        """What still runs is cancelled, and ends."""
        self._loop.call_soon_threadsafe(self._stopped.set)
        self._thread.join()

    def _main(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        self._up.set()
        await self._stopped.wait()


class _Sync(Generic[S]):
    """What stands for something of the loop."""

    def __init__(self, wrapped: S, loop: _Loop) -> None:
        self._wrapped = wrapped
        self._loop = loop


# Each makes a method from that of `Node` or `JobHandle`, with its signature and documentation.


def _waits(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Sync[S], P], T]:
    @functools.wraps(method)
    def call(self: _Sync[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop.run(method(self._wrapped, *args, **kwargs))

    return call


def _calls(method: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[_Sync[S], P], T]:
    @functools.wraps(method)
    def call(self: _Sync[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop.call(lambda: method(self._wrapped, *args, **kwargs))

    return call


def _waits_for_job(
    method: Callable[Concatenate[Node, P], Coroutine[Any, Any, JobHandle]],
) -> Callable[Concatenate[SyncNode, P], SyncJob]:
    @functools.wraps(method)
    def call(self: SyncNode, /, *args: P.args, **kwargs: P.kwargs) -> SyncJob:
        return SyncJob(self._loop.run(method(self._wrapped, *args, **kwargs)), self._loop)

    return call


class SyncNode(_Sync[Node], NodeBase):
    """A `Node` on an asyncio loop in a thread of its own. Every call blocks until it is done;
    Ctrl-C cancels it. `Node` says what each does and raises; `map` returns the list, and
    `executor` brings one result after the other."""

    def __init__(self, config: NodeConfig) -> None:
        super().__init__(Node(config), _Loop())

    def __enter__(self) -> Self:
        self._loop.open()
        try:
            self._loop.run(self._wrapped.__aenter__())
        except BaseException:
            # Ctrl-C too: `with` calls no `__exit__` of what was not entered.
            self._loop.close()
            raise
        return self

    def __exit__(self, *raised: object) -> None:
        try:
            self._loop.run(self._wrapped.__aexit__(*raised))
        finally:
            self._loop.close()

    @property
    def peer_id(self) -> PeerId:
        return self._wrapped.peer_id

    @property
    def addresses(self) -> tuple[str, ...]:
        return self._wrapped.addresses

    @property
    def metrics_address(self) -> tuple[str, int]:
        return self._wrapped.metrics_address

    worker = _waits(Node.worker)
    submit = _waits_for_job(Node.submit)
    job = _waits_for_job(Node.job)
    kept = _waits(Node.kept)
    map = _waits(Node.map)
    executor = _calls(Node.executor)
    run = _waits(Node.run)
    put = _waits(Node.put)
    get = _waits(Node.get)
    workers = _waits(Node.workers)
    explain = _waits(Node.explain)
    discover = _waits(Node.discover)
    neighbours = _waits(Node.neighbours)
    story = _waits(Node.story)
    trust = _waits(Node.trust)
    report_wrong = _waits(Node.report_wrong)

    def jobs(self) -> tuple[SyncJob, ...]:
        """The jobs of the node's state that have not ended. See `Node.jobs`."""
        jobs = self._loop.call(self._wrapped.jobs)
        return tuple(SyncJob(job, self._loop) for job in jobs)


class SyncJob(_Sync[JobHandle]):
    """A `JobHandle` whose results and events are waited for."""

    @property
    def job_id(self) -> str:
        return self._wrapped.job_id

    @property
    def name(self) -> str:
        return self._wrapped.name

    @property
    def tasks(self) -> tuple[Task, ...]:
        return self._wrapped.tasks

    @property
    def sizes(self) -> tuple[MemoryEstimate, ...]:
        return self._wrapped.sizes

    @property
    def is_over(self) -> bool:
        return self._wrapped.is_over

    results = _waits(JobHandle.results)
    result = _calls(JobHandle.result)
    story = _waits(JobHandle.story)
    explain = _waits(JobHandle.explain)
    cancel = _calls(JobHandle.cancel)

    def events(self) -> Iterator[JobEvent]:
        """All that happens, from the submission to JobEnded. See `JobHandle.events`."""
        events = self._wrapped.events()

        async def next_event() -> JobEvent | None:
            return await anext(events, None)

        while (event := self._loop.run(next_event())) is not None:
            yield event
