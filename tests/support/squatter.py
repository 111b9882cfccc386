"""A member that asks workers for all that they have, again and again, and commits to nothing."""

from collections.abc import Callable, Iterable
from itertools import count

import trio

from formation_p2p.core.effects import Contact
from formation_p2p.leases.core.messages import PlacementRequest, pack
from formation_p2p.machine.core.requirements import Requirements
from tests.support.stacks import Node


async def squat(
    member: Node,
    workers: Iterable[Contact],
    needs: Requirements,
    grant: bytes,
    every_s: float,
    is_over: Callable[[], bool] = lambda: False,
) -> None:
    for number in count():
        if is_over():
            return
        for worker in workers:
            member.stack.send(worker, pack(PlacementRequest(number, needs, grant, 0)))
        await trio.sleep(every_s)
