"""What a test waited for in vain: shown with its failure, by tests/conftest.py.

`gather` is called where a wait fails, while all that the test started still runs. Of this process
and of each that it started it keeps the stacks of threads and tasks, and the newest steps of the
stories of nodes (formation_p2p/command/stacks.py); of programs also their output so far. Programs
that do not print their stacks on SIGQUIT are listed with what the kernel says of them.
"""

import contextlib
import faulthandler
import inspect
import signal
import subprocess
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

import psutil
import trio

from formation_p2p.command.stacks import END, tasks_and_stories

TESTS = f"{Path(__file__).parents[1]}/"
# One test shows this many; the first is what the others come of.
MAX_GATHERED = 2
MAX_OUTPUT_CHARS = 40_000
MAX_PROCESSES = 100
# For processes to print their stacks, on a busy machine; some do not.
PRINTS_S = 10.0
# So much sooner than at the end of a deadline, what waits is still there to be seen.
BEFORE_S = 0.1
# A test is told again that it is over where it did not heed it.
AGAIN_S = 30.0


class Shows(Protocol):
    """A program whose output is read."""

    @property
    def output(self) -> str: ...

    @property
    def pid(self) -> int: ...

    @property
    def command(self) -> str: ...


@dataclass
class Limits:
    """`long_s`: a deadline that is shorter is for what a test expects not to come. `test_s`: a
    whole test takes less on the busiest machine. What it waits for ends sooner, as a rule
    (waiting.py)."""

    long_s: float = 10.0
    test_s: float = 1200.0


limits = Limits()
programs: weakref.WeakSet[Shows] = weakref.WeakSet()
_gathered: list[str] = []


def gather(why: str) -> None:
    """Keep all that tells why a wait has failed."""
    if len(_gathered) >= MAX_GATHERED:
        return
    _gathered.append(why)  # also where the rest fails
    children = psutil.Process().children(recursive=True)[:MAX_PROCESSES]
    asked = {each.pid for each in children if _prints(each)}
    listed = "\n".join(map(_in_words, children))
    shown = [each for each in programs if each.pid in asked]
    until_s = time.monotonic() + PRINTS_S
    while time.monotonic() < until_s and not all(
        f"{END} of process {each.pid}\n" in each.output for each in shown
    ):
        time.sleep(0.05)
    _gathered[-1] = "\n".join(
        (
            why,
            *("\nProcesses that it started:", listed or "none"),
            "\nThis process:",
            _threads(),
            tasks_and_stories(),
            *map(_output, programs),
        )
    )


def told() -> list[str]:
    """What was gathered since the last call."""
    every = _gathered[:]
    _gathered.clear()
    return every


def _prints(process: psutil.Process) -> bool:
    """Have it print its stacks, where it does that."""
    with contextlib.suppress(OSError, psutil.Error):
        status = Path(f"/proc/{process.pid}/status").read_text()
        caught = int(status.partition("\nSigCgt:")[2].split()[0], 16)
        if caught >> (signal.SIGQUIT - 1) & 1:
            process.send_signal(signal.SIGQUIT)
            return True
    return False


def _in_words(process: psutil.Process) -> str:
    try:
        used_s = sum(process.cpu_times()[:2])
        where = Path(f"/proc/{process.pid}/wchan").read_text()
        said = f"{process.status()} in {where}, {used_s:.1f} s of processor time"
        command = " ".join(process.cmdline())[:300]
        return f"  {process.pid} of {process.ppid()}: {said}: {command}"
    except (OSError, psutil.Error) as error:
        return f"  {process.pid}: {error}"


def _threads() -> str:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file)
        file.seek(0)
        return file.read()


def _output(program: Shows) -> str:
    output = program.output
    cut = "…" if len(output) > MAX_OUTPUT_CHARS else ""
    return f"\nOutput of {program.pid}, {program.command}:\n{cut}{output[-MAX_OUTPUT_CHARS:]}"


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """The block fails after limits.test_s, with what it hangs on. On the main thread."""

    def fail(*_: object) -> NoReturn:
        gather(f"the test still runs after {limits.test_s:g} s")
        raise AssertionError(
            f"the test still runs after {limits.test_s:g} s; see what it waits for"
        )

    before = signal.signal(signal.SIGALRM, fail)
    signal.setitimer(signal.ITIMER_REAL, limits.test_s, AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def watch_deadlines() -> None:
    """From here on the long deadlines that tests set gather before they fail."""
    for owner, name, watched in (
        (trio, "fail_after", _trio_fail_after),
        (subprocess.Popen, "communicate", _communicate),
    ):
        setattr(owner, name, _for_tests(getattr(owner, name), watched))


def _for_tests(plain: Callable[..., Any], watched: Callable[..., Any]) -> Callable[..., Any]:
    def either(*arguments: Any, **named: Any) -> Any:
        frame = inspect.currentframe()
        caller = frame and frame.f_back
        if caller and caller.f_code is subprocess.run.__code__:
            caller = caller.f_back
        if caller and caller.f_code.co_filename.startswith(TESTS):
            return watched(plain, *arguments, **named)
        return plain(*arguments, **named)

    return either


@contextlib.contextmanager
def _trio_fail_after(plain: Callable[..., Any], seconds: float, **named: Any) -> Iterator[Any]:
    if seconds < limits.long_s:
        with plain(seconds, **named) as scope:
            yield scope
        return

    async def tell() -> None:
        with watching:
            await trio.sleep_until(scope.deadline - BEFORE_S)
            gather(f"not within {seconds:g} s")

    watching = trio.CancelScope()
    with plain(seconds, **named) as scope:
        trio.lowlevel.spawn_system_task(tell)
        try:
            yield scope
        finally:
            watching.cancel()


def _communicate(
    plain: Callable[..., Any],
    process: subprocess.Popen[Any],
    input: Any = None,
    timeout: float | None = None,
) -> Any:
    try:
        return plain(process, input, timeout)
    except subprocess.TimeoutExpired as expired:
        if timeout is None or timeout < limits.long_s:
            raise
        gather(str(expired))
        try:
            plain(process, timeout=BEFORE_S)
        except subprocess.TimeoutExpired as more:
            _gathered.append(f"Output of {process.pid}: {more.output!r} {more.stderr!r}")
        raise
