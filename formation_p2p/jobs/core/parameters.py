"""What one scheduler decides by."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from formation_p2p.core.units import MIB


@dataclass(frozen=True, slots=True)
class DispatchParameters:
    """No other peer has to agree with these."""

    # Jobs at once: each holds its tasks in memory.
    max_jobs: int = 1_000
    # A task that takes its worker down with it is not sent to a sixth one.
    max_lost: int = 5
    # Output of one attempt that no reader has seen. What comes after is dropped. Our own workers
    # wait for a reader, and pass on 16 MiB where there is none (drivers/driver.py).
    max_printed_bytes: int = 64 * MIB

    # Attempts in flight on one lease while their duration is unknown: one runs, one waits, so that
    # the round trip is hidden.
    pipeline: int = 2
    # As much work as is in flight on one lease once that is known. It hides the round trip to the
    # other side of the earth, and is little enough for what waits behind a slow task not to matter.
    horizon_s: float = 0.1
    # Nothing waits behind tasks that take longer than this: the round trip is little beside them.
    alone_s: float = 2.0
    # How far into another worker's queue to look for a task that this one has not failed at.
    max_steal_scan: int = 32

    # Workers that a group keeps in mind. Each look brings at most 32, every 5 s while tasks wait;
    # so many, at 10 KiB each, is as many leases as one scheduler can keep renewed.
    max_workers: int = 1024
    # A worker that falls below a policy's gate gets tasks for so much longer. To review 1,024
    # workers takes 10 ms.
    review_every_s: float = 1.0

    # Where no worker is capable, discovery is tried again once after this long: a worker that has
    # just been started is still announcing itself.
    second_look_s: float = 1.0
    looks: int = 2
    # Where there is no worker at all, they may be announcing themselves to a gate that restarted.
    looks_for_any: int = 5
    # Where there was a worker before, it may be restarting; where no peer answers, a cable may have
    # slipped out: that takes some seconds. Jobs that a state keeps wait for longer, and the pause
    # doubles from then on, up to `look_again_s`.
    looks_for_lost: int = 15
    # Where workers are there that cannot, and another is away: ten minutes, for a machine that
    # starts anew. One that is away for longer has left.
    looks_for_away: int = 130
    # While tasks wait and every worker has been asked, discovery is tried again this often; and
    # where free capacity decides, before any worker is asked.
    look_again_s: float = 5.0
    # Workers asked in one round: the nearest few.
    ask_at_once: int = 3
    # ...and at most this many when that many tasks wait.
    max_ask_at_once: int = 16

    # A lease under which nothing runs is given back after this long, at once where another kind of
    # task of ours looks for room: the next call of a loop finds it warm.
    linger_s: float = 0.25

    # What waits behind a slow task is taken back at once where a worker is idle. Where none is,
    # once, after this many times the mean duration, and in this range: one may be idle by now.
    patience: float = 4.0
    min_patience_s: float = 0.2
    max_patience_s: float = 5.0
    # A second attempt begins after this many times the mean duration, and not before this.
    straggler: float = 2.0
    min_straggler_s: float = 0.5


# As `alone_s`, for copies of tasks with a quorum.
_ALONE_WITH_QUORUM_S: Final = 0.25


def one_by_one(parameters: DispatchParameters) -> DispatchParameters:
    """For copies of tasks with a quorum: what is in flight at a worker when its first lie is found
    may be lies, too."""
    return replace(parameters, pipeline=1, alone_s=_ALONE_WITH_QUORUM_S)


DISPATCH_DEFAULTS = DispatchParameters()
