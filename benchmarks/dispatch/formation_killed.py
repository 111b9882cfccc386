"""Ours: a worker of three gets a SIGKILL under its tasks; when do all of them run elsewhere?

Each task takes a fifth of a second, and there are more than the workers can run meanwhile, so
what was lost has to compete with what waits. A new worker takes the dead one's place each time.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import random
import time
from typing import Final

from benchmarks.dispatch.nodes import NEEDS, Worker, Workers
from benchmarks.dispatch.recovery import Recovery, Told, recovery
from benchmarks.dispatch.tasks import nap
from benchmarks.dispatch.timing import percentile, put
from formation_p2p import Node, TaskBegan, python_calls

WORKERS: Final = 3
NAP_S: Final = 0.2
# Three seconds' work for all three.
TASKS: Final = 45
# After the first task of the worker has begun, the blow falls at some moment of this.
WITHIN_S: Final = 0.5
# The job, with a third of the workers lost on the way.
JOB_S: Final = 60.0


async def kill_one(node: Node, victim: Worker) -> Recovery:
    reported: list[Told] = []
    killed_s = float("inf")

    def kill() -> None:
        nonlocal killed_s
        killed_s = time.perf_counter()
        victim.kill()

    armed = False
    job = await node.submit(python_calls(nap, [NAP_S] * TASKS), needs=NEEDS)
    async for event in job.events():
        reported.append(Told(time.perf_counter(), event))
        if not armed and isinstance(event, TaskBegan) and event.worker == victim.peer_id:
            armed = True
            asyncio.get_running_loop().call_later(random.uniform(0, WITHIN_S), kill)
    assert all(result.status == "succeeded" for result in await job)
    return recovery(reported, victim.peer_id, killed_s)


async def main(kills: int) -> None:
    importlib.import_module("formation_p2p.reach.stack")  # which the node imports late
    recoveries: list[Recovery] = []
    async with Workers(WORKERS) as workers, workers.scheduler() as node:
        for _ in range(kills):
            # The first one is the address that newcomers join at.
            victim = workers.all.pop()
            async with asyncio.timeout(JOB_S):
                recoveries.append(await kill_one(node, victim))
            workers.all.append(await workers.add())
            await workers.seen_by(node, {worker.peer_id for worker in workers.all})
    took_s = [each.took_s for each in recoveries if each.tasks]
    put(
        {
            "killed_worker_p95_s": round(percentile(took_s, 95), 3),
            "killed_worker_p50_s": round(percentile(took_s, 50), 3),
            "kills": len(took_s),
            "tasks_lost": sum(each.tasks for each in recoveries),
        }
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=12)
    asyncio.run(main(parser.parse_args().kills))
