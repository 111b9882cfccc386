"""How a node is entered, closed, and dropped."""

from __future__ import annotations

import asyncio
import sys
import threading
import warnings
import weakref
from collections.abc import Generator
from functools import partial
from typing import Any, Self

from formation_p2p.api.bridge import Bridge
from formation_p2p.api.code import CallCode
from formation_p2p.api.config import NodeBase, NodeConfig
from formation_p2p.api.durable import DurableJobs
from formation_p2p.api.executor import NodeExecutor
from formation_p2p.api.lifecycle import Lifecycle
from formation_p2p.api.services import NodeServices
from formation_p2p.core.errors import InvalidInput, NodeClosed


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
        self._code = CallCode(config.code, services.add, services.release)
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
