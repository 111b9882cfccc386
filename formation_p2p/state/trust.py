"""The histories of peers on disk: loaded when a node starts, stored a second behind it.

The file belongs to one identity of a home, and one process uses it. A node does not start on one
that is damaged.

Other programs of the same user read it, and leave notes in it of what a person says of a peer. The
node takes a note up within two seconds, or when it starts, and deletes it in the transaction that
stores what came of it: so a note counts once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import fields
from enum import StrEnum
from operator import attrgetter
from pathlib import Path
from typing import Final, NamedTuple

from formation_p2p.core.effects import Moment
from formation_p2p.core.errors import BadRecord, StateError
from formation_p2p.core.identity import PeerId, parse_peer_id
from formation_p2p.machine.clock import moment
from formation_p2p.state.sqlite import (
    STORED_EVERY_S,
    Schema,
    WriteBehind,
    changing,
    looking,
    state_errors,
)
from formation_p2p.trust.core.attestation import Attestation, open_attestation
from formation_p2p.trust.core.experience import Experience, PeerHistory
from formation_p2p.trust.core.parameters import TrustParameters
from formation_p2p.trust.core.reputation import Reputation

# What people say of peers, before a node has heard of it.
MAX_NOTES: Final = 1_000

_FIELDS: Final = [field.name for field in fields(PeerHistory)]
# Later releases have added the others, each as the last column.
_ADDED: Final = ("agreed",)
_FIRST: Final = _FIELDS[: -len(_ADDED)]
_COLUMNS: Final = ", ".join(f"{name} INTEGER NOT NULL" for name in _FIRST)
_TABLES: Final = (
    f"CREATE TABLE accounts (peer_id TEXT PRIMARY KEY, {_COLUMNS}) WITHOUT ROWID",
    "CREATE TABLE attestations (author TEXT PRIMARY KEY, attestation BLOB NOT NULL) WITHOUT ROWID",
    "CREATE TABLE said (number INTEGER PRIMARY KEY AUTOINCREMENT,"
    " peer_id TEXT NOT NULL, what TEXT NOT NULL)",
)
# "fort"
_AGREED: Final = ("ALTER TABLE accounts ADD COLUMN agreed INTEGER NOT NULL DEFAULT 0",)
SCHEMA: Final = Schema("peer histories", 0x666F7274, (_TABLES, _AGREED))
_ROW: Final = attrgetter(*_FIELDS)


class Verdict(StrEnum):
    """What a person says of a peer."""

    WRONG = "wrong"  # its result was false
    FORGET = "forget"


class _Note(NamedTuple):
    number: int
    peer_id: PeerId
    what: Verdict


class TrustFile(WriteBehind):
    """A node's `reputation`, and the file that keeps it. Raises StateError, which names the file
    and says what to do."""

    def __init__(self, path: Path, own: PeerId, *, every_s: float = STORED_EVERY_S) -> None:
        super().__init__(path, SCHEMA, every_s=every_s)
        self._histories: dict[PeerId, PeerHistory | None] = {}  # to be stored
        self._attestations: dict[PeerId, bytes | None] = {}
        self._notes: list[_Note] = []  # to be followed
        self._deleted = 0  # of the notes up to here
        with self.database.closed_on_error(), state_errors(self.database.path):
            self.reputation, self._done, stale = _load(self.database.connection, own, moment())
        self._attestations.update(dict.fromkeys(stale))

    def gather(self) -> None:
        notes, self._notes = self._notes, []  # which are read again where one fails
        for note in notes:
            self._done = _follow(note, self.reputation, moment())
        changes = self.reputation.take()
        self._histories.update(changes.accounts)
        self._attestations.update(changes.attestations)

    def write(self) -> None:
        """Store what has gathered; read the notes that people have left meanwhile."""
        if self._histories or self._attestations or self._done > self._deleted:
            with self.database.writing() as db:
                self._store(db)
            self._histories.clear()
            self._attestations.clear()
            self._deleted = self._done
        self._notes = _notes(self.database.connection, self._done)

    def _store(self, db: sqlite3.Connection) -> None:
        db.executemany("DELETE FROM accounts WHERE peer_id = ?", _gone(self._histories))
        db.executemany(
            f"REPLACE INTO accounts VALUES (?{', ?' * len(_FIELDS)})",
            [(peer_id, *_ROW(each)) for peer_id, each in self._histories.items() if each],
        )
        db.executemany("DELETE FROM attestations WHERE author = ?", _gone(self._attestations))
        db.executemany(
            "REPLACE INTO attestations VALUES (?, ?)",
            [(author, raw) for author, raw in self._attestations.items() if raw is not None],
        )
        db.execute("DELETE FROM said WHERE number <= ?", (self._done,))


def _gone(changed: Mapping[PeerId, object]) -> list[tuple[PeerId]]:
    return [(peer_id,) for peer_id, value in changed.items() if value is None]


def peek(path: Path, own: PeerId) -> Reputation:
    """As a node has it, or would have it if it started now; the file is left as it is. Raises
    StateError."""
    with looking(path, SCHEMA) as db:
        return _load(db, own, moment())[0]


def leave_note(path: Path, peer_id: PeerId, what: Verdict, *, at_most: int = MAX_NOTES) -> None:
    """For the node whose file this is. Raises StateError."""
    with changing(path, SCHEMA) as db:
        (count,) = db.execute("SELECT count(*) FROM said").fetchone()
        if count >= at_most:
            problem = f"{path} holds {count} notes already"
            raise StateError(f"{problem}; start the node, which reads them")
        db.execute("INSERT INTO said (peer_id, what) VALUES (?, ?)", (peer_id, what.value))


def _load(
    db: sqlite3.Connection, own: PeerId, now: Moment
) -> tuple[Reputation, int, tuple[PeerId, ...]]:
    """Also the number of the last note that was applied, and the authors of expired
    attestations."""
    rows = db.execute("SELECT * FROM accounts LIMIT ?", (TrustParameters().max_peers,))
    accounts = [(parse_peer_id(row[0]), _account(row[1:])) for row in rows]
    said, stale = _sound(db, now)
    reputation = Reputation(own, accounts, said)
    done = 0
    for note in _notes(db, done):
        done = _follow(note, reputation, now)
    return reputation, done, stale


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
    most = TrustParameters().max_voices
    for author, raw in db.execute("SELECT * FROM attestations LIMIT ?", (most,)):
        try:
            found.append(open_attestation(raw, now.unix_s))
        except BadRecord:
            stale.append(author)
    return found, tuple(stale)


def _notes(db: sqlite3.Connection, done: int) -> list[_Note]:
    rows = db.execute(
        "SELECT number, peer_id, what FROM said WHERE number > ? ORDER BY number LIMIT ?",
        (done, MAX_NOTES),
    )
    return [_Note(number, parse_peer_id(peer_id), Verdict(what)) for number, peer_id, what in rows]


def _follow(note: _Note, reputation: Reputation, now: Moment) -> int:
    if note.what is Verdict.FORGET:
        reputation.forget(note.peer_id)
    else:
        reputation.note(note.peer_id, Experience.WRONG, now)
    return note.number
