"""Many processes that end at once, `true` each: ours by `submit`, with and without a state, beside
HyperQueue and `xargs` on the same cores.

    python -m benchmarks.trues [--json] [--tasks 2000] [--rounds 3] [--only formation,hyperqueue]

Ours has two worker processes; HyperQueue, of the environment that `make bench-dispatch` makes, a
server and two workers of a core each. Both keep what each process prints. `wall_s` is from the
submission to the end of the last process, `cpu_s` the processor time of the whole side; medians.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, chdir
from functools import partial
from pathlib import Path
from typing import Any, Final

from benchmarks.command import listed, run_and_exit
from benchmarks.cpu import spent
from benchmarks.dispatch.timing import put

SIDES: Final = ("formation", "formation_state", "hyperqueue", "xargs")
NEEDS: Final = "cpu=1,memory=64MiB"
WARM_TASKS: Final = 50
# Nothing here takes longer, for 2,000 processes on two busy cores.
DEADLINE_S: Final = 600.0

# So many processes, all submitted together; returns once all have ended.
Run = Callable[[int], Awaitable[None]]


@asynccontextmanager
async def formation(folder: Path, *, keeps: bool) -> AsyncIterator[Run]:
    """With a state where it `keeps` its jobs."""
    from benchmarks.dispatch.nodes import Workers  # the other interpreter has none of ours
    from formation_p2p import ProcessSpec

    state = folder / "state.sqlite" if keeps else None
    async with Workers(2, drivers=("process",)) as workers, workers.scheduler(state=state) as node:

        async def run(count: int) -> None:
            specs = [ProcessSpec(("true",))] * count
            job = await node.submit(specs, needs=NEEDS, show_output=False)
            assert all(each.status == "succeeded" for each in await job)

        yield run


@asynccontextmanager
async def hyperqueue(folder: Path) -> AsyncIterator[Run]:
    from hyperqueue import Job
    from hyperqueue.cluster import LocalCluster, WorkerConfig

    # It writes what each prints into the current folder.
    with chdir(folder), LocalCluster(str(folder)) as cluster:
        for _ in range(2):
            cluster.start_worker(WorkerConfig(cores=1))
        client = cluster.client()

        async def run(count: int) -> None:
            job = Job()
            for _ in range(count):
                job.program(["true"])
            client.wait_for_jobs([client.submit(job)])

        yield run


@asynccontextmanager
async def xargs(folder: Path) -> AsyncIterator[Run]:
    async def run(count: int) -> None:
        command = ("xargs", "-P", "2", "-n", "1", "true")
        process = await asyncio.create_subprocess_exec(*command, stdin=PIPE)
        await process.communicate(b"x\n" * count)
        assert process.returncode == 0

    yield run


OPENED: Final[dict[str, Callable[[Path], Any]]] = {
    "formation": partial(formation, keeps=False),
    "formation_state": partial(formation, keeps=True),
    "hyperqueue": hyperqueue,
    "xargs": xargs,
}


async def measure(side: str, arguments: argparse.Namespace) -> None:
    """In the process of one side."""
    walls_s, cpus_s = [], []
    with tempfile.TemporaryDirectory() as folder:
        async with OPENED[side](Path(folder)) as run:
            await run(WARM_TASKS)
            for _ in range(arguments.rounds):
                with spent() as took:
                    await run(arguments.tasks)
                walls_s.append(round(took.wall_s, 2))
                cpus_s.append(round(took.cpu_s, 2))
    medians = {"wall_s": statistics.median(walls_s), "cpu_s": statistics.median(cpus_s)}
    put({**medians, "rounds_s": walls_s, "tasks": arguments.tasks})


async def main(arguments: argparse.Namespace) -> int:
    from benchmarks.dispatch.parts import PEERS_PYTHON
    from benchmarks.dispatch.processes import SideFailed, adopt_orphans, run_side

    adopt_orphans()
    found: dict[str, Any] = {}
    for side in arguments.only:
        python = PEERS_PYTHON if side == "hyperqueue" else sys.executable
        given = (f"--side={side}", f"--tasks={arguments.tasks}", f"--rounds={arguments.rounds}")
        try:
            found[side] = await run_side(python, ("benchmarks.trues", *given), {}, DEADLINE_S)
        except SideFailed as failure:
            found[side] = {"failed": str(failure)}
        if not arguments.json:
            print(f"{side:16} {found[side]}", flush=True)
    if arguments.json:
        print(json.dumps(found))
    return 1 if any("failed" in each for each in found.values()) else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--tasks", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", type=listed(SIDES), default=SIDES, metavar="SIDE,…")
    parser.add_argument("--side", choices=SIDES, help="one side, in this process")
    chosen = parser.parse_args()
    if chosen.side:
        asyncio.run(measure(chosen.side, chosen))
    else:
        run_and_exit(main(chosen))
