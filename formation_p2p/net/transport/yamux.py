"""yamux: many streams on one connection, each with a window that is kept.

What waits to be written is in `writer.py`, the windows in `stream.py`, round trips in `pings.py`.

A peer that overruns its window, or does not answer pings, ends the connection. The reader never
waits for the writer: two peers that write much at once would wait for each other.

Source: hashicorp/yamux specification; libp2p yamux specification.
"""

from __future__ import annotations

import itertools
import logging
import math
import secrets
import struct
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import trio
from cryptography.exceptions import InvalidTag

from formation_p2p.core.errors import ProtocolViolation, Unreachable
from formation_p2p.core.units import KIB, MIB
from formation_p2p.net.transport import negotiation as net_negotiation
from formation_p2p.net.transport.errors import MuxedConnUnavailable, TransportError
from formation_p2p.net.transport.parameters import DEFAULTS, NetParameters
from formation_p2p.net.transport.strangers import OWN_BYTES, OWN_STREAMS, Share, Strangers
from formation_p2p.net.transport.stream import ACK, FIN, RST, SYN, WINDOW_BYTES, MuxedStream
from formation_p2p.net.transport.token_bucket import TokenBucket
from formation_p2p.net.transport.writer import MOST_AHEAD_BYTES, OUTBOX_BYTES, Writer

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from formation_p2p.core.identity import PeerId
    from formation_p2p.net.transport.upgrade import NoiseStream

log = logging.getLogger(__name__)

PROTOCOL: Final = "/yamux/1.0.0"

_HEADER: Final = struct.Struct("!BBHII")  # version, type, flags, stream id, length
_DATA, _WINDOW_UPDATE, _PING, _GO_AWAY = range(4)
_NORMAL, _PROTOCOL_ERROR = 0, 1

# Unread over all streams of a connection, besides what those that carry much may have; past it
# nothing more is read from the peer. A stranger's: one stream that is not read, and some of others,
# since a few hundred of them would fill the memory. And that of a peer that a lease is shared with.
STRANGERS_UNREAD_BYTES: Final = WINDOW_BYTES + 64 * KIB
MAX_UNREAD_BYTES: Final = 4 * MIB
# Streams that a peer may have open to us on one connection. A foreign implementation opens one
# for each request and asks ten peers at once; hundreds is a flood.
MAX_INBOUND_STREAMS: Final = 64
# So many times what writers wait at: the peer makes us answer (pings, resets) and does not read the
# answers.
MAX_OUTBOXES: Final = 4
# Of silence: then the connection is over.
SILENT_TICKS: Final = 3
# How far the peer is gets measured by those pings, and on a connection that is never silent by one
# every 64 s: routes change, and 12 bytes tell.
MEASURE_TICKS: Final = 8
# A round trip of a link that is near: 200 MB/s go in MOST_AHEAD_BYTES.
NEAR_S: Final = 0.005
# To confirm that it is yamux that is spoken: a round trip, and a busy peer.
CONFIRM_S: Final = 8.0
# To say goodbye when closing.
FLUSH_S: Final = 1.0


