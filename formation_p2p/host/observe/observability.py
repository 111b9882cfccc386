"""Observers of a node: the status socket, metrics, traces. None of them can stop the node, and the
node waits for none of them."""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from functools import partial

from prometheus_client import generate_latest

from formation_p2p.core.errors import LocalError
from formation_p2p.host.machine.claim import Claim
from formation_p2p.host.observe.metrics import Metrics
from formation_p2p.host.observe.metrics_http import listen_for_metrics, serve_metrics
from formation_p2p.host.observe.status import Events, StatusSocket
from formation_p2p.host.shell import Observe, Shell

log = logging.getLogger(__name__)


class Observability:
    """`open` before the runtime, `begin` with each new shell, `close` at the end.

    `metrics_at` is where metrics are served; None for nowhere. `more` are further observers.
    """

    def __init__(self, metrics_at: str | None, more: tuple[Observe, ...] = ()) -> None:
        self._metrics_at = metrics_at
        self._more = more
        self._events = Events()
        self._status: StatusSocket | None = None
        self._metrics: Metrics | None = None
        self._listener: socket.socket | None = None

    def open(self, claim: Claim) -> None:
        """Raises InvalidInput, LocalError where metrics cannot be served there."""
        if self._metrics_at is not None:
            self._listener = listen_for_metrics(self._metrics_at)
            self._metrics = Metrics(claim.identity.peer_id)
        self._status = StatusSocket(claim.status, claim.identity.peer_id, self._events)
        self._status.open()

    @property
    def observers(self) -> tuple[Observe, ...]:
        counted = () if self._metrics is None else (self._metrics.observe,)
        return (self._events.observe, *counted, *self._more)

    @property
    def metrics_address(self) -> tuple[str, int]:
        """Where metrics are served: the port, too, where any was asked for. Raises LocalError."""
        if self._listener is None:
            raise LocalError("this node serves no metrics; join with metrics='127.0.0.1:9464'")
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    def begin(self, shell: Shell) -> None:
        """On the node's thread."""
        if self._status is not None:
            shell.do(_guarded, self._status.serve, shell)
        if self._metrics is not None and self._listener is not None:
            self._metrics.shell = shell
            exposition = partial(generate_latest, self._metrics.registry)
            shell.do(_guarded, serve_metrics, self._listener, exposition)
            shell.do(_guarded, self._metrics.measure_lag)

    def close(self) -> None:
        if self._status is not None:
            self._status.close()
        if self._listener is not None:
            self._listener.close()


async def _guarded(task: Callable[..., Awaitable[None]], *arguments: object) -> None:
    try:
        await task(*arguments)
    except Exception:
        # A fault of an observer must not end the node.
        log.exception("%s ended; the node goes on without", task)
