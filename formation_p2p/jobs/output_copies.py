"""The outputs of this node's tasks, which other workers are asked to hold as well."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from formation_p2p.content.held_for_others import is_held
from formation_p2p.content.places import Places
from formation_p2p.core.effects import Contact
from formation_p2p.jobs.core.fetch import CopyOutputs, OutputsCopied
from formation_p2p.workload.core.blob import NAME_BYTES

if TYPE_CHECKING:
    from formation_p2p.content.exchange import Exchange
    from formation_p2p.reach.stack import Stack

log = logging.getLogger(__name__)

# Tasks at once, each at one worker; the others wait.
MAX_COPYING: Final = 8
# Of these, at one of them: it may take as long as it likes to say that it holds them.
MAX_COPYING_OF_HOLDER: Final = 2


class OutputCopies:
    """For the trio thread. `feed` takes what becomes of each."""

    def __init__(
        self, stack: Stack, exchange: Exchange, feed: Callable[[OutputsCopied], None]
    ) -> None:
        self._stack = stack
        self._exchange = exchange
        self._feed = feed
        self._asking = Places(MAX_COPYING, MAX_COPYING_OF_HOLDER)

    async def perform(self, asked: CopyOutputs) -> None:
        holders: list[Contact] = []
        for other in asked.others:
            if len(holders) == asked.wanted:
                break
            async with self._asking.of(other.peer_id):
                held = await self._holds(other, asked)
            if held:
                holders.append(other)
        for _, blob in asked.blobs:
            for each in holders:
                self._exchange.server.has(blob.cid, each)
        if len(holders) < asked.wanted:
            log.warning(
                "of %d workers that are to hold the outputs of %s, %d do; others are asked later",
                asked.wanted,
                asked.task_id,
                len(holders),
            )
        told = OutputsCopied(asked.worker, asked.lease_id, asked.attempt_id, tuple(holders))
        self._feed(told)

    async def _holds(self, other: Contact, asked: CopyOutputs) -> bool:
        """All of it."""
        for name, blob in asked.blobs:
            text = f"{asked.task_id} {name}"
            slot = hashlib.sha256(text.encode()).digest()[:NAME_BYTES]
            if not await is_held(self._stack, self._exchange, other, blob, slot, blob.sources):
                return False
        return True
