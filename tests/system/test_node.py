"""The one door for users, against real peers: what a caller does, gets, and is told."""

import asyncio
import secrets
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import cloudpickle
import pytest
import trio

from formation_p2p import (
    Execution,
    InvalidInput,
    JobEnded,
    JobHandle,
    Limits,
    LocalError,
    Node,
    NodeClosed,
    Outcome,
    ProcessSpec,
    Report,
    StoryStep,
    Succeeded,
    SyncNode,
    TaskFailed,
    TaskPlaced,
    TaskPrinted,
    TaskSucceeded,
    Unplaceable,
)
from formation_p2p.api.bridge import Bridge, Call
from formation_p2p.api.job import MAX_UNREAD
from formation_p2p.api.lifecycle import Lifecycle
from formation_p2p.assembly import PeerEvent
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import KIB, MIB
from formation_p2p.discovery.core.finder import Finder
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import EmitJobEvent, JobEvent, TaskSaved
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.machine.home import host_name
from formation_p2p.peer.core.effects import Left, RejectRequest
from formation_p2p.peer.core.events import OutputSeen
from formation_p2p.peer.shell import Shell
from formation_p2p.workload.core.checkpoint import Checkpoint, inline
from formation_p2p.workload.core.work import Task
from tests.support.loopback import LISTEN
from tests.support.network import LOOKS_S, SmallNetwork, runs, sees, small_network
from tests.support.parcels import a_packer
from tests.support.waiting import until

# As a script's own functions: interpreters need not import this module, and all that it imports.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SMALL = "cpu=0.5,memory=64MiB"
A_JOB = Job("a job", (Task("a job/0", Requirements(driver="process"), b""),))
ENDED = JobEnded(succeeded=1, failed=0, unplaceable=0, cancelled=0)


pytestmark = pytest.mark.asyncio(loop_scope="module")


def divide(by: int) -> float:
    return 1 / by


async def test_what_nobody_can_run_fails_and_says_why_for_each_worker(small: SmallNetwork) -> None:
    with pytest.raises(Unplaceable, match="memory") as raised:
        await small.bob.map(divide, [1], needs="memory=1TiB")
    assert list(raised.value.reasons) == [small.alice.peer_id]


async def test_events_tell_the_story_of_a_job_from_its_placement_to_its_end(
    small: SmallNetwork,
) -> None:
    job = await small.bob.submit(ProcessSpec(("echo", "hello")), needs=SMALL)
    events = [event async for event in job.events()]
    with pytest.raises(InvalidInput, match="they are read already"):
        await anext(job.events())
    story = await job.story()
    assert await small.bob.story(job.tasks[0].task_id) == story
    with pytest.raises(InvalidInput, match="7 is none of the 1 of this job"):
        await job.story(7)
    assert await small.bob.story("unknown/0") == ()
    assert [step.step for step in story][-1] is StoryStep.SUCCEEDED
    assert {step.peer for step in story if step.step is StoryStep.SENT} == {small.alice.peer_id}
    assert isinstance(events[0], TaskPlaced)
    assert events[0].worker == small.alice.peer_id
    assert events[0].nearest
    assert [e.data for e in events if isinstance(e, TaskPrinted)] == [b"hello\n"]
    assert sum(isinstance(e, TaskSucceeded) for e in events) == 1
    assert events[-1] == JobEnded(succeeded=1, failed=0, unplaceable=0, cancelled=0)


def sleep_as_a_program(s: str) -> None:
    subprocess.run(["sleep", s], check=True)


@pytest.mark.parametrize("how", ["map", "job", "run"])
async def test_cancelling_whoever_awaits_kills_what_runs_far_away(
    small: SmallNetwork, how: str
) -> None:
    long = f"600.{secrets.randbelow(10**9)}"

    async def awaits() -> None:
        if how == "map":
            await small.bob.map(sleep_as_a_program, [long], needs=SMALL)
        elif how == "run":
            await small.bob.run(("sleep", long), needs=SMALL)
        else:
            await (await small.bob.submit(ProcessSpec(("sleep", long)), needs=SMALL))

    awaiting = asyncio.create_task(awaits())
    await until(lambda: runs(long), every_s=LOOKS_S)
    awaiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await awaiting
    await until(lambda: not runs(long), every_s=LOOKS_S)


async def test_whoever_waits_for_results_alone_cancels_nothing(small: SmallNetwork) -> None:
    job = await small.bob.submit(ProcessSpec(("true",)), needs=SMALL)
    waiting = asyncio.ensure_future(job.results())
    await asyncio.sleep(0)  # it waits
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    (result,) = await job
    assert result.status == "succeeded"


async def test_run_brings_back_the_output_of_one_command(small: SmallNetwork) -> None:
    result = await small.bob.run([sys.executable, "-c", "print(6 * 7)"], needs=SMALL)
    with pytest.raises(TaskFailed, match="exit"):
        await small.bob.run(["false"], needs=SMALL)
    assert (result.exit_code, result.stdout_tail) == (0, b"42\n")


