"""cProfile of the benchmark's own processes: the node's thread of each, and the submitter's own.

The package has no hooks for this. A node's thread is found by its name as it begins; the figures
are wall-clock times, in which waiting shows as `epoll.poll`.
"""

from __future__ import annotations

import cProfile
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

# Where the files go; nothing is profiled while it is not set.
VARIABLE: Final = "FORMATION_BENCH_PROFILE"
# As peer/runtime.py names it.
NODE_THREAD: Final = "formation"


@contextmanager
def profiled(name: str, *, caller_too: bool = False) -> Iterator[None]:
    """Around the life of a node: writes `name.node.pstats`, and where it is asked for,
    `name.caller.pstats` of the thread that enters this."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        yield
        return
    node, caller = cProfile.Profile(), cProfile.Profile()

    def begin(*_: object) -> None:
        """The first thing that a new thread does."""
        if threading.current_thread().name == NODE_THREAD:
            node.enable()
        else:
            sys.setprofile(None)

    threading.setprofile(begin)
    if caller_too:
        caller.enable()
    try:
        yield
    finally:
        threading.setprofile(None)
        Path(folder).mkdir(parents=True, exist_ok=True)
        if caller_too:
            caller.disable()
            caller.dump_stats(Path(folder, f"{name}.caller.pstats"))
        node.dump_stats(Path(folder, f"{name}.node.pstats"))
