"""How many identities came of one invitation, as far as this node has seen.

The holder of a bearer grant can bind it to any number of ids, offline. So each node admits as many
of them as the invitation says, and refuses more: whatever one invitation is used for, no node has
to do with more of its ids than that. Nodes need not agree which those are. One that was not seen
for a day makes room.
"""

from __future__ import annotations

from typing import Final

from formation_p2p.core.identity import PeerId

# A machine that is on now and then is still one of them tomorrow.
KEPT_S: Final = 24 * 3600.0
# At 150 bytes each, 10 MiB. Past it the invitation that was used longest ago is forgotten.
MAX_IDENTITIES: Final = 65_536


class Identities:
    def __init__(self, max_identities: int = MAX_IDENTITIES) -> None:
        self._max_identities = max_identities
        self._seen_s: dict[str, dict[PeerId, float]] = {}  # each with the latest at the end
        self._count = 0

    def admits(self, invitation: str, peer_id: PeerId, most: int, now_s: float) -> bool:
        """Whether a peer is one of the first `most` that came of an invitation."""
        seen_s = self._seen_s.pop(invitation, {})
        self._seen_s[invitation] = seen_s
        if seen_s.pop(peer_id, None) is None:
            while seen_s and next(iter(seen_s.values())) + KEPT_S <= now_s:
                del seen_s[next(iter(seen_s))]
                self._count -= 1
            if len(seen_s) >= most:
                return False
            self._count += 1
        seen_s[peer_id] = now_s
        while self._count > self._max_identities and len(self._seen_s) > 1:
            self._count -= len(self._seen_s.pop(next(iter(self._seen_s))))
        return True

    def __len__(self) -> int:
        return self._count