class Muxer:
    """All streams of one connection. `start` runs it until it ends and raises nothing.

    One task reads, one writes (see `writer.py`), one watches for silence.
    """

    def __init__(
        self,
        secured_conn: NoiseStream,
        peer_id: PeerId,
        parameters: NetParameters = DEFAULTS,
        *,
        unconfirmed: bool = False,
    ) -> None:
        """`unconfirmed`: yamux is proposed, and the answer still to be read."""
        self.parameters = parameters
        self.secured_conn = secured_conn
        self.peer_id = peer_id
        self._started = False
        self.broken: str | None = None
        self.active_at = trio.current_time()  # when a stream last carried data
        self.measured: Callable[[int], None] = lambda rtt_us: None
        """Is told of each round trip that was measured, in microseconds. Must not raise."""
        self._next_id = 1 if secured_conn.is_initiator else 2
        self._last_remote_id = 0
        self.streams: dict[int, MuxedStream] = {}
        self._inbound = 0
        # Opened by the peer, and not taken yet: no more than are inbound.
        self._accepted: dict[int, MuxedStream] = {}
        self._opens = TokenBucket(parameters.opens_per_s)
        self._acceptable = trio.lowlevel.ParkingLot()
        self._scope = trio.CancelScope()
        self._ended = trio.Event()
        # reading
        self._unconfirmed = unconfirmed
        self._header = bytearray()
        self._body_of: MuxedStream | None = None
        self._body_left = 0
        self._body_flags = 0
        self.unread_bytes = 0
        self.max_unread_bytes = STRANGERS_UNREAD_BYTES
        self.is_known = False
        self._drained = trio.lowlevel.ParkingLot()
        self._silent_ticks = 0
        # What may still come on streams that are gone: their peers may not know it yet.
        self._stray_bytes = 0
        self.draw_on(Strangers())
        self.writer = Writer(secured_conn, parameters.write_stall_s, self._stalled)
        self.pings = Pings(
            lambda number: self._control(_PING, SYN, 0, number),
            lambda rtt_us: self.measured(rtt_us),
        )
        self.writer.mark = self.pings.mark
        self._had_tunnels = False
        self.writer.most_ahead_bytes = self._most_ahead_bytes

    def draw_on(self, strangers: Strangers) -> None:
        """Share the memory of all strangers with other connections. Call it before `start`."""
        self._held_bytes = Share(strangers.bytes, OWN_BYTES)
        self._held_streams = Share(strangers.streams, OWN_STREAMS)

    async def start(self) -> None:
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    for task in (self.writer.run, self._watch):
                        nursery.start_soon(self._until_broken, task)
                    self._started = True
                    await self._until_broken(self._read_all)
        finally:
            self.abort("the network is closing")
            self._held_bytes.exempt()
            self._held_streams.exempt()
            with trio.CancelScope(shield=True):
                await self.secured_conn.close()
            self._ended.set()

    async def close(self) -> None:
        """Say goodbye, write out what waits (for FLUSH_S at most), and end."""
        if self._started:
            await self._farewell(_NORMAL)
        self.abort("closed here")
        if self._started:
            await self._ended.wait()
        else:
            await self.secured_conn.close()

    def open(self) -> MuxedStream:
        """A new stream to the peer. Raises MuxedConnUnavailable."""
        if self.broken is not None:
            raise MuxedConnUnavailable(self.broken)
        stream = MuxedStream(self, self._next_id, inbound=False)
        self.streams[self._next_id] = stream
        self.update(self._next_id, SYN)
        self._next_id += 2
        return stream

    async def accept(self) -> MuxedStream:
        """The next stream that the peer opened. Raises MuxedConnUnavailable at the end."""
        await trio.lowlevel.checkpoint()
        while not self._accepted:
            if self.broken is not None:
                raise MuxedConnUnavailable(self.broken)
            await self._acceptable.park()
        return self._accepted.pop(next(iter(self._accepted)))

    def get_remote_address(self) -> tuple[str, int] | None:
        return self.secured_conn.get_remote_address()

    async def ended(self) -> None:
        """Wait until it is over. It must have been started, or be so soon."""
        await self._ended.wait()

    def abort(self, reason: str, *, drop: bool = True) -> None:
        """End at once. The first reason stays."""
        if self.broken is not None:
            return
        self.broken = reason
        for stream in list(self.streams.values()):
            stream.end(reason, drop=drop)
        self.writer.close()
        self._acceptable.unpark_all()
        self._drained.unpark_all()
        self.pings.end(reason)
        self._scope.cancel()

    async def confirm(self) -> None:
        """Read the answer to the proposal of yamux. `start` does it first of all; this is for
        a caller that wants no more than that. Raises Unreachable, ProtocolViolation.
        """
        if not self._unconfirmed:
            return
        self._unconfirmed = False
        try:
            with trio.fail_after(CONFIRM_S):
                await net_negotiation.confirm(self.secured_conn, PROTOCOL)
        except trio.TooSlowError as error:
            raise Unreachable(f"no answer to {PROTOCOL} within {CONFIRM_S:.0f} s") from error

    def send_data(self, stream_id: int, data: memoryview) -> None:
        if self.broken is None:
            self.writer.send(self.data_header(stream_id, len(data)) + data)

    def data_header(self, stream_id: int, size: int) -> bytes:
        """Of a frame that is written now."""
        self.active_at = trio.current_time()
        return _HEADER.pack(0, _DATA, 0, stream_id, size)

    def update(self, stream_id: int, flags: int, credit: int = 0) -> None:
        """Give the peer more of a stream's window, or tell it how the stream begins or ends."""
        self._control(_WINDOW_UPDATE, flags, stream_id, credit)

    def _control(self, kind: int, flags: int, stream_id: int, value: int) -> None:
        """A frame without data: never waits, so that the reader never does."""
        if self.broken is not None:
            return
        if self.writer.queued_bytes > MAX_OUTBOXES * self.writer.most_bytes:
            self.abort("the peer does not read the answers that it asks for")
            return
        self.writer.put(_HEADER.pack(0, kind, flags, stream_id, value))

    def was_read(self, size: int) -> None:
        """So many bytes that had arrived are held no longer."""
        self.unread_bytes -= size
        self._held_bytes.give_back(size)
        if not self._is_full:
            self._drained.unpark_all()

    def widened(self, size: int) -> None:
        """So many bytes more may lie unread; of fewer than none, less."""
        self.max_unread_bytes += size
        self._held_bytes.widen(size)

    @property
    def _is_full(self) -> bool:
        """Whether nothing more is read until some of what came is."""
        return self.unread_bytes > self.max_unread_bytes or self._held_bytes.is_over

    def forget(self, stream: MuxedStream) -> None:
        """The stream is over in both directions."""
        if self.streams.pop(stream.stream_id, None) is not None:
            self.count_no_more(stream)
            self._stray_bytes += stream.allowed
            stream.on_over()

    def count_no_more(self, stream: MuxedStream) -> None:
        """The peer may open another one in its place."""
        if stream.is_counted:
            stream.is_counted = False
            self._inbound -= 1
            self._held_streams.give_back(1)

    def known(self) -> None:
        """The peer is no stranger: a lease is shared with it."""
        if not self.is_known:
            self.is_known = True
            self.widened(MAX_UNREAD_BYTES - STRANGERS_UNREAD_BYTES)
            self._held_bytes.exempt()
            self._held_streams.exempt()
            self.writer.most_bytes = OUTBOX_BYTES

    async def _until_broken(self, task: Callable[[], Awaitable[None]]) -> None:
        try:
            await task()
        except ProtocolViolation as violation:
            log.debug("%s breaks yamux: %s", self.peer_id, violation)
            await self._farewell(_PROTOCOL_ERROR)
            self.abort(f"protocol violation: {violation}")
        except (TransportError, InvalidTag, Unreachable) as error:
            log.debug("connection to %s: %r", self.peer_id, error)
            self.abort(f"connection lost: {error}")
        except Exception as error:
            # One peer's connection must not end the others', whatever a library raises.
            log.warning("connection to %s ends unexpectedly", self.peer_id, exc_info=True)
            self.abort(f"connection lost: {error!r}")

    def carries_tunnels(self) -> None:
        """Programs speak to each other on a stream from now on."""
        self._had_tunnels = True
        if self.pings.least_rtt_s >= NEAR_S:
            self.pings.measure()  # the peer may have been busy

    def _most_ahead_bytes(self) -> int | None:
        is_held_back = self._had_tunnels and self.pings.least_rtt_s < NEAR_S
        return MOST_AHEAD_BYTES if is_held_back else None

    @property
    def has_tunnels(self) -> bool:
        """Whether programs are connected by it. They may say nothing for as long as they like."""
        return any(stream.is_tunnel for stream in self.streams.values())

    @property
    def is_silent(self) -> bool:
        """Whether nothing was heard for a tick, or since `doubt`."""
        return self._silent_ticks > 0

    def doubt(self) -> None:
        """Ask whether the peer is still there."""
        self._silent_ticks = max(self._silent_ticks, 1)
        self.pings.measure()

    async def _farewell(self, code: int) -> None:
        self._control(_GO_AWAY, 0, 0, code)
        with trio.move_on_after(FLUSH_S):
            await self.writer.flushed()

    async def _read_all(self) -> None:
        await self.confirm()
        self.pings.measure()
        while self.broken is None:
            if not self._take_body() and not self._take_message():
                await self.secured_conn.arrival(self._body_left)
                continue
            self._silent_ticks = 0
            if self._is_full:
                await self._pause()
            if not self.writer.has_room:
                await trio.lowlevel.checkpoint()  # so that answers go as fast as they are asked for

    def _take_body(self) -> bool:
        """Whether some of a body that somebody waits for has arrived: it is opened where it is to
        lie."""
        stream = self._body_of
        if not self._body_left or stream is None or not (into := stream.room(self._body_left)):
            return False
        size = self.secured_conn.open_into(into)
        self._body_left -= size
        stream.filled(size)
        if not self._body_left:
            self._flags(stream, self._body_flags)
        return size > 0

    def _take_message(self) -> bool:
        message = self.secured_conn.open()
        self._parse(memoryview(message))
        return bool(message)

    async def _pause(self) -> None:
        self.secured_conn.settle()
        with trio.move_on_after(self.parameters.write_stall_s) as deadline:
            while self._is_full and self.broken is None:
                await self._drained.park()
                self._silent_ticks = 0
        if deadline.cancelled_caught:
            raise ProtocolViolation(f"{self.unread_bytes} bytes that are not read")

    def _stalled(self) -> None:
        self.abort(f"the peer took nothing for {self.parameters.write_stall_s:.0f} s")

    async def _watch(self) -> None:
        for tick in itertools.count(1):
            await trio.sleep(self.parameters.tick_s)
            if self._silent_ticks >= SILENT_TICKS:
                self.abort(f"nothing heard for {SILENT_TICKS * self.parameters.tick_s:.0f} s")
                return
            if self._silent_ticks:
                self.secured_conn.hurry()  # less may be under way than is waited for
            if self._silent_ticks or tick % MEASURE_TICKS == 0:
                self.pings.measure()
            self._silent_ticks += 1
            for stream in list(self.streams.values()):
                stream.tick()

    # -- what comes in --------------------------------------------------------------------

    def _parse(self, view: memoryview) -> None:
        while view and self.broken is None:
            if self._body_left:
                piece = view[: self._body_left]
                view = view[len(piece) :]
                self._body_left -= len(piece)
                if self._body_of is not None:
                    kept = self._body_of.arrived(piece)
                    self.unread_bytes += kept
                    self._held_bytes.take(kept)
                    if not self._body_left:
                        self._flags(self._body_of, self._body_flags)
                continue
            if not self._header and len(view) >= _HEADER.size:
                self._frame(*_HEADER.unpack_from(view))
                view = view[_HEADER.size :]
                continue
            missing = _HEADER.size - len(self._header)
            self._header += view[:missing]
            view = view[missing:]
            if len(self._header) == _HEADER.size:
                fields = _HEADER.unpack(self._header)
                self._header.clear()
                self._frame(*fields)

    def _frame(self, version: int, kind: int, flags: int, stream_id: int, value: int) -> None:
        if version != 0:
            raise ProtocolViolation(f"yamux version {version}")
        if kind == _PING:
            if flags & SYN:
                self._control(_PING, ACK, 0, value)
            else:
                self.pings.answered(value)
        elif kind == _GO_AWAY:
            self.abort(f"closed by the peer (code {value})", drop=False)
        elif kind in (_DATA, _WINDOW_UPDATE):
            stream = self._stream(stream_id, flags)
            if kind == _WINDOW_UPDATE:
                if stream is not None:
                    stream.credited(value)
                    self._flags(stream, flags)
                return
            self.active_at = trio.current_time()
            if stream is not None:
                stream.announced(value)
            elif value > self._stray_bytes:
                raise ProtocolViolation(f"{value} bytes more on streams that are gone")
            else:
                self._stray_bytes -= value
            self._body_of, self._body_left, self._body_flags = stream, value, flags
            if stream is not None and value == 0:
                self._flags(stream, flags)
        else:
            raise ProtocolViolation(f"yamux frame of type {kind}")

    def _stream(self, stream_id: int, flags: int) -> MuxedStream | None:
        """The stream a frame is for; None for one that was refused or is gone."""
        theirs = stream_id % 2 != self._next_id % 2
        if flags & SYN:
            if not theirs or stream_id <= self._last_remote_id:
                raise ProtocolViolation(f"opens a stream with the id {stream_id}")
            self._last_remote_id = stream_id
            return self._opened(stream_id)
        stream = self.streams.get(stream_id)
        if stream is None and (
            stream_id == 0 or stream_id > (self._last_remote_id if theirs else self._next_id - 2)
        ):
            raise ProtocolViolation(f"a frame for stream {stream_id}, which was not opened")
        return stream

    def _opened(self, stream_id: int) -> MuxedStream | None:
        if not self._opens.take():
            raise ProtocolViolation("opens streams faster than any are served")
        if self._inbound >= MAX_INBOUND_STREAMS or not self._held_streams.fits(1):
            self.update(stream_id, RST)
            self._stray_bytes += WINDOW_BYTES
            return None
        stream = MuxedStream(self, stream_id, inbound=True)
        self.streams[stream_id] = stream
        self._inbound += 1
        self._held_streams.take(1)
        self.update(stream_id, ACK)
        self._accepted[stream_id] = stream
        self._acceptable.unpark()
        return stream

    def _flags(self, stream: MuxedStream, flags: int) -> None:
        if stream.broken is not None:
            return
        if flags & RST:
            self._accepted.pop(stream.stream_id, None)  # or those opened and reset would pile up
            stream.end("reset by the peer")
        elif flags & FIN:
            stream.finish_there()


