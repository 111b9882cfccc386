"""Circuits as a node has them that is at one of their ends: it dials them, and takes those that
its gates bring.

A circuit carries a connection like any other: Noise and yamux run from end to end, so that the gate
sees who speaks to whom and how much, and nothing of what.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import ProtocolViolation, Unreachable
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import MIB
from formation_p2p.net.connection import Connection
from formation_p2p.net.logged import logged
from formation_p2p.net.places import Places
from formation_p2p.net.transport import negotiation as net_negotiation
from formation_p2p.net.transport.addresses import CircuitAddress
from formation_p2p.net.transport.errors import ConnectionClosedError, IOException, SwarmException
from formation_p2p.net.transport.frames import encode_frame, read_frame
from formation_p2p.net.transport.negotiation import NotSpoken
from formation_p2p.net.transport.noise import PROTOCOL as NOISE_PROTOCOL
from formation_p2p.net.transport.raw import MAX_READ_BYTES, RawStream
from formation_p2p.net.transport.stream import (
    BULK_DATA_BYTES,
    BULK_WINDOW_BYTES,
    NARROW_ROUND_TRIPS,
    MuxedStream,
)
from formation_p2p.net.transport.upgrade import upgrade
from formation_p2p.reach.core import resumption
from formation_p2p.reach.core.circuit_messages import (
    HOP_PROTOCOL,
    MAX_MESSAGE_BYTES,
    UNLIMITED,
    Answered,
    Connect,
    HopReply,
    HopRequest,
    Incoming,
    Limit,
    Status,
    encode_hop,
    encode_stop,
    parse_hop_reply,
    parse_stop,
)
from formation_p2p.reach.resuming import ResumedStream

if TYPE_CHECKING:
    from formation_p2p.net.swarm import Swarm

# A circuit as what carries a connection, and how much of it may be under way.

# Taken at a time of what has arrived.
READ_BYTES: Final = 4 * BULK_DATA_BYTES
# A stream that carried so much in such a time gets a wide window: it is no slow link, on which a
# small frame would wait behind all that the window holds. One whose sender waits for the far end of
# a long link gets a window of twice the size.
FAST_BYTES: Final = MIB
FAST_S: Final = 0.5
# Wide ones at once, of 4 MiB each.
MAX_WIDE: Final = 64


class Widening:
    """Which streams of circuits have wide windows: the first that are fast."""

    def __init__(self) -> None:
        self.wide = 0


class Width:
    """That of one stream. `narrow` it at the end."""

    def __init__(self, stream: MuxedStream, all_streams: Widening) -> None:
        self._stream = stream
        self._all = all_streams
        self._is_wide = False
        self._bytes = 0
        self._since_s = trio.current_time()

    def carried(self, size: int) -> None:
        """So much was read from it."""
        self._bytes += size
        window_bytes = self._stream.window_bytes
        if self._bytes < window_bytes or window_bytes >= BULK_WINDOW_BYTES:
            return
        now_s = trio.current_time()
        took_s, windows = now_s - self._since_s, self._bytes / window_bytes
        if self._bytes >= FAST_BYTES and took_s <= FAST_S:
            self._widen(BULK_WINDOW_BYTES)
        elif took_s < windows * NARROW_ROUND_TRIPS * self._stream.carrier.pings.least_rtt_s:
            self._widen(2 * window_bytes)
        elif self._bytes < FAST_BYTES:
            return
        self._bytes, self._since_s = 0, now_s

    def _widen(self, window_bytes: int) -> None:
        if not self._is_wide and self._all.wide >= MAX_WIDE:
            return
        self._all.wide += not self._is_wide
        self._is_wide = True
        if self._stream.broken is None:
            self._stream.widen(window_bytes)

    def narrow(self) -> None:
        self._all.wide -= self._is_wide
        self._is_wide = False


class CircuitStream(RawStream):
    """A stream to a relay, which copies it, as what carries a connection."""

    def __init__(self, stream: MuxedStream, widening: Widening) -> None:
        super().__init__()
        self._stream = stream
        self._width = Width(stream, widening)
        self._length: int | None = None  # of the next message, once it is known
        self._turn_bytes = 0  # taken in this turn of the loop
        self._unsent = memoryview(b"")
        self._torn = False
        stream.own_room()
        stream.send_much()

    async def fill(self) -> None:
        """Wait for more bytes. They stay in the stream until they are taken, which copies them
        once; others have their turn as well."""
        if self._turn_bytes >= READ_BYTES:
            self._turn_bytes = 0
            await trio.lowlevel.checkpoint()
            return
        try:
            await self._stream.arrival()
        except IOException as error:
            raise ConnectionClosedError(f"the circuit ends: {error}") from error
        self._turn_bytes = 0

    async def read(self, n: int | None = None) -> bytes:
        there = self._stream.unread
        while len(there) < (1 if n is None else min(n, MAX_READ_BYTES)):
            await self.fill()
        return self._take(len(there) if n is None else min(n, MAX_READ_BYTES))

    def take_prefixed(self, size: int, most_bytes: int) -> memoryview | None:
        there = self._stream.unread
        if self._turn_bytes >= READ_BYTES:
            return None
        if self._length is None and len(there) >= size:
            self._length = int.from_bytes(self._take(size), "big")
        if self._length is None or self._length > min(len(there), most_bytes):
            return None
        length, self._length = self._length, None
        return memoryview(self._take(length))

    def _take(self, size: int) -> bytes:
        self._turn_bytes += size
        self._width.carried(size)
        return self._stream.read_now(size)

    def write_now(self, *parts: bytes | memoryview) -> bool:
        if self._torn or self._unsent:
            raise ConnectionClosedError("an earlier write was cut short")
        data = b"".join(parts)
        try:
            if self._stream.write_now(data):
                return True
        except IOException as error:
            raise ConnectionClosedError(f"the circuit ends: {error}") from error
        self._unsent = memoryview(data)
        return False

    async def flush(self) -> bool:
        self._torn = True
        piece = self._unsent[:READ_BYTES]
        try:
            await self._stream.write(piece)
        except IOException as error:
            raise ConnectionClosedError(f"the circuit ends: {error}") from error
        self._unsent = self._unsent[len(piece) :]
        self._torn = False
        return not self._unsent

    async def close(self) -> None:
        """At once, even when cancelled."""
        self._width.narrow()
        self._stream.leave()

    def abort(self) -> None:
        """The relay gives up the circuit, whatever the other end still sends."""
        self._stream.abort("no connection comes of it")

    def get_remote_address(self) -> tuple[str, int] | None:
        """None: that of the relay says nothing of the peer."""
        return None


log = logging.getLogger(__name__)

# A gate answers for itself at once; for a circuit it asks the other end, for STOP_S at most.
REQUEST_S: Final = 10.0
STOP_S: Final = 8.0
# What a gate brings at once, and has not shaken hands.
MAX_INCOMING: Final = 32
# On a circuit that a relay brings.
SPOKEN: Final = (NOISE_PROTOCOL, resumption.PROTOCOL)


async def _propose(stream: MuxedStream) -> None:
    """That the circuit goes on with a session. Raises NotSpoken, Unreachable, ProtocolViolation."""
    try:
        with trio.fail_after(REQUEST_S):
            await net_negotiation.offer(stream, resumption.PROTOCOL)
            await net_negotiation.confirm(stream, resumption.PROTOCOL)
    except trio.TooSlowError:
        stream.abort("no answer")
        raise Unreachable("the peer does not answer on a circuit") from None
    except NotSpoken:
        raise
    except BaseException:
        stream.abort("no protocol agreed")
        raise


@dataclass(eq=False)
class Circuits:
    """`grant` is what relays are shown; `most_from` says how many connections a relay may bring
    at once, if any."""

    swarm: Swarm
    grant: Callable[[], bytes]
    most_from: Callable[[PeerId], int]

    def __post_init__(self) -> None:
        self.widening = Widening()
        self._incoming: dict[PeerId, Places] = {}  # of handshakes, by the relay
        # Each of a connection, or of a handshake; and so are bounded.
        self._sessions: dict[bytes, ResumedStream] = {}

    async def dial(self, address: CircuitAddress, peer: PeerId) -> Connection:
        """A connection to `peer` through the relay of `address`, which is dialled if need be. Where
        the relay cuts its circuits, the connection goes on over others, if the peer knows how.
        Raises SwarmException, Unreachable, ProtocolViolation."""
        relay = Contact(address.relay_id, (str(address.relay),))
        stream, limit = await self._connect(relay, peer)
        raw: RawStream | None = None
        if limit != UNLIMITED:
            try:
                raw = await self._over_several(relay, peer, stream, limit)
            except NotSpoken:
                stream.abort("it is not spoken")
                stream, limit = await self._connect(relay, peer)
        if raw is None:
            raw = CircuitStream(stream, self.widening)
        muxer = await upgrade(self.swarm.keys, self.swarm.parameters, raw, peer)
        return Connection(muxer, inbound=False, via=relay.peer_id)

    async def _connect(self, relay: Contact, peer: PeerId) -> tuple[MuxedStream, Limit]:
        """A circuit. Raises Unreachable, ProtocolViolation."""
        stream, said = await self.ask(relay, Connect(peer, self.grant()))
        if not isinstance(said, Answered) or said.status is not Status.OK:
            stream.abort("no circuit")
            status = said.status.name if isinstance(said, Answered) else "a reservation"
            raise Unreachable(f"the relay answers {status}")
        return stream, said.limit

    async def _over_several(
        self, relay: Contact, peer: PeerId, first: MuxedStream, limit: Limit
    ) -> ResumedStream:
        """Raises Unreachable, ProtocolViolation, NotSpoken."""

        async def another() -> tuple[MuxedStream, Limit]:
            stream, limit = await self._connect(relay, peer)
            await _propose(stream)
            return stream, limit

        await _propose(first)
        session = ResumedStream(os.urandom(resumption.SESSION_BYTES), peer)
        try:
            await session.begin(first, limit)
        except (IOException, trio.TooSlowError) as error:
            raise Unreachable(f"{peer}: {error!r}") from error
        self._start(partial(session.run, another))
        return session

    def _start(self, task: Callable[[], Awaitable[None]]) -> None:
        self.swarm.nursery.start_soon(logged, task)

    async def ask(self, relay: Contact, request: HopRequest) -> tuple[MuxedStream, HopReply]:
        """Make a request of a relay. Raises Unreachable, ProtocolViolation."""
        try:
            with trio.fail_after(REQUEST_S):
                connection = await self.swarm.dialler.dial(relay)
                if connection.via is not None:
                    raise Unreachable(f"{relay.peer_id} is itself reached through a relay")
                stream = await connection.offer(HOP_PROTOCOL)
                try:
                    await stream.write(encode_frame(encode_hop(request)))
                    await connection.confirm(stream, HOP_PROTOCOL)
                    said = parse_hop_reply(await read_frame(stream, MAX_MESSAGE_BYTES))
                except BaseException:
                    stream.abort("the request of a relay failed")
                    raise
        except trio.TooSlowError:
            raise Unreachable(f"{relay.peer_id} does not answer as a relay") from None
        except IOException as error:
            raise Unreachable(f"{relay.peer_id}: {error}") from error
        return stream, said

    async def serve(self, stream: MuxedStream, connection: Connection) -> None:
        """A circuit that a relay brings, until it is over. Raises RemoteError, IOException,
        TooSlowError."""
        relay = connection.peer
        with trio.fail_after(REQUEST_S):
            incoming = parse_stop(await read_frame(stream, MAX_MESSAGE_BYTES))
            if not isinstance(incoming, Incoming):
                raise ProtocolViolation(f"{relay} answers what was not asked")
            status = self._judge(connection)
            await stream.write(encode_frame(encode_stop(Answered(status))))
        if status is not Status.OK:
            return
        handshake_s = self.swarm.parameters.handshake_s
        with self._shaking_hands(relay, incoming.peer) as place, trio.fail_after(handshake_s):
            said = None
            if await net_negotiation.agree(stream, SPOKEN) == resumption.PROTOCOL:
                raw = await read_frame(stream, resumption.MAX_MESSAGE_BYTES)
                said = resumption.parse_resume(raw)
        if place.cancelled_caught:
            stream.abort("another takes its place")
            return
        if said is None:
            await self._accept(CircuitStream(stream, self.widening), incoming.peer, relay)
            return
        session = self._sessions.get(said.session)
        if session is None and not (said.received_bytes or said.sent_bytes):
            session = self._sessions[said.session] = ResumedStream(said.session, incoming.peer)
            self._start(partial(self._keep, session))
            self._start(partial(self._accept, session, incoming.peer, relay))
        if session is None or session.peer != incoming.peer:
            await stream.write(encode_frame(resumption.FORGOTTEN))
            return
        await session.resume(stream, incoming.limit, said)

    async def _keep(self, session: ResumedStream) -> None:
        try:
            await session.run(None)
        finally:
            del self._sessions[session.session]

    async def _accept(self, raw: RawStream, peer: PeerId, relay: PeerId) -> None:
        """The connection that a circuit from `peer` carries, until it is over."""
        muxer = None
        with self._shaking_hands(relay, peer):
            try:
                keys, parameters = self.swarm.keys, self.swarm.parameters
                has_agreed = isinstance(raw, CircuitStream)
                muxer = await upgrade(keys, parameters, raw, None, has_agreed=has_agreed)
            except SwarmException as error:
                log.debug("a circuit from %s by %s fails: %s", peer, relay, error)
        if muxer is None:
            if isinstance(raw, CircuitStream):
                raw.abort()
            return
        relayed = Connection(muxer, inbound=True, via=relay)
        most = self.most_from(relay)
        if relayed.peer != peer or not self.swarm.make_room_from(relay, most, peer):
            await muxer.close()
            return
        self.swarm.adopt(relayed)
        await muxer.ended()

    def _judge(self, connection: Connection) -> Status:
        if connection.via is not None or not self.most_from(connection.peer):
            return Status.PERMISSION_DENIED
        return Status.RESOURCE_LIMIT_EXCEEDED if self.swarm.stopping else Status.OK

    @contextmanager
    def _shaking_hands(self, relay: PeerId, source: PeerId) -> Iterator[trio.CancelScope]:
        """A block that is cancelled where another handshake takes its place."""
        places = self._incoming.setdefault(relay, Places(MAX_INCOMING, MAX_INCOMING))
        try:
            with places.taken(source) as place:
                yield place
        finally:
            if not len(places):
                self._incoming.pop(relay, None)
