"""Streams from this node to services: a replica is chosen, asked, and another one where it refuses.

What was read of a service is used for a while, and read again beside that; where a read fails, what
was known before counts. Nothing of a request is sent before a replica has taken it, so that asking
the next one after a refusal, or where one is not reached, never runs anything twice.
"""

from __future__ import annotations

import logging
import random
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import ProtocolViolation, RemoteError
from formation_p2p.core.identity import PeerId, short_id
from formation_p2p.features.services.core.balancer import Balancer, Freshness, Replica, Route
from formation_p2p.features.services.core.messages import (
    ANY,
    MAX_MESSAGE_BYTES,
    OpenService,
    ServiceError,
    ServiceOpened,
    ServiceRefusal,
    ServiceRefused,
    pack,
    parse,
)
from formation_p2p.features.services.core.spec import MAX_SERVICES
from formation_p2p.features.services.core.turns import MAX_WAITING, Turns
from formation_p2p.features.services.host.server import ANSWER_S, PROTOCOL, ServiceServer
from formation_p2p.features.services.host.stream import HangUps, ServiceStream, serve_caller
from formation_p2p.net.transport.errors import IOException
from formation_p2p.net.transport.frames import encode_frame, read_frame
from formation_p2p.net.transport.raw import ByteStream
from formation_p2p.net.tunnels import LocalStream, Openings

if TYPE_CHECKING:
    from formation_p2p.reach.stack import Stack

# Where a router learns which replicas a service has.


@dataclass(frozen=True, slots=True)
class Listing:
    """What the network says of one service."""

    replicas: tuple[Replica, ...] = ()
    contacts: Mapping[PeerId, Contact] = field(default_factory=dict)
    is_known: bool = True
    """False where the catalog was read and has no such service."""


# None where nothing could be read, which says nothing of the service.
ReadListing = Callable[[str], Awaitable[Listing | None]]

log = logging.getLogger(__name__)

Spawn = Callable[[Callable[[], Awaitable[None]]], None]

# For a replica to be there that takes one more, unless the caller says otherwise.
WAIT_S: Final = 30.0
# To dial a replica and be answered, where there is another one to ask.
TRY_S: Final = 1.0
# Likewise, where it is the only one: it may be dialled by a circuit.
ONLY_S: Final = 20.0
# Between two looks whether there is a replica, where there was none.
FIRST_LOOK_S: Final = 0.05
LAST_LOOK_S: Final = 1.0


@dataclass(eq=False)
class _Request:
    """One that waits for a replica, or asks one."""

    caller: str
    until_s: float
    grant: bytes
    full: Callable[[], None]
    """Called as often as no replica has a place for it."""
    tried: dict[PeerId, ServiceError] = field(default_factory=dict)
    woken: trio.Event = field(default_factory=trio.Event)
    error: ServiceError | None = None
    """Why there was no stream, the last time that a replica was asked for it."""
    is_refused: bool = False
    is_told: bool = False

    def found_none(self) -> None:
        self.is_told = True
        self.full()

    def wake(self) -> None:
        self.woken.set()

    async def sleep(self, within_s: float) -> None:
        """Until it is woken."""
        with trio.move_on_after(within_s):
            await self.woken.wait()
        self.woken = trio.Event()


class _Known:
    """What this node knows of one service, and who waits for it."""

    def __init__(self, service: str, rng: random.Random) -> None:
        self.service = service
        self.balancer = Balancer(rng)
        self.route: Route[Listing] = Route()
        self.reading = trio.Lock()
        self.turns: Turns[_Request] = Turns()
        self.is_full = False
        """No replica had a place for the first in line, when one was last looked for."""
        self.refused: ServiceError | None = None
        """Why there was no stream, the last time; None since there was one."""

    def why(self) -> ServiceError:
        """For a request that asked no replica."""
        if self.refused is not None:
            return self.refused
        if self.balancer:
            problem = f"the replicas of {self.service} have as many streams as they take"
            return ServiceError(problem, ServiceRefusal.BUSY)
        problem = f"no replica of {self.service} is there"
        return ServiceError(problem, ServiceRefusal.NOT_HERE)

    def wake_first(self) -> None:
        """A replica may be free for it."""
        if (first := self.turns.first()) is not None:
            first.wake()


