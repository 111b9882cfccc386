"""Reversal and hole punching over circuits: performs what `reach/core/dcutr.py` decides.

What a peer names is dialled within `paths.at_its_word`, and only for a peer that a circuit connects
with us, which a relay brings for those that it serves: the members of its network.
"""

from __future__ import annotations

import logging
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final, assert_never

import trio

from formation_p2p.core.errors import ProtocolViolation, RemoteError
from formation_p2p.core.identity import PeerId
from formation_p2p.net.connection import Connection, StreamHandler
from formation_p2p.net.logged import logged
from formation_p2p.net.transport.addresses import TcpAddress, dialable
from formation_p2p.net.transport.errors import IOException, SwarmException
from formation_p2p.net.transport.frames import encode_frame, read_frame
from formation_p2p.net.transport.negotiation import NotSpoken, greeting
from formation_p2p.net.transport.own_port import TAKEN
from formation_p2p.net.transport.stream import MuxedStream
from formation_p2p.net.transport.tcp import TcpStream, meet_tcp, next_client
from formation_p2p.net.transport.token_bucket import TokenBucket
from formation_p2p.net.transport.upgrade import upgrade
from formation_p2p.reach.core import dcutr
from formation_p2p.reach.core.dcutr import Role
from formation_p2p.reach.core.own_addresses import OwnAddresses
from formation_p2p.reach.core.paths import at_its_word

if TYPE_CHECKING:
    from formation_p2p.net.swarm import Swarm

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


# The dials of a punch: both ends dial each other from one port to the other, and what comes to
# that port meanwhile is theirs.

# Hosts from which a connection may come because a router let it in to answer us: that is no proof
# that others can dial us. So long a router remembers an attempt; so many hosts are remembered.
REMEMBERED_S: Final = 120.0
MAX_HOSTS: Final = 1024
# Where something refuses at once: the other side's router may not know the connection yet. So long
# until the second try at an address, and twice as long each time. A peer may name a third party, so
# tries have a bound: at an address, and in a second at a host, over all peers.
AGAIN_S: Final = 0.1
MAX_TRIES: Final = 5
MAX_TRIES_PER_S: Final = 8
# Beside the first connection that was punched: the client keeps one, and closes the others.
OTHERS_S: Final = 1.0
# After which a connection that came is taken for one that we punch. Who dials proposes at once.
SILENT_S: Final = 0.25
# After which the server of a connection that was punched becomes its client: go-libp2p before v0.48
# is a server as well then. Longer than the two ends may be apart.
BOTH_SERVE_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class _Meeting:
    """What is expected from a host that we punch to."""

    peer: PeerId
    role: Role


@dataclass(eq=False)
class _Host:
    """What is remembered of a host that we punched to."""

    until_s: float
    tries: TokenBucket = field(default_factory=lambda: TokenBucket(MAX_TRIES_PER_S))


