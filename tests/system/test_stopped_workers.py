"""Workers that are stopped while a task runs: the task ends there, and is done elsewhere, once."""

import asyncio
import signal
import time
from contextlib import AsyncExitStack, ExitStack, suppress
from pathlib import Path

import psutil
import pytest

from formation_p2p import Hints, JobEvent, JobHandle, Node, TaskPlaced, TaskSucceeded
from formation_p2p.drivers.heartbeat import BEAT_S, SILENCE_S
from formation_p2p.leases.core.parameters import LEASE_DEFAULTS
from formation_p2p.workload.core.process import ProcessResult, ProcessSpec
from simulations.realchaos import scratch_folders
from tests.support.network import gate_at
from tests.support.waiting import until
from tests.support.worker_processes import working

# The first attempt goes on for as long as its lease, and would then say so; the next is done.
TASK = """
echo $$ >> {log}
if [ "$(wc -l < {log})" -gt 1 ]; then echo again; exit 0; fi
sleep {sleep_s} &
echo $! >> {log}.child
wait
echo late
"""


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def signal_all(processes: list[psutil.Process], number: signal.Signals) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def holds_nothing(home: Path) -> bool:
    """Whether no task's scratch folder is left."""
    return not scratch_folders(home)


def pid_in(file: Path) -> int:
    """0 while there is none."""
    text = file.read_text() if file.exists() else ""
    return int(text.split()[0]) if text.endswith("\n") else 0


async def a_pid(file: Path) -> int:
    async def written() -> bool:
        return pid_in(file) > 0

    await until(written)
    return pid_in(file)


async def watched(job: JobHandle, events: list[JobEvent]) -> None:
    async for event in job.events():
        events.append(event)


@pytest.mark.parametrize("stopped", ["the node", "the node and all that it started"])
async def test_the_task_of_a_stopped_worker_ends_and_is_done_elsewhere(
    tmp_path: Path, stopped: str
) -> None:
    log = tmp_path / "log"
    script = TASK.format(log=log, sleep_s=LEASE_DEFAULTS.lease_s + 3)
    async with AsyncExitStack() as held:
        invite = await held.enter_async_context(gate_at(tmp_path))
        names, power = ("alice", "carol"), held.enter_context(ExitStack())
        workers = await working(tmp_path, invite, names, power, ("--sandbox", "off"))
        bob = await held.enter_async_context(Node.join(invite(), home=tmp_path / "bob", listen=()))

        async def both_known() -> bool:
            return len(await bob.workers()) == 2

        await until(both_known)
        job = await bob.submit(ProcessSpec(("sh", "-c", script)), needs="cpu=1,memory=64MiB")
        events: list[JobEvent] = []
        watching = asyncio.create_task(watched(job, events))
        pids = [await a_pid(log), await a_pid(tmp_path / "log.child")]
        (placed,) = [x for x in events if isinstance(x, TaskPlaced)]
        home = tmp_path / dict(zip(workers, names, strict=True))[placed.worker]
        node = psutil.Process(workers[placed.worker].pid)
        family = node.children(recursive=True)
        assert {each.pid for each in family} >= set(pids)
        asleep = [node] if stopped == "the node" else [node, *family]
        stopped_s = time.monotonic()
        signal_all(asleep, signal.SIGSTOP)
        held.callback(signal_all, asleep, signal.SIGCONT)

        if stopped == "the node":

            async def dead() -> bool:
                return not any(map(alive, pids))

            await until(dead)
            took_s = time.monotonic() - stopped_s
            assert took_s > SILENCE_S - 2 * BEAT_S
            assert node.status() == psutil.STATUS_STOPPED
            print(f"dead {took_s:.1f} s after the node was stopped")
        await job.results()
        await watching
        (elsewhere,) = [x for x in events if isinstance(x, TaskSucceeded)]
        assert elsewhere.worker != placed.worker
        await asyncio.sleep(max(0.0, stopped_s + LEASE_DEFAULTS.lease_s + 4 - time.monotonic()))
        signal_all(asleep, signal.SIGCONT)

        async def tidy() -> bool:
            return not any(map(alive, pids)) and holds_nothing(home)

        await until(tidy)
        # Nothing of what was before counts, and the worker works on.
        assert ProcessResult.decode(elsewhere.result).stdout_tail == b"again\n"
        hints = Hints(prefer=(placed.worker,), required=frozenset({"prefer"}))
        true = ProcessSpec(("true",))
        (more,) = await (await bob.submit(true, needs="cpu=1,memory=64MiB", hints=hints))
        assert more.worker == placed.worker
