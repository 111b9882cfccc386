"""SQLite files of a node, checked when they are opened.

Beside `PATH` lie `PATH-wal` and `PATH-shm`, which belong to it while it is in use and after a
crash, and `PATH.lock`, which its opener locks. All are for their owner alone (0600).

The files of one home stay separate files, since a file is lost as a whole. A damaged quota count
stops a worker, damaged peer histories stop the one node whose they are, and damaged memory samples
stop nothing: each is moved away without the others.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shlex
import sqlite3
import stat
import struct
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

import trio

from formation_p2p.core.errors import FormationError, StateError
from formation_p2p.machine.file_lock import lock_file, unlock_file
from formation_p2p.machine.folders import sync_folder

# Whether the write-ahead log of an SQLite file is damaged, looked at before SQLite opens it.
#
# SQLite reads a log up to the first frame that does not verify, takes what follows for the rest of
# a transaction that was never committed, and goes on without it. Where that frame was altered after
# it was written, all that was committed from there on is lost without a word.
#
# Committed are: what the index beside the log (-shm) counts, which a process that is killed leaves
# as it was; and what another transaction follows, since a transaction begins once the one before it
# is on the disk. So the last transaction of a machine that lost its power may be torn, and is no
# damage.
#
# The formats: https://sqlite.org/fileformat2.html#walformat and https://sqlite.org/walformat.html.

_MAGIC: Final = 0x377F0682  # its last bit says that checksums are of big-endian words
_VERSION: Final = 3_007_000
_HEADER: Final = struct.Struct(">6I2I")
_FRAME: Final = struct.Struct(">2I8s2I")
# Of the index: two copies of this, in the byte order of the machine.
_INDEX: Final = struct.Struct("=3I2BH6I2I")
_INDEX_SUMMED_BYTES: Final = 40
_DATABASE_PAGE_SIZE_AT: Final = 16
_WORD: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class _Log:
    """`readable` frames are those that SQLite will take; `committed` is how many it has to."""

    readable: int
    committed: int
    frames: int
    frame_bytes: int


def check_log(path: Path, until_s: float) -> bool:
    """Whether the log of the database at `path`, which no process uses, was looked at whole by
    `until_s` on the monotonic clock. Raises StateError where it is damaged, OSError."""
    wal = path.with_name(f"{path.name}-wal")
    shm = path.with_name(f"{path.name}-shm")
    if not wal.exists() or wal.stat().st_size <= _HEADER.size:
        return True
    index = shm.read_bytes()[: 2 * _INDEX.size] if shm.exists() else None
    with wal.open("rb") as file:
        log = _read(file, wal.stat().st_size, _page_bytes(path), index, until_s)
    if log is None:
        return False
    if log.readable < log.committed:
        kept = _HEADER.size + log.readable * log.frame_bytes if log.readable else 0
        names = shlex.quote(str(wal)), shlex.quote(str(shm))
        raise StateError(
            f"{wal} is damaged: of {log.frames} pages that were logged, {log.readable} can be "
            f"read; put back a copy of {path.name} with what lies beside it, or go on without "
            f"what was stored last: truncate -s {kept} {names[0]} && rm -f {names[1]}"
        )
    return True


def _page_bytes(path: Path) -> int:
    with path.open("rb") as file:
        file.seek(_DATABASE_PAGE_SIZE_AT)
        size = int.from_bytes(file.read(2), "big")
    return 65_536 if size == 1 else max(size, 512)


def _read(
    file: BinaryIO, size_bytes: int, page_bytes: int, index: bytes | None, until_s: float
) -> _Log | None:
    raw = file.read(_HEADER.size)
    magic, version, logged_page_bytes, *_, sum0, sum1 = _HEADER.unpack(raw)
    order = ">" if magic & 1 else "<"
    salts, sums = raw[16:24], (sum0, sum1)
    is_sound = (
        magic & ~1 == _MAGIC
        and version == _VERSION
        and logged_page_bytes == page_bytes
        and _summed(raw[:24], (0, 0), order) == sums
    )
    frame_bytes = _FRAME.size + page_bytes
    frames = (size_bytes - _HEADER.size) // frame_bytes
    readable = committed = last = 0  # the numbers of frames that end a transaction
    for number in range(1, frames + 1):
        if time.monotonic() > until_s:
            return None
        file.seek(_HEADER.size + (number - 1) * frame_bytes)
        head = file.read(_FRAME.size)
        _, pages, own_salts, *own_sums = _FRAME.unpack(head)
        if number == 1 and not is_sound:
            salts = own_salts  # those of the header may be what was altered
        is_sound = is_sound and own_salts == salts
        if is_sound:
            sums = _summed(head[:8] + file.read(page_bytes), sums, order)
            is_sound = sums == tuple(own_sums)
        if own_salts != salts:
            continue  # of before the log began anew
        committed = max(committed, last)  # it has a frame after it
        if pages:
            last = number
            readable = number if is_sound else readable
    known = _indexed(index, salts)
    committed = last if known is None else max(committed, known)
    return _Log(readable, committed, frames, frame_bytes)


def _indexed(index: bytes | None, salts: bytes) -> int | None:
    """How many frames the index counts; 0 where it is of another log, or unreadable. None where
    there is none: then the log is a copy of what was committed."""
    if index is None:
        return None
    if len(index) < 2 * _INDEX.size:
        return 0
    first, second = index[: _INDEX.size], index[_INDEX.size :]
    fields = _INDEX.unpack(first)
    sums = _summed(first[:_INDEX_SUMMED_BYTES], (0, 0), "<" if sys.byteorder == "little" else ">")
    is_ours = first == second and sums == fields[-2:] and first[32:40] == salts
    return int(fields[6]) if is_ours else 0


def _summed(content: bytes, sums: tuple[int, int], order: str) -> tuple[int, int]:
    """SQLite's checksum of pairs of words, begun with that of what comes before."""
    words = struct.unpack(f"{order}{len(content) // 4}I", content)
    s0, s1 = sums
    for even, odd in zip(words[::2], words[1::2], strict=True):
        s0 = (s0 + even + s1) & _WORD
        s1 = (s1 + odd + s0) & _WORD
    return s0, s1


