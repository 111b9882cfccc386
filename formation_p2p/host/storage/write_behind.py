"""What a node gathers, written to a file a second behind. A disk that fails costs the node nothing.

What is lost with a node that is killed is its last second.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Final

import trio

from formation_p2p.core.errors import StateError
from formation_p2p.host.storage.sqlite import Database, Schema, state_errors

log = logging.getLogger(__name__)

STORED_EVERY_S: Final = 1.0


class WriteBehind(ABC):
    """A database that is written in the background.

    `gather`, on the node's thread, puts aside what `write` is to write next. `write`, on any
    thread, forgets it once it is on the disk; where it fails, all is there for the next time.
    """

    def __init__(
        self, path: Path, schema: Schema, *, shared: bool = False, every_s: float = STORED_EVERY_S
    ) -> None:
        self.database = Database(path, schema, shared=shared)
        self._what = schema.what
        self._every_s = every_s
        self._failing = False

    @abstractmethod
    def gather(self) -> None: ...

    @abstractmethod
    def write(self) -> None: ...

    async def keep(self) -> None:
        """On the node's thread, for as long as it runs."""
        while True:
            await trio.sleep(self._every_s)
            try:
                self.gather()
                await trio.to_thread.run_sync(self._written)
            except Exception:
                # A fault of ours must not end the node.
                log.exception("%s cannot be stored; please report this", self._what)

    def store(self) -> bool:
        """Whether all is on the disk. Not while `keep` runs."""
        self.gather()
        return self._written()

    def close(self) -> None:
        """Once the node's thread has ended. What cannot be stored is lost, and logged."""
        self.store()
        self.database.close()

    def _written(self) -> bool:
        """The log has the first failure, until it has worked again."""
        try:
            with state_errors(self.database.path):
                self.write()
        except StateError as error:
            if not self._failing:
                log.error("%s; it is tried again until it can be written", error)
            self._failing = True
            return False
        self._failing = False
        return True
