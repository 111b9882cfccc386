"""Observers of a node: its socket, metrics, traces. None of them can stop the node, and the
node waits for none of them."""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from typing import Final

import trio
from prometheus_client import generate_latest

from formation_p2p.core.errors import LocalError
from formation_p2p.machine.claim import Claim
from formation_p2p.net.transport.addresses import parse_host_and_port
from formation_p2p.net.transport.tcp import serve_clients
from formation_p2p.observe.metrics import Metrics
from formation_p2p.observe.status import Events, Status
from formation_p2p.peer.runtime_config import Observe
from formation_p2p.peer.shell import Shell
from formation_p2p.rpc.node_socket import NodeSocket

log = logging.getLogger(__name__)


# Metrics over HTTP, for Prometheus to fetch: one small server on the node's own loop. It answers
# `GET /metrics` and nothing else, on the address that was given and no other. A client that is
# slow, or has too many connections, loses them; the node does not notice.
# A request with all headers that a browser sends has 2 KiB.
MAX_REQUEST_BYTES: Final = 8 * 1024
# Prometheus fetches over one connection, every few seconds; some have two of them.
MAX_CLIENTS: Final = 8
# For a request to arrive, and for an answer to be taken.
EXCHANGE_S: Final = 10.0
_END: Final = b"\r\n\r\n"

_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def listen_for_metrics(address: str) -> socket.socket:
    """At `127.0.0.1:9464`, `[::1]:9464` or `localhost:0`. Raises InvalidInput, LocalError."""
    host, port = parse_host_and_port("metrics", address, 9464)
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


async def serve_metrics(listener: socket.socket, metrics: Metrics, shell: Shell) -> None:
    """Until cancelled. The listener stays open: its maker closes it."""
    metrics.shell = shell

    async def answer(client: trio.SocketStream) -> None:
        with trio.move_on_after(EXCHANGE_S):
            try:
                head = await _head(client)
                if head:
                    request = head.partition(b"\r\n")[0].decode("latin-1")
                    await client.send_all(_response(request, metrics))
            except trio.BrokenResourceError:
                log.debug("a client left before it had its metrics")

    await serve_clients(listener, answer, MAX_CLIENTS)


async def _head(client: trio.SocketStream) -> bytes:
    """Of a request; nothing where it does not end within MAX_REQUEST_BYTES."""
    head = b""
    while _END not in head:
        received = await client.receive_some(MAX_REQUEST_BYTES)
        head += received
        if not received or len(head) > MAX_REQUEST_BYTES:
            return b""
    return head


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


class Observability:
    """`open` before the runtime, `begin` with each new shell.

    `metrics_at` is where metrics are served; None for nowhere. `more` are further observers.
    """

    def __init__(self, metrics_at: str | None, more: tuple[Observe, ...] = ()) -> None:
        self._metrics_at = metrics_at
        self._events = Events()
        self.observers = [self._events.observe, *more]
        self.socket: NodeSocket  # once it is open
        self._listener: socket.socket | None = None
        self._tasks: list[Callable[[Shell], Awaitable[None]]] = []

    def open(self, claim: Claim, closing: ExitStack) -> None:
        """What is opened is closed by `closing`. Raises InvalidInput, LocalError where metrics
        cannot be served there."""
        peer_id = claim.identity.peer_id
        if self._metrics_at is not None:
            self._listener = closing.enter_context(listen_for_metrics(self._metrics_at))
            metrics = Metrics(peer_id)
            self.observers.append(metrics.observe)
            self._tasks += [metrics.measure_lag, partial(serve_metrics, self._listener, metrics)]
        self.socket = NodeSocket(claim.socket)
        self.socket.enter(Status(peer_id, self._events).methods)
        closing.callback(self.socket.close)
        self.socket.open()
        self._tasks.append(self.socket.serve)

    @property
    def metrics_address(self) -> tuple[str, int]:
        """Where metrics are served: the port, too, where any was asked for. Raises LocalError."""
        if self._listener is None:
            raise LocalError("this node serves no metrics; join with metrics='127.0.0.1:9464'")
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    def begin(self, shell: Shell) -> None:
        """On the node's thread."""
        for task in self._tasks:
            shell.do(_guarded, task, shell)


async def _guarded(task: Callable[[Shell], Awaitable[None]], shell: Shell) -> None:
    try:
        await task(shell)
    except Exception:
        # A fault of an observer must not end the node.
        log.exception("%s ended; the node goes on without", task)
