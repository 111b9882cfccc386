"""Dialling peers: one dial for each peer at a time, and several addresses in it.

In place of `libp2p/network/swarm.py`, which dials one of several TCP addresses (:883), waits 250 ms
after it succeeded (:936), and does not dial a peer again for a minute after it could not be reached
(:752).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import trio
from libp2p.network.exceptions import SwarmException
from libp2p.peer.id import ID

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import Unreachable
from formation_p2p.core.identity import PeerId, peer_id_to_bytes
from formation_p2p.host.net.addresses import TcpAddress, dial_back, dialable
from formation_p2p.host.net.connection import Connection
from formation_p2p.host.net.transport.tcp import Resolver, dial_tcp
from formation_p2p.host.net.transport.upgrade import upgrade

if TYPE_CHECKING:
    from formation_p2p.host.net.swarm import Swarm

log = logging.getLogger(__name__)

MAX_DIALS: Final = 32  # at once, as go-libp2p
DIAL_S: Final = 15.0  # all addresses of a peer
ADDRESS_S: Final = 8.0  # one of them, with its handshake
STAGGER_S: Final = 0.25  # the head start of a better address, as RFC 8305 has it
# Ports of one machine, at its own word. It is not for others to have its network searched.
MAX_DIALLED_BACK: Final = 3


@dataclass(eq=False)
class _Dial:
    """A dial in flight. All who want that peer wait for it."""

    ended: trio.Event = field(default_factory=trio.Event)
    connection: Connection | None = None
    failure: str = ""


class Dialler:
    """Dials for a swarm, in its nursery."""

    def __init__(self, swarm: Swarm) -> None:
        trio.socket.set_custom_hostname_resolver(Resolver())
        self._swarm = swarm
        self._dials: dict[PeerId, _Dial] = {}
        self._places = trio.CapacityLimiter(MAX_DIALS)
        self.dialling_back: Counter[PeerId] = Counter()
        """Peers that were asked to dial us back: what they open is closed soon."""

    async def dial(self, to: Contact) -> Connection:
        """The connection to a peer, made if there is none. Raises Unreachable.

        Many may ask for the same peer at once; it is dialled once, and goes on to its own
        deadline when the one who asked first no longer waits.
        """
        if (connection := self._swarm.connection_to(to.peer_id)) is not None:
            return connection
        if self._swarm.stopping:
            raise Unreachable("the network is closing")
        dial = self._dials.get(to.peer_id)
        if dial is None:
            dial = self._dials[to.peer_id] = _Dial()
            self._swarm.nursery.start_soon(self._run_dial, dial, to)
        await dial.ended.wait()
        if dial.connection is None:
            raise Unreachable(f"{to.peer_id} cannot be reached: {dial.failure}")
        return dial.connection

    def connected(self, connection: Connection) -> None:
        """There is a connection, made by either side. A dial's callers have what they want; the
        dial goes on, since the peer may have given up this connection for ours."""
        dial = self._dials.get(connection.peer)
        if dial is not None and dial.connection is None:
            dial.connection = connection
            dial.ended.set()

    async def _run_dial(self, dial: _Dial, to: Contact) -> None:
        dial.failure = f"no answer within {DIAL_S:.0f} s"
        try:
            with trio.move_on_after(DIAL_S):
                async with self._places:
                    dial.failure = await self._dial_all(to)
        finally:
            del self._dials[to.peer_id]
            dial.ended.set()

    async def _dial_all(self, to: Contact) -> str:
        """Returns what went wrong; nothing where a connection was made."""
        addresses = dialable(to.addresses, to.peer_id)
        if to.peer_id == self._swarm.me:
            return "that is this node itself"
        if not addresses:
            return "no address that TCP can dial is known"
        if not self._swarm.make_room(inbound=False):
            most = self._swarm.parameters.max_outbound
            return f"there are {most} connections already, none of them idle"
        return await self._dial_staggered(to.peer_id, addresses)

    async def _dial_staggered(self, peer: PeerId, addresses: Sequence[TcpAddress]) -> str:
        failures: list[str] = []
        async with trio.open_nursery() as nursery:

            async def dial_one(address: TcpAddress, failed: trio.Event) -> None:
                try:
                    connection = await self.dial_address(address, peer)
                except Exception as error:  # noqa: BLE001
                    # Resolvers and multiaddr raise what they like; another address may do.
                    log.debug("dialling %s at %s: %r", peer, address, error)
                    failures.append(f"{address}: {error}")
                    failed.set()
                    return
                if nursery.cancel_scope.cancel_called:  # another address was faster
                    await connection.muxer.close()
                    return
                nursery.cancel_scope.cancel()
                self._swarm.adopt(connection)
                self._swarm.on_dialling(connection)

            for address in addresses:
                failed = trio.Event()
                nursery.start_soon(dial_one, address, failed)
                with trio.move_on_after(STAGGER_S):
                    await failed.wait()
        return "; ".join(failures)

    async def dial_address(
        self, address: TcpAddress, peer: PeerId, *, confirmed: bool = False
    ) -> Connection:
        """Returns as soon as the peer is known to be the right one, or, with `confirmed`, once it
        has the connection as well. Raises SwarmException.
        """
        try:
            with trio.fail_after(ADDRESS_S):
                tcp = await dial_tcp(address)
                to = ID(peer_id_to_bytes(peer))
                noise, parameters = self._swarm.noise, self._swarm.parameters
                muxer = await upgrade(noise, parameters, tcp, to, confirmed=confirmed)
                return Connection(muxer, inbound=False, dialled=str(address))
        except trio.TooSlowError as error:
            raise SwarmException(f"no answer within {ADDRESS_S:.0f} s") from error

    # -- whether a peer can be dialled ------------------------------------------------------

    async def dial_back(self, peer: PeerId) -> bool | None:
        """Whether a connected peer can be dialled, at the address that it comes from. None where
        it tells only of names, or of nothing yet. The caller bounds the time, and how many of
        these there are."""
        connection = self._swarm.connection_to(peer)
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
                    fresh = await self.dial_address(address, peer, confirmed=True)
                except SwarmException as error:
                    log.debug("dialling back %s at %s: %s", peer, address, error)
                    return
                reached = True
                await fresh.muxer.close()
                nursery.cancel_scope.cancel()

            for address in addresses[:MAX_DIALLED_BACK]:
                nursery.start_soon(dial_one, address)
        return reached
