"""Whether the owner of a lease reads what its execution prints: then the program waits for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

import trio

from formation_p2p.core.units import KIB, MIB

# Printed before the owner is asked whether all was read: what waits there of one execution.
ASK_BYTES: Final = MIB
# What each piece counts besides, so that short ones wait in bounded numbers, too.
PIECE_BYTES: Final = 4 * KIB
# An owner without a reader, or of an older release, does not answer. Its program goes on then.
ANSWER_S: Final = 2.0
# The question or its answer may be lost with a stream, so it is asked again.
AGAIN_S: Final = 10.0
# Once it has not answered, it is not asked again.
_UNASKED: Final = -(1 << 62)


@dataclass(eq=False, slots=True)
class Reader:
    """Of one execution. `is_there` once the owner has said that there is one."""

    is_there: bool = False
    _unread_bytes: int = 0
    _news: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)

    def answered(self, *, more: bool) -> None:
        """With `more` all was read."""
        self.is_there = True
        if more or self._unread_bytes < 0:
            self._unread_bytes = 0
        self._news.unpark_all()

    def sent(self, data: bytes) -> None:
        self._unread_bytes += len(data) + PIECE_BYTES

    async def wait(self, ask: Callable[[], None]) -> None:
        """Until there is room for more, or no reader. Call it before more is taken."""
        while self._unread_bytes >= ASK_BYTES:
            ask()
            with trio.move_on_after(AGAIN_S if self.is_there else ANSWER_S):
                while self._unread_bytes >= ASK_BYTES:
                    await self._news.park()
            if not self.is_there:
                self._unread_bytes = _UNASKED
