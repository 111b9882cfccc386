"""A connection's bytes over circuits that a relay cuts: see `reach/core/resumption.py`.

What is above it, Noise and the muxer, sees one stream, which stands still while both sides agree on
the next circuit.
"""

from __future__ import annotations

import logging
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Final

import trio

from formation_p2p.core.errors import ProtocolViolation, RemoteError
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import KIB
from formation_p2p.net.transport.errors import ConnectionClosedError, IOException
from formation_p2p.net.transport.frames import encode_frame, read_frame
from formation_p2p.net.transport.raw import MAX_READ_BYTES, RawStream
from formation_p2p.net.transport.stream import MuxedStream
from formation_p2p.reach.core.circuit_messages import Limit
from formation_p2p.reach.core.resumption import (
    FORGOTTEN,
    MAX_MESSAGE_BYTES,
    Allowance,
    Ledger,
    Resume,
    Resumed,
    encode_resume,
    encode_resumed,
    parse_resumed,
)

log = logging.getLogger(__name__)

# Without a circuit: then the connection is over. A relay that restarts is back by then.
WITHOUT_S: Final = 10.0
RETRY_S: Final = 0.25
# For what was sent on the earlier circuit to arrive, and for a piece to be written.
SETTLE_S: Final = 1.0
# To agree with the peer where to go on.
AGREE_S: Final = 8.0
# Written at once: what two circuits may have between them to count.
PIECE_BYTES: Final = 16 * KIB


class SessionOver(RemoteError):
    """The peer does not know the session any more."""


class _Circuit:
    """One of a session. `ends_at_bytes` is where the last byte is that it brings."""

    def __init__(self, stream: MuxedStream, limit: Limit) -> None:
        self.stream = stream
        self.allowance = Allowance.of(limit, trio.current_time())
        self.ends_at_bytes: int | None = None
        self.skip_bytes = 0  # which have come on the earlier one
        self.is_lost = False
        self.over = trio.Event()
        stream.own_room()
        stream.send_much()

    def lose(self, reason: str) -> None:
        self.is_lost = True
        self.stream.abort(reason)
        self.over.set()

    def leave(self) -> None:
        self.stream.leave()
        self.over.set()


