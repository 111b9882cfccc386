"""The streams of one application of py-libp2p, and the node's connections as it sees them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final

import trio
from libp2p.abc import IListener, INetConn, INotifee, IPeerStore
from libp2p.custom_types import StreamHandlerFn, TProtocol
from libp2p.host.exceptions import HostException, StreamFailure
from libp2p.io.exceptions import IOException
from libp2p.network.exceptions import SwarmException
from libp2p.peer.id import ID
from libp2p.peer.peerstore import PeerStore, PeerStoreError
from libp2p.protocol_muxer.multiselect import Multiselect
from multiaddr import Multiaddr

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import InvalidInput, ProtocolViolation, Unreachable
from formation_p2p.core.identity import peer_id_from_bytes
from formation_p2p.features.libp2p.streams import HostedConnection, HostedStream
from formation_p2p.net.connection import Connection
from formation_p2p.net.places import Places
from formation_p2p.net.transport.negotiation import NotSpoken
from formation_p2p.net.transport.stream import MuxedStream
from formation_p2p.net.transport.token_bucket import TokenBucket
from formation_p2p.reach.stack import Stack

log = logging.getLogger(__name__)

# Streams that peers have opened: of all, and of each. What lies unread on one is 256 KiB at most.
# One more takes the place of the oldest of its peer, or of the peer that has most.
MAX_STREAMS: Final = 256
MAX_STREAMS_OF_PEER: Final = 32
# Names of the node's own protocols begin so, whether this node serves them or not.
RESERVED: Final = "/formation/"
# What identify tells of a peer is kept so long; py-libp2p's peerstore bounds of how many peers.
LEARNT_S: Final = 3600
# Handlers that fail are told to the log so often, with what failed; the others at level DEBUG.
FAILURES_PER_S: Final = 1


class Application:
    """The part of `HostedNetwork` (host.py) that does the work."""

    is_closed = False

    def __init__(self, stack: Stack, nursery: trio.Nursery) -> None:
        super().__init__()
        self.peerstore: IPeerStore = PeerStore()
        self.connections: dict[ID, list[INetConn]] = {}
        self.listeners: dict[str, IListener] = {}
        self.mux = Protocols(self)
        self.stack, self._nursery = stack, nursery
        self._notifees: list[INotifee] = []
        self._hosted: dict[Connection, HostedConnection] = {}
        self._streams: set[HostedStream] = set()
        self._places = Places(MAX_STREAMS, MAX_STREAMS_OF_PEER)
        self._serving: set[trio.CancelScope] = set()
        self._failures = TokenBucket(FAILURES_PER_S)
        self._is_telling = False
        stack.swarm.followers.add(self.follow)
        for connection in stack.connections():
            self.follow(connection)

    # -- what peers open ------------------------------------------------------------------

    def check_name(self, protocol: TProtocol) -> None:
        """Raises InvalidInput, HostException."""
        self.check()
        spoken = protocol in self.stack.served.by_protocol and protocol not in self.mux.handlers
        if spoken or protocol.startswith(RESERVED):
            why = f"the node, or another host on it, speaks {protocol}; choose another name"
            raise InvalidInput("protocol_id", why)

    def serve(self, protocol: TProtocol, handler: StreamHandlerFn | None) -> None:
        """None: no more. Peers are told soon."""
        by_protocol = self.stack.served.by_protocol
        if handler is None:
            by_protocol.pop(protocol, None)
        else:
            by_protocol[protocol] = partial(self._serve, protocol, handler)
        if not self._is_telling and not self.is_closed:
            self._is_telling = True  # once for all handlers that are set in one turn
            self._nursery.start_soon(self._tell_names)

    async def _tell_names(self) -> None:
        self._is_telling = False
        self.stack.push()

    async def _serve(
        self,
        protocol: TProtocol,
        handler: StreamHandlerFn,
        stream: MuxedStream,
        connection: Connection,
    ) -> None:
        """Until the stream is over: a handler may leave it to other tasks, and return."""
        hosted = self._opened(stream, connection, protocol)
        with self._places.taken(connection.peer) as place:
            self._serving.add(place)
            try:
                await handler(hosted)
                await hosted.over.wait()
            except IOException as error:
                log.debug("%s ends with %s: %r", protocol, connection.peer, error)
                stream.abort(f"ended here: {error}")
            except (Exception, SystemExit):
                level = logging.ERROR if self._failures.take() else logging.DEBUG
                what = "the handler of %s failed on a stream of %s; the stream is reset"
                log.log(level, what, protocol, connection.peer, exc_info=True)
                stream.abort("failed here")
            finally:
                self._serving.discard(place)
        if place.cancelled_caught:
            stream.abort("the application ended, or another stream took its place")

    def _opened(
        self, stream: MuxedStream, connection: Connection, protocol: TProtocol | None = None
    ) -> HostedStream:
        hosted = HostedStream(stream, self.hosted_by(connection), protocol)
        self._streams.add(hosted)
        stream.on_over = partial(self._over, hosted)
        if stream.broken is not None:
            self._over(hosted)
        for notifee in self._notifees:
            tell = notifee.opened_stream, notifee.closed_stream
            self._nursery.start_soon(self._tell, notifee, hosted, *tell)
        return hosted

    def _over(self, hosted: HostedStream) -> None:
        self._streams.discard(hosted)
        hosted.over.set()

    # -- connections ----------------------------------------------------------------------

    def follow(self, connection: Connection) -> None:
        """It is there, its peer has said what it is, or it is over."""
        if not connection.is_closed:
            if not connection.fleeting:
                self._learn(self.hosted_by(connection))
        elif (gone := self._hosted.pop(connection, None)) is not None:
            gone.over.set()
            self.connections[gone.peer_id].remove(gone)
            if not self.connections[gone.peer_id]:
                del self.connections[gone.peer_id]

    def hosted_by(self, connection: Connection) -> HostedConnection:
        if (hosted := self._hosted.get(connection)) is None:
            hosted = HostedConnection(connection, self._opened, self._streams_of, self.leave)
            if connection.is_closed:
                hosted.over.set()
                return hosted
            self._hosted[connection] = hosted
            self.connections.setdefault(hosted.peer_id, []).append(hosted)
            for notifee in self._notifees:
                self._tell_connection(notifee, hosted)
        return hosted

    def _learn(self, hosted: HostedConnection) -> None:
        connection = hosted.connection
        try:
            if connection.contact.addresses:
                addresses = [Multiaddr(each) for each in connection.contact.addresses]
                self.peerstore.add_addrs(hosted.peer_id, addresses, LEARNT_S)
            if connection.protocols:
                self.peerstore.set_protocols(hosted.peer_id, sorted(connection.protocols))
        except Exception:
            # py-libp2p's, or the application's own: the swarm, which tells of this, goes on.
            log.exception("the peerstore does not take what %s says", connection.peer)

    def _streams_of(self, hosted: HostedConnection) -> tuple[HostedStream, ...]:
        return tuple(each for each in self._streams if each.muxed_conn is hosted)

    def leave(self, hosted: HostedConnection) -> None:
        for stream in self._streams_of(hosted):
            stream.abort("the application disconnects")
        connection, swarm = hosted.connection, self.stack.swarm
        muxer = connection.muxer
        if not (swarm.keeps(connection.peer) or muxer.is_known or muxer.has_tunnels):
            connection.abort("the application disconnects")

    async def dialled(
        self, peer_id: ID, addresses: Sequence[Multiaddr] | None = None
    ) -> Connection:
        self.check()
        try:
            peer = peer_id_from_bytes(peer_id.to_bytes())
        except ValueError as error:
            raise SwarmException(f"{peer_id}: {error}; take one of Ed25519 or RSA") from error
        if (connection := self.stack.swarm.connection_to(peer)) is not None:
            return connection
        if addresses is None:
            with suppress(PeerStoreError):
                addresses = self.peerstore.addrs(peer_id)
        if not addresses:
            why = "is not connected, and the peerstore has no address of it"
            raise SwarmException(f"{peer} {why}; connect() to a PeerInfo with its addresses first")
        try:
            dialled = await self.stack.swarm.dialler.dial(Contact(peer, tuple(map(str, addresses))))
        except Unreachable as error:
            raise SwarmException(f"{error}; is it running, and is that its address?") from error
        self.check()
        return dialled

    def check(self) -> None:
        if self.is_closed:
            raise HostException("this host is closed; have node.libp2p_host() make another")

    async def open(self, peer_id: ID, protocols: Sequence[TProtocol]) -> HostedStream:
        """One that speaks the first of these that the peer speaks. Raises SwarmException,
        StreamFailure, HostException."""
        connection = await self.dialled(peer_id)
        for protocol in protocols:
            try:
                stream = await connection.open(protocol)
            except NotSpoken:
                continue
            except (ProtocolViolation, Unreachable) as error:
                if connection.is_closed:
                    raise SwarmException(f"{error}; connect to it again") from error
                raise StreamFailure(f"{connection.peer} opens no stream: {error}") from error
            if self.is_closed:
                stream.abort("the application ended")
            self.check()
            return self._opened(stream, connection, protocol)
        none = ", ".join(protocols) or "nothing, since no protocol was given"
        raise StreamFailure(f"{connection.peer} does not speak {none}; does its handler run?")

    def end(self) -> None:
        """Streams are reset, handlers cancelled, and the names are free. The node goes on."""
        if self.is_closed:
            return
        self.is_closed = True
        self.stack.swarm.followers.discard(self.follow)
        for protocol in list(self.mux.handlers):
            self.serve(TProtocol(str(protocol)), None)
        for place in self._serving:
            place.cancel()
        for stream in tuple(self._streams):
            stream.abort("the application ended")
        if not self.stack.stopping:
            self.stack.push()

    # -- notifees -------------------------------------------------------------------------

    def register_notifee(self, notifee: INotifee) -> None:
        """It is told of the connections that are there, too."""
        self.check()
        self._notifees.append(notifee)
        for hosted in self._hosted.values():
            self._tell_connection(notifee, hosted)

    def remove_notifee(self, notifee: INotifee) -> None:
        with suppress(ValueError):
            self._notifees.remove(notifee)

    def _tell_connection(self, notifee: INotifee, hosted: HostedConnection) -> None:
        tell = notifee.connected, notifee.disconnected
        self._nursery.start_soon(self._tell, notifee, hosted, *tell)

    async def _tell(
        self,
        notifee: INotifee,
        subject: HostedConnection | HostedStream,
        begun: Callable[..., Any],
        ended: Callable[..., Any],
    ) -> None:
        """Of one connection or stream, in order; one that takes its time holds up no other."""
        try:
            await begun(self, subject)
            await subject.over.wait()
            if notifee in self._notifees:
                await ended(self, subject)
        except Exception:
            log.exception("a notifee failed: %r", notifee)


class Protocols(Multiselect):
    """The names of the application's protocols. The node negotiates them."""

    def __init__(self, application: Application) -> None:
        super().__init__()
        self._application = application

    def add_handler(self, protocol: TProtocol | None, handler: StreamHandlerFn | None) -> None:
        """Raises InvalidInput where the node speaks a protocol of that name."""
        if protocol is None or handler is None:
            raise InvalidInput("protocol_id", "a handler is for a protocol; name both")
        self._application.check_name(protocol)
        super().add_handler(protocol, handler)
        self._application.serve(protocol, handler)

    def remove_handler(self, protocol: TProtocol) -> None:
        if protocol in self.handlers:
            super().remove_handler(protocol)
            self._application.serve(protocol, None)
