"""Tells the person that a gate is lost, and that it is back."""

from __future__ import annotations

import logging
from collections.abc import Set

from formation_p2p.core.identity import PeerId
from formation_p2p.host.names import named

log = logging.getLogger("formation_p2p.gates")


class GateLog:
    def __init__(self) -> None:
        self._missing: frozenset[PeerId] = frozenset()

    def look(self, missing: Set[PeerId]) -> None:
        """The gates that have answered and are gone now."""
        if missing == self._missing:
            return
        for gate in sorted(missing - self._missing):
            log.warning("the gate %s is lost; it is dialled again and again", named(gate))
        for gate in sorted(self._missing - missing):
            log.warning("the gate %s is back", named(gate))
        self._missing = frozenset(missing)
