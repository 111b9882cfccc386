"""The scheduler of `simulations.realchaos`: it goes on where its last incarnation stopped.

    python -m simulations.realscheduler HOME STATE MARK JOBS WORKERS

It submits one job after the other. When all of them have ended, it waits until every worker says
that its capacity is full again, prints what it saw, and ends.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import Final

from formation_p2p import Node, ProcessSpec
from formation_p2p.machine.core.capability import idle

# A worker announces its capacity when it has changed; a lease that nobody renews ends in 10 s. All
# of it takes longer on a busy machine. Past this it hangs.
FULL_S: Final = 180.0
LOOK_S: Final = 0.5
# A job every so often, so that there is work to do whatever befalls one of them.
TASKS: Final = 12
SUBMIT_S: Final = 1.5
# Of the tasks: many are short, and some go on for longer than the faults around them.
SECONDS: Final = ("0", "0.05", "0.3", "1", "2")


def work(mark: str) -> list[ProcessSpec]:
    """Each prints its own number. The mark is in the arguments of all that runs."""
    return [
        ProcessSpec(("sh", "-c", f": {mark}; sleep {SECONDS[n % len(SECONDS)]}; echo {n}"))
        for n in range(TASKS)
    ]


async def main(home: str, state: str, mark: str, jobs: str, workers: str) -> None:
    async with Node.join(home=Path(home), listen=(), state=state) as node:
        print(json.dumps({"event": "goes on"}), flush=True)
        for _ in range(len(await node.kept()), int(jobs)):
            await node.submit(work(mark), needs="cpu=1,memory=64MiB", attempts=20)
            await asyncio.sleep(SUBMIT_S)
        for job in node.jobs():
            await job
        print(json.dumps({"event": "done"}), flush=True)
        until_s = time.monotonic() + FULL_S
        while True:
            profiles = await node.workers()
            busy = [p.peer_id for p in profiles if p.capacity != idle(p.capability)]
            seen = {"seen": len(profiles), "busy": busy}
            if (len(profiles) >= int(workers) and not busy) or time.monotonic() > until_s:
                print(json.dumps({"event": "left", **seen}), flush=True)
                return
            await asyncio.sleep(LOOK_S)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
