"""What a node has learnt of others, on disk: loaded when it starts, stored a second behind it.

What is lost with the last second of a node that is killed is a few experiences of thousands. The
file is SQLite, as a scheduler's state is (state_file.py), and belongs to one identity of a home.

Other programs of the same user read it, and leave in it what a person says of a peer; the node
takes that up within a second, or when it starts. What they leave counts once: the node deletes it
in the transaction that stores what came of it.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
from collections.abc import Iterable
from dataclasses import fields
from enum import StrEnum
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

import trio

from formation_p2p.effects import Moment
from formation_p2p.errors import BadRecord, StateError
from formation_p2p.host.clock import moment
from formation_p2p.host.state_file import (
    Migration,
    StateFile,
    check_mode,
    check_sound,
    connect,
    reading,
    state_errors,
    transaction,
)
from formation_p2p.identity import PeerId, parse_peer_id
from formation_p2p.trust.attestation import Attestation, open_attestation
from formation_p2p.trust.experience import Account, Experience
from formation_p2p.trust.reputation import MAX_PEERS, MAX_VOICES, Changes, Reputation

log = logging.getLogger(__name__)

# "fort"
APPLICATION_ID: Final = 0x666F7274
STORED_EVERY_S: Final = 1.0
# What people say of peers, before a node has heard of it.
MAX_SAID: Final = 1_000

_FIELDS: Final = attrgetter(*(field.name for field in fields(Account)))


def _first(db: sqlite3.Connection) -> None:
    """`good` and `bad` are as they counted in the half-life `epoch` (trust/experience.py)."""
    db.execute(
        """CREATE TABLE accounts (
            peer_id TEXT PRIMARY KEY,
            good INTEGER NOT NULL,
            bad INTEGER NOT NULL,
            epoch INTEGER NOT NULL,
            successes INTEGER NOT NULL,
            errors INTEGER NOT NULL,
            lost INTEGER NOT NULL,
            wrong INTEGER NOT NULL,
            seen_unix_s INTEGER NOT NULL,
            lost_unix_s INTEGER NOT NULL) WITHOUT ROWID"""
    )
    db.execute(
        """CREATE TABLE attestations (
            author TEXT PRIMARY KEY,
            attestation BLOB NOT NULL) WITHOUT ROWID"""
    )
    db.execute(
        """CREATE TABLE said (
            number INTEGER PRIMARY KEY AUTOINCREMENT,
            peer_id TEXT NOT NULL,
            what TEXT NOT NULL)"""
    )


class Said(StrEnum):
    """What a person says of a peer."""

    WRONG = "wrong"  # its result was false
    FORGET = "forget"


class _Note(NamedTuple):
    number: int
    peer_id: PeerId
    what: Said


class _File(StateFile):
    application_id = APPLICATION_ID

    @property
    def migrations(self) -> tuple[Migration, ...]:
        return (_first,)


class TrustFile:
    """A node's `reputation`, and the file that keeps it. Raises StateError, which names the file
    and says what to do."""

    def __init__(self, path: Path, own: PeerId) -> None:
        self._file = _File(path)
        self._accounts: dict[PeerId, Account | None] = {}  # to be stored
        self._attestations: dict[PeerId, bytes | None] = {}
        self._failing = False
        try:
            with state_errors(self._file.path):
                self._db = self._file.connect()
                # The number of the last note that was taken up.
                self.reputation, self._done = _load(self._db, own, moment())
                self._deleted = 0  # of those up to here
        except BaseException:
            self._file.close()
            raise

    async def keep(self) -> None:
        """On the node's thread, for as long as it runs."""
        while True:
            await trio.sleep(STORED_EVERY_S)
            try:
                self._gather(self.reputation.take())
                for note in await trio.to_thread.run_sync(self._exchange):
                    self._done = _follow(note, self.reputation, moment())
            except Exception:
                # A fault of ours must not end the node.
                log.exception("what was learnt of others is not stored; please report this")

    def close(self) -> None:
        """Once the node's thread has ended. What cannot be stored is lost, and logged."""
        self._gather(self.reputation.take())
        self._exchange()
        with contextlib.suppress(sqlite3.Error):
            self._db.close()
        self._file.close()

    def _gather(self, changes: Changes) -> None:
        self._accounts.update(changes.accounts)
        self._attestations.update(changes.attestations)

    def _exchange(self) -> list[_Note]:
        """Store what has gathered; return what people have said meanwhile."""
        try:
            with state_errors(self._file.path):
                if self._accounts or self._attestations or self._done > self._deleted:
                    with transaction(self._db):
                        self._store()
                notes = _notes(self._db, self._done)
        except StateError as error:
            if not self._failing:
                log.error("%s; it is tried again until it can be written", error)
            self._failing = True
            return []
        self._failing = False
        self._accounts.clear()
        self._attestations.clear()
        self._deleted = self._done
        return notes

    def _store(self) -> None:
        db = self._db
        accounts = self._accounts.items()
        gone = [(peer_id,) for peer_id, account in accounts if account is None]
        db.executemany("DELETE FROM accounts WHERE peer_id = ?", gone)
        db.executemany(
            "REPLACE INTO accounts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [(peer_id, *_FIELDS(account)) for peer_id, account in accounts if account is not None],
        )
        attestations = self._attestations.items()
        silent = [(author,) for author, raw in attestations if raw is None]
        db.executemany("DELETE FROM attestations WHERE author = ?", silent)
        db.executemany(
            "REPLACE INTO attestations VALUES (?, ?)",
            [(author, raw) for author, raw in attestations if raw is not None],
        )
        db.execute("DELETE FROM said WHERE number <= ?", (self._done,))


