"""Dask's messages over the streams of a gang: the comm backend `formation://`.

Frames, sharding and what is done in other threads are Dask's own, those of its TCP. A stream is a
unix socket here, so that it works in a sandbox without a network. Between machines the node's
connections carry it, which are authenticated and encrypted: Dask's `Security` is refused.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import os
import random
import socket
import struct
import weakref
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import dask
from distributed.comm.addressing import parse_host_port, unparse_host_port
from distributed.comm.core import Comm, CommClosedError, Connector
from distributed.comm.registry import Backend, backends
from distributed.comm.tcp import (
    MAX_BUFFER_SIZE,
    TCP,
    BaseTCPListener,
    _close_comm,
    convert_stream_closed_error,
    read_bytes_rw,
)
from distributed.comm.utils import OFFLOAD_THRESHOLD
from distributed.protocol.utils import unpack_frames
from distributed.utils import nbytes
from tornado.iostream import IOStream, StreamClosedError
from tornado.tcpserver import TCPServer

if TYPE_CHECKING:
    from collections.abc import Callable
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

# Where a process stands in a gang, and how it reaches a service of a member from there.
#
# A member has a folder of its lease, which `FORMATION_GANG` names: the unix socket `connect` leads
# to any member's services, and what listens on a unix socket below `services/` is such a service.
# The owner of a gang has a folder with the socket `connect` alone.
#
# An address is `formation://m<rank>.<gang id>:<port>`: host and port are what Dask takes addresses
# apart into, and each member is a host of its own to it. The service is `dask-<port>`. A loopback
# address is this very member.

GANG: Final = "FORMATION_GANG"
RANK: Final = "FORMATION_RANK"
GANG_ID: Final = "FORMATION_GANG_ID"
CONNECT: Final = "connect"
SERVICES: Final = "services"
# Those of other programs end below, and the kernel has them for itself.
_FIRST_PORT: Final = 40_000
_LAST_PORT: Final = 65_535
# A member has a few listeners: that all of these are taken does not happen.
_DRAWN_PORTS: Final = 100
# A queue of a unix socket that is full refuses at once, where TCP would wait.
_FULL_S: Final = 0.005


@dataclass(frozen=True, slots=True)
class Place:
    """`folder` is that of the lease, `host` the name of the member, or `owner.<gang id>`. `loads`
    is what reads messages from there, in the place of Dask's own."""

    folder: Path
    host: str
    loads: Callable[[list[Any], bool], Any] | None = None

    @contextmanager
    def _below(self, *names: str) -> Iterator[str]:
        """A path that is short whatever the folder is called: the kernel takes 107 bytes."""
        fd = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            yield "/".join((f"/proc/self/fd/{fd}", *names))
        finally:
            os.close(fd)

    async def connected(self, *names: str) -> socket.socket:
        """A connection to a unix socket of the folder. Raises OSError."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.setblocking(False)
            with self._below(*names) as path:
                while True:
                    try:
                        connection.connect(path)
                    except BlockingIOError:
                        await asyncio.sleep(_FULL_S)
                    else:
                        return connection
        except BaseException:
            connection.close()
            raise

    def listening(self, port: int, backlog: int) -> tuple[socket.socket, int]:
        """A socket that listens as a service, and its port: any where `port` is 0. Raises OSError
        where a living process listens there."""
        drawn = (random.randint(_FIRST_PORT, _LAST_PORT) for _ in range(_DRAWN_PORTS))
        ports = (port,) if port else drawn
        for each in ports:
            listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                self._bind(listener, each, replace=bool(port))
                listener.listen(backlog)
                listener.setblocking(False)
            except OSError as problem:
                listener.close()
                if port or problem.errno != errno.EADDRINUSE:
                    raise
            else:
                return listener, each
        raise OSError(errno.EADDRINUSE, f"the ports of {self.folder / SERVICES} are taken")

    def forget(self, port: int) -> None:
        """After a listener was closed."""
        (self.folder / SERVICES / service_of(port)).unlink(missing_ok=True)

    def _bind(self, listener: socket.socket, port: int, *, replace: bool) -> None:
        with self._below(SERVICES, service_of(port)) as path:
            try:
                listener.bind(path)
            except OSError as problem:
                if not replace or problem.errno != errno.EADDRINUSE or _answers(path):
                    raise
                # What a process left that was killed.
                Path(path).unlink()
                listener.bind(path)


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return True


# Of the owner's process, by gang id: where it reaches the members of its gangs.
owned: Final[dict[str, Place]] = {}


def own_place() -> Place:
    """Of the member that this process runs in. Raises RuntimeError outside a gang."""
    folder, rank = os.environ.get(GANG), os.environ.get(RANK, "0")
    if not folder:
        raise RuntimeError(
            "formation:// listens only in a task of a gang; have node.dask(...) start the workers"
        )
    return Place(Path(folder), f"m{rank}.{os.environ.get(GANG_ID, 'local')}")


def place_for(host: str) -> Place:
    """From where this process reaches a host. Raises ConnectionError where it cannot."""
    place = owned.get(host.partition(".")[2])
    if place is None and not os.environ.get(GANG):
        raise ConnectionError(f"the cluster of {host} is closed, or that of another process")
    return place or own_place()


def service_of(port: int) -> str:
    return f"dask-{port}"


def rank_of(host: str) -> int:
    """Raises ValueError."""
    name = host.partition(".")[0]
    if not name.startswith("m") or not name[1:].isdecimal():
        raise ValueError(f"{host!r} is not the host of a member, such as m0.<gang id>")
    return int(name[1:])


def is_any(host: str) -> bool:
    """Whether it stands for all addresses of a machine."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return False


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


