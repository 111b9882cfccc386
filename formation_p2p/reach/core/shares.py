"""Whose turn it is to be relayed, where a gate's owner has set a bandwidth: peers share its bytes.

Each piece is stamped with how much its peer has had by then, and the lowest stamp goes first. So a
peer with many circuits, or much to send, has no more bytes than another, and one that sends little
does not wait for what others have queued.

Source: Goyal, Vin, Cheng: Start-time Fair Queuing (SIGCOMM 1996).
"""

from __future__ import annotations

import heapq
from typing import Final, NamedTuple

from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import KIB

# What may go at once after a pause, in seconds of the rate.
BURST_S: Final = 0.25
# The largest piece, in seconds of the rate: so long a small one may wait for one that is before it.
PIECE_S: Final = 0.02
# Less costs more in frames than it saves in waits.
LEAST_PIECE_BYTES: Final = KIB


class _Piece(NamedTuple):
    stamp_bytes: int
    number: int
    size: int


class FairShares:
    """`ask` for each piece, of `piece_bytes` at most, and take from `granted` whose turn has come;
    again at `at_s`. The asker bounds the pieces that it has waiting."""

    def __init__(self, bytes_per_s: int) -> None:
        self.piece_bytes = max(int(bytes_per_s * PIECE_S), LEAST_PIECE_BYTES)
        self._bytes_per_s = bytes_per_s
        self._left = bytes_per_s * BURST_S
        self._filled_s = float("-inf")
        self._waiting: list[_Piece] = []  # a heap
        # The stamp of the last piece that went, and of each peer's next one where it is later.
        self._stamp_bytes = 0
        self._next_bytes: dict[PeerId, int] = {}
        self._next = 1

    def ask(self, peer: PeerId, size: int) -> int:
        """Returns the piece's number."""
        number, self._next = self._next, self._next + 1
        stamp_bytes = self._next_bytes.get(peer, self._stamp_bytes)
        self._next_bytes[peer] = stamp_bytes + size
        heapq.heappush(self._waiting, _Piece(stamp_bytes, number, size))
        return number

    def forget(self, number: int) -> None:
        """The piece does not go any more."""
        self._waiting = [piece for piece in self._waiting if piece.number != number]
        heapq.heapify(self._waiting)
        self._prune()

    def granted(self, now_s: float) -> list[int]:
        """The pieces that may go now. The last one may exceed the rate, which those after it wait
        for."""
        most = self._bytes_per_s * BURST_S
        self._left = min(self._left + (now_s - self._filled_s) * self._bytes_per_s, most)
        self._filled_s = now_s
        numbers = []
        while self._waiting and self._left > 0:
            self._stamp_bytes, number, size = heapq.heappop(self._waiting)
            self._left -= size
            numbers.append(number)
        self._prune()
        return numbers

    def _prune(self) -> None:
        """Where none waits, none has had too much."""
        stamps = self._next_bytes.items() if self._waiting else ()
        self._next_bytes = {peer: each for peer, each in stamps if each > self._stamp_bytes}

    @property
    def at_s(self) -> float:
        """When the next piece may go."""
        if not self._waiting:
            return float("inf")
        return self._filled_s + max(-self._left, 0.0) / self._bytes_per_s
