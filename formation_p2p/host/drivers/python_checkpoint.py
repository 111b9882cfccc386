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

# As host/drivers/saves.py has them.
VARIABLE = "FORMATION_CHECKPOINT"
RESTORED = ".restored"


def checkpoint(data: bytes | os.PathLike[str]) -> None:
    """Save bytes, or a file, of at most 64 MiB. They replace what was saved before. The worker
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
