"""The network: py-libp2p behind a small, hardened API. Runs inside one trio thread.

    stack = Stack(identity, ["/ip4/0.0.0.0/tcp/4001"])
    await nursery.start(stack.run, handlers)   # returns once it listens
    response = await stack.ask(contact, frame, timeout_s=5)
    stack.send(contact, frame)
    await stack.close()                        # `run` returns

TCP, Noise and yamux, nothing else. A stack that broke cannot be used again: make another, with
the same identity and addresses.
"""

from __future__ import annotations

import importlib.metadata
import logging
import os
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any, Final

import trio
from libp2p.crypto.ed25519 import create_new_key_pair
from libp2p.crypto.x25519 import create_new_key_pair as create_new_noise_key_pair
from libp2p.security.noise.transport import Transport as NoiseTransport

from formation_p2p.core.dht.rpc import InboundConnection, PeerIdentified
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import InvalidInput, LocalError, NodeClosed, Unreachable
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.core.negotiation.session import Disconnected, Undelivered
from formation_p2p.core.peer.events import Measured
from formation_p2p.host.net.addresses import TcpAddress, expand, is_this_machine
from formation_p2p.host.net.connection import Connection
from formation_p2p.host.net.handlers import Handlers, NetworkEvent, StreamHandlers
from formation_p2p.host.net.identify import VERSION, WORK_PROTOCOL
from formation_p2p.host.net.limits import PeerLimits, PeerLimitsTable, counted
from formation_p2p.host.net.parameters import DEFAULTS, NetParameters
from formation_p2p.host.net.protocols.frames import MAX_KAD_REQUEST_BYTES, MAX_WORK_FRAME_BYTES
from formation_p2p.host.net.protocols.kad import KadStreams
from formation_p2p.host.net.protocols.work import WorkSessions
from formation_p2p.host.net.swarm import Swarm
from formation_p2p.host.net.transport.stream import MuxedStream

log = logging.getLogger(__name__)

