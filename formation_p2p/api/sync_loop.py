"""An asyncio loop in a thread of its own, and what stands for something of it elsewhere."""

from __future__ import annotations

import asyncio
import functools
import inspect
import re
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent import futures
from typing import Any, Concatenate, Final, Generic, ParamSpec, TypeVar

from formation_p2p.api.job import JobHandle
from formation_p2p.api.lifecycle import Lifecycle
from formation_p2p.api.tracebacks import SHORTLY
from formation_p2p.core.errors import InvalidInput, NodeClosed
from formation_p2p.workload.core.memory_estimate import MemoryEstimate
from formation_p2p.workload.core.work import Task

P = ParamSpec("P")
T = TypeVar("T")
U = TypeVar("U")
S = TypeVar("S")
S_co = TypeVar("S_co", covariant=True)


# What is written over two lines has a line break for a space.
_SAID: Final = tuple(
    (re.compile(said.replace(" ", r"\s+")), instead)
    for said, instead in (
        ("async ", ""),
        ("await ", ""),
        ("; where it is awaited, ", "; "),
        (", asynchronous=True", ""),
        ("is called on the loop, with", "is called with"),
    )
)


class SyncLoop:
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

    def begin(self, function: Callable[[], Coroutine[Any, Any, T]]) -> futures.Future[T]:
        async def call() -> T:
            return await function()

        with self._lock:  # what is handed over before the loop ends is run, or cancelled
            self.check()
            return asyncio.run_coroutine_threadsafe(call(), self._loop)

    def run(self, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
        future = self.begin(function)
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

    def iterate(self, items: Callable[[], AsyncIterator[T]]) -> Iterator[T]:
        """Each is waited for when it is asked for."""
        iterator = self.call(items)

        async def next_item() -> tuple[T, ...]:
            try:
                return (await anext(iterator),)
            except StopAsyncIteration:
                return ()

        while found := self.run(next_item):
            yield found[0]

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


class Synchronous(Generic[S_co]):
    """What stands for something of the loop."""

    def __init__(self, wrapped: S_co, loop: SyncLoop) -> None:
        self._wrapped = wrapped
        self._loop = loop


class Waited(Synchronous[Any]):
    """What a package made for programs of asyncio: a call of a coroutine function waits for it."""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._wrapped, name)
        if not inspect.iscoroutinefunction(found):
            return found
        return lambda *args, **kwargs: self._loop.run(lambda: found(*args, **kwargs))


def waited(loop: SyncLoop, make: Callable[[], object]) -> Waited:
    return Waited(loop.call(make), loop)


# Each makes a method from one of what is wrapped, with its signature and documentation.


def without_await(text: str) -> str:
    """What a method of asyncio says of itself, where a call waits for it."""
    for said, instead in _SAID:
        text = said.sub(instead, text)
    return text


def made(
    method: Callable[Concatenate[S, P], T], use: Callable[[SyncLoop, Callable[[], T]], U]
) -> Callable[Concatenate[Synchronous[S], P], U]:
    """`use` has the method called on the loop."""

    @functools.wraps(method)
    def call(self: Synchronous[S], /, *args: P.args, **kwargs: P.kwargs) -> U:
        with SHORTLY:
            return use(self._loop, lambda: method(self._wrapped, *args, **kwargs))

    call.__doc__ = without_await(method.__doc__ or "")
    return call


def waits(
    method: Callable[Concatenate[S, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Synchronous[S], P], T]:
    return made(method, SyncLoop.run)


def calls(
    method: Callable[Concatenate[S, P], T],
) -> Callable[Concatenate[Synchronous[S], P], T]:
    return made(method, SyncLoop.call)


class SyncJob(Synchronous[JobHandle]):
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

    results = waits(JobHandle.results)
    result = calls(JobHandle.result)
    story = waits(JobHandle.story)
    explain = waits(JobHandle.explain)
    cancel = calls(JobHandle.cancel)
    move = calls(JobHandle.move)

    events = made(JobHandle.events, SyncLoop.iterate)


def job_of(loop: SyncLoop, begin: Callable[[], Coroutine[Any, Any, JobHandle]]) -> SyncJob:
    return SyncJob(loop.run(begin), loop)
