"""TCP as libp2p's transport.

It reads exactly what is asked for, from a buffer; it never writes after a write that was torn;
it binds a port alone and says so when it cannot; and the kernel gives up on a dead peer.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import struct
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import trio

from formation_p2p.core.errors import LocalError
from formation_p2p.core.units import KIB, MIB
from formation_p2p.net.transport.addresses import TcpAddress
from formation_p2p.net.transport.errors import ConnectionClosedError, SwarmException
from formation_p2p.net.transport.own_port import TAKEN, OwnPort
from formation_p2p.net.transport.raw import MAX_READ_BYTES, RawStream, Rooms

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

# Accepting connections on the sockets beside the peer. A failed one does not stop the listener,
# and the node waits for none of its clients.

# File descriptors or memory are used up: wait for some to come back.
FULL: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
FULL_PAUSE_S: Final = 0.2


async def next_client(listener: trio.socket.SocketType) -> trio.socket.SocketType:
    """The next connection, once there is room for one. Raises OSError where the listener broke."""
    while True:
        try:
            client, _ = await listener.accept()
        except ConnectionAbortedError:
            continue  # it left before it was taken
        except OSError as error:
            if error.errno not in FULL:
                raise
            log.warning("cannot accept a connection: %s", error)
            await trio.sleep(FULL_PAUSE_S)
        else:
            return client


async def serve_clients(
    listener: socket.socket,
    answer: Callable[[trio.SocketStream], Awaitable[None]],
    max_clients: int,
) -> None:
    """Until cancelled. A client past `max_clients` is closed at once, every other one after its
    answer. The listener stays open: its maker closes it."""

    async def answered(client: trio.SocketStream) -> None:
        async with client:
            await answer(client)

    with trio.socket.fromfd(listener.fileno(), listener.family, listener.type) as accepting:
        async with trio.open_nursery() as nursery:
            while True:
                client = await next_client(accepting)
                if len(nursery.child_tasks) < max_clients:
                    nursery.start_soon(answered, trio.SocketStream(client))
                else:
                    client.close()


log = logging.getLogger(__name__)

# Taken at a time of one who sends faster than that is read: it saves a turn of the loop for each
# message, and takes 0.2 ms to deal with. It may lie here for as long as a reader pauses.
READ_AHEAD_BYTES: Final = 4 * MAX_READ_BYTES
# Where at least MORE_TOGETHER_BYTES are sure to come, which no stranger has leave for: it has its
# place. Twice as much is not faster.
MOST_READ_AHEAD_BYTES: Final = 8 * MAX_READ_BYTES
_READ_ROOMS: Final = Rooms(MOST_READ_AHEAD_BYTES)
# Names looked up at once. Addresses with one are few; most are numbers.
MAX_RESOLVING: Final = 16
# Where at least so much is sure to come, the kernel wakes the reader for that, and not for each
# segment: it saves half of the turns of the loop.
TOGETHER_BYTES: Final = 2 * MAX_READ_BYTES
# The same of a peer that has brought as much at once the last time. On a slow link that would take
# seconds, in which nothing of the peer is seen.
MORE_TOGETHER_BYTES: Final = 4 * MAX_READ_BYTES
# How much may lie in the kernel unsent: more would hold a small frame back behind a large one. On a
# link that is fast for as long as it is, more is as soon gone, and costs fewer turns of the loop.
UNSENT_BYTES: Final = 128 * KIB
FAST_UNSENT_BYTES: Final = 512 * KIB
MOST_UNSENT_BYTES: Final = 2 * MIB
# Sent and not acknowledged for so long: the peer's machine is gone.
UNACKNOWLEDGED_MS: Final = 30_000
# Silence before the kernel probes, between probes, and how many go unanswered: 10 + 4 x 5 s.
KEEPALIVE_IDLE_S: Final = 10
KEEPALIVE_INTERVAL_S: Final = 5
KEEPALIVE_PROBES: Final = 4
# Of each connection, where the system has it.
_OPTIONS: Final = tuple(
    (level, getattr(socket, name), value)
    for level, name, value in (
        (socket.SOL_SOCKET, "SO_KEEPALIVE", 1),
        (socket.IPPROTO_TCP, "TCP_KEEPIDLE", KEEPALIVE_IDLE_S),
        (socket.IPPROTO_TCP, "TCP_KEEPINTVL", KEEPALIVE_INTERVAL_S),
        (socket.IPPROTO_TCP, "TCP_KEEPCNT", KEEPALIVE_PROBES),
        (socket.IPPROTO_TCP, "TCP_USER_TIMEOUT", UNACKNOWLEDGED_MS),
        (socket.IPPROTO_TCP, "TCP_NOTSENT_LOWAT", UNSENT_BYTES),
    )
    if hasattr(socket, name)
)
# Connections that the kernel holds for us to accept.
BACKLOG: Final = 128
# What the kernel says to `::` where IPv6 is not built in, or turned off.
_NO_FAMILY: Final = (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL, errno.EPROTONOSUPPORT)


class TcpStream(RawStream):
    """One connected socket. One task may read and one may write at a time.

    A torn write is the last one: the next would be taken for its rest. `read(n)` waits for all `n`.
    """

    def __init__(self, stream: trio.SocketStream, *, from_own_port: bool = False) -> None:
        super().__init__()
        self._stream = stream
        self.from_own_port = from_own_port
        """Dialled from the port that the node listens on, or keeps."""
        self._more = False  # whether the last read left something in the kernel
        self._much = False  # whether it brought the most that a message has
        self._brings_more = False  # whether that was some messages more
        self._room: memoryview | None = None  # where what has come lies, of a large read
        self._sure_bytes = 0
        self._wakes_at_bytes = 1
        self._unsent: list[bytes | memoryview] = []
        self._torn = False
        self._remote: tuple[str, int] | None = None
        self.local: tuple[str, int] | None = None
        """The host and port at our end."""
        try:
            self.local = _without_zone(stream.socket.getsockname())
            self._remote = _without_zone(stream.socket.getpeername())
            for level, option, value in _OPTIONS:
                stream.socket.setsockopt(level, option, value)
        except OSError as error:
            # Already gone: the first read says so too, to someone who can act on it.
            log.debug("a new connection's socket is closed: %s", error)

    async def has_spoken(self, within_s: float, *, beyond: bytes) -> bool:
        """Whether anything arrives so soon that is not in that greeting. Raises
        ConnectionClosedError."""
        with trio.move_on_after(within_s):
            while beyond.startswith(bytes(self._buffer)):
                await self.fill()
        return not beyond.startswith(bytes(self._buffer))

    def reset_on_close(self, resets: bool) -> None:
        """Whether `close` leaves nothing behind: the same two ports can be connected again at
        once, and what was not sent is lost. Otherwise they are taken for a minute."""
        with suppress(OSError):  # gone: then there is nothing to close
            linger = struct.pack("ii", resets, 0)
            self._stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)

    async def fill(self) -> None:
        """Wait for more bytes, and keep them to be taken. Raises ConnectionClosedError.

        trio's own `receive_some` and `send_all` take 30 us more each, for every small message.
        """
        self.settle()
        try:
            if self._more:
                await trio.lowlevel.checkpoint()
            else:
                self._wake_at(self._together())
                await trio.lowlevel.wait_readable(self._open_socket())
            size, asked = self._read_much() if self._much else self._read_some()
        except BlockingIOError:
            self._more = False
            return  # the kernel thought better of it
        except (OSError, ValueError, trio.ClosedResourceError) as error:
            raise ConnectionClosedError(f"connection lost: {error}") from error
        if not size:
            raise ConnectionClosedError("connection closed by the peer")
        self._more = size == asked
        self._much = size >= MAX_READ_BYTES
        self._brings_more = size >= MORE_TOGETHER_BYTES

    def _read_some(self) -> tuple[int, int]:
        """How much came of how much. Raises what `fill` expects."""
        data = os.read(self._open_socket(), MAX_READ_BYTES)
        self._buffer = memoryview(bytes(self._buffer) + data if self._buffer else data)
        return len(data), MAX_READ_BYTES

    def _read_much(self) -> tuple[int, int]:
        """As `_read_some`, into a room. It ends where a message of the largest size does."""
        room, there = _READ_ROOMS.take(), len(self._buffer)
        is_sure = self._sure_bytes - there >= MORE_TOGETHER_BYTES
        end = MOST_READ_AHEAD_BYTES if is_sure else READ_AHEAD_BYTES
        size = 0
        try:
            size = os.readv(self._open_socket(), [room[there:end]])
        finally:
            if not size:  # many connections may end at the same time
                _READ_ROOMS.give_back(room)
        if size:
            room[:there] = self._buffer
            self._buffer, self._room = room[: there + size], room
        return size, end - there

    def settle(self) -> None:
        # What is left of a large read must not keep all of it for as long as others read.
        self._buffer = memoryview(bytes(self._buffer))
        if self._room is not None:
            _READ_ROOMS.give_back(self._room)
            self._room = None

    def hurry(self) -> None:
        with suppress(OSError, trio.ClosedResourceError):  # gone: the next read says so
            self._wake_at(1)

    def expect(self, size: int) -> None:
        self._sure_bytes = size

    def _together(self) -> int:
        """How much there is to be waited for."""
        sure_bytes = self._sure_bytes - len(self._buffer)
        if self._brings_more and sure_bytes >= MORE_TOGETHER_BYTES:
            return MORE_TOGETHER_BYTES
        return TOGETHER_BYTES if sure_bytes >= TOGETHER_BYTES else 1

    def _wake_at(self, size: int) -> None:
        """Raises OSError, ClosedResourceError."""
        if size != self._wakes_at_bytes:
            self._stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, size)
            self._wakes_at_bytes = size

    def write_now(self, *parts: bytes | memoryview) -> bool:
        """Whether the kernel took all of them. If not, `flush` before the next write.

        Raises ConnectionClosedError.
        """
        if self._torn or self._unsent:
            raise ConnectionClosedError("an earlier write was cut short")
        try:
            sent = os.writev(self._stream.socket.fileno(), parts)
        except BlockingIOError:
            sent = 0
        except OSError as error:
            self._torn = True
            raise ConnectionClosedError(f"connection lost: {error}") from error
        self._unsent = rest_of(parts, sent)
        return not self._unsent

    async def flush(self) -> bool:
        """Wait until the kernel takes more of what `write_now` left over. Returns whether that is
        all of it. Raises ConnectionClosedError."""
        self._torn = True
        try:
            await trio.lowlevel.wait_writable(self._open_socket())
            sent = os.writev(self._open_socket(), self._unsent)
        except BlockingIOError:
            sent = 0
        except (OSError, ValueError, trio.ClosedResourceError) as error:
            raise ConnectionClosedError(f"connection lost: {error}") from error
        self._unsent = rest_of(self._unsent, sent)
        self._torn = False
        return not self._unsent

    def hold_unsent(self, size: int) -> None:
        """Let the kernel take so much ahead of what the link carries."""
        with suppress(OSError):  # gone: the next write says so
            self._stream.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, size)

    def _open_socket(self) -> int:
        """Its number. Raises ConnectionClosedError where it was closed here: trio remembers who
        waited for the number that is none, and tells the next one that it is busy."""
        number = self._stream.socket.fileno()
        if number < 0:
            raise ConnectionClosedError("connection closed here")
        return number

    async def close(self) -> None:
        """At once, even when cancelled."""
        self._buffer = memoryview(b"")  # others may hold the stream for long yet
        self.settle()
        await trio.aclose_forcefully(self._stream)

    def get_remote_address(self) -> tuple[str, int] | None:
        return self._remote


def _without_zone(name: Sequence[Any]) -> tuple[str, int]:
    """The host and port of a socket's end; link-local hosts come with their interface."""
    return name[0].partition("%")[0], name[1]


