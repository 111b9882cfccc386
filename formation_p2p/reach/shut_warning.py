"""Warns a person who lends a machine, once, that others cannot reach it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Final

import trio

from formation_p2p.dht.core.reachability import Reach
from formation_p2p.reach.core.reached import Reached, Way
from formation_p2p.reach.reach_in_words import log, reach_in_words

# A gate has so long to relay for a worker that others cannot dial, before the person is warned.
WARN_AFTER_S: Final = 2.0


class ShutWarning:
    """`reached` says by which ways others reach this node; `do` runs a task of the node's."""

    def __init__(
        self,
        reached: Callable[[], Reached],
        do: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        self._reached = reached
        self._do = do
        self._warned = False

    def look(self, reach: Reach, serving: bool) -> None:
        if reach is Reach.CLIENT and serving and not self._warned:
            self._warned = True
            self._do(self._warn_if_shut)

    async def _warn_if_shut(self) -> None:
        await trio.sleep(WARN_AFTER_S)
        reached = self._reached()
        self._warned = reached.is_shut or reached.way is Way.SILENT
        if self._warned:
            hears = "hears of work from there alone" if reached.at else "gets no work from others"
            log.warning("%s. Until then this worker %s", reach_in_words(reached), hears)
