"""What real workers hold of others: across a restart of the submitter, and when they leave."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from formation_p2p import (
    ProcessResult,
    ProcessSpec,
    Stage,
    TaskPlaced,
    TaskSaved,
    TaskSucceeded,
    derive,
)
from formation_p2p.core.effects import Moment
from formation_p2p.jobs.core.fetch import OutputsCopied
from formation_p2p.jobs.core.job_events import JobEvent, TaskReopened
from tests.support.network import gate_at, sees
from tests.support.nodes import OpenNode
from tests.support.waiting import HANGS_S, until
from tests.support.worker_processes import working

NEEDS = "cpu=0.5,memory=128MiB"
WORKERS = ("alice", "carol", "dave", "erin")


async def test_another_life_of_the_submitter_has_the_place_of_a_lost_holder_filled(
    tmp_path: Path,
) -> None:
    go = tmp_path / "go"
    make = Stage(ProcessSpec(("sh", "-c", "printf made > part")), needs=NEEDS)
    waits = Stage(ProcessSpec(("sh", "-c", f"until [ -e {go} ]; do sleep 0.1; done")), needs=NEEDS)
    read = Stage(
        ProcessSpec(("cat", "part")),
        inputs={"part": make.output("part")},
        after=("waits",),
        needs=NEEDS,
    )
    told: list[OutputsCopied] = []

    def see(event: object, effects: Sequence[object], now: Moment) -> None:
        if isinstance(event, OutputsCopied):
            told.append(event)

    async with gate_at(tmp_path) as invitation:
        with ExitStack() as workers:
            options = ("--sandbox", "off")
            running = await working(tmp_path, invitation, WORKERS, workers, options)
            home, state = tmp_path / "bob", tmp_path / "jobs.db"
            bob = OpenNode.join(invitation(), home=home, listen=(), state=state)
            async with bob:
                await sees(bob, len(WORKERS))
                plan = derive({"make": make, "waits": waits, "read": read})
                job = await bob.submit(plan, copies=2)
                done = await anext(x async for x in job.events() if isinstance(x, TaskSucceeded))
                job_id = job.job_id
            blob = ProcessResult.decode(done.result).outputs["part"]
            maker, other = (each.peer_id for each in blob.sources)
            assert maker == done.worker
            running[other].process.kill()
            again = OpenNode.join(home=home, listen=(), state=state)
            async with OpenNode(replace(again.config, observers=(see,))) as bob:
                # Others are asked half a minute after one was found to be gone.
                await until(lambda: told and len(told[-1].holders) == 2, within_s=HANGS_S)
                third = {each.peer_id for each in told[-1].holders} - {maker}
                assert not third & {other}
                # What the first two had is gone.
                running[maker].process.kill()
                go.touch()
                job = await bob.job(job_id)
                events = [each async for each in job.events()]
                results = await job
                assert ProcessResult.decode(results[2].result).stdout_tail == b"made"
                assert not [each for each in events if isinstance(each, TaskReopened)]
                await bob.get(blob, tmp_path / "part")
                assert (tmp_path / "part").read_bytes() == b"made"


async def test_a_worker_that_leaves_has_what_it_holds_held_elsewhere(tmp_path: Path) -> None:
    """It has no lease of who has it hold that."""
    go = tmp_path / "go"
    waits = f"until [ -e {go} ]; do sleep 0.1; done"
    # A checkpoint that is too large to travel with the message.
    saves = f"head -c 100000 /dev/zero > new; mv new $FORMATION_CHECKPOINT; {waits}"
    told: list[OutputsCopied] = []

    def see(event: object, effects: Sequence[object], now: Moment) -> None:
        if isinstance(event, OutputsCopied):
            told.append(event)

    async with gate_at(tmp_path) as invitation:
        with ExitStack() as workers:
            options = ("--sandbox", "off")
            running = await working(tmp_path, invitation, (*WORKERS, "fred"), workers, options)
            bob = OpenNode.join(invitation(), home=tmp_path / "bob", listen=())
            async with OpenNode(replace(bob.config, observers=(see,))) as bob:
                await sees(bob, len(running))
                make = ProcessSpec(("sh", "-c", "printf made > part"), outputs=("part",))
                saving = ProcessSpec(("sh", "-c", saves))
                job = await bob.submit([make, saving], needs=NEEDS, copies=2)
                events = job.events()
                busy, made, saved = "", None, None
                async for event in events:
                    if isinstance(event, TaskPlaced) and event.task_id.endswith("/1"):
                        busy = event.worker
                    made = event if isinstance(event, TaskSucceeded) else made
                    saved = event if isinstance(event, TaskSaved) else saved
                    if made is not None and saved is not None:
                        break
                assert made is not None
                assert saved is not None
                sources = ProcessResult.decode(made.result).outputs["part"].sources
                outputs_at = next(x.peer_id for x in sources if x.peer_id != busy)
                await asyncio.to_thread(running.pop(outputs_at).interrupt)
                await until(lambda: outputs_at not in {x.peer_id for x in told[-1].holders})
                assert len(told[-1].holders) == 2
                holders: Sequence[str] = saved.holders
                if outputs_at in holders:
                    holders = await told_next(events, without=outputs_at)
                checkpoint_at = next(each for each in holders if each != busy)
                await asyncio.to_thread(running.pop(checkpoint_at).interrupt)
                assert len(await told_next(events, without=checkpoint_at)) == 2
                go.touch()
                assert [each.status for each in await job] == ["succeeded"] * 2


async def told_next(events: AsyncIterator[JobEvent], without: str) -> Sequence[str]:
    """Who else holds the checkpoint, once this one is not among them."""
    async for event in events:
        if isinstance(event, TaskSaved) and without not in event.holders:
            return event.holders
    raise AssertionError("the job has ended")
