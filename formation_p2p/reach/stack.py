"""The network: libp2p's TCP stack behind a small API. Runs inside one trio thread.

    stack = Stack(identity, ["/ip4/0.0.0.0/tcp/4001"])
    await nursery.start(stack.run, handlers)   # returns once it listens
    response = await stack.ask(contact, frame, timeout_s=5)
    stack.send(contact, frame)
    await stack.close()                        # `run` returns

TCP, Noise and yamux, nothing else. A stack that broke cannot be used again: make another, with
the same identity and addresses.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import LocalError, NodeClosed, Unreachable
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.core.latest import Latest
from formation_p2p.core.version import VERSION
from formation_p2p.dht.core.rpc import InboundConnection, PeerIdentified
from formation_p2p.leases.core.session import Disconnected, Undelivered
from formation_p2p.net.connection import Connection
from formation_p2p.net.handlers import Handlers, NetworkEvent, StreamHandlers
from formation_p2p.net.identify import WORK_PROTOCOL
from formation_p2p.net.limits import PeerLimits, PeerLimitsTable, counted
from formation_p2p.net.logged import logged
from formation_p2p.net.protocols.kad import KadStreams
from formation_p2p.net.protocols.work import WorkSessions
from formation_p2p.net.swarm import Swarm, Whereabouts
from formation_p2p.net.transport.addresses import is_this_machine, parse_all
from formation_p2p.net.transport.frames import check_request_size, check_work_size
from formation_p2p.net.transport.noise import NoiseKeys
from formation_p2p.net.transport.parameters import DEFAULTS, NetParameters
from formation_p2p.net.transport.stream import MuxedStream
from formation_p2p.peer.core.events import Measured
from formation_p2p.reach.autonat import AutoNat
from formation_p2p.reach.circuit_settings import NO_CIRCUITS, CircuitSettings
from formation_p2p.reach.core.autonat import REQUEST_PROTOCOL
from formation_p2p.reach.core.paths import Path
from formation_p2p.reach.moves import Moves
from formation_p2p.reach.punch import Punching
from formation_p2p.reach.reserving import Reserving
from formation_p2p.reach.upgrading import Upgrading

log = logging.getLogger(__name__)

LOOPBACK: Final = "127.0.0.1"
KAD_PROTOCOL: Final = "/formation/kad/1.0.0"

# What serves one stream of a protocol of its own, until it returns. What it raises of RemoteError,
# IOException and TooSlowError resets the stream.
Serve = Callable[[MuxedStream, Contact, PeerLimits], Awaitable[None]]


class Stack:
    """See the module. Methods are called on the trio thread that `run` runs on.

    `served` has the streams that peers open, `limits` what each peer may have of us. Once it runs,
    `swarm` has the connections, `kad` and `work` our sides of the protocols.
    """

    swarm: Swarm
    kad: KadStreams
    work: WorkSessions
    punching: Punching
    reserving: Reserving
    autonat: AutoNat
    _handlers: Handlers
    _nursery: trio.Nursery

    def __init__(
        self,
        identity: Identity,
        listen: Sequence[str],
        *,
        kad_protocol: str = KAD_PROTOCOL,
        announce: Sequence[str] = (),
        gates: Iterable[PeerId] = (),
        parameters: NetParameters = DEFAULTS,
        circuits: CircuitSettings = NO_CIRCUITS,
    ) -> None:
        """Raises InvalidInput.

        `listen` empty: a client only, which does not serve the DHT. `announce`: tell peers these in
        place of `addresses`. `gates`: the word of these counts for where we are seen to come from.
        `circuits` says what it has to do with relays.
        """
        self._gates = frozenset(gates)
        self._moves = Moves(map(str, parse_all("announce", announce)), self._gates)
        self.own = self._moves.own
        """Where others reach it. Call `addresses_changed` after a change."""
        self.parameters = parameters
        self._circuits = circuits
        self._identity = identity
        self._listen = parse_all("listen", listen)
        self._kad_protocol = kad_protocol
        self.limits = PeerLimitsTable(parameters)
        self.served = StreamHandlers(identity.libp2p_public_key, self._pushed, self.own.told)
        self.witness = self.served.witness
        self._pending: set[trio.CancelScope] = set()
        self.incompatible, self._drops = IncompatiblePeers(MAX_INCOMPATIBLE), DropLog()
        self._runs = False
        self._closing, self._closed = trio.Event(), trio.Event()

    def serve(self, protocol: str, serve: Serve) -> None:
        """Speak one protocol more, on streams that peers open. Call it before `run`."""
        self.served.by_protocol[protocol] = partial(self._serve, serve)

    # -- life -----------------------------------------------------------------------------

    async def run(self, handlers: Handlers, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until `close`. Raises LocalError where it cannot listen, and whatever breaks the
        network underneath. Calls that are pending then raise NodeClosed."""
        refused: LocalError | None = None
        try:
            async with trio.open_nursery() as self._nursery:
                self._assemble(handlers)
                try:
                    await self.swarm.listen(self._listen)
                except LocalError as error:
                    refused = error
                else:
                    self._moves.begin(self.swarm)
                    self._runs = True
                    elsewhere = self.punching.network_changed
                    self._nursery.start_soon(self._moves.tell, self._tell, self.push, elsewhere)
                    self._nursery.start_soon(self._moves.follow, self.swarm)
                    self._nursery.start_soon(self.witness.run, self.connections, self.push)
                    if self._listen:
                        self.reserving.begin()
                        self._nursery.start_soon(self.autonat.verify)
                    task_status.started()
                    try:
                        await self._closing.wait()
                        await self.swarm.close()
                    finally:
                        # Before the nursery takes no more tasks, whatever ends it.
                        self._closing.set()
                        self.swarm.closing = True
                        self._runs = False
                self._nursery.cancel_scope.cancel()
        finally:
            self._closed.set()
            for scope in self._pending:
                scope.cancel()
        if refused is not None:
            raise refused

    def _assemble(self, handlers: Handlers) -> None:
        self._handlers = handlers
        self.swarm = Swarm(
            self._identity.peer_id,
            NoiseKeys.of(self._identity),
            self.parameters,
            self._nursery,
            self.limits.strangers,
            serve=self.served.serve,
            on_dialling=self._introduce,
            on_dialled=self._dialled,
            on_measured=lambda peer, rtt_us: self._tell(Measured(peer, rtt_us)),
            on_disconnected=self._disconnected,
            on_other_version=self._refuse_version,
            on_introduced=self._pushed,
            where=Whereabouts(lambda: self.own.seen_hosts),
            on_observed=self._moves.observed,
            on_identified=self.witness.identified,
        )
        changed = self.addresses_changed
        self.reserving = Reserving(self._identity, self._circuits, self.swarm, self.own, changed)
        self.served.by_protocol.update(self.reserving.protocols())
        self.autonat = AutoNat(
            self.swarm,
            self.own,
            self.limits,
            gates=self._gates,
            listening=lambda: self.addresses,
            changed=changed,
        )
        dial = self.swarm.dialler.dial
        self.kad = KadStreams(self._kad_protocol, dial, self.limits, self._spawn, handlers.asked)
        self.work = WorkSessions(
            WORK_PROTOCOL,
            dial,
            self.limits,
            self._spawn,
            handlers.received,
            lambda to, reason: self._tell(Undelivered(to, reason)),
            self.swarm.direct_to,
        )
        self.punching = Punching(self.swarm, self.own)
        self.served.by_protocol.update(self.punching.protocols())
        Upgrading(self.swarm, (self.work.upgraded, self.kad.upgraded))
        if self._listen:  # or it is a client for good, which by the specification serves none
            self.served.by_protocol[self._kad_protocol] = self.kad.serve
            self.served.by_protocol.update(self.autonat.protocols())
        self.served.by_protocol[WORK_PROTOCOL] = self.work.serve

    async def _serve(self, serve: Serve, stream: MuxedStream, connection: Connection) -> None:
        await serve(stream, connection.contact, self.limits.of(connection.peer))

    async def close(self) -> None:
        """Say goodbye to the peers (a second at most) and stop. The port is free afterwards."""
        self._closing.set()
        if self._runs:
            await self._closed.wait()

    @property
    def stopping(self) -> bool:
        """Whether it is being closed, or broke: whatever fails now fails for that reason."""
        return self._closing.is_set() or (self._runs and self.swarm.stopping)

    # -- where others reach it ------------------------------------------------------------

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where it really listens now: never 0.0.0.0, without /p2p/…; empty before `run`."""
        return self._moves.addresses

    @property
    def announced(self) -> tuple[str, ...]:
        """What peers are told: `announce` if given, else what is known by now."""
        return self.own.announced

    @property
    def bound(self) -> tuple[str, ...]:
        """The addresses listened on, with the ports that they have: 0.0.0.0 too."""
        return tuple(map(str, self.swarm.bound))

    def connections(self) -> Iterator[Connection]:
        """All that are open."""
        return (each for each in self.swarm.all() if not each.is_closed)

    def addresses_changed(self) -> None:
        """After any call of `own`: whatever is new is told to the shell and to all peers, soon."""
        self._moves.changed()

    def push(self) -> None:
        """Tell the peers that do not know it what our addresses and protocols are now."""
        for connection in self.swarm.all():
            if not self.served.has_told(connection):
                self._introduce(connection)

    # -- calls ----------------------------------------------------------------------------

    async def ask(
        self,
        to: Contact,
        frame: bytes,
        *,
        timeout_s: float,
        expects_answer: bool = True,
        dials_back: bool = False,
    ) -> bytes | None:
        """One kad request, dialling if need be, and its response.

        None where no answer is expected: the request is written then, no more. With `dials_back`
        the peer opens a connection to us before it answers, and closes it; that takes long, so
        the request has a stream of its own. A request may reach the peer twice. Raises
        Unreachable, ProtocolViolation, InvalidInput, NodeClosed.
        """
        check_request_size(frame)
        self._ensure_runs()
        scope = trio.CancelScope(deadline=trio.current_time() + timeout_s)
        self._pending.add(scope)
        error = Unreachable(f"{to.peer_id} did not answer within {timeout_s:g} s")
        try:
            with scope:
                if not dials_back:
                    return await self.kad.ask(to, frame, expects_answer=expects_answer)
                with counted(self.swarm.dialler.dialling_back, to.peer_id):
                    return await self.kad.ask_apart(to, frame)
        except Unreachable as reason:
            error = reason
        finally:
            self._pending.discard(scope)
        if self.stopping:
            raise NodeClosed("the network stopped while a peer was asked; ask again once it runs")
        raise error

    def send(self, to: Contact, frame: bytes, *, urgent: bool = False) -> None:
        """Queue one work frame on the session with a peer, which is dialled if need be.

        An urgent one does not wait behind large ones. Never blocks; what is lost is told by
        `Undelivered`. Raises InvalidInput, NodeClosed.
        """
        check_work_size(frame)
        self._ensure_runs()
        self.work.send(to, frame, urgent=urgent)

    async def open(
        self, to: Contact, protocol: str, *, timeout_s: float, first: bytes = b""
    ) -> MuxedStream:
        """A stream that speaks `protocol`, to a peer that is dialled if need be; `first` goes out
        with the proposal. Close or abort it. Raises Unreachable, ProtocolViolation, NodeClosed."""
        self._ensure_runs()
        try:
            with trio.fail_after(timeout_s):
                connection = await self.swarm.dialler.dial(to)
                return await connection.open(protocol, first)
        except trio.TooSlowError:
            raise Unreachable(f"{to.peer_id} opens no stream within {timeout_s:g} s") from None

    def note_lease(self, peer: PeerId) -> None:
        """A lease is shared with this peer: take large work frames from it. From anybody
        else a frame of more than 256 KiB ends the stream."""
        self._ensure_runs()
        self.limits.note_lease(peer)
        self.swarm.known(peer)

    def drop(self, peer: PeerId, reason: str, level: int = logging.INFO) -> None:
        """Close all connections to a peer that misbehaves."""
        if not self._runs:
            return  # they are closed already, or soon
        self._drops.tell(peer, reason, level)
        self.swarm.abort_peer(peer, reason)

    def offended(self, peer: PeerId, reason: str) -> None:
        """A peer sent a message of the DHT that is none: its stream is reset, as others do, and a
        peer that does so again and again is dropped."""
        if self.limits.of(peer).offences.take():
            log.debug("%s sends what is no message of the DHT: %s", peer, reason)
        else:
            self.drop(peer, reason)

    async def dial_back(self, peer: PeerId, *, timeout_s: float) -> bool | None:
        """Whether a connected peer can be dialled anew where it is seen to come from, or None."""
        return await self.swarm.dialler.dial_back(peer, timeout_s) if self._runs else None

    def advertise(self, serving: bool) -> None:
        """Tell whether others may be sent to us in the DHT; they may, unless this says otherwise.
        Where we listen it is served in either case: who found us is answered, and whether others
        would is a guess."""
        if not self._runs:
            return
        of_servers = frozenset({self._kad_protocol, REQUEST_PROTOCOL})
        unlisted = frozenset() if serving else of_servers
        if unlisted != self.served.unlisted:
            self.served.unlisted = unlisted
            self.push()

    def path_to(self, peer: PeerId) -> Path | None:
        """How a peer is reached now; None where it is not connected."""
        connection = self.swarm.connection_to(peer) if self._runs else None
        return None if connection is None else connection.path

    def contact(self, to: Contact) -> Contact:
        """`to`, with the addresses that identify told of if it is connected, and without any if
        it dialled us, and does not say that it serves the DHT."""
        connection = self.swarm.connection_to(to.peer_id) if self._runs else None
        return to if connection is None else connection.as_server(self._kad_protocol)

    def _ensure_runs(self) -> None:
        if not self._runs:
            raise NodeClosed("the network does not run; start it, or wait until it is restarted")

    # -- connections ------------------------------------------------------------------------

    def _refuse_version(self, connection: Connection, version: int) -> None:
        reason, level = self.incompatible.refuse(connection.peer, version)
        self.drop(connection.peer, reason, level)

    def _introduce(self, connection: Connection) -> None:
        self._meet(connection)
        self._spawn(partial(self.served.push, connection))

    def _spawn(self, task: Callable[[], Awaitable[None]]) -> None:
        self._nursery.start_soon(logged, task)

    def _disconnected(self, peer: PeerId) -> None:
        self.reserving.disconnected(peer)
        self._tell(Disconnected(peer))

    def _pushed(self, connection: Connection) -> None:
        self.reserving.met(connection)
        self._tell(PeerIdentified(connection.as_server(self._kad_protocol)))

    def _meet(self, connection: Connection) -> None:
        if self.limits.has_lease(connection.peer):
            connection.muxer.known()

    def _dialled(self, connection: Connection) -> None:
        self._meet(connection)
        host = connection.remote_host
        if host is None:
            return  # gone already
        seen_from = LOOPBACK if is_this_machine(host) else host
        self._tell(InboundConnection(connection.peer, seen_from))

    def _tell(self, event: NetworkEvent) -> None:
        try:
            self._handlers.feed(event)
        except Exception:
            # The shell's fault, with nothing above to tell: the network goes on.
            log.exception("the handler of %s failed", event)


# Told in a minute. Of more, which one peer that keeps coming back can cause, the log tells only
# at the level of debugging.
MAX_DROPS_TOLD: Final = 10


class DropLog:
    """The log of the peers whose connections are closed for what they did."""

    def __init__(self) -> None:
        self._told_s: deque[float] = deque(maxlen=MAX_DROPS_TOLD)

    def tell(self, peer: PeerId, reason: str, level: int) -> None:
        now_s = trio.current_time()
        if len(self._told_s) < MAX_DROPS_TOLD or self._told_s[0] <= now_s - 60:
            self._told_s.append(now_s)
            log.log(level, "dropping %s: %s", peer, reason)
        else:  # a peer that comes back for more must not fill the log
            log.debug("dropping %s: %s", peer, reason)


# The latest: enough to say which machine is to be upgraded.
MAX_INCOMPATIBLE: Final = 16


class IncompatiblePeers(Latest[PeerId, str]):
    """Nodes of another version of Formation's protocols that were refused lately, and which side is
    to be upgraded."""

    def refuse(self, peer: PeerId, version: int) -> tuple[str, int]:
        """Why, and at which level of the log: the peer comes back again and again."""
        where = "there" if version < VERSION else "here"
        reason = (
            f"it speaks version {version} of Formation's protocols, and this node version "
            f"{VERSION}; upgrade formation_p2p {where}"
        )
        level = logging.DEBUG if peer in self else logging.WARNING
        self[peer] = reason
        return reason, level
