"""What the commands of the benchmarks have in common."""

from __future__ import annotations

import argparse
import asyncio
import signal
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NoReturn


def listed(known: Sequence[str]) -> Callable[[str], tuple[str, ...]]:
    """The type of an argument that names some of these, with commas between them."""

    def chosen(text: str) -> tuple[str, ...]:
        names = tuple(text.split(","))
        unknown = [name for name in names if name not in known]
        if unknown:
            raise argparse.ArgumentTypeError(f"no {unknown[0]!r}; there are {', '.join(known)}")
        return names

    return chosen


def run_and_exit(main: Coroutine[Any, Any, int]) -> NoReturn:
    """Ends with the status that `main` returns. Ctrl-C and SIGTERM cancel it, so that it ends all
    of its processes on the way out."""
    try:
        sys.exit(asyncio.run(_cancelled_by_sigterm(main)))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted; all of its processes are ended", file=sys.stderr)
        sys.exit(130)


async def _cancelled_by_sigterm(main: Coroutine[Any, Any, int]) -> int:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await main
