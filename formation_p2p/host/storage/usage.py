"""What grants have used of this machine, on disk: added up a second behind what is charged.

One SQLite file in the home, for whichever identity works from there: a worker that takes another
one the next time begins with what was counted before. Two that work at once see of each other what
was there when they started.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from formation_p2p.core.errors import StateError
from formation_p2p.core.trust.admission import MAX_ACCOUNTS, Charged
from formation_p2p.core.trust.quota import NOTHING, Quota, QuotaAccount, Used
from formation_p2p.host.storage.sqlite import (
    Migration,
    StateFile,
    check_mode,
    check_sound,
    reading,
    state_errors,
    transaction,
)
from formation_p2p.host.storage.write_behind import WriteBehind

log = logging.getLogger(__name__)

# "foru"
APPLICATION_ID: Final = 0x666F7275
# In a node's home.
USAGE: Final = "usage.sqlite"
# A year to look back on.
KEPT_MONTHS: Final = 13
# Of one month, at 150 bytes each; of more, those go that have used least.
MAX_ROWS: Final = 2 * MAX_ACCOUNTS
# Another node of this home has the file for a moment when it starts.
_TRIES: Final = 20
_TRY_S: Final = 0.05


def _first(db: sqlite3.Connection) -> None:
    """The last three columns are the account's quota, as it was when it was charged last."""
    db.execute(
        """CREATE TABLE usage (
            month TEXT NOT NULL,
            account TEXT NOT NULL,
            cpu_milli_s INTEGER NOT NULL,
            gpu_milli_s INTEGER NOT NULL,
            cpu_milli_hours INTEGER,
            gpu_milli_hours INTEGER,
            leases INTEGER,
            PRIMARY KEY (month, account)) WITHOUT ROWID"""
    )


class _File(StateFile):
    application_id = APPLICATION_ID

    @property
    def migrations(self) -> tuple[Migration, ...]:
        return (_first,)


@dataclass(frozen=True, slots=True)
class AccountUsage:
    """What an account has used in a month, and of how much."""

    account: QuotaAccount
    used: Used


# By month and account: what was used since, and the account's quota.
_Charges = dict[tuple[str, str], tuple[Used, Quota]]


class UsageFile:
    """The file, made where there is none. Raises StateError, which says what to do."""

    def __init__(self, path: Path) -> None:
        file = _opened(path)
        self._path = file.path
        self._charged: _Charges = {}  # and not yet gathered
        self._waiting: _Charges = {}  # to be stored
        self._behind = WriteBehind(self._path, "what grants use", self._gather, self._store)
        try:
            with state_errors(self._path):
                self._db = file.connect()
                with transaction(self._db):
                    self._db.execute(
                        "DELETE FROM usage WHERE month NOT IN "
                        "(SELECT DISTINCT month FROM usage ORDER BY month DESC LIMIT ?)",
                        (KEPT_MONTHS,),
                    )
        finally:
            file.close()  # and another node of this home may have it too

    def load(self) -> tuple[tuple[str, str, Used], ...]:
        """What a worker begins with, the newest month last: as much as it keeps in mind. The clock
        is not asked which month it is, since it may be set right only later. Where the disk fails
        it begins with nothing, and the log says so."""
        try:
            if not self._behind.store():
                return ()
            with state_errors(self._path):
                rows = self._db.execute(
                    "SELECT month, account, cpu_milli_s, gpu_milli_s FROM usage "
                    "ORDER BY month DESC, gpu_milli_s DESC, cpu_milli_s DESC LIMIT ?",
                    (MAX_ACCOUNTS,),
                )
                found = tuple((str(month), *_counted(*row)) for month, *row in rows)
                return found[::-1]
        except StateError as error:
            log.error("%s; quotas are counted from nothing until it can be read", error)
            return ()

    def add(self, charged: Charged) -> None:
        """To be stored soon."""
        for account in charged.accounts:
            _add(self._charged, (charged.month, account.name), charged.used, account.quota)

    async def keep(self) -> None:
        """On the node's thread, for as long as it runs."""
        await self._behind.keep()

    def close(self) -> None:
        """Once the node's thread has ended. What cannot be stored is lost, and logged."""
        self._behind.store()
        with contextlib.suppress(sqlite3.Error):
            self._db.close()

    def _gather(self) -> None:
        for key, (used, quota) in self._charged.items():
            _add(self._waiting, key, used, quota)
        self._charged.clear()

    def _store(self) -> None:
        if not self._waiting:
            return
        with transaction(self._db):
            self._db.executemany(_ADD, [_row(key, each) for key, each in self._waiting.items()])
            for month in {month for month, _ in self._waiting}:
                self._db.execute(_BOUND, (month, month, MAX_ROWS))
        self._waiting.clear()


def _add(counted: _Charges, key: tuple[str, str], used: Used, quota: Quota) -> None:
    if key in counted or len(counted) < MAX_ROWS:
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


def peek(path: Path, month: str) -> tuple[AccountUsage, ...]:
    """What was used in a month, whether or not a node uses the file; the most first. Raises
    StateError."""
    check_mode(path)
    with reading(path) as db:
        check_sound(db, path, APPLICATION_ID)
        rows = db.execute(
            "SELECT account, cpu_milli_s, gpu_milli_s, cpu_milli_hours, gpu_milli_hours, leases "
            "FROM usage WHERE month = ? ORDER BY cpu_milli_s DESC, gpu_milli_s DESC, account",
            (month,),
        )
        counted = ((_counted(*row[:3]), Quota(*row[3:])) for row in rows)
        return tuple(
            AccountUsage(QuotaAccount(name, quota), used) for (name, used), quota in counted
        )


def _counted(name: object, cpu_milli_s: object, gpu_milli_s: object) -> tuple[str, Used]:
    """Of one account. Raises ValueError for what was not written so: SQLite keeps any value in any
    column."""
    match name, cpu_milli_s, gpu_milli_s:
        case str(), int(cpu), int(gpu) if min(cpu, gpu) >= 0:
            return name, Used(cpu, gpu)
        case _:
            raise ValueError("an account that does not count")


def _row(key: tuple[str, str], each: tuple[Used, Quota]) -> tuple[str | int | None, ...]:
    used, quota = each
    limits = (quota.cpu_milli_hours, quota.gpu_milli_hours, quota.leases)
    return (*key, used.cpu_milli_s, used.gpu_milli_s, *limits)


def _opened(path: Path) -> _File:
    for _ in range(_TRIES):
        with contextlib.suppress(StateError):
            return _File(path)
        time.sleep(_TRY_S)
    return _File(path)
