"""What tasks in a sandbox do to get around what holds them, or to what others need."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Any

from formation_p2p.core.workload.outcome import Outcome, Succeeded
from formation_p2p.core.workload.process import ProcessResult, ProcessSpec
from formation_p2p.host.drivers.machine import Machine
from formation_p2p.host.drivers.process import ProcessDriver
from tests.support.drivers_world import Recorder, an_execution, within
from tests.support.sandboxes import needs_sandbox
from tests.support.waiting import HANGS_S

PYTHON = (sys.executable, "-I", "-S", "-c")

pytestmark = needs_sandbox


def run(root: Path, *argv: str, **held: Any) -> Outcome:
    outcomes: list[Outcome] = []

    async def story() -> None:
        async with an_execution(root, ProcessSpec(argv).encode(), **held) as execution:
            driver = ProcessDriver(Machine.found(root / "home", "required"))
            outcomes.append(await driver.run(execution, Recorder()))
            await driver.end_lease("lease")

    within(HANGS_S, story)
    return outcomes[0]


def printed(outcome: Outcome) -> str:
    assert isinstance(outcome, Succeeded), outcome
    return ProcessResult.decode(outcome.result).stdout_tail.decode()


# -- signals --------------------------------------------------------------------------------


def test_no_signal_from_inside_ends_the_supervisor(tmp_path: Path) -> None:
    program = (
        "import os, signal, time\n"
        "for number in signal.valid_signals(): os.kill(1, number)\n"
        "time.sleep(0.5)\n"
        "print('still here')"
    )
    assert printed(run(tmp_path, *PYTHON, program)) == "still here\n"


def test_a_task_begins_with_the_usual_signals(tmp_path: Path) -> None:
    """What is ignored is inherited."""
    ignored = int(printed(run(tmp_path, "grep", "SigIgn", "/proc/self/status")).split()[1], 16)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        assert not ignored & 1 << number - 1
