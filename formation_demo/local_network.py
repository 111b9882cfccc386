"""A network of processes on this machine: one gate, some workers, homes that are thrown away.

    async with LocalNetwork(workers=3) as network:
        async with Node.join(network.invite, home=network.home, listen=()) as node:
            await network.seen_by(node)
            print(await node.map(abs, [-1, -2, -3]))

Each process is this file, run with a home and what it is to be. It reads the invite, if it
needs one, from its standard input and serves until that ends, so that none outlives the process
that started it, however that one ends.
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
from typing import Final, Literal, Self

from formation_p2p import Home, Limits, Node, Rights

Sandbox = Literal["off", "auto", "required"]

LOOPBACK: Final = "/ip4/127.0.0.1/tcp/0"
# A process imports for a second or two; on a cold disk, or a busy machine, for many. Past this it
# hangs.
START_S: Final = 300.0
# A worker announces itself when it has met its first neighbours, as soon as it runs.
ANNOUNCED_S: Final = 120.0
# Leaving takes two seconds at most; then the process is killed.
LEAVE_S: Final = 10.0
# How long the network lasts if nobody ends it.
GRANT_S: Final = 24 * 3600


@dataclass(frozen=True)
class NodeProcess:
    """A gate or a worker. `address` is a multiaddr with its peer id."""

    peer_id: str
    address: str
    process: Process

    def kill(self) -> None:
        """SIGKILL: it gets no chance to say goodbye."""
        self.process.kill()


class LocalNetwork:
    """`home` is for whoever submits. Entering raises RuntimeError where a process does not come
    up, and TimeoutError."""

    def __init__(self, *, workers: int, cpu_milli: int = 1000, sandbox: Sandbox = "auto") -> None:
        self.workers: list[NodeProcess] = []
        self._worker_count = workers
        self._offers = (str(cpu_milli), sandbox)
        self._processes: list[Process] = []
        self._exit = AsyncExitStack()

    async def __aenter__(self) -> Self:
        folder = tempfile.TemporaryDirectory(prefix="formation-", ignore_cleanup_errors=True)
        root = Path(self._exit.enter_context(folder))
        self._exit.push_async_callback(self._end_all)
        try:
            async with asyncio.timeout(START_S):
                await self._start(root)
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

    async def seen_by(self, node: Node) -> None:
        """Returns once a node finds all of the workers. Raises RuntimeError."""
        until_s = time.monotonic() + ANNOUNCED_S
        # A network has no list of its members that could tell of a change: one asks it.
        while (found := len(await node.workers())) < len(self.workers):
            if time.monotonic() > until_s:
                raise RuntimeError(f"only {found} workers were found within {ANNOUNCED_S:.0f} s")
            await asyncio.sleep(0.05)

    async def _start(self, root: Path) -> None:
        self.home = root / "person"
        gate_home = Home(root / "gate")
        gate_home.create_network()
        self.gate = await self._run("", root / "gate", "gate")
        gate_home.add_gate(self.gate.address)
        self.invite = gate_home.invite(Rights(int(time.time()) + GRANT_S))
        homes = [root / f"worker-{number}" for number in range(1, self._worker_count + 1)]
        starting = [self._run(self.invite, home, "worker", *self._offers) for home in homes]
        self.workers += await asyncio.gather(*starting)

    async def _run(self, invite: str, home: Path, *role: str) -> NodeProcess:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, __file__, str(home), *role),
            stdin=PIPE,
            stdout=PIPE,
            start_new_session=True,  # Ctrl-C is for the one that started it to act on
        )
        self._processes.append(process)
        assert process.stdin is not None
        assert process.stdout is not None
        # A secret, and everyone can see the arguments of a program.
        process.stdin.write(f"{invite}\n".encode())
        address = (await process.stdout.readline()).decode().strip()
        if not address:
            raise RuntimeError(f"a {role[0]} did not start; what it said is above")
        return NodeProcess(address.rpartition("/")[2], address, process)

    async def _end_all(self) -> None:
        """The gate last: workers that outlive it say that they dial it again."""
        try:
            await asyncio.gather(*map(end, self._processes[1:]))
        finally:
            await asyncio.gather(*map(end, self._processes[:1]))


async def end(process: Process) -> None:
    """Have it leave in good order, or kill it by its id where it does not."""
    assert process.stdin is not None
    process.stdin.close()
    try:
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), LEAVE_S)
    finally:
        with suppress(ProcessLookupError):  # it has ended, as it should have
            process.kill()
    await process.wait()


async def _serve(home: str, role: str, cpu_milli: str = "", sandbox: Sandbox = "auto") -> None:
    invite = sys.stdin.readline().strip() or None
    async with Node.join(invite, home=home, listen=[LOOPBACK]) as node:
        if role == "worker":
            await node.worker(limits=Limits(cpu_milli=int(cpu_milli)), sandbox=sandbox)
        print(node.addresses[0], flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(_serve(*sys.argv[1:]))  # type: ignore[arg-type]
