"""What is done with what comes in: by the shell, and on the streams that peers open, where
protocols are served by name, identify and ping."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final, Protocol
from weakref import WeakKeyDictionary

import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import RemoteError, Unreachable
from formation_p2p.core.identity import PeerId
from formation_p2p.dht.core.rpc import InboundConnection, PeerIdentified
from formation_p2p.leases.core.session import Disconnected, Undelivered
from formation_p2p.net import identify as net_identify
from formation_p2p.net.connection import IDENTIFY_S, NEGOTIATION_S, Connection, StreamHandler
from formation_p2p.net.transport import negotiation as net_negotiation
from formation_p2p.net.transport.errors import IOException, StreamEOF
from formation_p2p.net.transport.stream import MuxedStream
from formation_p2p.net.transport.token_bucket import TokenBucket
from formation_p2p.net.witness import Witness
from formation_p2p.peer.core.events import AddressesChanged, Measured

log = logging.getLogger(__name__)

# Of one connection; a node's addresses change a few times a day. Reading 32 takes 30 ms at worst.
PUSHES_PER_S: Final = 1
PING_PROTOCOL: Final = "/ipfs/ping/1.0.0"
PING_BYTES: Final = 32
# Between two pings of a stream: implementations ping every few seconds.
PING_S: Final = 10.0


# Addresses, protocols, whether another run has the peer's identity, how often the clock was set.
_Told = tuple[tuple[str, ...], tuple[str, ...], bool, int]
Answer = Callable[[bytes | RemoteError | None], None]
NetworkEvent = (
    AddressesChanged | Undelivered | InboundConnection | Measured | PeerIdentified | Disconnected
)


class Handlers(Protocol):
    """What the shell does with what comes in. Called on the trio thread; must not block.

    An exception that one raises is logged and costs only the stream it came from.
    """

    def asked(self, sender: Contact, frame: bytes, answer: Answer) -> None:
        """One kad request. Call `answer` once, within 10 s; None writes no response, and an error
        resets the stream."""

    def received(self, sender: Contact, frame: bytes) -> None:
        """One frame of the work protocol. Those of one peer come in the order sent."""

    def feed(self, event: NetworkEvent) -> None:
        """What happened otherwise. Never called from inside `Stack.send`."""


class StreamHandlers:
    """`public_key` is libp2p's protobuf. `addresses` are those that identify tells a peer.
    `on_pushed` is called where a peer says anew what it is."""

    def __init__(
        self,
        public_key: bytes,
        on_pushed: Callable[[Connection], None],
        addresses: Callable[[PeerId], tuple[str, ...]],
    ) -> None:
        self.by_protocol: dict[str, StreamHandler] = {
            net_identify.PROTOCOL: self._tell,
            net_identify.PUSH_PROTOCOL: self._pushed,
            PING_PROTOCOL: _pong,
        }
        self._addresses = addresses
        self.witness = Witness()
        self.unlisted: frozenset[str] = frozenset()
        """Protocols that are served, and that identify does not tell of."""
        self._public_key = public_key
        self._on_pushed = on_pushed
        self._told: WeakKeyDictionary[Connection, _Told] = WeakKeyDictionary()
        self._push_buckets: WeakKeyDictionary[Connection, TokenBucket] = WeakKeyDictionary()

    async def serve(self, stream: MuxedStream, connection: Connection) -> None:
        with trio.fail_after(NEGOTIATION_S):
            protocol = await net_negotiation.agree(stream, self.by_protocol)
        if (handler := self.by_protocol.get(protocol)) is None:
            raise Unreachable(f"{protocol} was taken back meanwhile")
        await handler(stream, connection)

    async def push(self, connection: Connection) -> None:
        """Tell a peer of our addresses and protocols, unasked. A request that is sent to it now
        arrives together with that, so that it need not ask us, and wait, before it answers."""
        told = self._told[connection] = self._now(connection)
        try:
            with trio.fail_after(IDENTIFY_S):
                stream = await connection.offer(net_identify.PUSH_PROTOCOL)
                try:
                    await stream.write(self._message(stream, told))
                    await connection.confirm(stream, net_identify.PUSH_PROTOCOL)
                    await stream.close()
                except BaseException:
                    # Cancelled too: nothing else ends the stream, of which the peer has few.
                    stream.abort("identify push was cut short")
                    raise
        except (RemoteError, IOException, trio.TooSlowError) as error:
            self._told.pop(connection, None)
            log.debug("%s is not told what we are: %r", connection.peer, error)

    def has_told(self, connection: Connection) -> bool:
        """Whether the peer has been told, or is now, of all addresses and protocols as they are."""
        return self._told.get(connection) == self._now(connection)

    async def _tell(self, stream: MuxedStream, connection: Connection) -> None:
        """Serve identify."""
        with trio.fail_after(IDENTIFY_S):
            told = self._now(connection)
            await stream.write(self._message(stream, told))
            self._told[connection] = told

    def _now(self, connection: Connection) -> _Told:
        listed = tuple(protocol for protocol in self.by_protocol if protocol not in self.unlisted)
        witness = self.witness
        is_twin = witness.is_twin(connection.peer)
        return self._addresses(connection.peer), listed, is_twin, witness.clock_sets

    def _message(self, stream: MuxedStream, told: _Told) -> bytes:
        addresses, protocols, is_twin, _ = told
        of_us = self._public_key, addresses, protocols
        return net_identify.message(*of_us, stream, self.witness.run_id, is_twin=is_twin)

    async def _pushed(self, stream: MuxedStream, connection: Connection) -> None:
        """Serve identify push: what a peer that dialled us is, or what changed of it since."""
        with trio.fail_after(IDENTIFY_S):
            await self._push_buckets.setdefault(connection, TokenBucket(PUSHES_PER_S)).wait()
            said = await net_identify.read_message(stream)
        if connection.pushed(said):
            self._on_pushed(connection)


async def _pong(stream: MuxedStream, connection: Connection) -> None:
    """Serve ping, which keeps nothing of a peer."""
    payload = bytearray(PING_BYTES)
    while True:
        try:
            with trio.fail_after(PING_S):
                await stream.read_into(memoryview(payload))
                await stream.write(bytes(payload))
        except StreamEOF:
            return
