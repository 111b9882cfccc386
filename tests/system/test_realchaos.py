"""Processes that are killed, stopped and cut off; and that the checks of it notice something."""

import json
import sqlite3
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from formation_p2p.core.identity import PeerId
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import (
    EmitJobEvent,
    JobEnded,
    TaskCancelled,
    TaskSucceeded,
)
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.state.state import State
from formation_p2p.workload.core.process import ProcessResult
from formation_p2p.workload.core.work import Task, task_id
from simulations import realchaos
from simulations.namespaces import Forbidden, Namespaces
from simulations.node_process import NodeProcess
from tests.support.waiting import HANGS_S

pytestmark = pytest.mark.at_length

SECONDS = "6"
LISTEN = "import socket as s; c = s.create_server(('', 7000)).accept()[0]; c.send(c.recv(9))"


def test_every_task_ends_once_though_processes_die_stop_and_are_cut_off(
    capsys: pytest.CaptureFixture[str],
) -> None:
    status = realchaos.main(["--seconds", SECONDS, "--seed", "3", "--json"])
    figures = json.loads(capsys.readouterr().out)
    assert figures["violations"] == []
    assert status == 0
    assert (
        figures["worker_incarnations"] + figures["scheduler_incarnations"] > realchaos.WORKERS + 1
    )
    # Where the machine forbids namespaces, that is said.
    assert figures["partitions"].startswith(("network namespaces", "skipped: "))


def test_who_is_cut_off_hears_nothing_until_it_is_healed() -> None:
    with ExitStack() as held:
        try:
            spaces = held.enter_context(Namespaces())
        except Forbidden:
            return  # then nobody is cut off, which is said
        address = spaces.add("alice")
        spaces.add("bob")

        def said(within_s: float) -> bytes:
            listening = held.enter_context(
                subprocess.Popen(spaces.inside("alice", [sys.executable, "-c", LISTEN]))
            )
            ask = (
                "import socket, sys, time\n"
                f"until = time.monotonic() + {within_s}\n"
                "while time.monotonic() < until:\n"
                "    try: c = socket.create_connection((sys.argv[1], 7000), 1); break\n"
                "    except OSError: time.sleep(0.05)\n"
                "else: sys.exit()\n"
                "c.settimeout(None); c.send(b'hello'); print(c.recv(9).decode())\n"
            )
            try:
                bob = spaces.inside("bob", [sys.executable, "-c", ask, address])
                return subprocess.run(bob, capture_output=True, timeout=HANGS_S, check=True).stdout
            finally:
                listening.kill()
                listening.wait()  # the next one listens at the same port

        assert said(HANGS_S / 2) == b"hello\n"
        spaces.cut("alice")
        assert said(1.5) == b""
        spaces.heal("alice")
        assert said(HANGS_S / 2) == b"hello\n"


# -- that the checks can fail -------------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path: Path) -> realchaos.Cluster:
    """With a state in which a job of three tasks has ended, and no process."""
    cluster = realchaos.Cluster(tmp_path, None, f"mark-{time.time_ns()}", 1)
    needs = Requirements(driver="process")
    job = Job("j", tuple(Task(task_id("j", n), needs, b"") for n in range(3)))
    state = State(cluster.state)
    state.save_job(job)
    for number in range(3):
        result = ProcessResult(0, stdout_tail=f"{number}\n".encode()).encode()
        ended = TaskSucceeded(f"j/{number}", PeerId("worker"), result, 1)
        state.write([EmitJobEvent("j", ended, cause="test")])
    state.write([EmitJobEvent("j", JobEnded(3, 0, 0, 0), cause="test")])
    state.close()
    return cluster


def test_a_job_that_ended_well_is_in_order(cluster: realchaos.Cluster) -> None:
    assert realchaos.stored(cluster) == []


@pytest.mark.parametrize(
    ("statement", "found"),
    [
        ("DELETE FROM results WHERE task = 2", "2 of 3 tasks"),
        (
            "UPDATE results SET checksum = NULL,"
            " result = (SELECT result FROM results WHERE task = 1)",
            "of another",
        ),
    ],
)
def test_what_is_missing_or_mixed_up_is_found(
    cluster: realchaos.Cluster, statement: str, found: str
) -> None:
    with sqlite3.connect(cluster.state) as db:
        db.execute(statement)
    db.close()
    assert found in "".join(realchaos.stored(cluster))


def test_a_task_that_has_not_ended_is_found(tmp_path: Path) -> None:
    cluster = realchaos.Cluster(tmp_path, None, "mark", 1)
    state = State(cluster.state)
    needs = Requirements(driver="process")
    state.save_job(Job("j", (Task("j/0", needs, b""), Task("j/1", needs, b""))))
    state.write([EmitJobEvent("j", TaskCancelled("j/0"), cause="test")])
    state.close()
    assert "1 of 2 tasks" in "".join(realchaos.stored(cluster))
    assert realchaos.ends(cluster) == {"TaskCancelled": 1}


def test_what_tasks_leave_behind_is_found(
    cluster: realchaos.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(realchaos, "TIDY_S", 0.0)
    cluster.gate = NodeProcess("gate", [], cluster.folder / "gate.out")
    cluster.scheduler = NodeProcess("scheduler", [], cluster.folder / "s.out")
    assert realchaos.left_over(cluster) == []
    waits = ["sh", "-c", f": {cluster.mark}; read line"]
    with subprocess.Popen(waits, stdin=subprocess.PIPE) as task:
        try:
            [found] = realchaos.left_over(cluster)
            assert str(task.pid) in found
        finally:
            task.kill()
    worker = NodeProcess("worker0", [], cluster.folder / "w.out")
    cluster.workers.append(worker)
    (cluster.home("worker0") / "scratch" / "node" / "task").mkdir(parents=True)
    [found] = realchaos.left_over(cluster)
    assert "scratch" in found


def test_without_iproute2_that_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Forbidden, match="iproute2"), Namespaces():
        pass
