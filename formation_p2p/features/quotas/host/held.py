"""The quota accounts that a node keeps for others, on disk (state/held.py)."""

from __future__ import annotations

import sqlite3
from typing import Final

from formation_p2p.assembly import Peer
from formation_p2p.core.identity import parse_peer_id
from formation_p2p.features.quotas.core.messages import SliceRow
from formation_p2p.features.quotas.core.quota_account import SavedAccount
from formation_p2p.features.quotas.core.quota_parameters import EscrowParameters
from formation_p2p.features.quotas.core.quotas import AccountsRecalled
from formation_p2p.state.held import Feed, count
from formation_p2p.trust.core.quota import Used

# As many as a holder has in mind.
MAX_ROWS: Final = EscrowParameters().max_rows
# This one and, for clocks that are off, the one beside it.
MONTHS: Final = 2

_QUOTAS: Final = """CREATE TABLE quotas (
    network BLOB NOT NULL, month TEXT NOT NULL, account TEXT NOT NULL, invitation TEXT NOT NULL,
    worker TEXT NOT NULL, sequence INTEGER NOT NULL,
    cpu_milli_s INTEGER NOT NULL, gpu_milli_s INTEGER NOT NULL,
    PRIMARY KEY (network, month, account, worker)) WITHOUT ROWID"""
_PUT_ROW: Final = """INSERT INTO quotas VALUES (?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT DO UPDATE SET sequence = excluded.sequence,
    cpu_milli_s = excluded.cpu_milli_s, gpu_milli_s = excluded.gpu_milli_s
    WHERE excluded.sequence > sequence"""
_BOUND_MONTHS: Final = """DELETE FROM quotas WHERE month NOT IN (
    SELECT DISTINCT month FROM quotas ORDER BY month DESC LIMIT ?)"""
_BOUND_ROWS: Final = """DELETE FROM quotas WHERE (network, month, account, worker) IN (
    SELECT network, month, account, worker FROM quotas ORDER BY sequence DESC LIMIT -1 OFFSET ?)"""


class HeldAccounts:
    """Of a node in a network."""

    tables: Final = (_QUOTAS,)

    def __init__(self, network_id: bytes) -> None:
        self._network_id = network_id
        self._accounts: list[SavedAccount] = []  # to be stored

    def begin(self) -> None:
        """What another peer has not kept yet is on the disk."""

    def read(self, db: sqlite3.Connection) -> AccountsRecalled | None:
        accounts: dict[tuple[str, str, str], list[SliceRow]] = {}
        for month, account, invitation, worker, sequence, cpu, gpu in db.execute(
            "SELECT month, account, invitation, worker, sequence, cpu_milli_s, gpu_milli_s"
            " FROM quotas WHERE network = ? LIMIT ?",
            (self._network_id, MAX_ROWS),
        ):
            row = SliceRow(parse_peer_id(worker), count(sequence), Used(count(cpu), count(gpu)))
            accounts.setdefault((account, month, invitation), []).append(row)
        kept = tuple(SavedAccount(*key, tuple(rows)) for key, rows in accounts.items())
        return AccountsRecalled(kept) if kept else None

    def gather(self, peer: Peer, feed: Feed) -> None:
        self._accounts += peer.quotas.holder.unsaved()

    @property
    def has_news(self) -> bool:
        return bool(self._accounts)

    def write(self, db: sqlite3.Connection) -> None:
        for saved in self._accounts:
            of = self._network_id, saved.month, saved.account, saved.invitation
            db.executemany(_PUT_ROW, ((*of, *_columns(row)) for row in saved.rows))
        db.execute(_BOUND_MONTHS, (MONTHS,))
        db.execute(_BOUND_ROWS, (MAX_ROWS,))

    def written(self) -> None:
        self._accounts.clear()


def _columns(row: SliceRow) -> tuple[str, int, int, int]:
    return row.worker, row.sequence, row.used.cpu_milli_s, row.used.gpu_milli_s
