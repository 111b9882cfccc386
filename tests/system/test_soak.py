"""A small network under everything at once, for less than a minute; and that its counts notice
what they count."""

import json
import math
import pickle
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from formation_p2p import TaskResult
from formation_p2p.core.identity import PeerId
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import Attempt, EmitJobEvent, JobEnded, TaskSucceeded
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.state.state import State
from formation_p2p.workload.core.outcome import FailureKind
from formation_p2p.workload.core.process import ProcessResult
from formation_p2p.workload.core.work import Task, task_id
from simulations.node_process import NodeProcess
from tests.soak import __main__ as soak
from tests.soak.account import Account
from tests.soak.jobs import TASKS, Drawn
from tests.soak.memory import Scales, growth_of, kept_bytes
from tests.soak.network import SoakNetwork
from tests.support.waiting import wait_until

MINUTES = 0.5
# Of a process that does the same work as before: what is generous on a busy machine.
MAX_GROWTH_MB = 100


@pytest.mark.waits
@pytest.mark.at_length
def test_nothing_is_lost_wrong_or_counted_twice_in_a_storm() -> None:
    figures = soak.story(MINUTES, 1, print)
    exact = ("lost", "wrong", "duplicated", "tracebacks", "unfinished")
    assert [figures[name] for name in exact] == [0] * len(exact), figures["faults"]
    growth_mb = figures["rss_growth_mb"]
    assert isinstance(growth_mb, float)
    assert growth_mb < MAX_GROWTH_MB, figures["rss_growth_mb_of"]
    assert figures["right_jobs"]
    assert figures["kills"]


# -- that the counts can be other than 0 --------------------------------------------------------


def told(folder: Path, *lines: object) -> Account:
    """What comes of a process that printed these lines."""
    path = folder / "submitter0.out"
    path.write_text("".join(f"{x if isinstance(x, str) else json.dumps(x)}\n" for x in lines))
    account = Account()
    account.read_output(path)
    account.settle()
    return account


def test_a_job_that_was_acknowledged_and_is_not_seen_again_is_lost(tmp_path: Path) -> None:
    kept = [{"event": "kept", "job": job} for job in ("a", "b")]
    account = told(tmp_path, *kept, {"event": "right", "job": "a"})
    assert account.lost == {"b"}
    assert account.right == {"a"}


def test_what_a_process_says_is_counted(tmp_path: Path) -> None:
    account = told(
        tmp_path,
        {"event": "lost", "job": "a", "why": ["no worker"]},
        {"event": "wrong", "job": "b", "name": "calls 1"},
        {"event": "duplicated", "tasks": ["c/0"]},
        "Traceback (most recent call last):",
        json.dumps({"event": "ended", "message": "Traceback (most recent call last):\n"}),
        *({"event": "small", "began_s": float(n), "took_s": n / 10} for n in range(100)),
    )
    assert (account.lost, account.wrong, account.duplicated) == ({"a"}, {"b"}, {"c/0"})
    assert account.tracebacks == 1
    assert account.p95_s(0, 20) == pytest.approx(1.9)


@pytest.mark.parametrize(
    ("printed", "ended", "found"),
    [(0, TASKS, "right"), (1, TASKS, "wrong"), (0, TASKS - 1, "lost")],
)
def test_the_state_is_compared_with_what_was_submitted(
    tmp_path: Path, printed: int, ended: int, found: str
) -> None:
    drawn, needs = Drawn("process", 7), Requirements(driver="process")
    job = Job("j", tuple(Task(task_id("j", n), needs, b"") for n in range(TASKS)), drawn.name)
    state = State(tmp_path / "s.db")
    state.save_job(job)
    for number in range(ended):
        result = ProcessResult(0, stdout_tail=b"%d\n" % (7 + number + printed)).encode()
        event = TaskSucceeded(task_id("j", number), PeerId("worker"), result, 1)
        state.write([EmitJobEvent("j", event, cause="test")])
    state.write([EmitJobEvent("j", JobEnded(ended, 0, 0, 0), cause="test")])
    state.close()
    account = Account()
    account.read_state(tmp_path / "s.db")
    counts = {"right": account.right, "wrong": account.wrong, "lost": account.lost}
    assert {name for name, jobs in counts.items() if jobs} == {found}


