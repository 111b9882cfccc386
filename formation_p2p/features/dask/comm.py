"""Dask's messages over the streams of a gang: the comm backend `formation://`.

Frames, sharding and what is done in other threads are Dask's own, those of its TCP. A stream is a
unix socket here, so that it works in a sandbox without a network. Between machines the node's
connections carry it, which are authenticated and encrypted: Dask's `Security` is refused.
"""

from __future__ import annotations

import asyncio
import struct
import weakref
from functools import partial
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

from formation_p2p.features.dask.place import (
    CONNECT,
    SERVICES,
    is_any,
    is_loopback,
    own_place,
    place_for,
    rank_of,
    service_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

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