class Router:
    """Of one node. Methods are for its thread. `spawn` runs a task of the node's own; `grant` is
    what it shows, for itself or on behalf of who has another grant."""

    def __init__(
        self,
        stack: Stack,
        me: PeerId,
        server: ServiceServer,
        grant: Callable[[bytes], bytes],
        read: ReadListing,
        spawn: Spawn,
        rng: random.Random,
    ) -> None:
        self.hang_ups = HangUps()
        self._stack = stack
        self.me = me
        self._server = server
        self._grant = grant
        self.read_listing = read
        self._spawn = spawn
        self._rng = rng
        self._known: dict[str, _Known] = {}  # the one asked for last at the end
        self._openings = Openings()

    async def open(
        self,
        service: str,
        *,
        within_s: float = WAIT_S,
        sticky: PeerId | None = None,
        caller: str = "",
        on_behalf: bytes = b"",
        full: Callable[[], None] = lambda: None,
    ) -> ServiceStream:
        """A stream to a replica that has taken it: that on `sticky`, if it takes one more. Waits
        until there is one; callers take turns, and `full` is called. `ended` with it, once it is
        over. Replicas judge it by the grant `on_behalf`, too. Raises ServiceError: nothing has run
        then."""
        known = self._of(service)
        until_s = trio.current_time() + within_s
        request = _Request(caller, until_s, self._grant(on_behalf), full)
        if known.is_full:
            request.found_none()
        if (refused := known.turns.join(caller, request)) is not None:
            refused.is_refused = True
            refused.wake()
        try:
            return await self._opened(known, request, within_s, sticky)
        finally:
            known.turns.leave(request)
            known.wake_first()

    async def _opened(
        self, known: _Known, request: _Request, within_s: float, sticky: PeerId | None
    ) -> ServiceStream:
        look_s = FIRST_LOOK_S
        while True:
            await self._turn(known, request)
            listing = await self._listing(known)
            if listing is not None and not listing.is_known:
                raise ServiceError(
                    f"there is no service {known.service}; `formation services` lists those that "
                    "are",
                    ServiceRefusal.NOT_HERE,
                )
            now_s = trio.current_time()
            left_s = request.until_s - now_s
            if left_s <= 0:
                why = request.error or known.why()
                raise ServiceError(f"{why}, after {within_s:g} s", why.refusal, never_ran=True)
            tried = request.tried
            replica = known.balancer.choose(now_s, tried=tried, sticky=sticky)
            if replica is not None and listing is not None:
                contact = listing.contacts.get(replica) or Contact(replica)
                if (stream := await self._try(known, request, contact, left_s)) is not None:
                    return stream
                continue
            if tried and all(each.refusal is ServiceRefusal.DENIED for each in tried.values()):
                raise next(iter(tried.values()))
            tried.clear()
            known.is_full = True
            request.found_none()
            for each in known.turns:
                if not each.is_told:
                    each.found_none()
            rest_s = known.balancer.may_choose_at_s(now_s) - now_s
            if rest_s > look_s:
                rest_s, look_s = look_s, min(2 * look_s, LAST_LOOK_S)
            await request.sleep(min(left_s, rest_s))
            if not known.balancer or known.route.freshness(now_s) is Freshness.SPENT:
                await self._read_anew(known)

    async def _turn(self, known: _Known, request: _Request) -> None:
        """Waits until it is the first, or has waited long enough. Raises ServiceError where it has
        no place in line."""
        while not request.is_refused and known.turns.first() is not request:
            left_s = request.until_s - trio.current_time()
            if left_s <= 0:
                return
            await request.sleep(left_s)
        if request.is_refused:
            problem = f"{MAX_WAITING} requests wait for {known.service} already; ask again later"
            raise ServiceError(problem, ServiceRefusal.BUSY)

    async def _try(
        self, known: _Known, request: _Request, to: Contact, left_s: float
    ) -> ServiceStream | None:
        """Ask that replica, and let the next in line choose meanwhile. None where it refuses: it is
        this one's turn again."""
        is_only = len(known.balancer) - len(request.tried) <= 1
        try_s = min(left_s, ONLY_S if is_only else TRY_S)
        known.turns.take(request)
        known.wake_first()
        try:
            asked = OpenService(known.service, request.grant, ANY)
            stream = await self._asked(asked, known.balancer, to, try_s)
        except ServiceError as error:
            known.turns.put_back(request.caller, request)
            request.error = known.refused = error
            self._learn(known, to.peer_id, error)
            if error.refusal is not ServiceRefusal.BUSY:
                request.tried[to.peer_id] = error
            return None
        known.refused, known.is_full = None, False
        return stream

    def answered(self, stream: ServiceStream, first_byte_s: float) -> None:
        """A first byte came on a stream after so long."""
        if (known := self._known.get(stream.service)) is not None:
            known.balancer.answered(stream.replica, first_byte_s, trio.current_time())

    def failed(self, service: str, replica: PeerId) -> None:
        """The replica broke a stream, or answered with an error of its own."""
        known = self._known.get(service)
        if known is None or self._stack.stopping:
            return
        if known.balancer.failed(replica, trio.current_time()):
            log.warning(
                "the replica of %s on %s fails again and again: it is left out for a while",
                service,
                short_id(replica),
            )

    def ended(self, stream: ServiceStream) -> None:
        """It is over."""
        if (known := self._known.get(stream.service)) is not None:
            known.balancer.ended(stream.replica)
            known.is_full = False
            known.wake_first()

    # -- what is known ----------------------------------------------------------------------------

    def _of(self, service: str) -> _Known:
        known = self._known.pop(service, None)
        if known is None:
            known = _Known(service, self._rng)
        self._known[service] = known
        if len(self._known) > MAX_SERVICES:
            del self._known[next(iter(self._known))]
        return known

    async def _listing(self, known: _Known) -> Listing | None:
        """Waits only where nothing is known."""
        freshness = known.route.freshness(trio.current_time())
        if freshness is Freshness.NOTHING:
            await self._read_anew(known)
        elif freshness is not Freshness.FRESH and not known.reading.locked():
            self._spawn(partial(self._read, known))
        return known.route.found(trio.current_time())

    async def _read_anew(self, known: _Known) -> None:
        """Where what is known is of no use. Not more often than services are read."""
        if trio.current_time() >= known.route.may_read_at_s():
            await self._read(known)

    async def _read(self, known: _Known) -> None:
        """Once for all that wait for it."""
        is_read = known.reading.locked()
        async with known.reading:
            if not is_read:
                found = await self.read_listing(known.service)
                known.route.read(found, trio.current_time())
                if found is not None:
                    known.balancer.listed(found.replicas)
                    known.wake_first()

    def _learn(self, known: _Known, replica: PeerId, error: ServiceError) -> None:
        if error.refusal is ServiceRefusal.DENIED:
            return
        now_s = trio.current_time()
        known.balancer.rest(replica, now_s)
        if error.refusal is not ServiceRefusal.BUSY:
            known.route.failed()  # it is gone, or about to be
        if error.refusal is None:
            known.balancer.failed(replica, now_s)

    # -- one replica ------------------------------------------------------------------------------

    async def _asked(
        self, asked: OpenService, balancer: Balancer, to: Contact, within_s: float
    ) -> ServiceStream:
        """Raises ServiceError."""
        replica = to.peer_id
        balancer.began(replica)
        try:
            if replica == self.me:
                stream = await self._locally(asked)
            else:
                stream = await self._remotely(asked, to, within_s)
                self._measure(balancer, replica)
        except BaseException as error:
            balancer.ended(replica)
            if isinstance(error, ServiceError) or not isinstance(
                error, RemoteError | IOException | trio.TooSlowError
            ):
                raise
            why = "it did not answer in time" if isinstance(error, trio.TooSlowError) else error
            of = f"{asked.service} on {short_id(replica)}"
            problem = f"the replica of {of} was not reached: {why}"
            raise ServiceError(problem, never_ran=True) from error
        balancer.opened(replica)
        return stream

    async def _remotely(self, asked: OpenService, to: Contact, within_s: float) -> ServiceStream:
        async with self._openings.of(to.peer_id):
            first = encode_frame(pack(asked))
            stream = await self._stack.open(to, PROTOCOL, timeout_s=within_s, first=first)
        try:
            with trio.move_on_after(within_s) as deadline:
                await _taken(stream, asked.service, to.peer_id)
            if deadline.cancelled_caught:
                self._doubt(to.peer_id)
                raise trio.TooSlowError
            if stream.broken is not None:
                raise ServiceError(stream.broken, never_ran=True)
            stream.become_tunnel()
            return ServiceStream(stream, asked.service, to.peer_id)
        except BaseException:
            stream.abort("it was not opened")
            raise

    async def _locally(self, asked: OpenService) -> ServiceStream:
        """To a replica on this node."""
        here, its = LocalStream.pair()

        async def serve() -> None:
            try:
                await self._server.serve_here(asked, its, self.me)
            except (RemoteError, IOException, trio.TooSlowError) as error:
                its.abort(f"ended here: {error}")

        self._spawn(serve)
        try:
            with trio.fail_after(ANSWER_S):
                await _taken(here, asked.service, self.me)
        except BaseException:
            here.abort("it was not opened")
            raise
        return ServiceStream(here, asked.service, self.me)

    def is_connected(self, peer: PeerId) -> bool:
        """Or whether it is this node itself."""
        return peer == self.me or self._stack.swarm.connection_to(peer) is not None

    def round_trip_us(self, peer: PeerId) -> int | None:
        """As measured on the connection to it; None where there is none yet."""
        connection = self._stack.swarm.connection_to(peer)
        if connection is None or connection.muxer.pings.least_rtt_s == float("inf"):
            return None
        return round(connection.muxer.pings.least_rtt_s * 1_000_000)

    def _measure(self, balancer: Balancer, replica: PeerId) -> None:
        if (rtt_us := self.round_trip_us(replica)) is not None:
            balancer.measured(replica, rtt_us)

    def _doubt(self, replica: PeerId) -> None:
        """It does not answer: where its machine is gone, its connection ends within seconds, and
        with it what waits there."""
        connection = self._stack.swarm.connection_to(replica)
        if connection is not None:
            self._spawn(connection.prove)


async def joined(
    router: Router,
    stream: ServiceStream,
    its: socket.socket,
    broken: Callable[[ServiceError], None],
    left: trio.Event | None = None,
) -> None:
    """Join a stream to the socket of its caller, until it is over. `broken` is told why it broke;
    `left` is set before the caller ends it."""
    try:
        await serve_caller(stream, its, router.hang_ups, partial(router.answered, stream), left)
    except ServiceError as error:
        router.failed(stream.service, stream.replica)
        broken(error)
    finally:
        its.close()
        router.ended(stream)


async def _taken(stream: ByteStream, service: str, replica: PeerId) -> None:
    """Raises ServiceError where it is refused."""
    answer = parse(await read_frame(stream, MAX_MESSAGE_BYTES))
    if isinstance(answer, ServiceRefused):
        problem = f"the replica of {service} on {short_id(replica)} refuses: {answer.why}"
        raise ServiceError(problem, answer.refusal)
    if not isinstance(answer, ServiceOpened):
        raise ProtocolViolation("an answer that is none")
