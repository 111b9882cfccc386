"""The parts of a running stack, put together."""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Final

import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_new_noise_key_pair
from libp2p.io.exceptions import IOException
from libp2p.security.noise.transport import Transport as NoiseTransport

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import RemoteError
from formation_p2p.core.identity import Identity
from formation_p2p.host.net.addresses import TcpAddress, expand, is_this_machine
from formation_p2p.host.net.connection import Connection
from formation_p2p.host.net.handlers import StreamHandlers
from formation_p2p.host.net.limits import PeerLimitsTable
from formation_p2p.host.net.parameters import NetParameters
from formation_p2p.host.net.protocols.kad import KadCaller, serve_kad
from formation_p2p.host.net.protocols.work import WorkSessions
from formation_p2p.host.net.swarm import Swarm
from formation_p2p.host.net.transport.stream import MuxedStream

if TYPE_CHECKING:
    from formation_p2p.host.net.stack import Handlers, Serve

log = logging.getLogger(__name__)

LOOPBACK: Final = "127.0.0.1"


class RunningStack:
    """What exists while a stack runs. `nursery` is the one that it runs in."""

    def __init__(
        self,
        identity: Identity,
        handlers: Handlers,
        nursery: trio.Nursery,
        kad_protocol: str,
        work_protocol: str,
        parameters: NetParameters,
    ) -> None:
        if "LIBP2P_DEBUG" not in os.environ:
            # `libp2p/__init__.py:141` makes it write to stderr, past the program's own logging,
            # what strangers cause. What of that matters is logged here.
            logging.getLogger("libp2p").setLevel(logging.CRITICAL)
        key_pair = create_new_key_pair(identity.seed)
        noise = NoiseTransport(key_pair, noise_privkey=create_new_noise_key_pair().private_key)
        self._handlers = handlers
        self._kad_protocol = kad_protocol
        self._nursery = nursery
        self.limits = PeerLimitsTable(parameters)
        self.served = StreamHandlers(key_pair.public_key.serialize(), self._told)
        self.swarm = Swarm(
            identity.peer_id,
            noise,
            parameters,
            serve=self.served.serve,
            on_dialling=self._dialling,
            on_dialled=self._dialled,
            on_disconnected=partial(_tell, "closed connections", handlers.disconnected),
        )
        self.kad = KadCaller(kad_protocol, self.swarm.dialler.dial, self.limits, self._spawn)
        self.work = WorkSessions(
            work_protocol,
            self.swarm.dialler.dial,
            self.limits,
            self._spawn,
            handlers.received,
            partial(_tell, "undelivered frames", handlers.undelivered),
        )
        self.served.by_protocol[kad_protocol] = self._serve_kad
        self.served.by_protocol[work_protocol] = self.work.serve

    async def start(
        self, listen: Sequence[TcpAddress], announce: tuple[str, ...]
    ) -> tuple[str, ...]:
        """Listen. Returns the addresses listened on; raises LocalError."""
        await self._nursery.start(self.swarm.run)
        await self.swarm.listen(listen)
        addresses = expand(self.swarm.bound)
        self.served.addresses = announce or addresses
        return addresses

    def serve(self, protocol: str, serve: Serve) -> None:
        """Before `start`: speak one protocol more."""

        async def serve_stream(stream: MuxedStream, connection: Connection) -> None:
            await serve(stream, connection.contact, self.limits.of(connection.peer))

        self.served.by_protocol[protocol] = serve_stream

    @property
    def stopping(self) -> bool:
        """Whether it is being closed, or broke: whatever fails now fails for that reason."""
        return self._nursery.cancel_scope.cancel_called or self.swarm.stopping

    async def _serve_kad(self, stream: MuxedStream, connection: Connection) -> None:
        limits = self.limits.of(connection.peer)
        await serve_kad(stream, connection, limits, self._handlers.asked, self._kad_protocol)

    def advertise(self, serving: bool) -> None:
        """Tell of the DHT's protocol in identify, or not, and push that to all who are there."""
        unlisted = frozenset() if serving else frozenset({self._kad_protocol})
        if unlisted != self.served.unlisted:
            self.served.unlisted = unlisted
            for connection in self.swarm.all():
                self._introduce(connection)

    def _introduce(self, connection: Connection) -> None:
        """Tell a peer who we are. A request that is sent to it now arrives together with that, so
        that it need not ask us, and wait, before it answers."""
        self._spawn(partial(self._push, connection))

    async def _push(self, connection: Connection) -> None:
        try:
            await self.served.push(connection)
        except (RemoteError, IOException, trio.TooSlowError) as error:
            log.debug("%s is not told what we are: %r", connection.peer, error)

    def server(self, connection: Connection) -> Contact:
        """Who is there, with addresses if others may be sent to it in the DHT."""
        return connection.as_server(self._kad_protocol)

    def _spawn(self, task: Callable[[], Awaitable[None]]) -> None:
        self._nursery.start_soon(_logged, task)

    def _told(self, connection: Connection) -> None:
        self._handlers.told(self.server(connection))

    def _dialling(self, connection: Connection) -> None:
        self._measure(connection)
        self._introduce(connection)

    def _dialled(self, connection: Connection) -> None:
        self._measure(connection)
        host = connection.remote_host
        if host is None:
            return  # gone already
        seen_from = LOOPBACK if is_this_machine(host) else host
        _tell("new connections", self._handlers.dialled_by, connection.peer, seen_from)

    def _measure(self, connection: Connection) -> None:
        tell = partial(_tell, "measured round trips", self._handlers.measured, connection.peer)
        connection.muxer.measured = tell


def _tell(what: str, handler: Callable[..., None], *args: object) -> None:
    try:
        handler(*args)
    except Exception:
        # The shell's fault, with nothing above to tell: the network goes on.
        log.exception("the handler of %s failed", what)


async def _logged(task: Callable[[], Awaitable[None]]) -> None:
    try:
        await task()
    except Exception:
        # One peer's stream must not end the network, whatever goes wrong with it.
        log.exception("a task of the network failed")