async def test_explain_ranks_who_could_and_says_why_not_the_others(small: SmallNetwork) -> None:
    could = await small.bob.explain("label.region=eu,driver=python")
    could_not = await small.bob.explain("label.region=us")
    assert [ranked.profile.peer_id for ranked in could.ranked] == [small.alice.peer_id]
    assert [str(why) for _, why in could_not.rejected] == [
        "label.region: needs the label region=us, has region=eu"
    ]


async def test_leaving_ends_what_was_pending_and_withdraws_the_worker(small: SmallNetwork) -> None:
    async with Node.join(small.invite, home=small.folder / "carol", listen=LISTEN) as carol:
        await carol.worker(limits=Limits(cpu_milli=1000, memory_bytes=512 * MIB))
        await sees(small.bob, 2)
        job = await carol.submit(ProcessSpec(("sleep", "600")), needs=SMALL)
    with pytest.raises(NodeClosed):
        await job
    assert [p.peer_id for p in await small.bob.workers()] == [small.alice.peer_id]


async def test_of_two_offers_at_once_one_is_taken(small: SmallNetwork) -> None:
    async with Node.join(small.invite, home=small.folder / "carol", listen=LISTEN) as carol:
        limits = Limits(cpu_milli=1000, memory_bytes=512 * MIB)
        offers = (carol.worker(limits=limits) for _ in range(2))
        taken, refused = await asyncio.gather(*offers, return_exceptions=True)
        assert not isinstance(taken, BaseException)
        assert isinstance(refused, InvalidInput)
        assert "works already" in str(refused)


async def test_a_worker_offers_only_the_drivers_it_was_started_with(small: SmallNetwork) -> None:
    with pytest.raises(InvalidInput, match="not installed"):
        await small.bob.worker(drivers=["quantum"])
    with pytest.raises(InvalidInput, match="does not run"):
        await small.bob.map(divide, [1], needs="driver=process")


class Sleep:
    """A driver of somebody's own, and what it is given to run."""

    name = "sleep"
    driver = "sleep"

    def encode(self) -> bytes:
        return b"0.01"

    async def run(self, execution: Execution, report: Report) -> Outcome:
        report.output("stdout", b"good night\n")
        await trio.sleep(float(execution.payload))
        return Succeeded(b"slept " + execution.payload)

    async def end_lease(self, lease_id: str) -> None:
        pass


async def test_a_driver_of_ones_own_runs_work_of_ones_own(small: SmallNetwork) -> None:
    job = await small.bob.submit(Sleep(), needs=SMALL)
    (nobody,) = await job
    assert nobody.status == "unplaceable"
    async with Node.join(small.invite, home=small.folder / "carol", listen=LISTEN) as carol:
        await carol.worker(drivers={"sleep": Sleep})

        async def known() -> bool:
            return bool((await small.bob.explain("driver=sleep")).ranked)

        await until(known)
        (slept,) = await (await small.bob.submit(Sleep(), needs=SMALL))
    assert (slept.status, slept.result) == ("succeeded", b"slept 0.01")


async def test_what_is_submitted_while_the_node_is_closed_is_refused(small: SmallNetwork) -> None:
    dave = await Node.join(small.invite, home=small.folder / "dave", listen=())
    closing = asyncio.ensure_future(dave.close())
    await asyncio.sleep(0)
    with pytest.raises(NodeClosed, match="being closed"):
        await dave.submit(ProcessSpec(("true",)), needs=SMALL)
    await asyncio.gather(closing, dave.close())


async def test_a_home_in_no_network_cannot_be_entered(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="in no network"):
        async with Node.join(home=tmp_path / "nobody"):
            raise AssertionError("it was entered")


async def test_scripts_have_the_same_without_await(small: SmallNetwork) -> None:
    def script() -> tuple[list[float], int, str]:
        with SyncNode.join(small.invite, home=small.folder / "script", listen=()) as node:
            halves = node.map(divide, [2], needs=SMALL)
            job = node.submit(ProcessSpec(("echo", "hi")), needs=SMALL, name="greeting")
            events = list(job.events())
            (result,) = job.results()
            with pytest.raises(TaskFailed, match="exit"):
                node.run(["false"], needs=SMALL)
            return halves, len(events), result.status

    halves, events, status = await asyncio.to_thread(script)
    assert (halves, status) == ([0.5], "succeeded")
    assert events >= 3


