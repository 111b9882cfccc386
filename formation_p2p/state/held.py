"""What a node keeps for its network, on disk: the specs of services, the slots that its worker has,
the quota accounts that it keeps for others.

In memory it lives as long as some peer that has it is up; in a house all machines go down together.
One file in the home, for all nodes that run from there, stored a second behind; `stored` waits
until what is known now is on the disk. A row only ever gives way to a newer one, so that nodes of
one home, and older copies of it, take nothing back.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Final

from formation_p2p.assembly import Peer
from formation_p2p.core.identity import PeerId, parse_peer_id
from formation_p2p.features.quotas.core.messages import SliceRow
from formation_p2p.features.quotas.core.quota_account import SavedAccount
from formation_p2p.features.quotas.core.quota_parameters import EscrowParameters
from formation_p2p.features.quotas.core.quotas import AccountsRecalled
from formation_p2p.features.services.core.events import Had, Recalled
from formation_p2p.features.services.core.signed_spec import SignedSpec, read_spec
from formation_p2p.features.services.core.spec import MAX_SERVICES
from formation_p2p.state.sqlite import STORED_EVERY_S, Schema, WriteBehind, state_errors
from formation_p2p.trust.core.quota import Used

Feed = Callable[[Recalled | AccountsRecalled], None]

# In a node's home.
HELD: Final = "held.sqlite"

# Of a service the spec that counts and the one before it. Of these those that end first go.
MAX_SPECS: Final = 2 * MAX_SERVICES
# As many as a holder has in mind.
MAX_ROWS: Final = EscrowParameters().max_rows
# This one and, for clocks that are off, the one beside it.
MONTHS: Final = 2
# A spec that is refused for the time is offered to the peer again so often, until the clock is set.
AGAIN_ROUNDS: Final = 30

_SPECS: Final = """CREATE TABLE specs (
    network BLOB NOT NULL, service TEXT NOT NULL, version INTEGER NOT NULL,
    digest BLOB NOT NULL, expires_unix_s INTEGER NOT NULL, raw BLOB NOT NULL,
    PRIMARY KEY (network, service, version)) WITHOUT ROWID"""
_SLOTS: Final = """CREATE TABLE slots (
    network BLOB NOT NULL, peer_id TEXT NOT NULL, service TEXT NOT NULL,
    slot INTEGER NOT NULL,
    PRIMARY KEY (network, peer_id, service)) WITHOUT ROWID"""
_QUOTAS: Final = """CREATE TABLE quotas (
    network BLOB NOT NULL, month TEXT NOT NULL, account TEXT NOT NULL, invitation TEXT NOT NULL,
    worker TEXT NOT NULL, sequence INTEGER NOT NULL,
    cpu_milli_s INTEGER NOT NULL, gpu_milli_s INTEGER NOT NULL,
    PRIMARY KEY (network, month, account, worker)) WITHOUT ROWID"""
# "forh"
SCHEMA: Final = Schema("what a node holds", 0x666F7268, ((_SPECS, _SLOTS, _QUOTAS),))

_PUT_SPEC: Final = """INSERT INTO specs VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET digest = excluded.digest, raw = excluded.raw,
    expires_unix_s = excluded.expires_unix_s WHERE excluded.digest < digest"""
_BEFORE: Final = """DELETE FROM specs WHERE network = ?1 AND service = ?2 AND version NOT IN (
    SELECT version FROM specs WHERE network = ?1 AND service = ?2 ORDER BY version DESC LIMIT 2)"""
_BOUND_SPECS: Final = """DELETE FROM specs WHERE (network, service, version) IN (
    SELECT network, service, version FROM specs ORDER BY expires_unix_s DESC LIMIT -1 OFFSET ?)"""
_PUT_ROW: Final = """INSERT INTO quotas VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET sequence = excluded.sequence,
    cpu_milli_s = excluded.cpu_milli_s, gpu_milli_s = excluded.gpu_milli_s
    WHERE excluded.sequence > sequence"""
_BOUND_MONTHS: Final = """DELETE FROM quotas WHERE month NOT IN (
    SELECT DISTINCT month FROM quotas ORDER BY month DESC LIMIT ?)"""
_BOUND_ROWS: Final = """DELETE FROM quotas WHERE (network, month, account, worker) IN (
    SELECT network, month, account, worker FROM quotas ORDER BY sequence DESC LIMIT -1 OFFSET ?)"""


class HeldFile(WriteBehind):
    """Of the node `own` in a network. Raises StateError, which names the file and says what to
    do."""

    def __init__(
        self, path: Path, network_id: bytes, own: PeerId, *, every_s: float = STORED_EVERY_S
    ) -> None:
        super().__init__(path, SCHEMA, shared=True, every_s=every_s)
        self._network_id = network_id
        self._own = own
        self._of: tuple[Peer, Feed] | None = None
        self._hash = b""  # of the catalog as it was seen last
        self._known: set[bytes] = set()  # digests of specs that are on the disk, or wait
        self._specs: dict[bytes, SignedSpec] = {}  # to be stored
        self._had: tuple[Had, ...] | None = None
        self._slots: tuple[Had, ...] | None = None  # to be stored
        self._accounts: list[SavedAccount] = []  # likewise
        self._refused: tuple[bytes, ...] = ()
        self._rounds = 0
        with self.database.closed_on_error(), state_errors(self.database.path):
            self._read()

    def begin(self, peer: Peer, feed: Feed) -> None:
        """A peer has begun: it is told what the disk has."""
        self.store()
        self._of, self._hash, self._had = (peer, feed), b"", None
        with state_errors(self.database.path):
            recalled, accounts = self._read()
        self._refused = recalled.specs
        feed(recalled)
        if accounts.accounts:
            feed(accounts)

    async def watch(self, peer: Peer, feed: Feed) -> None:
        """Until cancelled."""
        self.begin(peer, feed)
        await self.keep()

    def _read(self) -> tuple[Recalled, AccountsRecalled]:
        db, network = self.database.connection, self._network_id
        specs = [
            read_spec(bytes(raw))
            for (raw,) in db.execute(
                "SELECT raw FROM specs WHERE network = ? ORDER BY version LIMIT ?",
                (network, MAX_SPECS),
            )
        ]
        self._known = {each.digest for each in specs}
        slots = db.execute(
            "SELECT service, slot FROM slots WHERE network = ? AND peer_id = ? LIMIT ?",
            (network, self._own, MAX_SERVICES),
        )
        accounts: dict[tuple[str, str, str], list[SliceRow]] = {}
        for month, account, invitation, worker, sequence, cpu, gpu in db.execute(
            "SELECT month, account, invitation, worker, sequence, cpu_milli_s, gpu_milli_s"
            " FROM quotas WHERE network = ? LIMIT ?",
            (network, MAX_ROWS),
        ):
            row = SliceRow(parse_peer_id(worker), _count(sequence), Used(_count(cpu), _count(gpu)))
            accounts.setdefault((account, month, invitation), []).append(row)
        of_services = Recalled(
            tuple(each.raw for each in specs),
            tuple(Had(str(name), _count(slot)) for name, slot in slots),
        )
        kept = (SavedAccount(*key, tuple(rows)) for key, rows in accounts.items())
        return of_services, AccountsRecalled(tuple(kept))

    def gather(self) -> None:
        if self._of is None:
            return
        peer, feed = self._of
        self._rounds += 1
        if self._refused and self._rounds % AGAIN_ROUNDS == 0:
            feed(Recalled(self._refused))
        catalog = peer.services.catalog
        if catalog.hash != self._hash:
            self._hash = catalog.hash
            now = [*catalog.previous.values(), *catalog.specs.values()]
            self._refused = tuple(
                raw for raw in self._refused if read_spec(raw).spec.name not in catalog.specs
            )
            self._specs |= {each.digest: each for each in now if each.digest not in self._known}
            self._known = {each.digest for each in now}
        had = peer.services.had
        if had != self._had:
            self._had = self._slots = had
        self._accounts += peer.quotas.holder.unsaved()

    def write(self) -> None:
        if not self._specs and self._slots is None and not self._accounts:
            return
        with self.database.writing() as db:
            self._write_specs(db)
            if self._slots is not None:
                key = self._network_id, self._own
                db.execute("DELETE FROM slots WHERE network = ? AND peer_id = ?", key)
                rows = ((*key, each.service, each.slot) for each in self._slots)
                db.executemany("INSERT INTO slots VALUES (?, ?, ?, ?)", rows)
            for saved in self._accounts:
                of = self._network_id, saved.month, saved.account, saved.invitation
                db.executemany(_PUT_ROW, ((*of, *_columns(row)) for row in saved.rows))
            if self._accounts:
                db.execute(_BOUND_MONTHS, (MONTHS,))
                db.execute(_BOUND_ROWS, (MAX_ROWS,))
        self._specs.clear()
        self._slots = None
        self._accounts.clear()

    def _write_specs(self, db: sqlite3.Connection) -> None:
        for each in self._specs.values():
            spec = each.spec
            kept = each.digest, each.expires_unix_s, each.raw
            db.execute(_PUT_SPEC, (self._network_id, spec.name, spec.version, *kept))
            db.execute(_BEFORE, (self._network_id, spec.name))
        if self._specs:
            db.execute(_BOUND_SPECS, (MAX_SPECS,))


def _columns(row: SliceRow) -> tuple[str, int, int, int]:
    return row.worker, row.sequence, row.used.cpu_milli_s, row.used.gpu_milli_s


def _count(value: object) -> int:
    """Raises ValueError for what was not written so: SQLite keeps any value in any column."""
    if type(value) is not int or value < 0:
        raise ValueError("a number that does not count")
    return value
