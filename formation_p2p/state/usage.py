"""What grants have used of this machine, on disk: added up a second behind what is charged.

One file in the home, for all identities that work from there: a worker that takes another one the
next time begins with what was counted before. Two that work at once see of each other what was
there when they started. A worker does not start on a count that is damaged.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from typing import Final

from formation_p2p.core.errors import StateError
from formation_p2p.state.sqlite import STORED_EVERY_S, Schema, WriteBehind, looking, state_errors
from formation_p2p.trust.core.admission import Charged
from formation_p2p.trust.core.hours import HoursReceived, Org
from formation_p2p.trust.core.parameters import TrustParameters
from formation_p2p.trust.core.quota import NOTHING, Quota, QuotaAccount, Used
from formation_p2p.trust.core.shares import MAX_BRANCHES, Account, ShareUsed

log = logging.getLogger(__name__)

# In a node's home.
USAGE: Final = "usage.sqlite"

# The last three columns are the account's quota, as it was when it was charged last.
_TABLE: Final = """CREATE TABLE usage (
    month TEXT NOT NULL, account TEXT NOT NULL,
    cpu_milli_s INTEGER NOT NULL, gpu_milli_s INTEGER NOT NULL,
    cpu_milli_hours INTEGER, gpu_milli_hours INTEGER, leases INTEGER,
    PRIMARY KEY (month, account)) WITHOUT ROWID"""
_USED: Final = attrgetter("cpu_milli_s", "gpu_milli_s")
_QUOTA: Final = attrgetter("cpu_milli_hours", "gpu_milli_hours", "leases")
# What each account has used of the machine, for fair shares, as of its last lease. An account is
# the list of its names, as JSON.
_SHARES: Final = """CREATE TABLE shares (
    account TEXT PRIMARY KEY, used_ms INTEGER NOT NULL, unix_s INTEGER NOT NULL) WITHOUT ROWID"""
# "foru"
# What organisations have given: their names are the federation's and their own, likewise.
_RECEIVED: Final = """CREATE TABLE received (
    account TEXT PRIMARY KEY, used_ms INTEGER NOT NULL, unix_s INTEGER NOT NULL) WITHOUT ROWID"""
SCHEMA: Final = Schema("quota usage", 0x666F7275, ((_TABLE,), (_SHARES,), (_RECEIVED,)))


@dataclass(frozen=True, slots=True)
class UsageParameters:
    # A year to look back on.
    kept_months: int = 13
    # Of one month, at 150 bytes each; of more, those go that have used least.
    max_rows: int = 2 * TrustParameters().max_accounts
    # As many as a worker keeps in mind.
    max_loaded: int = TrustParameters().max_accounts
    # Peers that had a lease, the latest of them.
    max_shares: int = MAX_BRANCHES // 2
    store_every_s: float = STORED_EVERY_S


@dataclass(frozen=True, slots=True)
class AccountUsage:
    """What an account has used in a month, and of how much."""

    account: QuotaAccount
    used: Used


# By month and account: what was used since, and the account's quota.
_Charges = dict[tuple[str, str], tuple[Used, Quota]]
# By table and names: how many milliseconds, and as of when.
_Notes = dict[tuple[str, Account], tuple[int, int]]


class UsageFile(WriteBehind):
    """The file, made where there is none. Raises StateError, which says what to do."""

    def __init__(self, path: Path, parameters: UsageParameters | None = None) -> None:
        self._parameters = parameters or UsageParameters()
        super().__init__(path, SCHEMA, shared=True, every_s=self._parameters.store_every_s)
        self._charged: _Charges = {}  # and not yet gathered
        self._waiting: _Charges = {}  # to be stored
        # The latest of each, by table and names.
        self._noted: _Notes = {}
        self._notes_waiting: _Notes = {}
        with self.database.closed_on_error(), self.database.writing() as db:
            kept = "SELECT DISTINCT month FROM usage ORDER BY month DESC LIMIT ?"
            sql = f"DELETE FROM usage WHERE month NOT IN ({kept})"
            db.execute(sql, (self._parameters.kept_months,))

    def load(self) -> tuple[tuple[str, str, Used], ...]:
        """What a worker begins with, the newest month last: as much as it keeps in mind. The clock
        is not asked which month it is, since it may be set right only later. Where the disk fails
        it begins with nothing, and the log says so."""
        try:
            if not self.store():
                return ()
            with state_errors(self.database.path):
                rows = self.database.connection.execute(
                    "SELECT month, account, cpu_milli_s, gpu_milli_s FROM usage "
                    "ORDER BY month DESC, gpu_milli_s DESC, cpu_milli_s DESC LIMIT ?",
                    (self._parameters.max_loaded,),
                )
                found = tuple((str(month), *_counted(*row)) for month, *row in rows)
                return found[::-1]
        except StateError as error:
            log.error("%s; quotas are counted from nothing until it can be read", error)
            return ()

    def add(self, charged: Charged) -> None:
        """To be stored soon."""
        for account in charged.accounts:
            self._add(self._charged, (charged.month, account.name), charged.used, account.quota)

    def load_shares(self) -> tuple[tuple[Account, int, int], ...]:
        """What each account has used of the machine, and as of when. Where the disk fails it is
        nothing, and the log says so."""
        return self._load("shares")

    def load_received(self) -> tuple[tuple[Org, int, int], ...]:
        """What each organisation has given, likewise."""
        rows = self._load("received")
        return tuple(((x[0], x[1]), used, unix) for x, used, unix in rows if len(x) == 2)

    def _load(self, table: str) -> tuple[tuple[Account, int, int], ...]:
        try:
            with state_errors(self.database.path):
                rows = self.database.connection.execute(
                    f"SELECT account, used_ms, unix_s FROM {table} ORDER BY unix_s DESC LIMIT ?",
                    (self._parameters.max_shares,),
                )
                return tuple(_noted(*row) for row in rows)
        except StateError as error:
            log.error("%s; shares are counted from nothing until it can be read", error)
            return ()

    def share_used(self, told: ShareUsed | HoursReceived) -> None:
        """To be stored soon."""
        if isinstance(told, ShareUsed):
            key, note = ("shares", told.account), (told.used_ms, told.unix_s)
        else:
            key, note = ("received", told.org), (told.core_ms, told.unix_s)
        if key in self._noted or len(self._noted) < self._parameters.max_shares:
            self._noted[key] = note

    def gather(self) -> None:
        self._notes_waiting |= self._noted
        self._noted.clear()
        for key, (used, quota) in self._charged.items():
            self._add(self._waiting, key, used, quota)
        self._charged.clear()

    def write(self) -> None:
        if not self._waiting and not self._notes_waiting:
            return
        with self.database.writing() as db:
            for (table, names), note in self._notes_waiting.items():
                row = json.dumps(names), *note
                db.execute(f"INSERT OR REPLACE INTO {table} VALUES (?, ?, ?)", row)
            for table in {table for table, _ in self._notes_waiting}:
                db.execute(_BOUND_NOTES.format(table=table), (self._parameters.max_shares,))
            charges = ((*key, *_USED(used), *_QUOTA(q)) for key, (used, q) in self._waiting.items())
            db.executemany(_ADD, charges)
            for month in {month for month, _ in self._waiting}:
                db.execute(_BOUND, (month, month, self._parameters.max_rows))
        self._waiting.clear()
        self._notes_waiting.clear()

    def _add(self, counted: _Charges, key: tuple[str, str], used: Used, quota: Quota) -> None:
        if key in counted or len(counted) < self._parameters.max_rows:
            known, _ = counted.get(key, (NOTHING, quota))
            counted[key] = (known + used, quota)


_ADD: Final = """
    INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO UPDATE SET
        cpu_milli_s = cpu_milli_s + excluded.cpu_milli_s,
        gpu_milli_s = gpu_milli_s + excluded.gpu_milli_s,
        cpu_milli_hours = excluded.cpu_milli_hours,
        gpu_milli_hours = excluded.gpu_milli_hours,
        leases = excluded.leases"""
_BOUND: Final = """
    DELETE FROM usage WHERE month = ? AND account IN (
        SELECT account FROM usage WHERE month = ?
        ORDER BY gpu_milli_s DESC, cpu_milli_s DESC LIMIT -1 OFFSET ?)"""
_BOUND_NOTES: Final = """
    DELETE FROM {table} WHERE account IN (
        SELECT account FROM {table} ORDER BY unix_s DESC LIMIT -1 OFFSET ?)"""


def peek(path: Path, month: str) -> tuple[AccountUsage, ...]:
    """What was used in a month, whether or not a node uses the file; the most first. Raises
    StateError."""
    with looking(path, SCHEMA) as db:
        rows = db.execute(
            "SELECT account, cpu_milli_s, gpu_milli_s, cpu_milli_hours, gpu_milli_hours, leases "
            "FROM usage WHERE month = ? ORDER BY cpu_milli_s DESC, gpu_milli_s DESC, account",
            (month,),
        )
        counted = ((*_counted(*row[:3]), Quota(*row[3:])) for row in rows)
        return tuple(AccountUsage(QuotaAccount(name, q), used) for name, used, q in counted)


def _noted(account: object, used_ms: object, unix_s: object) -> tuple[Account, int, int]:
    """Raises ValueError for what was not written so."""
    names = json.loads(account) if isinstance(account, str) else None
    match names, used_ms, unix_s:
        case list(), int(used), int(unix) if all(isinstance(x, str) for x in names) and used >= 0:
            return tuple(names), used, unix
        case _:
            raise ValueError("a share that does not count")


def _counted(name: object, cpu_milli_s: object, gpu_milli_s: object) -> tuple[str, Used]:
    """Of one account. Raises ValueError for what was not written so: SQLite keeps any value in any
    column."""
    match name, cpu_milli_s, gpu_milli_s:
        case str(), int(cpu), int(gpu) if min(cpu, gpu) >= 0:
            return name, Used(cpu, gpu)
        case _:
            raise ValueError("an account that does not count")
