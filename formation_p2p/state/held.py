"""What a node keeps for its network, on disk, each feature in tables of its own.

In memory it lives as long as some peer that has it is up; in a house all machines go down together.
One file in the home, for all nodes that run from there, stored a second behind; `stored` waits
until what is known now is on the disk. A row only ever gives way to a newer one, so that nodes of
one home, and older copies of it, take nothing back.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, Protocol

from formation_p2p.assembly import Peer, PeerEvent
from formation_p2p.state.sqlite import STORED_EVERY_S, Schema, WriteBehind, state_errors

Feed = Callable[[PeerEvent], None]

# In a node's home.
HELD: Final = "held.sqlite"
# "forh"
_APPLICATION: Final = 0x666F7268


class Held(Protocol):
    """What a feature has there. What is read raises ValueError where it was not written so."""

    @property
    def tables(self) -> tuple[str, ...]:
        """As SQL makes them."""

    def read(self, db: sqlite3.Connection) -> PeerEvent | None:
        """What an earlier run has left, for the peer."""

    def begin(self) -> None:
        """Another peer has begun, which knows nothing yet."""

    def gather(self, peer: Peer, feed: Feed) -> None:
        """Take note of what is new at the peer, until `written`."""

    @property
    def has_news(self) -> bool: ...

    def write(self, db: sqlite3.Connection) -> None: ...

    def written(self) -> None: ...


def schema_of(tables: Iterable[str]) -> Schema:
    """Of the file with the tables of these."""
    return Schema("what a node holds", _APPLICATION, (tuple(tables),))


class HeldFile(WriteBehind):
    """Of one node. Raises StateError, which names the file and says what to do."""

    def __init__(
        self, path: Path, parts: Iterable[Held], *, every_s: float = STORED_EVERY_S
    ) -> None:
        self._parts = tuple(parts)
        schema = schema_of(table for each in self._parts for table in each.tables)
        super().__init__(path, schema, shared=True, every_s=every_s)
        self._of: tuple[Peer, Feed] | None = None
        with self.database.closed_on_error(), state_errors(self.database.path):
            self._read()

    def begin(self, peer: Peer, feed: Feed) -> None:
        """A peer has begun: it is told what the disk has."""
        self.store()
        self._of = peer, feed
        for each in self._parts:
            each.begin()
        with state_errors(self.database.path):
            recalled = self._read()
        for event in recalled:
            feed(event)

    async def watch(self, peer: Peer, feed: Feed) -> None:
        """Until cancelled."""
        self.begin(peer, feed)
        await self.keep()

    def _read(self) -> list[PeerEvent]:
        events = [each.read(self.database.connection) for each in self._parts]
        return [each for each in events if each is not None]

    def gather(self) -> None:
        if self._of is not None:
            for each in self._parts:
                each.gather(*self._of)

    def write(self) -> None:
        if not any(each.has_news for each in self._parts):
            return
        with self.database.writing() as db:
            for each in self._parts:
                if each.has_news:
                    each.write(db)
        for each in self._parts:
            each.written()


def count(value: object) -> int:
    """Raises ValueError for what was not written so: SQLite keeps any value in any column."""
    if type(value) is not int or value < 0:
        raise ValueError("a number that does not count")
    return value
