"""Delegations: the owners of this node's leases sign that it reads for them. It asks for one where
it needs one, and keeps it.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from formation_p2p.core.data.delegation import DELEGATED_S, Delegation
from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.host.locks import KeyedLocks
from formation_p2p.host.net.protocols.data import PROTOCOL, delegation_of

if TYPE_CHECKING:
    from formation_p2p.host.net.stack import Stack

# Owners whose delegations are kept: as many as have leases here at once.
MAX_KEPT: Final = 256
_DIAL_S: Final = 20.0


class Delegations:
    """For the trio thread."""

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self._kept: dict[PeerId, Delegation] = {}  # the latest at the end
        self._turns = KeyedLocks[PeerId]()

    async def of(self, owner: PeerId, grant: bytes) -> Delegation | None:
        """The owner himself has signed it, and it holds for a while yet; None where he gives none.
        Raises RemoteError, IOException, TooSlowError where he cannot be asked."""
        async with self._turns.of(owner):
            kept = self._kept.get(owner)
            if kept is not None and kept.until_unix_s > time.time() + DELEGATED_S / 2:
                return kept
            self._kept.pop(owner, None)
            told = await self._ask(owner, grant)
            # With another owner's, this node would read for this one what that other may read.
            if told is None or told.owner != owner:
                return None
            self._kept[owner] = told
            if len(self._kept) > MAX_KEPT:
                del self._kept[next(iter(self._kept))]
            return told

    async def _ask(self, owner: PeerId, grant: bytes) -> Delegation | None:
        opened = await self._stack.open(Contact(owner), PROTOCOL, timeout_s=_DIAL_S)
        try:
            return await delegation_of(opened, grant, self._stack.parameters.data_open_s)
        finally:
            opened.abort("nothing more is asked")
