"""What comes of one world in several ways: each goes on in a process of its own, which has all of
the world as it is, and the world that they come from stays so.
"""

from __future__ import annotations

import gc
import os
import pickle
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

T = TypeVar("T")


def branches(ways: Iterable[Callable[[], T]], at_once: int = 1) -> Iterator[T]:
    """What comes of each, in order. It has to be such as can be pickled."""
    gc.collect()
    gc.freeze()  # to look for garbage in a large world takes a third of the time
    running: deque[tuple[int, int]] = deque()
    try:
        for way in ways:
            running.append(_begin(way))
            if len(running) == at_once:
                yield _end(*running.popleft())
        while running:
            yield _end(*running.popleft())
    finally:
        gc.unfreeze()


def _begin(way: Callable[[], Any]) -> tuple[int, int]:
    read, write = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid:
        os.close(write)
        return pid, read
    code = 1
    try:
        os.close(read)
        gc.set_threshold(100_000, 50, 1000)
        with os.fdopen(write, "wb") as file:
            pickle.dump(way(), file)
        code = 0
    except BaseException:  # noqa: BLE001 -- the child of a fork: told, and ended by its status
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
        os._exit(code)


def _end(pid: int, read: int) -> Any:
    with os.fdopen(read, "rb") as file:
        told = file.read()
    _, status = os.waitpid(pid, 0)
    if status:
        raise AssertionError(f"a branch ended with status {status}; what it printed says why")
    return pickle.loads(told)
