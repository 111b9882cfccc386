"""AutoNAT v2 on its streams: dialling others back, and being dialled where we seem to be.

Whether this node can be dialled at all is found with the requests of the DHT
(dht/core/reachability.py). Where exactly, of the addresses that others see it come from, a gate is
asked here (docs/decisions, 19); and foreign peers ask the same of us.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Final

import trio

from formation_p2p.core.errors import ProtocolViolation, RemoteError
from formation_p2p.core.identity import PeerId
from formation_p2p.machine.clock import moment
from formation_p2p.net.limits import PeerLimitsTable, counted
from formation_p2p.net.transport.addresses import TcpAddress
from formation_p2p.net.transport.errors import IOException, SwarmException
from formation_p2p.net.transport.frames import encode_frame, read_frame
from formation_p2p.net.transport.interfaces import reached_families
from formation_p2p.reach.core import autonat as messages
from formation_p2p.reach.core.autonat import (
    MAX_CHUNK_BYTES,
    MAX_MESSAGE_BYTES,
    REQUEST_PROTOCOL,
    DialBack,
    DialBackServer,
    DialDataRequest,
    DialResponse,
    DialStatus,
    Nonces,
    Status,
    enough,
    verdict,
    wants_data,
)
from formation_p2p.reach.core.own_addresses import OwnAddresses
from formation_p2p.records.core.addresses import is_public

if TYPE_CHECKING:
    from formation_p2p.net.connection import Connection, StreamHandler
    from formation_p2p.net.swarm import Swarm
    from formation_p2p.net.transport.stream import MuxedStream

log = logging.getLogger(__name__)

# To say what is wanted, and each message after it.
MESSAGE_S: Final = 5.0
# To send up to 100 kB, which is 80 kbit/s.
DATA_S: Final = 10.0
# To say a nonce over the new connection.
BACK_S: Final = 5.0
# For the one who asks: all of the above, and the dial.
ASK_S: Final = 30.0
# Of one peer; it has three requests in a minute.
MAX_STREAMS: Final = 4
# How soon a new address is asked about.
LOOK_EVERY_S: Final = 1.0
# Another time, by what was found: as for reachability.
AGAIN_S: Final = {True: 900.0, False: 90.0, None: 30.0}


def _fresh() -> random.Random:
    return random.Random(random.SystemRandom().getrandbits(128))


@dataclass(eq=False)
class AutoNat:
    """`serve` and `serve_back` are for what peers open. `gates` are those whose word counts;
    `changed` is called after `own` may have."""

    swarm: Swarm
    own: OwnAddresses
    limits: PeerLimitsTable
    _: KW_ONLY
    gates: Collection[PeerId]
    listening: Callable[[], Collection[str]]
    changed: Callable[[], None]

    def __post_init__(self) -> None:
        self._server = DialBackServer(_fresh())
        self._nonces = Nonces(_fresh())

    def protocols(self) -> dict[str, StreamHandler]:
        """What is served: only where this node can be dialled, or may dial others."""
        return {REQUEST_PROTOCOL: self.serve, messages.BACK_PROTOCOL: self.serve_back}

    # -- for others -----------------------------------------------------------------------------

    async def serve(self, stream: MuxedStream, connection: Connection) -> None:
        """One request. Raises RemoteError, IOException, TooSlowError."""
        with self.limits.of(connection.peer).stream("AutoNAT", MAX_STREAMS):
            with trio.fail_after(MESSAGE_S):
                request = messages.parse_request(await read_frame(stream, MAX_MESSAGE_BYTES))
            seen_from = connection.remote_host if connection.via is None else None
            answer = self._server.asked(
                connection.peer, request, seen_from, reached_families(), moment().mono_s
            )
            if isinstance(answer, DialBack):
                await self._take_data(stream, answer)
                answer = await self._dialled(answer, connection.peer)
            with trio.fail_after(MESSAGE_S):
                await stream.write(encode_frame(messages.encode_answer(answer)))

    async def _dialled(self, wanted: DialBack, peer: PeerId) -> DialResponse:
        if not self._server.begins(wanted):
            return DialResponse(Status.REQUEST_REJECTED)
        try:
            status = await self._dial_back(wanted, peer)
        finally:
            self._server.ended()
        return DialResponse(Status.OK, wanted.number, status)

    async def _take_data(self, stream: MuxedStream, wanted: DialBack) -> None:
        missing_bytes = wanted.data_bytes
        if not missing_bytes:
            return
        with trio.fail_after(DATA_S):
            ask = messages.encode_answer(DialDataRequest(wanted.number, missing_bytes))
            await stream.write(encode_frame(ask))
            while missing_bytes:
                chunk_bytes = messages.parse_chunk(await read_frame(stream, MAX_MESSAGE_BYTES))
                left_bytes = enough(missing_bytes, chunk_bytes)
                if left_bytes is None:
                    raise ProtocolViolation(f"{chunk_bytes} bytes of data at a time")
                missing_bytes = left_bytes

    async def _dial_back(self, wanted: DialBack, peer: PeerId) -> DialStatus:
        """Over a connection of its own, from a port that has dialled no peer before."""
        address = TcpAddress.parse(wanted.address)
        try:
            fresh = await self.swarm.dialler.dial_address(address, peer, confirmed=True)
        except SwarmException as error:
            log.debug("%s cannot be dialled at %s: %s", peer, address, error)
            return DialStatus.DIAL_ERROR
        async with trio.open_nursery() as nursery:
            nursery.start_soon(fresh.run, self.swarm.serve)
            status = await _say(fresh, wanted.nonce)
            with trio.CancelScope(shield=True):
                await fresh.muxer.close()
            nursery.cancel_scope.cancel()
        return status

    # -- for us ---------------------------------------------------------------------------------

    async def serve_back(self, stream: MuxedStream, connection: Connection) -> None:
        """A peer has dialled us, and says which nonce for."""
        with trio.fail_after(MESSAGE_S):
            nonce = messages.parse_back(await read_frame(stream, MAX_MESSAGE_BYTES))
            is_dial = connection.inbound and connection.via is None
            if not is_dial or not self._nonces.came(nonce, connection.opened_at):
                raise ProtocolViolation("a nonce that was not asked for")
            await stream.write(encode_frame(messages.encode_back_response()))

    async def ask(
        self, connection: Connection, addresses: Sequence[str]
    ) -> tuple[str, bool] | None:
        """Have a peer dial us at the first of the addresses that it may. Returns that one, and
        whether it was reached; None where that is not known. Raises RemoteError, IOException,
        TooSlowError."""
        nonce = self._nonces.begin(trio.current_time())
        if nonce is None:
            return None
        try:
            # What it opens is closed soon.
            with trio.fail_after(ASK_S), counted(self.swarm.dialler.dialling_back, connection.peer):
                request = messages.DialRequest(tuple(addresses), nonce)
                answer = await _asked(connection, request)
        finally:
            came = self._nonces.end(nonce)
        found = verdict(answer, len(addresses), came=came)
        return None if found is None else (addresses[found[0]], found[1])

    async def verify(self) -> None:
        """Until cancelled, have gates dial us where we seem to be, and have `own` know."""
        again_s: dict[str, float] = {}
        while True:
            guessed = [each for each in self.own.direct if self._is_guess(each)]
            again_s = {each: again_s[each] for each in guessed if each in again_s}
            for address in guessed:
                if trio.current_time() < again_s.get(address, 0.0):
                    continue
                if (connection := self._gate()) is None:
                    break
                found = await self._verified(connection, address)
                again_s[address] = trio.current_time() + AGAIN_S[found]
                if found is not None:
                    log.debug("a gate dials us at %s: %s", address, found)
                    self.own.found_by_dial_back(address, reached=found)
                    self.changed()
            await trio.sleep(LOOK_EVERY_S)

    def _is_guess(self, address: str) -> bool:
        """Whether it is where others see us come from, and not where an interface has us."""
        ip = TcpAddress.parse(address).ip
        return ip is not None and is_public(ip) and address not in self.listening()

    def _gate(self) -> Connection | None:
        connections = filter(None, map(self.swarm.direct_to, self.gates))
        return next((c for c in connections if REQUEST_PROTOCOL in c.protocols), None)

    async def _verified(self, connection: Connection, address: str) -> bool | None:
        try:
            found = await self.ask(connection, (address,))
        except (RemoteError, IOException, trio.TooSlowError) as error:
            log.debug("%s does not say whether it can dial us: %r", connection.peer, error)
            return None
        return None if found is None else found[1]


async def _asked(connection: Connection, request: messages.DialRequest) -> DialResponse:
    """What the server answers, once it has the data that it wants."""
    stream = await connection.open(REQUEST_PROTOCOL)
    try:
        await stream.write(encode_frame(messages.encode_request(request)))
        answer = messages.parse_answer(await read_frame(stream, MAX_MESSAGE_BYTES))
        if isinstance(answer, DialDataRequest):
            if not wants_data(answer, len(request.addresses)):
                raise ProtocolViolation(f"it wants {answer.size_bytes} bytes before it dials")
            for start in range(0, answer.size_bytes, MAX_CHUNK_BYTES):
                size_bytes = min(MAX_CHUNK_BYTES, answer.size_bytes - start)
                await stream.write(encode_frame(messages.encode_chunk(size_bytes)))
            answer = messages.parse_answer(await read_frame(stream, MAX_MESSAGE_BYTES))
        if isinstance(answer, DialDataRequest):
            raise ProtocolViolation("it wants data twice")
    except BaseException:
        stream.abort("AutoNAT was cut short")
        raise
    await stream.close()
    return answer


async def _say(connection: Connection, nonce: int) -> DialStatus:
    try:
        with trio.fail_after(BACK_S):
            stream = await connection.open(messages.BACK_PROTOCOL)
            await stream.write(encode_frame(messages.encode_back(nonce)))
            await read_frame(stream, MAX_MESSAGE_BYTES)
            await stream.close()
    except (RemoteError, IOException, trio.TooSlowError) as error:
        log.debug("%s takes no nonce: %r", connection.peer, error)
        return DialStatus.DIAL_BACK_ERROR
    return DialStatus.OK
