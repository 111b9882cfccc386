"""Calls of functions on the machines of a network: many of one, and an executor."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
import warnings
import weakref
from collections.abc import AsyncIterable, Callable, Generator, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, Self, TypeVar, Unpack, overload

from formation_p2p.api.bridge import Bridge
from formation_p2p.api.calls import call_options, reference_to
from formation_p2p.api.code import CallCode
from formation_p2p.api.config import NodeBase, NodeConfig
from formation_p2p.api.durable import DurableJobs
from formation_p2p.api.executor import NodeExecutor
from formation_p2p.api.lifecycle import Lifecycle
from formation_p2p.api.map import LOOK_AHEAD, Flow, Mapped
from formation_p2p.api.opened import NodeServices
from formation_p2p.api.output import Progress, is_shown
from formation_p2p.api.reference import Reference
from formation_p2p.core.errors import InvalidInput, LocalError, NodeClosed, ResultTooLarge
from formation_p2p.machine.core.bounds import shown
from formation_p2p.peer.shell import Shell
from formation_p2p.placement.core.task_options import (
    DEFAULT_OPTIONS,
    CallKwargs,
    TaskOptions,
    listing,
)
from formation_p2p.results.answers import loaded
from formation_p2p.workload.core.blob import Blob, Content
from formation_p2p.workload.core.parcel import Parcel
from formation_p2p.workload.core.scope import Scope, parse_scope


class Enterable(NodeBase):
    """What `Node` has beside its calls. It is entered once, by `async with` or `await`."""

    def __init__(self, config: NodeConfig) -> None:
        self._lifecycle = lifecycle = Lifecycle()
        self._services = services = NodeServices(config, lifecycle)
        self._bridge = Bridge(
            services.call,
            services.submitted,
            lifecycle,
            services.packer,
            services.with_environment,
        )
        self._code = CallCode(
            config.code, services.add, lambda holder: services.blobs.release(holder)
        )
        self._durable: DurableJobs | None = None
        if config.state is not None:
            self._durable = DurableJobs(config.state, config.retention, self._bridge, services.over)
        self._executors: weakref.WeakSet[NodeExecutor] = weakref.WeakSet()
        self._closing: asyncio.Task[None] | None = None
        self._in_block = False

    def __await__(self) -> Generator[Any, None, Self]:
        """Enter the node, unless it is. Raises as entering does (see `join`)."""
        return self._enter().__await__()

    async def __aenter__(self) -> Self:
        await self._enter()
        if self._in_block:  # its end would close the node under the other one
            problem = "it is entered already, by another `async with`, which closes it"
            raise InvalidInput("node", f"{problem}; use it as it is, or join another")
        self._in_block = True
        return self

    async def _enter(self) -> Self:
        if self._lifecycle.enter():
            try:
                await self._open()
            except BaseException:
                self._lifecycle.failed()
                raise
            self._lifecycle.entered()
        return self

    async def __aexit__(self, *raised: object) -> None:
        if not self._lifecycle.is_foreign:  # else its own process closes it
            await self.close()

    def __del__(self) -> None:
        lifecycle: Lifecycle | None = getattr(self, "_lifecycle", None)
        if lifecycle is None or not lifecycle.drop():
            return
        warnings.warn(
            "a node was dropped without being closed; use `async with Node.join(...) as node`, or "
            "keep it and `await node.close()`",
            ResourceWarning,
            stacklevel=2,
            source=self,
        )
        if not sys.is_finalizing():  # when no thread can start
            closing = (self._services, self._bridge, self._durable)
            threading.Thread(target=_close_dropped, args=closing, daemon=True).start()

    async def close(self) -> None:
        """Leave the network: what is pending fails with NodeClosed, unless the node's state keeps
        it. Does nothing to a node that is closed already.

        Raises NodeClosed in a process that was forked from the node's, and InvalidInput on
        another loop than the one that entered it, while that is not closed.
        """
        closed = NodeClosed("the node was closed while this was pending")
        if self._lifecycle.leave(partial(self._leave_executors, closed)):
            self._closing = asyncio.ensure_future(self._leave(closed))
        if self._closing is not None:
            await asyncio.shield(self._closing)

    async def _open(self) -> None:
        services, durable, bridge = self._services, self._durable, self._bridge

        def crashed(error: BaseException) -> None:
            """On the node's thread, which does not keep the node."""
            closed = NodeClosed(f"the network stack crashed and is starting again: {error!r}")
            bridge.on_loop(
                lambda: bridge.fail(closed, () if durable is None else durable.in_flight)
            )

        opening = asyncio.ensure_future(
            asyncio.to_thread(services.open, durable, bridge.notify, crashed)
        )
        try:
            await asyncio.shield(opening)
        except asyncio.CancelledError:
            # The thread goes on; what it opens is closed.
            await asyncio.wait([opening])
            await asyncio.to_thread(services.close)
            raise

    def _leave_executors(self, closed: NodeClosed) -> None:
        """Before the node refuses calls: a refusal would make room for one that waits, which would
        then fail and not be cancelled."""
        for executor in self._executors:
            executor.node_left(closed)

    async def _leave(self, closed: NodeClosed) -> None:
        try:
            if self._durable is not None:
                await asyncio.to_thread(self._durable.stop)
            if not self._lifecycle.loop.is_closed():  # else what was pending ended with it
                self._bridge.fail(closed)
            await asyncio.to_thread(self._services.close)
        finally:
            self._lifecycle.left()


