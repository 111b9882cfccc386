"""The disk that the simulator has, and the one that ships, hold the same."""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from formation_p2p.jobs.core.fetch import SchedulerEffect
from formation_p2p.jobs.core.job_events import (
    Attempt,
    JobEnded,
    JobEvent,
    TaskCancelled,
    TaskGaveUp,
    TaskPlaced,
    TaskRecalled,
    TaskReopened,
    TaskRetried,
    TaskSaved,
    TaskSucceeded,
    TaskUnplaceable,
)
from formation_p2p.jobs.core.saved import SavedJob, SavedLease
from formation_p2p.state.state import State
from formation_p2p.workload.core.checkpoint import Checkpoint
from formation_p2p.workload.core.outcome import FailureKind
from simulations.simulator.disk import Disk
from simulations.simulator.world import World
from tests.support.state_world import (
    ALICE,
    BOB,
    MADE,
    hold,
    let_go,
    reading_job,
    reported,
    succeeded,
)

Saved = tuple[tuple[SavedJob, ...], tuple[SavedLease, ...]]


class AtOnce:
    """A world in which whatever is to happen happens."""

    def after(self, delay_s: float, happen: Callable[..., None], *arguments: Any) -> None:
        happen(*arguments)


def in_order(saved: Saved) -> Saved:
    """Which task is named first says nothing."""
    jobs, leases = saved
    return (
        tuple(
            replace(job, begun=tuple(sorted(job.begun, key=lambda task: task.task_id)))
            for job in jobs
        ),
        tuple(
            sorted(
                (replace(lease, attempts=tuple(sorted(lease.attempts))) for lease in leases),
                key=lambda lease: lease.lease_id,
            )
        ),
    )


@st.composite
def lives(draw: st.DrawFn) -> list[SchedulerEffect]:
    """What a scheduler may tell of a job of three tasks and two leases, and no more."""
    job = reading_job()
    effects: list[SchedulerEffect] = []
    in_flight: dict[int, list[TaskPlaced]] = {0: [], 1: [], 2: []}
    tried = dict.fromkeys(in_flight, 0)
    ended: dict[int, type[JobEvent]] = {}
    for _ in range(draw(st.integers(0, 30))):
        action = draw(
            st.sampled_from(("hold", "let go", "place", "save", "retry", "recall", "end", "reopen"))
        )
        lease_id = draw(st.sampled_from(("one", "two")))
        if action == "hold":
            effects.append(hold(lease_id, draw(st.sampled_from((None, (), ("org:acme",))))))
        elif action == "let go":
            effects.append(let_go(lease_id))
        if action == "reopen" and ended.get(0) is TaskSucceeded:
            del ended[0]
            in_flight[0].clear()
            effects += reported(job, TaskReopened(job.tasks[0].task_id, BOB))
            continue
        open_tasks = sorted({0, 1, 2} - ended.keys())
        if not open_tasks or action in ("hold", "let go", "reopen"):
            continue
        task = draw(st.sampled_from(open_tasks))
        task_id = job.tasks[task].task_id
        if action == "place":
            tried[task] += 1
            placed = TaskPlaced(task_id, f"{task_id}#{tried[task]}", BOB, lease_id, nearest=True)
            in_flight[task].append(placed)
            effects += reported(job, placed)
        elif action == "save":
            saved = Checkpoint(draw(st.integers(1, 9)), MADE.outputs["out"])
            effects += reported(job, TaskSaved(task_id, saved, ()))
        elif action == "end":
            attempt = Attempt(f"{task_id}#1", BOB, "why", lost=False)
            ends: tuple[JobEvent, ...] = (
                succeeded(job, task, MADE.encode()),
                TaskGaveUp(task_id, (attempt,), FailureKind.EXIT, b""),
                TaskUnplaceable(task_id, ()),
                TaskCancelled(task_id),
            )
            end = draw(st.sampled_from(ends))
            ended[task] = type(end)
            effects += reported(job, end)
        elif in_flight[task]:
            placed = in_flight[task].pop(draw(st.integers(0, len(in_flight[task]) - 1)))
            attempt = Attempt(placed.attempt_id, BOB, "why", lost=draw(st.booleans()))
            if action == "recall":
                effects += reported(job, TaskRecalled(task_id, placed.attempt_id))
            else:
                effects += reported(job, TaskRetried(task_id, attempt))
    if len(ended) == 3 and draw(st.booleans()):
        effects += reported(job, JobEnded(3, 0, 0, 0))
    return effects


@given(lives(), st.integers(1, 7))
@settings(max_examples=30, deadline=None)
def test_what_the_simulator_loads_is_what_a_state_loads(
    effects: list[SchedulerEffect], batch: int
) -> None:
    job = reading_job()
    disk = Disk(cast("World", AtOnce()), lambda: 0.0)
    disk.submit(job)
    with tempfile.TemporaryDirectory() as folder:
        state = State(Path(folder) / "jobs.db")
        try:
            state.load(ALICE)
            state.save_job(job)
            for first in range(0, len(effects), batch):
                state.write(effects[first : first + batch])
            for effect in effects:
                disk.note(effect, lambda effect: None)
            assert in_order(state.load(ALICE)) == in_order(disk.saved())
        finally:
            state.close()
