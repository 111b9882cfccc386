"""Telling how others reach a node that runs, and again whenever that has changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from formation_p2p.command.words import put
from formation_p2p.reach.core.reached import Reached, Way
from formation_p2p.reach.reach_in_words import log, reach_in_json, reach_in_words

if TYPE_CHECKING:
    from formation_p2p.api.node import Node

EVERY_S: Final = 0.25
# What has been so for a moment is told: on the way from one network to another there are several.
SETTLE_S: Final = 1.0


async def tell_reached(node: Node, line: Callable[[str], None] | None) -> None:
    """Until cancelled: in a `line`, or as an event of JSON. Nothing is told while nothing is known,
    nor to an output that is closed."""
    log.disabled = True  # it would say the same again
    try:
        await _tell(node, line)
    finally:
        log.disabled = False


async def _tell(node: Node, line: Callable[[str], None] | None) -> None:
    told = seen = Reached(Way.UNKNOWN)
    since_s = 0.0
    clock = asyncio.get_running_loop().time
    while True:
        now = node.reached
        if now != seen:
            seen, since_s = now, clock()
        if seen != told and clock() - since_s >= SETTLE_S:
            told = seen
            with suppress(OSError):
                if line is None:
                    put({"event": "reached", **reach_in_json(seen)})
                else:
                    line(f"  {reach_in_words(seen)}")
        await asyncio.sleep(EVERY_S)
