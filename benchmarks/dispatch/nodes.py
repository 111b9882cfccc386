"""A private network without a gate, on loopback: worker processes, homes that are thrown away.

The first worker is the address in the invite. Each worker process is this file, run as a
module with a home and what it offers; it reads the invite, if it needs one, from its
standard input and serves until that ends, so that none outlives the process that started it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import sys
import tempfile
import time
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from benchmarks.dispatch.processes import ROOT
from benchmarks.dispatch.profiles import profiled
from formation_demo.local_network import end
from formation_p2p import Home, Limits, Node, Rights
from formation_p2p.api.config import NodeConfig

LOOPBACK: Final = "/ip4/127.0.0.1/tcp/0"
# One task at a time on each worker: two workers are two processes that run tasks.
WORKER_CPU_MILLI: Final = 1000
NEEDS: Final = "cpu=1,memory=256MiB,driver=python"
# Leases stay warm between the rounds, as the processes of the others do.
LINGER_S: Final = 10.0
# A process imports for a second or two, on a busy machine for many.
START_S: Final = 60.0
# A worker announces itself when it has met its first neighbours.
ANNOUNCED_S: Final = 15.0
AGAIN_S: Final = 0.02
# How long the network lasts if nobody ends it.
GRANT_S: Final = 3600


class Apart(Node):
    """As if on a machine of its own: what is large goes to others over the network alone."""

    def __init__(self, config: NodeConfig) -> None:
        super().__init__(replace(config, shares_memory=False))


@dataclass(frozen=True)
class Worker:
    peer_id: str
    process: Process

    def kill(self) -> None:
        """SIGKILL: it gets no chance to say goodbye."""
        self.process.kill()


class Workers:
    """`async with Workers(2) as workers`. Entering raises RuntimeError where one does not come
    up, and TimeoutError."""

    def __init__(
        self, count: int, *, drivers: Sequence[str] = ("python",), apart: bool = False
    ) -> None:
        """With `apart` each of its nodes is as if on a machine of its own."""
        self.all: list[Worker] = []
        self._count = count
        self._apart = apart
        self._offers = [f"--driver={driver}" for driver in drivers]
        if apart:
            self._offers.append("--apart")
        self._homes = 0
        self._invite = ""
        self._processes: list[Process] = []
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> Self:
        folder = tempfile.TemporaryDirectory(prefix="formation-", ignore_cleanup_errors=True)
        self._root = Path(self._exit.enter_context(folder))
        self._exit.push_async_callback(self._end_all)
        try:
            home = Home(self.new_home())
            home.create_network()
            first, address = await self._run("", home.path)
            home.add_gate(address)
            self._invite = home.invite(Rights(int(time.time()) + GRANT_S))
            self.all += [first, *await asyncio.gather(*(self.add() for _ in range(1, self._count)))]
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

    def new_home(self) -> Path:
        """A folder of the network's own that nobody else has."""
        self._homes += 1
        return self._root / str(self._homes)

    async def add(self, *pythons: str, interpreter: str = sys.executable) -> Worker:
        """One more, which `interpreter` runs; it offers that one's version, or these."""
        worker, _ = await self._run(self._invite, self.new_home(), interpreter, pythons)
        return worker

    @asynccontextmanager
    async def newcomer(self, *, state: Path | None = None) -> AsyncIterator[Node]:
        """A node of a new identity, in this process, that has met every worker."""
        kind = Apart if self._apart else Node
        joining = kind.join(self._invite, home=self.new_home(), listen=(), state=state)
        async with joining as node:
            until_s = time.monotonic() + ANNOUNCED_S
            while (met := await node.neighbours()) < len(self.all):
                if time.monotonic() > until_s:
                    raise RuntimeError(f"only {met} workers were met in {ANNOUNCED_S:.0f} s")
                await asyncio.sleep(AGAIN_S)
            yield node

    @asynccontextmanager
    async def scheduler(self, *, state: Path | None = None) -> AsyncIterator[Node]:
        """The same, and it finds every worker. It keeps its jobs in `state`, if that is given."""
        async with self.newcomer(state=state) as node:
            await self.seen_by(node, {worker.peer_id for worker in self.all})
            yield node

    async def seen_by(self, node: Node, workers: Collection[str]) -> None:
        """Returns once a node finds all of these. Raises RuntimeError."""
        until_s = time.monotonic() + ANNOUNCED_S
        while missing := set(workers) - {found.peer_id for found in await node.workers()}:
            if time.monotonic() > until_s:
                raise RuntimeError(f"not found in {ANNOUNCED_S:.0f} s: {', '.join(missing)}")
            await asyncio.sleep(AGAIN_S)

    async def _run(
        self,
        invite: str,
        home: Path,
        interpreter: str = sys.executable,
        pythons: Sequence[str] = (),
    ) -> tuple[Worker, str]:
        process = await asyncio.create_subprocess_exec(
            *(interpreter, "-m", "benchmarks.dispatch.nodes", *self._offers, str(home), *pythons),
            stdin=PIPE,
            stdout=PIPE,
            cwd=ROOT,
            start_new_session=True,  # Ctrl-C is for the one that started it to act on
        )
        self._processes.append(process)
        assert process.stdin is not None
        assert process.stdout is not None
        # A secret, and everyone can see the arguments of a program.
        process.stdin.write(f"{invite}\n".encode())
        async with asyncio.timeout(START_S):
            address = (await process.stdout.readline()).decode().strip()
        if not address:
            raise RuntimeError("a worker did not start; what it said is above")
        return Worker(address.rpartition("/")[2], process), address

    async def _end_all(self) -> None:
        await asyncio.gather(*(end(process) for process in self._processes))


async def _serve(offers: argparse.Namespace) -> None:
    invite = sys.stdin.readline().strip() or None
    importlib.import_module("formation_p2p.reach.stack")  # which the node imports late
    with profiled(f"worker-{offers.home.name}"):
        kind = Apart if offers.apart else Node
        async with kind.join(invite, home=offers.home, listen=[LOOPBACK]) as node:
            gc.collect()
            gc.freeze()  # as `formation worker` does once it has started
            limits = Limits(cpu_milli=WORKER_CPU_MILLI)
            await node.worker(drivers=offers.driver, limits=limits, pythons=offers.pythons)
            print(node.addresses[0], flush=True)
            await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--driver", action="append", required=True)
    parser.add_argument("--apart", action="store_true", help="as if on a machine of its own")
    parser.add_argument("home", type=Path)
    parser.add_argument("pythons", nargs="*")
    asyncio.run(_serve(parser.parse_args()))
