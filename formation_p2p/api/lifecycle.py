"""Whether a node may be used: once it is entered and until it is closed, in the process and on the
asyncio loop that entered it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from enum import Enum, auto
from typing import Final

from formation_p2p.core.errors import InvalidInput, NodeClosed


class Stage(Enum):
    JOINED = auto()
    ENTERING = auto()
    OPEN = auto()
    CLOSING = auto()
    CLOSED = auto()


# Why a node that is not open cannot be used, and what to do.
_NOT_OPEN: Final = {
    Stage.JOINED: "the node has not been entered; use `async with Node.join(...) as node`, or "
    "`node = await Node.join(...)` and `await node.close()`",
    Stage.ENTERING: "another task is still entering the node; wait until it has",
    Stage.CLOSING: "the node is being closed; join again",
    Stage.CLOSED: "the node is closed; join again",
}


class Lifecycle:
    """Of one node. `enter`, then `entered` or `failed`; `leave`, then `left`."""

    def __init__(self) -> None:
        self._stage = Stage.JOINED
        self._pid = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Of the node that was entered."""
        assert self._loop is not None, "it is entered first"
        return self._loop

    @property
    def is_foreign(self) -> bool:
        """Whether this process is a fork of the one that entered the node."""
        return self._stage is not Stage.JOINED and self._pid != os.getpid()

    # From any thread.

    def check_process(self) -> None:
        """Raises NodeClosed in a process that was forked from the node's."""
        if self.is_foreign:
            raise NodeClosed(
                f"the node belongs to process {self._pid}, of which this is a fork, and its "
                "threads are there; join a node here, or start processes by `spawn`"
            )

    def check(self) -> None:
        """Raises NodeClosed unless the node is open in this process."""
        self.check_process()
        if self._stage is not Stage.OPEN:
            raise NodeClosed(_NOT_OPEN[self._stage])

    # On a loop.

    def check_loop(self) -> None:
        """As `check`. Raises InvalidInput on another loop than the node's."""
        self.check()
        self._check_own_loop()

    def enter(self) -> bool:
        """Whether the node is to be opened: not where it is open. Raises as `check_loop`."""
        if self._stage is not Stage.JOINED:
            self.check_loop()
            return False
        self._stage, self._pid = Stage.ENTERING, os.getpid()
        self._loop = asyncio.get_running_loop()
        return True

    def entered(self) -> None:
        self._stage = Stage.OPEN

    def failed(self) -> None:
        """To be entered again."""
        self._stage = Stage.JOINED

    def leave(self, first: Callable[[], None]) -> bool:
        """Whether the node is to be closed: not where it was not entered, or is closed. Where its
        loop was closed before it, any loop may. `first` is done before the node refuses anything.
        Raises as `check_loop`."""
        self.check_process()
        if self._stage is Stage.ENTERING:
            raise NodeClosed(_NOT_OPEN[self._stage])
        if self._stage in (Stage.OPEN, Stage.CLOSING) and not self.loop.is_closed():
            self._check_own_loop()
        leaves = self._stage is Stage.OPEN
        if leaves:
            first()
            self._stage = Stage.CLOSING
        elif self._stage is Stage.JOINED:
            self._stage = Stage.CLOSED
        return leaves

    def left(self) -> None:
        self._stage = Stage.CLOSED

    def drop(self) -> bool:
        """The node is garbage. Whether it is open in this process, and so is to be closed now."""
        is_open = self._stage is Stage.OPEN and not self.is_foreign
        self._stage = Stage.CLOSED
        return is_open

    def _check_own_loop(self) -> None:
        if asyncio.get_running_loop() is not self.loop:
            state = "was closed" if self.loop.is_closed() else "is another than this"
            raise InvalidInput(
                "loop",
                f"the asyncio loop that entered the node {state}; call it on its own loop, join "
                "a node on this one, or use SyncNode, which any thread and loop may call",
            )
