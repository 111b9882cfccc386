"""What calls print, on the caller's terminal: whole lines, each after the worker it is from."""

from __future__ import annotations

import contextvars
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, TextIO

from formation_p2p.core.identity import PeerId
from formation_p2p.jobs.core.job_events import JobEvent, TaskEnd, TaskPrinted, TaskRetried
from formation_p2p.machine.names import named

log = logging.getLogger(__name__)

# A line without an end is shown, as one, when it is this long: of each call in flight so much is
# held back.
MAX_LINE_BYTES: Final = 8 * 1024
# Colours and the like, which would go on over the lines of other workers.
_ESCAPES: Final = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def is_interactive() -> bool:
    """Whether a person types at this program: at a prompt of Python or IPython, in a notebook."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive)


def is_shown(show_output: bool | None) -> bool:
    """What `show_output` of calls means: by default what they print is for persons."""
    return is_interactive() if show_output is None else show_output


class OutputPrinter:
    """Prints what the tasks of some jobs print, to `sys.stdout` and `sys.stderr` as they are then.

    `observe` their events, then `flush`, on one thread. In a notebook the lines appear below the
    cell in which this was made, or that was the last to call `below_here`.
    """

    def __init__(self) -> None:
        self.below_here()
        # By task, worker and stream: the line that has no end yet.
        self._open: dict[tuple[str, PeerId, bool], bytes] = {}
        self._lines: list[tuple[bool, str]] = []
        self._broken = False

    def below_here(self) -> None:
        """From any thread: print in the context of this caller from now on."""
        self._context = contextvars.copy_context()

    def observe(self, event: JobEvent) -> None:
        if type(event) is TaskPrinted:
            self._add(event)
        elif self._open and isinstance(event, TaskEnd | TaskRetried):
            lost = event.attempt.worker if isinstance(event, TaskRetried) else None
            for key in [key for key in self._open if key[0] == event.task_id]:
                if lost in (None, key[1]):
                    self._line(key, self._open.pop(key))

    def flush(self) -> None:
        """Print the lines that have come."""
        lines, self._lines = self._lines, []
        if lines and not self._broken:
            self._context.run(self._print, lines)

    def _add(self, printed: TaskPrinted) -> None:
        key = printed.task_id, printed.worker, printed.is_stderr
        *lines, rest = (self._open.pop(key, b"") + printed.data).split(b"\n")
        for line in lines:
            self._line(key, line)
        if len(rest) >= MAX_LINE_BYTES:
            self._line(key, rest)
        elif rest:
            self._open[key] = rest

    def _line(self, key: tuple[str, PeerId, bool], line: bytes) -> None:
        # Of a line that is written over and over, such as a progress bar, what it said last.
        last = line.rstrip(b"\r").rpartition(b"\r")[2].decode(errors="replace")
        shown = "".join(
            each if each.isprintable() or each == "\t" else "\ufffd"
            for each in _ESCAPES.sub("", last)
        )
        self._lines.append((key[2], f"{named(key[1])} | {shown}\n"))

    def _print(self, lines: list[tuple[bool, str]]) -> None:
        """One write for the lines of one stream: they are not torn by what else is printed."""
        try:
            for is_stderr in (False, True):
                stream = sys.stderr if is_stderr else sys.stdout
                text = "".join(line for of_stderr, line in lines if of_stderr == is_stderr)
                if text and stream is not None:
                    stream.write(_encodable(text, stream))
                    stream.flush()
        except (OSError, ValueError) as error:  # it is closed, or its reader has gone
            self._broken = True
            log.warning("what calls print is shown no more: %s", error)


def _encodable(text: str, stream: TextIO) -> str:
    encoding = getattr(stream, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


# -- how far a map or a job has come --------------------------------------------------------------

# Called with how many calls brought a result, how many failed, and how many there are in all:
# None where that is not known.
Progress = Callable[[int, int, int | None], object]

# Between two lines where there is no terminal: a log of an hour has some hundred of them.
LINE_EVERY_S: Final = 10.0

_bar_is_shown = threading.Lock()


@contextmanager
def reporting(
    progress: bool | Progress, total: int | None, *, every_s: float = LINE_EVERY_S
) -> Iterator[Callable[[int, int], None]]:
    """What this yields is called with how many calls brought a result, and how many failed. It
    tells what is new, until this ends: calls that are cancelled then end later."""
    told, is_over = (0, 0), False
    with _telling(progress, total, every_s) as tell:

        def report(done: int, failed: int) -> None:
            nonlocal told
            if (done, failed) != told and not is_over:
                told = done, failed
                tell(done, failed)

        try:
            yield report
        finally:
            is_over = True


@contextmanager
def _telling(
    progress: bool | Progress, total: int | None, every_s: float
) -> Iterator[Callable[[int, int], None]]:
    if callable(progress):
        call = progress

        def tell(done: int, failed: int) -> None:
            call(done, failed, total)

        tell(0, 0)
        yield tell
    elif not progress:
        yield lambda done, failed: None
    elif sys.stderr.isatty() and _bar_is_shown.acquire(blocking=False):
        try:
            with terminal_bar(total, "0 failed") as advance:
                yield lambda done, failed: advance(done + failed, f"{failed} failed")
        finally:
            _bar_is_shown.release()
    else:
        with _lines(total, every_s) as show:
            yield show


@contextmanager
def terminal_bar(total: int | None, text: str) -> Iterator[Callable[[int, str], None]]:
    """A bar on the terminal of stderr, with a text. What this yields is called with how many have
    ended, and the text. What is printed meanwhile appears above."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    said = TextColumn("{task.description}", markup=False)
    console = Console(stderr=True, emoji=False, highlight=False)
    # A stdout that is a file is not to end up on the terminal.
    with Progress(*columns, said, console=console, redirect_stdout=sys.stdout.isatty()) as bar:
        row = bar.add_task(text, total=total)
        yield lambda ended, text: bar.update(row, completed=ended, description=text)


@contextmanager
def _lines(total: int | None, every_s: float) -> Iterator[Callable[[int, int], None]]:
    began_s = last_s = time.monotonic()
    seen = said = (0, 0)

    def say() -> None:
        nonlocal said
        said = done, failed = seen
        of = "" if total is None else f" of {total}"
        took_s = time.monotonic() - began_s
        line = f"formation: {done}{of} done, {failed} failed, {took_s:.0f} s\n"
        sys.stderr.write(line)
        sys.stderr.flush()

    def show(done: int, failed: int) -> None:
        nonlocal last_s, seen
        seen = done, failed
        if time.monotonic() - last_s >= every_s:
            last_s = time.monotonic()
            say()

    try:
        yield show
    finally:
        if said != seen or seen == (0, 0):
            say()
