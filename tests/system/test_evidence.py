"""A wait that fails shows what was waited for: here, and in the programs that the test started."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import cloudpickle
import pytest
import trio

from formation_p2p.command.stacks import END
from tests.support import evidence
from tests.support.commands import LOOPBACK, started
from tests.support.network import SmallNetwork
from tests.support.programs import ROOT, running
from tests.support.waiting import until, wait_until

# Interpreters need not import this module.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SMALL = "cpu=0.5,memory=64MiB"
HANGS = """
import asyncio, threading, trio

lock = threading.Lock()
lock.acquire()

def hangs_in_a_thread():
    lock.acquire()

async def hangs_in_trio():
    await trio.Event().wait()

async def generated():
    await asyncio.Event().wait()
    yield

async def hangs_in_asyncio():
    print("ready", flush=True)
    async for _ in generated():
        pass

for call in (hangs_in_a_thread, lambda: trio.run(hangs_in_trio)):
    threading.Thread(target=call, daemon=True).start()
asyncio.run(hangs_in_asyncio())
"""
# A test that hangs, in a suite of its own, whose limit is shorter.
LIMITED = """
import asyncio
from tests.support import evidence

evidence.limits.test_s = 1.0

async def test_hangs():
    await asyncio.Event().wait()

def test_goes_on():
    pass
"""


async def hangs_here() -> None:
    await asyncio.Event().wait()


def test_a_wait_that_fails_shows_the_stacks_of_programs_and_their_output() -> None:
    with running(sys.executable, "-c", HANGS) as program:
        program.line_with("ready")
        with pytest.raises(AssertionError, match="not within"):
            wait_until(lambda: False, within_s=0.01)
        (shown,) = evidence.told()
    for name in ("hangs_in_a_thread", "hangs_in_trio", "hangs_in_asyncio", "generated"):
        assert f" in {name}\n" in shown
    assert f"Output of {program.pid}" in shown
    assert "wait_until" in shown  # this process's own


@pytest.mark.asyncio(loop_scope="module")
async def test_a_wait_that_fails_shows_the_tasks_and_stories_of_this_process(
    small: SmallNetwork,
) -> None:
    await small.bob.map(len, ["four"], needs=SMALL)
    task = asyncio.create_task(hangs_here())
    with pytest.raises(AssertionError, match="not within"):
        await until(lambda: False, within_s=0.01)
    task.cancel()
    (shown,) = evidence.told()
    assert " in hangs_here\n" in shown
    assert "TaskSucceeded(" in shown


@pytest.fixture
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence.limits, "long_s", 0.1)


@pytest.mark.usefixtures("_short")
def test_the_deadline_of_a_block_in_trio_shows_its_tasks() -> None:
    async def waits() -> None:
        with trio.fail_after(0.4):
            await trio.sleep_forever()

    with pytest.raises(trio.TooSlowError):
        trio.run(waits)
    (shown,) = evidence.told()
    assert "<locals>.waits\n" in shown


@pytest.mark.usefixtures("_short")
def test_a_program_that_is_run_for_too_long_shows_its_output() -> None:
    script = "print('so far', flush=True); import time; time.sleep(60)"
    with pytest.raises(subprocess.TimeoutExpired):
        subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=2, check=True)
    first, output = evidence.told()
    assert "time.sleep(60)" in first
    assert "so far" in output


def test_a_test_that_hangs_ends_and_shows_why(tmp_path: Path) -> None:
    (tmp_path / "test_limited.py").write_text(LIMITED)
    options = ("-p", "tests.conftest", "-p", "no:cacheprovider", "-c", str(ROOT / "pyproject.toml"))
    with running(sys.executable, "-m", "pytest", *options, str(tmp_path)) as program:
        assert program.ended() == 1
    assert "1 failed, 1 passed" in program.output
    assert " in test_hangs\n" in program.output


def test_formation_prints_its_stacks_on_sigquit_and_goes_on(tmp_path: Path) -> None:
    with started(tmp_path, "network", "create") as created:
        assert created.ended() == 0
    with started(tmp_path, "gate", *LOOPBACK) as gate:
        gate.line_with("to invite others")
        gate.process.send_signal(signal.SIGQUIT)
        gate.line_with(f"{END} of process {gate.pid}")
        assert gate.interrupt() == 0
    assert "Current thread" in gate.output
    assert " in Shell.run\n" in gate.output


def asks_for_its_stack(_: int) -> None:
    os.kill(os.getpid(), signal.SIGQUIT)


@pytest.mark.asyncio(loop_scope="module")
async def test_an_interpreter_prints_the_stack_of_its_call(
    small: SmallNetwork, capsys: pytest.CaptureFixture[str]
) -> None:
    await small.bob.map(asks_for_its_stack, [0], needs=SMALL, show_output=True)
    assert " in asks_for_its_stack\n" in capsys.readouterr().err
