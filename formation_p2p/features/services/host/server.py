"""Streams to the services of this node: admitted by grant and scope, led to the program, counted.

Whether one is taken is decided and said before any byte of a request is read, so that who is
refused knows that nothing has run. A stream that is open may be silent, or unread, for as long as
it likes, and costs others nothing: see `MuxedStream.become_tunnel`. For the same reason it takes
none of the places that a connection has for streams of all protocols, of which there are few, so
that the requests of many people can come through one peer.
"""

from __future__ import annotations

import logging
import socket
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, Protocol

import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import LocalError, ProtocolViolation, RemoteError
from formation_p2p.core.identity import PeerId
from formation_p2p.features.services.core.messages import (
    ANY,
    MAX_MESSAGE_BYTES,
    OpenService,
    ServiceOpened,
    ServiceRefusal,
    ServiceRefused,
    pack,
    parse,
)
from formation_p2p.features.services.host.stream import ServiceStream, serve_program
from formation_p2p.machine.descriptors import raise_descriptor_limit
from formation_p2p.net.limits import counted
from formation_p2p.net.transport.errors import IOException
from formation_p2p.net.transport.frames import encode_frame, read_frame
from formation_p2p.net.tunnels import LocalStream, TunnelStream
from formation_p2p.workload.core.scope import Scope

if TYPE_CHECKING:
    from formation_p2p.net.connection import Connection
    from formation_p2p.net.transport.stream import MuxedStream

# What runs on this node, as those who call it are led to it.


class Here(Protocol):
    """A replica on this node that has been started."""

    @property
    def digest(self) -> bytes: ...  # of its spec
    @property
    def scope(self) -> Scope: ...  # of the peers that may call it
    @property
    def max_requests(self) -> int: ...
    @property
    def outstanding(self) -> int: ...  # streams that lead there
    @property
    def is_stopping(self) -> bool: ...  # one that drains is not, until its time is over

    async def connect(self) -> socket.socket:
        """To its program; it does not block. Raises OSError where nothing listens."""

    def count(self, change: int, /) -> None:
        """So many streams more lead there."""

    def refused(self) -> None:
        """A stream was one more than it takes."""


class LocalReplicas(Protocol):
    """Those of this node. For its thread."""

    def here(self, service: str, /) -> Here | None:
        """None where no replica of it has been started."""


class NoReplicas:
    """Of a node that serves nothing."""

    def here(self, service: str) -> Here | None:
        return None


log = logging.getLogger(__name__)

PROTOCOL: Final = "/formation/service/1.0.0"
# Of one peer, to all services here: a gateway brings the requests of many people. Each is a file
# descriptor, and up to 1 MiB that is not read.
MAX_PEER_STREAMS: Final = 1024
# Of all peers.
MAX_NODE_STREAMS: Final = 2048
# From so many on the process needs more descriptors than the 1,024 that it begins with.
MANY_STREAMS: Final = 256
# To say what for, and to be answered.
ANSWER_S: Final = 10.0
# A program on this machine accepts within this, or has stopped to.
CONNECT_S: Final = 5.0

# Judges a peer by the grant that it shows, and says why not.
Admit = Callable[[Contact, bytes], str | None]
# The smallest circle that this node shares with a peer, by its grant.
ScopeOf = Callable[[bytes, PeerId], Scope]


class ServiceServer:
    """Of one node. Methods are for its thread. `replicas` are what it serves, and `members` what
    serves behind its gateway, where it has no replica itself."""

    def __init__(self, admit: Admit, scope_of: ScopeOf) -> None:
        self.replicas: LocalReplicas = NoReplicas()
        self.members: LocalReplicas = NoReplicas()
        self._admit = admit
        self._scope_of = scope_of
        self._streams: Counter[PeerId] = Counter()

    async def accept(self, stream: MuxedStream, connection: Connection) -> None:
        """One that a peer opens, until it is over. Raises RemoteError, IOException,
        TooSlowError."""
        with trio.fail_after(ANSWER_S):
            asked = parse(await read_frame(stream, MAX_MESSAGE_BYTES))
        if not isinstance(asked, OpenService):
            raise ProtocolViolation("a stream of a service that does not begin with OpenService")
        here = self._admitted(asked, Contact(connection.peer))
        if isinstance(here, ServiceRefused):
            await _answer(stream, here)
            return
        connection.tunnels(stream)
        await self._serve(here, asked.service, stream, connection.peer)

    async def serve_here(self, asked: OpenService, stream: LocalStream, me: PeerId) -> None:
        """One of this node's own. Raises as `accept`."""
        here = self._admitted(asked, Contact(me))
        if isinstance(here, ServiceRefused):
            await _answer(stream, here)
            await stream.close()
        else:
            await self._serve(here, asked.service, stream, me)

    def _admitted(self, asked: OpenService, peer: Contact) -> Here | ServiceRefused:
        """The replica that it is for, or why it may not be."""
        why = self._admit(peer, asked.grant)
        if why is not None:
            return ServiceRefused(ServiceRefusal.DENIED, why)
        here = self.replicas.here(asked.service) or self.members.here(asked.service)
        if here is None or asked.digest not in (ANY, here.digest):
            version = "" if here is None else " of that version"
            return ServiceRefused(ServiceRefusal.NOT_HERE, f"no replica{version} is here")
        if self._scope_of(asked.grant, peer.peer_id) > here.scope:
            why = f"it serves its own {here.scope}; ask for a grant of that"
            return ServiceRefused(ServiceRefusal.DENIED, why)
        if here.is_stopping:
            return ServiceRefused(ServiceRefusal.DRAINING, "it is about to stop")
        if here.outstanding >= here.max_requests:
            here.refused()
            why = f"it has {here.max_requests} streams, as many as it takes"
            return ServiceRefused(ServiceRefusal.BUSY, why)
        if self._streams[peer.peer_id] >= MAX_PEER_STREAMS:
            why = f"you have {MAX_PEER_STREAMS} streams here; end some"
            return ServiceRefused(ServiceRefusal.BUSY, why)
        if self._streams.total() >= MAX_NODE_STREAMS:
            return ServiceRefused(ServiceRefusal.BUSY, "this node has as many streams as it can")
        return here

    async def _serve(self, here: Here, service: str, stream: TunnelStream, peer: PeerId) -> None:
        """One that was not refused, until it is over."""
        here.count(+1)
        try:
            with counted(self._streams, peer):
                if self._streams.total() == MANY_STREAMS:
                    raise_descriptor_limit()
                try:
                    with trio.fail_after(CONNECT_S):
                        end = await here.connect()
                except (OSError, LocalError, trio.TooSlowError) as error:
                    why = f"its program does not listen: {error}"
                    await _answer(stream, ServiceRefused(ServiceRefusal.NOT_HERE, why))
                    await stream.close()
                    return
                await self._lead(ServiceStream(stream, service, peer), end)
        finally:
            here.count(-1)

    async def _lead(self, stream: ServiceStream, end: socket.socket) -> None:
        try:
            await _answer(stream.stream, ServiceOpened())
            await serve_program(stream, end)
        except (RemoteError, IOException, trio.TooSlowError) as error:
            log.debug("a stream to %s ends: %r", stream.service, error)
            stream.abort(f"ended there: {error}")
        finally:
            end.close()


async def _answer(stream: TunnelStream, message: ServiceOpened | ServiceRefused) -> None:
    with trio.fail_after(ANSWER_S):
        await stream.write(encode_frame(pack(message)))
