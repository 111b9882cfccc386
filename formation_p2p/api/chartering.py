"""Handing a charter to the network."""

from __future__ import annotations

import asyncio
from typing import Final

from formation_p2p.api.bridge import Bridge
from formation_p2p.core.errors import InvalidInput
from formation_p2p.peer.core.charter_news import CharterSpread
from formation_p2p.peer.shell import Shell

# A lookup, and an answer of those nearest to the name.
WITHIN_S: Final = 30.0
LOOK_EVERY_S: Final = 0.05


async def offer_charter(bridge: Bridge, raw: bytes) -> int:
    """See `Node.offer_charter`."""

    await bridge.look(lambda shell: shell.offer_charter(raw))
    try:
        async with asyncio.timeout(WITHIN_S):
            while True:
                await asyncio.sleep(LOOK_EVERY_S)
                if (spread := await bridge.look(_seen)) is not None:
                    break
    except TimeoutError:
        return 0  # it counts here, and goes on from here
    if spread.refused:
        raise InvalidInput("charter", f"it is refused: {spread.refused}")
    return spread.holders


def _seen(shell: Shell) -> CharterSpread | None:
    return shell.charter_spread