LOOPBACK: Final = "127.0.0.1"
# What the classes of swarm.py, handlers.py, transport/tcp.py and transport/yamux.py were written
# against.
LIBP2P_VERSION: Final = "0.8.1"
KAD_PROTOCOL: Final = "/formation/kad/1.0.0"
# In a minute. Of more, which one peer that keeps coming back can cause, the log tells only
# at the level of debugging.
MAX_DROPS_TOLD: Final = 10
# Of another version, the latest: enough to say which machine is to be upgraded.
MAX_INCOMPATIBLE: Final = 16


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
    _handlers: Handlers
    _nursery: trio.Nursery

    def __init__(
        self,
        identity: Identity,
        listen: Sequence[str],
        *,
        kad_protocol: str = KAD_PROTOCOL,
        announce: Sequence[str] = (),
        parameters: NetParameters = DEFAULTS,
    ) -> None:
        """Raises InvalidInput, and LocalError for a py-libp2p that this was not written for.

        `listen` empty: a client only, which does not serve the DHT. `announce`: tell peers these in
        place of `addresses`.
        """
        found = importlib.metadata.version("libp2p")
        if found != LIBP2P_VERSION:
            raise LocalError(
                f"libp2p {found} is installed, but this needs exactly {LIBP2P_VERSION}: "
                f"pip install libp2p=={LIBP2P_VERSION}"
            )
        self.addresses: tuple[str, ...] = ()
        """Where it really listens: never 0.0.0.0, without /p2p/…; set once `run` has started."""
        self.announced: tuple[str, ...] = ()
        """What peers are told: `announce` if given, else `addresses`."""
        self.parameters = parameters
        self._identity = identity
        self._listen = _parse("listen", listen)
        self._announce = tuple(str(a) for a in _parse("announce", announce))
        self._kad_protocol = kad_protocol
        self._keys = create_new_key_pair(identity.seed)
        self.limits = PeerLimitsTable(parameters)
        self.served = StreamHandlers(self._keys.public_key.serialize(), self._pushed)
        self._pending: set[trio.CancelScope] = set()
        self.incompatible: dict[PeerId, str] = {}
        """Nodes of another version that were refused lately, and which of us is to be upgraded."""
        self._dropped_s: deque[float] = deque(maxlen=MAX_DROPS_TOLD)  # and told of
        self._runs = False
        self._closing = trio.Event()
        self._closed = trio.Event()

    def serve(self, protocol: str, serve: Serve) -> None:
        """Speak one protocol more, on streams that peers open. Call it before `run`."""
        self.served.by_protocol[protocol] = partial(self._serve, serve)

    # -- life -----------------------------------------------------------------------------

    async def run(self, handlers: Handlers, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until `close`. Raises LocalError where it cannot listen, and whatever breaks the
        network underneath. Calls that are pending then raise NodeClosed.
        """
        refused: LocalError | None = None
        try:
            async with trio.open_nursery() as self._nursery:
                self._assemble(handlers)
                try:
                    await self.swarm.listen(self._listen)
                except LocalError as error:
                    refused = error
                else:
                    self.addresses = expand(self.swarm.bound)
                    self.announced = self.served.addresses = self._announce or self.addresses
                    self._runs = True
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
        if "LIBP2P_DEBUG" not in os.environ:
            # `libp2p/__init__.py:141` makes it write to stderr, past the program's own logging,
            # what strangers cause. What of that matters is logged here.
            logging.getLogger("libp2p").setLevel(logging.CRITICAL)
        noise = NoiseTransport(self._keys, noise_privkey=create_new_noise_key_pair().private_key)
        self._handlers = handlers
        self.swarm = Swarm(
            self._identity.peer_id,
            noise,
            self.parameters,
            self._nursery,
            serve=self.served.serve,
            on_dialling=self._introduce,
            on_dialled=self._dialled,
            on_measured=lambda peer, rtt_us: self._tell(Measured(peer, rtt_us)),
            on_disconnected=lambda peer: self._tell(Disconnected(peer)),
            on_other_version=self._refuse_version,
            on_introduced=self._pushed,
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
        )
        if self._listen:  # or it is a client for good, which by the specification serves none
            self.served.by_protocol[self._kad_protocol] = self.kad.serve
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
        _check_size(frame, MAX_KAD_REQUEST_BYTES)
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
        _check_size(frame, MAX_WORK_FRAME_BYTES)
        self._ensure_runs()
        self.work.send(to, frame, urgent=urgent)

    async def open(self, to: Contact, protocol: str, *, timeout_s: float) -> MuxedStream:
        """A stream that speaks `protocol`, to a peer that is dialled if need be. Close or abort
        it. Raises Unreachable, ProtocolViolation, NodeClosed."""
        self._ensure_runs()
        try:
            with trio.fail_after(timeout_s):
                connection = await self.swarm.dialler.dial(to)
                return await connection.open(protocol)
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
        now_s = trio.current_time()
        if len(self._dropped_s) < MAX_DROPS_TOLD or self._dropped_s[0] <= now_s - 60:
            self._dropped_s.append(now_s)
            log.log(level, "dropping %s: %s", peer, reason)
        else:  # a peer that comes back for more must not fill the log
            log.debug("dropping %s: %s", peer, reason)
        self.swarm.abort_peer(peer, reason)

    def offended(self, peer: PeerId, reason: str) -> None:
        """A peer sent a message of the DHT that is none: its stream is reset, as others do, and a
        peer that does so again and again is dropped."""
        if self.limits.of(peer).offences.take():
            log.debug("%s sends what is no message of the DHT: %s", peer, reason)
        else:
            self.drop(peer, reason)

    async def dial_back(self, peer: PeerId, *, timeout_s: float) -> bool | None:
        """Whether a connected peer can be dialled, over a new connection, at the address which
        it is seen to come from. None where that cannot be tried."""
        if not self._runs:
            return None
        try:
            with trio.fail_after(timeout_s):
                return await self.swarm.dialler.dial_back(peer)
        except trio.TooSlowError:
            return False

    def advertise(self, serving: bool) -> None:
        """Tell whether others may be sent to us in the DHT; they may, unless this says otherwise.
        Where we listen it is served in either case: who found us is answered, and whether others
        would is a guess."""
        if not self._runs:
            return
        unlisted = frozenset() if serving else frozenset({self._kad_protocol})
        if unlisted != self.served.unlisted:
            self.served.unlisted = unlisted
            for connection in self.swarm.all():
                self._introduce(connection)

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
        where = "there" if version < VERSION else "here"
        reason = (
            f"it speaks version {version} of Formation's protocols, and this node version "
            f"{VERSION}; upgrade formation_p2p {where}"
        )
        # It comes back again and again.
        level = logging.DEBUG if connection.peer in self.incompatible else logging.WARNING
        self.incompatible.pop(connection.peer, None)
        if len(self.incompatible) >= MAX_INCOMPATIBLE:
            del self.incompatible[next(iter(self.incompatible))]
        self.incompatible[connection.peer] = reason
        self.drop(connection.peer, reason, level)

    def _introduce(self, connection: Connection) -> None:
        self._meet(connection)
        self._spawn(partial(self.served.push, connection))

    def _spawn(self, task: Callable[[], Awaitable[None]]) -> None:
        self._nursery.start_soon(_logged, task)

    def _pushed(self, connection: Connection) -> None:
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


async def _logged(task: Callable[[], Awaitable[None]]) -> None:
    try:
        await task()
    except Exception:
        # One peer's stream must not end the network, whatever goes wrong with it.
        log.exception("a task of the network failed")


def _parse(field: str, addresses: Iterable[str]) -> list[TcpAddress]:
    """Raises InvalidInput."""
    parsed = []
    for text in addresses:
        try:
            address = TcpAddress.parse(text)
        except ValueError as error:
            raise InvalidInput(field, str(error)) from None
        if field == "listen" and address.ip is None:
            raise InvalidInput(field, f"{text} has a name; listen on an IP address")
        parsed.append(address)
    return parsed


def _check_size(frame: bytes, limit: int) -> None:
    if len(frame) > limit:
        raise InvalidInput("frame", f"has {len(frame)} bytes, of at most {limit}")
