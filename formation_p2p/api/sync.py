"""The node for scripts: the same methods, without `await`.

with SyncNode.join() as node:
    print(node.map(abs, [-1, -2, -3]))
"""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, overload

from formation_p2p.api.config import NodeBase, NodeConfig
from formation_p2p.api.job import JobHandle
from formation_p2p.api.lifecycle import Lifecycle
from formation_p2p.api.node import Node
from formation_p2p.api.reference import Reference
from formation_p2p.core.dispatch.job_events import JobEvent
from formation_p2p.core.errors import InvalidInput, NodeClosed
from formation_p2p.core.identity import PeerId
from formation_p2p.core.workload.blob import Blob
from formation_p2p.core.workload.memory_estimate import MemoryEstimate
from formation_p2p.core.workload.work import Task

P = ParamSpec("P")
T = TypeVar("T")
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)


class _Loop:
    """An asyncio loop in a thread of its own, of the node with this lifecycle. What it runs is
    waited for; Ctrl-C cancels that."""

    def __init__(self, lifecycle: Lifecycle) -> None:
        self._lifecycle = lifecycle
        self._up = threading.Event()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._main, name="formation-sync", daemon=True)
        self._thread.start()
        self._up.wait()

    @property
    def is_closed(self) -> bool:
        return self._closed

    def check(self) -> None:
        """Raises NodeClosed where it was closed, and in a fork of its process; InvalidInput where
        what is called would wait for itself."""
        self._lifecycle.check_process()
        if self._closed:
            raise NodeClosed("the node is closed; join again, or ask before you close it")
        if threading.current_thread() is self._thread:
            problem = "this is called from a callback of the node; hand it to another thread"
            raise InvalidInput("thread", problem)

    def run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        async def call() -> T:
            return await function()

        with self._lock:  # what is handed over before the loop ends is run, or cancelled
            self.check()
            future = asyncio.run_coroutine_threadsafe(call(), self._loop)
        try:
            return future.result()
        except BaseException:
            # Ctrl-C is none of Exception. What has ended by itself is not cancelled any more.
            future.cancel()
            raise

    def call(self, function: Callable[[], T]) -> T:
        async def call() -> T:
            return function()

        return self.run(call)

    def close(self) -> None:
        """What still runs is cancelled, and ends."""
        self.stop()
        self._thread.join()

    def stop(self) -> None:
        with self._lock:
            if not self._closed and not self._lifecycle.is_foreign:
                self._loop.call_soon_threadsafe(self._stopped.set)
            self._closed = True

    def _main(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self._loop, self._stopped = asyncio.get_running_loop(), asyncio.Event()
        self._up.set()
        await self._stopped.wait()


class _Sync(Generic[S_co]):
    """What stands for something of the loop."""

    def __init__(self, wrapped: S_co, loop: _Loop) -> None:
        self._wrapped = wrapped
        self._loop = loop


# Each makes a method from that of `Node` or `JobHandle`, with its signature and documentation.


def _waits(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[_Sync[S], P], T]:
    @functools.wraps(method)
    def call(self: _Sync[S], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._loop.run(lambda: method(self._wrapped, *args, **kwargs))

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
        job = self._loop.run(lambda: method(self._wrapped, *args, **kwargs))
        return SyncJob(job, self._loop)

    return call


class SyncNode(_Sync[Node], NodeBase):
    """A `Node` on an asyncio loop in a thread of its own. Every call blocks until it is done;
    Ctrl-C cancels it. `Node` says what each does and raises; `map` returns the list, and
    `executor` brings one result after the other.

    `SyncNode.join(...)` enters the network at once. Use it in a `with` block, or `close` it. Any
    thread may call it, until it is closed, in the process that made it.
    """

    def __init__(self, config: NodeConfig) -> None:
        node = Node(config)
        super().__init__(node, _Loop(node._lifecycle))
        self._closing = threading.Lock()
        try:
            self._loop.run(node.__aenter__)
        except BaseException:
            # Ctrl-C too: `with` calls no `__exit__` of what was not entered.
            self._loop.close()
            raise

    def __enter__(self) -> Self:
        self._loop.check()
        return self

    def __exit__(self, *raised: object) -> None:
        if not self._wrapped._lifecycle.is_foreign:  # else its own process closes it
            self.close()

    def __del__(self) -> None:
        """The node that is dropped with it warns, and closes itself."""
        if hasattr(self, "_loop"):
            self._loop.stop()

    def close(self) -> None:
        """Leave the network. See `Node.close`."""
        self._wrapped._lifecycle.check_process()
        with self._closing:
            if self._loop.is_closed:
                return
            try:
                self._loop.run(self._wrapped.close)
            finally:
                self._loop.close()

    @property
    def peer_id(self) -> PeerId:
        return self._wrapped.peer_id

    @property
    def name(self) -> str:
        return self._wrapped.name

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
    get = _waits(Node.get)
    fetch_result = _waits(Node.fetch_result)
    workers = _waits(Node.workers)
    explain = _waits(Node.explain)
    discover = _waits(Node.discover)
    neighbours = _waits(Node.neighbours)
    incompatible = _waits(Node.incompatible)
    renew = _waits(Node.renew)
    story = _waits(Node.story)
    trust = _waits(Node.trust)
    report_wrong = _waits(Node.report_wrong)

    @overload
    def put(self, obj: Path | str) -> Blob: ...  # type: ignore[overload-overlap]

    @overload
    def put(self, obj: T) -> Reference[T]: ...

    def put(self, obj: object) -> Blob | Reference[object]:
        """See `Node.put`."""
        return self._loop.run(lambda: self._wrapped.put(obj))

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

        while (event := self._loop.run(next_event)) is not None:
            yield event