log = logging.getLogger(__name__)


# Another process that lists the jobs, or a copy being made, holds the file for moments.
BUSY_S: Final = 5.0
# Another node of the home holds a shared file for a moment while it opens it, and 16 may start at
# once.
OPEN_WAIT_S: Final = 10.0
# Pages of the -wal file that are carried over, at the next commit: a megabyte. So much, and what
# was stored since, is in one place only.
MAX_WAL_PAGES: Final = 1_000
# What a large transaction leaves of the -wal file once it has been carried over.
MAX_IDLE_WAL_BYTES: Final = 16 * 1024 * 1024

# Statements, done whole or not at all.
Migration = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Schema:
    """A kind of file. Each migration takes it from one version to the next; the version is how
    many have been done. The `application_id` tells it from other programs' databases."""

    what: str
    application_id: int
    migrations: tuple[Migration, ...]
    # Whether a commit is on the disk when it returns, and survives a power cut too: see
    # docs/explanation/jobs.md for what that costs.
    synchronous: bool = True
    # The check reads the file once. One so large that this does not do is used unchecked: what is
    # damaged is then found when it is read.
    check_s: float = 5.0
    check_opcodes_between_looks: int = 10_000


class Database:
    """An open file, made where there is none and brought to the newest version where it is older.
    Raises StateError, which names the file and says what to do.

    No other process opens it meanwhile, unless it is `shared`. The connection is for one thread
    at a time.
    """

    def __init__(self, path: Path, schema: Schema, *, shared: bool = False) -> None:
        self.path = path.expanduser().absolute()
        with contextlib.ExitStack() as opened, state_errors(self.path):
            lock = lock_file(
                self.path.with_name(self.path.name + ".lock"), wait_s=OPEN_WAIT_S if shared else 0.0
            )
            if lock is None:
                raise StateError(
                    f"{self.path} is in use by another process; wait for that to end, or give this "
                    "one a file of its own"
                )
            unlock = opened.enter_context(contextlib.ExitStack())
            unlock.callback(unlock_file, lock)
            if not self.path.exists():
                _create(self.path, schema)
            check_mode(self.path)
            # One that is shared may be written to meanwhile; and without `synchronous` a log may
            # be torn anywhere.
            if (
                schema.synchronous
                and not shared
                and not check_log(self.path, time.monotonic() + schema.check_s)
            ):
                log.info("the log of %s is large; it is used without having been checked", path)
            self.connection = _connect(self.path, schema)
            opened.callback(self.connection.close)
            check_sound(self.connection, self.path, schema)
            _migrate(self.connection, self.path, schema)
            if shared:
                unlock.close()
            self._opened = opened.pop_all()

    def close(self) -> None:
        self._opened.close()

    @contextlib.contextmanager
    def closed_on_error(self) -> Iterator[None]:
        """For what makes ready a file that was just opened."""
        with contextlib.ExitStack() as opened:
            opened.callback(self.close)
            yield
            opened.pop_all()

    @contextlib.contextmanager
    def writing(self) -> Iterator[sqlite3.Connection]:
        """All that is done within is there afterwards, or none of it. Raises StateError."""
        with state_errors(self.path), transaction(self.connection):
            yield self.connection


