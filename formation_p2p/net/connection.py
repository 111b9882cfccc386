"""One connection to one peer: its streams, and what identify says of who is there."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Final

import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import RemoteError, Unreachable
from formation_p2p.core.identity import PeerId
from formation_p2p.net import identify as net_identify
from formation_p2p.net.transport import negotiation as net_negotiation
from formation_p2p.net.transport.addresses import told_by
from formation_p2p.net.transport.errors import IOException, MuxedConnUnavailable
from formation_p2p.net.transport.stream import MuxedStream
from formation_p2p.net.transport.token_bucket import TokenBucket
from formation_p2p.net.transport.yamux import MAX_INBOUND_STREAMS, Muxer
from formation_p2p.reach.core.paths import Path

log = logging.getLogger(__name__)

# To agree on a protocol for a stream: a round trip, and a busy peer.
NEGOTIATION_S: Final = 5.0
# Handlers at work on the streams of one connection. That of a stream which the peer has reset goes
# on for a moment, so that there may be more of them than streams.
MAX_HANDLERS: Final = 2 * MAX_INBOUND_STREAMS
# To learn a peer's addresses.
IDENTIFY_S: Final = 10.0
# For anything to be heard of a peer that is asked for it; and how often that is looked at.
PROOF_S: Final = 4.0
LOOK_S: Final = 0.25

StreamHandler = Callable[[MuxedStream, "Connection"], Awaitable[None]]


class Connection:
    """With one peer. An error of one stream's handler ends no other stream."""

    def __init__(
        self,
        muxer: Muxer,
        *,
        inbound: bool,
        dialled: str | None = None,
        local: tuple[str, int] | None = None,
        via: PeerId | None = None,
        punched: bool = False,
    ) -> None:
        """`local` is the host and port at our end."""
        self.muxer = muxer
        self.local = local
        self.inbound = inbound
        self.via = via
        """The relay of a relayed connection; None for a direct one."""
        self.punched = punched
        """Whether it came about by both sides dialling at once, through their routers: which
        shows of neither that others can dial it."""
        self.fleeting = False
        """Opened to see whether it can be, and closed at once: no place for streams of ours."""
        self.protocols: frozenset[str] = frozenset()
        self.claimed: tuple[str, ...] = ()
        """Where the peer says that it listens, believed or not."""
        self.observed = ""
        """Where the peer says that it sees us, or has dialled us."""
        self.peer = muxer.peer_id
        self.contact = Contact(self.peer, (dialled,) if dialled is not None else ())
        remote = muxer.get_remote_address()  # none of a relayed one
        self.remote_host = remote[0] if remote is not None else None
        self._stream_bucket = TokenBucket(muxer.parameters.streams_per_s)
        self._handlers: set[MuxedStream] = set()
        self._identified = trio.Event()
        # One that dials tells of itself at once; whatever it pushes later has changed.
        self._introduced = not inbound
        self.opened_at = trio.current_time()
        self.on_other_version: Callable[[Connection, int], None] = lambda connection, version: None
        self.on_introduced: Callable[[Connection], None] = lambda connection: None
        self.on_observed: Callable[[Connection], None] = lambda connection: None
        self.on_identified: Callable[[Connection, net_identify.Identified], None] = (
            lambda connection, said: None
        )

    @property
    def path(self) -> Path:
        if self.via is not None:
            return Path.RELAYED
        return Path.PUNCHED if self.punched else Path.DIRECT

    @property
    def is_closed(self) -> bool:
        return self.muxer.broken is not None

    async def run(self, handler: StreamHandler) -> None:
        """Until the connection ends. Each stream that the peer opens goes to `handler`."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.muxer.start)
            nursery.start_soon(self._identify)
            try:
                while True:
                    stream = await self.muxer.accept()
                    await self._stream_bucket.wait()
                    if len(self._handlers) >= MAX_HANDLERS:
                        stream.abort("too many streams at once")
                        continue
                    self._handlers.add(stream)
                    nursery.start_soon(self._serve, stream, handler)
            except MuxedConnUnavailable as end:
                log.debug("connection to %s is over: %s", self.peer, end)
            with trio.CancelScope(shield=True):
                await self.muxer.close()
            nursery.cancel_scope.cancel()

    async def open(self, protocol: str, first: bytes = b"") -> MuxedStream:
        """A stream that speaks `protocol`; `first` goes out with the proposal. Raises Unreachable,
        ProtocolViolation, NotSpoken."""
        stream = await self.offer(protocol)
        if first:
            await self._negotiate(stream, stream.write(first))
        await self.confirm(stream, protocol)
        return stream

    async def offer(self, protocol: str) -> MuxedStream:
        """A stream that shall speak `protocol`: what is written next goes out with the proposal.
        Then `confirm`, before anything is read. Raises Unreachable.
        """
        try:
            stream = self.muxer.open()
        except MuxedConnUnavailable as error:
            raise Unreachable(f"{self.peer}: {error}") from error
        await self._negotiate(stream, net_negotiation.offer(stream, protocol))
        return stream

    async def confirm(self, stream: MuxedStream, protocol: str) -> None:
        """Read the answer to `offer`. Raises Unreachable, ProtocolViolation, NotSpoken: then
        nothing that was written on `stream` has arrived, and it is reset.
        """
        await self._negotiate(stream, net_negotiation.confirm(stream, protocol))

    async def round_trip(self) -> float:
        """Until the peer has read all that was written here before, in seconds. Raises
        Unreachable."""
        try:
            return await self.muxer.pings.round_trip()
        except MuxedConnUnavailable as error:
            raise Unreachable(f"{self.peer}: {error}") from error

    async def _negotiate(self, stream: MuxedStream, step: Awaitable[None]) -> None:
        try:
            with trio.fail_after(NEGOTIATION_S):
                await step
        except trio.TooSlowError as error:
            stream.abort("no protocol agreed in time")
            raise Unreachable(f"{self.peer} does not answer on a new stream") from error
        except BaseException:
            # Cancelled too: what is read next on it would be the answer to the proposal.
            stream.abort("no protocol agreed")
            raise

    def tunnels(self, stream: MuxedStream) -> None:
        """One that the peer has opened is a tunnel from now on."""
        stream.become_tunnel()
        self._handlers.discard(stream)

    def abort(self, reason: str) -> None:
        """Close at once, for a peer that misbehaves or is gone."""
        self.muxer.abort(reason)

    async def prove(self) -> None:
        """This machine or the peer's may have changed its network, or lost its power. Where nothing
        is heard of the peer soon, end, half a minute before the muxer would."""
        self.muxer.doubt()
        until_s = trio.current_time() + PROOF_S
        while self.muxer.is_silent and not self.is_closed:
            if trio.current_time() >= until_s:
                self.abort("not heard after a change of the network")
            await trio.sleep(LOOK_S)

    @property
    def age_s(self) -> float:
        """How long ago it was opened."""
        return trio.current_time() - self.opened_at

    @property
    def idle_s(self) -> float:
        """How long ago a stream last carried data."""
        return trio.current_time() - self.muxer.active_at

    async def wait_identified(self) -> None:
        """Until identify told the peer's addresses, or it had `identify_wait_s` to do so."""
        with trio.move_on_at(self.opened_at + self.muxer.parameters.identify_wait_s):
            await self._identified.wait()

    def pushed(self, said: net_identify.Identified) -> bool:
        """As `identified`, unasked. Returns whether it may be a change, and no introduction."""
        known = (self.contact, self.protocols) if self._identified.is_set() else None
        introduced, self._introduced = self._introduced, True
        self.identified(said)
        return introduced or known not in (None, (self.contact, self.protocols))

    def identified(self, said: net_identify.Identified) -> None:
        """The peer told where it listens and what it speaks; what may be believed is kept."""
        self.claimed = said.addresses
        # Nothing vouches for what comes over a circuit: not even where its peer is.
        believed = () if self.via else told_by(self.peer, said.addresses, self.remote_host)
        if believed:
            self.contact = Contact(self.peer, believed)
        if said.protocols:
            self.protocols = said.protocols
        if said.observed != self.observed and said.observed and not self.via:
            self.observed = said.observed
            self.on_observed(self)
        self.on_identified(self, said)
        if said.other_version is not None:
            self.on_other_version(self, said.other_version)
        self._identified.set()

    def as_server(self, protocol: str) -> Contact:
        """The peer, with addresses if others may be sent to it for this protocol: if we have
        dialled it there, or it says that it serves it."""
        dialled = not self.inbound and not self.punched
        served = dialled or protocol in self.protocols
        return self.contact if served else Contact(self.peer)

    # -- tasks ----------------------------------------------------------------------------

    async def _identify(self) -> None:
        try:
            with trio.fail_after(IDENTIFY_S):
                stream = await self.open(net_identify.PROTOCOL)
                self.identified(await net_identify.read_message(stream))
                await stream.close()
                # Ours push what they are when they dial; others wait until they are asked.
                if not self._introduced:
                    self._introduced = True
                    self.on_introduced(self)
        except (RemoteError, IOException, trio.TooSlowError) as error:
            log.debug("%s does not identify itself: %r", self.peer, error)
        finally:
            self._identified.set()

    async def _serve(self, stream: MuxedStream, handler: StreamHandler) -> None:
        try:
            await handler(stream, self)
        except (RemoteError, IOException, trio.TooSlowError) as error:
            log.debug("a stream of %s ends: %r", self.peer, error)
            stream.abort(f"ended here: {error}")
        except Exception:
            log.exception("a handler failed on a stream of %s; the stream is reset", self.peer)
            stream.abort("failed here")
        else:
            await stream.close()
        finally:
            self._handlers.discard(stream)
