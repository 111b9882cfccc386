"""The specs of services, and the slots that this node's worker has, on disk (state/held.py)."""

from __future__ import annotations

import sqlite3
from typing import Final

from formation_p2p.assembly import Peer
from formation_p2p.core.identity import PeerId
from formation_p2p.features.services.core.events import Had, Recalled
from formation_p2p.features.services.core.signed_spec import SignedSpec, read_spec
from formation_p2p.features.services.core.spec import MAX_SERVICES
from formation_p2p.state.held import Feed, count

# Of a service the spec that counts and the one before it. Of these those that end first go.
MAX_SPECS: Final = 2 * MAX_SERVICES
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
_PUT_SPEC: Final = """INSERT INTO specs VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET digest = excluded.digest, raw = excluded.raw,
    expires_unix_s = excluded.expires_unix_s WHERE excluded.digest < digest"""
_BEFORE: Final = """DELETE FROM specs WHERE network = ?1 AND service = ?2 AND version NOT IN (
    SELECT version FROM specs WHERE network = ?1 AND service = ?2 ORDER BY version DESC LIMIT 2)"""
_BOUND_SPECS: Final = """DELETE FROM specs WHERE (network, service, version) IN (
    SELECT network, service, version FROM specs ORDER BY expires_unix_s DESC LIMIT -1 OFFSET ?)"""


class HeldServices:
    """Of the node `own` in a network."""

    tables: Final = (_SPECS, _SLOTS)

    def __init__(self, network_id: bytes, own: PeerId) -> None:
        self._network_id = network_id
        self._own = own
        self._hash = b""  # of the catalog as it was seen last
        self._known: set[bytes] = set()  # digests of specs that are on the disk, or wait
        self._specs: dict[bytes, SignedSpec] = {}  # to be stored
        self._had: tuple[Had, ...] | None = None
        self._slots: tuple[Had, ...] | None = None  # to be stored
        self._refused: tuple[bytes, ...] = ()
        self._rounds = 0

    def begin(self) -> None:
        self._hash, self._had = b"", None

    def read(self, db: sqlite3.Connection) -> Recalled:
        specs = [
            read_spec(bytes(raw))
            for (raw,) in db.execute(
                "SELECT raw FROM specs WHERE network = ? ORDER BY version LIMIT ?",
                (self._network_id, MAX_SPECS),
            )
        ]
        self._known = {each.digest for each in specs}
        slots = db.execute(
            "SELECT service, slot FROM slots WHERE network = ? AND peer_id = ? LIMIT ?",
            (self._network_id, self._own, MAX_SERVICES),
        )
        self._refused = tuple(each.raw for each in specs)
        return Recalled(self._refused, tuple(Had(str(name), count(slot)) for name, slot in slots))

    def gather(self, peer: Peer, feed: Feed) -> None:
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

    @property
    def has_news(self) -> bool:
        return bool(self._specs) or self._slots is not None

    def write(self, db: sqlite3.Connection) -> None:
        for each in self._specs.values():
            spec = each.spec
            kept = each.digest, each.expires_unix_s, each.raw
            db.execute(_PUT_SPEC, (self._network_id, spec.name, spec.version, *kept))
            db.execute(_BEFORE, (self._network_id, spec.name))
        if self._specs:
            db.execute(_BOUND_SPECS, (MAX_SPECS,))
        if self._slots is not None:
            key = self._network_id, self._own
            db.execute("DELETE FROM slots WHERE network = ? AND peer_id = ?", key)
            rows = ((*key, each.service, each.slot) for each in self._slots)
            db.executemany("INSERT INTO slots VALUES (?, ?, ?, ?)", rows)

    def written(self) -> None:
        self._specs.clear()
        self._slots = None
