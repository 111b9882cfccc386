"""The log of the peers whose connections are closed for what they did."""

from __future__ import annotations

import logging
from collections import deque
from typing import Final

import trio

from formation_p2p.core.identity import PeerId

log = logging.getLogger(__name__)

# In a minute. Of more, which one peer that keeps coming back can cause, the log tells only
# at the level of debugging.
MAX_DROPS_TOLD: Final = 10


class DropLog:
    def __init__(self) -> None:
        self._told_s: deque[float] = deque(maxlen=MAX_DROPS_TOLD)

    def tell(self, peer: PeerId, reason: str, level: int) -> None:
        now_s = trio.current_time()
        if len(self._told_s) < MAX_DROPS_TOLD or self._told_s[0] <= now_s - 60:
            self._told_s.append(now_s)
            log.log(level, "dropping %s: %s", peer, reason)
        else:  # a peer that comes back for more must not fill the log
            log.debug("dropping %s: %s", peer, reason)
