"""What is written is there again, in another incarnation of the process, and nothing else is."""

import os
import sqlite3
import stat
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from formation_p2p.core.errors import InvalidInput, StateError
from formation_p2p.core.refusals import (
    Busy,
    Denied,
    Faulty,
    GivingWay,
    Gone,
    Infeasible,
    Leaving,
    Preempted,
    Silent,
    TooDear,
)
from formation_p2p.core.units import MIB
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import (
    JobEnded,
    JobEvent,
    RetryReason,
    TaskBegan,
    TaskCancelled,
    TaskGaveUp,
    TaskPrinted,
    TaskRecalled,
    TaskReopened,
    TaskRetried,
    TaskSaved,
    TaskUnplaceable,
    WorkerLost,
)
from formation_p2p.jobs.core.saved import SavedJob, SavedLease, SavedTask
from formation_p2p.jobs.core.task_run import TaskState
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.placement.core.names import parse_policy
from formation_p2p.placement.core.task_options import TaskOptions
from formation_p2p.state.job_tables import KEPT_BYTES
from formation_p2p.state.rows import JobSummary
from formation_p2p.state.state import MAX_FREE_PAGES, Retention, State, peek
from formation_p2p.workload.core.checkpoint import Checkpoint
from formation_p2p.workload.core.hints import parse_hints
from formation_p2p.workload.core.outcome import FailureKind
from formation_p2p.workload.core.process import ProcessSpec
from formation_p2p.workload.core.scope import Scope
from tests.support.state_world import (
    ALICE,
    BOB,
    BOBS,
    CAROL,
    MADE,
    NEEDS,
    all_done,
    attempt,
    hold,
    job_of,
    let_go,
    placed,
    reading_job,
    reported,
    succeeded,
)
from tests.support.waiting import HANGS_S

DAY_S = 24 * 3600.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


def reopened(state: State) -> State:
    state.close()
    return State(state.path)


# -- jobs ------------------------------------------------------------------------------------------


def test_a_job_that_was_saved_begins_the_next_life(path: Path) -> None:
    state = State(path)
    job = job_of(3, shared=b"a function")
    options = TaskOptions(
        needs=NEEDS,
        priority=4,
        attempts=2,
        timeout_s=2.5,
        deadline_s=600.0,
        speculate=True,
        max_price_micro=9,
        policy=parse_policy("trust>=0.5 & balanced"),
        hints=parse_hints(["region=eu"]),
        scope=Scope.ORG,
        learn=False,
    )
    job = replace(job, options=options)
    other = Requirements(cpu_milli=500, labels=(("region", "eu"),), driver="python")
    job = replace(job, tasks=(*job.tasks[:2], replace(job.tasks[2], needs=other)))
    state.save_job(job)
    state = reopened(state)
    ((saved,), leases) = state.load(ALICE)
    state.close()
    left_s = saved.job.options.deadline_s
    assert left_s is not None
    assert 599.0 < left_s <= 600.0
    assert replace(saved.job, options=replace(saved.job.options, deadline_s=600.0)) == job
    assert saved.begun == ()
    assert leases == ()


def test_what_waits_for_what_and_what_was_learnt_is_kept(path: Path) -> None:
    state = State(path)
    first, second, third = job_of(3).tasks
    second = replace(second, after=(first.task_id,), kind="process:x", more_memory_bytes=1 << 30)
    third = replace(third, after=(second.task_id, first.task_id))
    job = replace(job_of(3), tasks=(first, second, third))
    state.save_job(job)
    fell = TaskGaveUp(second.task_id, (), FailureKind.UPSTREAM, b"", first.task_id)
    state.write(reported(job, fell))
    state = reopened(state)
    ((saved,), _) = state.load(ALICE)
    assert saved.job == job
    assert list(state.history(job.job_id)) == [fell]
    state.close()


