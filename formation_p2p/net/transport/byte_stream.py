"""What a protocol is spoken on: a socket, a Noise session, one stream of a muxer."""

from __future__ import annotations

from typing import Protocol


class ByteStream(Protocol):
    """Bytes in both directions, in order. Both methods raise IOException."""

    async def read(self, n: int | None = None) -> bytes:
        """Some bytes, at most `n`; waits for the first."""

    async def write(self, data: bytes) -> None:
        """All of `data`."""
