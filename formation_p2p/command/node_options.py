"""The nodes of commands: of those that ask, and of those that run until Ctrl-C."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypedDict, TypeVar

from formation_p2p.command import flags
from formation_p2p.command.interrupt import Interrupt, end_with

if TYPE_CHECKING:
    from formation_p2p.api.node import Node
    from formation_p2p.command.local.client import Link
    from formation_p2p.machine.home import Home


N = TypeVar("N", bound="Node")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """Of a command that asks the network, through the node that runs from the home or one of its
    own: as a person wrote them."""

    home: Path | None = flags.HOME
    join: str | None = flags.JOIN
    as_json: bool = flags.JSON

    def place(self) -> Path:
        """Once: it joins the network of an invite."""
        return flags.folder_of(self.home, self.join)

    def reach(
        self, place: Path, may: Callable[[], None] | None = None, **own: Any
    ) -> AbstractAsyncContextManager[Link]:
        """See `reach` of local/client.py."""
        from formation_p2p.command.local.client import reach

        return reach(place, may=may, own=self.join is not None, **own)

    def ask(self, work: Callable[[Link, Path], Awaitable[int]]) -> NoReturn:
        """Have the work done by the node, and end the command with its exit code."""
        place = self.place()

        async def asked(_: Interrupt) -> int:
            async with self.reach(place) as node:
                return await work(node, place)

        end_with(asked)


class JoinKwargs(TypedDict):
    """Of `Node.join`."""

    metrics: str | None
    renew: bool
    mdns: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """As a person wrote them."""

    name: str | None = flags.NAME
    no_renew: bool = flags.NO_RENEW
    no_mdns: bool = flags.NO_MDNS
    metrics: str | None = flags.METRICS
    home: Path | None = flags.HOME
    join: str | None = flags.JOIN
    as_json: bool = flags.JSON

    def place(self) -> Home:
        """Raises InvalidInput, LocalError."""
        return flags.home_of(self.home, self.join, self.name)

    def kwargs(self) -> JoinKwargs:
        mdns = False if self.no_mdns else None
        return {"metrics": self.metrics, "renew": not self.no_renew, "mdns": mdns}


@asynccontextmanager
async def until_left(
    joining: N, place: Home, interrupt: Interrupt
) -> AsyncIterator[tuple[N, asyncio.Event]]:
    """The node, through which commands of its home go meanwhile, and what the first signal sets."""
    from formation_p2p.command.local.methods import commands_served

    leave = asyncio.Event()
    async with joining as node, commands_served(node, place.path):
        interrupt.first(leave.set, "leaving the network")
        # What was imported stays. The collector need not look through it each time, which is most
        # of what it does in a program that serves (docs/explanation/performance.md).
        gc.collect()
        gc.freeze()
        yield node, leave
