"""Streams and connections of this node, as applications of py-libp2p know theirs."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn, Self

import trio
from libp2p.abc import IMuxedConn, IMuxedStream, INetConn, INetStream
from libp2p.connection_types import ConnectionType
from libp2p.custom_types import TProtocol
from libp2p.host.exceptions import HostException
from libp2p.network.stream.exceptions import StreamClosed, StreamEOF, StreamReset
from libp2p.peer.id import ID
from multiaddr import Multiaddr

from formation_p2p.core.identity import peer_id_to_bytes
from formation_p2p.net.connection import Connection
from formation_p2p.net.transport import errors
from formation_p2p.net.transport.stream import MuxedStream


def of_the_node(what: str) -> Any:
    """A method of py-libp2p's interfaces for what is the node's own affair."""

    async def refused(*args: object, **kwargs: object) -> NoReturn:
        raise HostException(f"{what}: the node does that itself; leave the call out")

    return refused


def answers(value: object) -> Any:
    """A method of py-libp2p's interfaces that has one answer here."""
    return lambda *args, **kwargs: value


class HostedStream(INetStream, IMuxedStream):
    """Any number of tasks may read and write: each call has its turn.

    A write that is cancelled, or passes its deadline, resets this stream, since some of it may be
    under way; the connection and its other streams go on. A peer that reads nothing for
    `window_stall_s` (net/transport/parameters.py) has the stream reset, too.
    """

    def __init__(
        self, stream: MuxedStream, connection: HostedConnection, protocol: TProtocol | None
    ) -> None:
        self.muxed_conn: HostedConnection = connection
        self.metric_send_channel = None
        self.over = trio.Event()
        """It has ended in both directions."""
        self._stream = stream
        self._protocol = protocol
        self._deadline_s = math.inf
        self._reading, self._writing = trio.Lock(), trio.Lock()
        # What is not read here, and what is large, is not to hold up the node's own protocols.
        stream.own_room()
        stream.send_much()

    def get_protocol(self) -> TProtocol | None:
        return self._protocol

    def set_protocol(self, protocol_id: TProtocol) -> None:
        self._protocol = protocol_id

    def set_deadline(self, ttl: int) -> None:
        """Each read and write from now on has so many seconds; then it raises TimeoutError."""
        if ttl < 0:
            raise ValueError(f"a deadline of {ttl} s is in the past; give 0 or more")
        self._deadline_s = ttl

    async def read(self, n: int | None = None) -> bytes:
        """What is there, up to `n` bytes, once something is. Raises StreamEOF, StreamReset."""
        with self._translated("read"):
            async with self._reading:
                return await self._stream.read(n)

    async def write(self, data: bytes) -> None:
        """All of it. Raises StreamClosed, StreamReset."""
        with self._translated("write"):
            async with self._writing:
                try:
                    await self._stream.write(bytes(data))
                except trio.Cancelled:
                    self._stream.abort("a write was cancelled")
                    raise

    @contextmanager
    def _translated(self, what: str) -> Iterator[None]:
        """As py-libp2p's streams raise it, within the deadline."""
        try:
            with trio.fail_after(self._deadline_s):
                yield
        except errors.StreamEOF as error:
            raise StreamEOF(str(error)) from error
        except errors.StreamClosed as error:
            raise StreamClosed(str(error)) from error
        except errors.TransportError as error:
            raise StreamReset(str(error)) from error
        except trio.TooSlowError:
            raise TimeoutError(f"a {what} took more than {self._deadline_s:g} s") from None

    async def close(self) -> None:
        """Finish writing. What the peer still says can be read, for half a minute at least."""
        await self._stream.close()

    close_write = close

    async def close_read(self) -> None:
        """Nothing, as in py-libp2p: what is not read is dropped once the stream is over."""

    async def reset(self) -> None:
        self.abort("reset by the application")

    def abort(self, reason: str) -> None:
        self._stream.abort(reason)

    @property
    def is_closed(self) -> bool:
        return self.over.is_set()

    def get_remote_address(self) -> tuple[str, int] | None:
        return self._stream.get_remote_address()

    async def __aenter__(self) -> Self:
        return self


class HostedConnection(INetConn, IMuxedConn):
    """One of the node's, which the node's own protocols share."""

    def __init__(
        self,
        connection: Connection,
        opened: Callable[[MuxedStream, Connection], HostedStream],
        streams: Callable[[HostedConnection], tuple[HostedStream, ...]],
        close: Callable[[HostedConnection], None],
    ) -> None:
        self.connection: Final = connection
        self.peer_id = ID(peer_id_to_bytes(connection.peer))
        self.muxed_conn: HostedConnection = self
        self.event_started = trio.Event()
        self.event_started.set()
        self.over = trio.Event()
        self._opened, self._streams, self._close = opened, streams, close

    @property
    def is_initiator(self) -> bool:
        return not self.connection.inbound

    @property
    def is_closed(self) -> bool:
        return self.connection.is_closed

    @property
    def is_established(self) -> bool:
        return not self.is_closed

    async def start(self) -> None:
        """Nothing: it runs."""

    async def close(self) -> None:
        """See `HostedNetwork.close_peer`."""
        self._close(self)

    async def open_stream(self) -> HostedStream:
        """One whose protocol the caller negotiates. Raises StreamReset."""
        try:
            return self._opened(self.connection.muxer.open(), self.connection)
        except errors.TransportError as error:
            raise StreamReset(str(error)) from error

    new_stream = open_stream
    accept_stream = of_the_node("accepting a stream")

    def get_streams(self) -> tuple[INetStream, ...]:
        """Those of the application."""
        return self._streams(self)

    def get_transport_addresses(self) -> list[Multiaddr]:
        return [Multiaddr(each) for each in self.connection.contact.addresses[:1]]

    def get_connection_type(self) -> ConnectionType:
        relayed = self.connection.via is not None
        return ConnectionType.RELAYED if relayed else ConnectionType.DIRECT
