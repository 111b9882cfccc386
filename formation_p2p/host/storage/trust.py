"""What a node has learnt of others, on disk: loaded when it starts, stored a second behind it.

The file is SQLite, as a scheduler's state is (sqlite.py), and belongs to one identity of a
home.

Other programs of the same user read it, and leave in it what a person says of a peer; the node
takes that up within two seconds, or when it starts. What they leave counts once: the node deletes
it in the transaction that stores what came of it.
"""

from __future__ import annotations

import contextlib
import sqlite3
from dataclasses import fields
from enum import StrEnum
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from formation_p2p.core.effects import Moment
from formation_p2p.core.errors import BadRecord, StateError
from formation_p2p.core.identity import PeerId, parse_peer_id
from formation_p2p.core.trust.attestation import Attestation, open_attestation
from formation_p2p.core.trust.experience import Experience, PeerHistory
from formation_p2p.core.trust.reputation import MAX_PEERS, MAX_VOICES, Reputation
from formation_p2p.host.clock import moment
from formation_p2p.host.storage.sqlite import (
    Migration,
    StateFile,
    check_mode,
    check_sound,
    connect,
    reading,
    state_errors,
    transaction,
)
from formation_p2p.host.storage.write_behind import WriteBehind

# "fort"
APPLICATION_ID: Final = 0x666F7274
# What people say of peers, before a node has heard of it.
MAX_SAID: Final = 1_000

_FIELDS: Final = attrgetter(*(field.name for field in fields(PeerHistory)))


def _first(db: sqlite3.Connection) -> None:
    """The columns of accounts are the fields of Account (core/trust/experience.py)."""
    db.execute(
        """CREATE TABLE accounts (
            peer_id TEXT PRIMARY KEY,
            good INTEGER NOT NULL,
            bad INTEGER NOT NULL,
            began_unix_s INTEGER NOT NULL,
            seen_unix_s INTEGER NOT NULL,
            other_good INTEGER NOT NULL,
            other_bad INTEGER NOT NULL,
            other_unix_s INTEGER NOT NULL,
            successes INTEGER NOT NULL,
            errors INTEGER NOT NULL,
            lost INTEGER NOT NULL,
            wrong INTEGER NOT NULL,
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
        self._accounts: dict[PeerId, PeerHistory | None] = {}  # to be stored
        self._attestations: dict[PeerId, bytes | None] = {}
        self._notes: list[_Note] = []  # to be followed
        self._behind = WriteBehind(
            self._file.path, "what was learnt of others", self._gather, self._exchange
        )
        try:
            with state_errors(self._file.path):
                self._db = self._file.connect()
                loaded = _load(self._db, own, moment())
                self.reputation, self._done = loaded.reputation, loaded.done
                self._attestations.update(dict.fromkeys(loaded.stale))
                self._deleted = 0  # of the notes up to here
        except BaseException:
            self._file.close()
            raise

    async def keep(self) -> None:
        """On the node's thread, for as long as it runs."""
        await self._behind.keep()

    def close(self) -> None:
        """Once the node's thread has ended. What cannot be stored is lost, and logged."""
        self._behind.store()
        with contextlib.suppress(sqlite3.Error):
            self._db.close()
        self._file.close()

    def _gather(self) -> None:
        notes, self._notes = self._notes, []  # which are read again where one fails
        for note in notes:
            self._done = _follow(note, self.reputation, moment())
        changes = self.reputation.take()
        self._accounts.update(changes.accounts)
        self._attestations.update(changes.attestations)

    def _exchange(self) -> None:
        """Store what has gathered; read what people have said meanwhile."""
        if self._accounts or self._attestations or self._done > self._deleted:
            with transaction(self._db):
                self._store(self._db)
            self._accounts.clear()
            self._attestations.clear()
            self._deleted = self._done
        self._notes = _notes(self._db, self._done)

    def _store(self, db: sqlite3.Connection) -> None:
        accounts = self._accounts.items()
        gone = [(peer_id,) for peer_id, account in accounts if account is None]
        db.executemany("DELETE FROM accounts WHERE peer_id = ?", gone)
        db.executemany(
            "REPLACE INTO accounts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
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
        return _load(db, own, moment()).reputation


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


class _Loaded(NamedTuple):
    """`done` is the number of the last note that was taken up; of the `stale` authors what they
    said does not hold any more."""

    reputation: Reputation
    done: int
    stale: tuple[PeerId, ...]


def _load(db: sqlite3.Connection, own: PeerId, now: Moment) -> _Loaded:
    rows = db.execute("SELECT * FROM accounts LIMIT ?", (MAX_PEERS,))
    accounts = [(parse_peer_id(row[0]), _account(row[1:])) for row in rows]
    said, stale = _sound(db, now)
    reputation = Reputation(own, accounts, said)
    done = 0
    for note in _notes(db, done):
        done = _follow(note, reputation, now)
    return _Loaded(reputation, done, stale)


def _account(columns: tuple[object, ...]) -> PeerHistory:
    """Raises ValueError for what was not written so."""
    counts = [each for each in columns if type(each) is int and each >= 0]
    if len(counts) < len(columns):
        raise ValueError("an account that does not count")
    return PeerHistory(*counts)


def _sound(db: sqlite3.Connection, now: Moment) -> tuple[list[Attestation], tuple[PeerId, ...]]:
    """Those that have not expired meanwhile, and the authors of the rest."""
    found: list[Attestation] = []
    stale: list[PeerId] = []
    for author, raw in db.execute("SELECT * FROM attestations LIMIT ?", (MAX_VOICES,)):
        try:
            found.append(open_attestation(raw, now.unix_s))
        except BadRecord:
            stale.append(author)
    return found, tuple(stale)


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
