"""What a person may submit, and what is refused before it goes anywhere."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.keyspace import key_of
from formation_p2p.jobs.core.job import Job
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.workload.core.work import (
    MAX_KIND_CHARS,
    MAX_PAYLOAD_BYTES,
    MAX_TASK_ID_CHARS,
    MAX_TASKS,
    Task,
    task_id,
)
from tests.support.stories import NEEDS, job

TASK = Task("job/0", NEEDS, b"payload")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda: replace(TASK, task_id=""), "task id"),
        (lambda: replace(TASK, task_id="x" * (MAX_TASK_ID_CHARS + 1)), "task id"),
        (lambda: replace(TASK, task_id="job\x1b[2J"), "task id"),
        (lambda: replace(TASK, task_id="job\ud800"), "task id"),
        (lambda: replace(TASK, needs=Requirements()), "driver"),
        (lambda: replace(TASK, payload=bytes(MAX_PAYLOAD_BYTES + 1)), "payload"),
        (lambda: replace(TASK, shared=bytes(MAX_PAYLOAD_BYTES)), "payload"),
        (lambda: replace(TASK, kind="x" * (MAX_KIND_CHARS + 1)), "kind"),
        (lambda: replace(TASK, kind="x\ny"), "kind"),
        (lambda: replace(TASK, more_memory_bytes=-1), "memory"),
        (lambda: Job("job", (replace(TASK, after=("job/1",)),)), "after"),
        (lambda: Job("job", (replace(TASK, after=("job/0",)),)), "after"),
        (lambda: Job("job", ()), "tasks"),
        (lambda: Job("job", (TASK,) * (MAX_TASKS + 1)), "tasks"),
        (lambda: Job("job", (TASK, TASK)), "tasks"),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_its_name(
    change: Callable[[], object], field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        change()
    assert refused.value.field == field


def test_the_largest_of_everything_is_accepted() -> None:
    task = Task("x" * MAX_TASK_ID_CHARS, NEEDS, bytes(MAX_PAYLOAD_BYTES))
    assert Job("job", (task,)).tasks == (task,)


def test_a_task_stands_at_the_key_of_its_id_on_every_node() -> None:
    assert task_id("job", 3) == "job/3"
    assert job(4).tasks[3].key == key_of(b"job/3")


@given(st.integers(0, MAX_TASKS - 1))
def test_ids_of_our_own_making_always_fit(index: int) -> None:
    own = Task(task_id("0123456789abcdef", index), NEEDS, b"")
    assert len(own.task_id) <= MAX_TASK_ID_CHARS
