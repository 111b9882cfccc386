"""An account as one of its holders keeps it: what each worker may use, in all.

Each worker alone writes its row, and its newest request counts. Accounts of several holders merge
row by row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from formation_p2p.core.identity import PeerId
from formation_p2p.features.quotas.core.messages import MAX_MILLI_S, MAX_ROWS, SliceRow
from formation_p2p.features.quotas.core.quota_voucher import VOUCHER_S, Voucher
from formation_p2p.trust.core.quota import NOTHING, Quota, Used

_MILLI_SECONDS: Final = 3600  # of a thousandth of an hour, in thousandths of a second


@dataclass(slots=True)
class _Row:
    """Vouchers allow it `left` more. Of each bearer the time of the newest one is kept, so that
    none counts twice."""

    sequence: int = -1
    used: Used = NOTHING
    left: Used = NOTHING
    issued_unix_ms: dict[PeerId, int] = field(default_factory=dict)

    def vouched(self, voucher: Voucher, max_bearers: int) -> None:
        """Of a bearer that has said it before, as much more as was reserved since."""
        before_ms = self.issued_unix_ms.get(voucher.bearer)
        if before_ms is None:
            for_ms = VOUCHER_S * 1000
            if len(self.issued_unix_ms) >= max_bearers:
                return  # until some of these are out of date
        else:
            for_ms = min(voucher.issued_unix_ms - before_ms, VOUCHER_S * 1000)
        if for_ms <= 0:
            return
        self.issued_unix_ms[voucher.bearer] = voucher.issued_unix_ms
        more = scaled(voucher.reserved, for_ms)
        most = scaled(voucher.reserved, VOUCHER_S * 1000)
        # Not less than it had by others' vouchers, and by this one's not more than for its life.
        self.left = highest(self.left, lowest(self.left + more, most))

    def forget(self, unix_s: float) -> None:
        """Bearers whose vouchers have expired all."""
        since_ms = (unix_s - VOUCHER_S) * 1000
        old = [each for each, at_ms in self.issued_unix_ms.items() if at_ms < since_ms]
        for bearer in old:
            del self.issued_unix_ms[bearer]


@dataclass(frozen=True, slots=True)
class Noted:
    """Whether a request was noted, and what could have been of it."""

    is_kept: bool
    could: Used


@dataclass(frozen=True, slots=True)
class SavedAccount:
    """What a holder has on its disk of an account."""

    account: str
    month: str
    invitation: str
    rows: tuple[SliceRow, ...]


class KeptAccount:
    """Of one month."""

    def __init__(self, invitation: str, max_bearers: int) -> None:
        self.invitation = invitation
        self._max_bearers = max_bearers
        self._rows: dict[PeerId, _Row] = {}
        self.total = NOTHING
        self.learnt_s = float("-inf")  # from the other holders

    def __len__(self) -> int:
        return len(self._rows)

    def note(
        self,
        worker: PeerId,
        sequence: int,
        wanted: Used,
        quota: Quota,
        voucher: Voucher | None,
        unix_s: float,
    ) -> Noted:
        """A worker wants to have used so much in all. The voucher, if any, is for it."""
        row = self._rows.get(worker) or _Row()
        if voucher is not None:
            row.forget(unix_s)
            row.vouched(voucher, self._max_bearers)
        room = at_least_nothing(limit_of(quota) - (self.total - row.used))
        could = lowest(room, row.used + row.left)
        if worker not in self._rows and wanted == NOTHING:
            # A row would say nothing, and take the place of one that does.
            return Noted(True, could)
        if sequence <= row.sequence:  # it came twice, or too late
            return Noted(sequence == row.sequence and wanted == row.used, could)
        if wanted != lowest(wanted, highest(row.used, could)) or (
            worker not in self._rows and len(self._rows) >= MAX_ROWS
        ):
            return Noted(False, could)
        grown = at_least_nothing(wanted - row.used)
        given_back = at_least_nothing(row.used - wanted)
        row.left = row.left - grown + given_back
        self._set(worker, row, sequence, wanted)
        return Noted(True, could)

    def rows(self) -> tuple[SliceRow, ...]:
        return tuple(SliceRow(each, row.sequence, row.used) for each, row in self._rows.items())

    def recall(self, rows: Sequence[SliceRow]) -> None:
        """What an earlier run of this node had noted; the other holders are asked all the same."""
        for each in rows[:MAX_ROWS]:
            self._set(each.worker, _Row(), each.sequence, each.used)

    def learn(self, answers: Sequence[Sequence[SliceRow]], holders: int, now_s: float) -> None:
        """What others know, of so many `holders`, this one among them. A row counts where enough
        say it: what a majority noted is with more of those that answered than leave it out, and
        fewer cannot make one up."""
        self.learnt_s = now_s
        both = len(answers) - (holders - (holders // 2 + 1))
        enough = (max(both, 1) + 1) // 2
        found: dict[PeerId, list[tuple[int, Used]]] = {}
        for rows in answers:
            for worker, told in {row.worker: row for row in rows}.items():
                found.setdefault(worker, []).append((told.sequence, told.used))
        for worker, versions in found.items():
            if len(versions) < enough:
                continue
            sequence, used = sorted(versions, key=_newest_first)[enough - 1]
            row = self._rows.get(worker) or _Row()
            if sequence > row.sequence and (worker in self._rows or len(self._rows) < MAX_ROWS):
                self._set(worker, row, sequence, used)

    def _set(self, worker: PeerId, row: _Row, sequence: int, used: Used) -> None:
        self.total = self.total + used - row.used
        row.sequence, row.used = sequence, used
        self._rows[worker] = row


def limit_of(quota: Quota) -> Used:
    """What a quota comes to; the most that can be said where it has no limit."""
    cpu, gpu = quota.cpu_milli_hours, quota.gpu_milli_hours
    return Used(
        MAX_MILLI_S if cpu is None else cpu * _MILLI_SECONDS,
        MAX_MILLI_S if gpu is None else gpu * _MILLI_SECONDS,
    )


def lowest(one: Used, other: Used) -> Used:
    return Used(min(one.cpu_milli_s, other.cpu_milli_s), min(one.gpu_milli_s, other.gpu_milli_s))


def highest(one: Used, other: Used) -> Used:
    return Used(max(one.cpu_milli_s, other.cpu_milli_s), max(one.gpu_milli_s, other.gpu_milli_s))


def at_least_nothing(used: Used) -> Used:
    return highest(used, NOTHING)


def scaled(reserved: Used, for_ms: int) -> Used:
    """What is reserved in this time, of so much a second."""
    return Used(reserved.cpu_milli_s * for_ms // 1000, reserved.gpu_milli_s * for_ms // 1000)


def _newest_first(version: tuple[int, Used]) -> tuple[int, int, int]:
    sequence, used = version
    return -sequence, -used.cpu_milli_s, -used.gpu_milli_s
