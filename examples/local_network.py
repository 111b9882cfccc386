"""A network of processes on this machine: one gate, some workers, homes that are thrown away.

    async with LocalNetwork(workers=3) as network:
        async with Node.join(home=network.home, listen=()) as node:
            ...

Each process is this file, run with a home and a role. It serves until its standard input ends,
so that none outlives the one that started it, however that one ends.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from formation_p2p import Limits, Node
from formation_p2p.host.home import Home
from formation_p2p.trust.grants import Rights
from formation_p2p.trust.network import parse_join_string

LOOPBACK = "/ip4/127.0.0.1/tcp/0"
# A process imports for a second or two, on a cold disk and a busy machine for many.
START_S = 60.0
# A node that leaves withdraws its profile first, which takes two seconds at most.
LEAVE_S = 10.0
# How long the network lasts if nobody ends it.
GRANT_S = 24 * 3600


@dataclass(frozen=True)
class Member:
    """A process of the network and where it is reached."""

    peer_id: str
    address: str
    process: Process

    def kill(self) -> None:
        """SIGKILL: the process gets no chance to say goodbye."""
        self.process.kill()

    async def end(self) -> None:
        """Have it leave in good order, or kill it by its id where it does not."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), LEAVE_S)
        finally:
            with suppress(ProcessLookupError):  # it has ended
                self.process.kill()


class LocalNetwork:
    """`home` is that of the person who submits. Entering raises RuntimeError where a process
    does not come up."""

    def __init__(self, *, workers: int, cpu_milli: int = 1000) -> None:
        self.workers: list[Member] = []
        self._worker_count = workers
        self._cpu_milli = cpu_milli
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> Self:
        try:
            await asyncio.wait_for(self._start(), START_S)
        except BaseException:
            await self._exit.aclose()
            raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._exit.aclose()

    async def _start(self) -> None:
        folder = tempfile.TemporaryDirectory(prefix="formation-", ignore_cleanup_errors=True)
        root = Path(self._exit.enter_context(folder))
        founder = Home(root / "gate")
        founder.create_network()
        self.gate = await self._member(founder, "gate")
        founder.add_gate(self.gate.address)
        self.join_string = founder.invite(Rights(int(time.time()) + GRANT_S))
        homes = [Home(root / f"worker-{number}") for number in range(self._worker_count)]
        self.home = root / "person"
        for home in (*homes, Home(self.home)):
            home.join(parse_join_string(self.join_string))
        starting = [self._member(home, str(self._cpu_milli)) for home in homes]
        self.workers = await asyncio.gather(*starting)

    async def _member(self, home: Home, role: str) -> Member:
        command = (sys.executable, __file__, str(home.path), role)
        # In a session of its own: Ctrl-C is for the one that started it to act on.
        process = await asyncio.create_subprocess_exec(
            *command, stdin=PIPE, stdout=PIPE, start_new_session=True
        )
        ...
