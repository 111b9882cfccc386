"""The file of a scheduler's state: SQLite in WAL mode, checked when it is opened.

Beside `PATH` lie `PATH-wal` and `PATH-shm`, which belong to it while it is in use and after a
crash, and `PATH.lock`, which says that a process uses it. All are for their owner alone (0600).
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import shlex
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from formation_p2p.core.errors import FormationError, StateError

log = logging.getLogger(__name__)

# "formS", so that another program's database is not taken for ours.
APPLICATION_ID: Final = 0x666F726D
# The check reads the file once. One so large that this does not do is used unchecked: what is
# damaged is then found when it is read.
CHECK_S: Final = 5.0
_OPCODES_BETWEEN_LOOKS: Final = 10_000
# Another process that lists the jobs, or a copy being made, holds the file for moments.
BUSY_S: Final = 5.0
# What a large transaction leaves of the -wal file once it has been carried over.
MAX_IDLE_WAL_BYTES: Final = 16 * 1024 * 1024

Migration = Callable[[sqlite3.Connection], None]


def _first(db: sqlite3.Connection) -> None:
    """Tasks are numbered in their order within the job. What they share lies in `parts`, once
    for each job: their needs (CBOR, core/records/resources.py) and the drivers' shared bytes; no
    foreign key leads there, for one would have to be searched for each part that is deleted.
    An attempt is `open_on` its lease until it failed, was lost or was recalled; `failed` counts
    those of its task that had failed or were lost by then.
    """
    for table in (
        "CREATE TABLE owner (peer_id TEXT NOT NULL)",
        """CREATE TABLE jobs (
            number INTEGER PRIMARY KEY,
            job_id TEXT NOT NULL UNIQUE,
            name TEXT NOT NULL,
            priority INTEGER NOT NULL,
            speculate INTEGER NOT NULL,
            deadline_s REAL,
            max_price_micro INTEGER,
            submitted_unix_s REAL NOT NULL,
            ended_unix_s REAL)""",
        """CREATE TABLE parts (
            job INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE,
            number INTEGER NOT NULL,
            content BLOB NOT NULL,
            PRIMARY KEY (job, number))""",
        """CREATE TABLE tasks (
            number INTEGER PRIMARY KEY,
            job INTEGER NOT NULL REFERENCES jobs ON DELETE CASCADE,
            task_id TEXT NOT NULL,
            label TEXT NOT NULL,
            needs INTEGER NOT NULL,
            shared INTEGER NOT NULL,
            payload BLOB NOT NULL,
            timeout_s REAL,
            max_attempts INTEGER NOT NULL,
            UNIQUE (job, task_id))""",
        """CREATE TABLE attempts (
            number INTEGER PRIMARY KEY,
            task INTEGER NOT NULL REFERENCES tasks ON DELETE CASCADE,
            attempt_id TEXT NOT NULL,
            worker TEXT NOT NULL,
            lease_id TEXT NOT NULL,
            open_on TEXT,
            nearest INTEGER NOT NULL,
            failed INTEGER,
            why TEXT,
            lost INTEGER,
            UNIQUE (task, attempt_id))""",
        """CREATE TABLE results (
            task INTEGER PRIMARY KEY REFERENCES tasks ON DELETE CASCADE,
            ended TEXT NOT NULL,
            worker TEXT,
            result BLOB NOT NULL,
            ran_ms INTEGER NOT NULL,
            kind TEXT,
            told BLOB NOT NULL)""",
        """CREATE TABLE leases (
            lessor TEXT NOT NULL,
            lease_id TEXT NOT NULL,
            addresses BLOB NOT NULL,
            needs BLOB NOT NULL,
            priority INTEGER NOT NULL,
            fence INTEGER NOT NULL,
            device_ids BLOB NOT NULL,
            PRIMARY KEY (lessor, lease_id)) WITHOUT ROWID""",
    ):
        db.execute(table)


def _with_placement(db: sqlite3.Connection) -> None:
    db.execute("ALTER TABLE jobs ADD COLUMN placement BLOB")


def _with_order(db: sqlite3.Connection) -> None:
    """`waits_for` has the places within the job of those tasks that one waits for (CBOR)."""
    db.execute("ALTER TABLE tasks ADD COLUMN waits_for BLOB")
    db.execute("ALTER TABLE tasks ADD COLUMN kind TEXT NOT NULL DEFAULT ''")
    db.execute("ALTER TABLE tasks ADD COLUMN more_memory_bytes INTEGER NOT NULL DEFAULT 0")
    db.execute("ALTER TABLE results ADD COLUMN waited_for TEXT NOT NULL DEFAULT ''")


# Each takes the file from one version to the next; the version is how many have been done.
MIGRATIONS: tuple[Migration, ...] = (_first, _with_placement, _with_order)


class StateFile:
    """The file, taken: no other process uses it as long as this is open. Made where there is
    none, brought to the newest version where it is older. Raises StateError.

    A subclass keeps something else in a file of its own kind."""

    application_id = APPLICATION_ID

    @property
    def migrations(self) -> tuple[Migration, ...]:
        return MIGRATIONS

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser().absolute()
        self._lock = self._take()
        try:
            with state_errors(self.path):
                if not self.path.exists():
                    self._create()
                check_mode(self.path)
                with contextlib.closing(self.connect()) as db:
                    check_sound(db, self.path, self.application_id)
                    migrate(db, self.path, self.migrations)
        except BaseException:
            os.close(self._lock)
            raise

    def close(self) -> None:
        """Once every connection is closed."""
        os.close(self._lock)

    def connect(self) -> sqlite3.Connection:
        """A connection that writes, for one thread at a time."""
        return connect(self.path, read_only=False)

    def _take(self) -> int:
        with state_errors(self.path):
            lock_path = self.path.with_name(self.path.name + ".lock")
            lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)
            raise StateError(
                f"{self.path} is in use by another process; wait for that to end, or give this "
                "one a state of its own"
            ) from None
        return lock

    def _create(self) -> None:
        """Whole or not at all, so that an empty file is one that was cut short."""
        new = self.path.with_name(self.path.name + ".new")
        for leftover in (new, *beside(new)):
            leftover.unlink(missing_ok=True)
        os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
        with contextlib.closing(connect(new, read_only=False)) as db:
            # Before the first table, or never. The file shrinks by what is pruned.
            db.execute("PRAGMA auto_vacuum = INCREMENTAL")
            db.execute("PRAGMA journal_mode = WAL")
            db.execute(f"PRAGMA application_id = {self.application_id}")
            migrate(db, self.path, self.migrations)
        new.rename(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def migrate(db: sqlite3.Connection, path: Path, migrations: Sequence[Migration]) -> None:
    """Bring the file to the newest version: each step is done whole, or not at all. Raises
    StateError."""
    while version_of(db, path, migrations) < len(migrations):
        with transaction(db):
            # Where files are not taken, another process may have done the same step meanwhile.
            version = version_of(db, path, migrations)
            for step in migrations[version : version + 1]:
                step(db)
                db.execute(f"PRAGMA user_version = {version + 1}")


def version_of(db: sqlite3.Connection, path: Path, migrations: Sequence[Migration]) -> int:
    """How many of these were done. Raises StateError where it is more than there are."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version > len(migrations):
        raise StateError(
            f"{path} has version {version}, and this release knows {len(migrations)} at "
            "most; use the release that wrote it, or a new file"
        )
    return version


