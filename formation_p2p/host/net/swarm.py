"""The connections: py-libp2p's swarm with its weak parts replaced.

Kept of py-libp2p 0.8.1 are the tables of connections, handlers and notifees and the interfaces,
so that its other protocols run on it too. Replaced in `libp2p/network/swarm.py`:

- :1982 takes a slot for each inbound connection and gives it back only when the swarm ends
  (:2060). Here the connections that are there are counted.
- :883 dials one of several TCP addresses; :936 waits 250 ms after it succeeded; :752 does not
  dial a peer again for a minute after it could not be reached.
- :1945 a listen that failed is not told to anyone.
- :443 leaving `run` leaks the sockets of connections; closing takes 0.2 s for each, in turn.
- :393 starts the auto-connector, which (`libp2p/network/auto_connector.py:300`) dials whom it
  knows whenever there are fewer than half of `high_watermark` connections, low ones or not.
"""

from __future__ import annotations

import ipaddress
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import trio
from libp2p.network.config import ConnectionConfig
from libp2p.network.connection.raw_connection import RawConnection
from libp2p.network.exceptions import SwarmException
from libp2p.network.swarm import Swarm
from libp2p.peer.id import ID
from libp2p.transport.exceptions import OpenConnectionError
from multiaddr import Multiaddr

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import LocalError, RemoteError, Unreachable
from formation_p2p.core.identity import PeerId, peer_id_from_bytes, peer_id_to_bytes
from formation_p2p.host.net.addresses import TcpAddress, dial_back, dialable
from formation_p2p.host.net.connection import Connection
from formation_p2p.host.net.transport.stream import MuxedStream
from formation_p2p.host.net.transport.tcp import TcpListener, TcpTransport
from formation_p2p.host.net.transport.upgrade import Upgrader
from formation_p2p.host.net.transport.yamux import Muxer

if TYPE_CHECKING:
    from libp2p.abc import (
        IMuxedConn,
        INetConn,
        INetStream,
        IPeerStore,
        IRawConnection,
    )
    from libp2p.io.abc import ReadWriteCloser
    from libp2p.security.noise.transport import Transport as NoiseTransport

log = logging.getLogger(__name__)

# 0.15 MB each, and a file descriptor of the 1,024 that a process usually has.
MAX_INBOUND: Final = 256
MAX_OUTBOUND: Final = 128
# A peer has one, or two when both dialled at once; more while dead ones are not yet noticed.
MAX_INBOUND_PER_PEER: Final = 4
# A campus behind one address has many machines; one machine must not take all the slots.
# Addresses of this machine are not counted: whoever is here can do worse.
MAX_INBOUND_PER_IP: Final = 128
# A handshake costs 3 ms of CPU and may last for HANDSHAKE_S of transport/upgrade.py.
MAX_HANDSHAKES: Final = 192
MAX_HANDSHAKES_PER_IP: Final = 32
# When all slots are taken, the connection idle the longest makes room, if for so long.
EVICTABLE_AFTER_S: Final = 30.0

MAX_DIALS: Final = 32  # at once, as go-libp2p
DIAL_S: Final = 15.0  # all addresses of a peer
ADDRESS_S: Final = 8.0  # one of them, with its handshake
STAGGER_S: Final = 0.25  # the head start of a better address, as RFC 8305 has it
# Ports of one machine, at its own word. It is not for others to have its network searched.
MAX_DIALLED_BACK: Final = 3

_THIS_MACHINE: Final = "loopback"


@dataclass(eq=False)
class _Dial:
    """A dial under way. All who want that peer wait for it."""

    ended: trio.Event = field(default_factory=trio.Event)
    connection: Connection | None = None
    failure: str = ""


