"""Jobs made of a matrix, inputs and an order, and sizes that are learnt, against real peers."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from formation_p2p import (
    JobHandle,
    Limits,
    Node,
    ProcessResult,
    ProcessSpec,
    Stage,
    TaskPlaced,
    TaskSucceeded,
    derive,
    python_call,
    value_of,
)
from formation_p2p.command.job_file import read_job_file
from formation_p2p.content import files, stage_outputs
from formation_p2p.content.store import BlobStore
from formation_p2p.core.units import MIB
from formation_p2p.machine.core.requirements import DEFAULT_MEMORY_BYTES
from formation_p2p.state.memory_samples import MemorySamples
from formation_p2p.workload.core.blob import Cid
from tests.support.loopback import LISTEN
from tests.support.network import DEADLINE_S, gate_at, small_network
from tests.support.waiting import until

SMALL = "cpu=0.25,memory=64MiB"
JOB = """
    name = "squares"
    needs = "cpu=0.25,memory=64MiB"

    [[task]]
    name = "check"
    inputs = ["data/*.txt"]
    argv = ["grep", "-c", "", "{name}"]

    [[task]]
    name = "square"
    after = ["check"]
    matrix = { base = { from = 2, to = 4 }, by = [1, 10], exclude = [{ base = "3", by = 10 }] }
    argv = ["sh", "-c", "echo $(( {base} * {base} * {by} )) > out"]
    files_out = ["out"]

    [[task]]
    name = "last"
    after = ["square-4-10"]
    needs = "cpu=0.5,memory=64MiB"
    argv = ["echo", "done"]