SCHEME: Final = "formation"
PREFIX: Final = f"{SCHEME}://"
# The family of serializers that describes values as the results of calls are: see plain.py.
MARKED: Final = "formation"
# A line of the streams' protocol, and the line with the caller's host.
_MAX_LINE_BYTES: Final = 512
# The caller writes its host at once; what says nothing is given up.
_CALLER_S: Final = 10.0


class FormationComm(TCP):  # type: ignore[misc]
    """One stream of a gang."""

    def __init__(
        self,
        stream: IOStream,
        local_addr: str,
        peer_addr: str,
        deserialize: bool = True,
        loads: Callable[[list[Any], bool], Any] | None = None,
    ) -> None:
        # As TCP's own, without the options of TCP, which a unix socket does not have.
        Comm.__init__(self, deserialize=deserialize)
        self._closed = False
        self._local_addr = local_addr
        self._peer_addr = peer_addr
        self.stream = stream
        self._finalizer = weakref.finalize(self, self._get_finalizer())
        self._finalizer.atexit = False
        self._extra: dict[str, Any] = {}
        self._loads = loads
        stream.set_close_callback(partial(_close_comm, weakref.ref(self)))

    async def write(self, msg: Any, serializers: Any = None, on_error: str = "message") -> int:
        """As TCP's own. An owner that reads answers as data asks for them as that."""
        if self._loads is not None and isinstance(msg, dict) and msg.get("reply"):
            msg = {"serializers": (MARKED,), **msg}
        written: int = await super().write(msg, serializers=serializers, on_error=on_error)
        return written

    async def read(self, deserializers: Any = None) -> Any:
        """As TCP's own, by what reads messages here."""
        loads, deserialize = self._loads, self.deserialize
        if loads is None:
            return await super().read(deserializers)
        # Nothing of it is read there, but its frames.
        frames = await self._frames()
        if sum(map(nbytes, frames)) > OFFLOAD_THRESHOLD:
            return await asyncio.to_thread(loads, frames, deserialize)
        return loads(frames, deserialize)

    async def _frames(self) -> list[Any]:
        stream = self.stream
        if stream is None:
            raise CommClosedError
        try:
            (size,) = struct.unpack("Q", await stream.read_bytes(8))
            frames, sizes = unpack_frames(await read_bytes_rw(stream, size), partial=True)
            frames += [await read_bytes_rw(stream, each) for each in sizes]
        except StreamClosedError as error:
            self.stream, self._closed = None, True
            convert_stream_closed_error(self, error)
        except BaseException:
            self.abort()
            raise
        return list(frames)


def _refuse(security: dict[str, Any]) -> None:
    """What Dask's Security asks for. Raises RuntimeError."""
    if security.get("ssl_context") is not None:
        raise RuntimeError(
            f"{PREFIX} takes no Security: the nodes' connections are authenticated and encrypted; "
            "leave out security="
        )


def _caller(host: str) -> str:
    """The address of an end that called: nothing listens there."""
    return f"{PREFIX}{host}:0"


