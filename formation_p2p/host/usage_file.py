"""What grants have used of this machine, on disk: added up a second behind what is charged.

One SQLite file in the home, for whichever identity works from there: a worker that takes another
one the next time begins with what was counted before. Two that work at once see of each other what
was there when they started. What is lost with a node that is killed is its last second.
"""

from __future__ import annotations

import contextlib
import logging
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import trio

from formation_p2p.errors import StateError
from formation_p2p.host.state_file import (
    Migration,
    StateFile,
    check_mode,
    check_sound,
    reading,
    state_errors,
    transaction,
)
from formation_p2p.trust.quota import NOTHING, Account, Quota, Used
from formation_p2p.trust.warden import MAX_ACCOUNTS, MAX_MONTHS, Charged

log = logging.getLogger(__name__)

# "foru"
APPLICATION_ID: Final = 0x666F7275
# In a node's home.
USAGE: Final = "usage.sqlite"
STORED_EVERY_S: Final = 1.0
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
class Usage:
    """What an account has used in a month, and of how much."""

    account: Account
    used: Used


# By month and account: what was used since it was stored last, and the account's quota.
_Waiting = dict[tuple[str, str], tuple[Used, Quota]]


class UsageFile:
    """The file, made where there is none. Raises StateError, which says what to do."""

    def __init__(self, path: Path) -> None:
        file = _opened(path)
        self._path = file.path
        self._waiting: _Waiting = {}
        self._failing = False
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
        """What a worker begins with: all that was charged in the newest months. Where the disk
        fails it begins with nothing, and the log says so."""
        try:
            if not self._store_waiting():
                return ()
            with state_errors(self._path):
                rows = self._db.execute(
                    "SELECT month, account, cpu_milli_s, gpu_milli_s FROM usage WHERE month IN "
                    "(SELECT DISTINCT month FROM usage ORDER BY month DESC LIMIT ?)",
                    (MAX_MONTHS,),
                )
                return tuple((str(month), *_counted(*row)) for month, *row in rows)
        except StateError as error:
            log.error("%s; quotas are counted from nothing until it can be read", error)
            return ()

    def add(self, charged: Charged) -> None:
        """To be stored soon."""
        for account in charged.accounts:
            key = (charged.month, account.name)
            known, _ = self._waiting.get(key, (NOTHING, account.quota))
            if key in self._waiting or len(self._waiting) < MAX_ROWS:
                self._waiting[key] = (known + charged.used, account.quota)

    async def keep(self) -> None:
        """On the node's thread, for as long as it runs."""
        while True:
            await trio.sleep(STORED_EVERY_S)
            waiting, stored = self._take(), False
            try:
                stored = await trio.to_thread.run_sync(self._store, waiting)
            except Exception:
                # A fault of ours must not end the node.
                log.exception("what grants use is not stored; please report this")
            finally:
                if not stored:
                    self._put_back(waiting)

    def close(self) -> None:
        """Once the node's thread has ended. What cannot be stored is lost, and logged."""
        self._store_waiting()
        with contextlib.suppress(sqlite3.Error):
            self._db.close()

    def _store_waiting(self) -> bool:
        waiting = self._take()
        stored = self._store(waiting)
        if not stored:
            self._put_back(waiting)
        return stored

    def _take(self) -> _Waiting:
        waiting, self._waiting = self._waiting, {}
        return waiting

    def _put_back(self, waiting: _Waiting) -> None:
        for key, (used, quota) in waiting.items():
            more, newest = self._waiting.get(key, (NOTHING, quota))
            self._waiting[key] = (used + more, newest)

    def _store(self, waiting: _Waiting) -> bool:
        """Whether it is on the disk. From any thread, one at a time."""
        if not waiting:
            return True
        try:
            with state_errors(self._path), transaction(self._db):
                self._db.executemany(_ADD, [_row(key, each) for key, each in waiting.items()])
                for month in {month for month, _ in waiting}:
                    self._db.execute(_BOUND, (month, month, MAX_ROWS))
        except StateError as error:
            if not self._failing:
                log.error("%s; it is tried again until it can be written", error)
            self._failing = True
            return False
        self._failing = False
        return True


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


def peek(path: Path, month: str) -> tuple[Usage, ...]:
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
        return tuple(Usage(Account(name, quota), used) for (name, used), quota in counted)


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