class ResumedStream(RawStream):
    """`run` it until it is closed."""

    def __init__(self, session: bytes, peer: PeerId) -> None:
        super().__init__()
        self.session = session
        self.peer = peer
        self._ledger = Ledger()
        self._circuit: _Circuit | None = None
        self._earlier: _Circuit | None = None  # which is read first, to its end
        self._halted = True  # nothing is written while both sides agree where to go on
        self._over: str | None = None
        self._piece = trio.Lock()  # is being written
        self._turn = trio.Lock()  # to another circuit
        self._reading: trio.CancelScope | None = None
        self._changed = trio.lowlevel.ParkingLot()

    # -- life -----------------------------------------------------------------------------

    async def run(self, dial: Callable[[], Awaitable[tuple[MuxedStream, Limit]]] | None) -> None:
        """`dial` opens a circuit on which the peer speaks this; None where the peer dials."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send_all)
                if dial is None:
                    nursery.start_soon(self._wait_for_circuits)
                else:
                    nursery.start_soon(self._dial_circuits, dial)
                while self._over is None:
                    await self._changed.park()
                nursery.cancel_scope.cancel()
        finally:
            self._end("the network is closing")

    def _end(self, reason: str) -> None:
        if self._over is not None:
            return
        self._over = reason
        for circuit in (self._circuit, self._earlier):
            if circuit is not None:
                circuit.leave()
        self._turn_reader()

    async def close(self) -> None:
        """At once, even when cancelled."""
        self._end("closed here")

    def _change(self) -> None:
        self._changed.unpark_all()

    def _turn_reader(self) -> None:
        """To what is read now."""
        if self._reading is not None:
            self._reading.cancel()
        self._change()

    def _lose(self, circuit: _Circuit | None, reason: str) -> None:
        """It is cut. Without the rest of the earlier one the later one is of no use."""
        if circuit is None or circuit.is_lost:
            return
        log.debug("a circuit to %s ends: %s", self.peer, reason)
        circuit.lose(reason)
        if circuit is self._earlier:
            self._earlier = None
            self._lose(self._circuit, "the one before it was cut")
        self._change()

    def _is_without(self) -> bool:
        return self._circuit is None or self._circuit.is_lost

    async def _wait_for_circuits(self) -> None:
        while True:
            while not self._is_without():
                await self._changed.park()
            with trio.move_on_after(WITHOUT_S):
                while self._is_without():
                    await self._changed.park()
            if self._is_without():
                self._end("the peer makes no other circuit")
                return

    async def _dial_circuits(
        self, dial: Callable[[], Awaitable[tuple[MuxedStream, Limit]]]
    ) -> None:
        since_s = trio.current_time()
        while True:
            circuit = self._circuit
            if circuit is not None and not circuit.is_lost:
                since_s = trio.current_time()
                if self._earlier is not None or not circuit.allowance.is_due(since_s):
                    due_s = circuit.allowance.due_s if self._earlier is None else math.inf
                    with trio.move_on_at(due_s):
                        await self._changed.park()
                    continue
            try:
                stream, limit = await dial()
                await self.begin(stream, limit)
            except SessionOver as error:
                self._end(str(error))
                return
            except (RemoteError, IOException, trio.TooSlowError) as error:
                log.debug("no other circuit to %s: %r", self.peer, error)
                if trio.current_time() >= since_s + WITHOUT_S:
                    self._end(f"no other circuit: {error}")
                    return
                await trio.sleep(RETRY_S)

    # -- from one circuit to the next -------------------------------------------------------

    @asynccontextmanager
    async def _switching(self, stream: MuxedStream) -> AsyncIterator[None]:
        """Nothing is written meanwhile. Where it fails both circuits are lost."""
        async with self._turn:
            old, self._halted = self._circuit, True
            try:
                with trio.fail_after(AGREE_S):
                    with trio.move_on_after(SETTLE_S) as settling:
                        async with self._piece:
                            pass
                    if settling.cancelled_caught:
                        self._lose(old, "it takes nothing")
                    yield
            except BaseException as error:
                stream.abort("the session does not go on here")
                self._lose(old, f"it cannot be left: {error}")
                raise
            self._halted = False
            self._turn_reader()

    async def begin(self, stream: MuxedStream, limit: Limit) -> None:
        """Go on with a circuit that this side has opened. Raises RemoteError, IOException,
        TooSlowError."""
        async with self._switching(stream):
            old, ledger = self._circuit, self._ledger
            is_cut = old is None or old.is_lost
            before_bytes = ledger.received_bytes
            resume = Resume(self.session, before_bytes, ledger.sent_bytes, is_cut)
            await stream.write(encode_frame(encode_resume(resume)))
            reply = await read_frame(stream, MAX_MESSAGE_BYTES)
            if reply == FORGOTTEN:
                raise SessionOver("the peer does not know the session any more")
            said = parse_resumed(reply)
            ledger.arrived(said.received_bytes)
            ledger.send_again()
            if said.goes_on_at_bytes < before_bytes:
                raise ProtocolViolation("a session that goes on before what has arrived")
            new = _Circuit(stream, limit)
            rest_bytes = said.goes_on_at_bytes - ledger.received_bytes
            if rest_bytes > 0 and (old is None or old.is_lost):
                raise ConnectionClosedError("the circuit before was cut meanwhile")
            new.skip_bytes = max(-rest_bytes, 0)
            self._circuit = new
            if old is not None and not old.is_lost:
                if rest_bytes > 0:
                    old.ends_at_bytes, self._earlier = said.goes_on_at_bytes, old
                else:
                    old.lose("all of it has come")

    async def resume(self, stream: MuxedStream, limit: Limit, said: Resume) -> None:
        """Go on with a circuit that the peer has opened, until it ends. Raises RemoteError,
        IOException, TooSlowError."""
        async with self._switching(stream):
            old, ledger = self._circuit, self._ledger
            if self._over is not None:
                raise SessionOver(self._over)
            if old is not None and not said.is_cut:
                with trio.move_on_after(SETTLE_S):
                    while not old.is_lost and ledger.received_bytes < said.sent_bytes:
                        await self._changed.park()
            if said.sent_bytes < ledger.received_bytes:
                raise ProtocolViolation("less was sent of a session than has come")
            ledger.arrived(said.received_bytes)
            is_whole = old is not None and not old.is_lost and not said.is_cut
            if not is_whole or ledger.received_bytes < said.sent_bytes:
                self._lose(old, "it was cut")
                ledger.send_again()
            elif old is not None:
                old.leave()
            new = self._circuit = _Circuit(stream, limit)
            reply = Resumed(ledger.received_bytes, ledger.sent_bytes)
            await stream.write(encode_frame(encode_resumed(reply)))
        await new.over.wait()

    # -- reading and writing ----------------------------------------------------------------

    async def fill(self) -> None:
        while True:
            if self._over is not None:
                raise ConnectionClosedError(self._over)
            circuit = self._earlier or self._circuit
            if circuit is None or circuit.is_lost:
                await self._changed.park()
                continue
            most_bytes = MAX_READ_BYTES
            if circuit.ends_at_bytes is not None:
                most_bytes = min(most_bytes, circuit.ends_at_bytes - self._ledger.received_bytes)
                if most_bytes == 0:
                    self._earlier = None
                    circuit.lose("all of it has come")
                    continue
            data = b""
            try:
                with trio.CancelScope() as self._reading:
                    data = await circuit.stream.read(most_bytes)
            except IOException as error:
                self._lose(circuit, str(error))
            finally:
                self._reading = None
            circuit.allowance.carried_bytes += len(data)
            skipped = min(len(data), circuit.skip_bytes)
            circuit.skip_bytes -= skipped
            if data := data[skipped:]:
                self._ledger.received_bytes += len(data)
                self._buffer = memoryview(bytes(self._buffer) + data)
                self._change()
                return

    def _writable(self) -> _Circuit | None:
        """What may be written to now, if anything may."""
        circuit = self._circuit
        if self._halted or circuit is None or circuit.is_lost or not circuit.allowance.left_bytes:
            return None
        return circuit

    def write_now(self, *parts: bytes | memoryview) -> bool:
        if self._over is not None:
            raise ConnectionClosedError(self._over)
        data = b"".join(parts)
        behind = self._ledger.unsent_bytes > 0 or self._piece.locked()
        self._ledger.write(data)
        circuit = self._writable()
        if not behind and circuit is not None and len(data) <= circuit.allowance.left_bytes:
            try:
                if circuit.stream.write_now(data):
                    self._sent(circuit, len(data))
                    return True
            except IOException as error:
                self._lose(circuit, str(error))
        self._change()
        return False

    async def flush(self) -> bool:
        while self._ledger.unsent_bytes:
            if self._over is not None:
                raise ConnectionClosedError(self._over)
            await self._changed.park()
        return True

    def get_remote_address(self) -> tuple[str, int] | None:
        """None: that of the relay says nothing of the peer."""
        return None

    def _sent(self, circuit: _Circuit, size: int) -> None:
        circuit.allowance.carried_bytes += size
        self._ledger.sent(size)
        self._change()

    async def _send_all(self) -> None:
        while True:
            circuit = self._writable()
            if circuit is None or not self._ledger.unsent_bytes:
                await self._changed.park()
                continue
            async with self._piece:
                if self._writable() is not circuit:
                    continue
                piece = self._ledger.next(min(PIECE_BYTES, circuit.allowance.left_bytes))
                try:
                    await circuit.stream.write(piece)
                    self._sent(circuit, len(piece))
                except IOException as error:
                    self._lose(circuit, str(error))