class GuardedSwarm(Swarm):
    """`run` first, in a nursery; then `listen` and `dial`."""

    upgrader: Upgrader

    def __init__(
        self,
        peer_id: ID,
        peerstore: IPeerStore,
        noise: NoiseTransport,
        *,
        on_dialling: Callable[[Connection], None],
        on_dialled: Callable[[Connection], None],
        on_disconnected: Callable[[PeerId], None],
    ) -> None:
        super().__init__(
            peer_id,
            peerstore,
            Upgrader(noise),
            connection_config=ConnectionConfig(min_connections=0, low_watermark=0),
        )
        # The tag store's, which keeps every peer it ever saw for the pruner to look at.
        self.notifees.clear()
        self._transport = TcpTransport()
        self.transport_manager.add_transport(self._transport)
        self._table: dict[PeerId, list[Connection]] = {}
        self._on_dialling = on_dialling
        self._on_dialled = on_dialled
        self._on_disconnected = on_disconnected
        self._handshakes: Counter[str] = Counter()
        self._dials: dict[PeerId, _Dial] = {}
        self._dial_slots = trio.CapacityLimiter(MAX_DIALS)
        self._dialling_back: Counter[PeerId] = Counter()

    # -- life -----------------------------------------------------------------------------

    async def run(self, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Until cancelled. What a task of the swarm itself raises comes out here."""
        async with trio.open_nursery() as nursery:
            self.background_nursery = nursery
            self.event_background_nursery_created.set()
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                # Before the nursery takes no more tasks, whatever ends it.
                self._closing = True

    async def close(self) -> None:
        """Stop listening, and say goodbye to all peers at once. Then cancel `run`."""
        self._closing = True
        async with trio.open_nursery() as nursery:
            for listener in self.listeners.values():
                nursery.start_soon(listener.close)
            for connection in self.all():
                nursery.start_soon(connection.close)
        self.listeners.clear()

    @property
    def stopping(self) -> bool:
        """Whether it was closed, or broke: whatever fails now fails for that reason."""
        return self._closing or self._nursery.cancel_scope.cancel_called

    @property
    def _nursery(self) -> trio.Nursery:
        if self.background_nursery is None:
            raise SwarmException("the swarm does not run")
        return self.background_nursery

    # -- the table ------------------------------------------------------------------------

    def all(self) -> Iterator[Connection]:
        return (c for connections in list(self._table.values()) for c in list(connections))

    def connection_to(self, peer: PeerId) -> Connection | None:
        """The newest that is open: the older ones may be dead and not yet noticed. One that is
        closed soon only if there is no other."""
        newest_first = [c for c in reversed(self._table.get(peer, ())) if not c.is_closed]
        newest_first.sort(key=lambda connection: connection.fleeting)  # stable
        return newest_first[0] if newest_first else None

    def connection_of(self, channel: MuxedStream) -> Connection:
        """The one that `channel` runs on, while it is open. Raises Unreachable once it is not."""
        peer = peer_id_from_bytes(channel.muxed_conn.peer_id.to_bytes())
        for connection in self._table.get(peer, ()):
            if connection.muxed_conn is channel.muxed_conn:
                return connection
        raise Unreachable(f"the connection to {peer} is closed")

    def abort_peer(self, peer: PeerId, reason: str) -> None:
        for connection in self._table.get(peer, ()):
            connection.abort(reason)

    async def add_conn(self, muxed_conn: IMuxedConn, direction: str = "unknown") -> Any:
        """libp2p's name for `_adopt`."""
        if not isinstance(muxed_conn, Muxer):
            raise SwarmException(f"{type(muxed_conn).__name__} is no connection of this swarm")
        await trio.lowlevel.checkpoint()
        return self._adopt(Connection(muxed_conn, inbound=direction == "inbound"))

    def _adopt(self, connection: Connection) -> Connection:
        """Enter a connection into the table and run it. Without a checkpoint: whoever was let
        in is counted before the next one is looked at."""
        siblings = self._table.setdefault(connection.peer, [])
        inbound = [c for c in siblings if c.inbound and not c.is_closed]
        if connection.inbound and len(inbound) >= MAX_INBOUND_PER_PEER:
            max(inbound, key=lambda c: c.idle_s).abort("too many connections of one peer")
        siblings.append(connection)
        self.connections.setdefault(connection.muxed_conn.peer_id, []).append(connection)
        self._nursery.start_soon(self._run_connection, connection)
        # Whoever waits for a dial has what it wants; the dial itself goes on, since the peer may
        # have given up this connection for ours.
        dial = self._dials.get(connection.peer)
        if dial is not None and dial.connection is None:
            dial.connection = connection
            dial.ended.set()
        return connection

    async def _run_connection(self, connection: Connection) -> None:
        try:
            await self.notify_connected(connection)
            await connection.run(self.common_stream_handler)
        except Exception:
            # What is wrong with one connection must not end the others.
            log.exception("the connection to %s failed", connection.peer)
        finally:
            connection.abort("the network is closing")
            self._forget(connection)
        await self._notify("disconnected", connection)

    def _forget(self, connection: Connection) -> None:
        siblings, same = self._table[connection.peer], connection.muxed_conn.peer_id
        siblings.remove(connection)
        self.connections[same].remove(connection)
        if not siblings:
            del self._table[connection.peer], self.connections[same]
            self._on_disconnected(connection.peer)

    def _make_room(self, *, inbound: bool) -> bool:
        """Whether there is a slot, after closing what was idle for long."""
        taken = [c for c in self.all() if c.inbound == inbound and not c.is_closed]
        if len(taken) < (MAX_INBOUND if inbound else MAX_OUTBOUND):
            return True
        idlest = max(taken, key=lambda c: c.idle_s)
        if idlest.idle_s < EVICTABLE_AFTER_S:
            return False
        idlest.abort("making room for another peer")
        return True

    # -- listening ------------------------------------------------------------------------

    async def listen(self, *multiaddrs: Multiaddr) -> bool:
        """On all of them. Raises LocalError for the first that does not work."""
        for maddr in multiaddrs:
            listener = TcpListener(self._accepted)
            try:
                await listener.listen(maddr)
            except OpenConnectionError as error:
                raise LocalError(
                    f"cannot listen on {error}; stop what holds the port, or choose another"
                ) from error
            self.listeners[str(maddr)] = listener
            self._nursery.start_soon(listener.serve)
        return True

    async def _accepted(self, stream: ReadWriteCloser) -> None:
        remote = stream.get_remote_address()
        origin = _origin(remote[0]) if remote is not None else ""
        refusal = self._refusal(origin)
        if refusal is not None:
            log.debug("a connection from %s is refused: %s", remote, refusal)
            await stream.close()
            return
        with self._handshaking(origin):
            try:
                muxer = await self.upgrader.upgrade(RawConnection(stream, False), None)
            except SwarmException as error:
                log.debug("a connection from %s fails: %s", remote, error)
                return
        if not self._make_room(inbound=True):  # others may have taken it meanwhile
            await muxer.close()
            return
        connection = Connection(muxer, inbound=True)
        connection.fleeting = connection.peer in self._dialling_back
        self._adopt(connection)
        self._on_dialled(connection)

    @contextmanager
    def _handshaking(self, origin: str) -> Iterator[None]:
        self._handshakes[origin] += 1
        try:
            yield
        finally:
            self._handshakes[origin] -= 1
            self._handshakes += Counter()  # drops the zeros

    def _refusal(self, origin: str) -> str | None:
        if not origin or self.stopping:
            return "closed already"
        if self._handshakes.total() >= MAX_HANDSHAKES:
            return "too many handshakes"
        if origin != _THIS_MACHINE:
            if self._handshakes[origin] >= MAX_HANDSHAKES_PER_IP:
                return "too many handshakes with this address"
            there = [c for c in self.all() if c.inbound and _origin(c.remote_host) == origin]
            if len(there) >= MAX_INBOUND_PER_IP:
                return "too many connections from this address"
        if not self._make_room(inbound=True):
            return "too many connections"
        return None

    # -- dialling -------------------------------------------------------------------------

    async def dial(self, to: Contact) -> Connection:
        """The connection to a peer, made if there is none. Raises Unreachable.

        Many may ask for the same peer at once; it is dialled once, and goes on to its own
        deadline when the one who asked first no longer waits.
        """
        connection = self.connection_to(to.peer_id)
        if connection is not None:
            return connection
        if self.stopping:
            raise Unreachable("the network is closing")
        dial = self._dials.get(to.peer_id)
        if dial is None:
            dial = self._dials[to.peer_id] = _Dial()
            self._nursery.start_soon(self._run_dial, dial, to)
        await dial.ended.wait()
        if dial.connection is None:
            raise Unreachable(f"{to.peer_id} cannot be reached: {dial.failure}")
        return dial.connection

    async def _run_dial(self, dial: _Dial, to: Contact) -> None:
        dial.failure = f"no answer within {DIAL_S:.0f} s"
        try:
            with trio.move_on_after(DIAL_S):
                async with self._dial_slots:
                    await self._dial_all(dial, to)
        finally:
            del self._dials[to.peer_id]
            dial.ended.set()

    async def _dial_all(self, dial: _Dial, to: Contact) -> None:
        addresses = dialable(to.addresses, to.peer_id)
        if to.peer_id == peer_id_from_bytes(self.self_id.to_bytes()):
            dial.failure = "that is this node itself"
        elif not addresses:
            dial.failure = "no address that TCP can dial is known"
        elif not self._make_room(inbound=False):
            dial.failure = f"there are {MAX_OUTBOUND} connections already, none of them idle"
        else:
            await self._dial_staggered(dial, to.peer_id, addresses)

    async def _dial_staggered(
        self, dial: _Dial, peer: PeerId, addresses: Sequence[TcpAddress]
    ) -> None:
        failures: list[str] = []
        async with trio.open_nursery() as nursery:

            async def dial_one(address: TcpAddress, failed: trio.Event) -> None:
                try:
                    connection = await self._dial_address(address, peer)
                except Exception as error:  # noqa: BLE001
                    # Resolvers and multiaddr raise what they like; another address may do.
                    log.debug("dialling %s at %s: %r", peer, address, error)
                    failures.append(f"{address}: {error}")
                    failed.set()
                    return
                if nursery.cancel_scope.cancel_called:  # another address was faster
                    await connection.close()
                    return
                nursery.cancel_scope.cancel()
                self._adopt(connection)
                self._on_dialling(connection)

            for address in addresses:
                failed = trio.Event()
                nursery.start_soon(dial_one, address, failed)
                with trio.move_on_after(STAGGER_S):
                    await failed.wait()
        dial.failure = "; ".join(failures)

    async def _dial_address(
        self, address: TcpAddress, peer: PeerId, *, confirmed: bool = False
    ) -> Connection:
        """Returns as soon as the peer is known to be the right one, or, with `confirmed`, once it
        has the connection as well. Raises SwarmException.
        """
        try:
            with trio.fail_after(ADDRESS_S):
                raw = await self._transport.dial(Multiaddr(str(address)))
                muxer = await self.upgrader.upgrade(raw, ID(peer_id_to_bytes(peer)))
                if confirmed:
                    await self._confirm(muxer)
                return Connection(muxer, inbound=False, dialled=str(address))
        except OpenConnectionError as error:
            raise SwarmException(str(error)) from error
        except trio.TooSlowError as error:
            raise SwarmException(f"no answer within {ADDRESS_S:.0f} s") from error

    async def _confirm(self, muxer: Muxer) -> None:
        try:
            await muxer.confirm()
        except RemoteError as error:
            await muxer.close()
            raise SwarmException(str(error)) from error
        except BaseException:
            await muxer.close()
            raise

    # -- whether a peer can be dialled ------------------------------------------------------

    async def dial_back(self, peer: PeerId) -> bool | None:
        """Whether a connected peer can be dialled, at the address that it comes from. None where
        it tells only of names, or of nothing yet. The caller bounds the time, and how many of
        these there are."""
        connection = self.connection_to(peer)
        if connection is None:
            return None
        addresses = dial_back(connection.contact, connection.remote_host)
        claimed = dialable(connection.claimed, peer)
        if not addresses and all(address.ip is None for address in claimed):
            return None
        reached = False
        async with trio.open_nursery() as nursery:

            async def dial_one(address: TcpAddress) -> None:
                nonlocal reached
                try:
                    # Confirmed, so that the peer too knows that it was dialled.
                    fresh = await self._dial_address(address, peer, confirmed=True)
                except SwarmException as error:
                    log.debug("dialling back %s at %s: %s", peer, address, error)
                    return
                reached = True
                await fresh.close()
                nursery.cancel_scope.cancel()

            for address in addresses[:MAX_DIALLED_BACK]:
                nursery.start_soon(dial_one, address)
        return reached

    @contextmanager
    def dialled_back_by(self, peer: PeerId) -> Iterator[None]:
        """While a peer was asked to dial us back: what it opens is closed soon."""
        self._dialling_back[peer] += 1
        try:
            yield
        finally:
            self._dialling_back[peer] -= 1
            self._dialling_back += Counter()  # drops the zeros

    # -- what libp2p's own protocols call -------------------------------------------------

    async def dial_peer(self, peer_id: ID) -> list[INetConn]:
        peer = peer_id_from_bytes(peer_id.to_bytes())
        addresses = self.peerstore.addrs(peer_id)
        return [await self._libp2p_dial(Contact(peer, tuple(map(str, addresses))))]

    async def dial_addr(
        self, addr: Multiaddr, peer_id: ID, source: tuple[str, int] | None = None
    ) -> INetConn:
        peer = peer_id_from_bytes(peer_id.to_bytes())
        return await self._libp2p_dial(Contact(peer, (str(addr),)))

    async def _libp2p_dial(self, to: Contact) -> Connection:
        try:
            return await self.dial(to)
        except Unreachable as error:
            raise SwarmException(str(error)) from error

    async def new_stream(self, peer_id: ID) -> INetStream:
        connection = self.connection_to(peer_id_from_bytes(peer_id.to_bytes()))
        if connection is None:
            (connection,) = await self.dial_peer(peer_id)  # type: ignore[assignment]
        return await connection.new_stream()  # type: ignore[union-attr]

    async def close_peer(self, peer_id: ID) -> None:
        await trio.lowlevel.checkpoint()
        self.abort_peer(peer_id_from_bytes(peer_id.to_bytes()), "closed here")

    async def upgrade_outbound_raw_conn(
        self, raw_conn: IRawConnection, peer_id: ID, pre_scope: Any = None
    ) -> Any:
        muxer = await self.upgrader.upgrade(raw_conn, peer_id)
        return self._adopt(Connection(muxer, inbound=False))

    async def upgrade_inbound_raw_conn(
        self, raw_conn: IRawConnection, maddr: Multiaddr
    ) -> IMuxedConn:
        muxer = await self.upgrader.upgrade(raw_conn, None)
        return self._adopt(Connection(muxer, inbound=True)).muxed_conn


def _origin(host: str | None) -> str:
    """Whom an address is counted for: of IPv6 the /64, since whoever has one has all of it."""
    if host is None:
        return ""
    ip = ipaddress.ip_address(host)
    if ip.is_loopback:
        return _THIS_MACHINE
    return host if ip.version == 4 else str(ipaddress.ip_network((int(ip) >> 64 << 64, 64)))
