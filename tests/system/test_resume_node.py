"""A node that keeps its jobs: what a program sees of it, through crashes and full disks."""

import asyncio
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager, closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from formation_p2p import (
    InvalidInput,
    JobHandle,
    Node,
    NodeClosed,
    ProcessSpec,
    TaskPlaced,
    TaskSucceeded,
    WorkerLost,
    python_call,
    python_calls,
    value_of,
)
from formation_p2p.api.durable import DurableJobs
from formation_p2p.api.map import Mapped
from formation_p2p.core.effects import Effect
from formation_p2p.core.errors import LocalError, StateError
from formation_p2p.core.units import KIB, MIB
from formation_p2p.jobs.core.job import Job
from formation_p2p.peer.runtime import Runtime
from formation_p2p.peer.shell import Shell
from formation_p2p.state.journal import Journal, JournalParameters
from formation_p2p.state.state import Retention, State
from formation_p2p.workload.core.process import ProcessResult
from tests.support.network import SmallNetwork
from tests.support.nodes import OpenNode
from tests.support.stillness import LEFT_S
from tests.support.waiting import HANGS_S, until

SMALL = "cpu=0.5,memory=64MiB"


@dataclass
class World:
    """How to join a network with a worker whose tasks see the test's files; bob's nodes keep their
    jobs in one file there."""

    invite: str
    folder: Path

    @property
    def state(self) -> Path:
        return self.folder / "jobs.db"

    @property
    def go(self) -> Path:
        return self.folder / "go"

    @property
    def one_first(self) -> str:
        """For a shell: one task goes on at once, and the others once `go` is there."""
        first = self.folder / "first"
        return f"mkdir {first} 2> /dev/null || until [ -e {self.go} ]; do sleep 0.05; done"

    def leases(self) -> int:
        """Those that are on the disk."""
        with closing(sqlite3.connect(self.state)) as db:
            return int(db.execute("SELECT count(*) FROM leases").fetchone()[0])

    def bob(self, **changes: Any) -> AbstractAsyncContextManager[OpenNode]:
        """`changes` are of the node's configuration."""
        home = self.folder / "bob"
        node = OpenNode.join(self.invite, home=home, listen=(), state=self.state)
        return OpenNode(replace(node.config, **changes))


pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest.fixture
def world(unboxed: SmallNetwork, tmp_path: Path) -> World:
    return World(unboxed.invite, tmp_path)


async def _of(mapped: Mapped[None]) -> list[None]:
    return await mapped


def sh(script: str) -> ProcessSpec:
    return ProcessSpec(("sh", "-c", script))


async def first_success(job: JobHandle) -> str:
    async for event in job.events():
        if isinstance(event, TaskSucceeded):
            return event.task_id
    raise AssertionError("no task succeeded")


def printed(results: Iterable[object]) -> list[str]:
    return [
        ProcessResult.decode(each.result).stdout_tail.decode().strip()  # type: ignore[attr-defined]
        for each in results
    ]


async def test_a_job_is_finished_by_the_next_life(world: World) -> None:
    async with world.bob() as bob:
        quick = await bob.submit(sh("echo quick"), needs=SMALL, name="quick")
        await quick
        assert bob.jobs() == ()
        slow = await bob.submit(
            [sh(f"echo {n}; {world.one_first}") for n in range(6)], needs=SMALL, name="slow"
        )
        assert [job.job_id for job in bob.jobs()] == [slow.job_id]
        first = await first_success(slow)
    with pytest.raises(NodeClosed):
        await slow
    world.go.touch()
    async with world.bob() as bob:
        (again,) = bob.jobs()
        assert (again.job_id, again.name) == (slow.job_id, "slow")
        assert again.result(first) is not None  # it had ended before
        assert printed(await again) == [str(n) for n in range(6)]
        assert again is not slow
        # What has ended can be had again too, for as long as it is kept.
        assert printed(await (await bob.job(quick.job_id))) == ["quick"]
        assert printed(await (await bob.job(slow.job_id))) == [str(n) for n in range(6)]
        assert [each.name for each in await bob.kept()] == ["quick", "slow"]
        with pytest.raises(InvalidInput, match="formation jobs"):
            await bob.job("0" * 16)


async def test_a_job_that_is_deleted_while_it_is_asked_for_is_refused_or_whole(
    world: World,
) -> None:
    """It is neither a handle that never ends."""
    none = Retention(jobs=0)
    quickly = JournalParameters(prune_every_s=0.0)
    async with world.bob(retention=none, journal=quickly) as bob:
        for n in range(10):
            job = await bob.submit(sh(f"echo {n}"), needs=SMALL)
            await job
            refused = False
            while not refused:
                try:
                    again = await bob.job(job.job_id)
                except InvalidInput:
                    refused = True
                else:
                    assert printed(await again) == [str(n)]