def check_mode(path: Path) -> None:
    with state_errors(path):
        status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise StateError(f"{path} is no plain file; name one that is, or a new one")
    if status.st_mode & 0o077:
        raise StateError(f"{path} is open to others; run: chmod 600 {shlex.quote(str(path))}")
    if status.st_size == 0:
        raise StateError(f"{path} is empty, so it was cut short: {DAMAGED}")


def check_sound(db: sqlite3.Connection, path: Path, application_id: int = APPLICATION_ID) -> None:
    """That it is ours, and whole as far as can be told within CHECK_S."""
    if db.execute("PRAGMA application_id").fetchone() != (application_id,):
        raise StateError(f"{path} is no state of formation's; name another file, or a new one")
    (page_bytes,) = db.execute("PRAGMA page_size").fetchone()
    wal, _ = beside(path)
    is_settled = not wal.exists() or wal.stat().st_size == 0
    if is_settled and path.stat().st_size % page_bytes:
        # SQLite reads what is missing of a page as zeros.
        raise StateError(f"{path} is damaged (it was cut short): {DAMAGED}")
    until_s = time.monotonic() + CHECK_S
    db.set_progress_handler(lambda: int(time.monotonic() > until_s), _OPCODES_BETWEEN_LOOKS)
    try:
        found = str(db.execute("PRAGMA quick_check(1)").fetchone()[0])
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode != sqlite3.SQLITE_INTERRUPT:
            raise
        log.info("%s is large; it is used without having been checked whole", path)
    else:
        if found != "ok":
            raise StateError(f"{path} is damaged ({' '.join(found.split())}): {DAMAGED}")
    finally:
        db.set_progress_handler(None, 0)


