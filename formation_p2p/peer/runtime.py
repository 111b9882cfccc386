"""The thread that hosts the node: one trio loop, started again when the network stack crashes.

The stack runs on trio alone, and an application's asyncio loop may come and go; so the whole node
lives in a thread of its own, and callers cross over once for each operation.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

import trio

from formation_p2p.assembly import UserEffect
from formation_p2p.core.errors import LocalError, NodeClosed
from formation_p2p.machine.descriptors import raise_descriptor_limit
from formation_p2p.peer.runtime_config import RuntimeConfig
from formation_p2p.peer.shell import LEAVE_S, Shell
from formation_p2p.reach.circuit_settings import CircuitSettings
from formation_p2p.reach.core.own_addresses import Reached, Way
from formation_p2p.trust.core.charter import Charter
from formation_p2p.trust.core.membership import Membership

log = logging.getLogger(__name__)

# A stack that crashed is started again after this long, doubled each time it crashes at once.
FIRST_RESTART_S: Final = 0.5
LAST_RESTART_S: Final = 30.0


class Runtime:
    """`notify` gets the effects for the person, as many as there are at once, and `crashed`
    every crash, both on the node's thread; they must hand over and return. `started` is called
    with each new shell."""

    def __init__(
        self,
        config: RuntimeConfig,
        *,
        notify: Callable[[Sequence[UserEffect]], None],
        crashed: Callable[[BaseException], None],
        started: Callable[[Shell], None],
    ) -> None:
        self._config = config
        self._notify = notify
        self._crashed = crashed
        self._started = started
        self._up = threading.Event()
        self._failure: BaseException | None = None
        self._lock = threading.Lock()
        self._token: trio.lowlevel.TrioToken | None = None
        self._shell: Shell | None = None
        self._membership: Membership | None = None
        self._stop_asked = threading.Event()
        self._thread = threading.Thread(target=self._main, name="formation", daemon=True)
        self._bound: tuple[str, ...] = ()
        self._addresses: tuple[str, ...] = ()

    def start(self) -> None:
        """Blocks until the network is up. Raises LocalError where it does not come up; `stop` is
        to be called in any case."""
        self._thread.start()
        within_s = self._config.start_s
        if not self._up.wait(within_s):
            raise LocalError(f"the network did not start within {within_s:.0f} s; see the log")
        if self._failure is not None:
            raise self._failure

    @property
    def addresses(self) -> tuple[str, ...]:
        """What peers are told now, or were last."""
        if (shell := self._shell) is not None:
            self._addresses = shell.stack.announced
        return self._addresses

    @property
    def reached(self) -> Reached:
        """By which ways others reach this node, as it knows by now."""
        shell = self._shell
        return Reached(Way.UNKNOWN) if shell is None else shell.stack.own.reached

    def call(self, function: Callable[[Shell], None]) -> None:
        """Have the node's thread do something soon. From any thread; does not wait.

        Raises NodeClosed while the stack is down.
        """
        with self._lock:
            token, shell = self._token, self._shell
        if token is None or shell is None:
            raise NodeClosed("the node is not running; join again, or wait for its restart")
        try:
            token.run_sync_soon(function, shell)
        except trio.RunFinishedError:
            raise NodeClosed("the node has stopped; join again") from None

    @property
    def charter(self) -> Charter | None:
        """What the node goes by now. From any thread: charters do not change."""
        return None if self._membership is None else self._membership.charter

    def stop(self) -> None:
        """Leave in good order, and wait for the thread to end. Safe to call twice, and where it
        did not start."""
        self._stop_asked.set()
        if not self._thread.is_alive():
            return
        try:
            self.call(_leave)
        except NodeClosed:
            log.debug("stopped while the stack was down")
        # The withdrawal has its own bound; then the drivers kill, and sockets close.
        self._thread.join(LEAVE_S + 10.0)
        if self._thread.is_alive():
            log.error("the node's thread did not end; its sockets close with the process")

    def _main(self) -> None:
        wait_s = FIRST_RESTART_S
        while not self._stop_asked.is_set():
            began_s = time.monotonic()
            try:
                trio.run(self._host)
            except BaseException as error:
                # Whatever ended the loop: the caller of `start` is told if it still waits, and
                # those whose calls are pending if it does not.
                if not self._up.is_set():
                    self._failure = _as_local(error)
                    self._up.set()
                    return
                if time.monotonic() - began_s > LAST_RESTART_S:
                    wait_s = FIRST_RESTART_S
                log.exception("the network stack crashed; it starts again in %.1f s", wait_s)
                self._crashed(error)
                self._stop_asked.wait(wait_s)
                wait_s = min(wait_s * 2, LAST_RESTART_S)
            else:
                return
            finally:
                with self._lock:
                    self._token = self._shell = None

    async def _host(self) -> None:
        # Here, since importing the stack takes half a second, and much that imports this package
        # starts no node.
        from formation_p2p.content.exchange import Exchange
        from formation_p2p.content.private import PrivateExchange
        from formation_p2p.content.remote import RemoteBlobs
        from formation_p2p.content.stage_outputs import keep_outputs
        from formation_p2p.net.transport.parameters import DEFAULTS, GATE
        from formation_p2p.reach.stack import Stack

        config = self._config
        # After a crash it goes by what it had adopted.
        signed = config.charter if self._membership is None else self._membership.signed
        membership = self._membership = Membership(config.network.root_public_key, signed)
        # After a crash, at the port that others know.
        stack = Stack(
            config.identity,
            self._bound or config.listen,
            announce=config.announce,
            gates=(gate.peer_id for gate in config.network.contacts()),
            parameters=DEFAULTS if config.relay is None else GATE,
            circuits=CircuitSettings(
                grant=lambda: exchange.grant,
                admits=lambda *shown: membership.denies_membership(*shown) is None,
                gates=config.network.contacts(),
                relay=config.relay,
                reserves=config.reserves,
            ),
        )
        if config.relay is not None:
            raise_descriptor_limit()
        remote = RemoteBlobs(stack, config.network.grant)
        own = config.identity.peer_id
        private = PrivateExchange(
            config.private, config.identity, remote, config.arrivals, local=config.shares_memory
        )
        exchange = Exchange(
            config.blobs, stack, own, config.network, private=private, membership=membership
        )
        shell = Shell(config, stack, exchange, self._notify, membership)
        async with trio.open_nursery() as nursery:
            await nursery.start(shell.run)
            shell.do(keep_outputs, stack, exchange, shell.peer.scheduler.jobs)
            if config.shares_memory:
                shell.do(exchange.serve_nearby, config.identity)
            self._bound, self._addresses = stack.bound, stack.announced
            with self._lock:
                self._token, self._shell = trio.lowlevel.current_trio_token(), shell
            if self._stop_asked.is_set():  # before there was a shell to be told
                _leave(shell)
                return
            self._started(shell)
            self._up.set()


def _leave(shell: Shell) -> None:
    trio.lowlevel.spawn_system_task(shell.leave)


def _as_local(error: BaseException) -> BaseException:
    """The one error that a person can act on, out of the groups that nurseries wrap it in."""
    while isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
        error = error.exceptions[0]
    if isinstance(error, LocalError):
        return error
    local = LocalError(f"the network did not start: {error!r}")
    local.__cause__ = error
    return local
