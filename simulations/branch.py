"""What comes of one world in several ways: each goes on in a process of its own, which has all of
the world as it is, and the world that they come from stays so.
"""

from __future__ import annotations

import gc
import os
import pickle
import selectors
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, TypeVar

T = TypeVar("T")

_PART_BYTES: Final = 65_536


def branches(ways: Iterable[Callable[[], T]], at_once: int = 1) -> Iterator[T]:
    """What comes of each, in order, up to `at_once` of them at the same time. It has to be such as
    can be pickled."""
    gc.collect()
    gc.freeze()  # to look for garbage in a large world takes a third of the time
    left = enumerate(ways)
    told: dict[int, T] = {}
    number = 0
    try:
        with selectors.DefaultSelector() as running:
            while True:
                for begun, way in islice(left, at_once - len(running.get_map())):
                    pid, read = _begin(way)
                    running.register(read, selectors.EVENT_READ, _Running(begun, pid))
                if not running.get_map():
                    return
                for key, _ in running.select():
                    branch = key.data
                    if part := os.read(key.fd, _PART_BYTES):
                        branch.told += part
                    else:
                        running.unregister(key.fd)
                        os.close(key.fd)
                        told[branch.number] = _end(branch)
                while number in told:
                    yield told.pop(number)
                    number += 1
    finally:
        gc.unfreeze()


@dataclass(slots=True)
class _Running:
    number: int
    pid: int
    told: bytes = b""


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


def _end(branch: _Running) -> Any:
    _, status = os.waitpid(branch.pid, 0)
    if status:
        raise AssertionError(f"a branch ended with status {status}; what it printed says why")
    return pickle.loads(branch.told)
