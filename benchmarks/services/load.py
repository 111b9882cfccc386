"""Requests as fast as they are answered, or at a steady rate, from a process of their own.

python -m benchmarks.services.load WHERE PATH CONNECTIONS SECONDS [close]

WHERE is HOST:PORT or the path of a socket. With `close` each request has a connection of its own.
Prints `requests, req_per_s, p50_ms, p95_ms, failed` as
JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Final

END: Final = b"\r\n\r\n"


class Asking(asyncio.Protocol):
    """One connection: a request as soon as the last one was answered, or one alone."""

    def __init__(self, request: bytes, until_s: float, took_s: list[float], *, keeps: bool) -> None:
        self._request = request
        self._until_s = until_s
        self._took_s = took_s
        self._keeps = keeps
        self._unread = b""
        self.over = asyncio.get_running_loop().create_future()
        self.failed = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._ask()

    def _ask(self) -> None:
        self._asked_s = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        head, _, body = self._unread.partition(END)
        length = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
        if not length or len(body) < int(length):
            return
        self._unread = b""
        if b" 200 " not in head[:16]:
            self.failed += 1
        self._took_s.append(time.perf_counter() - self._asked_s)
        if self._keeps and self._asked_s < self._until_s:
            self._ask()
        else:
            self._end()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.over.done():
            self.failed += 1
            self._end()

    def _end(self) -> None:
        if not self.over.done():
            self.over.set_result(None)
        self._transport.close()


async def main(
    where: str, path: str, connections: int, seconds: float, *, keeps: bool = True
) -> None:
    loop = asyncio.get_running_loop()
    took_s: list[float] = []
    close = "" if keeps else "Connection: close\r\n"
    request = f"GET {path} HTTP/1.1\r\nHost: localhost\r\n{close}\r\n".encode()
    began_s = time.perf_counter()
    made: list[Asking] = []

    def asking() -> Asking:
        made.append(Asking(request, began_s + seconds, took_s, keeps=keeps))
        return made[-1]

    async def connected() -> Asking:
        if where.startswith("/"):
            return (await loop.create_unix_connection(asking, where))[1]
        host, _, port = where.rpartition(":")
        return (await loop.create_connection(asking, host, int(port)))[1]

    async def one_after_another() -> None:
        await (await connected()).over
        while not keeps and time.perf_counter() < began_s + seconds:
            await (await connected()).over

    await asyncio.gather(*(one_after_another() for _ in range(connections)))
    spent_s = time.perf_counter() - began_s
    ordered = sorted(took_s)
    print(
        json.dumps(
            {
                "requests": len(ordered),
                "req_per_s": round(len(ordered) / spent_s),
                "p50_ms": round(1000 * ordered[len(ordered) // 2], 3),
                "p95_ms": round(1000 * ordered[len(ordered) * 95 // 100], 3),
                "failed": sum(each.failed for each in made),
            }
        )
    )


if __name__ == "__main__":
    keeps = sys.argv[5:] != ["close"]
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), keeps=keeps))
