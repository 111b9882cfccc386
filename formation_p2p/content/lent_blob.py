"""A private blob while somebody reads it."""

from __future__ import annotations

import os
from collections.abc import Callable


class Lent:
    """A private blob that is being read, from its open `file`. Call `done` once, at the end.
    `memory` is where this process has it mapped, if it has: not to be looked at after that."""

    def __init__(
        self,
        file: int,
        size_bytes: int,
        returned: Callable[[bool], None],
        memory: memoryview | None = None,
    ) -> None:
        self.file = file
        self.size_bytes = size_bytes
        self.memory = memory
        self._returned = returned
        self._is_done = False

    def done(self, *, clean: bool) -> None:
        """`clean`: no process reads it, or maps it, any more on account of this."""
        if not self._is_done:
            self._is_done = True
            self.memory = None
            os.close(self.file)
            self._returned(clean)