async def test_a_job_of_which_the_disk_says_no_end_and_the_node_nothing_is_refused(
    world: World,
) -> None:
    async with world.bob() as bob:
        job = await bob.submit(sh("sleep 600"), needs=SMALL)
        bob.bridge.drop((job.job_id,), StateError("the disk is full"))
        with pytest.raises(StateError, match="full"):
            await job
        await asyncio.sleep(0)  # the node lets go of it
        with pytest.raises(StateError, match="formation resume"):
            await bob.job(job.job_id)


async def test_large_calls_are_finished_by_the_next_life(world: World) -> None:
    files, enclosed = world.state.with_name("jobs.db.calls"), b"x" * MIB
    first = world.one_first

    def sizes(given: Any) -> tuple[int, int, int]:
        subprocess.run(["sh", "-c", first], check=True)
        content, number, table = given
        return len(content) + len(enclosed), number, int(table[number])

    async with world.bob(shares_memory=False) as bob:
        table = await bob.put(np.arange(MIB))
        calls = python_calls(sizes, [(b"y" * MIB, number, table) for number in range(8)])
        job = await bob.submit(calls, needs=SMALL)
        table.release()
        await first_success(job)
        assert len(list(files.glob("*/*"))) == 10  # of eight calls, of the function, and the table
    assert world.state.stat().st_size < 512 * KIB
    world.go.touch()
    async with world.bob(shares_memory=False) as bob:
        (again,) = bob.jobs()
        found = [value_of(result) for result in await again]
        assert found == [(2 * MIB, number, number) for number in range(8)]
        await until(lambda: not files.exists())
        gone = await bob.put([1])
        gone.release()
        with pytest.raises(InvalidInput, match="it was released"):
            await bob.submit(python_call(sizes, (b"y" * MIB, 0, gone)), needs=SMALL)
        await until(lambda: not files.exists())


async def test_a_job_goes_on_when_the_network_stack_crashes(world: World) -> None:
    async with world.bob() as bob:
        job = await bob.submit([sh(f"echo {n}; sleep 0.2") for n in range(8)], needs=SMALL)
        passing = asyncio.ensure_future(_of(bob.map(time.sleep, [600], needs=SMALL)))
        await first_success(job)
        bob.crash()
        # As soon as it is on the disk it is safe, whether or not there is a network.
        later = await bob.submit(sh("echo later"), needs=SMALL)
        assert printed(await job) == [str(n) for n in range(8)]
        assert printed(await later) == ["later"]
        with pytest.raises(NodeClosed):
            await passing
        assert [each.ended.succeeded for each in await bob.kept()] == [8, 1]


async def test_what_was_stored_but_not_told_before_a_crash_is_told_after_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.bob() as bob:
        with monkeypatch.context() as lost:
            lost.setattr(Journal, "_hand_back", lambda self, batch: None)
            job = await bob.submit([sh(f"echo {n}") for n in range(3)], needs=SMALL)

            async def over() -> bool:
                (summary,) = await bob.kept()
                return summary.ended_unix_s is not None

            await until(over)
        assert not job.is_over
        bob.crash()
        assert printed(await job) == ["0", "1", "2"]


