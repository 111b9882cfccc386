"""Tells the person that a gate is lost, and that it is back."""

from __future__ import annotations

import logging
from collections.abc import Set
from typing import Final

from formation_p2p.core.identity import PeerId
from formation_p2p.machine.names import named

log = logging.getLogger("formation_p2p.gates")

# A gate that is back by then was restarted, and where all nodes of a network end together the gate
# may be the first: neither is news.
LOST_S: Final = 4.0


class GateLog:
    def __init__(self) -> None:
        self._since_s: dict[PeerId, float] = {}
        self._told: set[PeerId] = set()

    def look(self, missing: Set[PeerId], now_s: float) -> None:
        """The gates that have answered and are gone now. Call it often."""
        for gate in sorted(self._told - missing):
            log.info("the gate %s is back", named(gate))
        self._told &= missing
        self._since_s = {gate: self._since_s.get(gate, now_s) for gate in missing}
        for gate, since_s in sorted(self._since_s.items()):
            if gate not in self._told and now_s - since_s >= LOST_S:
                self._told.add(gate)
                log.warning("the gate %s is lost; it is dialled again and again", named(gate))
