"""A computation in steps that goes on elsewhere: moved once, and once its worker is killed.

python -m examples.steps
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Generator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # where `examples` is

from formation_demo.local_network import LocalNetwork
from formation_p2p import Node, TaskPlaced, TaskSaved, value_of

STEPS = 30


def estimate(last: tuple[int, float, int] | None) -> Generator[tuple[int, float, int], None, str]:
    """Leibniz' series for pi. What it yields is what it goes on from, in another process."""
    done, found, processes = last or (0, 0.0, 0)
    processes += 1
    for number in range(done, STEPS):
        for n in range(number * 1000, (number + 1) * 1000):
            found += (-1) ** n * 4 / (2 * n + 1)
        time.sleep(0.1)
        yield number + 1, found, processes
    return f"{found:.4f} after {STEPS} steps in {processes} processes"


async def main() -> None:
    async with (
        LocalNetwork(workers=3) as network,
        Node.join(network.invite, home=network.home, listen=()) as node,
    ):
        await network.seen_by(node)
        job = await node.submit_steps(estimate, needs="cpu=0.5,memory=128MiB")
        events = job.events()
        workers = {each.peer_id: each for each in network.workers}
        at, moved_from, is_killed = "", "", False
        async for event in events:
            if isinstance(event, TaskPlaced):
                at = event.worker
            elif isinstance(event, TaskSaved) and not moved_from:
                moved_from = at
                job.move()
            elif isinstance(event, TaskSaved) and at != moved_from and not is_killed:
                is_killed = True
                workers[at].kill()
        (result,) = await job
        print(f"pi is about {value_of(result)}")


if __name__ == "__main__":
    asyncio.run(main())
