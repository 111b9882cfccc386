"""`make demo` does what it says, and leaves nothing behind."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import psutil
import pytest

from examples.demo import DEADLINE_S
from tests.support.programs import running
from tests.support.waiting import HANGS_S

DEMO = (sys.executable, "-m", "examples.demo")
# What it takes at the most by itself, and its start and end.
DEMO_S = DEADLINE_S + 120.0


def assert_nothing_is_left(folder: Path, children: list[psutil.Process]) -> None:
    assert list(folder.iterdir()) == []
    _, alive = psutil.wait_procs(children, timeout=HANGS_S)
    assert alive == []


def test_the_demo_loses_a_worker_and_nothing_else(tmp_path: Path) -> None:
    with running(*DEMO, "--json", TMPDIR=str(tmp_path)) as demo:
        demo.line_with("submitted", DEMO_S)
        children = psutil.Process(demo.process.pid).children(recursive=True)
        assert demo.ended(DEMO_S) == 0, demo.output
    reported = json.loads(demo.lines[-1])
    tasks, again = reported["tasks"], (reported["lost_attempts"], reported["recalled"])
    assert reported == {
        "ok": True,
        "tasks": tasks,
        # Each attempt brings the result that counts, is lost, or is recalled before it begins.
        "attempts": tasks + sum(again),
        "lost_attempts": again[0],
        "recalled": again[1],
        "workers": 3,
        "killed": 1,
        "lost": 0,
        "duplicated": 0,
        "equal_to_local": True,
        "wall_s": reported["wall_s"],
    }
    assert tasks > 300
    assert len(children) >= 4  # the gate and the workers
    assert_nothing_is_left(tmp_path, children)


@pytest.mark.parametrize(
    ("number", "at"), [(signal.SIGINT, "submitted"), (signal.SIGTERM, "of source")]
)
def test_a_demo_that_is_interrupted_cleans_up(
    tmp_path: Path, number: signal.Signals, at: str
) -> None:
    """In the middle of its job, and while its nodes start."""
    with running(*DEMO, TMPDIR=str(tmp_path)) as demo:
        demo.line_with(at, DEMO_S)
        children = psutil.Process(demo.process.pid).children(recursive=True)
        demo.process.send_signal(number)
        assert demo.ended() == 130, demo.output
    assert_nothing_is_left(tmp_path, children)


def test_a_demo_that_is_killed_leaves_no_process(tmp_path: Path) -> None:
    with running(*DEMO, TMPDIR=str(tmp_path)) as demo:
        demo.line_with("submitted", DEMO_S)
        children = psutil.Process(demo.process.pid).children(recursive=True)
        demo.process.kill()
        # They leave in good order, which takes a worker two seconds at most.
        _, alive = psutil.wait_procs(children, timeout=HANGS_S)
        assert alive == []