class FormationConnector(Connector):  # type: ignore[misc]
    async def connect(
        self, address: str, deserialize: bool = True, **connection_args: Any
    ) -> FormationComm:
        """Raises CommClosedError where no such member or service answers, ValueError without a
        port, RuntimeError."""
        _refuse(connection_args)
        host, port = parse_host_port(address)
        place = place_for(host)
        here = is_loopback(host) or host == place.host
        names = (SERVICES, service_of(port)) if here else (CONNECT,)
        local = "127.0.0.1" if is_loopback(host) else place.host
        try:
            asked = b"" if here else f"{rank_of(host)} {service_of(port)}\n".encode()
        except ValueError as error:
            raise CommClosedError(str(error)) from error
        stream = IOStream(await place.connected(*names), max_buffer_size=MAX_BUFFER_SIZE)
        try:
            if asked:
                stream.write(asked)
                answer = await stream.read_until(b"\n", max_bytes=_MAX_LINE_BYTES)
                if answer != b"ok\n":
                    why = answer.decode(errors="replace").strip()
                    raise CommClosedError(f"{PREFIX}{address} refused: {why}")
            stream.write(local.encode() + b"\n")
        except StreamClosedError as error:
            convert_stream_closed_error(self, error)
        except BaseException:
            stream.close()
            raise
        return FormationComm(stream, _caller(local), PREFIX + address, deserialize, place.loads)


class FormationListener(BaseTCPListener):  # type: ignore[misc]
    """A service of this member."""

    prefix = PREFIX
    comm_class = FormationComm
    encrypted = True
    tcp_server: Any

    def _get_server_args(self, **connection_args: Any) -> dict[str, Any]:
        _refuse(connection_args)
        return {}

    async def start(self) -> None:
        """Raises OSError, RuntimeError outside a gang."""
        self._place = own_place()
        backlog = int(dask.config.get("distributed.comm.socket-backlog"))
        listener, port = self._place.listening(self.port, backlog)
        self.bound_address = (self.ip or self._place.host, port)
        self.tcp_server = TCPServer(max_buffer_size=MAX_BUFFER_SIZE)
        self.tcp_server.handle_stream = self._handle_stream
        self.tcp_server.add_sockets([listener])

    def stop(self) -> None:
        if self.tcp_server is not None:
            self._place.forget(self.bound_address[1])
        super().stop()

    async def _handle_stream(self, stream: IOStream, address: object) -> None:
        try:
            line = stream.read_until(b"\n", max_bytes=_MAX_LINE_BYTES)
            caller = (await asyncio.wait_for(line, _CALLER_S)).decode("ascii").strip()
        except (StreamClosedError, TimeoutError, UnicodeDecodeError):
            stream.close()
            return
        if self.tcp_server is None:  # stopped meanwhile: its caller would wait for ever
            stream.close()
            return
        local = self.listen_address
        comm = FormationComm(stream, local, _caller(caller), self.deserialize)
        comm.allow_offload = self.allow_offload
        try:
            await self.on_connection(comm)
        except CommClosedError:
            return
        await self.comm_handler(comm)

    def get_host_port(self) -> tuple[str, int]:
        self._check_started()
        host, port = self.bound_address
        return host, port

    @property
    def contact_address(self) -> str:
        """Under which other members reach it, also where it was told to listen on all addresses."""
        host, port = self.get_host_port()
        host = self._place.host if is_any(host) else host
        return PREFIX + str(unparse_host_port(host, port))


class FormationBackend(Backend):  # type: ignore[misc]
    """Of the scheme `formation`, by the entry point `distributed.comm.backends`."""

    def get_connector(self) -> FormationConnector:
        return FormationConnector()

    def get_listener(
        self, loc: str, handle_comm: Any, deserialize: bool, **connection_args: Any
    ) -> FormationListener:
        return FormationListener(loc, handle_comm, deserialize, **connection_args)

    def get_address_host(self, loc: str) -> str:
        return str(parse_host_port(loc, 0)[0])

    def get_address_host_port(self, loc: str) -> tuple[str, int]:
        host, port = parse_host_port(loc)
        return host, port

    def resolve_address(self, loc: str) -> str:
        """Raises ValueError without a port: by that Dask tells an address from a host."""
        host, port = parse_host_port(loc)
        return str(unparse_host_port("127.0.0.1" if host == "localhost" else host, port))

    def get_local_address_for(self, loc: str) -> str:
        host = self.get_address_host(loc)
        return host if is_loopback(host) else own_place().host


# The entry point is for processes that import nothing of this package by themselves.
backends.setdefault(SCHEME, FormationBackend())
