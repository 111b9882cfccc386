"""What a scheduler keeps on disk: its jobs, what became of each task, and the leases it holds.

A job is there before it begins, and its events are added in batches (journal.py). The next
incarnation is made from that (jobs/core/saved.py), and the history of a job can be read. Ended
jobs are kept for a while, within bounds; others always.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from formation_p2p.content.arrivals import Arrived
from formation_p2p.content.files import write_pieces
from formation_p2p.content.job_data import JobFolders
from formation_p2p.content.mapping import mapped
from formation_p2p.core.effects import Effect
from formation_p2p.core.errors import InvalidInput, LocalError, StateError
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import GIB
from formation_p2p.jobs.core import job_events
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.saved import SavedJob, SavedLease, SavedTask
from formation_p2p.machine.folders import folder_bytes
from formation_p2p.records.core.resources import encode_requirements
from formation_p2p.state import rows
from formation_p2p.state.job_tables import JOBS, empty_some, insert_job, read_job
from formation_p2p.state.sqlite import BUSY_S, Database, Schema, looking, reading, state_errors
from formation_p2p.workload.core.blob import Content
from formation_p2p.workload.core.parcel import Parcel, is_parcel

# Tasks deleted in one transaction: it takes some 20 ms, for which a submission waits.
PRUNED_AT_ONCE: Final = 2_000
# Pages given back to the system in one transaction, for the same reason.
FREED_AT_ONCE: Final = 2_000
# Free pages that stay in the file, of 4 KiB each: the next job takes them at once.
MAX_FREE_PAGES: Final = 1_000


@dataclass(frozen=True, slots=True)
class Retention:
    """How long ended jobs are kept: as long as all three allow. Those in flight always are.

    A month, since people come back to last week's results; a thousand, as many as may be under
    way at once; a gibibyte for the file and the large results, which most disks have to spare.
    """

    age_s: float = 30 * 24 * 3600
    jobs: int = 1_000
    size_bytes: int = GIB


class State:
    """From any thread: calls take turns. Opening and everything else raise StateError, which
    names the file and says what to do.

    One process at a time may have a state open. `peek` looks at one without that.
    """

    def __init__(
        self, path: Path, retention: Retention | None = None, schema: Schema = JOBS
    ) -> None:
        self._database = Database(path, schema)
        self.path = self._database.path
        self.results = ResultFiles(self.path.with_name(f"{self.path.name}.results"))
        self._retention = retention or Retention()
        self._lock = threading.Lock()
        self._numbers: dict[str, int] = {}  # of the jobs in flight
        with self._database.closed_on_error(), self._writing() as db:
            in_flight = "SELECT job_id, number FROM jobs WHERE ended_unix_s IS NULL"
            self._numbers.update(db.execute(in_flight))
            kept = {job_id for (job_id,) in db.execute("SELECT job_id FROM jobs")}
        self.results.keep_only(kept)

    def close(self, *, left: bool = False) -> None:
        """`left` where the node that used it has given back its leases: all of them, then."""
        try:
            if left:
                with self._writing() as db:
                    db.execute("DELETE FROM leases")
        finally:
            with self._lock:
                self._database.close()

    def save_job(self, job: Job) -> None:
        """The job is on the disk when this returns, whole. Raises InvalidInput for needs that no
        message carries."""
        needs = {needs: encode_requirements(needs) for needs in {task.needs for task in job.tasks}}
        with self._writing() as db:
            number = insert_job(db, job, needs, time.time())
        self._numbers[job.job_id] = number

    def is_in_flight(self, job_id: str) -> bool:
        """Whether the job is kept and has not ended."""
        return job_id in self._numbers

    def has_ended(self, job_id: str) -> bool:
        """Whether the job is kept and has ended."""
        with reading(self.path) as db:
            return job_id not in self._numbers and _number_of(db, job_id) is not None

    def forget(self, job_id: str) -> None:
        """Of a job that was refused after all, nothing is kept."""
        with self._writing() as db:
            db.execute("DELETE FROM jobs WHERE job_id = ?", (job_id,))
        self._numbers.pop(job_id, None)
        self.results.forget(job_id)

    def write(self, effects: Iterable[Effect]) -> None:
        """Add what happened, in order, all of it or nothing. What a state does not keep is
        passed over, and so are the events of jobs that are not in flight in it."""
        ended: list[str] = []
        with self._writing() as db:
            # Any: of each group the kind is known.
            groups: Iterator[tuple[type, Iterator[Any]]] = itertools.groupby(effects, _kind)
            for kind, group in groups:
                if kind in rows.STORED:
                    sql, row = rows.STORED[kind]
                    known = (emit for emit in group if emit.job_id in self._numbers)
                    numbered = ((self._numbers[emit.job_id], emit.event) for emit in known)
                    db.executemany(sql, ((n, each.task_id, *row(each)) for n, each in numbered))
                elif kind is job_events.TaskReopened:
                    for emit in group:
                        if emit.job_id in self._numbers:
                            task = self._numbers[emit.job_id], emit.event.task_id
                            for sql in rows.REOPEN:
                                db.execute(sql, task)
                elif kind is job_events.JobEnded:
                    over = [emit.job_id for emit in group]
                    sql = "UPDATE jobs SET ended_unix_s = ? WHERE job_id = ?"
                    db.executemany(sql, [(time.time(), job_id) for job_id in over])
                    ended += over
                elif kind is job_events.PersistLease:
                    db.executemany(rows.PERSIST, map(rows.persist_row, group))
                elif kind is job_events.ForgetLease:
                    db.executemany(rows.FORGET, [(each.worker, each.lease_id) for each in group])
        for job_id in ended:
            self._numbers.pop(job_id, None)

    def load(self, own: PeerId) -> tuple[tuple[SavedJob, ...], tuple[SavedLease, ...]]:
        """What the scheduler with this identity begins its next incarnation with, now.

        Leases of another identity are forgotten: workers know them as that one's alone.
        """
        with self._writing() as db:
            if db.execute("SELECT peer_id FROM owner").fetchone() != (own,):
                db.execute("DELETE FROM owner")
                db.execute("INSERT INTO owner VALUES (?)", (own,))
                db.execute("DELETE FROM leases")
            jobs: list[SavedJob] = []
            for number in list(self._numbers.values()):
                job = read_job(db, number, time.time())
                begun = rows.read_begun(db, number, job)
                jobs.append(SavedJob(job, self.results.with_answers(job.job_id, begun)))
            return tuple(jobs), rows.read_leases(db)

    def story(self, job_id: str) -> tuple[Job, tuple[job_events.JobEvent, ...]] | None:
        """A job that is kept, ended or not, and its events as in `history`, of one moment; None
        where there is none."""
        with reading(self.path) as db:
            number = _number_of(db, job_id)
            if number is None:
                return None
            events = rows.read_history(db, number)
            told = tuple(self.results.with_content(job_id, event) for event in events)
            return read_job(db, number, time.time()), told

    def history(self, job_id: str) -> Iterator[job_events.JobEvent]:
        """The events of a job, task by task in their order, JobEnded last where it has ended. Reads
        as it goes: one task is in memory at a time."""
        with reading(self.path) as db:
            number = _number_of(db, job_id)
            if number is None:
                return
            for event in rows.read_history(db, number):
                yield self.results.with_content(job_id, event)

    def summaries(self) -> tuple[rows.JobSummary, ...]:
        """Of all jobs that are kept, the oldest first."""
        with reading(self.path) as db:
            return rows.read_summaries(db)

    def prune(self, go_on: Callable[[], bool] = lambda: True) -> bool:
        """Delete ended jobs beyond the bounds, and of others what came with their tasks; the file
        shrinks by that. Returns whether it is done: in between, `go_on` says whether the state is
        still idle."""
        while (emptied := self._empty_some()) is not None:
            if emptied and not go_on():
                return False
        while (number := self._next_to_go()) is not None:
            # Where that is cut short, the job is so old now that it goes first next time, and what
            # is left of it is not shown (rows.WHOLE).
            with self._writing() as db:
                db.execute("UPDATE jobs SET ended_unix_s = 0 WHERE number = ?", (number,))
            while self._delete_some(number):
                if not go_on():
                    return False
        return self._shrink(go_on)

    def _empty_some(self) -> int | None:
        """How many tasks of an ended job have lost what came with them; None where no more will."""
        with reading(self.path) as db:
            sql = "SELECT number FROM jobs WHERE ended_unix_s IS NOT NULL AND NOT emptied LIMIT 1"
            found = db.execute(sql).fetchone()
        if found is None:
            return None
        with self._writing() as db:
            return empty_some(db, found[0])

    def _next_to_go(self) -> int | None:
        """The ended job that has been there longest, where that is too long or there are too
        many; None where all may stay."""
        with reading(self.path) as db:
            ended = "FROM jobs WHERE ended_unix_s IS NOT NULL"
            count, first_s = db.execute(f"SELECT count(*), min(ended_unix_s) {ended}").fetchone()
            names = "page_count", "freelist_count", "page_size"
            sizes = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in names)
            pages, free, page_bytes = sizes
            if not count or (
                count <= self._retention.jobs
                and first_s >= time.time() - self._retention.age_s
                and (pages - free) * page_bytes + self.results.size_bytes
                <= self._retention.size_bytes
            ):
                return None
            oldest = f"SELECT number {ended} ORDER BY ended_unix_s LIMIT 1"
            return int(db.execute(oldest).fetchone()[0])

    def _delete_some(self, number: int) -> bool:
        """Whether some of the job is left."""
        with self._writing() as db:
            some = "SELECT number FROM tasks WHERE job = ? LIMIT ?"
            sql = f"DELETE FROM tasks WHERE number IN ({some})"
            if db.execute(sql, (number, PRUNED_AT_ONCE)).rowcount == PRUNED_AT_ONCE:
                return True
            (job_id,) = db.execute("SELECT job_id FROM jobs WHERE number = ?", (number,)).fetchone()
            db.execute("DELETE FROM jobs WHERE number = ?", (number,))
        self.results.forget(job_id)
        return False

    def _shrink(self, go_on: Callable[[], bool]) -> bool:
        db = self._database.connection
        while True:
            with self._lock, state_errors(self.path):
                (free,) = db.execute("PRAGMA freelist_count").fetchone()
                if free < MAX_FREE_PAGES:
                    return True
                # Not `execute`: that stops after the first page, for it has no columns to show.
                db.executescript(f"PRAGMA incremental_vacuum({FREED_AT_ONCE})")
                if free <= FREED_AT_ONCE:
                    db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            if not go_on():
                return False

    def settle(self) -> None:
        """Carry the log over into the file, and empty it, unless someone reads it now."""
        db = self._database.connection
        with self._lock, state_errors(self.path):
            db.execute("PRAGMA busy_timeout = 0")
            try:
                db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            finally:
                db.execute(f"PRAGMA busy_timeout = {round(BUSY_S * 1000)}")

    @contextmanager
    def _writing(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._database.writing() as db:
            yield db


def peek(path: Path) -> tuple[rows.JobSummary, ...]:
    """The jobs of a state, whether or not a process uses it; none is made. Raises StateError."""
    with looking(path.expanduser().absolute(), JOBS) as db:
        return rows.read_summaries(db)


def _kind(effect: Effect) -> type:
    return type(effect.event) if isinstance(effect, job_events.EmitJobEvent) else type(effect)


def _number_of(db: sqlite3.Connection, job_id: str) -> int | None:
    known = f"SELECT number FROM jobs WHERE job_id = ? AND {rows.WHOLE}"
    row = db.execute(known, (job_id,)).fetchone()
    return None if row is None else int(row[0])


class ResultFiles:
    """The large results of jobs that a state keeps: a file each, in a folder beside it, for as long
    as the job is in the state. A file has the name of the blob. From any thread; all of it blocks
    on the disk."""

    def __init__(self, folder: Path) -> None:
        self._folders = JobFolders(folder)

    def write(self, job_id: str, name: bytes, content: Content) -> Content:
        """The same, from the disk. Raises StateError where that is full or fails."""
        path = self._folders.of(job_id) / name.hex()
        view = content.take()
        try:
            path.unlink(missing_ok=True)  # of an earlier incarnation, which was killed
            write_pieces(path, [view], view.nbytes, durable=True)
            self._folders.sync(job_id)
            return _opened(path, view.nbytes)
        except (OSError, LocalError) as error:
            with suppress(OSError):
                path.unlink()
            cause = error.__cause__ if isinstance(error, LocalError) else error
            why = (cause.strerror if isinstance(cause, OSError) else "") or str(error)
            root = self._folders.root
            problem = f"{root}: a result of {view.nbytes} bytes cannot be written: {why}"
            raise StateError(f"{problem}; make room on that disk") from error

    def content(self, job_id: str, result: bytes) -> Content | None:
        """What lay in the blob of a record. It is read when it is taken. None where the result is
        none."""
        folder = self._folders.of(job_id)
        if not is_parcel(result) or not folder.exists():
            return None
        try:
            (blob,) = Parcel.decode(result).blobs
        except (InvalidInput, ValueError):  # of a driver with other results
            return None
        return _Stored(folder / blob.name.hex(), blob.size_bytes)

    def with_content(self, job_id: str, event: job_events.JobEvent) -> job_events.JobEvent:
        """With what is large of the results in it."""
        if isinstance(event, job_events.TaskAnswered):
            (answer,) = self._contents(job_id, (event.answer,))
            return replace(event, answer=answer)
        if isinstance(event, job_events.TaskDisagreed):
            return replace(event, answers=self._contents(job_id, event.answers))
        if not isinstance(event, job_events.TaskSucceeded):
            return event
        content = self.content(job_id, event.result)
        return event if content is None else replace(event, content=content)

    def _contents(
        self, job_id: str, answers: Iterable[job_events.Answer]
    ) -> tuple[job_events.Answer, ...]:
        contents = ((each, self.content(job_id, each.result)) for each in answers)
        return tuple(replace(each, content=content) for each, content in contents)

    def with_answers(self, job_id: str, begun: Iterable[SavedTask]) -> tuple[SavedTask, ...]:
        return tuple(replace(each, answers=self._contents(job_id, each.answers)) for each in begun)

    def forget(self, job_id: str) -> None:
        """The job is in the state no more."""
        self._folders.forget(job_id)

    def keep_only(self, job_ids: Collection[str]) -> None:
        """Forget what a process that was killed has left of others."""
        for job_id in self._folders.others(job_ids):
            self.forget(job_id)

    @property
    def size_bytes(self) -> int:
        """What all of them take on the disk."""
        return folder_bytes(self._folders.root)


class _Stored:
    """Content of an earlier incarnation."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self._path = path
        self._size_bytes = size_bytes

    def take(self) -> memoryview:
        try:
            return _opened(self._path, self._size_bytes).take()
        except FileNotFoundError as error:
            problem = (
                f"{self._path} was deleted with its job; keep more by Node.join(retention=...)"
            )
            raise StateError(f"{problem}, or submit the job again") from error
        except OSError as error:
            problem = f"{self._path} has a result, and cannot be read: {error}"
            raise StateError(f"{problem}; submit its job again") from error


def _opened(path: Path, size_bytes: int) -> Arrived:
    """What is written to it is the reader's own. Raises OSError."""
    with path.open("rb") as file:
        if os.fstat(file.fileno()).st_size < size_bytes:
            raise OSError(f"{path} is cut short")
        return Arrived(mapped(size_bytes, file.fileno()))
