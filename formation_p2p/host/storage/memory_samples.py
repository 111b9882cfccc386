"""What tasks have used in earlier runs, by their kind, in the home of the node that submits them.

All nodes of the home share the file. It is advice: where it cannot be read or written, that is
logged, and sizes are the default ones.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from formation_p2p.core.errors import StateError
from formation_p2p.core.workload.memory_estimate import (
    MAX_KINDS,
    MAX_SAMPLES,
    MemoryEstimate,
    learn,
)
from formation_p2p.host.storage import sqlite
from formation_p2p.host.storage.sqlite import Schema

log = logging.getLogger(__name__)

_NAME: Final = "sizes.db"
_TABLES: Final = (
    """CREATE TABLE samples (
        number INTEGER PRIMARY KEY,
        kind TEXT NOT NULL,
        unix_s REAL NOT NULL,
        ran_ms INTEGER NOT NULL,
        memory_bytes INTEGER NOT NULL,
        cpu_ms INTEGER)""",
    "CREATE INDEX by_kind ON samples (kind, number)",
)
# "fors". What a power cut takes of it is learnt again.
SCHEMA: Final = Schema("memory samples", 0x666F7273, (_TABLES,), synchronous=False)

_FORGET_OLD: Final = (
    "DELETE FROM samples WHERE kind = ?1 AND number <="
    " (SELECT number FROM samples WHERE kind = ?1 ORDER BY number DESC LIMIT 1 OFFSET ?2)"
)
# Those of which nothing has run for longest.
_FORGET_KINDS: Final = (
    "DELETE FROM samples WHERE kind IN"
    " (SELECT kind FROM samples GROUP BY kind ORDER BY max(number) DESC LIMIT -1 OFFSET ?)"
)


@dataclass(frozen=True, slots=True)
class Sample:
    kind: str
    ran_ms: int
    memory_bytes: int
    cpu_ms: int | None


@dataclass(frozen=True, slots=True)
class KindSeen:
    """What is known of one kind. `most_bytes` and `cpu_milli` are of all `runs`: the most memory,
    and the cores in use on average, None where no worker measured them; `learnt` is None while the
    runs are too few."""

    kind: str
    runs: int
    most_bytes: int
    cpu_milli: int | None
    ran_ms: int
    last_unix_s: float
    learnt: MemoryEstimate | None


class MemorySamples:
    """Methods open the file and close it again, and may be called from any thread."""

    def __init__(
        self, home: Path, *, max_samples: int = MAX_SAMPLES, max_kinds: int = MAX_KINDS
    ) -> None:
        self.path = home / _NAME
        self._max_samples = max_samples
        self._max_kinds = max_kinds

    def learnt(self, kinds: Iterable[str]) -> dict[str, MemoryEstimate]:
        """What is known of these; nothing where the file cannot be read."""
        try:
            with self._reading() as db:
                known = {kind: learn(kind, _memory_of(db, kind)) for kind in kinds} if db else {}
        except StateError as error:
            log.warning("memory samples cannot be read, sizes are the default ones: %s", error)
            return {}
        return {kind: size for kind, size in known.items() if size is not None}

    def add(self, samples: Iterable[Sample]) -> None:
        """Raises StateError."""
        with self._writing() as db:
            rows = [(x.kind, time.time(), x.ran_ms, x.memory_bytes, x.cpu_ms) for x in samples]
            db.executemany(
                "INSERT INTO samples (kind, unix_s, ran_ms, memory_bytes, cpu_ms)"
                " VALUES (?, ?, ?, ?, ?)",
                rows,
            )
            kinds = sorted({kind for kind, *_ in rows})
            db.executemany(_FORGET_OLD, [(kind, self._max_samples) for kind in kinds])
            db.execute(_FORGET_KINDS, (self._max_kinds,))

    def seen(self) -> tuple[KindSeen, ...]:
        """Of each kind, the one that ran last first. Raises StateError."""
        with self._reading() as db:
            if db is None:
                return ()
            rows = db.execute(
                "SELECT kind, count(*), max(memory_bytes), sum(cpu_ms), sum(ran_ms), max(unix_s)"
                " FROM samples GROUP BY kind ORDER BY max(number) DESC"
            ).fetchall()
            return tuple(_seen(db, row) for row in rows)

    def forget(self, kind: str) -> int:
        """How many runs of it were known. Raises StateError."""
        with self._reading() as db:
            if db is None:
                return 0
        with self._writing() as db:
            return db.execute("DELETE FROM samples WHERE kind = ?", (kind,)).rowcount

    @contextlib.contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection | None]:
        """None before the first sample. The file is not read whole to check it: a job
        that is submitted waits for this."""
        with sqlite.state_errors(self.path):
            if not self.path.exists():
                yield None
                return
            sqlite.check_mode(self.path)
            with sqlite.reading(self.path) as db:
                sqlite.check_kind(db, self.path, SCHEMA)
                yield db if sqlite.version_of(db, self.path, SCHEMA) else None

    @contextlib.contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        opened = sqlite.Database(self.path, SCHEMA, shared=True)
        with opened as database, database.writing() as db:
            yield db


def _seen(db: sqlite3.Connection, row: tuple[object, ...]) -> KindSeen:
    """Raises ValueError for what was not written so: SQLite keeps any value in any column, and a
    sum over other than numbers has a point."""
    match row:
        case str(kind), int(runs), int(most), int() | None as cpu_ms, int(ran_ms), float(last_s):
            cpu_milli = None if cpu_ms is None or not ran_ms else cpu_ms * 1000 // ran_ms
            learnt = learn(kind, _memory_of(db, kind))
            return KindSeen(kind, runs, most, cpu_milli, ran_ms // runs, last_s, learnt)
        case _:
            raise ValueError("runs that do not count")


def _memory_of(db: sqlite3.Connection, kind: str) -> list[int]:
    rows = db.execute("SELECT memory_bytes FROM samples WHERE kind = ?", (kind,))
    return [int(memory_bytes) for (memory_bytes,) in rows]
