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
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import InvalidInput, LocalError, NodeClosed, Unreachable
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.host.net.addresses import TcpAddress
from formation_p2p.host.net.parameters import DEFAULTS, NetParameters
from formation_p2p.host.net.protocols.frames import MAX_KAD_REQUEST_BYTES, MAX_WORK_FRAME_BYTES

if TYPE_CHECKING:
    from formation_p2p.host.net.limits import PeerLimits
    from formation_p2p.host.net.network import RunningStack
    from formation_p2p.host.net.transport.stream import MuxedStream

log = logging.getLogger(__name__)

# What the classes of swarm.py, handlers.py, transport/tcp.py and transport/yamux.py were written
# against.
LIBP2P_VERSION: Final = "0.8.1"
KAD_PROTOCOL: Final = "/formation/kad/1.0.0"
WORK_PROTOCOL: Final = "/formation/work/1.0.0"
# In a minute. Of more, which one peer that keeps coming back can cause, the log tells only
# at the level of debugging.
MAX_DROPS_TOLD: Final = 10


# What serves one stream of a protocol of its own, until it returns. What it raises of RemoteError,
# IOException and TooSlowError resets the stream.
Serve = Callable[["MuxedStream", Contact, "PeerLimits"], Awaitable[None]]


class Handlers(Protocol):
    """What the shell does with what comes in. Called on the trio thread; must not block.

    An exception that one raises is logged and costs only the stream it came from.
    """

    def asked(self, sender: Contact, frame: bytes, answer: Callable[[bytes | None], None]) -> None:
        """One kad request. Call `answer` once, within 10 s; None writes no response."""

    def received(self, sender: Contact, frame: bytes) -> None:
        """One frame of the work protocol. Those of one peer come in the order sent."""

    def undelivered(self, to: PeerId, reason: str) -> None:
        """Frames queued for `to`, or written in the half minute before its stream broke, may be
        lost. Never called from inside `Stack.send`."""

    def dialled_by(self, peer: PeerId, host: str) -> None:
        """A peer opened a connection to us, from this IP address; 127.0.0.1 stands for all that
        are this machine's."""

    def measured(self, peer: PeerId, rtt_us: int) -> None:
        """A round trip on a connection with a peer took so long."""

    def told(self, peer: Contact) -> None:
        """A connected peer said anew what it is: a server of the DHT, at these addresses, or, if
        there are none, not one to send others to."""

    def disconnected(self, peer: PeerId) -> None:
        """The last connection to `peer` closed."""


