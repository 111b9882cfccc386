"""As what a worker runs services: what `--serve` says, or what its machine is."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from formation_p2p.command.words import say
from formation_p2p.core.errors import InvalidInput
from formation_p2p.features.services.core.catalog import detected_on, worker_type_of
from formation_p2p.features.services.core.spec import WorkerType
from formation_p2p.machine.core.bounds import shown
from formation_p2p.reach.core.own_addresses import Way

if TYPE_CHECKING:
    from formation_p2p.api.node import Node
    from formation_p2p.machine.core.capability import Capability

AUTO: Final = "auto"
# How long a node takes to learn from others whether they can dial it.
_REACHED_S: Final = 5.0
_LOOK_S: Final = 0.2


def types_of(serve: str | None) -> frozenset[WorkerType] | None:
    """None where no services are to run; empty for `auto`. Raises InvalidInput."""
    if not serve:
        return None
    names = [each.strip().lower() for each in serve.split(",")]
    if names == [AUTO]:
        return frozenset()
    for name in names:
        if name not in list(WorkerType):
            problem = (
                f"{shown(name)} is none of {', '.join(WorkerType)}, and {AUTO}, which is alone"
            )
            raise InvalidInput("serve", problem)
    return frozenset(map(WorkerType, names))


async def serve_as(
    node: Node,
    types: Collection[WorkerType],
    can: Capability,
    most: int | None,
    *,
    allow_exec: bool,
) -> str:
    """Begin, and say as what."""
    from formation_p2p.features.services.api.node import MAX_SERVICES

    if WorkerType.EDGE in types and not await _is_public(node):
        say("formation: others have no way here from outside yet, as an edge worker needs")
    if not types:
        is_public = await _is_public(node)
        types = [worker_type_of(detected_on(can, is_public=is_public))]
    most = MAX_SERVICES if most is None else most
    await node.serve_services(types, max_services=most, allow_exec=allow_exec)
    return ", ".join(kind for kind in WorkerType if kind in types)


async def _is_public(node: Node) -> bool:
    until_s = time.monotonic() + _REACHED_S
    while True:
        way = node.reached.way
        if way is not Way.UNKNOWN or time.monotonic() >= until_s:
            return way is Way.DIRECT
        await asyncio.sleep(_LOOK_S)
