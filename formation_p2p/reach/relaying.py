"""A gate's side of circuits: it answers who asks for one, and copies between the two ends.

What is on its way through the gate lies in the windows of two streams, and is bounded by them: who
does not read stops the one who writes. In one turn of the loop each peer moves the same, whatever
the number of its circuits; where the owner set a bandwidth, peers share its bytes.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from formation_p2p.core.errors import ProtocolViolation, RemoteError
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import KIB
from formation_p2p.machine.clock import moment
from formation_p2p.net.transport.errors import IOException, StreamEOF
from formation_p2p.net.transport.frames import encode_frame, read_frame
from formation_p2p.net.transport.stream import BULK_DATA_BYTES
from formation_p2p.reach.circuits import REQUEST_S, STOP_S, Widening, Width
from formation_p2p.reach.core.circuit_messages import (
    MAX_MESSAGE_BYTES,
    STOP_PROTOCOL,
    Answered,
    HopReply,
    Incoming,
    Reserve,
    Status,
    encode_hop,
    encode_stop,
    parse_hop_request,
    parse_stop,
)
from formation_p2p.reach.core.own_addresses import OwnAddresses
from formation_p2p.reach.core.relay import Circuit, Refusal, Relay
from formation_p2p.reach.core.reservations import FairShares

if TYPE_CHECKING:
    from formation_p2p.net.connection import Connection
    from formation_p2p.net.swarm import Swarm
    from formation_p2p.net.transport.stream import MuxedStream

log = logging.getLogger(__name__)

# What a peer moves in one turn of the loop, and what of it is worth a turn where it is divided.
TURN_BYTES: Final = 4 * BULK_DATA_BYTES
LEAST_BYTES: Final = 16 * KIB
# Of the gate's own addresses: a foreign peer makes one of a circuit of each.
MAX_TOLD: Final = 4
# A circuit on which nothing moves is over: what it carries pings every few seconds.
IDLE_S: Final = 120.0


class Turns:
    """Whose turn it is, by `shares`. `run` it."""

    def __init__(self, shares: FairShares) -> None:
        self._shares = shares
        self.piece_bytes = shares.piece_bytes
        self._waiting: dict[int, trio.Event] = {}
        self._asked = trio.Event()

    async def wait(self, peer: PeerId, size: int) -> None:
        number = self._shares.ask(peer, size)
        turn = self._waiting[number] = trio.Event()
        self._asked.set()
        try:
            await turn.wait()
        finally:
            if self._waiting.pop(number, None) is not None:
                self._shares.forget(number)  # the circuit ended before its turn

    async def run(self) -> None:
        while True:
            for number in self._shares.granted(trio.current_time()):
                self._waiting.pop(number).set()
            self._asked = trio.Event()
            with trio.move_on_at(self._shares.at_s):
                await self._asked.wait()


@dataclass(eq=False)
class Relaying:
    """`turns` where there is a bandwidth to keep."""

    relay: Relay
    swarm: Swarm
    own: OwnAddresses
    widening: Widening
    turns: Turns | None = None

    def __post_init__(self) -> None:
        self.relayed_bytes = 0
        self._there: dict[int, trio.CancelScope] = {}  # circuits

    def in_numbers(self) -> dict[str, str | int]:
        """As `formation status` shows it."""
        return {
            "serves": self.relay.serves.value,
            "reservations": self.relay.reservations,
            "circuits": self.relay.circuits,
            "relayed_bytes": self.relayed_bytes,
        }

    async def serve(self, stream: MuxedStream, connection: Connection) -> None:
        """One request, and its circuit until that is over. Raises RemoteError, IOException,
        TooSlowError."""
        peer, relayed = connection.peer, connection.via is not None
        with trio.fail_after(REQUEST_S):
            raw = await read_frame(stream, MAX_MESSAGE_BYTES)
        try:
            request = parse_hop_request(raw)
        except ProtocolViolation as violation:
            log.debug("%s asks for what makes no sense: %s", peer, violation)
            await _answer(stream, Answered(Status.MALFORMED))
            return
        if isinstance(request, Reserve):
            reserved = self.relay.reserve(
                peer, request, self._own_addresses(), moment(), relayed=relayed
            )
            if not isinstance(reserved, Refusal):
                await _answer(stream, reserved)
                return
            log.debug("%s has no reservation: %s", peer, reserved.words)
            await _answer(stream, Answered(reserved.status))
            return
        circuit = self.relay.connect(peer, request, moment(), relayed=relayed)
        if isinstance(circuit, Refusal):
            log.debug("%s has no circuit: %s", peer, circuit.words)
            await _answer(stream, Answered(circuit.status))
            return
        while self.relay.displaced:
            self._there.pop(self.relay.displaced.pop().number).cancel()
        with trio.CancelScope() as place:
            self._there[circuit.number] = place
            try:
                await self._bring(circuit, stream)
            finally:
                self._there.pop(circuit.number, None)
                self.relay.ended(circuit)
        if place.cancelled_caught:
            stream.abort("another takes the place of the circuit")

    def _own_addresses(self) -> tuple[str, ...]:
        """As foreign peers want them, with the peer id."""
        me = self.swarm.me
        return tuple(f"{address}/p2p/{me}" for address in self.own.direct[:MAX_TOLD])

    async def _bring(self, circuit: Circuit, near: MuxedStream) -> None:
        try:
            far = await self._ask(circuit)
        except (RemoteError, IOException, trio.TooSlowError) as error:
            log.debug("%s does not take a circuit: %r", circuit.target, error)
            await _answer(near, Answered(Status.CONNECTION_FAILED))
            return
        try:
            await _answer(near, Answered(Status.OK, circuit.limit))
            await self._copy(circuit, near, far)
        finally:
            near.abort("the circuit is over")
            far.abort("the circuit is over")

    async def _ask(self, circuit: Circuit) -> MuxedStream:
        """The far end's stream, once it takes the circuit."""
        connection = self.swarm.direct_to(circuit.target)
        if connection is None:
            raise ProtocolViolation("its reservation outlived its connection")
        with trio.fail_after(STOP_S):
            stream = await connection.offer(STOP_PROTOCOL)
            try:
                incoming = Incoming(circuit.source, circuit.limit)
                await stream.write(encode_frame(encode_stop(incoming)))
                await connection.confirm(stream, STOP_PROTOCOL)
                said = parse_stop(await read_frame(stream, MAX_MESSAGE_BYTES))
                if not isinstance(said, Answered) or said.status is not Status.OK:
                    raise ProtocolViolation(f"it answers {said}")
            except BaseException:
                stream.abort("no circuit")
                raise
        return stream

    # -- copying ------------------------------------------------------------------------------

    async def _copy(self, circuit: Circuit, near: MuxedStream, far: MuxedStream) -> None:
        """Until both have finished, or one is broken, or the limit is reached."""
        moved = 0

        async def one_way(source: MuxedStream, target: MuxedStream, sender: PeerId) -> None:
            nonlocal moved
            left = circuit.limit.data_bytes
            width = Width(source, self.widening)
            source.own_room()
            target.send_much()
            try:
                while left is None or left > 0:
                    most = max(TURN_BYTES // self.relay.circuits_of(sender), LEAST_BYTES)
                    if self.turns is not None:
                        most = min(most, self.turns.piece_bytes)
                    data = await source.read_pieces(most if left is None else min(most, left))
                    size = sum(map(len, data))
                    if self.turns is not None:
                        await self.turns.wait(sender, size)
                    if len(data) > 1 or not target.write_now(data[0]):
                        await target.write_pieces(data)
                    moved += size
                    self.relayed_bytes += size
                    width.carried(size)
                    left = None if left is None else left - size
                nursery.cancel_scope.cancel()
            except StreamEOF:
                await target.close()  # the other way may go on
            except IOException as error:
                log.debug("a circuit of %s ends: %s", sender, error)
                nursery.cancel_scope.cancel()
            finally:
                width.narrow()

        async def watch() -> None:
            before = -1
            while before != moved:
                before = moved
                await trio.sleep(IDLE_S)
            nursery.cancel_scope.cancel()

        limit_s = circuit.limit.duration_s
        with trio.move_on_after(float("inf") if limit_s is None else limit_s):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(watch)
                async with trio.open_nursery() as ways:
                    ways.start_soon(one_way, near, far, circuit.source)
                    ways.start_soon(one_way, far, near, circuit.target)
                nursery.cancel_scope.cancel()


async def _answer(stream: MuxedStream, reply: HopReply) -> None:
    with trio.fail_after(REQUEST_S):
        await stream.write(encode_frame(encode_hop(reply)))