class NoSuchFamily(LocalError):
    """This machine has no IPv4, or no IPv6."""


async def bind(address: TcpAddress, own_port: OwnPort) -> trio.socket.SocketType:
    """A socket that listens, whose port is then one to dial from. Raises LocalError, saying why
    there is none.

    Without SO_REUSEPORT, by which two processes would share a port and each get half of the
    connections: the second one fails. On `::` there is no IPv4.
    """
    try:
        (listener,) = await trio.open_tcp_listeners(
            address.port, host=address.host, backlog=BACKLOG
        )
    except OSError as error:
        if error.errno in _NO_FAMILY and address.ip is not None and address.ip.is_unspecified:
            kind = "IPv4" if address.family == "ip4" else "IPv6"
            raise NoSuchFamily(
                f"cannot listen on {address}: this machine has no {kind}; listen on the other"
            ) from error
        advice = "choose another address or port by --listen"
        if error.errno == errno.EADDRINUSE:
            advice = "stop what holds the port, or choose another by --listen"
        problem = f"cannot listen on {address}: {error.strerror or error}"
        raise LocalError(f"{problem}; {advice}") from error
    own_port.share(listener.socket)
    return listener.socket


async def accept_all(
    listening: trio.socket.SocketType,
    handler: Callable[[TcpStream], Awaitable[None]],
    scope: trio.CancelScope,
) -> None:
    """Accept until `scope` is cancelled. Raises OSError where the socket breaks."""

    async def accepted(stream: TcpStream) -> None:
        try:
            await handler(stream)
        except Exception:
            # A stranger's connection must not end the listener, whatever is wrong with it.
            log.exception("a new connection failed")
            await stream.close()

    with listening, scope:  # however it ends, the port is free afterwards
        async with trio.open_nursery() as nursery:
            while True:
                client = await next_client(listening)
                nursery.start_soon(accepted, TcpStream(trio.SocketStream(client)))


