"""Metrics over HTTP, for Prometheus to fetch: one small server on the node's own loop.

It answers `GET /metrics` and nothing else, on the address that was given and no other. A
client that is slow, or has too many connections, loses them; the node does not notice.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Final

import trio

from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.host.net.transport.accepting import next_client

log = logging.getLogger(__name__)

# Prometheus fetches over one connection, every few seconds; some have two of them.
MAX_CLIENTS: Final = 8
# A request with all headers that a browser sends has 2 KiB.
MAX_REQUEST_BYTES: Final = 8 * 1024
# For one request to arrive, and for its answer to be taken, of some 10 KiB.
EXCHANGE_S: Final = 10.0
# How often the loop's lag is measured.
LAG_EVERY_S: Final = 0.5

_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def parse_metrics_address(text: str) -> tuple[str, int]:
    """`127.0.0.1:9464`, `[::1]:9464`, `localhost:0`. Raises InvalidInput."""
    host, colon, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise InvalidInput("metrics", f"{text!r} is not an address; write it like 127.0.0.1:9464")
    return host, int(port)


def listen_for_metrics(address: str) -> socket.socket:
    """Raises InvalidInput, LocalError."""
    host, port = parse_metrics_address(address)
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(target)
            listener.listen(MAX_CLIENTS)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        problem = f"metrics cannot be served at {address}: {error.strerror or error}"
        raise LocalError(f"{problem}; choose another address or port") from error
    return listener


async def serve_metrics(listener: socket.socket, exposition: Callable[[], bytes]) -> None:
    """Until cancelled. The listener stays open: its maker closes it."""
    accepting = trio.socket.fromfd(listener.fileno(), listener.family, listener.type)
    with accepting:
        async with trio.open_nursery() as nursery:
            while True:
                client = await next_client(accepting)
                if len(nursery.child_tasks) >= MAX_CLIENTS:
                    client.close()
                    continue
                nursery.start_soon(_answer, trio.SocketStream(client), exposition)


async def measure_lag(lagged: Callable[[float], None]) -> None:
    """Until cancelled: how late this loop wakes up."""
    while True:
        due_s = trio.current_time() + LAG_EVERY_S
        await trio.sleep_until(due_s)
        lagged(trio.current_time() - due_s)


async def _answer(client: trio.SocketStream, exposition: Callable[[], bytes]) -> None:
    with trio.move_on_after(EXCHANGE_S):
        try:
            request = await _request(client)
            if request is not None:
                await client.send_all(_response(request, exposition))
        except trio.BrokenResourceError:
            log.debug("a client left before it had its metrics")
    with trio.CancelScope(deadline=trio.current_time() + 1.0, shield=True):
        await client.aclose()


async def _request(client: trio.SocketStream) -> str | None:
    """The request's first line; None where it does not come, or there is too much of it."""
    head = b""
    while b"\r\n\r\n" not in head:
        received = await client.receive_some(MAX_REQUEST_BYTES)
        head += received
        if not received or len(head) > MAX_REQUEST_BYTES:
            return None
    return head.split(b"\r\n", 1)[0].decode("latin-1")


def _response(request: str, exposition: Callable[[], bytes]) -> bytes:
    method, _, rest = request.partition(" ")
    path = rest.partition(" ")[0].partition("?")[0]
    if path not in ("/metrics", "/"):
        return _with_head("404 Not Found", b"metrics are at /metrics\n")
    if method not in ("GET", "HEAD"):
        return _with_head("405 Method Not Allowed", b"metrics are fetched with GET\n")
    response = _with_head("200 OK", exposition())
    return response if method == "GET" else response[: response.index(b"\r\n\r\n") + 4]


def _with_head(status: str, body: bytes) -> bytes:
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {_TYPE}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("ascii") + body
