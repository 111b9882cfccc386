"""py-libp2p's host over our swarm: protocols by name, identify and ping.

Replaced in `libp2p/host/basic_host.py` of 0.8.1:

- :1522 a negotiation that is not UTF-8 ends the host (see `net_negotiation`);
- :1210 identify runs as a trio system task, whose errors end the thread; our connections do it
  themselves;
- `libp2p/host/ping.py:181` PingService keeps a set for every peer that ever pinged.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final
from weakref import WeakKeyDictionary

import trio
from libp2p.custom_types import TProtocol
from libp2p.host.basic_host import BasicHost
from libp2p.host.ping import ID as PING_PROTOCOL
from libp2p.host.ping import handle_ping

from formation_p2p.host.net import identify as net_identify
from formation_p2p.host.net.connection import IDENTIFY_S, NEGOTIATION_S, Connection
from formation_p2p.host.net.limits import TokenBucket
from formation_p2p.host.net.protocols.frames import encode_frame
from formation_p2p.host.net.swarm import GuardedSwarm
from formation_p2p.host.net.transport import negotiation as net_negotiation
from formation_p2p.host.net.transport.stream import MuxedStream

if TYPE_CHECKING:
    from libp2p.abc import INetStream
    from libp2p.peer.id import ID

log = logging.getLogger(__name__)

# Of one connection; a node's addresses change a few times a day. Reading 32 takes 30 ms at worst.
PUSHES_PER_S: Final = 1


class GuardedHost(BasicHost):
    """`addresses` are those that identify tells; set them once it listens."""

    def __init__(self, swarm: GuardedSwarm, on_told: Callable[[Connection], None]) -> None:
        super().__init__(
            swarm,
            default_protocols=OrderedDict(
                {
                    TProtocol(net_identify.PROTOCOL): self._tell,
                    TProtocol(net_identify.PUSH_PROTOCOL): self._told,
                    PING_PROTOCOL: handle_ping,
                }
            ),
            announce_addrs=[],
            disable_identify_address_discovery=True,
        )
        swarm.notifees.clear()  # BasicHost's, which would identify each peer once more
        self._swarm = swarm
        self._on_told = on_told
        self._push_buckets: WeakKeyDictionary[Connection, TokenBucket] = WeakKeyDictionary()
        self.addresses: tuple[str, ...] = ()
        self.unlisted: frozenset[str] = frozenset()
        """Protocols that are served, and that identify does not tell of."""

    async def push(self, connection: Connection) -> None:
        """Tell a peer of our addresses and protocols, unasked. Raises RemoteError, IOException,
        TooSlowError."""
        with trio.fail_after(IDENTIFY_S):
            stream = await connection.offer(net_identify.PUSH_PROTOCOL)
            try:
                await stream.write(encode_frame(self._message(stream)))
                await connection.confirm(stream, net_identify.PUSH_PROTOCOL)
                await stream.close()
            except BaseException:
                stream.abort("identify push was cut short")
                raise

    async def _swarm_stream_handler(self, net_stream: INetStream) -> None:
        with trio.fail_after(NEGOTIATION_S):
            protocol = await net_negotiation.agree(net_stream, self.multiselect.handlers)
        net_stream.set_protocol(TProtocol(protocol))
        handler = self.multiselect.handlers[TProtocol(protocol)]
        assert handler is not None
        await handler(net_stream)

    def _schedule_identify(self, peer_id: ID, *, reason: str) -> None:
        """Nothing to do: each of our connections identifies its peer."""

    async def _tell(self, stream: INetStream) -> None:
        """Serve identify."""
        with trio.fail_after(IDENTIFY_S):
            await stream.write(encode_frame(self._message(stream)))

    def _message(self, stream: INetStream) -> bytes:
        protocols = (str(protocol) for protocol in self.multiselect.handlers)
        return net_identify.message(
            self.get_public_key().serialize(),
            self.addresses,
            tuple(protocol for protocol in protocols if protocol not in self.unlisted),
            stream.get_remote_address(),
        )

    async def _told(self, stream: INetStream) -> None:
        """Serve identify push: what a peer that dialled us is, or what changed of it since."""
        assert isinstance(stream, MuxedStream)
        connection = self._swarm.connection_of(stream)
        with trio.fail_after(IDENTIFY_S):
            await self._push_buckets.setdefault(connection, TokenBucket(PUSHES_PER_S)).wait()
            said = await net_identify.read_message(stream)
        if connection.pushed(said):
            self._on_told(connection)
