"""Whether a task that runs would be better off on another worker, and why.

The reasons in their order: its worker fails; the data that it reads lies elsewhere; its worker has
more to do than another; another is cheaper. A task moves only where that is much better, since each
move costs the time of a checkpoint, and what was computed since the last.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from formation_p2p.core.identity import PeerId

# Parts of 1. A worker is too busy above the first; one that is to take over has less to do than
# the second.
MAX_LOAD: Final = 0.8
FREE_LOAD: Final = 0.64
MIN_TRUST: Final = 0.3
# How much more of the data is there, or how much cheaper it is.
IMPROVEMENT: Final = 0.3
MAX_QUEUE: Final = 20
_MOST: Final = 10.0


class MoveReason(StrEnum):
    FAILURE = "failure"
    LOCALITY = "locality"
    LOAD = "load"
    COST = "cost"


@dataclass(frozen=True, slots=True)
class Host:
    """A worker, as far as it matters to one task: the part of it that others use, the trust in it,
    the part of the task's data that is there, and its price. `queue` are the tasks that wait there.
    One that `fails` is about to be lost, or does no good."""

    worker: PeerId
    load: float
    trust: float = 1.0
    local: float = 0.0
    price_micro: int = 0
    queue: int = 0
    free_memory_bytes: int = 0
    fails: bool = False


@dataclass(frozen=True, slots=True)
class Move:
    """`benefit` is from 0 to 10."""

    to: PeerId
    reason: MoveReason
    benefit: float


def accepts(host: Host, memory_bytes: int) -> bool:
    """Whether a worker could take over a task that needs so much memory."""
    return (
        not host.fails
        and host.free_memory_bytes >= memory_bytes
        and host.queue <= MAX_QUEUE
        and host.trust >= MIN_TRUST
        and host.load < FREE_LOAD
    )


def should_move(here: Host, others: Iterable[Host], memory_bytes: int) -> Move | None:
    """To which of the other workers a task goes that runs `here`, if it should."""
    able = [each for each in others if accepts(each, memory_bytes)]
    for reason, gain, enough in (
        (MoveReason.FAILURE, _safety, 0.0),
        (MoveReason.LOCALITY, _locality, IMPROVEMENT),
        (MoveReason.LOAD, _load, 0.0 if here.load > MAX_LOAD else _MOST),
        (MoveReason.COST, _cost, IMPROVEMENT),
    ):
        best = _best(able, here, gain)
        if best is not None and gain(here, best) > 0 and gain(here, best) >= enough:
            return Move(best.worker, reason, _MOST * gain(here, best))
    return None


def _best(able: list[Host], here: Host, gain: Callable[[Host, Host], float]) -> Host | None:
    """Of several that are as good, the least busy one."""
    return max(able, key=lambda each: (gain(here, each), -each.load, each.worker), default=None)


def _safety(here: Host, there: Host) -> float:
    return there.trust if here.fails else 0.0


def _locality(here: Host, there: Host) -> float:
    return there.local - here.local


def _load(here: Host, there: Host) -> float:
    return here.load - there.load


def _cost(here: Host, there: Host) -> float:
    return 1 - there.price_micro / here.price_micro if here.price_micro else 0.0
