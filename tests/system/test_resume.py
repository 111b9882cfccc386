"""A scheduler that is killed at any moment goes on in its next incarnation, and nothing is lost."""

import json
import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any

import pytest

from formation_p2p.jobs.core.job_events import TaskSucceeded
from formation_p2p.machine.home import Home
from formation_p2p.state.state import State, peek
from formation_p2p.trust.core.grants import Rights
from formation_p2p.trust.core.network import parse_invite
from tests.support.commands import LOOPBACK, Done, formation, started
from tests.support.forked import Forked
from tests.support.programs import Program
from tests.support.state_world import all_done, job_of
from tests.support.stillness import LEFT_S
from tests.support.waiting import HANGS_S, wait_until

KILLS = 5
TASKS = 80
OPTIONS = ("--cpu", "1", "--sandbox", "off")


@pytest.fixture(scope="module")
def carol(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of somebody who has work to do, in a network with two workers, whose tasks may
    leave marks on this machine."""
    homes = tmp_path_factory.mktemp("homes")
    alice, carol = homes / "alice", homes / "carol"
    assert formation(alice, "network", "create").code == 0
    with ExitStack() as running:
        gate = running.enter_context(started(alice, "gate", *LOOPBACK))
        gate.line_with("to invite others")
        invitation = Home(alice).invite(Rights(int(time.time()) + 3600))
        for name in ("bob", "dave", "carol"):
            Home(homes / name).join(parse_invite(invitation))
        workers = [
            running.enter_context(started(homes / name, "worker", "--json", *LOOPBACK, *OPTIONS))
            for name in ("bob", "dave")
        ]
        for worker in workers:
            worker.line_with("ready")
        yield carol


def job_file(folder: Path, *tasks: str) -> Path:
    """Each `task` is a line of a shell; it runs in the test's own folder."""
    lines = ['name = "story"\nneeds = "cpu=1,memory=64MiB"\n']
    for number, task in enumerate(tasks):
        argv = json.dumps(["sh", "-c", f"cd {folder}; {task}"])
        lines.append(f'[[task]]\nlabel = "n{number}"\nargv = {argv}\n')
    path = folder / "job.toml"
    path.write_text("\n".join(lines))
    return path


def until_there(path: Path, scheduler: Program) -> None:
    wait_until(path.exists, otherwise=lambda: f"{path}: {scheduler.output}")


def until_placed(path: Path, scheduler: Program) -> None:
    """Until the task that makes `path` runs, and the state says where. A scheduler that is killed
    between the two does not know of it, and runs it again."""
    until_there(path, scheduler)
    scheduler.line_with('"placed"')  # it is told once it is on the disk


def kill(program: Program) -> None:
    program.process.send_signal(signal.SIGKILL)
    program.ended()


def events(output: str) -> list[dict[str, Any]]:
    """The lines of JSON of a program, but for one that was cut short."""
    found = []
    for line in output.splitlines():
        try:
            found.append(json.loads(line))
        except json.JSONDecodeError:
            assert not line.endswith("}"), line
    return found


def stored(state: Path) -> dict[str, bytes]:
    """The results that a state has, by task. Nobody else may use it."""
    opened = State(state)
    try:
        return {
            event.task_id: event.result
            for job in opened.summaries()
            for event in opened.history(job.job_id)
            if isinstance(event, TaskSucceeded)
        }
    finally:
        opened.close()


def test_killed_again_and_again_it_still_has_one_result_of_every_task(
    carol: Path, tmp_path: Path
) -> None:
    """What a person was told is on the disk, and what is on the disk stays as it is."""
    rng = random.Random(4)
    state = tmp_path / "jobs.db"
    # Each run of a task leaves a mark, and prints what no other run does.
    job = job_file(
        tmp_path, *(f"echo n{n} >> marks; sleep 0.2; cat /proc/self/stat" for n in range(TASKS))
    )
    known: dict[str, bytes] = {}
    progress: list[int] = []
    lost = 0
    for incarnation in range(KILLS):
        command = ("submit", str(job)) if not state.exists() else ("resume",)
        with started(carol, *command, "--state", str(state), "--json") as scheduler:
            scheduler.line_with('"placed"')
            for _ in range(rng.randrange(8)):
                scheduler.line_with('"succeeded"')
            kill(scheduler)
            told = events(scheduler.output)
            reported = {e["task"] for e in told if e["event"] == "succeeded"}
            lost += sum(e["event"] == "retried" for e in told)
        after = stored(state)
        assert known.items() <= after.items(), f"incarnation {incarnation} lost or changed results"
        index = {f"n{n}" for n in (int(task.rpartition("/")[2]) for task in after)}
        assert reported <= index, f"incarnation {incarnation} told of what it had not stored"
        progress.append(len(after))
        known = after
    assert progress[-1] < TASKS, f"it was done before it was killed often enough: {progress}"
    done = formation(carol, "resume", "--state", str(state), "--json")
    assert done.code == 0, done.err
    lines = events(done.out.decode())
    ends = Counter(e["task"] for e in lines if e["event"] == "succeeded")
    assert ends == {f"n{n}": 1 for n in range(TASKS)}
    assert lines[-1]["event"] == "ended"
    assert lines[-1]["succeeded"] == TASKS
    assert known.items() <= stored(state).items()
    marks = Counter((tmp_path / "marks").read_text().split())
    assert marks.keys() == {f"n{n}" for n in range(TASKS)}
    # What is in flight on two leases runs again where they end; what is not runs once.
    again = sum(marks.values()) - TASKS
    lost += sum(e["event"] == "retried" for e in lines)
    assert again <= 4 * KILLS + lost, f"{again} of {TASKS}, {lost} of them lost: {progress}"


def resumed(carol: Path, state: Path) -> Done:
    return formation(carol, "resume", "--state", str(state))


def assert_ran_once(runs: Path, dead_since_s: float) -> None:
    """A lease lives on without its scheduler, for a while: where the next incarnation takes longer
    to begin, on a machine that is very busy, the task is run again."""
    assert runs.read_text() == "ran\n" or time.monotonic() - dead_since_s > LEFT_S


def test_a_task_that_runs_on_while_its_scheduler_is_dead_is_not_run_again(
    carol: Path, tmp_path: Path
) -> None:
    state = tmp_path / "jobs.db"
    job = job_file(tmp_path, "echo ran >> runs; until [ -e go ]; do sleep 0.05; done")
    with started(carol, "submit", str(job), "--state", str(state), "--json") as scheduler:
        until_placed(tmp_path / "runs", scheduler)
        dead_since_s = time.monotonic()
        kill(scheduler)
    with started(carol, "resume", "--state", str(state), "--json") as again:
        again.line_with('"placed"')  # it goes on
        (tmp_path / "go").touch()
        again.line_with('"succeeded"')
        assert again.ended() == 0
    assert_ran_once(tmp_path / "runs", dead_since_s)


def test_ctrl_c_leaves_the_job_for_later(carol: Path, tmp_path: Path) -> None:
    state = tmp_path / "jobs.db"
    job = job_file(tmp_path, *("touch $$.began; until [ -e go ]; do sleep 0.1; done",) * 4)
    with started(carol, "submit", str(job), "--state", str(state)) as scheduler:
        wait_until(lambda: list(tmp_path.glob("*.began")))
        assert scheduler.interrupt() == 130
        assert "formation resume --state" in scheduler.output
    (job_left,) = peek(state)
    assert job_left.ended_unix_s is None
    assert job_left.ended.cancelled == 0
    (tmp_path / "go").touch()
    done = resumed(carol, state)
    assert done.code == 0, done.err
    assert done.out.decode().count("succeeded") == 4
    again = formation(carol, "resume", "--state", str(state))
    assert (again.code, again.out) == (0, b"")
    assert "no job is in progress" in again.err
    (listed,) = json.loads(formation(carol, "jobs", "--state", str(state), "--json").out)["jobs"]
    assert (listed["tasks"], listed["succeeded"]) == (4, 4)
    shown = formation(carol, "resume", "--state", str(state), listed["job"][:6])
    assert (shown.code, shown.out.decode().count("succeeded")) == (0, 4)


def test_what_was_kept_can_be_cancelled(carol: Path, tmp_path: Path) -> None:
    state = tmp_path / "jobs.db"
    job = job_file(tmp_path, *("touch began; sleep 600",) * 3)
    with started(carol, "submit", str(job), "--state", str(state)) as scheduler:
        until_there(tmp_path / "began", scheduler)
        kill(scheduler)
    done = formation(carol, "resume", "--state", str(state), "--cancel", "--json")
    assert done.code == 1
    assert json.loads(done.out.splitlines()[-1])["cancelled"] == 3
    (job_left,) = peek(state)
    assert job_left.ended.cancelled == 3


def test_files_that_were_asked_for_come_in_the_next_life(carol: Path, tmp_path: Path) -> None:
    state, out = tmp_path / "jobs.db", tmp_path / "out"
    waits = "until [ -e go ]; do sleep 0.1; done"
    task = f"echo one; touch began; {waits}; cd - > a.txt; echo hello > a.txt; echo two"
    job = job_file(tmp_path, task)
    job.write_text(job.read_text() + 'files_out = ["a.txt"]\n')
    submit = ("submit", str(job), "--state", str(state), "--out-dir", str(out))
    with started(carol, *submit) as scheduler:
        until_there(tmp_path / "began", scheduler)
        kill(scheduler)
    (tmp_path / "go").touch()
    done = formation(carol, "resume", "--state", str(state), "--out-dir", str(out))
    assert done.code == 0, done.err
    assert (out / "n0" / "a.txt").read_text() == "hello\n"
    assert (out / "n0" / "stdout").read_text() == "one\ntwo\n"


def test_what_a_failed_attempt_has_printed_is_taken_back(carol: Path, tmp_path: Path) -> None:
    """Of a file. A pipe has it for good, which the exit code says."""
    script = f"echo $1; [ -e {tmp_path}/$2 ] || {{ touch {tmp_path}/$2; exit 1; }}; echo last"
    argv = ["run", "--attempts", "2", "--", "sh", "-c", script, "sh", "first"]
    env = {**os.environ, "FORMATION_HOME": str(carol)}

    def ended(mark: str, out: int, err: IO[bytes]) -> tuple[int, bytes]:
        with Path(os.devnull).open() as nothing:
            files = (nothing.fileno(), out, err.fileno())
            code = Forked([*argv, mark], env, tmp_path, files).wait(HANGS_S)
        err.seek(0)
        return code, err.read()

    for mode, kept in (("wb", ""), ("ab", "before\n")):
        out = tmp_path / "out"
        out.write_text("before\n")
        with out.open(mode) as file, TemporaryFile() as err:
            file.write(b"own\n")
            file.flush()
            assert ended(mode, file.fileno(), err)[0] == 0
        assert out.read_text() == f"{kept}own\nfirst\nlast\n"
    reads, writes = os.pipe()
    with os.fdopen(reads, "rb") as pipe, TemporaryFile() as err:
        code, said = ended("pipe", writes, err)
        os.close(writes)
        assert (code, pipe.read()) == (1, b"first\nfirst\nlast\n")
    assert b"sh succeeded, but its stdout begins with that of an attempt" in said


def test_outputs_come_where_the_job_was_asked_to_put_them(carol: Path, tmp_path: Path) -> None:
    here, state, out = tmp_path / "here", tmp_path / "jobs.db", tmp_path / "out"
    here.mkdir()
    waits = f"touch {tmp_path}/$1; until [ -e {tmp_path}/go ]; do sleep 0.1; done"
    program = f"{waits}; echo hello > a.txt"
    argv = ["run", "--state", str(state), "--out", "a.txt", "--", "sh", "-c", program, "sh", "ran"]
    scheduler = Forked(argv, {**os.environ, "FORMATION_HOME": str(carol)}, here, (0, 1, 2))
    try:
        wait_until((tmp_path / "ran").exists)
    finally:
        scheduler.kill()
        scheduler.wait(HANGS_S)
    job = job_file(tmp_path, "echo one; touch began; until [ -e go ]; do sleep 0.1; done")
    with started(
        carol, "submit", str(job), "--state", str(state), "--out-dir", str(out)
    ) as submitted:
        until_there(tmp_path / "began", submitted)
        kill(submitted)
    (tmp_path / "go").touch()
    # What is in its way keeps one job from giving its outputs, and not the other.
    (here / "a.txt").mkdir()
    first = resumed(carol, state)
    assert (first.code, "a.txt is a folder" in first.err) == (2, True), first.err
    assert "going on with sh: 0 of 1 tasks have ended" in first.err
    assert (out / "n0" / "stdout").read_text() == "one\n"
    (here / "a.txt").rmdir()
    second = resumed(carol, state)
    assert second.code == 0, second.err
    assert (here / "a.txt").read_text() == "hello\n"
    assert "no job is in progress" in resumed(carol, state).err
    assert list((tmp_path / "jobs.db.outputs").iterdir()) == []


def test_jobs_that_have_ended_can_be_pruned(tmp_path: Path) -> None:
    path = tmp_path / "jobs.db"
    state = State(path)
    ended, waiting = job_of(2), job_of(2, "b" * 16)
    for job in (ended, waiting):
        state.save_job(job)
    state.write(all_done(ended))
    state.close()
    home = tmp_path / "home"
    kept = formation(home, "jobs", "--state", str(path), "--prune", "--json")
    assert [each["name"] for each in json.loads(kept.out)["jobs"]] == ["a job", "a job"]
    options = ("--prune", "--keep-jobs", "0", "--json")
    (left,) = json.loads(formation(home, "jobs", "--state", str(path), *options).out)["jobs"]
    assert (left["job"], left["ended_unix_s"]) == (waiting.job_id, None)
    wrong = formation(home, "jobs", "--state", str(path), "--keep-size", "much")
    assert (wrong.code, "keep-size" in wrong.err) == (2, True)


def test_what_a_person_gets_wrong_is_said_in_a_line(carol: Path, tmp_path: Path) -> None:
    missing = formation(carol, "resume", "--state", str(tmp_path / "nowhere.db"))
    assert (missing.code, missing.err.count("\n")) == (2, 1)
    assert "is not there" in missing.err
    assert "is not there" in formation(carol, "jobs", "--state", str(tmp_path / "nowhere.db")).err
    two = tmp_path / "two.db"
    opened = State(two)
    for id_ in ("a" * 16, "ab" * 8):
        opened.save_job(job_of(1, id_))
        opened.write(all_done(job_of(1, id_)))
    opened.close()
    either = formation(carol, "resume", "--state", str(two), "a")
    assert (either.code, "2 jobs have an id that begins so" in either.err) == (2, True)
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"\x00" * 4096)
    broken.chmod(0o600)
    for command in (("resume",), ("jobs",), ("run", "--state", str(broken), "--", "true")):
        options = () if command[0] == "run" else ("--state", str(broken))
        done = formation(carol, *command, *options)
        assert (done.code, done.err.count("\n")) == (2, 1), done.err
        assert "broken.db" in done.err
    assert broken.read_bytes() == b"\x00" * 4096