def test_a_deadline_goes_on_while_nobody_runs(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = State(path)
    state.save_job(replace(job_of(1), options=TaskOptions(deadline_s=100.0)))
    now_s = time.time()
    for later_s, left_s in ((40.0, 60.0), (500.0, 0.001), (-500.0, 100.0)):
        monkeypatch.setattr(time, "time", lambda at_s=now_s + later_s: at_s)
        ((saved,), _) = state.load(ALICE)
        assert saved.job.options.deadline_s == pytest.approx(left_s, abs=1.0)
    state.close()


def test_what_became_of_its_tasks_is_known(path: Path) -> None:
    state = State(path)
    job = job_of(6)
    state.save_job(job)
    ids = [task.task_id for task in job.tasks]
    state.write(
        reported(
            job,
            *(placed(job, n) for n in range(5)),
            succeeded(job, 0),
            TaskRetried(ids[1], attempt(job, 1)),
            placed(job, 1, 2),
            TaskRetried(ids[2], attempt(job, 2, lost=True), True, RetryReason.MAY_HAVE_RUN),
            TaskGaveUp(ids[3], (attempt(job, 3),), FailureKind.EXIT, b"left over"),
            TaskCancelled(ids[4]),
        )
    )
    state = reopened(state)
    ((saved,), _) = state.load(ALICE)
    state.close()
    assert saved == SavedJob(
        job,
        (
            SavedTask(ids[0], 1, (), TaskState.SUCCEEDED),
            SavedTask(ids[1], 2, (attempt(job, 1),), None),
            SavedTask(ids[2], 1, (attempt(job, 2, lost=True),), None),
            SavedTask(ids[3], 1, (), TaskState.FAILED),
            SavedTask(ids[4], 1, (), TaskState.CANCELLED),
        ),
    )


def test_files_that_tasks_made_for_others_are_known_until_they_are_lost(path: Path) -> None:
    state = State(path)
    job = reading_job()
    state.save_job(job)
    first = job.tasks[0].task_id
    state.write(reported(job, placed(job, 0), succeeded(job, 0, MADE.encode())))
    state = reopened(state)
    ((saved,), _) = state.load(ALICE)
    known = SavedTask(first, 1, (), TaskState.SUCCEEDED, BOB, MADE.outputs)
    assert saved == SavedJob(job, (known,))
    state.write(reported(job, TaskReopened(first, BOB)))
    ((saved,), _) = state.load(ALICE)
    assert saved.begun == (SavedTask(first, 1, (), None),)
    state.close()


def test_the_newest_checkpoint_that_was_held_is_known_until_the_task_is_run_again(
    path: Path,
) -> None:
    state = State(path)
    job = reading_job()
    state.save_job(job)
    first = job.tasks[0].task_id
    blob = MADE.outputs["out"]
    state.write(reported(job, placed(job, 0), TaskSaved(first, Checkpoint(3, blob), ())))
    newest = Checkpoint(4, blob)
    state.write(reported(job, TaskSaved(first, newest, ())))
    state = reopened(state)
    ((saved,), _) = state.load(ALICE)
    assert saved.begun == (SavedTask(first, 1, (), None, checkpoint=newest),)
    state.write(reported(job, TaskReopened(first, BOB)))
    ((saved,), _) = state.load(ALICE)
    assert saved.begun == (SavedTask(first, 1, (), None),)
    state.close()


def test_attempts_that_brought_nothing_are_in_the_order_in_which_that_was_told(path: Path) -> None:
    state = State(path)
    job = job_of(1)
    state.save_job(job)
    task_id = job.tasks[0].task_id
    later, earlier = attempt(job, 0), attempt(job, 0, 2)
    state.write(reported(job, placed(job, 0), placed(job, 0, 2)))
    state.write(reported(job, TaskRetried(task_id, earlier), TaskRetried(task_id, later)))
    ((saved,), _) = state.load(ALICE)
    assert saved.begun == (SavedTask(task_id, 2, (earlier, later), None),)
    state.close()


def test_its_whole_story_can_be_told_again(path: Path) -> None:
    state = State(path)
    job = job_of(6)
    state.save_job(job)
    ids = [task.task_id for task in job.tasks]
    reasons = (
        (BOB, Infeasible("gpu.memory", 5, 3)),
        (BOB, Infeasible("driver", "wasm", "process")),
        (CAROL, Denied("submit", "expired")),
        (CAROL, Gone("the offer", "it expired")),
        (CAROL, Busy("leases", 64)),
        (CAROL, Leaving()),
        (CAROL, GivingWay("cpu", 500)),
        (CAROL, Preempted(7)),
        (CAROL, TooDear(5, 3)),
        (CAROL, Silent("no answer")),
        (CAROL, Faulty("no disk")),
    )
    story: list[JobEvent] = [
        placed(job, 0),
        succeeded(job, 0, b"\x00binary\xff"),
        placed(job, 1),
        TaskRetried(ids[1], attempt(job, 1)),
        placed(job, 1, 2),
        TaskGaveUp(ids[1], (attempt(job, 1), attempt(job, 1, 2)), FailureKind.EXIT, b"left"),
        placed(job, 2),
        TaskRecalled(ids[2], f"{ids[2]}#1"),
        placed(job, 2, 2),
        TaskRetried(ids[2], attempt(job, 2, 2), counts=False),
        placed(job, 2, 3),
        TaskRetried(ids[2], attempt(job, 2, 3, lost=True), False, RetryReason.RESULT_LOST),
        placed(job, 2, 4),
        succeeded(job, 2),
        TaskUnplaceable(ids[3], reasons),
        TaskCancelled(ids[4]),
        TaskGaveUp(ids[5], (), None, b""),
        JobEnded(2, 2, 1, 1),
    ]
    state.write(reported(job, *story))
    assert list(state.history(job.job_id)) == story
    state = reopened(state)
    assert list(state.history(job.job_id)) == story
    assert state.load(ALICE) == ((), ())  # it has ended
    assert state.story(job.job_id) == (job, tuple(story))
    state.close()


def test_output_and_the_like_take_no_room(path: Path) -> None:
    state = State(path)
    job = job_of(1)
    state.save_job(job)
    task_id = job.tasks[0].task_id
    state.write(
        reported(
            job,
            TaskPrinted(task_id, False, b"hello", ALICE),
            TaskBegan(task_id, BOB),
            WorkerLost(BOB, "it died"),
        )
    )
    assert list(state.history(job.job_id)) == []
    state.close()


def test_what_is_told_twice_counts_once(path: Path) -> None:
    """An incarnation that was cut short may have stored what the next one is told of again."""
    state = State(path)
    job = job_of(2)
    state.save_job(job)
    state.write(reported(job, placed(job, 0), succeeded(job, 0, b"first")))
    state.write(reported(job, placed(job, 0), succeeded(job, 0, b"second")))
    assert list(state.history(job.job_id)) == [placed(job, 0), succeeded(job, 0, b"first")]
    state.close()


def test_jobs_that_are_not_kept_are_passed_over(path: Path) -> None:
    state = State(path)
    kept, passing = job_of(1), job_of(1, "b" * 16)
    state.save_job(kept)
    state.write([*all_done(passing), *reported(kept, placed(kept, 0))])
    assert [each.job_id for each in state.summaries()] == [kept.job_id]
    assert list(state.history(passing.job_id)) == []
    assert state.story(passing.job_id) is None
    state.close()


def test_a_job_that_was_refused_is_forgotten(path: Path) -> None:
    state = State(path)
    job = job_of(2)
    state.save_job(job)
    state.forget(job.job_id)
    assert not state.is_in_flight(job.job_id)
    assert state.summaries() == ()
    state.save_job(job)  # the id is free again
    state.close()


def test_needs_that_nobody_could_be_asked_for_are_the_callers_fault(path: Path) -> None:
    state = State(path)
    labels = tuple((f"label{n}" + "k" * 57, "v" * 63) for n in range(8))
    models = tuple(f"{n:02d}" + "m" * 94 for n in range(16))
    needs = Requirements(driver="python", gpu_count=1, gpu_models=models, labels=labels)
    job = job_of(1)
    with pytest.raises(InvalidInput, match="fewer labels"):
        state.save_job(replace(job, tasks=(replace(job.tasks[0], needs=needs),)))
    assert state.summaries() == ()
    state.close()


def test_half_a_character_in_a_reason_is_no_reason_to_fail(path: Path) -> None:
    state = State(path)
    job = job_of(1)
    state.save_job(job)
    why = replace(attempt(job, 0), why="no such file: \udcff")
    state.write(reported(job, placed(job, 0), TaskRetried(job.tasks[0].task_id, why)))
    events = list(state.history(job.job_id))
    assert isinstance(events[1], TaskRetried)
    assert events[1].attempt.why == "no such file: ?"
    state.close()


def test_what_there_is_can_be_listed_by_others_meanwhile(path: Path) -> None:
    state = State(path)
    first, second = job_of(3), job_of(2, "b" * 16)
    state.save_job(first)
    state.save_job(second)
    state.write([*all_done(second), *reported(first, placed(first, 0), succeeded(first, 0))])
    listed = peek(path)
    assert listed == state.summaries()
    assert [replace(x, submitted_unix_s=0, ended_unix_s=None) for x in listed] == [
        JobSummary(first.job_id, "a job", 3, JobEnded(1, 0, 0, 0), 0, None),
        JobSummary(second.job_id, "a job", 2, JobEnded(2, 0, 0, 0), 0, None),
    ]
    assert listed[0].ended_unix_s is None
    assert abs((listed[1].ended_unix_s or 0) - time.time()) < 60
    state.close()
    assert peek(path) == listed  # and when nobody uses it


# -- leases ----------------------------------------------------------------------------------------


def test_a_lease_and_what_runs_under_it_are_found_again(path: Path) -> None:
    state = State(path)
    job = job_of(5)
    state.load(ALICE)
    state.save_job(job)
    ids = [task.task_id for task in job.tasks]
    state.write(
        [
            hold("lease"),
            hold("marked", ("grant:4f0c", "org:acme")),
            hold("given back"),
            *reported(
                job,
                *(placed(job, n) for n in range(4)),
                placed(job, 4, lease_id="given back"),
                succeeded(job, 0),
                TaskRetried(ids[1], attempt(job, 1, lost=True)),
                TaskRecalled(ids[2], f"{ids[2]}#1"),
            ),
            let_go("given back"),
        ]
    )
    state = reopened(state)
    _, leases = state.load(ALICE)
    assert leases == (
        SavedLease("lease", BOBS, NEEDS, 5, 17, ("gpu-0",), ((f"{ids[3]}#1", ids[3]),)),
        SavedLease("marked", BOBS, NEEDS, 5, 17, ("gpu-0",), (), ("grant:4f0c", "org:acme")),
    )
    state.close()


def test_another_identity_takes_the_jobs_but_not_the_leases(path: Path) -> None:
    state = State(path)
    state.load(ALICE)
    state.save_job(job_of(1))
    state.write([hold()])
    jobs, leases = state.load(CAROL)
    assert (len(jobs), leases) == (1, ())
    _, leases = state.load(ALICE)
    assert leases == ()  # meanwhile nobody renewed them
    state.close()


# -- bounds ----------------------------------------------------------------------------------------


def numbered(n: int) -> str:
    return f"{n:016x}"


def ended_jobs(state: State, count: int, size: int = 10) -> None:
    for n in range(count):
        job = job_of(20, numbered(n), size=size)
        state.save_job(job)
        state.write(all_done(job))


def test_ended_jobs_are_kept_up_to_a_number_and_others_always(path: Path) -> None:
    state = State(path, Retention(jobs=3))
    waiting = job_of(1, "f" * 16)
    state.save_job(waiting)
    ended_jobs(state, 6)
    assert state.prune()
    kept = [each.job_id for each in state.summaries()]
    assert kept == [waiting.job_id, *(numbered(n) for n in (3, 4, 5))]
    assert list(state.history(numbered(5)))
    state.close()


def test_ended_jobs_are_kept_for_a_time(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = State(path, Retention(age_s=7 * DAY_S))
    ended_jobs(state, 1)
    later_s = time.time() + 8 * DAY_S
    monkeypatch.setattr(time, "time", lambda: later_s)
    job = job_of(1, "f" * 16)
    state.save_job(job)
    state.write(all_done(job))
    assert state.prune()
    assert [each.job_id for each in state.summaries()] == [job.job_id]
    state.close()


def test_ended_jobs_are_kept_up_to_a_size_and_the_file_shrinks(path: Path) -> None:
    state = State(path)
    ended_jobs(state, 150, size=3_000)  # 60 kB each
    state.close()
    assert path.stat().st_size > 8 * MIB
    state = State(path, Retention(size_bytes=2 * MIB))
    assert state.prune()
    kept = [each.job_id for each in state.summaries()]
    assert 1 <= len(kept) <= 40
    assert kept[-1] == numbered(149)
    state.close()
    assert path.stat().st_size < 2 * MIB + MAX_FREE_PAGES * 4096


def test_pruning_makes_way_for_whoever_waits_and_goes_on_later(path: Path) -> None:
    state = State(path, Retention(jobs=0))
    big = job_of(5_000)
    state.save_job(big)
    state.write(reported(big, JobEnded(0, 0, 0, 0)))
    asked: list[int] = []

    def busy() -> bool:
        asked.append(1)
        return False

    assert not state.prune(busy)
    assert asked == [1]
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM tasks").fetchone() == (3_000,)
    # Half a job is no job, and whatever the bounds say now, it is kept by nobody.
    assert state.summaries() == ()
    assert state.story(big.job_id) is None
    assert not state.has_ended(big.job_id)
    state = reopened(state)
    assert state.prune()
    assert state.summaries() == ()
    state.close()


# -- cost ------------------------------------------------------------------------------------------


def test_ten_thousand_tasks_cost_less_than_a_second_of_processor(path: Path) -> None:
    state = State(path)
    job = job_of(10_000, shared=b"f" * 2_000)
    began_s = time.thread_time()
    state.save_job(job)
    took_s = time.thread_time() - began_s
    state.close()
    assert took_s < 1.0  # 0.05 s on an idle machine
    assert path.stat().st_size < 3 * 1024 * 1024  # what they share is there once


# -- the file --------------------------------------------------------------------------------------


def test_all_its_files_are_for_their_owner_alone(path: Path) -> None:
    state = State(path)
    state.save_job(job_of(1))
    names = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    state.close()
    assert names == dict.fromkeys(("jobs.db", "jobs.db-wal", "jobs.db-shm", "jobs.db.lock"), 0o600)


def test_one_that_is_open_to_others_is_refused_with_what_mends_it(path: Path) -> None:
    State(path).close()
    path.chmod(0o644)
    with pytest.raises(StateError, match="chmod 600"):
        State(path)
    with pytest.raises(StateError, match="chmod 600"):
        peek(path)


def test_one_process_at_a_time_may_use_it(path: Path) -> None:
    state = State(path)
    code = (
        "import sys, pathlib\n"
        "from formation_p2p.core.errors import StateError\n"
        "from formation_p2p.state.state import State\n"
        "try: State(pathlib.Path(sys.argv[1]))\n"
        "except StateError as error: print(error)\n"
    )
    argv = [sys.executable, "-c", code, str(path)]
    printed = subprocess.run(
        argv, capture_output=True, text=True, timeout=HANGS_S, check=True
    ).stdout
    assert "in use by another process" in printed
    state.close()
    State(path).close()


def test_a_folder_another_file_or_no_folder_is_no_state(tmp_path: Path, path: Path) -> None:
    with pytest.raises(StateError, match="is not a plain file"):
        State(tmp_path)
    with pytest.raises(StateError, match="No such file"):
        State(tmp_path / "nowhere" / "jobs.db")
    with pytest.raises(StateError, match="No such file"):
        peek(path)
    assert not path.exists()
    other = tmp_path / "notes.txt"
    other.write_text("some notes that are dear to somebody\n" * 500)
    other.chmod(0o600)
    with pytest.raises(StateError, match="damaged"):
        State(other)
    assert other.read_text().startswith("some notes")


def test_a_process_that_was_killed_while_it_made_one_left_nothing(path: Path) -> None:
    new = path.with_name("jobs.db.new")
    new.write_bytes(b"half of i")
    state = State(path)
    state.save_job(job_of(1))
    state.close()
    assert not new.exists()


def test_where_nobody_may_write_the_error_says_so(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        folder = Path("/proc")  # where not even root may
    else:
        folder = tmp_path / "locked"
        folder.mkdir(mode=0o500)
    with pytest.raises(StateError, match=r"jobs\.db"):
        State(folder / "jobs.db")


def large_job(tasks: int, size: int) -> Job:
    plain = job_of(tasks, shared=b"\0asm" + bytes(KEPT_BYTES))
    spec = ProcessSpec(("convert", "a"), files_in={"a": bytes(size)}, files_out=("b",), stdin=b"x")
    payload = spec.encode()
    return replace(plain, tasks=tuple(replace(task, payload=payload) for task in plain.tasks))


def test_what_came_with_the_tasks_of_an_ended_job_goes_and_the_file_shrinks(path: Path) -> None:
    state = State(path)
    over, running = large_job(120, 100_000), replace(large_job(2, 100_000), job_id="b" * 16)
    state.save_job(over)
    tasks = tuple(replace(t, task_id=t.task_id.replace("a", "b")) for t in running.tasks)
    running = replace(running, tasks=tasks)
    state.save_job(running)
    before = path.stat().st_size
    state.write(all_done(over))
    assert state.has_ended(over.job_id)
    assert not state.has_ended(running.job_id)
    assert not state.has_ended("unknown")
    assert not state.prune(lambda: False)
    assert state.prune()
    assert path.stat().st_size < before - 120 * 100_000 + 2 * MAX_FREE_PAGES * 4096
    state = reopened(state)
    assert state.story(running.job_id) == (running, ())
    story = state.story(over.job_id)
    assert story is not None
    known, _ = story
    for task in known.tasks:
        assert task.shared == b"\0asm"
        assert ProcessSpec.decode(task.payload) == ProcessSpec(("convert", "a"), files_out=("b",))
    state.close()


def test_a_payload_that_is_large_without_its_files_goes_whole(path: Path) -> None:
    state = State(path)
    """Also that of a call, and what no driver could read."""
    argv = ProcessSpec(("x", "y" * KEPT_BYTES)).encode()
    job = job_of(3, size=KEPT_BYTES)
    python = replace(NEEDS, driver="python")
    first, second, third = job.tasks
    first, second = replace(first, payload=argv), replace(second, needs=python)
    job = replace(job, tasks=(first, second, third))
    state.save_job(job)
    state.write(all_done(job))
    assert state.prune()
    story = state.story(job.job_id)
    assert story is not None
    known, _ = story
    assert [task.payload for task in known.tasks] == [b"", b"", b""]
    state.close()
