"""Dialling peers: each address once at a time, and several addresses of a peer in one dial."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import Unreachable
from formation_p2p.core.identity import PeerId
from formation_p2p.net.connection import Connection
from formation_p2p.net.transport.addresses import (
    CircuitAddress,
    TcpAddress,
    circuits_of,
    dial_back,
    dialable,
)
from formation_p2p.net.transport.errors import SwarmException
from formation_p2p.net.transport.tcp import Resolver, TcpStream, dial_tcp
from formation_p2p.net.transport.upgrade import upgrade
from formation_p2p.reach.core.paths import CIRCUITS_AFTER_S, STEP_S, from_own_port, plan

if TYPE_CHECKING:
    from formation_p2p.net.swarm import Swarm
    from formation_p2p.net.transport.yamux import Muxer

log = logging.getLogger(__name__)

_A = TypeVar("_A", TcpAddress, CircuitAddress)

MAX_DIALS: Final = 32  # at once, as go-libp2p
# At once to one peer, each for addresses that those before it do not have. Others tell a peer's
# addresses: where what they tell does not answer, a good one is not to wait for that.
MAX_DIALS_OF_PEER: Final = 4
DIAL_S: Final = 15.0  # all addresses of a peer
ADDRESS_S: Final = 8.0  # one of them, with its handshake
# Ports of one machine, at its own word. It is not for others to have its network searched.
MAX_DIALLED_BACK: Final = 3


@dataclass(eq=False)
class _Dial:
    """A dial in flight. All who want that peer, at one of these addresses, wait for it."""

    direct: list[str]
    circuits: list[str]
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ended: trio.Event = field(default_factory=trio.Event)
    connection: Connection | None = None
    failure: str = ""

    @property
    def addresses(self) -> set[str]:
        return {*self.direct, *self.circuits}


class Dialler:
    """Dials for a swarm, in its nursery."""

    def __init__(self, swarm: Swarm) -> None:
        trio.socket.set_custom_hostname_resolver(Resolver())
        self._swarm = swarm
        self._dials: dict[PeerId, list[_Dial]] = {}
        self._places = trio.CapacityLimiter(MAX_DIALS)
        self.dial_circuit: Callable[[CircuitAddress, PeerId], Awaitable[Connection]] = _unrelayed
        self.dialling_back: Counter[PeerId] = Counter()
        """Peers that were asked to dial us back: what they open is closed soon."""

    async def dial(self, to: Contact) -> Connection:
        """The connection to a peer, made if there is none. Raises Unreachable.

        Many may ask for the same peer at once; each address is dialled once, and a dial goes on
        to its own deadline when the one who asked first no longer waits.
        """
        peer = to.peer_id
        if (connection := self._swarm.connection_to(peer)) is not None:
            return connection
        chosen = plan(
            map(str, dialable(to.addresses, peer)),
            map(str, circuits_of(to.addresses, peer)),
            self._swarm.where.now(),
        )
        told = {*chosen.direct, *chosen.circuits}
        while True:
            if self._swarm.stopping:
                raise Unreachable("the network is closing")
            dials = self._dials.setdefault(peer, [])
            fresh = told.difference(*(each.addresses for each in dials))
            if not fresh or len(dials) < MAX_DIALS_OF_PEER:
                break
            oldest = dials[0]
            await oldest.ended.wait()
            if oldest.connection is not None:
                return oldest.connection
        if fresh or not dials:
            direct = [each for each in chosen.direct if each in fresh]
            dial = _Dial(direct, [each for each in chosen.circuits if each in fresh])
            # One before it may be direct.
            after_s = CIRCUITS_AFTER_S if dials else chosen.circuits_after_s
            dials.append(dial)
            self._swarm.nursery.start_soon(self._run_dial, dial, peer, after_s)
        waited = [each for each in dials if not told or each.addresses & told]
        for each in waited:
            await each.ended.wait()
            if each.connection is not None:
                return each.connection
        failures = "; ".join(each.failure for each in waited)
        raise Unreachable(f"{peer} cannot be reached: {failures}")

    def connected(self, connection: Connection) -> None:
        """There is a connection, made by either side. All callers have what they want; the dials
        go on, since the peer may have given up this connection for ours."""
        for dial in self._dials.get(connection.peer, ()):
            if dial.connection is None:
                dial.connection = connection
                dial.ended.set()

    async def _run_dial(self, dial: _Dial, peer: PeerId, circuits_after_s: float) -> None:
        dial.failure = f"no answer within {DIAL_S:.0f} s"
        dials = self._dials[peer]
        dial.scope.deadline = trio.current_time() + DIAL_S
        try:
            with dial.scope:
                dial.failure = await self._dial_all(dial, peer, circuits_after_s)
        finally:
            dials.remove(dial)
            if not dials:
                del self._dials[peer]
            dial.ended.set()

    async def _dial_all(self, dial: _Dial, peer: PeerId, circuits_after_s: float) -> str:
        """Returns what went wrong; nothing where a connection was made."""
        if peer == self._swarm.me:
            return "that is this node itself"
        addresses = [TcpAddress.parse(each) for each in dial.direct]
        circuits = [CircuitAddress.parse(each) for each in dial.circuits]
        if not addresses and not circuits:
            return "no address that TCP can dial is known"
        if not self._swarm.make_room(inbound=False):
            most = self._swarm.parameters.max_outbound
            return f"there are {most} connections already, none of them idle"
        failures: list[str] = []
        async with trio.open_nursery() as nursery:
            no_other_way = trio.Event()

            async def direct() -> None:
                # Only here: who waits for a relay waits for a dial, which needs a place too.
                async with self._places:
                    await self._staggered(addresses, partial(dial_one, self.dial_address))
                no_other_way.set()

            async def relayed() -> None:
                with trio.move_on_after(circuits_after_s):
                    await no_other_way.wait()
                await self._staggered(circuits, partial(dial_one, self.dial_circuit))

            async def dial_one(
                how: Callable[[_A, PeerId], Awaitable[Connection]], address: _A
            ) -> bool:
                try:
                    connection = await how(address, peer)
                except Exception as error:  # noqa: BLE001
                    # Resolvers and multiaddr raise what they like; another address may do.
                    log.debug("dialling %s at %s: %r", peer, address, error)
                    failures.append(f"{address}: {error}")
                    return False
                if nursery.cancel_scope.cancel_called:  # another address was faster
                    await connection.muxer.close()
                    return False
                if connection.via is None:  # else a direct one is better still
                    nursery.cancel_scope.cancel()
                    for other in self._dials[peer]:
                        if other is not dial:
                            other.scope.cancel()
                self._swarm.adopt_dialled(connection)
                return True

            if addresses:
                nursery.start_soon(direct)
            nursery.start_soon(relayed)
        return "; ".join(failures)

    async def _staggered(
        self, addresses: Sequence[_A], dial_one: Callable[[_A], Awaitable[bool]]
    ) -> None:
        """Dial them until one connects, each with a head start before the next."""
        async with trio.open_nursery() as nursery:

            async def attempt(address: _A, failed: trio.Event) -> None:
                if await dial_one(address):
                    nursery.cancel_scope.cancel()
                failed.set()

            for address in addresses:
                failed = trio.Event()
                nursery.start_soon(attempt, address, failed)
                with trio.move_on_after(STEP_S):
                    await failed.wait()

    async def dial_address(
        self, address: TcpAddress, peer: PeerId, *, confirmed: bool = False
    ) -> Connection:
        """Returns as soon as the peer is known to be the right one, or, with `confirmed`, once it
        has the connection as well. Raises SwarmException.
        """
        try:
            with trio.fail_after(ADDRESS_S):
                muxer, tcp = await self._muxer(address, peer, confirmed=confirmed)
                return Connection(muxer, inbound=False, dialled=str(address), local=tcp.local)
        except trio.TooSlowError as error:
            raise SwarmException(f"no answer within {ADDRESS_S:.0f} s") from error

    async def _muxer(
        self, address: TcpAddress, peer: PeerId, *, confirmed: bool
    ) -> tuple[Muxer, TcpStream]:
        swarm = self._swarm
        # What is to show that a peer can be dialled comes from a port that it has not dialled.
        shared = not confirmed and address.ip and from_own_port(address.ip, swarm.where.now())
        tcp = await dial_tcp(address, swarm.own_port if shared else None)
        try:
            return await upgrade(swarm.keys, swarm.parameters, tcp, peer, confirmed=confirmed), tcp
        except SwarmException as error:
            if not tcp.from_own_port:
                raise
            # Where both dialled at the same moment, from one port to the other, the dials have met
            # in one connection, in which both wanted to be the one who dials.
            log.debug("dialling %s again from a port of its own: %s", peer, error)
        tcp = await dial_tcp(address)
        return await upgrade(swarm.keys, swarm.parameters, tcp, peer, confirmed=confirmed), tcp

    # -- whether a peer can be dialled ------------------------------------------------------

    async def dial_back(self, peer: PeerId, timeout_s: float) -> bool | None:
        """Whether a connected peer can be dialled, at the address that it comes from. None where
        it tells only of names, or of nothing yet. The caller bounds how many of these there are."""
        connection = self._swarm.connection_to(peer)
        if connection is None:
            return None
        addresses = dial_back(connection.contact, connection.remote_host)
        claimed = dialable(connection.claimed, peer)
        if not addresses and all(address.ip is None for address in claimed):
            return None
        reached = False
        with trio.move_on_after(timeout_s):
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


async def _unrelayed(address: CircuitAddress, peer: PeerId) -> Connection:
    raise SwarmException("this node dials no circuits")
