"""The store of a gang, on the node of its owner: its clients are at the other ends of tunnels."""

from __future__ import annotations

import itertools
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from formation_p2p.core.errors import ProtocolViolation, RemoteError
from formation_p2p.core.units import KIB, MIB
from formation_p2p.features.gangs.core.roster import OWNER
from formation_p2p.features.gangs.core.store import MAX_STORE_BYTES, Store
from formation_p2p.features.gangs.core.store_messages import (
    MAX_FRAME_BYTES,
    Attached,
    Came,
    Detached,
    Entry,
    FromStore,
    Resized,
    StoreEvent,
    Tick,
    pack_from_store,
    parse_from_client,
)
from formation_p2p.features.gangs.core.tunnel import TunnelError
from formation_p2p.features.gangs.host.seat import Seat, Tunnel
from formation_p2p.features.gangs.host.tunnels import Tunnels
from formation_p2p.net.transport.frames import Deframer, encode_frame

log = logging.getLogger(__name__)

SERVICE: Final = "_store"
# Told to a client and not taken by it: all that a store may hold, and as many changes again. One
# that is further behind is better told everything anew.
MAX_UNTOLD_BYTES: Final = 2 * MAX_STORE_BYTES + 4 * MIB
# Past it nothing more is done of what a client asks.
UNTOLD_BYTES: Final = 4 * MIB
# Written to a tunnel at a time, or one frame.
WRITE_BYTES: Final = 256 * KIB
# What a frame that waits takes beside its bytes.
FRAME_BYTES: Final = 64

Do = Callable[[Callable[[], Awaitable[None]]], None]


class Outbox:
    """What one end of a tunnel has to say. `put` it; `run` writes it."""

    def __init__(self, tunnel: Tunnel, max_bytes: int) -> None:
        self._tunnel = tunnel
        self._max_bytes = max_bytes
        self._frames: deque[bytes] = deque()
        self._size_bytes = 0
        self._more = trio.Event()
        self._less = trio.Event()
        self._is_over = False

    def put(self, frame: bytes) -> None:
        """One with its length before it. Ends the tunnel where its other end is too far behind."""
        if self._is_over:
            return
        self._frames.append(frame)
        self._size_bytes += FRAME_BYTES + len(frame)
        self._more.set()
        if self._size_bytes > self._max_bytes:
            self._frames.clear()
            self._tunnel.abort("the other end does not read what it is told")

    async def run(self) -> None:
        """Raises TunnelError."""
        try:
            while True:
                await self._more.wait()
                size_bytes, frames = 0, list[bytes]()
                while self._frames and size_bytes < WRITE_BYTES:
                    frames.append(self._frames.popleft())
                    size_bytes += FRAME_BYTES + len(frames[-1])
                if not self._frames:
                    self._more = trio.Event()
                await self._tunnel.write(b"".join(frames))
                self._size_bytes -= size_bytes
                self._less.set()
        finally:
            self._is_over = True
            self._frames.clear()
            self._size_bytes = 0
            self._less.set()

    async def room(self) -> None:
        """Wait until the other end is not far behind, or there is no other end."""
        while self._size_bytes > UNTOLD_BYTES:
            self._less = trio.Event()
            await self._less.wait()


class StoreHost:
    """Of the owner's seat in one gang."""

    def __init__(self, seat: Seat, do: Do) -> None:
        self._seat = seat
        self._store = Store(seat.roster.size)
        self._clients: dict[int, Outbox] = {}
        # Of the values that there are, by key: the version, and the frame that tells it to all.
        self._frames: dict[str, tuple[int, bytes]] = {}
        self._tunnels: dict[int, Tunnel] = {}
        self._ids = itertools.count()
        self._timer = trio.CancelScope()
        seat.watchers.append(self._changed)
        do(self._keep_time)

    async def serve(self, tunnel: Tunnel) -> None:
        """One client, until it is gone. Raises TunnelError, ProtocolViolation."""
        for older in list(self._tunnels.values()):
            if older.peer_rank == tunnel.peer_rank:
                # A node has one. What is kept for more of them would be without bound.
                older.abort("this member has another connection to the store by now")
        id = next(self._ids)
        outbox = self._clients[id] = Outbox(tunnel, MAX_UNTOLD_BYTES)
        self._tunnels[id] = tunnel
        attached = False
        try:
            self._feed(Attached(id, None if tunnel.peer_rank == OWNER else tunnel.peer_rank))
            attached = True
            problem: RemoteError | None = None
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write, outbox)
                try:
                    await self._hear(id, tunnel, outbox)
                except RemoteError as error:
                    problem = error
                nursery.cancel_scope.cancel()
            if problem is not None:
                raise problem
        finally:
            del self._clients[id], self._tunnels[id]
            if attached:
                self._feed(Detached(id))

    async def _hear(self, id: int, tunnel: Tunnel, outbox: Outbox) -> None:
        deframer = Deframer(MAX_FRAME_BYTES)
        while data := await tunnel.read():
            for frame in deframer.feed(data):
                self._feed(Came(id, parse_from_client(frame)))
                await outbox.room()

    async def _write(self, outbox: Outbox) -> None:
        try:
            await outbox.run()
        except TunnelError as error:
            log.debug("a client of the store is gone: %s", error)  # its reader sees it too

    def _feed(self, event: StoreEvent) -> None:
        for tell in self._store.handle(event, trio.current_time()):
            if tell.client in self._clients:
                self._clients[tell.client].put(self._frame(tell.message))
        self._timer.deadline = self._store.next_timeout_s

    def _frame(self, message: FromStore) -> bytes:
        """Many clients are told of a value, and one that is slow may be told of many: the frame is
        the same for all."""
        if not isinstance(message, Entry):
            return encode_frame(pack_from_store(message))
        version, frame = self._frames.get(message.key, (0, b""))
        if version != message.version:
            frame = encode_frame(pack_from_store(message))
            self._frames[message.key] = message.version, frame
        if message.value is None:
            del self._frames[message.key]
        return frame

    def _changed(self) -> None:
        self._feed(Resized(self._seat.roster.size))

    async def _keep_time(self) -> None:
        whole = self._seat.wait()
        try:
            with whole:
                while True:
                    with trio.CancelScope(deadline=self._store.next_timeout_s) as self._timer:
                        await trio.sleep(float("inf"))
                    self._feed(Tick())
        finally:
            self._seat.done(whole)


class GangStores:
    """Of one node: the store of each gang that it owns."""

    def __init__(self, tunnels: Tunnels, do: Do) -> None:
        self._do = do
        self._stores: dict[Seat, StoreHost] = {}
        tunnels.serve(SERVICE, self._serve)

    async def _serve(self, tunnel: Tunnel) -> None:
        seat = tunnel.seat
        if seat.rank != OWNER:
            raise ProtocolViolation(f"member {seat.rank} has no store; the owner has it")
        for each in [each for each in self._stores if each.ended is not None]:
            del self._stores[each]
        store = self._stores.get(seat)
        if store is None:
            store = self._stores[seat] = StoreHost(seat, self._do)
        await store.serve(tunnel)
