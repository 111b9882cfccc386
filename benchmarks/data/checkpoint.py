"""What a checkpoint costs on loopback, beside a plain TCP copy of as many bytes.

    python -m benchmarks.data.checkpoint [--json] [--mib 100] [--rounds 5]
    python -m benchmarks.data.checkpoint --small 200

The submitter and three workers are processes of their own, on the disk of one machine. `wall_s` is
the time from the return of the task's call of `checkpoint` until the submitter tells `TaskSaved`:
it and the two other workers have the content by then. `cpu_s` is what all of them use until then,
and what the task uses to write the file. The figures are medians of the rounds.

`--small` has a task save 1 KiB so often instead, twice a second: `cpu_ms` is what all processes use
for one of them, beyond what they use while the task saves nothing, before and after.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import statistics
import sys
import tempfile
import time
from bisect import bisect
from itertools import pairwise
from pathlib import Path
from typing import Final

import cloudpickle

from benchmarks.command import run_and_exit
from benchmarks.cpu import tree_s
from benchmarks.data.blob import tcp_round
from formation_demo.local_network import LocalNetwork
from formation_p2p import Node, TaskSaved, checkpoint, python_call, value_of
from formation_p2p.core.units import KIB, MIB

# Nothing here takes longer.
DEADLINE_S: Final = 300.0
# Before each round, so that the one before is over.
PAUSE_S: Final = 4.0
# How often the processor time of all processes is read, and how long before a checkpoint it is
# at rest.
SAMPLE_S: Final = 0.1
WRITING_S: Final = 0.5
# A task that saves more often than twice a second has the newest counted.
SMALL_EVERY_S: Final = 0.55
SMALL_SAMPLE_S: Final = 1.0

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def saving(size_bytes: int, rounds: int, pause_s: float) -> list[float]:
    """Saves so often; returns when each was saved, in Unix time."""
    saved_s = []
    for _ in range(rounds):
        content = os.urandom(size_bytes)
        time.sleep(pause_s)
        checkpoint(content)
        saved_s.append(time.time())
    time.sleep(pause_s)
    return saved_s


def saving_little(saves: int, every_s: float) -> tuple[float, ...]:
    """Saves so often, and for half as long before and after that it does not; returns when each
    part begins and ends, in Unix time."""
    time.sleep(PAUSE_S)
    begins_s = time.time()
    time.sleep(saves * every_s / 2)
    saves_s = time.time()
    for _ in range(saves):
        checkpoint(os.urandom(KIB))
        time.sleep(every_s)
    saved_s = time.time()
    time.sleep(saves * every_s / 2)
    return begins_s, saves_s, saved_s, time.time()


async def sampled(into: list[tuple[float, float]], every_s: float = SAMPLE_S) -> None:
    """The processor time of all processes, until cancelled."""
    while True:
        into.append((time.time(), tree_s()))
        await asyncio.sleep(every_s)


async def measure_small(saves: int) -> dict[str, float]:
    counted: set[int] = set()
    samples: list[tuple[float, float]] = []
    async with (
        asyncio.timeout(DEADLINE_S + 2 * saves * SMALL_EVERY_S),
        LocalNetwork(workers=3) as network,
        Node.join(network.invite, home=network.home, listen=()) as node,
    ):
        await network.seen_by(node)
        call = python_call(saving_little, saves, SMALL_EVERY_S)
        job = await node.submit(call, needs="cpu=0.5,memory=1GiB")
        sampling = asyncio.create_task(sampled(samples, SMALL_SAMPLE_S))
        async for event in job.events():
            if isinstance(event, TaskSaved):
                counted.add(event.checkpoint.sequence)
        (result,) = await job
        times_s: tuple[float, ...] = value_of(result)
        await asyncio.sleep(2 * SMALL_SAMPLE_S)
        sampling.cancel()
    # Of each part, from the samples next to its ends.
    marks = [samples[bisect(samples, (at_s,))] for at_s in times_s]
    spans = [(end[0] - begin[0], end[1] - begin[1]) for begin, end in pairwise(marks)]
    (before_s, before_cpu_s), (during_s, during_cpu_s), (after_s, after_cpu_s) = spans
    idle = (before_cpu_s + after_cpu_s) / (before_s + after_s)
    return {
        "saves": saves,
        "counted": len(counted),
        "cpu_ms": round((during_cpu_s - idle * during_s) / saves * 1000, 2),
        "idle_cpu_ms_per_s": round(idle * 1000, 1),
        "load": round(os.getloadavg()[0], 1),
    }


async def measure(mib: int, rounds: int) -> dict[str, float]:
    counted_s: dict[int, float] = {}
    samples: list[tuple[float, float]] = []
    async with (
        asyncio.timeout(DEADLINE_S),
        LocalNetwork(workers=3) as network,
        Node.join(network.invite, home=network.home, listen=()) as node,
    ):
        await network.seen_by(node)
        call = python_call(saving, mib * MIB, rounds, PAUSE_S)
        job = await node.submit(call, needs="cpu=0.5,memory=1GiB,storage=1GiB")
        sampling = asyncio.create_task(sampled(samples))
        async for event in job.events():
            if isinstance(event, TaskSaved) and len(event.holders) >= 2:
                counted_s.setdefault(event.checkpoint.sequence, time.time())
        sampling.cancel()
        (result,) = await job
        saved_s: list[float] = value_of(result)
    times = [at for at, _ in samples]

    def cpu_at(at_s: float) -> float:
        return samples[min(bisect(times, at_s), len(samples) - 1)][1]

    ends = [counted_s[number] for number in sorted(counted_s)]
    pairs = list(zip(saved_s, ends, strict=True))
    walls = [end - begin for begin, end in pairs]
    cpus = [cpu_at(end) - cpu_at(begin - WRITING_S) for begin, end in pairs]
    return {
        "mib": mib,
        "rounds": rounds,
        "wall_s": round(statistics.median(walls), 3),
        "wall_max_s": round(max(walls), 3),
        "cpu_s": round(statistics.median(cpus), 2),
        "tcp_copy_s": round(tcp_copy_s(mib, rounds), 3),
        "load": round(os.getloadavg()[0], 1),
    }


def tcp_copy_s(mib: int, rounds: int) -> float:
    with tempfile.TemporaryDirectory() as disk:
        source, into = Path(disk) / "source", Path(disk) / "into"
        source.write_bytes(os.urandom(mib * MIB))
        taken_s = []
        for _ in range(rounds):
            taken_s.append(tcp_round(source, str(into)))
            into.unlink()
    return statistics.median(taken_s)


async def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one line of JSON")
    parser.add_argument("--mib", type=int, default=100)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--small", type=int, metavar="N", help="N times 1 KiB instead")
    said = parser.parse_args()
    figures = await (measure_small(said.small) if said.small else measure(said.mib, said.rounds))
    if said.json:
        print(json.dumps(figures))
    else:
        for name, figure in figures.items():
            print(f"{name:17} {figure:>10}")
    return 0


if __name__ == "__main__":
    run_and_exit(main())
