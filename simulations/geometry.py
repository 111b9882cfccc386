"""Which workers are in which buckets, and what to ask for to get each of them.

    nested   the largest bucket holds all workers, each next one half as many
    all      every worker is in every bucket, as large machines of one kind are

In both, one worker more is in a bucket of its own (`network/10000`): the rarest that there is.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from formation_p2p.core.units import GIB
from formation_p2p.machine.core.capability import Capability
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.peer.core.events import Serve

_LABELS: Final = tuple((f"tier{number}", "yes") for number in range(1, 9))
_CORES: Final = (8, 32, 128)
# One for `any`, one for each label, and one for each level of cores.
MAX_BUCKETS: Final = 1 + len(_LABELS) + len(_CORES)
GEOMETRIES: Final = ("nested", "all")
RARE: Final = "rare"
_LEAST: Final = Requirements(cpu_milli=1, memory_bytes=1)


@dataclass(frozen=True, slots=True)
class Bucket:
    """`name` is for people: `1/8` holds an eighth of all workers."""

    name: str
    needs: Requirements


def buckets(count: int) -> tuple[Bucket, ...]:
    """The first `count` of the nested ones, the largest first, and the rare one."""
    labels = len(_LABELS)
    found = [Bucket("all", _LEAST)]
    for level in range(1, count):
        if level <= labels:
            needs = replace(_LEAST, labels=(_LABELS[level - 1],))
        else:
            needs = replace(_LEAST, cpu_milli=_CORES[level - labels - 1] * 1000)
        found.append(Bucket(f"1/{2**level}", needs))
    found.append(Bucket(RARE, replace(_LEAST, network_mbps=10_000)))
    return tuple(found)


def levels(rank: int, workers: int, count: int, geometry: str) -> int:
    """In how many of the nested buckets the worker of this rank (from 0) is."""
    if geometry == "all":
        return count
    level = 1
    while level < count and rank < max(workers >> level, 1):
        level += 1
    return level


@cache  # one for each kind, not for each worker
def machine(in_buckets: int, *, rare: bool) -> Serve:
    """A worker that is in the first so many of the nested buckets."""
    labels = _LABELS[: in_buckets - 1]
    steps = max(in_buckets - 1 - len(_LABELS), 0)
    cores = _CORES[steps - 1] if steps else 4
    capability = Capability(cores * 1000, 8 * GIB, network_mbps=10_000 if rare else 0)
    return Serve(capability, (), labels)
