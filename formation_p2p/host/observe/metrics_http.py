"""Metrics over HTTP, for Prometheus to fetch: one small server on the node's own loop.

It answers `GET /metrics` and nothing else, on the address that was given and no other. A
client that is slow, or has too many connections, loses them; the node does not notice.
"""

from __future__ import annotations

import logging
import socket
from typing import Final

import trio
from prometheus_client import generate_latest

from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.host.observe import clients
from formation_p2p.host.observe.metrics import Metrics
from formation_p2p.host.shell import Shell

log = logging.getLogger(__name__)

# A request with all headers that a browser sends has 2 KiB.
MAX_REQUEST_BYTES: Final = 8 * 1024

_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def listen_for_metrics(address: str) -> socket.socket:
    """At `127.0.0.1:9464`, `[::1]:9464` or `localhost:0`. Raises InvalidInput, LocalError."""
    host, colon, port = address.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not colon or not host or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        problem = f"{address!r} is not an address; write it like 127.0.0.1:9464"
        raise InvalidInput("metrics", problem)
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(
            host, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(target)
            listener.listen(clients.MAX_CLIENTS)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        problem = f"metrics cannot be served at {address}: {error.strerror or error}"
        raise LocalError(f"{problem}; choose another address or port") from error
    return listener


async def serve_metrics(listener: socket.socket, metrics: Metrics, shell: Shell) -> None:
    """Until cancelled. The listener stays open: its maker closes it."""
    metrics.shell = shell

    async def answer(client: trio.SocketStream) -> None:
        with trio.move_on_after(clients.EXCHANGE_S):
            try:
                head = await clients.receive_head(client, b"\r\n\r\n", MAX_REQUEST_BYTES)
                if head:
                    request = head.partition(b"\r\n")[0].decode("latin-1")
                    await client.send_all(_response(request, metrics))
            except trio.BrokenResourceError:
                log.debug("a client left before it had its metrics")

    await clients.serve_clients(listener, answer)


def _response(request: str, metrics: Metrics) -> bytes:
    method, _, rest = request.partition(" ")
    path = rest.partition(" ")[0].partition("?")[0]
    if path not in ("/metrics", "/"):
        status, body = "404 Not Found", b"metrics are at /metrics\n"
    elif method not in ("GET", "HEAD"):
        status, body = "405 Method Not Allowed", b"metrics are fetched with GET\n"
    else:
        status, body = "200 OK", generate_latest(metrics.registry)
    head = (
        f"HTTP/1.1 {status}\r\nContent-Type: {_TYPE}\r\nContent-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("ascii") + (b"" if method == "HEAD" else body)
