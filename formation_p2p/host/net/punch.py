"""Reversal and hole punching over circuits: performs what `core/nat/dcutr.py` decides.

What a peer names is dialled within `paths.at_its_word`, and only for a peer that a circuit connects
with us, which a relay brings for those that it serves: the members of its network.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, assert_never

import trio

from formation_p2p.core.errors import ProtocolViolation, RemoteError
from formation_p2p.core.identity import PeerId
from formation_p2p.core.nat import dcutr
from formation_p2p.core.nat.own_addresses import OwnAddresses
from formation_p2p.core.nat.paths import at_its_word
from formation_p2p.host.net.addresses import TcpAddress, dialable
from formation_p2p.host.net.connection import Connection, StreamHandler
from formation_p2p.host.net.logged import logged
from formation_p2p.host.net.meeting import Meetings
from formation_p2p.host.net.protocols.frames import encode_frame, read_frame
from formation_p2p.host.net.transport.errors import IOException, SwarmException
from formation_p2p.host.net.transport.negotiation import NotSpoken
from formation_p2p.host.net.transport.stream import MuxedStream

if TYPE_CHECKING:
    from formation_p2p.host.net.swarm import Swarm

log = logging.getLogger(__name__)

# Peers whose exchanges are counted, the latest: as many as may have dialled circuits to us, and as
# we may have dialled.
MAX_PEERS: Final = 1024
# Attempts that dial at once, over all peers: each has up to four sockets. An exchange, in which a
# peer may fall silent, holds no place.
MAX_PUNCHING: Final = 16
# Peers of one relay whose holes we punch at once: a relay makes up as many peers as it likes.
MAX_LISTENERS_OF_RELAY: Final = 64
# Between two looks whether a direct connection came by other means.
LOOK_S: Final = 0.5
# Told to a peer: ours as others see them, then those of our interfaces, for a neighbour.
MAX_TOLD: Final = 8


@dataclass(eq=False)
class Punching:
    """`counts` has how many rounds ended in `reversed`, `punched` and `failed`."""

    swarm: Swarm
    own: OwnAddresses
    max_of_relay: int = MAX_LISTENERS_OF_RELAY
    counts: Counter[str] = field(default_factory=Counter, init=False)

    def __post_init__(self) -> None:
        self._listeners: dict[PeerId, dcutr.Listener] = {}
        self._via: Counter[PeerId | None] = Counter()
        self._dialled: OrderedDict[PeerId, dcutr.Dialled] = OrderedDict()
        self._dialling: dict[PeerId, trio.CancelScope] = {}
        self._meetings = Meetings(self.swarm)
        self.places = trio.CapacityLimiter(MAX_PUNCHING)
        self._changed = trio.Event()
        self.swarm.on_relayed = self._relayed

    def protocols(self) -> dict[str, StreamHandler]:
        """What is served."""
        return {dcutr.PROTOCOL: self.serve}

    def network_changed(self) -> None:
        """Our addresses are others now."""
        for listener in self._listeners.values():
            listener.handle(dcutr.NetworkChanged(), trio.current_time())
        self._changed.set()
        self._changed = trio.Event()

    # -- the side that was dialled over the circuit -------------------------------------------

    def _relayed(self, circuit: Connection) -> None:
        """A circuit was brought to us."""
        if circuit.peer in self._listeners:
            return
        if self._via[circuit.via] >= self.max_of_relay:
            log.debug("%s stays relayed: too many come by %s", circuit.peer, circuit.via)
            return
        self._listeners[circuit.peer] = dcutr.Listener(trio.current_time())
        self._via[circuit.via] += 1
        self.swarm.nursery.start_soon(logged, partial(self._listen, circuit.peer, circuit.via))

    async def _listen(self, peer: PeerId, via: PeerId | None) -> None:
        """Until there is something direct, or no circuit from the peer any more."""
        listener = self._listeners[peer]
        try:
            while (circuit := self._circuit_from(peer)) is not None:
                await circuit.wait_identified()
                effects = listener.handle(dcutr.Tick(), trio.current_time())
                if not effects:
                    with trio.move_on_after(min(LOOK_S, listener.at_s - trio.current_time())):
                        await self._changed.wait()
                    continue
                await self._round(listener, circuit, effects)
        except NotSpoken:
            log.debug("%s does not punch holes", peer)
        finally:
            del self._listeners[peer]
            self._via[via] -= 1
            if not self._via[via]:
                del self._via[via]

    def _circuit_from(self, peer: PeerId) -> Connection | None:
        """None where there is nothing to do: the peer with the smaller id does it where each has
        dialled a circuit to the other."""
        if self.swarm.direct_to(peer) is not None:
            return None
        circuits = [c for c in self.swarm.connections_to(peer) if c.via is not None]
        if peer < self.swarm.me and not all(c.inbound for c in circuits):
            return None
        return next((c for c in circuits if c.inbound), None)

    async def _round(
        self, listener: dcutr.Listener, circuit: Connection, effects: Sequence[dcutr.Effect]
    ) -> None:
        """Raises NotSpoken."""
        exchange: _Exchange | None = None
        try:
            while effects:
                event: dcutr.Event = dcutr.Failed()
                try:
                    with trio.fail_after(dcutr.EXCHANGE_S):
                        for effect in effects:
                            match effect:
                                case dcutr.Reverse():
                                    if await self._reverse(circuit):
                                        return
                                case dcutr.OpenExchange():
                                    stream = await circuit.open(dcutr.PROTOCOL)
                                    exchange = _Exchange(stream)
                                    event = dcutr.Began(self._told())
                                case dcutr.Say(message):
                                    assert exchange is not None, "an exchange is open"
                                    await exchange.say(message)
                                    if isinstance(message, dcutr.Connect):
                                        event = dcutr.Arrived(await exchange.next())
                                case dcutr.DialAt():
                                    pass
                                case _:
                                    assert_never(effect)
                except NotSpoken:
                    raise
                except (RemoteError, IOException, trio.TooSlowError) as error:
                    log.debug("an exchange with %s to punch holes: %r", circuit.peer, error)
                    event = dcutr.Failed()
                else:
                    if isinstance(effects[-1], dcutr.DialAt):
                        if exchange is not None:
                            await exchange.stream.close()
                        if await self._punch(circuit, effects[-1]):
                            return
                if self._circuit_from(circuit.peer) is not circuit:
                    return
                effects = self._handled(listener, event)
        finally:
            if exchange is not None:
                exchange.stream.abort("the exchange is over")
        self.counts["failed"] += 1
        log.debug("%s stays reached by a circuit; punching again later", circuit.peer)

    def _handled(
        self, machine: dcutr.Listener | dcutr.Dialled, event: dcutr.Event
    ) -> list[dcutr.Effect]:
        try:
            return machine.handle(event, trio.current_time())
        except ProtocolViolation as violation:
            log.debug("hole punching: %s", violation)
            return machine.handle(dcutr.Failed(), trio.current_time())

    async def _reverse(self, circuit: Connection) -> bool:
        """Dial the peer where it says that it listens."""
        addresses = self._allowed(circuit.peer, circuit.claimed)
        if not addresses:
            return False
        done = False
        async with self.places:
            with trio.move_on_after(dcutr.REVERSAL_S):
                async with trio.open_nursery() as nursery:

                    async def dial_one(address: TcpAddress) -> None:
                        nonlocal done
                        dialler = self.swarm.dialler
                        try:
                            connection = await dialler.dial_address(address, circuit.peer)
                        except SwarmException as error:
                            log.debug("reversing to %s at %s: %s", circuit.peer, address, error)
                            return
                        if nursery.cancel_scope.cancel_called:
                            await connection.muxer.close()
                            return
                        nursery.cancel_scope.cancel()
                        done = True
                        self.swarm.adopt_dialled(connection)

                    for address in addresses:
                        nursery.start_soon(dial_one, address)
        if done:
            self.counts["reversed"] += 1
        return done

    # -- the side that dialled the circuit ------------------------------------------------------

    async def serve(self, stream: MuxedStream, connection: Connection) -> None:
        """One exchange. Raises RemoteError, IOException, TooSlowError."""
        peer = connection.peer
        if connection.via is None or connection.inbound:
            raise ProtocolViolation(f"{peer} punches holes, and did not accept a circuit of ours")
        dialled = self._dialled.pop(peer, None) or dcutr.Dialled()
        self._dialled[peer] = dialled
        if len(self._dialled) > MAX_PEERS:
            self._dialled.popitem(last=False)
        exchange = _Exchange(stream)
        dialled.handle(dcutr.Began(self._told()), trio.current_time())
        if peer in self._dialling:  # the last attempt, which the peer has given up
            self._dialling[peer].cancel()
        try:
            with trio.fail_after(dcutr.EXCHANGE_S):
                effects: list[dcutr.Effect] = []
                while not (effects and isinstance(effects[-1], dcutr.DialAt)):
                    arrived = dcutr.Arrived(await exchange.next())
                    effects = dialled.handle(arrived, trio.current_time())
                    for effect in effects:
                        if isinstance(effect, dcutr.Say):
                            await exchange.say(effect.message)
        except BaseException:
            dialled.handle(dcutr.Failed(), trio.current_time())
            raise
        self.swarm.nursery.start_soon(logged, partial(self._meet, connection, dialled, effects[-1]))

    async def _meet(self, circuit: Connection, dialled: dcutr.Dialled, dial: dcutr.DialAt) -> None:
        scope = self._dialling[circuit.peer] = trio.CancelScope()
        try:
            with scope:
                if not await self._punch(circuit, dial):
                    dialled.handle(dcutr.Failed(), trio.current_time())
        finally:
            if self._dialling.get(circuit.peer) is scope:
                del self._dialling[circuit.peer]

    # -- the dials ------------------------------------------------------------------------------

    def _told(self) -> tuple[str, ...]:
        """Where we may be dialled: the mapping of our port at the router, as others see it."""
        return tuple(dict.fromkeys((*self.own.observed_now, *self.own.direct)))[:MAX_TOLD]

    def _allowed(self, peer: PeerId, addresses: Sequence[str]) -> list[TcpAddress]:
        tcp = [str(each) for each in dialable(addresses, peer) if each.ip is not None]
        return [TcpAddress.parse(each) for each in at_its_word(tcp, self.swarm.where.now())]

    async def _punch(self, circuit: Connection, dial: dcutr.DialAt) -> bool:
        addresses = self._allowed(circuit.peer, dial.addresses)
        if not addresses:
            return False
        with trio.move_on_after(dcutr.DIAL_S) as waiting:
            await self.places.acquire()
        if waiting.cancelled_caught:
            log.debug("no place to punch to %s: the other end has given up", circuit.peer)
            return False
        try:
            if not await self._meetings.punch(circuit.peer, addresses, dial):
                return False
        finally:
            self.places.release()
        self.counts["punched"] += 1
        log.info("%s is reached through a hole that was punched", circuit.peer)
        return True


@dataclass(eq=False)
class _Exchange:
    """The messages on one stream."""

    stream: MuxedStream

    async def say(self, message: dcutr.Message) -> None:
        """Raises IOException."""
        await self.stream.write(encode_frame(dcutr.pack(message)))

    async def next(self) -> dcutr.Message:
        """Raises ProtocolViolation, IOException."""
        return dcutr.parse(await read_frame(self.stream, dcutr.MAX_MESSAGE_BYTES))