class Pings:
    """How far the peer of a muxed connection is, and whether it has read what was written (yamux
    specification, "Ping"). `send` writes a ping with a number, which cannot be answered before it
    is asked; `measured` is told of each round trip that `measure` begins, in microseconds."""

    def __init__(self, send: Callable[[int], None], measured: Callable[[int], None]) -> None:
        self._send = send
        self._measured = measured
        self.least_rtt_s = math.inf
        """The least that was measured: how far the peer is while nothing else waits."""
        self._broken: str | None = None
        self._measuring: tuple[int, float] | None = None  # the latest, and when
        self._awaited: dict[int, trio.Event] = {}  # one for each caller that waits
        self._marks: dict[int, Callable[[], None]] = {}  # some for each MiB that is written

    def measure(self) -> None:
        number = secrets.randbits(32)
        self._measuring = (number, trio.current_time())
        self._send(number)

    async def round_trip(self) -> float:
        """Until the peer has read all that was written before this; the seconds that it took.
        Raises MuxedConnUnavailable where the connection ends before."""
        number, began_s = secrets.randbits(32), trio.current_time()
        answered = self._awaited[number] = trio.Event()
        try:
            if self._broken is None:
                self._send(number)
                await answered.wait()
        finally:
            del self._awaited[number]
        if self._broken is not None:
            raise MuxedConnUnavailable(self._broken)
        return trio.current_time() - began_s

    def mark(self, passed: Callable[[], None]) -> None:
        """`passed` is called once the peer has read all that was written before this."""
        number = secrets.randbits(32)
        self._marks[number] = passed
        self._send(number)

    def answered(self, number: int) -> None:
        passed = self._marks.pop(number, None)
        if passed is not None:
            passed()
        if number in self._awaited:
            self._awaited[number].set()
        if self._measuring is not None and self._measuring[0] == number:
            took_s = trio.current_time() - self._measuring[1]
            self._measuring = None
            self.least_rtt_s = min(self.least_rtt_s, took_s)
            self._measured(max(round(took_s * 1_000_000), 1))

    def end(self, reason: str) -> None:
        """The connection is over."""
        self._broken = reason
        for each in self._awaited.values():
            each.set()
