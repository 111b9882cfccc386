"""What tasks have used in earlier runs, by their kind, in the home of the node that submits them:
recorded while they run, and written down when their job is over.

All nodes of the home share the file. It is advice: where it cannot be read or written, that is
logged, and sizes are the default ones.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from formation_p2p.core.effects import Effect, Moment
from formation_p2p.core.errors import StateError
from formation_p2p.jobs.core import job_events
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import EmitJobEvent
from formation_p2p.peer.core.events import Resume, Submit
from formation_p2p.state import sqlite
from formation_p2p.state.sqlite import Schema
from formation_p2p.workload.core.memory_estimate import (
    MAX_KINDS,
    MAX_SAMPLES,
    MemoryEstimate,
    learn,
)

if TYPE_CHECKING:
    from formation_p2p.assembly import PeerEvent

log = logging.getLogger(__name__)

NAME: Final = "sizes.db"
# Of one job; a sweep over thousands of programs is rare.
_MAX_KEPT: Final = 10 * MAX_SAMPLES

_TABLES: Final = (
    """CREATE TABLE samples (
        number INTEGER PRIMARY KEY, kind TEXT NOT NULL, unix_s REAL NOT NULL,
        ran_ms INTEGER NOT NULL, memory_bytes INTEGER NOT NULL, cpu_ms INTEGER)""",
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
        self.path = home / NAME
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
        database = sqlite.Database(self.path, SCHEMA, shared=True)
        with contextlib.closing(database), database.writing() as db:
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


class _Known(NamedTuple):
    """Of a task: what it has, and what it is to have if that is too little. A worker that reports
    more is wrong, or lies."""

    kind: str
    had_bytes: int
    more_bytes: int


class MemoryRecorder:
    """`observe` on the node's thread; `close` waits for what is being written."""

    def __init__(self, file: MemorySamples) -> None:
        self._file = file
        self._writer = ThreadPoolExecutor(1, "formation-sizes")
        self._kinds: dict[str, dict[str, _Known]] = {}  # by job and task
        self._samples: dict[str, deque[Sample]] = {}

    def observe(self, event: PeerEvent, effects: Sequence[Effect], now: Moment) -> None:
        if type(event) is Submit:
            self._know(event.job)
        elif type(event) is Resume:
            for saved in event.jobs:
                self._know(saved.job)
        if self._kinds:
            for effect in effects:
                if type(effect) is EmitJobEvent and effect.job_id in self._kinds:
                    self._record(effect)

    def close(self) -> None:
        for job_id in list(self._kinds):
            self._write(job_id)
        self._writer.shutdown()

    def _know(self, job: Job) -> None:
        kinds: dict[str, _Known] = {}
        same: dict[_Known, _Known] = {}  # one for all of a kind, of which there may be many
        for task in job.tasks:
            if task.kind:
                known = _Known(task.kind, task.needs.memory_bytes, task.more_memory_bytes)
                kinds[task.task_id] = same.setdefault(known, known)
        if kinds:
            self._kinds[job.job_id] = kinds
            self._samples[job.job_id] = deque(maxlen=_MAX_KEPT)

    def _record(self, emitted: EmitJobEvent) -> None:
        tasks = self._kinds[emitted.job_id]
        match emitted.event:
            case job_events.TaskRetried(task_id, job_events.Attempt(lost=False), counts=False) if (
                task_id in tasks
            ):
                # It had too little memory: no other failure counts for nothing.
                kind, had_bytes, more_bytes = tasks[task_id]
                tasks[task_id] = _Known(kind, max(had_bytes, more_bytes), 0)
            case job_events.TaskSucceeded(task_id, ran_ms=ran_ms, used=used) if task_id in tasks:
                if used.memory_bytes is not None:
                    kind, had_bytes, _ = tasks[task_id]
                    memory_bytes = min(used.memory_bytes, had_bytes)
                    sample = Sample(kind, ran_ms, memory_bytes, used.cpu_ms)
                    self._samples[emitted.job_id].append(sample)
            case job_events.JobEnded():
                self._write(emitted.job_id)

    def _write(self, job_id: str) -> None:
        del self._kinds[job_id]
        if samples := tuple(self._samples.pop(job_id)):
            self._writer.submit(self._add, samples)

    def _add(self, samples: tuple[Sample, ...]) -> None:
        try:
            self._file.add(samples)
        except StateError as error:
            log.warning("memory samples are lost: %s", error)
