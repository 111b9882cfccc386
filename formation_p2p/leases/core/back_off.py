"""Back-off from workers that refused, failed tasks, fell silent, or leave.

Each refusal is one kind of fault, and a rule for each kind says for how long the worker is left
alone and what ends that. Waits double while faults follow each other.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from formation_p2p.core import refusals
from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.core.latest import Latest
from formation_p2p.core.refusals import Refusal


class Fault(StrEnum):
    REFUSED = "refused"  # it has no room, asks too much, or gave what it had to others
    FAILED = "failed"  # it took a task and could not run it
    SILENT = "silent"  # it could not be reached, or did not answer
    SILENT_TWICE = "silent twice"  # in a row, or more often
    LEAVING = "leaving"  # or just begun and not yet at work, or without a grant
    UNWANTED = "unwanted"  # it lacks what a hint says is required, or cannot have the packages
    DENIED = "denied"


class Until(StrEnum):
    TIME = "its wait is over"
    LIFE = "its wait is over, and it has been heard from"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Rule:
    first_s: float
    last_s: float
    until: Until


# A second is the least in which anything changes; half a minute keeps a busy network quiet, and
# is how long a job may overlook a worker that has become free.
RULES: Final = {
    Fault.REFUSED: Rule(1.0, 30.0, Until.TIME),
    Fault.FAILED: Rule(2.0, 60.0, Until.TIME),
    Fault.SILENT: Rule(1.0, 30.0, Until.TIME),
    Fault.SILENT_TWICE: Rule(1.0, 30.0, Until.LIFE),
    Fault.LEAVING: Rule(1.0, 30.0, Until.TIME),
    # For the tasks that wait now: they end, and are told why.
    Fault.UNWANTED: Rule(0.0, 0.0, Until.NEVER),
    Fault.DENIED: Rule(0.0, 0.0, Until.NEVER),
}
# Not candidates again, however often they are found.
EXCLUDED: Final = frozenset(fault for fault in Fault if RULES[fault].until is Until.NEVER)
# Asked after those that have no such fault, however near they are.
LAST_ASKED: Final = frozenset({Fault.FAILED, Fault.SILENT, Fault.SILENT_TWICE})
# No candidates any more; a worker that left is one again once it is found again.
DROPPED: Final = frozenset({Fault.LEAVING, Fault.UNWANTED, Fault.DENIED})


@dataclass(slots=True)
class _Record:
    """`sequence` is of the worker's newest profile when it went wrong. `heard`: since then."""

    fault: Fault
    refusal: Refusal
    wait_s: float
    until_s: float
    sequence: int
    heard: bool = False


class BackOff:
    """What went wrong with each worker last. `note` it, and say when it has been made good."""

    def __init__(self, max_workers: int) -> None:
        self._records = Latest[PeerId, _Record](max_workers)

    def note(self, worker: PeerId, refusal: Refusal, sequence: int, now: Moment) -> Fault:
        """`sequence` is of the newest profile of the worker that is known; 0 for none."""
        known = self._records.get(worker)
        fault = fault_of(refusal, None if known is None else known.fault)
        rule = RULES[fault]
        wait_s = rule.first_s if known is None else min(known.wait_s * 2, rule.last_s)
        wait_s = max(wait_s, rule.first_s)
        until_s = now.mono_s + wait_s
        if isinstance(refusal, refusals.GivingWay):
            # It expects to have room then: the next wait does not grow.
            wait_s = rule.first_s
            until_s = now.mono_s + min(refusal.retry_ms / 1000, rule.last_s)
        elif isinstance(refusal, refusals.Denied) and refusal.retry_ms is not None:
            until_s = max(until_s, now.mono_s + refusal.retry_ms / 1000)
        self._records[worker] = _Record(fault, refusal, wait_s, until_s, sequence)
        return fault

    def leased(self, worker: PeerId) -> None:
        """It gave a lease: what it refused before, and its silence, count no longer."""
        if self.fault(worker) is not Fault.FAILED:
            self._records.pop(worker, None)

    def succeeded(self, worker: PeerId) -> None:
        """It ran a task to a good end. Whether it has room for more, that does not say: one without
        room is asked again when its wait is over, and then not ever more rarely."""
        record = self._records.get(worker)
        if record is not None and record.fault is Fault.REFUSED:
            record.wait_s = 0.0
        else:
            self._records.pop(worker, None)

    def heard(self, worker: PeerId) -> bool:
        """A message of any kind came from it: it lives. Whether that was what was waited for."""
        record = self._records.get(worker)
        if record is None or record.heard:
            return False
        record.heard = True
        return record.fault is Fault.SILENT_TWICE

    def found(self, worker: PeerId, sequence: int) -> None:
        """Its profile was found. One that is newer is a sign of life, and takes back that it
        was leaving."""
        record = self._records.get(worker)
        if record is not None and sequence > record.sequence:
            record.heard = True
            if record.fault is Fault.LEAVING:
                del self._records[worker]

    def renewed(self) -> None:
        """This node has a new grant, and what was denied may not be any more."""
        denied = [p for p, record in self._records.items() if record.fault is Fault.DENIED]
        for worker in denied:
            del self._records[worker]

    def fault(self, worker: PeerId) -> Fault | None:
        record = self._records.get(worker)
        return None if record is None else record.fault

    def silence_s(self, worker: PeerId) -> float:
        """How long the waits have become for one that was silent more than once in a row, and has
        not been heard from since; 0 for others."""
        record = self._records.get(worker)
        if record is None or record.heard or record.fault is not Fault.SILENT_TWICE:
            return 0.0
        return record.wait_s

    def reasons(self) -> dict[PeerId, Refusal]:
        return {worker: record.refusal for worker, record in self._records.items()}

    def until_s(self, worker: PeerId) -> float:
        """When it may be asked again, as things stand: infinity where time alone is not enough."""
        record = self._records.get(worker)
        if record is None:
            return float("-inf")
        until = RULES[record.fault].until
        suffices = until is Until.TIME or (until is Until.LIFE and record.heard)
        return record.until_s if suffices else float("inf")


def fault_of(refusal: Refusal, before: Fault | None = None) -> Fault:
    """`before` is the worker's last one."""
    match refusal:
        case refusals.Denied(retry_ms=None):
            return Fault.DENIED
        case refusals.Leaving() | refusals.GrantEnded():
            return Fault.LEAVING
        case refusals.Unwanted() | refusals.Unbuildable():
            return Fault.UNWANTED
        case refusals.Faulty():
            return Fault.FAILED
        case refusals.Silent():
            silent_before = before in (Fault.SILENT, Fault.SILENT_TWICE)
            return Fault.SILENT_TWICE if silent_before else Fault.SILENT
        case _:
            return Fault.REFUSED
