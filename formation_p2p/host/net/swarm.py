"""The connections of a node: listening, and how many there may be of which kind.

In place of py-libp2p 0.8.1's `libp2p/network/swarm.py`, which

- :1982 takes a place for each inbound connection and gives it back only when the swarm ends
  (:2060). Here the connections that are there are counted.
- :883, :936, :752 dials slowly, and not again (see `dialler.py`).
- :1945 tells nothing of a listen that failed.
- :443 leaks the sockets of connections; closing takes 0.2 s for each, in turn.
- :393 starts the auto-connector, which (`libp2p/network/auto_connector.py:300`) dials known
  peers whenever there are fewer than half of `high_watermark` connections, low ones or not.
"""

from __future__ import annotations

import ipaddress
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import trio
from libp2p.network.exceptions import SwarmException

from formation_p2p.core.identity import PeerId
from formation_p2p.host.net.addresses import TcpAddress
from formation_p2p.host.net.connection import Connection, StreamHandler
from formation_p2p.host.net.dialler import Dialler
from formation_p2p.host.net.limits import counted
from formation_p2p.host.net.parameters import NetParameters
from formation_p2p.host.net.transport.tcp import TcpStream, accept_all, bind
from formation_p2p.host.net.transport.upgrade import upgrade

if TYPE_CHECKING:
    from libp2p.security.noise.transport import Transport as NoiseTransport

log = logging.getLogger(__name__)

_THIS_MACHINE: Final = "loopback"


@dataclass(eq=False)
class Swarm:
    """`listen`, and `dialler.dial`. All runs in `nursery`. `serve` gets each stream that a peer
    opens."""

    me: PeerId
    noise: NoiseTransport
    parameters: NetParameters
    nursery: trio.Nursery
    _: KW_ONLY
    serve: StreamHandler
    on_dialling: Callable[[Connection], None]
    on_dialled: Callable[[Connection], None]
    on_measured: Callable[[PeerId, int], None]
    on_disconnected: Callable[[PeerId], None]
    on_other_version: Callable[[Connection, int], None]
    on_introduced: Callable[[Connection], None]

    def __post_init__(self) -> None:
        self.handshakes: Counter[str] = Counter()
        self.dialler = Dialler(self)
        self.closing = False
        self.bound: list[TcpAddress] = []
        """The addresses listened on."""
        self._listening: list[trio.CancelScope] = []
        self._table: dict[PeerId, list[Connection]] = {}

    async def close(self) -> None:
        """Stop listening, and say goodbye to all peers at once. Then cancel the nursery."""
        self.closing = True
        async with trio.open_nursery() as nursery:
            for scope in self._listening:
                scope.cancel()
            for connection in self.all():
                nursery.start_soon(connection.muxer.close)

    @property
    def stopping(self) -> bool:
        """Whether it was closed, or broke: whatever fails now fails for that reason."""
        return self.closing or self.nursery.cancel_scope.cancel_called

    # -- the table ------------------------------------------------------------------------

    def all(self) -> Iterator[Connection]:
        return (c for connections in list(self._table.values()) for c in list(connections))

    def connection_to(self, peer: PeerId) -> Connection | None:
        """The newest that is open: the older ones may be dead and not yet noticed. One that is
        closed soon only for want of another."""
        newest_first = (c for c in reversed(self._table.get(peer, ())) if not c.is_closed)
        return min(newest_first, key=lambda connection: connection.fleeting, default=None)

    def known(self, peer: PeerId) -> None:
        """A lease is shared with the peer."""
        for connection in self._table.get(peer, ()):
            connection.muxer.known()

    def abort_peer(self, peer: PeerId, reason: str) -> None:
        for connection in self._table.get(peer, ()):
            connection.abort(reason)

    def adopt(self, connection: Connection) -> None:
        """Enter a connection into the table and run it. Without a checkpoint: one that was let in
        is counted before the next one is looked at."""
        siblings = self._table.setdefault(connection.peer, [])
        inbound = [c for c in siblings if c.inbound and not c.is_closed]
        if connection.inbound and len(inbound) >= self.parameters.max_inbound_per_peer:
            max(inbound, key=lambda c: c.idle_s).abort("too many connections of one peer")
        siblings.append(connection)
        connection.muxer.measured = partial(self.on_measured, connection.peer)
        connection.on_other_version = self.on_other_version
        connection.on_introduced = self.on_introduced
        self.nursery.start_soon(self._run_connection, connection)
        self.dialler.connected(connection)

    async def _run_connection(self, connection: Connection) -> None:
        try:
            await connection.run(self.serve)
        except Exception:
            # What is wrong with one connection must not end the others.
            log.exception("the connection to %s failed", connection.peer)
        finally:
            connection.abort("the network is closing")
            siblings = self._table[connection.peer]
            siblings.remove(connection)
            if not siblings:
                del self._table[connection.peer]
                self.on_disconnected(connection.peer)

    def make_room(self, *, inbound: bool) -> bool:
        """Whether there is a place, after closing what was idle for long."""
        taken = [c for c in self.all() if c.inbound == inbound and not c.is_closed]
        limits = self.parameters
        if len(taken) < (limits.max_inbound if inbound else limits.max_outbound):
            return True
        idlest = max(taken, key=lambda c: c.idle_s)
        if idlest.idle_s < limits.evictable_after_s:
            return False
        idlest.abort("making room for another peer")
        return True

    # -- listening ------------------------------------------------------------------------

    async def listen(self, addresses: Sequence[TcpAddress]) -> None:
        """On all of them. Raises LocalError for the first that does not work."""
        for address in addresses:
            listening, scope = await bind(address), trio.CancelScope()
            self.bound.append(replace(address, port=listening.getsockname()[1]))
            self._listening.append(scope)
            self.nursery.start_soon(accept_all, listening, self._accepted, scope)

    async def _accepted(self, stream: TcpStream) -> None:
        remote = stream.get_remote_address()
        origin = origin_of(remote[0]) if remote is not None else ""
        refusal = self._refusal(origin)
        if refusal is not None:
            log.debug("a connection from %s is refused: %s", remote, refusal)
            await stream.close()
            return
        with counted(self.handshakes, origin):
            try:
                muxer = await upgrade(self.noise, self.parameters, stream, None)
            except SwarmException as error:
                log.debug("a connection from %s fails: %s", remote, error)
                return
        if not self.make_room(inbound=True):  # others may have taken it meanwhile
            await muxer.close()
            return
        connection = Connection(muxer, inbound=True)
        connection.fleeting = connection.peer in self.dialler.dialling_back
        self.adopt(connection)
        self.on_dialled(connection)

    def _refusal(self, origin: str) -> str | None:
        if not origin or self.stopping:
            return "closed already"
        if self.handshakes.total() >= self.parameters.max_handshakes:
            return "too many handshakes"
        if origin != _THIS_MACHINE:
            if self.handshakes[origin] >= self.parameters.max_handshakes_per_ip:
                return "too many handshakes with this address"
            there = [c for c in self.all() if c.inbound and origin_of(c.remote_host) == origin]
            if len(there) >= self.parameters.max_inbound_per_ip:
                return "too many connections from this address"
        if not self.make_room(inbound=True):
            return "too many connections"
        return None


def origin_of(host: str | None) -> str:
    """The origin that an address is counted for: of IPv6 the /64, since its owner has all of it."""
    if host is None:
        return ""
    ip = ipaddress.ip_address(host)
    if ip.is_loopback:
        return _THIS_MACHINE
    return host if ip.version == 4 else str(ipaddress.ip_network((int(ip) >> 64 << 64, 64)))
