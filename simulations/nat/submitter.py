"""A machine that submits, as a process that is told what to do, and says what came of it.

    python -m simulations.nat.submitter

It reads a line of JSON for each step and answers with one. A node of it is a new member each time,
so that no node knows it from before.

| step | answer |
| --- | --- |
| `{"do": "join", "home": …, "worker": NAME}` | `first_task_s`: `Node.join` to result; `path` |
| `{"do": "enter", "home": …, "worker": NAME}` | as `join`, without a task |
| `{"do": "settle", "within_s": …}` | `path`, once it is no longer relayed; `settled_s` |
| `{"do": "tasks", "tasks": …}` | `task_p50_ms`: small calls, one after the other |
| `{"do": "load", "tasks": …, "mark": FILE, …}` | `lost`, `rerun`, `leases_lost`, `moved_s` |
| `{"do": "reach", "within_s": …}` | `reached_s`: until the worker answers |
| `{"do": "pings", "count": …}` | `p50_ms`, `p95_ms` |
| `{"do": "rate"}` | `rate_mb_s`: 16 MiB from the worker |
| `{"do": "bulk", "file": …}` | `mb_s`: one blob, from here to the worker |
| `{"do": "leave"}` | |
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from formation_p2p import FormationError, JobHandle, Node, ProcessSpec, python_calls
from formation_p2p.core.identity import PeerId
from formation_p2p.jobs.core.job_events import TaskPlaced, TaskSucceeded, WorkerLost
from formation_p2p.reach import stack  # noqa: F401 - before the clock runs: it takes a second
from formation_p2p.reach.core.paths import Path as Way

STEP_S: Final = 0.02
# An echo that has not come by now is lost with the connection.
PING_S: Final = 1.0
EVERY_S: Final = 0.05


class Submitter:
    """The node of the moment."""

    def __init__(self) -> None:
        self._node: Node | None = None
        self._worker = ""
        self._needs = ""

    @property
    def node(self) -> Node:
        assert self._node is not None, "join first"
        return self._node

    async def join(
        self, *, home: str, worker: str, within_s: float, listen: Sequence[str] = ()
    ) -> dict[str, Any]:
        self._needs = f"cpu=1,label.host={worker}"
        began_s = time.monotonic()
        joining = Node.join(home=Path(home), listen=listen)
        async with asyncio.timeout(within_s):
            self._node = await joining
            joined_s = time.monotonic() - began_s
            job = await self._node.submit(ProcessSpec(("true",)), needs=self._needs)
            (result,) = await job
        took_s = time.monotonic() - began_s
        if result.worker is None or result.error() is not None:
            raise RuntimeError(f"the first task failed: {result.error()}")
        self._worker = result.worker
        first = {"joined_s": joined_s, "first_task_s": took_s}
        return {**first, "path": await self._path()}

    async def enter(self, *, home: str, worker: str) -> dict[str, Any]:
        """As `join`, without a task: no connection to the worker is there yet."""
        self._needs = f"cpu=1,label.host={worker}"
        self._node = await Node.join(home=Path(home), listen=())
        return {}

    async def settle(self, *, within_s: float) -> dict[str, Any]:
        began_s = time.monotonic()
        while await self._path() in (None, Way.RELAYED):
            if time.monotonic() - began_s > within_s:
                break
            await asyncio.sleep(STEP_S)
        return {"path": await self._path(), "settled_s": time.monotonic() - began_s}

    async def tasks(self, *, tasks: int) -> dict[str, Any]:
        took_ms: list[float] = []
        with self.node.executor(needs=self._needs) as pool:
            for number in range(-1, tasks):  # the first brings the interpreter up
                began_s = time.monotonic()
                assert await asyncio.wrap_future(pool.submit(abs, number)) == abs(number)
                took_ms.append(1000 * (time.monotonic() - began_s))
        return {"task_p50_ms": median(took_ms[1:])}

    async def bulk(self, *, file: str) -> dict[str, Any]:
        """From here to the worker, which keeps it."""
        blob = await self.node.put(Path(file))
        began_s = time.monotonic()
        spec = ProcessSpec(("true",), inputs={"data": blob})
        (result,) = await (await self.node.submit(spec, needs=self._needs))
        if (error := result.error()) is not None:
            raise error
        took_s = time.monotonic() - began_s
        return {"mb_s": blob.size_bytes / took_s / 1e6}

    async def load(
        self, *, tasks: int, mark: str, file: str | None = None, sleep_s: float = 0.0
    ) -> dict[str, Any]:
        """Many tasks, and one with a large input beside them, which is asked for first: after them
        it would begin when they are over. Each of the many notes in `mark` that it ran."""
        jobs: list[JobHandle] = []
        if file is not None:
            blob = await self.node.put(Path(file))
            large = ProcessSpec(("true",), inputs={"data": blob})
            jobs.append(await self.node.submit(large, needs=self._needs))
        began_s = time.monotonic()
        calls = python_calls(note, [(number, mark, sleep_s) for number in range(tasks)])
        jobs.append(await self.node.submit(calls, needs=self._needs))
        seen: Counter[type] = Counter()
        took_s: list[float] = []

        async def count(job: JobHandle) -> None:
            async for event in job.events():
                seen[type(event)] += 1
                if isinstance(event, TaskPlaced):
                    self._worker = event.worker
            took_s.append(time.monotonic() - began_s)

        paths: list[str] = []
        moving = asyncio.create_task(self._moved(paths))
        await asyncio.gather(*map(count, jobs))
        moving.cancel()
        moved_s = (await asyncio.gather(moving, return_exceptions=True))[0]
        ran = Counter((await asyncio.to_thread(Path(mark).read_text)).split())
        return {
            "lost": tasks + len(jobs) - 1 - seen[TaskSucceeded],
            "rerun": sum(count - 1 for count in ran.values()),
            "leases_lost": seen[WorkerLost],
            # Of each job, the first to end first.
            "took_s": took_s,
            "load_s": max(took_s),
            "path": await self._path(),
            "first_path": paths[0] if paths else None,
            # On the clock of this machine, which its other processes have too.
            "moved_s": moved_s if isinstance(moved_s, float) else None,
        }

    async def reach(self, *, within_s: float) -> dict[str, Any]:
        """How long it takes until the worker answers."""
        began_s = time.monotonic()
        while True:
            try:
                async with asyncio.timeout(PING_S):
                    trip = await self.node.ping(self._worker)
            except (FormationError, TimeoutError):
                if time.monotonic() - began_s > within_s:
                    raise
                await asyncio.sleep(STEP_S)
            else:
                return {"reached_s": time.monotonic() - began_s, "path": trip.path}

    async def pings(self, *, count: int) -> dict[str, Any]:
        """One every EVERY_S, whatever the last one took."""
        took_ms: list[float] = []
        for _ in range(count):
            next_s = time.monotonic() + EVERY_S
            trip = await self.node.ping(self._worker)
            took_ms.append(trip.rtt_us / 1000)
            await asyncio.sleep(max(next_s - time.monotonic(), 0))
        return {"p50_ms": median(took_ms), "p95_ms": sorted(took_ms)[int(0.95 * count)]}

    async def rate(self) -> dict[str, Any]:
        """Of bytes from the worker, over the connection of the moment."""
        measured = await self.node.measure_rate(self._worker)
        return {"rate_mb_s": measured.bytes_per_s / 1e6, "path": measured.path}

    async def _moved(self, paths: list[str]) -> float:
        """When the way to the worker was no longer relayed. The ways seen are added to `paths`."""
        while True:
            path = await self._path()
            paths += [path] if path is not None else []
            if path not in (None, Way.RELAYED):
                return time.monotonic()
            await asyncio.sleep(STEP_S)

    async def leave(self) -> dict[str, Any]:
        self._worker = ""
        if self._node is not None:
            await self._node.close()
        self._node = None
        return {}

    async def _path(self) -> str | None:
        if not self._worker:
            return None
        worker = PeerId(self._worker)
        return await self.node._bridge.look(lambda shell: shell.stack.path_to(worker))


def note(what: tuple[int, str, float]) -> None:
    """A task, on the worker: its number, the file to write it to, and how long it takes."""
    number, mark, sleep_s = what
    time.sleep(sleep_s)
    with Path(mark).open("a") as file:
        file.write(f"{number}\n")


async def main() -> None:
    """Until the standard input ends."""
    submitter = Submitter()
    steps: dict[str, Callable[..., Awaitable[dict[str, Any]]]] = {
        each.__name__: each
        for each in (
            submitter.join,
            submitter.enter,
            submitter.settle,
            submitter.tasks,
            submitter.bulk,
            submitter.load,
            submitter.reach,
            submitter.rate,
            submitter.pings,
            submitter.leave,
        )
    }
    answer: dict[str, Any] = {"is": {}}
    print(json.dumps(answer), flush=True)  # all is imported
    while line := await asyncio.to_thread(sys.stdin.readline):
        step = json.loads(line)
        try:
            answer = {"is": await steps[step.pop("do")](**step)}
        except (FormationError, TimeoutError, RuntimeError) as error:
            answer = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    await submitter.leave()


if __name__ == "__main__":
    asyncio.run(main())