# In trio-typing's stubs, which come with multiaddr, it still has its old name.
_run_in_thread: Any = trio.to_thread.run_sync


class Resolver(trio.abc.HostnameResolver):
    """Looks names up in threads of its own, a few at once.

    A lookup cannot be cut short, and strangers name the hosts: those of one that answers never
    would take all of trio's own threads, which the drivers need to begin and end a task.
    """

    def __init__(self) -> None:
        threads = trio.CapacityLimiter(MAX_RESOLVING)
        self._look_up = partial(_run_in_thread, limiter=threads, abandon_on_cancel=True)

    async def getaddrinfo(self, *arguments: Any) -> Any:
        return await self._look_up(socket.getaddrinfo, *arguments)

    async def getnameinfo(self, *arguments: Any) -> Any:
        return await self._look_up(socket.getnameinfo, *arguments)


async def _connect(address: TcpAddress, own_port: OwnPort | None) -> trio.SocketStream:
    """To a number, without the looking up and racing that names need. Raises OSError."""
    family = socket.AF_INET6 if address.family == "ip6" else socket.AF_INET
    connecting = trio.socket.socket(family, socket.SOCK_STREAM)
    try:
        if own_port is not None:
            await own_port.bind(connecting)
        await connecting.connect((address.host, address.port))
        return trio.SocketStream(connecting)
    except BaseException:
        # Cancelled too, where another address was faster: no caller has the socket yet.
        connecting.close()
        raise