def _create(path: Path, schema: Schema) -> None:
    """Whole or not at all, so that an empty file is one that was cut short."""
    new = path.with_name(path.name + ".new")
    for leftover in (new, *beside(new), new.with_name(f"{new.name}-journal")):
        leftover.unlink(missing_ok=True)
    os.close(os.open(new, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    with contextlib.closing(_connect(new, schema)) as db:
        # Before the first table, or never. The file shrinks by what is pruned.
        db.execute("PRAGMA auto_vacuum = INCREMENTAL")
        db.execute("PRAGMA journal_mode = WAL")
        db.execute(f"PRAGMA application_id = {schema.application_id}")
        _migrate(db, path, schema)
    new.rename(path)
    sync_folder(path.parent)


def _migrate(db: sqlite3.Connection, path: Path, schema: Schema) -> None:
    """To the newest version: each step is done whole, or not at all."""
    for version in range(version_of(db, path, schema), len(schema.migrations)):
        with transaction(db):
            for statement in schema.migrations[version]:
                db.execute(statement)
            db.execute(f"PRAGMA user_version = {version + 1}")


def version_of(db: sqlite3.Connection, path: Path, schema: Schema) -> int:
    """How many migrations were done. Raises StateError where that is more than there are."""
    version = int(db.execute("PRAGMA user_version").fetchone()[0])
    if version > len(schema.migrations):
        raise StateError(
            f"{path} has version {version}, and this release knows {len(schema.migrations)} at "
            "most; use the release that wrote it, or a new file"
        )
    return version


def check_mode(path: Path) -> None:
    with state_errors(path):
        status = path.stat()
    if not stat.S_ISREG(status.st_mode):
        raise StateError(f"{path} is not a plain file; name one that is, or a new one")
    if status.st_mode & 0o077:
        raise StateError(f"{path} is open to others; run: chmod 600 {shlex.quote(str(path))}")
    journal = path.with_name(f"{path.name}-journal")
    with state_errors(path):
        if journal.exists() and journal.stat().st_size:
            # SQLite would write it into the file.
            problem = f"{journal} lies beside {path.name}, and is of another program or a copy"
            raise StateError(f"{problem}: formation writes none; move it away")
    if status.st_size == 0:
        raise StateError(f"{path} is empty, so it was cut short: {DAMAGED}")


def check_kind(db: sqlite3.Connection, path: Path, schema: Schema) -> None:
    if db.execute("PRAGMA application_id").fetchone() != (schema.application_id,):
        raise StateError(
            f"{path} is not a formation file of {schema.what}; name another file, or a new one"
        )


def check_sound(db: sqlite3.Connection, path: Path, schema: Schema) -> None:
    """That it is ours, and whole as far as `check_s` allows to see."""
    check_kind(db, path, schema)
    (page_bytes,) = db.execute("PRAGMA page_size").fetchone()
    wal, _ = beside(path)
    is_settled = not wal.exists() or wal.stat().st_size == 0
    if is_settled and path.stat().st_size % page_bytes:
        # SQLite reads what is missing of a page as zeros.
        raise StateError(f"{path} is damaged (it was cut short): {DAMAGED}")
    until_s = time.monotonic() + schema.check_s
    db.set_progress_handler(
        lambda: int(time.monotonic() > until_s), schema.check_opcodes_between_looks
    )
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


def _connect(path: Path, schema: Schema | None) -> sqlite3.Connection:
    """Read-only without a schema."""
    mode = "ro" if schema is None else "rw"  # never made in passing
    db = sqlite3.connect(
        f"{path.as_uri()}?mode={mode}",
        uri=True,
        timeout=BUSY_S,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        db.execute("PRAGMA foreign_keys = ON")
        if schema is not None:
            db.execute(f"PRAGMA synchronous = {'FULL' if schema.synchronous else 'NORMAL'}")
            db.execute(f"PRAGMA wal_autocheckpoint = {MAX_WAL_PAGES}")
            db.execute(f"PRAGMA journal_size_limit = {MAX_IDLE_WAL_BYTES}")
    except BaseException:
        # Whatever it is: no caller has the connection yet.
        db.close()
        raise
    return db


@contextlib.contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """What is read is of one moment, and does not keep others from writing. For a file that is
    known to be sound. Raises StateError."""
    with state_errors(path), contextlib.closing(_connect(path, None)) as db:
        db.execute("BEGIN")
        yield db


@contextlib.contextmanager
def looking(path: Path, schema: Schema) -> Iterator[sqlite3.Connection]:
    """As `reading`, for a file that is checked first; other processes may use it meanwhile."""
    check_mode(path)
    with reading(path) as db:
        check_sound(db, path, schema)
        yield db


@contextlib.contextmanager
def changing(path: Path, schema: Schema) -> Iterator[sqlite3.Connection]:
    """One transaction in the file of a node, which may use it meanwhile. Raises StateError."""
    check_mode(path)
    with state_errors(path), contextlib.closing(_connect(path, schema)) as db:
        check_sound(db, path, schema)
        with transaction(db):
            yield db


@contextlib.contextmanager
def transaction(db: sqlite3.Connection) -> Iterator[None]:
    """All that is done within is there afterwards, or none of it."""
    with db:  # commits or rolls back, unless a full disk has rolled it back already
        db.execute("BEGIN IMMEDIATE")
        yield


def beside(path: Path) -> tuple[Path, Path]:
    """The files that belong to a database while it is in use."""
    return path.with_name(path.name + "-wal"), path.with_name(path.name + "-shm")


DAMAGED: Final = (
    "move it away, with what lies beside it (-wal, -shm), and begin with a new one; "
    "`sqlite3 FILE .recover` may read what is left"
)


# What our readers raise for values that are not ours: SQLite keeps any in any column.
_MISREAD: Final = FormationError, ValueError, TypeError, LookupError, AttributeError, OverflowError


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
        kind = type(error)
        what = str(error) if kind.__module__.startswith("formation_p2p") else f"{error!r}"
        raise StateError(f"{path} is damaged ({what}): {DAMAGED}") from error


def _in_words(error: sqlite3.Error) -> str:
    # The lowest byte is the kind of error; the rest says where it was met.
    kind = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    # The first is what sqlite3 itself says, of text that is none; the second is of a schema that
    # was altered since it was checked: our statements are all for the version that was opened.
    if "decode to UTF-8" in str(error) or str(error).startswith("no such "):
        kind = sqlite3.SQLITE_CORRUPT
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


# What a node gathers, written to a file a second behind. A disk that fails costs the node nothing.
# What is lost with a node that is killed is its last second.
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
        self._asked, self._told = trio.Event(), trio.Event()

    @abstractmethod
    def gather(self) -> None: ...

    @abstractmethod
    def write(self) -> None: ...

    async def keep(self) -> None:
        """On the node's thread, for as long as it runs."""
        while True:
            with trio.move_on_after(self._every_s):
                await self._asked.wait()
            self._asked, told = trio.Event(), self._told
            self._told = trio.Event()
            try:
                self.gather()
                await trio.to_thread.run_sync(self._written)
            except Exception:
                # A fault of ours must not end the node.
                log.exception("%s cannot be stored; please report this", self._what)
                self._failing = True
            told.set()

    async def stored(self) -> bool:
        """Once what there is now is on the disk; False where it cannot be written. While `keep`
        runs."""
        told = self._told
        self._asked.set()
        await told.wait()
        return not self._failing

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