@dataclass(eq=False)
class Meetings:
    """`punch` makes a connection, or fails to, in dcutr.DIAL_S."""

    swarm: Swarm

    def __post_init__(self) -> None:
        self._meetings: dict[str, _Meeting] = {}
        self._hosts: OrderedDict[str, _Host] = OrderedDict()
        self.swarm.expected = self._expected
        self.swarm.was_punched = self._was_punched

    async def punch(
        self, peer: PeerId, addresses: Sequence[TcpAddress], dial: dcutr.DialAt
    ) -> bool:
        """Whether there is a direct connection now. `addresses` are those of `dial` that may be
        dialled."""
        if not addresses or not self.swarm.make_room(inbound=dial.role is Role.SERVER):
            return False
        await trio.sleep_until(dial.at_s)
        log.debug("punching to %s at %s as %s", peer, ", ".join(map(str, addresses)), dial.role)
        done = trio.Event()
        with (
            self._meeting(peer, addresses, dial.role),
            trio.move_on_after(dcutr.DIAL_S) as deadline,
        ):
            async with trio.open_nursery() as nursery:

                async def watch() -> None:
                    # It may come to our listener, or by other means.
                    while self.swarm.direct_to(peer) is None and not done.is_set():
                        with trio.move_on_after(LOOK_S):
                            await done.wait()
                    if dial.role is Role.CLIENT:
                        nursery.cancel_scope.cancel()
                    else:
                        deadline.deadline = trio.current_time() + OTHERS_S

                async def dial_one(address: TcpAddress) -> None:
                    tcp = await self._met(address)
                    if tcp is None:
                        return
                    connection = await self._upgraded(tcp, peer, dial.role)
                    if connection is None:
                        return
                    if done.is_set() and dial.role is Role.CLIENT:
                        await connection.muxer.close()
                        return
                    self.swarm.adopt_dialled(connection)
                    done.set()

                nursery.start_soon(watch)
                if dial.role is Role.CLIENT:
                    nursery.start_soon(self._listen_meanwhile)
                for address in addresses:
                    nursery.start_soon(dial_one, address)
        return self.swarm.direct_to(peer) is not None

    async def _met(self, address: TcpAddress) -> TcpStream | None:
        """Dial until the other side's dial meets ours; cancelled at the end of the attempt. None
        where a connection with that address came by itself, or where all tries are refused."""
        for number in range(MAX_TRIES):
            host = self._hosts.get(address.host)
            if host is not None and host.tries.take():
                try:
                    return await meet_tcp(address, self.swarm.own_port)
                except OSError as error:
                    if error.errno in TAKEN:
                        return None
                    log.debug("punching to %s: %s", address, error)
            await trio.sleep(AGAIN_S * 2**number)
        return None

    async def _upgraded(self, tcp: TcpStream, peer: PeerId, role: Role) -> Connection | None:
        """The handshakes on a connection that was punched. Where they fail, the next attempt may
        have the same ports."""
        swarm = self.swarm
        tcp.reset_on_close(True)
        try:
            if role is Role.SERVER and not await _proposes(tcp, BOTH_SERVE_S):
                log.debug("%s is a server in a connection that was punched, too", peer)
                role = Role.CLIENT
            to = peer if role is Role.CLIENT else None
            muxer = await upgrade(
                swarm.keys, swarm.parameters, tcp, to, confirmed=role is Role.CLIENT
            )
        except BaseException as error:
            await tcp.close()
            if not isinstance(error, SwarmException | IOException):
                raise
            log.debug("a connection that was punched to %s: %s", peer, error)
            return None
        tcp.reset_on_close(False)
        connection = Connection(muxer, inbound=role is Role.SERVER, local=tcp.local, punched=True)
        if connection.peer != peer:
            await muxer.close()
            return None
        return connection

    # -- what comes to our port -------------------------------------------------------------------

    @contextmanager
    def _meeting(self, peer: PeerId, addresses: Sequence[TcpAddress], role: Role) -> Iterator[None]:
        hosts = {each.host for each in addresses}
        meeting = _Meeting(peer, role)
        for host in hosts:
            self._meetings[host] = meeting
            remembered = self._hosts.pop(host, None) or _Host(0.0)
            remembered.until_s = trio.current_time() + REMEMBERED_S
            self._hosts[host] = remembered
        while len(self._hosts) > MAX_HOSTS:
            self._hosts.popitem(last=False)
        try:
            yield
        finally:
            for host in hosts:
                if self._meetings.get(host) is meeting:
                    del self._meetings[host]

    async def _listen_meanwhile(self) -> None:
        """Where this node does not listen: a router may let the other end's dial come first."""
        try:
            listeners = await self.swarm.own_port.listeners()
        except OSError as error:
            log.debug("no punch is listened for: %s", error)
            return
        try:
            async with trio.open_nursery() as nursery:
                for each in listeners:
                    nursery.start_soon(self._accept_all, each)
        finally:
            for each in listeners:
                each.close()

    async def _accept_all(self, listener: trio.socket.SocketType) -> None:
        while True:
            tcp = TcpStream(trio.SocketStream(await next_client(listener)))
            remote = tcp.get_remote_address()
            meeting = None if remote is None else self._meetings.get(remote[0])
            if meeting is None or not await self._accepted(meeting, tcp):
                await tcp.close()

    def _expected(self, host: str) -> Callable[[TcpStream], Awaitable[bool]] | None:
        """What is done with a connection that comes from there: it may be one that we punch."""
        meeting = self._meetings.get(host)
        return None if meeting is None else partial(self._accepted, meeting)

    async def _accepted(self, meeting: _Meeting, tcp: TcpStream) -> bool:
        """Whether it is what we punch, and its other end takes us for the client: it proposes
        nothing then. Who does, for that or for another reason, is served as any other."""
        within_s = SILENT_S if meeting.role is Role.CLIENT else BOTH_SERVE_S
        try:
            if await _proposes(tcp, within_s):
                return False
        except IOException:
            return False
        connection = await self._upgraded(tcp, meeting.peer, Role.CLIENT)
        if connection is not None:
            self.swarm.adopt_dialled(connection)
        return True

    def _was_punched(self, host: str) -> bool:
        """Whether a connection from there may have been let in because we dialled that host."""
        remembered = self._hosts.get(host)
        return remembered is not None and remembered.until_s > trio.current_time()


async def _proposes(tcp: TcpStream, within_s: float) -> bool:
    """Whether the other end acts as the client. A server may greet. Raises IOException."""
    return await tcp.has_spoken(within_s, beyond=greeting())
