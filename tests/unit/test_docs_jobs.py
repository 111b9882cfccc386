"""What docs/jobs.md says can be read, and makes the tasks that it says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from formation_p2p.command.job_file import parse_job_file
from formation_p2p.core.units import format_bytes
from formation_p2p.features.builds.core.derive import MAX_EDGES
from formation_p2p.jobs.core.task_run import TRANSITIONS
from formation_p2p.workload.core.memory_estimate import MAX_KINDS, MAX_SAMPLES
from formation_p2p.workload.core.work import MAX_TASKS, MIN_MEMORY_BYTES
from tests.support.documents import block, text_of
from tests.support.state_tables import events_table

DOCUMENT = text_of("docs/jobs.md")


def test_the_job_file_is_one(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in ("a", "b"):
        (tmp_path / "data" / f"{name}.csv").write_text("1")
    text = block("docs/jobs.md", "toml", 'name = "sweep"').text
    job = parse_job_file(text, tmp_path)
    assert [task.label for task in job.tasks] == [
        "prepare-data-a.csv",
        "prepare-data-b.csv",
        "train-0.1-1",
        "train-0.1-2",
        "train-0.01-1",
        "train-0.01-2",
        "train-0.01-3",
        "train-0.5-1",
        "compare",
    ]
    assert job.tasks[2].after == (0, 1)
    assert job.tasks[-1].after == tuple(range(2, 8))
    assert {task.needs and task.needs.gpu_count for task in job.tasks} == {None, 1}


def test_the_program_makes_the_plan() -> None:
    text = block("docs/jobs.md", "python", "plan = derive(").text
    names: dict[str, Any] = {}
    exec(compile(text, "docs/jobs.md", "exec"), names)
    plan = names["plan"]
    assert [len(task.after) for task in plan.tasks] == [0, 1, 1, 1, 1, 1, 5, 5]


def test_the_bounds_are_those_of_the_code() -> None:
    text = " ".join(DOCUMENT.split())
    least = format_bytes(MIN_MEMORY_BYTES).replace("MiB", " MiB")
    for said in (
        f"at most {MAX_TASKS:,} tasks and {MAX_EDGES:,} dependencies",
        f"the last {MAX_SAMPLES} samples of each kind, for at most {MAX_KINDS:,} kinds",
        f"plus 20 %, and at least {least}.",
    ):
        assert said in text


def test_the_table_of_a_tasks_states_is_the_codes() -> None:
    assert events_table(TRANSITIONS) in DOCUMENT