def _close_dropped(services: NodeServices, bridge: Bridge, durable: DurableJobs | None) -> None:
    if durable is not None:
        durable.stop()
    closed = NodeClosed("the node was dropped while this was pending; keep it until it is closed")
    bridge.on_loop(lambda: bridge.fail(closed))
    services.close()


T = TypeVar("T")


class DataNode(Enterable):
    """The part of `Node` that is about data."""

    @overload
    async def put(  # type: ignore[overload-overlap]
        self, obj: Path | str, *, scope: Scope | str | None = ..., region: str = ...
    ) -> Blob: ...

    @overload
    async def put(self, obj: T) -> Reference[T]: ...

    async def put(
        self, obj: object, *, scope: Scope | str | None = None, region: str = ""
    ) -> Blob | Reference[object]:
        """Keep an object for calls, or offer a file to the network.

        A path, which any text is taken for: the file is offered by its content, from where it
        lies. It is read once, to name it, and must stay as it is until its readers have it. Pass
        the blob on: as an input of a ProcessSpec, or for `get` on another node. `scope` is the
        widest circle that may read it, `local` for the parties of its job alone, `commons` for all
        members; None is as the charter has it. `region` is the one that it stays in, as the charter
        has it. Who holds it serves no others, and tasks that read it run nowhere else
        (docs/explanation/charter.md).

        Any other object is pickled once. Pass the reference to calls in its place: each worker
        fetches it once, and arrays in it are read-only there (docs/explanation/data.md). Raises
        whatever an object that cannot be pickled raises.

        Raises LocalError where the file cannot be read, or the object not be kept.
        """
        self._lifecycle.check_loop()
        if isinstance(obj, str | Path):
            circle = scope if isinstance(scope, Scope | None) else parse_scope(scope)
            return await asyncio.to_thread(self._put_file, obj, circle, region)
        if scope is not None or region:
            problem = "only files have one; an object is read by its calls alone"
            raise InvalidInput("scope", problem)
        return await asyncio.to_thread(reference_to, obj, self._bridge.packer)

    def _put_file(self, path: Path | str, scope: Scope | None, region: str) -> Blob:
        try:
            return self._services.put(Path(path), scope, region)
        except InvalidInput:
            raise
        except (LocalError, ValueError) as error:  # no path has a zero byte
            if isinstance(path, str) and not os.path.lexists(path):
                problem = "put takes a text for a path; to keep it for calls, put (text,)"
                raise LocalError(f"{shown(path)} is not a file here; {problem}") from error
            raise

    async def get(
        self,
        blob: Blob,
        path: Path | str,
        *,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """Fetch a blob to the file at `path`, which is written over once all of it is there and
        verified. What came before a failure is used when it is fetched again.

        `progress` is called on the loop, with the bytes that are there and all that there are.
        Raises Unreachable where no peer has it, LocalError where it cannot be written.
        """
        given: object = blob
        if not isinstance(given, Blob):
            problem = "pass what `put` returned for a file, or one of a result's outputs"
            raise InvalidInput("blob", f"{shown(given)} is not a Blob; {problem}")
        bridge, target = self._bridge, Path(path).absolute()  # noqa: ASYNC240 - no disk is asked

        def progressed(done_bytes: int, size_bytes: int) -> None:
            if progress is not None:
                bridge.on_loop(lambda: progress(done_bytes, size_bytes))

        await bridge.perform(lambda shell: shell.exchange.download(blob, target, progressed))

    async def fetch_result(self, error: ResultTooLarge, *, trust_results: bool = False) -> Any:
        """What a call returned that was larger than its `max_result`: its worker keeps it.

        Raises LocalError, Unreachable or another RemoteError where that has it no more, or there is
        no room for it here; NotPlain as `map` does.
        """

        async def fetched(shell: Shell) -> Content:
            assert shell.exchange.private is not None, "a node has private blobs"
            return await shell.exchange.private.result(blob)

        self._lifecycle.check_loop()
        (blob,) = Parcel.decode(error.record).blobs
        content = await self._bridge.perform(fetched)
        return loaded(error.record, content, trust=trust_results)


R = TypeVar("R")

# Of an executor: what a call raises reaches its future at once.
EXECUTOR_OPTIONS: Final = replace(DEFAULT_OPTIONS, attempts=1)


class MapKwargs(CallKwargs, total=False):
    """Those of `map`, which says what each is."""

    trust_results: bool
    ordered: bool
    buffersize: int
    show_output: bool | None
    progress: bool | Progress
    options: TaskOptions


class CallingNode(DataNode):
    """The part of `Node` that is about calls."""

    @overload
    def map(
        self,
        function: Callable[[T], R],
        items: Iterable[T | Reference[T]] | AsyncIterable[T | Reference[T]],
        **kwargs: Unpack[MapKwargs],
    ) -> Mapped[R]: ...

    # Of a lambda, or a function with overloads, mypy finds no `T` in that union.
    @overload
    def map(
        self,
        function: Callable[[T], R],
        items: Iterable[Reference[T]] | AsyncIterable[Reference[T]],
        **kwargs: Unpack[MapKwargs],
    ) -> Mapped[R]: ...

    # Several iterables, as `Executor.map` has them.
    @overload
    def map(
        self,
        function: Callable[..., R],
        items: Iterable[Any],
        second: Iterable[Any],
        /,
        *more: Iterable[Any],
        **kwargs: Unpack[MapKwargs],
    ) -> Mapped[R]: ...

    @listing(CallKwargs)
    def map(
        self,
        function: Callable[..., R],
        items: Iterable[Any] | AsyncIterable[Any],
        *more: Iterable[Any],
        trust_results: bool = False,
        ordered: bool = True,
        buffersize: int = LOOK_AHEAD,
        show_output: bool | None = None,
        progress: bool | Progress = False,
        options: TaskOptions = DEFAULT_OPTIONS,
        **kwargs: Unpack[CallKwargs],
    ) -> Mapped[R]:
        """`[function(item) for item in items]`, each on whichever machine can.

        With several iterables, `function` takes one item of each, as with the built-in `map`: the
        shortest ends it. They are zipped, so that an asynchronous one comes alone.

        Await it for the list, or `async for` one result after the other: in the order of the
        items, or with `ordered=False` as they come. Items are taken as results are: at most
        `buffersize` of them are ahead of the caller, so that they may have no end.

        `show_output` is as for `submit`. With `progress` a bar on stderr shows how many calls have
        ended and failed, or a line now and then where it is not a terminal; or a function of your
        own is called with how many brought a result, how many failed, and how many
        there are: None for items without a length.

        The keyword arguments are those of `CallKwargs`; they change `options`. Results are data
        unless `trust_results` (docs/explanation/data.md says which). Raises, where it is awaited,
        for the first failure known, in the order of the items: what the function raised,
        TaskRaised, TaskFailed, ResultTooLarge, NotPlain or Unplaceable, as `value_of` does; the
        rest is cancelled then.
        """
        self._lifecycle.check()
        if more and any(isinstance(each, AsyncIterable) for each in (items, *more)):
            problem = "an asynchronous iterable comes alone; have one that yields tuples"
            raise InvalidInput("items", problem)
        if buffersize < 1:
            raise InvalidInput("buffersize", f"{buffersize} is less than one item; allow more")
        chosen = call_options(kwargs, options, call="map")
        return Mapped(
            lambda: Flow(
                self._bridge,
                self._code,
                function,
                items,
                more,
                chosen,
                buffersize,
                trust_results=trust_results,
                show_output=is_shown(show_output),
                progress=progress,
            ),
            ordered,
        )

    @listing(CallKwargs)
    def executor(
        self,
        *,
        max_workers: int | None = None,
        trust_results: bool = False,
        show_output: bool | None = None,
        options: TaskOptions = EXECUTOR_OPTIONS,
        **kwargs: Unpack[CallKwargs],
    ) -> NodeExecutor:
        """A `concurrent.futures.Executor` whose calls run on whichever machines can.

        Use it from any thread. `max_workers` is how many calls may be in flight at once; None for
        as many as the network takes. A call is tried once unless `attempts` says otherwise.
        `show_output` is as for `submit`. The keyword arguments are those of `CallKwargs`; they
        change `options`. Leaving the node cancels what has not begun.
        """
        self._lifecycle.check()
        chosen = call_options(kwargs, options, call="executor")
        executor = NodeExecutor(
            self._bridge,
            self._code,
            chosen,
            max_workers,
            trust_results=trust_results,
            show_output=is_shown(show_output),
            owner=self,
        )
        self._executors.add(executor)
        return executor