async def test_a_job_that_a_new_shell_found_on_the_disk_is_not_begun_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stack crashes, and is up again, between the disk and the shell."""
    save, load, again = State.save_job, DurableJobs.resume, threading.Event()

    def resume(self: DurableJobs, shell: Shell) -> None:
        load(self, shell)
        again.set()

    async with world.bob() as bob:

        def crash(self: State, job: Job) -> None:
            save(self, job)
            bob.crash()
            assert again.wait(HANGS_S)

        monkeypatch.setattr(State, "save_job", crash)
        monkeypatch.setattr(DurableJobs, "resume", resume)
        job = await bob.submit(sh("echo once"), needs=SMALL)
        assert printed(await job) == ["once"]


async def test_what_is_not_on_the_disk_is_not_promised(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: State, job: object) -> None:
        raise StateError(f"{self.path}: the disk is full; make room")

    async with world.bob() as bob:
        with monkeypatch.context() as disk:
            disk.setattr(State, "save_job", full)
            with pytest.raises(StateError, match="make room"):
                await bob.submit(sh("echo no"), needs=SMALL)
        assert bob.jobs() == ()
        assert await bob.kept() == ()
        assert printed(await (await bob.submit(sh("echo yes"), needs=SMALL))) == ["yes"]


async def test_whoever_waits_is_told_when_the_disk_fails_and_resume_has_it_later(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = State.write

    def full(self: State, effects: Iterable[Effect]) -> None:
        raise StateError(f"{self.path}: the disk is full; make room")

    async with world.bob(journal=JournalParameters(retry_s=0.05)) as bob:
        monkeypatch.setattr(State, "write", full)
        job = await bob.submit([sh(f"echo {n}") for n in range(3)], needs=SMALL)
        with pytest.raises(StateError, match="make room"):
            await job
        monkeypatch.setattr(State, "write", write)

        async def stored() -> bool:
            (summary,) = await bob.kept()
            return summary.ended.succeeded == 3

        await until(stored)
        assert printed(await (await bob.job(job.job_id))) == ["0", "1", "2"]


async def test_a_submission_that_is_cancelled_leaves_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    save = State.save_job
    begun, cancelled, saved = threading.Event(), threading.Event(), threading.Event()

    def slow(self: State, job: Job) -> None:
        begun.set()
        assert cancelled.wait(HANGS_S)
        save(self, job)
        saved.set()

    monkeypatch.setattr(State, "save_job", slow)
    async with world.bob() as bob:
        submitting = asyncio.ensure_future(bob.submit(sh("echo no"), needs=SMALL))
        assert await asyncio.to_thread(begun.wait, HANGS_S)
        submitting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await submitting
        assert bob.jobs() == ()
        cancelled.set()
        await asyncio.to_thread(saved.wait, HANGS_S)

        async def forgotten() -> bool:
            return await bob.kept() == ()

        await until(forgotten)


async def test_calls_of_a_map_are_their_callers_and_not_kept(world: World) -> None:
    async with world.bob() as bob:
        assert await bob.map(len, ["a", "bc"], needs=SMALL) == [1, 2]
        assert await bob.kept() == ()


async def test_a_node_without_a_state_keeps_nothing(world: World) -> None:
    async with Node.join(world.invite, home=world.folder / "carol", listen=()) as carol:
        assert carol.jobs() == ()
        assert await carol.kept() == ()
        with pytest.raises(InvalidInput, match="state="):
            await carol.job("0" * 16)


async def test_a_disk_that_is_full_at_the_end_keeps_nobody_from_leaving(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: State, *, left: bool = False) -> None:
        close(self)
        raise StateError(f"{self.path}: the disk is full; make room")

    async with world.bob() as bob:
        await (await bob.submit(sh("true"), needs=SMALL))
        close = State.close
        monkeypatch.setattr(State, "close", full)
    monkeypatch.undo()
    async with world.bob() as bob:
        assert len(await bob.kept()) == 1


async def test_a_node_that_did_not_start_leaves_its_state_as_it_was(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.bob() as bob:
        job = await bob.submit(sh("sleep 600"), needs=SMALL)
        async for event in job.events():
            if isinstance(event, TaskPlaced):
                break
        held = world.folder / "held.db"  # as a crash would leave it
        with closing(sqlite3.connect(world.state)) as db, closing(sqlite3.connect(held)) as copy:
            db.backup(copy)
    held.chmod(0o600)
    held.rename(world.state)

    def fail(self: Runtime) -> None:
        raise LocalError("the network did not start")

    with monkeypatch.context() as broken:
        broken.setattr(Runtime, "start", fail)
        with pytest.raises(LocalError, match="did not start"):
            async with world.bob():
                pass
    assert world.leases() == 1


async def test_a_state_that_cannot_be_used_stops_the_node_from_starting(world: World) -> None:
    world.state.write_bytes(b"something else")
    world.state.chmod(0o600)
    with pytest.raises(StateError, match="damaged"):
        async with world.bob():
            pass
    world.state.unlink()
    async with world.bob():
        with pytest.raises(StateError, match="in use"):
            async with world.bob():
                pass
    async with world.bob() as bob:  # and it is free again
        assert bob.jobs() == ()


async def test_a_large_result_of_an_adopted_lease_arrives_and_its_task_runs_once(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large frames are taken from peers alone with a lease of ours: the next incarnation, which
    has committed to none, shares those that it has adopted."""
    load, adopted = DurableJobs.resume, []

    def resume(self: DurableJobs, shell: Shell) -> None:
        load(self, shell)
        adopted.append(shell)

    async with world.bob() as bob:
        waits = f"until [ -e {world.go} ]; do sleep 0.05; done"
        large = ProcessSpec(
            ("sh", "-c", f"{waits}; head -c 3000000 /dev/zero > zeros"), files_out=("zeros",)
        )
        job = await bob.submit(large, needs=SMALL, attempts=1)
        monkeypatch.setattr(DurableJobs, "resume", resume)
        told_of = []
        async for event in job.events():
            told_of.append(event)
            if [type(each) for each in told_of] == [TaskPlaced]:
                await until(lambda: world.leases() == 1)
                crashed_s = time.monotonic()
                bob.crash()
                await until(lambda: adopted)
                world.go.touch()
        (reported,) = await job
        assert reported.status == "succeeded"
        once = [type(each) for each in told_of if isinstance(each, TaskPlaced | WorkerLost)]
        # Where the next incarnation takes longer to begin, on a machine that is very busy, the
        # lease ends.
        late = time.monotonic() - crashed_s > LEFT_S
        assert (once, reported.attempts) == ([TaskPlaced], 1) or late
        assert len(ProcessResult.decode(reported.result).files["zeros"]) == 3_000_000
