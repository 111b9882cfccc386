"""How a worker might set its price: by load, by its queue, for a part or the whole of a machine.

A node asks the price that it is given, `node.worker(price_micro=...)` or `formation worker
--price`. These are the rules by which other systems compute theirs. Prices are in millionths, for
an hour of one unit: a core, or what weighs as much (formation_p2p/placement/core/policies.py).

Sources: Hypha, its offer strategies and RFC on resource allocation; ICN for queues. There prices
are floats, and an offer of nothing is the best one; here it has no price for a unit.
"""

from __future__ import annotations

from typing import Final

from formation_p2p import InvalidInput
from formation_p2p.placement.core.policies import ONE_UNIT

# From which part of a machine in use on, in thousandths, it asks what part of its price, in
# percent.
_ASKED_PERCENT: Final = ((900, 200), (700, 150), (300, 100))
_IDLE_PERCENT: Final = 80
# A longer queue makes what follows dearer, in percent.
_SHORT_QUEUE: Final = 5
_QUEUED_PERCENT: Final = 150
# ICN's guess at a task.
_TASK_MS: Final = 10_000


def unit_price_micro(total_micro: int, weighs: int) -> int:
    """The price of each unit where so much costs `total_micro`, rounded up.

    Raises InvalidInput for a weight of 0: an offer of nothing has no price.
    """
    if weighs <= 0:
        raise InvalidInput("price", "nothing is offered for it; offer cores, memory or GPUs")
    return -(-total_micro * ONE_UNIT // weighs)


def price_under_load_micro(price_micro: int, used_milli: int) -> int:
    """The price of a machine that is cheaper while idle and dearer while full, with `used_milli`
    thousandths of it in use."""
    asked = (percent for least, percent in _ASKED_PERCENT if used_milli >= least)
    return price_micro * next(asked, _IDLE_PERCENT) // 100


def price_behind_queue_micro(price_micro: int, queue: int) -> int:
    """The price where a long queue costs half as much again."""
    return price_micro * (_QUEUED_PERCENT if queue > _SHORT_QUEUE else 100) // 100


def starts_in_ms(queue: int, task_ms: int = _TASK_MS) -> int:
    """How long a task waits behind `queue` others, one after the other."""
    return queue * task_ms


def offered_price_micro(
    *, price_micro: int, floor_micro: int, bid_micro: int, whole: bool
) -> int | None:
    """The price for a bid for a part of a worker (the bid), or for all of it (its price). None
    where the bid is below the floor: the worker makes no offer."""
    if bid_micro < floor_micro:
        return None
    return price_micro if whole else bid_micro