class Stack:
    """See the module. Methods are called on the trio thread that `run` runs on."""

    def __init__(
        self,
        identity: Identity,
        listen: Sequence[str],
        *,
        kad_protocol: str = KAD_PROTOCOL,
        work_protocol: str = WORK_PROTOCOL,
        announce: Sequence[str] = (),
        parameters: NetParameters = DEFAULTS,
    ) -> None:
        """Raises InvalidInput, and LocalError for a py-libp2p that this was not written for.

        `listen` empty: a client only. `announce`: tell peers these in place of `addresses`.
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
        self._work_protocol = work_protocol
        self._served: dict[str, Serve] = {}
        self._pending: set[trio.CancelScope] = set()
        self._dropped_s: deque[float] = deque(maxlen=MAX_DROPS_TOLD)  # and told of
        self._network: RunningStack | None = None
        self._closing = trio.Event()
        self._closed = trio.Event()

    def serve(self, protocol: str, serve: Serve) -> None:
        """Speak one protocol more, on streams that peers open. Call it before `run`."""
        self._served[protocol] = serve

    # -- life -----------------------------------------------------------------------------

    async def run(self, handlers: Handlers, *, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        """Serve until `close`. Raises LocalError where it cannot listen, and whatever breaks the
        network underneath. Calls that are pending then raise NodeClosed.
        """
        # 0.7 s and 78 MB, which only a program that runs a network pays.
        from formation_p2p.host.net.network import RunningStack

        refused: LocalError | None = None
        try:
            async with trio.open_nursery() as nursery:
                network = RunningStack(
                    self._identity,
                    handlers,
                    nursery,
                    self._kad_protocol,
                    self._work_protocol,
                    self.parameters,
                )
                for protocol, serve in self._served.items():
                    network.serve(protocol, serve)
                try:
                    self.addresses = await network.start(self._listen, self._announce)
                except LocalError as error:
                    refused = error
                else:
                    self.announced = self._announce or self.addresses
                    self._network = network
                    task_status.started()
                    try:
                        await self._closing.wait()
                        await network.swarm.close()
                    finally:
                        # Before the nursery takes no more tasks, whatever ends it.
                        self._closing.set()
                        self._network = None
                nursery.cancel_scope.cancel()
        finally:
            self._closed.set()
            for scope in self._pending:
                scope.cancel()
        if refused is not None:
            raise refused

    async def close(self) -> None:
        """Say goodbye to the peers (a second at most) and stop. The port is free afterwards."""
        self._closing.set()
        if self._network is not None:
            await self._closed.wait()

    @property
    def stopping(self) -> bool:
        """Whether it is being closed, or broke: whatever fails now fails for that reason."""
        return self._closing.is_set() or (self._network is not None and self._network.stopping)

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
        network = self.running
        scope = trio.CancelScope(deadline=trio.current_time() + timeout_s)
        self._pending.add(scope)
        error = Unreachable(f"{to.peer_id} did not answer within {timeout_s:g} s")
        try:
            with scope:
                if not dials_back:
                    return await network.kad.ask(to, frame, expects_answer=expects_answer)
                with network.swarm.dialler.dialled_back_by(to.peer_id):
                    return await network.kad.ask_apart(to, frame)
        except Unreachable as reason:
            error = reason
        finally:
            self._pending.discard(scope)
        if network.stopping:
            raise NodeClosed("the network stopped while a peer was asked; ask again once it runs")
        raise error

    def send(self, to: Contact, frame: bytes, *, urgent: bool = False) -> None:
        """Queue one work frame on the session with a peer, which is dialled if need be.

        An urgent one does not wait behind large ones. Never blocks; what is lost is told by
        `Handlers.undelivered`. Raises InvalidInput, NodeClosed.
        """
        _check_size(frame, MAX_WORK_FRAME_BYTES)
        self.running.work.send(to, frame, urgent=urgent)

    async def open(self, to: Contact, protocol: str, *, timeout_s: float) -> MuxedStream:
        """A stream that speaks `protocol`, to a peer that is dialled if need be. Close or abort
        it. Raises Unreachable, ProtocolViolation, NodeClosed."""
        network = self.running
        try:
            with trio.fail_after(timeout_s):
                connection = await network.swarm.dialler.dial(to)
                return await connection.open(protocol)
        except trio.TooSlowError:
            raise Unreachable(f"{to.peer_id} opens no stream within {timeout_s:g} s") from None

    def trust(self, peer: PeerId) -> None:
        """Take large work frames from a peer. Call it for those that a lease is shared with:
        from anybody else a frame of more than 256 KiB ends the stream."""
        self.running.limits.trust(peer)

    def drop(self, peer: PeerId, reason: str) -> None:
        """Close all connections to a peer that misbehaves."""
        if self._network is None:
            return  # they are closed already, or soon
        now_s = trio.current_time()
        if len(self._dropped_s) < MAX_DROPS_TOLD or self._dropped_s[0] <= now_s - 60:
            self._dropped_s.append(now_s)
            log.info("dropping %s: %s", peer, reason)
        else:  # a peer that comes back for more must not fill the log
            log.debug("dropping %s: %s", peer, reason)
        self._network.swarm.abort_peer(peer, reason)

    async def dial_back(self, peer: PeerId, *, timeout_s: float) -> bool | None:
        """Whether a connected peer can be dialled, over a new connection, at the address which
        it is seen to come from. None where that cannot be tried."""
        if self._network is None:
            return None
        try:
            with trio.fail_after(timeout_s):
                return await self._network.swarm.dialler.dial_back(peer)
        except trio.TooSlowError:
            return False

    def advertise(self, serving: bool) -> None:
        """Tell whether others may be sent to us in the DHT; they may, unless this says otherwise.
        It is served in either case."""
        if self._network is not None:
            self._network.advertise(serving)

    def contact(self, to: Contact) -> Contact:
        """`to`, with the addresses that identify told of if it is connected, and without any if
        it dialled us, and does not say that it serves the DHT."""
        network = self._network
        connection = None if network is None else network.swarm.connection_to(to.peer_id)
        return to if network is None or connection is None else network.server(connection)

    @property
    def running(self) -> RunningStack:
        """The parts of the network while it runs. Raises NodeClosed."""
        if self._network is None:
            raise NodeClosed("the network does not run; start it, or wait until it is restarted")
        return self._network


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
