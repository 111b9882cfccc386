"""Nodes of another version of Formation's protocols: they are refused, and the person is told."""

from __future__ import annotations

import logging
from typing import Final

from formation_p2p.core.identity import PeerId
from formation_p2p.host.net.identify import VERSION

# The latest: enough to say which machine is to be upgraded.
MAX_INCOMPATIBLE: Final = 16


class IncompatiblePeers(dict[PeerId, str]):
    """Those that were refused lately, and which of us is to be upgraded."""

    def refuse(self, peer: PeerId, version: int) -> tuple[str, int]:
        """Why, and at which level of the log: the peer comes back again and again."""
        where = "there" if version < VERSION else "here"
        reason = (
            f"it speaks version {version} of Formation's protocols, and this node version "
            f"{VERSION}; upgrade formation_p2p {where}"
        )
        level = logging.DEBUG if peer in self else logging.WARNING
        self.pop(peer, None)
        if len(self) >= MAX_INCOMPATIBLE:
            del self[next(iter(self))]
        self[peer] = reason
        return reason, level
