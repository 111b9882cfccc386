"""The connections of a node: listening, and how many there may be of which kind."""

from __future__ import annotations

import ipaddress
import logging
import math
import socket
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Final

import psutil
import trio

from formation_p2p.core.errors import LocalError
from formation_p2p.core.identity import PeerId
from formation_p2p.net.connection import Connection, StreamHandler
from formation_p2p.net.dialler import Dialler
from formation_p2p.net.identify import Identified
from formation_p2p.net.places import Places
from formation_p2p.net.transport.addresses import TcpAddress
from formation_p2p.net.transport.errors import SwarmException
from formation_p2p.net.transport.noise import NoiseKeys
from formation_p2p.net.transport.own_port import OwnPort
from formation_p2p.net.transport.parameters import NetParameters
from formation_p2p.net.transport.strangers import Strangers
from formation_p2p.net.transport.tcp import NoSuchFamily, TcpStream, accept_all, bind
from formation_p2p.net.transport.upgrade import upgrade
from formation_p2p.reach.core.crowding import crowded_out
from formation_p2p.reach.core.paths import Here, Net

# Reading the interfaces takes 0.2 ms, and many peers are dialled at once.
KEPT_S: Final = 1.0
_FAMILIES: Final = (socket.AF_INET, socket.AF_INET6)


class Whereabouts:
    """`public_hosts` says where others see us come from."""

    def __init__(self, public_hosts: Callable[[], Iterable[str]]) -> None:
        self._public_hosts = public_hosts
        self._networks: tuple[Net, ...] = ()
        self._read_s = -math.inf

    def now(self) -> Here:
        if trio.current_time() >= self._read_s + KEPT_S:
            self._read_s = trio.current_time()
            self._networks = interface_networks()
        return Here(self._networks, frozenset(self._public_hosts()))


def interface_networks() -> tuple[Net, ...]:
    """Of the machine's interfaces now, those of its loopback and of one link only left out."""
    found: dict[Net, None] = {}
    for entries in psutil.net_if_addrs().values():
        for entry in entries:
            if entry.family not in _FAMILIES or not entry.netmask:
                continue
            ip = ipaddress.ip_address(entry.address.partition("%")[0])
            if ip.is_loopback or ip.is_link_local:
                continue
            bits = int(ipaddress.ip_address(entry.netmask)).bit_count()
            found[ipaddress.ip_network((ip, bits), strict=False)] = None
    return tuple(found)


log = logging.getLogger(__name__)

_THIS_MACHINE: Final = "loopback"
Expected = Callable[[TcpStream], Awaitable[bool]]


