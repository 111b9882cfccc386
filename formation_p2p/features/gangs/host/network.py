"""The network of a gang, on a member's node: packets between the task's device and the others.

The task's sandbox has a TUN device as its only way out (`network_child.py`). What it sends is
dropped here unless it comes from its own address and is for a member; what another member's node
sends is dropped unless it comes from that member's address and is for this one
(core/network.py). Both directions are counted. A node has one relay for each member that it
is, and one tunnel to each member that its task has sent to.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import trio

from formation_p2p.core.errors import InvalidInput, ProtocolViolation
from formation_p2p.core.units import KIB, MIB
from formation_p2p.features.gangs.core.network import LENGTH_BYTES, MTU_BYTES, Unframer, passes
from formation_p2p.features.gangs.core.roster import OWNER
from formation_p2p.features.gangs.core.tunnel import TunnelError
from formation_p2p.features.gangs.host.seat import Seat, Tunnel
from formation_p2p.features.gangs.host.tunnels import Tunnels

log = logging.getLogger(__name__)

SERVICE: Final = "_net"
# To one member. More than what TCP has under way on one connection (6 MiB, tcp_rmem in tcp(7)), so
# that packets of one that is alone are not lost; past it they are dropped, as on any network.
QUEUE_BYTES: Final = 8 * MIB
# To all members. Each node on the way has as much again in its tunnels.
ALL_QUEUES_BYTES: Final = 64 * MIB
# Written to a tunnel at a time, and read: as many packets of the largest size as the transport
# takes at once. So a packet lies in one message of the transport, and is copied nowhere.
BATCH_BYTES: Final = 8 * (LENGTH_BYTES + MTU_BYTES)
# Packets up to here are put together, since each piece that is written costs a turn.
SMALL_BYTES: Final = 16 * KIB
# What a packet takes here beside its bytes: a task may send the smallest without end.
PACKET_BYTES: Final = 128
# Read from the device, or written to it, before others have their turn. Of small ones from another
# member a tunnel may bring ten thousand at once.
TURN_PACKETS: Final = 16
# After a tunnel could not be opened, or has broken.
AGAIN_S: Final = 0.5

Do = Callable[[Callable[[], Awaitable[None]]], None]


@dataclass(eq=False, slots=True)
class _Queue:
    """What waits for one member. `more` is set where something does."""

    framed: deque[bytes | memoryview] = field(default_factory=deque)  # each with its length
    size_bytes: int = 0
    more: trio.Event = field(default_factory=trio.Event)

    def put(self, framed: bytes | memoryview) -> None:
        self.framed.append(framed)
        self.size_bytes += PACKET_BYTES + len(framed)
        self.more.set()

    def take(self) -> list[memoryview]:
        """Some of it, whole packets."""
        pieces: list[memoryview] = []
        small, left = bytearray(), BATCH_BYTES
        while self.framed and len(self.framed[0]) <= left:
            framed = self.framed.popleft()
            left -= len(framed)
            self.size_bytes -= PACKET_BYTES + len(framed)
            if len(framed) <= SMALL_BYTES:
                small += framed
                continue
            if small:
                pieces.append(memoryview(small))
                small = bytearray()
            pieces.append(memoryview(framed))
        if small:
            pieces.append(memoryview(small))
        if not self.framed:
            self.more = trio.Event()
        return pieces

    def clear(self) -> None:
        self.framed.clear()
        self.size_bytes = 0
        self.more = trio.Event()


class MemberNetwork:
    """Of one seat. `attach` the device of its task; counts are of packets, without their frames."""

    def __init__(self, seat: Seat, tunnels: Tunnels, do: Do) -> None:
        self.seat = seat
        self.tunnels = tunnels
        self._do = do
        self._device: int | None = None
        self.sent_bytes = self.received_bytes = self.dropped = 0

    @property
    def rank(self) -> int:
        return self.seat.rank

    def attach(self, device: int) -> Callable[[], None]:
        """Relay for this device, which it takes over, until what is returned is called."""
        self._device, scope = device, trio.CancelScope()

        async def relay() -> None:
            with scope:
                await _Outbound(self, device).run()

        def detach() -> None:
            scope.cancel()
            if self._device == device:
                self._device = None
            trio.lowlevel.notify_closing(device)
            os.close(device)

        self._do(relay)
        return detach

    async def receive(self, tunnel: Tunnel) -> None:
        """Packets of another member, until it ends. Raises TunnelError, ProtocolViolation."""
        unframer, count = Unframer(), 0
        while pieces := await tunnel.read_pieces(BATCH_BYTES):
            for packet in chain.from_iterable(map(unframer.packets, pieces)):
                count += 1
                if count % TURN_PACKETS == 0:
                    await trio.lowlevel.checkpoint()
                if passes(packet) == (tunnel.peer_rank, self.rank) and self._device is not None:
                    self.received_bytes += len(packet)
                    # It is full, or has just been closed: as on any network.
                    with suppress(OSError):
                        os.write(self._device, packet)
                else:
                    self.dropped += 1


class _Outbound:
    """What one device sends."""

    def __init__(self, network: MemberNetwork, device: int) -> None:
        self._network = network
        self._device = device
        self._queues: dict[int, _Queue] = {}
        self._queued_bytes = 0
        self._next = _room()

    async def run(self) -> None:
        """Until cancelled, or the device is gone."""
        async with trio.open_nursery() as nursery:
            try:
                while True:
                    await trio.lowlevel.wait_readable(self._device)
                    self._read(nursery)
                    await trio.lowlevel.checkpoint()
            except (OSError, trio.ClosedResourceError) as problem:
                log.debug("the device of member %d is gone: %s", self._network.rank, problem)
            nursery.cancel_scope.cancel()

    def _read(self, nursery: trio.Nursery) -> None:
        network = self._network
        for _ in range(TURN_PACKETS):
            try:
                size = os.readv(self._device, [self._next[LENGTH_BYTES:]])
            except BlockingIOError:
                return
            ends = passes(self._next[LENGTH_BYTES : LENGTH_BYTES + size])
            if ends is None or ends[0] != network.rank or ends[1] >= network.seat.roster.size:
                network.dropped += 1
            else:
                self._put(ends[1], self._framed(size), nursery)

    def _framed(self, size: int) -> bytes | memoryview:
        """What was read, with its length before it: where it lies, if it fills half of that. So
        what waits takes at most twice what is counted."""
        self._next[:LENGTH_BYTES] = size.to_bytes(LENGTH_BYTES)
        framed = self._next[: LENGTH_BYTES + size]
        if 2 * size < MTU_BYTES:
            return bytes(framed)
        self._next = _room()
        return framed

    def _put(self, rank: int, framed: bytes | memoryview, nursery: trio.Nursery) -> None:
        queue = self._queues.get(rank)
        if queue is None:
            queue = self._queues[rank] = _Queue()
            nursery.start_soon(self._send, rank, queue)
        size = PACKET_BYTES + len(framed)
        if queue.size_bytes + size > QUEUE_BYTES or self._queued_bytes + size > ALL_QUEUES_BYTES:
            self._network.dropped += 1
            return
        queue.put(framed)
        self._queued_bytes += size
        self._network.sent_bytes += len(framed) - LENGTH_BYTES

    async def _send(self, rank: int, queue: _Queue) -> None:
        """Over one tunnel after the other, whatever becomes of them."""
        seat, tunnels = self._network.seat, self._network.tunnels
        while True:
            await queue.more.wait()
            try:
                tunnel = await tunnels.open(seat.gang_id, seat.rank, rank, SERVICE)
            except (TunnelError, InvalidInput) as problem:  # which is: a gang that has shrunk
                log.debug("packets for member %d are lost: %s", rank, problem)
                self._queued_bytes -= queue.size_bytes
                queue.clear()
                await trio.sleep(AGAIN_S)
                continue
            try:
                while True:
                    await queue.more.wait()
                    before_bytes = queue.size_bytes
                    batch = queue.take()
                    self._queued_bytes -= before_bytes - queue.size_bytes
                    await tunnel.write_pieces(batch)
            except TunnelError as problem:
                log.debug("packets for member %d are lost: %s", rank, problem)
            finally:
                tunnel.abort("its device is gone, or it has broken")


def _room() -> memoryview:
    """For one packet, and its length before it."""
    return memoryview(bytearray(LENGTH_BYTES + MTU_BYTES))


class GangNetworks:
    """Of one node: the relay of each member that it is, in the gangs that have a network."""

    def __init__(self, tunnels: Tunnels, do: Do) -> None:
        self._tunnels = tunnels
        self._do = do
        self._relays: dict[tuple[str, int], MemberNetwork] = {}
        tunnels.serve(SERVICE, self._serve)

    def of(self, gang_id: str, rank: int) -> MemberNetwork | None:
        """None where this node is not that member, or its gang has no network."""
        for key, known in list(self._relays.items()):
            if known.seat.ended is not None:
                del self._relays[key]
        seat = self._tunnels.seat(gang_id, rank)
        if seat is None or rank == OWNER or not seat.roster.has_network:
            return None
        relay = self._relays.get((gang_id, rank))
        if relay is None:
            relay = self._relays[gang_id, rank] = MemberNetwork(seat, self._tunnels, self._do)
        return relay

    async def _serve(self, tunnel: Tunnel) -> None:
        relay = self.of(tunnel.seat.gang_id, tunnel.seat.rank)
        if relay is None or tunnel.peer_rank == OWNER:
            raise ProtocolViolation("that member has no network with the one that asks")
        await relay.receive(tunnel)
