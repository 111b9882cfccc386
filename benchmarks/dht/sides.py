"""The networks that are compared, each as processes that this one starts and ends by their id."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from abc import ABC, abstractmethod
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, Self

from benchmarks.dht.lines import Line

ROOT: Final = Path(__file__).parents[2]
# A process that was told to end has this long, before it is killed.
END_S: Final = 5.0
# One line of JSON: a node's answer to `find`, or the ids of all nodes.
MAX_LINE_BYTES: Final = 1 << 20


class BenchmarkError(Exception):
    """A side did not do what it was told to; the message says which, and what."""


class NotFound(BenchmarkError):
    """A search ended without what had been announced."""


class Place(NamedTuple):
    """A node: the process it is in, and its number there."""

    process: int
    node: int


@dataclass(frozen=True)
class Announced:
    """`key` is where the record lies among `Side.keys`."""

    s: float
    key: int


class Side(ABC):
    """A network of nodes. `start` once; `close` however that ends. Times are in seconds."""

    name: str
    version: str
    keys: list[int]
    """Where each node stands in the key space of this network."""

    @abstractmethod
    async def start(self) -> None:
        """Returns once every node is up and has found every other."""

    @abstractmethod
    async def announce(self, node: int, name: str) -> Announced: ...

    @abstractmethod
    async def find(self, node: int, name: str, author: int) -> float:
        """Raises NotFound where `author`, who announced it, is not."""

    @abstractmethod
    async def closest(self, node: int) -> float: ...

    @abstractmethod
    async def close(self) -> None: ...

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class NodeProcess:
    """One process of `benchmarks/dht/*_nodes.py`."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._turn = asyncio.Lock()

    @classmethod
    async def spawn(cls, module: str) -> Self:
        return cls(
            await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", f"benchmarks.dht.{module}"),
                stdin=PIPE,
                stdout=PIPE,
                cwd=ROOT,
                limit=MAX_LINE_BYTES,
                start_new_session=True,  # Ctrl-C is for the one that started it to act on
            )
        )

    async def tell(self, **order: object) -> Line:
        """An order, and what is answered to it."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        async with self._turn:
            self.process.stdin.write(json.dumps(order).encode() + b"\n")
            text = await self.process.stdout.readline()
        if not text:
            raise BenchmarkError(f"a process ended at {order['do']}; what it said is above")
        line: Line = json.loads(text)
        return line

    def kill(self) -> None:
        """SIGKILL: it gets no chance to say goodbye."""
        self.process.kill()

    async def end(self) -> None:
        await ended(self.process)


async def ended(process: Process) -> None:
    """Have a process end, or kill it by its id where it does not."""
    try:
        with suppress(TimeoutError, ProcessLookupError):
            if process.stdin is not None:
                process.stdin.close()
            else:
                process.send_signal(signal.SIGTERM)
            await asyncio.wait_for(process.wait(), END_S)
    finally:
        with suppress(ProcessLookupError):  # it has ended, as it should have
            process.kill()
    await process.wait()


class PythonSide(Side):
    """Nodes in Python processes, `counts` of them in each."""

    def __init__(self, name: str, module: str, version: str, counts: Sequence[int]) -> None:
        self.name = name
        self.version = version
        self.keys = []
        self.ids: list[str] = []
        self.processes: list[NodeProcess] = []
        self._module = module
        self._counts = counts
        self._places: list[Place] = []

    async def start(self) -> None:
        root = os.urandom(32).hex()
        for _ in self._counts:
            self.processes.append(await NodeProcess.spawn(self._module))
        first, *others = zip(self.processes, self._counts, strict=True)
        # The gate's process begins as soon as it can; the others import meanwhile.
        up = [await first[0].tell(do="start", root=root, count=first[1], gates=[])]
        gates = [up[0]["gate"]]
        up += await asyncio.gather(
            *(p.tell(do="start", root=root, count=count, gates=gates) for p, count in others)
        )
        for process, line in enumerate(up):
            self.ids += line["ids"]
            self.keys += [int(key, 16) for key in line["keys"]]
            self._places += [Place(process, node) for node in range(len(line["ids"]))]
        await asyncio.gather(*(p.tell(do="finds_all", ids=self.ids) for p in self.processes))

    async def announce(self, node: int, name: str) -> Announced:
        line = await self.tell(node, do="announce", name=name)
        if not line["stored"]:
            raise BenchmarkError(f"{self.name}: nobody stored {name}")
        return Announced(line["s"], int(line["key"], 16))

    async def find(self, node: int, name: str, author: int) -> float:
        line = await self.tell(node, do="find", name=name)
        if not {self.ids[author], ""} & set(line["found"]):
            raise NotFound(f"{self.name}: {name} was not found")
        seconds: float = line["s"]
        return seconds

    async def closest(self, node: int) -> float:
        line = await self.tell(node, do="closest")
        if not line["found"]:
            raise BenchmarkError(f"{self.name}: nobody is close")
        seconds: float = line["s"]
        return seconds

    async def tell(self, node: int, **order: object) -> Line:
        place = self._places[node]
        return await self.processes[place.process].tell(**order, node=place.node)

    async def close(self) -> None:
        await asyncio.gather(*(process.end() for process in self.processes))