async def test_whoever_asks_for_what_the_node_fails_on_is_told_and_waits_for_nothing(
    small: SmallNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    true = ProcessSpec(("true",))

    def fails(*_: object, **__: object) -> None:
        raise KeyError("a fault of ours")

    state = small.folder / "jobs.db"
    async with Node.join(small.invite, home=small.folder / "dave", listen=(), state=state) as dave:
        for node in (small.bob, dave):
            with monkeypatch.context() as patched:
                patched.setattr(Finder, "find", fails)
                job = await node.submit(true, needs=SMALL)
                with pytest.raises(LocalError, match=r"KeyError.*please report that"):
                    await job
                with pytest.raises(LocalError, match=r"KeyError.*please report that"):
                    await node.explain(SMALL)
            (result,) = await (await node.submit(true, needs=SMALL))
            assert result.status == "succeeded"

        async def forgotten() -> bool:
            return job.job_id not in [each.job_id for each in await dave.kept()]

        await until(forgotten)


def a_bridge(call: Call = lambda function: None) -> Bridge:
    lifecycle = Lifecycle()
    lifecycle.enter()
    lifecycle.entered()
    return Bridge(call, lambda job: None, lifecycle, a_packer())


async def test_a_fault_with_one_event_does_not_keep_the_others_back(
    caplog: pytest.LogCaptureFixture,
) -> None:
    bridge, handle = a_bridge(), JobHandle(A_JOB, a_bridge())
    bridge.adopt(A_JOB, handle)
    for_no_person = cast("RejectRequest", Left(cause="not for a person"))
    bridge.notify((for_no_person, EmitJobEvent("a job", ENDED, cause="it ended")))
    assert bridge.unread == 2
    await asyncio.sleep(0)
    assert handle.is_over
    assert bridge.unread == 0
    assert "could not be handed on" in caplog.text


async def test_what_nobody_reads_is_bounded() -> None:
    """A task may save twice a second for a month, and print as it likes."""
    bridge, handle = a_bridge(), JobHandle(A_JOB, a_bridge())
    bridge.adopt(A_JOB, handle)
    content = bytes(1000)
    for number in range(1, MAX_UNREAD + 11):
        checkpoint = Checkpoint(number, inline(content), content)
        handle.notify(TaskPrinted("a job/0", False, bytes(63 * KIB), PeerId("alice")))
        handle.notify(TaskSaved("a job/0", checkpoint, ()))
    handle.notify(ENDED)
    told = [event async for event in handle.events()]
    saved = [event.checkpoint for event in told if isinstance(event, TaskSaved)]
    assert [each.sequence for each in saved] == list(range(11, MAX_UNREAD + 11))
    assert {each.content for each in saved} == {None}
    assert len(told) == 2 * MAX_UNREAD + 1


async def test_a_reader_answers_a_worker_that_waits_for_it() -> None:
    fed: list[PeerEvent] = []
    shell = cast("Shell", SimpleNamespace(feed=fed.append))
    bridge = a_bridge(lambda function: function(shell))
    handle = JobHandle(A_JOB, bridge)
    alice = "a job/0", PeerId("alice")

    def seen(*more: bool) -> list[PeerEvent]:
        return [OutputSeen(A_JOB.job_id, *alice, each) for each in more]

    def prints(*pieces: bytes) -> None:
        for data in pieces:
            handle.notify(TaskPrinted(alice[0], False, data, alice[1]))

    prints(b"a", b"", b"b")
    assert fed == []  # nobody reads yet
    events = handle.events()
    told = [await anext(events), await anext(events)]
    assert [each.data for each in told if isinstance(each, TaskPrinted)] == [b"a", b"b"]
    assert fed == seen(False, True)
    prints(b"", b"c", b"")  # it is asked again, and answers once it has read
    assert fed == seen(False, True, False, False)
    assert await anext(events) == TaskPrinted(alice[0], False, b"c", alice[1])
    assert fed == seen(False, True, False, False, True)
    prints(b"d", b"")
    await cast(
        "AsyncGenerator[JobEvent]", events
    ).aclose()  # it reads no more, and nothing waits for it
    prints(b"")
    assert fed == seen(False, True, False, False, True, False, True, True)


async def test_all_that_is_told_together_wakes_the_loop_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bridge = a_bridge()
    woken: list[Callable[[], None]] = []
    monkeypatch.setattr(bridge, "on_loop", woken.append)
    bridge.notify([EmitJobEvent(f"job {n}", ENDED, cause="it ended") for n in range(3)])
    bridge.in_turn(lambda: None)
    (drain,) = woken
    assert bridge.unread == 4
    drain()
    assert bridge.unread == 0


async def test_a_node_goes_by_its_name_and_a_task_finds_it_by_that(tmp_path: Path) -> None:
    async with small_network(tmp_path, alice={"name": "kitchen"}) as world:
        (alice,) = await world.bob.workers()
        assert (alice.name, world.alice.name) == ("kitchen", "kitchen")
        assert world.bob.name == host_name()
        assert (await world.bob.run(["true"], needs=f"{SMALL},label.host=kitchen")).exit_code == 0
        with pytest.raises(Unplaceable, match="has host=kitchen"):
            await world.bob.run(["true"], needs=f"{SMALL},label.host=cellar")
        with pytest.raises(InvalidInput, match=r"label\.host: is the node's name"):
            await world.bob.worker(labels={"host": "kitchen"})
    with pytest.raises(InvalidInput, match="name: 'Kitchen' is not a name"):
        Node.join(name="Kitchen")
