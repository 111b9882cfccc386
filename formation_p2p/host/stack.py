"""The network: py-libp2p behind a small, hardened API. Runs inside one trio thread.

    stack = Stack(identity, ["/ip4/0.0.0.0/tcp/4001"])
    await nursery.start(stack.run, handlers)   # returns once it listens
    answer = await stack.ask(contact, frame, timeout_s=5)
    stack.send(contact, frame)
    await stack.close()
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import trio

from formation_p2p.effects import Contact
from formation_p2p.errors import LocalError, NodeClosed, Unreachable
from formation_p2p.host.frames import (
    MAX_KAD_FRAME_BYTES,
    MAX_WORK_FRAME_BYTES,
    Deframer,
    encode_frame,
)
from formation_p2p.identity import Identity, PeerId, parse_peer_id

log = logging.getLogger(__name__)


class Handlers(Protocol):
    """What the shell does with what comes in. Called on the trio thread; must not block.

    An exception that one raises is logged and costs only the stream it came from.
    """

    def asked(
        self, sender: Contact, frame: bytes, answer: Callable[[bytes | None], None]
    ) -> None:
        """One kad request. Call `answer` once, now or soon; None writes no response."""

    def received(self, sender: Contact, frame: bytes) -> None:
        """One frame of the work protocol. Those of one peer come in the order sent."""

    def undelivered(self, to: PeerId, reason: str) -> None:
        """Frames queued for `to`, or written so lately that they may not have come through,
        are lost."""

    def disconnected(self, peer: PeerId) -> None:
        """The last connection to `peer` closed."""


class Stack:
    def __init__(
        self,
        identity: Identity,
        listen: Sequence[str],
        *,
        kad_protocol: str = "/formation/kad/1.0.0",
        work_protocol: str = "/formation/work/1.0.0",
        announce: Sequence[str] = (),
    ) -> None:
        self._identity = identity
        self._listen = tuple(listen)
        self._kad_protocol = kad_protocol
        self._work_protocol = work_protocol
        self.addresses: tuple[str, ...] = ()
        self._host: Any = None
        self._closing = trio.Event()
        self._queues: dict[PeerId, deque[tuple[Contact, bytes]]] = {}

    async def run(
        self, handlers: Handlers, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED
    ) -> None:
        """Serve until `close`. Raises what breaks the network underneath (restart then)."""
        import multiaddr
        from libp2p import new_host
        from libp2p.crypto.ed25519 import create_new_key_pair
        from libp2p.custom_types import TProtocol
        from libp2p.network.config import ConnectionConfig

        self._handlers = handlers
        self._host = new_host(
            key_pair=create_new_key_pair(self._identity.seed),
            connection_config=ConnectionConfig(min_connections=0, low_watermark=0),
        )
        network = self._host.get_network()
        stack = self

        class Watch:
            async def connected(self, network: Any, conn: Any) -> None: ...
            async def disconnected(self, network: Any, conn: Any) -> None:
                if not network.get_connections(conn.muxed_conn.peer_id):
                    handlers.disconnected(parse_peer_id(str(conn.muxed_conn.peer_id)))

            async def opened_stream(self, network: Any, stream: Any) -> None: ...
            async def closed_stream(self, network: Any, stream: Any) -> None: ...
            async def listen(self, network: Any, address: Any) -> None: ...
            async def listen_close(self, network: Any, address: Any) -> None: ...

        network.register_notifee(Watch())
        self._host.set_stream_handler(TProtocol(self._kad_protocol), stack._serve_kad)
        self._host.set_stream_handler(TProtocol(self._work_protocol), stack._serve_work)
        async with self._host.run([multiaddr.Multiaddr(a) for a in self._listen]):
            self.addresses = tuple(str(a) for a in self._host.get_transport_addrs())
            if len(self.addresses) < len(self._listen):
                raise LocalError(f"cannot listen on {', '.join(self._listen)}")
            async with trio.open_nursery() as self._nursery:
                task_status.started()
                await self._closing.wait()
                self._nursery.cancel_scope.cancel()
            await self._host.close()

    def _contact(self, stream: Any) -> Contact:
        peer = stream.muxed_conn.peer_id
        try:
            addresses = tuple(str(a) for a in self._host.get_peerstore().addrs(peer))
        except Exception:  # noqa: BLE001
            addresses = ()
        return Contact(parse_peer_id(str(peer)), addresses)

    async def _serve_kad(self, stream: Any) -> None:
        with trio.move_on_after(1):
            while not self._contact(stream).addresses:
                await trio.sleep(0.02)
        async for frame in _frames(stream, MAX_KAD_FRAME_BYTES):
            answered = trio.Event()
            answers: list[bytes | None] = []

            def answer(
                frame: bytes | None, answers: Any = answers, answered: Any = answered
            ) -> None:
                answers.append(frame)
                answered.set()

            self._handlers.asked(self._contact(stream), frame, answer)
            await answered.wait()
            if answers[0] is not None:
                await stream.write(encode_frame(answers[0]))

    async def _serve_work(self, stream: Any) -> None:
        async for frame in _frames(stream, MAX_WORK_FRAME_BYTES):
            self._handlers.received(self._contact(stream), frame)

    async def _open(self, to: Contact, protocol: str) -> Any:
        from libp2p.custom_types import TProtocol
        from libp2p.peer.id import ID
        from libp2p.peer.peerinfo import PeerInfo
        from multiaddr import Multiaddr

        peer = ID.from_base58(to.peer_id)
        await self._host.connect(PeerInfo(peer, [Multiaddr(a) for a in to.addresses]))
        return await self._host.new_stream(peer, [TProtocol(protocol)])

    async def ask(
        self, to: Contact, frame: bytes, *, timeout_s: float, expects_answer: bool = True
    ) -> bytes | None:
        """Send a kad request and wait for its response. Raises Unreachable, ProtocolViolation."""
        if self._host is None or self._closing.is_set():
            raise NodeClosed("the network is not running")
        try:
            with trio.fail_after(timeout_s):
                stream = await self._open(to, self._kad_protocol)
                await stream.write(encode_frame(frame))
                if not expects_answer:
                    await stream.close()
                    return None
                async for answer in _frames(stream, MAX_KAD_FRAME_BYTES):
                    await stream.close()
                    return answer
        except Exception as error:  # noqa: BLE001
            raise Unreachable(f"{to.peer_id}: {error!r}") from error
        raise Unreachable(f"{to.peer_id} closed the stream")

    def send(self, to: Contact, frame: bytes) -> None:
        """Queue one work frame. Never blocks; failure comes as `Handlers.undelivered`."""
        if to.peer_id in self._queues:
            self._queues[to.peer_id].append((to, frame))
            return
        self._queues[to.peer_id] = deque([(to, frame)])
        self._nursery.start_soon(self._deliver, to)

    async def _deliver(self, to: Contact) -> None:
        queue = self._queues[to.peer_id]
        try:
            stream = await self._open(to, self._work_protocol)
            while queue:
                await stream.write(encode_frame(queue.popleft()[1]))
                if not queue:
                    await trio.sleep(0)
            await stream.close()
        except Exception as error:  # noqa: BLE001
            self._handlers.undelivered(to.peer_id, repr(error))
        finally:
            del self._queues[to.peer_id]

    def drop(self, peer: PeerId, reason: str) -> None:
        """Close every connection to a peer that misbehaved."""
        from libp2p.peer.id import ID

        log.info("dropping %s: %s", peer, reason)
        self._nursery.start_soon(self._host.disconnect, ID.from_base58(peer))

    async def close(self) -> None:
        self._closing.set()


async def _frames(stream: Any, max_bytes: int) -> Any:
    deframer = Deframer(max_bytes)
    while True:
        try:
            data = await stream.read(65536)
        except Exception:  # noqa: BLE001
            return
        if not data:
            return
        for frame in deframer.feed(data):
            yield frame
