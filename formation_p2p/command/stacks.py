"""What a program that seems to hang is doing: SIGQUIT (Ctrl-\\) has it print that, and go on.

The stacks of threads are faulthandler's, which prints them even while the interpreter is held.
Those of trio's and asyncio's tasks, and the newest steps of the stories of the nodes that run in
the program, come once its main thread takes the signal.
"""

from __future__ import annotations

import faulthandler
import gc
import os
import signal
import sys
from types import AsyncGeneratorType, CoroutineType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

# Of tasks that wait at the same place one stack is shown. A node has some fifty of those.
MAX_STACKS: Final = 100
MAX_FRAMES: Final = 24
# Of each node, on a line each.
MAX_STEPS: Final = 20
MAX_STEP_CHARS: Final = 300
# The last line of what is told.
END: Final = "end of the stacks"


def print_on_quit() -> None:
    """Call it on the main thread. What is printed goes to the standard error."""
    signal.signal(signal.SIGQUIT, lambda *_: _print())
    faulthandler.register(signal.SIGQUIT, 2, chain=True)


def _print() -> None:
    import contextlib

    with contextlib.suppress(OSError):  # its reader has left
        os.write(2, tasks_and_stories().encode(errors="replace"))


def tasks_and_stories() -> str:
    """Of all in this process, whichever thread has them."""
    waiting: dict[tuple[str, ...], list[str]] = {}
    lines: list[str] = []
    for library, name, coroutine in _tasks():
        frames = [*_frames(coroutine)]
        places = [f"  {f.f_code.co_filename}:{n} in {f.f_code.co_qualname}" for f, n in frames]
        waiting.setdefault((library, *places), []).append(name)
        shells = (f.f_locals["self"] for f, _ in frames if f.f_code.co_qualname == "Shell.run")
        for shell in shells:
            lines.append("\nThe newest steps of a node's story:")
            lines += [f"  {each}"[:MAX_STEP_CHARS] for each in shell.peer.newest_steps(MAX_STEPS)]
    for (library, *places), names in [*waiting.items()][:MAX_STACKS]:
        lines += [f"\n{library}, {len(names)} such as {names[0]}:", *places]
    if len(waiting) > MAX_STACKS:
        lines.append(f"\nand {len(waiting) - MAX_STACKS} other stacks of tasks")
    return "\n".join((*lines, "", f"{END} of process {os.getpid()}\n"))


def _tasks() -> Iterator[tuple[str, str, Any]]:
    """Of the loops that run, with their coroutines. The garbage collector would not tell of those
    that are frozen."""
    trio, asyncio = sys.modules.get("trio"), sys.modules.get("asyncio")
    for top in sys._current_frames().values():
        frame: FrameType | None = top
        while frame is not None:
            if trio and frame.f_code is trio.run.__code__:
                for task in list(frame.f_locals["runner"].tasks):
                    yield "trio", task.name, task.coro
            elif asyncio and frame.f_code is asyncio.BaseEventLoop.run_forever.__code__:
                for task in asyncio.all_tasks(frame.f_locals["self"]):
                    yield "asyncio", task.get_name(), task.get_coro()
            frame = frame.f_back


def _frames(coroutine: Any) -> Iterator[tuple[FrameType, int]]:
    """The outermost first, as far as the coroutines show what they wait for."""
    for _ in range(MAX_FRAMES):
        for kind, inner in (("cr", "cr_await"), ("gi", "gi_yieldfrom"), ("ag", "ag_await")):
            if hasattr(coroutine, inner):
                if (frame := getattr(coroutine, f"{kind}_frame")) is not None:
                    yield frame, frame.f_lineno
                coroutine = getattr(coroutine, inner)
                break
        else:
            # What is awaited of an asynchronous generator does not tell of it, but refers to it.
            kinds = (AsyncGeneratorType, CoroutineType)
            referred = (each for each in gc.get_referents(coroutine) if isinstance(each, kinds))
            if (coroutine := next(referred, None)) is None:
                return