@dataclass(eq=False)
class Swarm:
    """`listen`, and `dialler.dial`. All runs in `nursery`. `serve` gets each stream that a peer
    opens."""

    me: PeerId
    keys: NoiseKeys
    parameters: NetParameters
    nursery: trio.Nursery
    strangers: Strangers
    _: KW_ONLY
    serve: StreamHandler
    on_dialling: Callable[[Connection], None]
    on_dialled: Callable[[Connection], None]
    on_measured: Callable[[PeerId, int], None]
    on_disconnected: Callable[[PeerId], None]
    on_other_version: Callable[[Connection, int], None]
    on_introduced: Callable[[Connection], None]
    where: Whereabouts
    on_observed: Callable[[Connection], None]
    on_identified: Callable[[Connection, Identified], None]

    def __post_init__(self) -> None:
        limits = self.parameters
        self.handshakes = Places(limits.max_handshakes, limits.max_handshakes_per_ip)
        self.dialler = Dialler(self)
        self.own_port = OwnPort()
        self.closing = False
        self.keeps: Callable[[PeerId], bool] = lambda peer: False
        """Whether a connection with this peer is not to make room for others."""
        self.on_upgraded: Callable[[PeerId], None] = lambda peer: None
        """Is told of a direct connection to a peer that was reached by a circuit."""
        self.on_relayed: Callable[[Connection], None] = lambda circuit: None
        """Is told of a circuit that was brought to us."""
        self.expected: Callable[[str], Expected | None] = lambda host: None
        """What may take a connection from that host in place of us: it returns whether it did."""
        self.was_punched: Callable[[str], bool] = lambda host: False
        """Whether a router may have let in a connection from there only because we dialled."""
        self.bound: list[TcpAddress] = []
        """The addresses listened on."""
        self.followers: set[Callable[[Connection], None]] = set()
        """Are told of a connection when it is there, when its peer says what it is, and when it is
        over. Must not raise."""
        self._listening: list[trio.CancelScope] = []
        self._table: dict[PeerId, list[Connection]] = {}

    async def close(self) -> None:
        """Stop listening, and say goodbye to all peers at once; first to those behind relays, whose
        circuits end with the connections to these. Then cancel the nursery."""
        self.closing = True
        for scope in self._listening:
            scope.cancel()
        for relayed in (True, False):
            async with trio.open_nursery() as nursery:
                for connection in self.all():
                    if (connection.via is not None) is relayed:
                        nursery.start_soon(connection.muxer.close)
        self.own_port.close()

    @property
    def stopping(self) -> bool:
        """Whether it was closed, or broke: whatever fails now fails for that reason."""
        return self.closing or self.nursery.cancel_scope.cancel_called

    # -- the table ------------------------------------------------------------------------

    def all(self) -> Iterator[Connection]:
        return (c for connections in list(self._table.values()) for c in list(connections))

    def connection_to(self, peer: PeerId) -> Connection | None:
        """The newest that is open: the older ones may be dead and not yet noticed. A relayed one
        for want of a direct one, and one that is closed soon for want of both."""
        newest_first = self.connections_to(peer)
        return min(newest_first, key=lambda c: (c.fleeting, c.via is not None), default=None)

    def connections_to(self, peer: PeerId) -> list[Connection]:
        """All that are open, the newest first."""
        return [c for c in reversed(self._table.get(peer, ())) if not c.is_closed]

    def direct_to(self, peer: PeerId) -> Connection | None:
        """As `connection_to`, without a relay in between."""
        connection = self.connection_to(peer)
        return None if connection is None or connection.via is not None else connection

    def known(self, peer: PeerId) -> None:
        """A lease is shared with the peer."""
        for connection in self._table.get(peer, ()):
            connection.muxer.known()

    def abort_peer(self, peer: PeerId, reason: str) -> None:
        for connection in self._table.get(peer, ()):
            connection.abort(reason)

    def doubt(self, peer: PeerId) -> None:
        """It did not answer: its connections end soon where nothing is heard on them."""
        for connection in () if self.stopping else self.connections_to(peer):
            self.nursery.start_soon(connection.prove)

    def adopt(self, connection: Connection) -> None:
        """Enter a connection into the table and run it. Without a checkpoint: one that was let in
        is counted before the next one is looked at."""
        siblings = self._table.setdefault(connection.peer, [])
        inbound = [c for c in siblings if c.inbound and not c.is_closed]
        if connection.inbound and len(inbound) >= self.parameters.max_inbound_per_peer:
            idlest = max(inbound, key=lambda c: (not c.muxer.has_tunnels, c.idle_s))
            idlest.abort("too many connections of one peer")
        for other in siblings if connection.inbound else ():
            if other.via == connection.via and not other.is_closed and not connection.fleeting:
                self.nursery.start_soon(other.prove)
        siblings.append(connection)
        connection.muxer.draw_on(self.strangers)
        connection.muxer.measured = partial(self.on_measured, connection.peer)
        connection.on_other_version = self.on_other_version
        connection.on_introduced = self.on_introduced
        connection.on_observed = self.on_observed
        connection.on_identified = self._identified
        self._tell(connection)
        self.nursery.start_soon(self._run_connection, connection)
        self.dialler.connected(connection)
        if connection.via is not None and connection.inbound:
            self.on_relayed(connection)
        if self.direct_to(connection.peer) is connection and any(c.via for c in siblings):
            self.on_upgraded(connection.peer)

    def adopt_dialled(self, connection: Connection) -> None:
        """As `adopt`, of one that this node has dialled or punched: it tells of itself first."""
        self.adopt(connection)
        self.on_dialling(connection)

    def _identified(self, connection: Connection, said: Identified) -> None:
        self.on_identified(connection, said)
        self._tell(connection)

    def _tell(self, connection: Connection) -> None:
        for follower in tuple(self.followers):
            follower(connection)

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
            self._tell(connection)
            if not siblings:
                del self._table[connection.peer]
                self.on_disconnected(connection.peer)

    def make_room(self, *, inbound: bool, origin: str = "") -> bool:
        """Whether there is a place, after closing what `_in_the_way` says."""
        return _closed(self._in_the_way(inbound=inbound, origin=origin))

    def make_room_from(self, relay: PeerId, most: int, peer: PeerId) -> bool:
        """As `make_room`, for a circuit that this relay brings, which brings `most` at once."""
        taken = [c for c in self.all() if c.inbound and c.via == relay and not c.is_closed]
        has_room = len(taken) < most or _closed(self._idle(taken))
        return has_room and self.make_room(inbound=True, origin=peer)

    def _in_the_way(self, *, inbound: bool, origin: str) -> list[Connection] | None:
        """What is to be closed for the sake of one more; None where nothing may be. It is what was
        idle for long; or, of those that come in, the idlest of the origin that has most.
        """
        limits = self.parameters
        taken = [c for c in self.all() if c.inbound == inbound and not c.is_closed]
        if len(taken) < (limits.max_inbound if inbound else limits.max_outbound):
            return []
        idle = self._idle(taken)
        if idle is not None or not inbound:
            return idle
        strangers = [c for c in taken if not (self._is_kept(c) or c.muxer.is_known)]
        strangers.sort(key=lambda c: c.idle_s, reverse=True)
        origins = {c: _origin(c) for c in strangers}
        idlest = crowded_out(origins, origin, counted=map(_origin, taken))
        return None if idlest is None else [idlest]

    def _idle(self, taken: Sequence[Connection]) -> list[Connection] | None:
        free = [c for c in taken if not self._is_kept(c)]
        idlest = max(free, key=lambda c: c.idle_s, default=None)
        if idlest is None or idlest.idle_s < self.parameters.evictable_after_s:
            return None
        return [idlest]

    def _is_kept(self, connection: Connection) -> bool:
        """Whether it makes no room for others, however idle it is."""
        peer = connection.peer
        is_needed = self.keeps(peer) and connection is self.connection_to(peer)
        return is_needed or connection.muxer.has_tunnels

    # -- listening ------------------------------------------------------------------------

    async def listen(self, addresses: Sequence[TcpAddress]) -> None:
        """On all of them, but for `::` where there is no IPv6. Raises LocalError for the first that
        does not work, or where none does."""
        for address in addresses:
            scope = trio.CancelScope()
            try:
                listening = await self._bind(address)
            except NoSuchFamily as error:
                if address is addresses[-1] and not self.bound:
                    raise
                log.info("not listening on %s: %s", address, error)
                continue
            self.bound.append(replace(address, port=listening.getsockname()[1]))
            self._listening.append(scope)
            self.nursery.start_soon(accept_all, listening, self._accepted, scope)

    async def _bind(self, address: TcpAddress) -> trio.socket.SocketType:
        """A port that the system picks is the same in both families, if it is free in both."""
        if address.port == 0 and self.bound and address.ip is not None:
            first = self.bound[0]
            if address.ip.is_unspecified and first.family != address.family:
                with suppress(LocalError):
                    return await bind(replace(address, port=first.port), self.own_port)
        return await bind(address, self.own_port)

    async def _accepted(self, stream: TcpStream) -> None:
        remote = stream.get_remote_address()
        origin = origin_of(remote[0]) if remote is not None else ""
        refusal = self._refusal(origin)
        if refusal is not None:
            log.debug("a connection from %s is refused: %s", remote, refusal)
            await stream.close()
            return
        with self.handshakes.taken(origin) as place:
            if (
                remote is not None
                and (expected := self.expected(remote[0])) is not None
                and await expected(stream)
            ):
                return
            try:
                muxer = await upgrade(self.keys, self.parameters, stream, None)
            except SwarmException as error:
                log.debug("a connection from %s fails: %s", remote, error)
                return
        if place.cancelled_caught:
            log.debug("the handshake of a connection from %s loses its place", remote)
            await stream.close()
            return
        if not self.make_room(inbound=True, origin=origin):  # others may have taken it meanwhile
            await muxer.close()
            return
        punched = remote is not None and self.was_punched(remote[0])
        connection = Connection(muxer, inbound=True, local=stream.local, punched=punched)
        connection.fleeting = connection.peer in self.dialler.dialling_back
        self.adopt(connection)
        if punched:
            self.on_dialling(connection)
        else:
            self.on_dialled(connection)

    def _refusal(self, origin: str) -> str | None:
        if not origin or self.stopping:
            return "closed already"
        if origin != _THIS_MACHINE:
            there = [c for c in self.all() if c.inbound and _origin(c) == origin]
            if len(there) >= self.parameters.max_inbound_per_ip:
                return "too many connections from this address"
        if self._in_the_way(inbound=True, origin=origin) is None:
            return "too many connections"
        return None


def _closed(in_the_way: list[Connection] | None) -> bool:
    """Whether there is room, once what is in the way is closed."""
    for connection in in_the_way or ():
        connection.abort("making room for another peer")
    return in_the_way is not None


def _origin(connection: Connection) -> str:
    """Nothing vouches for where a peer is that comes over a circuit."""
    host = connection.remote_host
    return connection.peer if host is None else origin_of(host)


def origin_of(host: str) -> str:
    """The origin that an address is counted for: of IPv6 the /48, which one owner may have."""
    ip = ipaddress.ip_address(host)
    if ip.is_loopback:
        return _THIS_MACHINE
    return host if ip.version == 4 else str(ipaddress.ip_network((int(ip) >> 80 << 80, 48)))
