"""What a call that a worker runs saves, so that it goes on from there if it is started again.

    from formation_p2p import checkpoint, restored

    def train(epochs: int) -> float:
        model, first = pickle.loads(saved) if (saved := restored()) else (new_model(), 0)
        for epoch in range(first, epochs):
            model.step()
            checkpoint(pickle.dumps((model, epoch + 1)))
        return model.loss

This file imports nothing of the package: interpreters that do not have that load it by its path.
"""

from __future__ import annotations

import os
import shutil
import time

# As drivers/saves.py has them.
VARIABLE = "FORMATION_CHECKPOINT"
RESTORED = ".restored"
# As drivers/driver.py has it.
NOTICE = ".notice"

TYPE_CHECKING = False  # as in supervisor.py
if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from typing import Any


def checkpoint(data: bytes | os.PathLike[str]) -> None:
    """Save bytes, or a file, of at most 128 MiB. They replace what was saved before. The worker
    keeps at most two a second, the newest; the submitter and two other peers hold each. Returns
    once it is written to the worker's disk. Outside of a worker it does nothing.

    Raises OSError, as where the task's disk space is used up.
    """
    place = os.environ.get(VARIABLE)
    if not place:
        return
    new = place + ".new"
    if isinstance(data, bytes | bytearray | memoryview):
        with open(new, "wb") as file:  # noqa: PTH123 - loaded where little is imported
            file.write(data)
    else:
        shutil.copyfile(data, new)
    os.replace(new, place)  # noqa: PTH105


def restored() -> bytes | None:
    """What the last attempt at this call had saved; None where there was none, or it saved
    nothing."""
    place = os.environ.get(VARIABLE)
    if not place:
        return None
    try:
        with open(place + RESTORED, "rb") as file:  # noqa: PTH123
            return file.read()
    except FileNotFoundError:
        return None


def leaving() -> float | None:
    """How many seconds are left until this call is ended, so that it goes on elsewhere: None while
    it may go on here. Save what there is then, and return, or raise what you like."""
    place = os.environ.get(VARIABLE)
    if not place:
        return None
    try:
        with open(place + NOTICE, "rb") as file:  # noqa: PTH123
            return max(0.0, float(file.read()) - time.time())
    except FileNotFoundError:
        return None


class Leaves(Exception):
    """Raised by a call that has saved what it has, and is to go on elsewhere."""


class Steps:
    """A generator function as a call: what it yields is saved, and given to it when it is started
    again, as the first argument; None the first time. What it returns is the result."""

    def __init__(self, function: Callable[..., Generator[Any, None, Any]]) -> None:
        self.function = function
        # Its memory is learnt by what the caller calls it.
        self.__module__ = getattr(function, "__module__", __name__)
        self.__qualname__ = getattr(function, "__qualname__", "steps")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        import cloudpickle  # which is there where calls run

        saved = restored()
        last = None if saved is None else cloudpickle.loads(saved)
        steps = self.function(last, *args, **kwargs)
        while True:
            try:
                step = next(steps)
            except StopIteration as end:
                return end.value
            checkpoint(cloudpickle.dumps(step))
            if leaving() is not None:
                steps.close()
                raise Leaves("it has saved its last step")
