"""The circles of those for whom content is here, also once their leases have ended: what has no
rule of its own is read around them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from formation_p2p.core.identity import PeerId
from formation_p2p.core.workload.scope import Place

# As many as have leases of a worker in a day. What is here for others is read around this node.
MAX_OWNERS: Final = 4096


class OwnersPlaces:
    def __init__(self) -> None:
        self.now: Callable[[PeerId], Place | None] = lambda peer_id: None
        """Of one that has a lease here."""
        self._known: dict[PeerId, Place] = {}  # the latest at the end

    def met(self, owner: PeerId) -> None:
        """Content comes, or is made, for one who has a lease now."""
        if (place := self.now(owner)) is not None:
            self._known.pop(owner, None)
            self._known[owner] = place
            if len(self._known) > MAX_OWNERS:
                del self._known[next(iter(self._known))]

    def of(self, owner: PeerId) -> Place | None:
        return self._known.get(owner)
