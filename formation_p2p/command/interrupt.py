"""Ctrl-C: the first one ends the work in good order, the second one the program."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Final, NoReturn

import click

from formation_p2p.command.exits import SIGNALLED
from formation_p2p.command.words import say

# A closed terminal and a service manager ask for the same as Ctrl-C does.
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_SHOW_CURSOR: Final = "\x1b[?25h"


class Interrupt:
    """`number` is the signal that arrived, None before. The first one cancels the work unless
    `first` replaces that action."""

    def __init__(self, cancel: Callable[[], object]) -> None:
        self.number: int | None = None
        self._cancel = cancel
        self._first = cancel

    def first(self, action: Callable[[], object], note: str) -> None:
        """Have the first signal do `action`, and tell the person `note`."""

        def act() -> None:
            say(f"formation: {note}; press Ctrl-C again to end at once")
            action()

        self._first = act

    def leaves(self, state: Path) -> None:
        """Have the first signal end the command, and not what it waits for, which is kept."""
        go_on = shlex.join(("formation", "resume", "--state", str(state)))
        self.first(self._cancel, f"leaving; this goes on with what is under way: {go_on}")

    @property
    def exit_code(self) -> int:
        assert self.number is not None, "nothing interrupted"
        return SIGNALLED + self.number

    def arrived(self, number: int) -> None:
        if self.number is None:
            self.number = number
            self._first()
        else:
            _end_at_once(number)


def end_with(work: Callable[[Interrupt], Coroutine[Any, Any, int]]) -> NoReturn:
    """Run `work` on a new asyncio loop, and end the command with its exit code, or that of the
    signal that cancelled it."""
    raise click.exceptions.Exit(asyncio.run(_guarded(work)))


async def _guarded(work: Callable[[Interrupt], Coroutine[Any, Any, int]]) -> int:
    task = asyncio.current_task()
    assert task is not None
    interrupt = Interrupt(task.cancel)
    loop = asyncio.get_running_loop()
    for number in _SIGNALS:
        # A signal that our parent ignores (nohup, a shell's &) stays ignored.
        if signal.getsignal(number) != signal.SIG_IGN:
            loop.add_signal_handler(number, interrupt.arrived, number)
    try:
        return await work(interrupt)
    except asyncio.CancelledError:
        if interrupt.number is None:
            raise
        return interrupt.exit_code
    finally:
        if interrupt.number is not None:
            _end_by_signals(loop)


def _end_by_signals(loop: asyncio.AbstractEventLoop) -> None:
    """All is done but for the end of the program: a further signal ends it, without a traceback of
    wherever it was."""
    for number in _SIGNALS:
        if loop.remove_signal_handler(number):
            signal.signal(number, signal.SIG_DFL)


def _end_at_once(number: int) -> None:
    """As if the signal had never been caught, so that a shell sees what ended us."""
    if sys.stderr.isatty():
        # Past any buffer: a live display may have hidden it, and gets no chance to tidy up.
        os.write(sys.stderr.fileno(), _SHOW_CURSOR.encode())
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)
