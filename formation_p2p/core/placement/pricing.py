"""What work weighs and costs. Prices are in millionths, for an hour of one weighted unit: a core,
or what weighs as much.

A GiB of GPU memory weighs 25, a core 1, a GiB of memory 0.1 and a GiB of storage 0.01.

Sources: Hypha, its evaluator, offer strategies and RFC on resource allocation; ICN for queues.
There prices are floats, and an offer of nothing at all is the best one; here it has no price for
a unit.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.resources.fits import GpuClaim
from formation_p2p.core.resources.requirements import Requirements
from formation_p2p.core.units import GIB

# Each in thousandths, so that a weight is a whole number: of a core (which has 1000 itself) and
# of a byte.
_CPU_MILLI: Final = GIB
_GPU_BYTE: Final = 25_000
_MEMORY_BYTE: Final = 100
_STORAGE_BYTE: Final = 10
ONE_UNIT: Final = 1000 * GIB
"""The weight of one core."""

# From which part of a machine in use on, in thousandths, it asks what part of its price, in
# percent.
_ASKED_PERCENT: Final = ((900, 200), (700, 150), (300, 100))
_IDLE_PERCENT: Final = 80
# A queue that is longer makes what follows dearer, in percent.
_SHORT_QUEUE: Final = 5
_QUEUED_PERCENT: Final = 150
# Where nobody knows better. ICN's guess at a task.
_TASK_MS: Final = 10_000


def weight(
    *, cpu_milli: int = 0, gpu_bytes: int = 0, memory_bytes: int = 0, storage_bytes: int = 0
) -> int:
    """Exact; divide by ONE_UNIT for units."""
    return (
        cpu_milli * _CPU_MILLI
        + gpu_bytes * _GPU_BYTE
        + memory_bytes * _MEMORY_BYTE
        + storage_bytes * _STORAGE_BYTE
    )


def weight_of(needs: Requirements, gpus: Sequence[GpuClaim]) -> int:
    """Of what a task takes of a worker, these parts of its GPUs among it."""
    return weight(
        cpu_milli=needs.cpu_milli,
        gpu_bytes=sum(claim.memory_bytes for claim in gpus),
        memory_bytes=needs.memory_bytes,
        storage_bytes=needs.storage_bytes,
    )


def unit_price_micro(total_micro: int, weighs: int) -> int:
    """What each unit comes to where so much costs `total_micro`, rounded up.

    Raises InvalidInput for what weighs nothing: who sells nothing has no price.
    """
    if weighs <= 0:
        raise InvalidInput("price", "nothing is offered for it; offer cores, memory or GPUs")
    return -(-total_micro * ONE_UNIT // weighs)


def price_under_load_micro(price_micro: int, used_milli: int) -> int:
    """What a machine asks that is cheaper while idle and dearer while full, with `used_milli`
    thousandths of it in use."""
    asked = (percent for least, percent in _ASKED_PERCENT if used_milli >= least)
    return price_micro * next(asked, _IDLE_PERCENT) // 100


def price_behind_queue_micro(price_micro: int, queue: int) -> int:
    """What it asks where a long queue costs half as much again."""
    return price_micro * (_QUEUED_PERCENT if queue > _SHORT_QUEUE else 100) // 100


def starts_in_ms(queue: int, task_ms: int = _TASK_MS) -> int:
    """How long a task waits behind `queue` others, one after the other."""
    return queue * task_ms


def offered_price_micro(
    *, price_micro: int, floor_micro: int, bid_micro: int, whole: bool
) -> int | None:
    """What a worker asks of who bids for a part of it (the bid), or for all of it (its price).
    None where the bid is below its floor: it makes no offer."""
    if bid_micro < floor_micro:
        return None
    return price_micro if whole else bid_micro
