"""What a worker tells its owner of the tasks that it runs."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

import pytest

from formation_p2p.assembly import PeerEffect, PeerEvent
from formation_p2p.command.watched import Watch, WorkBegan, WorkEnded, WorkEvent, WorkLog
from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.drivers.core.effects import Execute, ExecutionsEnded, ExecutionStarted, Work
from formation_p2p.leases.core.session import Fence
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.peer.core.events import Joined, Tick
from formation_p2p.workload.core.call_context import CallContext
from formation_p2p.workload.core.outcome import Ended, Failed, FailureKind, Outcome, Succeeded
from formation_p2p.workload.core.process import ProcessSpec

WORK = tuple(Work(attempt, b"", b"", None) for attempt in ("a", "b", "c"))
NEEDS = Requirements(memory_bytes=512, driver="python")
OWNER = PeerId("owner")
EXECUTE = Execute("lease", NEEDS, ("gpu0",), WORK, OWNER, cause="test")


def reported(*seen: tuple[PeerEvent, Sequence[PeerEffect]]) -> tuple[list[WorkEvent], str]:
    """What a watch that sees this shows, a second apart, and its counts before it is closed."""

    async def watched() -> tuple[list[WorkEvent], str]:
        watch = Watch()
        for second, (event, effects) in enumerate(seen):
            watch.observe(event, effects, Moment(second, second))
        counts = f"{watch.running} {watch.succeeded} {watch.failed}"
        watch.close()
        return [each async for batch in watch.events() for each in batch], counts

    return asyncio.run(watched())


def began(attempt: str) -> WorkBegan:
    return WorkBegan(attempt, OWNER, "", "python", 1000, 512, ("gpu0",))


def ended(attempt: str, outcome: Outcome, ran_us: int) -> tuple[PeerEvent, Sequence[PeerEffect]]:
    return ExecutionsEnded("lease", (Ended(attempt, outcome, ran_us),)), ()


def test_a_task_that_ends_at_once_has_begun_too() -> None:
    events, counts = reported((Tick(), [EXECUTE]), ended("a", Succeeded(b""), 1500))
    assert events == [began("a"), WorkEnded("a", OWNER, "", "python", "succeeded", "", 2)]
    assert counts == "0 1 0"


def test_a_long_one_begins_once_and_fails_with_its_reason() -> None:
    exit_1 = Failed(FailureKind.EXIT, "exit: 1")
    started = ExecutionStarted("lease", "a")
    events, counts = reported((Tick(), [EXECUTE]), (started, ()), ended("a", exit_1, 70_000))
    assert events == [began("a"), WorkEnded("a", OWNER, "", "python", "exit", "exit: 1", 70)]
    assert counts == "0 0 1"


def test_what_is_killed_or_fenced_was_taken_back_and_what_never_began_is_not_told_of() -> None:
    killed = Failed(FailureKind.CANCELLED, "it was killed")
    taken_back = (OWNER, "", "python", "cancelled", "its owner took it back, or its lease ended")
    events, counts = reported(
        (Tick(), [EXECUTE]),
        ended("a", killed, 1000),
        ended("b", killed, 0),
        (ExecutionStarted("lease", "c"), ()),
        (Tick(), [Fence("lease", cause="test")]),
        ended("c", killed, 5),
    )
    assert events == [
        began("a"),
        WorkEnded("a", *taken_back, 1),
        began("c"),
        WorkEnded("c", *taken_back, 1000),
    ]
    assert counts == "0 0 2"


def test_nothing_goes_on_after_a_crash_of_the_network_stack_or_the_end_of_the_node() -> None:
    start: tuple[PeerEvent, Sequence[PeerEffect]] = (ExecutionStarted("lease", "a"), ())
    for more, counted in ((((Joined((), ()), ()),), "0 0 1"), ((), "1 0 0")):
        events, counts = reported((Tick(), [EXECUTE]), start, *more)
        assert [type(event) for event in events] == [WorkBegan, WorkEnded]
        assert counts == counted


def test_the_log_names_the_program_and_who_submitted_it() -> None:
    payload = ProcessSpec(("/bin/true", "x")).encode()
    work = (Work("a", b"", payload, None), Work("b", b"", b"nonsense", None))
    process = replace(EXECUTE, needs=replace(NEEDS, driver="process"), work=work)
    done = (ended(name, Succeeded(b""), 1500) for name in "ab")
    events, _ = reported((Tick(), [process]), *done)
    last = [each for each in events if isinstance(each, WorkEnded)]
    assert [(each.owner, each.what) for each in last] == [(OWNER, "/bin/true"), (OWNER, "")]


def test_the_log_names_the_function_and_the_packages(capsys: pytest.CaptureFixture[str]) -> None:
    shared = CallContext("cpython-3.11", b"a pickle", name="train.fit").encode()
    work = (Work("a", shared, b"", None), Work("b", shared, b"", None), Work("c", b"no", b"", None))
    needs = replace(NEEDS, environment="4f1c0a9b7d2e")
    done = (ended(name, Succeeded(b""), 1500) for name in "abc")
    events, _ = reported((Tick(), [replace(EXECUTE, needs=needs, work=work)]), *done)
    WorkLog().show(events)
    lines = capsys.readouterr().out.splitlines()
    assert ["  ".join(each.split("  ")[2:-2]) for each in lines] == [
        "python  train.fit  in 4f1c0a9b7d2e",
        "python  train.fit  in 4f1c0a9b7d2e",
        "python  in 4f1c0a9b7d2e",
    ]
