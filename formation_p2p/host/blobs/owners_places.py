"""The owners for whom content was fetched or made here are in circles. Content without a rule of
its own is read within these circles, also after the leases of its owners have ended.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from formation_p2p.core.identity import PeerId
from formation_p2p.core.workload.blob import Cid
from formation_p2p.core.workload.scope import Place

# Contents whose owners are known, the latest; more than a cache has, as a rule. Others are read
# around this node.
MAX_CONTENTS: Final = 16_384
# Of one content, the latest.
MAX_PLACES: Final = 16


class OwnersPlaces:
    def __init__(self, now: Callable[[PeerId], Place | None]) -> None:
        """`now` is where one is for whom content comes here."""
        self._now = now
        self._known: dict[Cid, tuple[Place, ...]] = {}  # the latest at the end

    def came_for(self, cid: Cid, owner: PeerId) -> None:
        """The owner had it fetched from his own sources, or made. One who only names content that
        is here already does not add his circle."""
        if (place := self._now(owner)) is None:
            return
        known = self._known.pop(cid, ())
        self._known[cid] = tuple(dict.fromkeys((*known, place)))[-MAX_PLACES:]
        if len(self._known) > MAX_CONTENTS:
            del self._known[next(iter(self._known))]

    def of(self, cid: Cid) -> tuple[Place, ...]:
        return self._known.get(cid, ())