@pytest.mark.parametrize(
    ("tables", "found"), [("", True), (FailureKind.EXIT, False), ("tables", False)]
)
def test_a_task_that_takes_without_end_is_right_once_it_is_ended_for_that(
    tables: str, found: bool
) -> None:
    memory = TaskResult("", "", "failed", kind=FailureKind.MEMORY)
    refused, beside = (
        TaskResult("", "", "succeeded", result=pickle.dumps(each)) for each in ("", 49)
    )
    first = {
        "": memory,
        FailureKind.EXIT: replace(memory, kind=FailureKind.EXIT),
        "tables": replace(refused, result=pickle.dumps("tables")),
    }[tables]
    drawn, results = Drawn("greedy", 7), [first, memory, refused, beside]
    assert drawn.failures(results) == []
    assert drawn.is_right(results) is found
    ends = [f"tables: {tables or 'memory'}", "messages: memory", "threads: held"]
    assert drawn.hostile_ends(results) == ends
    reasons = (Attempt("", PeerId("w"), "exit: 1", lost=False),)
    assert drawn.failures([*results[:3], replace(memory, reasons=reasons)])


def test_a_worker_is_not_killed_before_another_takes_tasks(tmp_path: Path) -> None:
    network = SoakNetwork(tmp_path, 1)
    up = 'import time; print(\'{"event": "ready"}\', flush=True); time.sleep(60)'
    for number, code in enumerate((up, "import time; time.sleep(60)")):
        output = tmp_path / f"worker{number}.out"
        worker = NodeProcess(f"worker{number}", [sys.executable, "-c", code], output)
        network.workers.append(worker)
        network.started.append(worker)
        worker.start()
    serving, starting = network.workers
    try:
        wait_until(lambda: serving.said("ready"))
        assert not network.may_die(serving)
        assert network.may_die(starting)
        assert network.may_die(NodeProcess("gate", [], tmp_path / "gate.out"))
        serving.kill()
        assert not network.may_die(starting)
    finally:
        network.end()


def test_what_a_submitter_keeps_is_counted_by_incarnations(tmp_path: Path) -> None:
    goes_on = {"event": "goes on"}
    weighed = [{"event": "weighed", "bytes": each} for each in (50, 90, 70)]
    first, second = [goes_on, *weighed[:2]], [goes_on, *weighed[1:]]
    account = told(tmp_path, *first, *second, goes_on)
    assert account.weights == {"submitter0": [[50, 90], [90, 70], []]}
    assert growth_of(account.weights["submitter0"]) == 40
    assert growth_of([[90, 70], []]) == 0
    kept = b"x" * 50_000_000
    with_it = kept_bytes()
    del kept
    assert with_it - kept_bytes() > 40_000_000


def test_a_process_that_grows_in_the_storm_is_seen(tmp_path: Path) -> None:
    signal = tmp_path / "grow"
    grows = (
        "import pathlib, sys, time\n"
        'print(\'{"event": "ready"}\', flush=True)\n'
        "while not pathlib.Path(sys.argv[1]).exists(): time.sleep(0.05)\n"
        "kept = b'x' * 50_000_000\n"
        "time.sleep(60)\n"
    )
    node = NodeProcess("node", [sys.executable, "-c", grows, str(signal)], tmp_path / "node.out")
    node.start()
    scales = Scales([node], settled_s=0.0)
    try:
        scales.start()
        wait_until(lambda: any(each.up_s < math.inf for each in scales.incarnations.values()))
        scales.storm()
        signal.touch()
        wait_until(lambda: scales.growth()["node"] > 40_000_000)
    finally:
        scales.stop()
        node.kill()


def test_bounds_that_do_not_hold_are_named() -> None:
    figures: dict[str, object] = dict.fromkeys(soak.BOUNDS, 0)
    assert soak.broken(figures) == []
    figures |= {"lost": 1, "honest_p95_over_quiet": 3.1}
    assert [each.split()[0] for each in soak.broken(figures)] == ["lost", "honest_p95_over_quiet"]
