"""What a node gathers, written to a file a second behind. A disk that fails costs the node nothing.

What is lost with a node that is killed is its last second.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from formation_p2p.core.errors import StateError
from formation_p2p.host.storage.sqlite import state_errors

log = logging.getLogger(__name__)

STORED_EVERY_S: Final = 1.0


class WriteBehind:
    """`gather`, on the node's thread, puts aside what `write` is to write next. `write`, on any
    thread, forgets it once it is on the disk; where it fails, all is there for the next time.
    `what` that is, the log says."""

    def __init__(
        self, path: Path, what: str, gather: Callable[[], None], write: Callable[[], None]
    ) -> None:
        self._path = path
        self._what = what
        self._gather = gather
        self._write = write
        self._failing = False

    async def keep(self) -> None:
        """On the node's thread, for as long as it runs."""
        while True:
            await trio.sleep(STORED_EVERY_S)
            try:
                self._gather()
                await trio.to_thread.run_sync(self._written)
            except Exception:
                # A fault of ours must not end the node.
                log.exception("%s is not stored; please report this", self._what)

    def store(self) -> bool:
        """Whether all is on the disk. Not while `keep` runs."""
        self._gather()
        return self._written()

    def _written(self) -> bool:
        """The log has the first failure, until it has worked again."""
        try:
            with state_errors(self._path):
                self._write()
        except StateError as error:
            if not self._failing:
                log.error("%s; it is tried again until it can be written", error)
            self._failing = True
            return False
        self._failing = False
        return True
