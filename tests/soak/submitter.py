"""A submitter of the soak: it goes on where its last incarnation was killed, and tells all.

    python -m tests.soak.submitter HOME STATE SEED

It prints a line of JSON for each job that it was told is kept, for each whose results it has
compared, and for what was wrong. Again and again it waits for all that is under way, and tells what
memory it has then. SIGTERM: it submits no more, waits for all that is under way, says `done` and
ends.
"""

import asyncio
import hashlib
import json
import math
import random
import signal
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path
from typing import Final

import cloudpickle

from formation_p2p import FormationError, InvalidInput, JobHandle, Node, Retention
from formation_p2p.core.errors import StateError
from formation_p2p.jobs.core.job_events import TaskEnd
from tests.soak import calls
from tests.soak.calls import digest
from tests.soak.jobs import HEAVY, KINDS, NEEDS, Drawn
from tests.soak.memory import kept_bytes

# Under way at once: half of what the workers can take, so that there is room for others' jobs.
MAX_JOBS: Final = 3
PAUSE_S: Final = (0.3, 1.2)
# What is under way ends once in so long, before more is submitted.
REST_S: Final = 10.0
# Kept once they have ended: few, so that the file is pruned all the time; more than end between the
# end of a job and the moment at which its results were compared.
KEPT_JOBS: Final = 50

# Not the package `tests` as a whole.
cloudpickle.register_pickle_by_value(calls)


def say(event: str, **what: object) -> None:
    print(json.dumps({"event": event, **what}), flush=True)


async def compare(job: JobHandle) -> None:
    """Wait for a job that is kept, count the ends of its tasks, and compare its results."""
    ends: Counter[str] = Counter()
    async for event in job.events():
        if isinstance(event, TaskEnd):
            ends[event.task_id] += 1
    if more := [task_id for task_id, count in ends.items() if count > 1]:
        say("duplicated", tasks=more)
    results = await job
    drawn = Drawn.named(job.name)
    if failed := drawn.failures(results):
        say("lost", job=job.job_id, why=failed)
        return
    if ended := drawn.hostile_ends(results):
        say("hostile", job=job.job_id, ended=ended)
    if drawn.is_right(results):
        say("right", job=job.job_id)
    else:
        say("wrong", job=job.job_id, name=job.name)


async def compare_kept(node: Node) -> None:
    """What earlier incarnations left, one after the other, since some are large, and first what is
    deleted first."""
    for kept in sorted(await node.kept(), key=lambda each: each.ended_unix_s or math.inf):
        try:
            await compare(await node.job(kept.job_id))
        except (InvalidInput, StateError):
            if kept.job_id in [each.job_id for each in await node.kept()]:
                raise


async def compare_map(node: Node, drawn: Drawn) -> None:
    """Results as they come: each once."""
    items = list(enumerate(drawn.large))
    due = Counter((number, hashlib.sha256(data).hexdigest()) for number, data in items)
    came: Counter[tuple[int, str]] = Counter()
    try:
        async for each in node.map(digest, items, ordered=False, needs=NEEDS):
            came[each] += 1
    except FormationError as error:
        say("lost", job=drawn.name, why=[f"{type(error).__name__}: {error}"])
        return
    if any(count > 1 for count in came.values()):
        say("duplicated", tasks=[drawn.name])
    elif came != due:
        say("wrong", job=drawn.name, name=drawn.name)


async def main(home: str, state: str, seed: str) -> None:
    chance = random.Random(seed)
    over = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
    room = asyncio.Semaphore(MAX_JOBS)
    heavy = asyncio.Lock()
    first = [*HEAVY]
    retention = Retention(jobs=KEPT_JOBS)

    async def within_room(drawn: Drawn) -> None:
        async with room, heavy if drawn.kind in HEAVY else nullcontext():
            if drawn.kind == "map":
                await compare_map(node, drawn)
                return
            job = await node.submit(drawn.work(), name=drawn.name, **drawn.options)
            say("kept", job=job.job_id)
            await compare(job)

    async def weighed(before: asyncio.Task[None]) -> None:
        """Once nothing is under way."""
        await before
        for _ in range(MAX_JOBS):
            await room.acquire()
        say("weighed", bytes=kept_bytes())
        for _ in range(MAX_JOBS):
            room.release()

    joining = Node.join(home=Path(home), listen=(), state=state, retention=retention)
    async with joining as node, asyncio.TaskGroup() as tasks:
        say("goes on")
        before = tasks.create_task(compare_kept(node))
        loop = asyncio.get_running_loop()
        rest_s = loop.time() + REST_S
        while not over.is_set():
            if loop.time() > rest_s:
                await weighed(before)
                rest_s = loop.time() + REST_S
            async with room:  # there is some
                pass
            kind = first.pop() if first else chance.choice(KINDS)
            drawn = Drawn(kind, chance.getrandbits(31))
            tasks.create_task(within_room(drawn))
            try:
                await asyncio.wait_for(over.wait(), chance.uniform(*PAUSE_S))
            except TimeoutError:
                continue
        await weighed(before)
    say("done")


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
