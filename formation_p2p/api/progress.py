"""How far a `map` or a job has come: a bar on a terminal, lines elsewhere, or what the caller does
with it."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

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