"""


@asynccontextmanager
async def network(folder: Path) -> AsyncIterator[tuple[Node, str]]:
    """A gate and a worker; the node that submits, and how to join."""
    limits = Limits(cpu_milli=2000, memory_bytes=2048 * MIB)
    async with small_network(folder, limits=limits) as made:
        yield made.bob, made.invite


def order_of(job: JobHandle, events: list[object]) -> list[str]:
    labels = {task.task_id: task.label for task in job.tasks}
    ways = {TaskPlaced: "+", TaskSucceeded: "-"}
    return [
        ways[type(e)] + labels[e.task_id]
        for e in events
        if isinstance(e, TaskPlaced | TaskSucceeded)
    ]


async def test_a_job_file_with_a_matrix_inputs_and_an_order_runs_as_it_says(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in ("a", "b"):
        (tmp_path / "data" / f"{name}.txt").write_text("line\n")
    (tmp_path / "job.toml").write_text(JOB)
    plan = read_job_file(tmp_path / "job.toml").plan()
    async with asyncio.timeout(DEADLINE_S), network(tmp_path) as (bob, _):
        job = await bob.submit(plan)
        order = order_of(job, [event async for event in job.events()])
        results = {each.label: each for each in await job}
    assert all(each.status == "succeeded" for each in results.values()), results
    squares = {
        label: int(ProcessResult.decode(each.result).files["out"])
        for label, each in results.items()
        if label.startswith("square")
    }
    assert squares == {
        "square-2-1": 4,
        "square-2-10": 40,
        "square-3-1": 9,
        "square-4-1": 16,
        "square-4-10": 160,
    }
    checked = max(order.index("-check-data-a.txt"), order.index("-check-data-b.txt"))
    assert checked < min(order.index(f"+{label}") for label in squares)
    assert order.index("-square-4-10") < order.index("+last")


async def test_what_waits_for_a_failure_does_not_run_and_says_for_which(tmp_path: Path) -> None:
    plan = derive(
        {
            "bad": Stage(ProcessSpec(("false",)), needs=SMALL),
            "after": Stage(ProcessSpec(("true",)), after=("bad",), needs=SMALL),
        }
    )
    async with asyncio.timeout(DEADLINE_S), network(tmp_path) as (bob, _):
        bad, after = await (await bob.submit(plan, attempts=1))
    assert (after.status, after.attempts, after.waited_for) == ("failed", 0, "bad")
    assert str(after.error()).endswith("did not run: it waited for bad, which brought no result")
    assert bad.reasons


async def test_calls_of_functions_may_wait_for_each_other(tmp_path: Path) -> None:
    folder = tmp_path / "between"
    folder.mkdir()
    path = folder / "x"

    def write(text: str) -> None:
        with path.open("a") as file:
            file.write(text)

    def read() -> str:
        return "".join(sorted(path.read_text()))

    plan = derive(
        {
            "write": Stage(lambda p: python_call(write, str(p["n"])), matrix={"n": (1, 2, 3)}),
            "read": Stage(python_call(read), after=("write",)),
        }
    )
    async with asyncio.timeout(DEADLINE_S):
        async with gate_at(tmp_path) as invitation:
            join = invitation()
            async with Node.join(join, home=tmp_path / "alice", listen=LISTEN) as alice:
                # Without a sandbox, so that they meet in a folder of this machine.
                await alice.worker(sandbox="off", limits=Limits(cpu_milli=2000))
                *_, last = await (await alice.submit(plan, needs=SMALL))
    assert value_of(last) == "123"


async def test_a_durable_job_goes_on_in_order_in_the_next_life(tmp_path: Path) -> None:
    plan = derive(
        {
            "first": Stage(ProcessSpec(("sleep", "1")), needs=SMALL),
            "then": Stage(
                ProcessSpec(("echo", "{n}")), {"n": (1, 2)}, after=("first",), needs=SMALL
            ),
        }
    )
    async with asyncio.timeout(DEADLINE_S), network(tmp_path) as (_, join):
        how = {"home": tmp_path / "carol", "listen": (), "state": tmp_path / "state"}
        async with Node.join(join, **how) as carol:  # type: ignore[arg-type]
            job_id = (await carol.submit(plan)).job_id
        async with Node.join(join, **how) as carol:  # type: ignore[arg-type]
            job = await carol.job(job_id)
            assert [len(task.after) for task in job.tasks] == [0, 1, 1]
            results = await job
            order = order_of(job, [event async for event in job.events()])
    assert [each.status for each in results] == ["succeeded"] * 3
    assert order.index("-first") < min(order.index("+then-1"), order.index("+then-2"))


HOLDS = "import time; held = b'x' * ({mib} * 2**20); time.sleep({seconds})"


def holding(mib: int, seconds: float = 0.1) -> ProcessSpec:
    """A run of hold.py, which takes so much memory for so long."""
    program = HOLDS.format(mib=mib, seconds=seconds).encode()
    return ProcessSpec((sys.executable, "-I", "-S", "hold.py"), files_in={"hold.py": program})


async def test_memory_that_nobody_gave_is_learnt_from_earlier_runs(tmp_path: Path) -> None:
    async with asyncio.timeout(DEADLINE_S), network(tmp_path) as (bob, _):
        given = await bob.submit([holding(100)] * 5, needs="cpu=0.25,memory=300MiB")
        assert given.sizes == ()
        assert {each.status for each in await given} == {"succeeded"}
        sizes = MemorySamples(tmp_path / "bob")

        async def learnt() -> bool:
            return bool(sizes.learnt(["process:hold.py"]))

        await until(learnt)

        # 100 MiB, a few of the interpreter's, and a fifth; not the default.
        job = await bob.submit(holding(100), needs="cpu=0.25")
        (size,) = job.sizes
        assert 120 * MIB <= size.memory_bytes <= 200 * MIB
        assert size.memory_bytes < DEFAULT_MEMORY_BYTES
        assert str(size).endswith("learnt from 5 runs of hold.py (p95 + 20 %)")
        assert job.tasks[0].needs.memory_bytes == size.memory_bytes
        (result,) = await job
        assert result.status == "succeeded"

        # One that takes more is stopped, and tried again with what it would have had.
        more = await bob.submit(holding(300, 10.0), needs="cpu=0.25", attempts=1)
        events = [event async for event in more.events()]
        (result,) = await more
        assert result.status == "succeeded", result
        assert sum(isinstance(event, TaskPlaced) for event in events) >= 2

        # What somebody gives, or does not want to be learnt, stays as it is.
        for how in ({"needs": "memory=200MiB"}, {"learn": False}):
            job = await bob.submit(holding(10), **how)
            assert job.sizes == ()
            await job


async def test_usage_is_json(tmp_path: Path) -> None:
    from formation_p2p.command.as_json import EventLines

    async with asyncio.timeout(DEADLINE_S), network(tmp_path) as (bob, _):
        counts = ProcessSpec(("sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done"))
        job = await bob.submit(counts, needs=SMALL, labels=["one"])
        lines = EventLines({task.task_id: task.label for task in job.tasks})
        reported = [json.loads(json.dumps(lines.line(event))) async for event in job.events()]
    (succeeded,) = [each for each in reported if each["event"] == "succeeded"]
    assert succeeded["used"]["memory_bytes"] > 0
    # A shell counts so far in 0.1 s or more.
    assert 20 < succeeded["used"]["cpu_ms"] <= succeeded["ran_ms"] + 100


async def test_files_go_from_stage_to_stage_and_come_home(tmp_path: Path) -> None:
    """`derive` and functions of the API: what one task makes the next reads, wherever they run."""
    parts = Stage(
        ProcessSpec(("sh", "-c", "yes {p} | head -c 3000000 > part.txt")),
        matrix={"p": ("a", "b")},
        needs=SMALL,
    )
    merge = Stage(
        ProcessSpec(
            ("sh", "-c", "cat parts/* | wc -c > size; cat parts/* > all"),
            outputs=("all",),
            files_out=("size",),
        ),
        inputs={"parts/{label}": parts.output("part.txt")},
        needs=SMALL,
    )
    async with asyncio.timeout(DEADLINE_S), network(tmp_path) as (bob, _):
        *_, merged = await (await bob.submit(derive({"part": parts, "merge": merge})))
        assert merged.status == "succeeded", merged
        brought = ProcessResult.decode(merged.result)
        assert int(brought.files["size"]) == 6_000_000
        await bob.get(brought.outputs["all"], tmp_path / "all")
    assert (tmp_path / "all").read_bytes() == (b"a\n" * 1_500_000 + b"b\n" * 1_500_000)


@pytest.mark.parametrize("workers", ["another", "itself"])
async def test_a_worker_is_asked_for_files_until_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: str
) -> None:
    """And so keeps them: a stage may take longer than files are kept otherwise."""
    monkeypatch.setattr(stage_outputs, "EVERY_S", 0.1)
    asked: list[Cid] = []
    content = BlobStore.content

    def noted(store: BlobStore, cid: Cid) -> files.Content | None:
        asked.append(cid)
        return content(store, cid)

    monkeypatch.setattr(BlobStore, "content", noted)
    part = Stage(ProcessSpec(("sh", "-c", "echo part > part.txt")), needs=SMALL)
    go = tmp_path / "go"
    slow = Stage(
        ProcessSpec(("sh", "-c", f"until [ -e {go} ]; do sleep 0.1; done; cat part.txt")),
        inputs={"part.txt": part.output("part.txt")},
        needs=SMALL,
    )
    async with asyncio.timeout(DEADLINE_S), small_network(tmp_path, sandbox="off") as made:
        submitter = made.alice if workers == "itself" else made.bob
        job = await submitter.submit(derive({"part": part, "slow": slow}))
        await until(lambda: len(asked) > 3)
        go.touch()
        _, read = await job
        assert read.status == "succeeded", read
        assert len(set(asked)) == 1

        async def asks_no_more() -> bool:
            asked.clear()
            await asyncio.sleep(0.5)
            return not asked

        await until(asks_no_more)
