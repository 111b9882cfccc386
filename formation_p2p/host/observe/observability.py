"""Observers of a node: the status socket, metrics, traces. None of them can stop the node, and the
node waits for none of them."""

from __future__ import annotations

import logging
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial

from formation_p2p.core.errors import LocalError
from formation_p2p.host.machine.claim import Claim
from formation_p2p.host.observe.metrics import Metrics
from formation_p2p.host.observe.metrics_http import listen_for_metrics, serve_metrics
from formation_p2p.host.observe.status import Events, StatusSocket
from formation_p2p.host.runtime_config import Observe
from formation_p2p.host.shell import Shell

log = logging.getLogger(__name__)


class Observability:
    """`open` before the runtime, `begin` with each new shell.

    `metrics_at` is where metrics are served; None for nowhere. `more` are further observers.
    """

    def __init__(self, metrics_at: str | None, more: tuple[Observe, ...] = ()) -> None:
        self._metrics_at = metrics_at
        self._events = Events()
        self.observers = [self._events.observe, *more]
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
        status = StatusSocket(claim.status, peer_id, self._events)
        closing.callback(status.close)
        status.open()
        self._tasks.append(status.serve)

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
