"""The rate of the way from a gate, measured for a worker at the edge."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import FormationError
from formation_p2p.core.peer.events import PeerEvent, RateMeasured
from formation_p2p.host.names import named

if TYPE_CHECKING:
    from formation_p2p.host.blobs.exchange import Exchange
    from formation_p2p.host.net.stack import Stack

log = logging.getLogger(__name__)


class RateTest:
    """`feed` hands the peer what came of a test."""

    def __init__(self, stack: Stack, exchange: Exchange, feed: Callable[[PeerEvent], None]) -> None:
        self._stack = stack
        self._exchange = exchange
        self._feed = feed

    async def run(self, to: Contact) -> None:
        from formation_p2p.host.net import probing  # as the stack: only where a node runs

        bytes_per_s = 0
        try:
            rate = await probing.measure_rate(self._stack, to, self._exchange.grant)
            bytes_per_s = rate.bytes_per_s
        except FormationError as error:
            log.info("the rate from %s is not known: %s", named(to.peer_id), error)
        self._feed(RateMeasured(to.peer_id, bytes_per_s))
