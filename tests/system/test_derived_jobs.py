"""Jobs made of a matrix, inputs and an order, and sizes that are learnt, against real peers."""

import asyncio
import json
import sys
from pathlib import Path

import pytest

from formation_p2p import (
    JobHandle,
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
from tests.support.network import SmallNetwork, small_network
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


pytestmark = pytest.mark.asyncio(loop_scope="module")


def order_of(job: JobHandle, events: list[object]) -> list[str]:
    labels = {task.task_id: task.label for task in job.tasks}
    ways = {TaskPlaced: "+", TaskSucceeded: "-"}
    return [
        ways[type(e)] + labels[e.task_id]
        for e in events
        if isinstance(e, TaskPlaced | TaskSucceeded)
    ]


async def test_a_job_file_with_a_matrix_inputs_and_an_order_runs_as_it_says(
    small: SmallNetwork, tmp_path: Path
) -> None:
    (tmp_path / "data").mkdir()
    for name in ("a", "b"):
        (tmp_path / "data" / f"{name}.txt").write_text("line\n")
    (tmp_path / "job.toml").write_text(JOB)
    plan = read_job_file(tmp_path / "job.toml").plan()
    bob = small.bob
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


async def test_calls_of_functions_may_wait_for_each_other(
    unboxed: SmallNetwork, tmp_path: Path
) -> None:
    """They meet in a folder of this machine."""
    path = tmp_path / "x"

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
    *_, last = await (await unboxed.alice.submit(plan, needs=SMALL))
    assert value_of(last) == "123"


HOLDS = "import time; held = b'x' * ({mib} * 2**20); time.sleep({seconds})"


def holding(mib: int, seconds: float = 0.1) -> ProcessSpec:
    """A run of hold.py, which takes so much memory for so long."""
    program = HOLDS.format(mib=mib, seconds=seconds).encode()
    return ProcessSpec((sys.executable, "-I", "-S", "hold.py"), files_in={"hold.py": program})


async def test_memory_that_nobody_gave_is_learnt_from_earlier_runs(small: SmallNetwork) -> None:
    bob = small.bob
    given = await bob.submit([holding(100)] * 5, needs="cpu=0.25,memory=300MiB")
    assert given.sizes == ()
    assert {each.status for each in await given} == {"succeeded"}
    sizes = MemorySamples(small.folder / "bob")

    await until(lambda: sizes.learnt(["process:hold.py"]))

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


async def test_usage_is_json(small: SmallNetwork) -> None:
    from formation_p2p.command.as_json import EventLines

    bob = small.bob
    counts = ProcessSpec(("sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i + 1)); done"))
    job = await bob.submit(counts, needs=SMALL, labels=["one"])
    lines = EventLines({task.task_id: task.label for task in job.tasks})
    reported = [json.loads(json.dumps(lines.line(event))) async for event in job.events()]
    (succeeded,) = [each for each in reported if each["event"] == "succeeded"]
    assert succeeded["used"]["memory_bytes"] > 0
    # A shell counts so far in 0.1 s or more.
    assert 20 < succeeded["used"]["cpu_ms"] <= succeeded["ran_ms"] + 100


async def test_files_go_from_stage_to_stage_and_come_home(
    small: SmallNetwork, tmp_path: Path
) -> None:
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
    bob = small.bob
    *_, merged = await (await bob.submit(derive({"part": parts, "merge": merge})))
    assert merged.status == "succeeded", merged
    brought = ProcessResult.decode(merged.result)
    assert int(brought.files["size"]) == 6_000_000
    await bob.get(brought.outputs["all"], tmp_path / "all")
    assert (tmp_path / "all").read_bytes() == (b"a\n" * 1_500_000 + b"b\n" * 1_500_000)


async def test_a_worker_is_asked_for_files_until_they_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so keeps them, also where it has submitted the job itself: a stage may take longer than
    files are kept otherwise."""
    monkeypatch.setattr(stage_outputs, "EVERY_S", 0.1)
    asked: list[Cid] = []
    content = BlobStore.content

    def noted(store: BlobStore, cid: Cid) -> files.Content | None:
        asked.append(cid)
        return content(store, cid)

    async def asks_no_more() -> bool:
        asked.clear()
        await asyncio.sleep(0.5)
        return not asked

    monkeypatch.setattr(BlobStore, "content", noted)
    async with small_network(tmp_path, sandbox="off") as made:
        for submitter in (made.bob, made.alice):
            asked.clear()
            go = tmp_path / f"go {submitter.peer_id}"
            script = f"until [ -e '{go}' ]; do sleep 0.1; done; cat part.txt"
            part = Stage(ProcessSpec(("sh", "-c", "echo part > part.txt")), needs=SMALL)
            inputs = {"part.txt": part.output("part.txt")}
            slow = Stage(ProcessSpec(("sh", "-c", script)), inputs=inputs, needs=SMALL)
            job = await submitter.submit(derive({"part": part, "slow": slow}))
            await until(lambda: len(asked) > 3)
            go.touch()
            _, read = await job
            assert read.status == "succeeded", read
            assert len(set(asked)) == 1
            await until(asks_no_more)