async def meet_tcp(address: TcpAddress, own_port: OwnPort) -> TcpStream:
    """Dial a number from our port and from no other, so that the dial of the other end may meet
    it. Raises OSError. The caller bounds the time."""
    return TcpStream(await _connect(address, own_port), from_own_port=True)


async def dial_tcp(address: TcpAddress, own_port: OwnPort | None = None) -> TcpStream:
    """Raises SwarmException. The caller bounds the time.

    With `own_port` the connection comes from there, if none from there to that address is taken.
    """
    try:
        if address.ip is None:
            return TcpStream(await trio.open_tcp_stream(address.host, address.port))
        if own_port is not None:
            try:
                return TcpStream(await _connect(address, own_port), from_own_port=True)
            except OSError as error:
                if error.errno not in TAKEN:
                    raise
        return TcpStream(await _connect(address, None))
    except OSError as error:
        # trio's own says that all attempts failed; how is in the group that is its cause.
        attempts = getattr(error.__cause__, "exceptions", (error,))
        # A name that is not found has a number of the resolver, which is negative.
        why = (os.strerror(x.errno or 0) if (x.errno or 0) > 0 else str(x) for x in attempts)
        raise SwarmException("; ".join(dict.fromkeys(why))) from error


def rest_of(pieces: Sequence[bytes | memoryview], sent: int) -> list[bytes | memoryview]:
    """What is left of bytes in several pieces once so many were taken."""
    if sent == sum(map(len, pieces)):
        return []
    for index, piece in enumerate(pieces):
        if sent < len(piece):
            return [memoryview(piece)[sent:], *pieces[index + 1 :]]
        sent -= len(piece)
    return []
