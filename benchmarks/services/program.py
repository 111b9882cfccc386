"""A service that costs as little as one in Python can: it answers each GET with two bytes.

python -m benchmarks.services.program SOCKET

`/silent/SECONDS` sends its head, is silent for so long, and ends; `/flood/MIB` sends so much as
fast as it is read; `/count` says how many answers were not wanted any more.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Final

from formation_p2p.core.units import KIB, MIB

END: Final = b"\r\n\r\n"
OK: Final = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
HEAD: Final = b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n"
PIECE: Final = bytes(64 * KIB)


class Answers(asyncio.Protocol):
    left = 0  # of all connections

    def __init__(self) -> None:
        self._unread = b""
        self._answering: asyncio.Task[None] | None = None
        self._room = asyncio.Event()
        self._room.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        *heads, self._unread = (self._unread + data).split(END)
        for head in heads:
            what, _, amount = head.split(b" ", 2)[1].decode().strip("/").partition("/")
            if what == "count":
                said = str(Answers.left).encode()
                self._transport.write(HEAD % len(said) + said)
            elif amount:
                self._answering = asyncio.create_task(self._at_length(what, int(amount)))
            else:
                self._transport.write(OK)

    async def _at_length(self, what: str, amount: int) -> None:
        if what == "silent":
            self._transport.write(HEAD % 2)
            await asyncio.sleep(amount)
            self._transport.write(b"ok")
        else:
            self._transport.write(HEAD % (amount * MIB))
            for _ in range(amount * MIB // len(PIECE)):
                await self._room.wait()
                self._transport.write(PIECE)
        self._answering = None

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def connection_lost(self, error: Exception | None) -> None:
        if self._answering is not None:
            Answers.left += 1
            self._answering.cancel()

    def eof_received(self) -> None:
        """Close."""


async def main(path: str) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_unix_server(Answers, path, backlog=1024)
    print("listening", flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