def connect(path: Path, *, read_only: bool) -> sqlite3.Connection:
    """`read_only` is for a look, whether or not a process uses the file."""
    mode = "ro" if read_only else "rw"  # never made in passing
    db = sqlite3.connect(
        f"{path.as_uri()}?mode={mode}",
        uri=True,
        timeout=BUSY_S,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        db.execute("PRAGMA foreign_keys = ON")
        if not read_only:
            # A commit is on the disk when it returns, and survives a power cut too: see
            # docs/durability.md for what that costs.
            db.execute("PRAGMA synchronous = FULL")
            db.execute(f"PRAGMA journal_size_limit = {MAX_IDLE_WAL_BYTES}")
    except BaseException:
        db.close()
        raise
    return db


@contextlib.contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """What is read is of one moment, and keeps nobody from writing."""
    with state_errors(path), contextlib.closing(connect(path, read_only=True)) as db:
        db.execute("BEGIN")
        yield db


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All that is done within is there afterwards, or none of it."""
    db.execute("BEGIN IMMEDIATE")
    try:
        yield
        db.execute("COMMIT")
    except BaseException:
        # A full disk may have rolled it back already.
        if db.in_transaction:
            with contextlib.suppress(sqlite3.Error):
                db.execute("ROLLBACK")
        raise


def beside(path: Path) -> tuple[Path, ...]:
    """The files that belong to a state while it is in use."""
    return tuple(path.with_name(path.name + suffix) for suffix in ("-wal", "-shm"))


DAMAGED: Final = (
    "move it away, with what lies beside it (-wal, -shm), and begin with a new one; "
    "`sqlite3 FILE .recover` may read what is left"
)


# What our readers raise for values that are none of ours: SQLite keeps any in any column.
_MISREAD: Final = (
    *(FormationError, ValueError, TypeError, LookupError),
    *(AttributeError, OverflowError),
)


@contextlib.contextmanager
def state_errors(path: Path) -> Iterator[None]:
    """Turns what SQLite, the system and our own readers raise into StateError: what was written
    well and reads badly was damaged in between."""
    try:
        yield
    except StateError:
        raise
    except sqlite3.Error as error:
        raise StateError(f"{path}: {_in_words(error)}") from error
    except OSError as error:
        why = error.strerror or str(error)
        raise StateError(f"{path}: {why}; make room, or name a file that can be written") from error
    except _MISREAD as error:
        raise StateError(f"{path} is damaged ({error!r}): {DAMAGED}") from error


def _in_words(error: sqlite3.Error) -> str:
    # The lowest byte is the kind of error; the rest says where it was met.
    kind = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    match kind:
        case sqlite3.SQLITE_FULL:
            return "the disk is full; make room: nothing that was stored before is lost"
        case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
            return f"it is damaged ({error}): {DAMAGED}"
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_CANTOPEN:
            return f"it cannot be opened or written ({error}); see who owns it and its folder"
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return f"another program holds it ({error}); end that one"
        case sqlite3.SQLITE_IOERR:
            return f"the disk failed, or is full ({error}); make room, and see the system's log"
        case _:
            return f"{error}; please report this"