def peek(path: Path, own: PeerId) -> Reputation:
    """As a node has it, or would have it if it started now; the file is left as it is. Raises
    StateError."""
    check_mode(path)
    with reading(path) as db:
        check_sound(db, path, APPLICATION_ID)
        return _load(db, own, moment())[0]


def say(path: Path, peer_id: PeerId, what: Said) -> None:
    """Leave word of a peer for the node whose file this is. Raises StateError."""
    check_mode(path)
    with state_errors(path), contextlib.closing(connect(path, read_only=False)) as db:
        check_sound(db, path, APPLICATION_ID)
        with transaction(db):
            (count,) = db.execute("SELECT count(*) FROM said").fetchone()
            if count >= MAX_SAID:
                problem = f"{path} holds {count} notes already"
                raise StateError(f"{problem}; start the node, which reads them")
            db.execute("INSERT INTO said (peer_id, what) VALUES (?, ?)", (peer_id, what.value))


def _load(db: sqlite3.Connection, own: PeerId, now: Moment) -> tuple[Reputation, int]:
    """With the number of the last note that was taken up."""
    rows = db.execute("SELECT * FROM accounts LIMIT ?", (MAX_PEERS,))
    accounts = [(parse_peer_id(row[0]), _account(row[1:])) for row in rows]
    raws = db.execute("SELECT attestation FROM attestations LIMIT ?", (MAX_VOICES,))
    reputation = Reputation(own, accounts, _sound((raw for (raw,) in raws), now))
    done = 0
    for note in _notes(db, done):
        done = _follow(note, reputation, now)
    return reputation, done


def _account(columns: tuple[object, ...]) -> Account:
    """Raises ValueError for what was not written so."""
    counts = [each for each in columns if type(each) is int and each >= 0]
    if len(counts) < len(columns):
        raise ValueError("an account that does not count")
    return Account(*counts)


def _sound(raws: Iterable[bytes], now: Moment) -> list[Attestation]:
    """Those that have not expired meanwhile."""
    found: list[Attestation] = []
    for raw in raws:
        with contextlib.suppress(BadRecord):
            found.append(open_attestation(raw, now.unix_s))
    return found


def _notes(db: sqlite3.Connection, done: int) -> list[_Note]:
    rows = db.execute(
        "SELECT number, peer_id, what FROM said WHERE number > ? ORDER BY number LIMIT ?",
        (done, MAX_SAID),
    )
    return [_Note(number, parse_peer_id(peer_id), Said(what)) for number, peer_id, what in rows]


def _follow(note: _Note, reputation: Reputation, now: Moment) -> int:
    if note.what is Said.FORGET:
        reputation.forget(note.peer_id)
    else:
        reputation.note(note.peer_id, Experience.WRONG, now)
    return note.number
