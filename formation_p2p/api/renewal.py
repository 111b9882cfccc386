"""Having a node's grant renewed on request."""

from __future__ import annotations

import asyncio
from typing import Final

from formation_p2p.api.bridge import Bridge
from formation_p2p.core.errors import Unauthorized
from formation_p2p.peer.core.events import AskRenewal
from formation_p2p.peer.shell import Shell

# All that are asked have answered, or have not; and the new grant is on the disk.
WITHIN_S: Final = 60.0
LOOK_EVERY_S: Final = 0.1


async def renew_grant(bridge: Bridge) -> int:
    """See `Node.renew`."""
    tried, expires_unix_s, _ = await bridge.look(_begin)
    try:
        async with asyncio.timeout(WITHIN_S):
            while True:
                await asyncio.sleep(LOOK_EVERY_S)
                now_tried, now_expires_unix_s, failed = await bridge.look(_seen)
                if now_expires_unix_s != expires_unix_s:
                    return now_expires_unix_s
                if now_tried != tried and failed:
                    raise Unauthorized(f"the grant is not renewed: {failed}")
    except TimeoutError:
        problem = f"no peer has renewed it within {WITHIN_S:.0f} s"
        raise Unauthorized(f"the grant is not renewed: {problem}; see that a gate runs") from None


def _begin(shell: Shell) -> tuple[int, int, str]:
    before = _seen(shell)
    shell.feed(AskRenewal())
    return before


def _seen(shell: Shell) -> tuple[int, int, str]:
    peer = shell.peer
    return peer.renewal.tried, peer.grant.expires_unix_s, peer.renewal.failed
