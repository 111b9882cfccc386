"""The little of D-Bus that it takes to call a method of the system bus, and to hear a signal.

Source: D-Bus Specification 0.43, "Message Format" and "Authentication Protocol".
"""

from __future__ import annotations

import array
import os
import socket
import struct
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import trio

SYSTEM_BUS: Final = Path("/run/dbus/system_bus_socket")
CALL, RETURN, ERROR, SIGNAL = 1, 2, 3, 4
_FIXED: Final = struct.Struct("<cBBBIII")
# Of a header field: which it is, and the type of its value.
_PATH, _INTERFACE, _MEMBER, _REPLY_TO, _DESTINATION, _SIGNATURE = 1, 2, 3, 5, 6, 8
_TYPES: Final = {_PATH: b"o", _INTERFACE: b"s", _MEMBER: b"s", _DESTINATION: b"s", _SIGNATURE: b"g"}
# What is asked for here is answered in some hundred bytes.
MAX_MESSAGE_BYTES: Final = 64 * 1024
_MAX_LINE_BYTES: Final = 1024
_MAX_FDS: Final = 4
_MAX_SIGNALS: Final = 16


class BusError(OSError):
    """The bus refuses, or does not speak D-Bus."""


@dataclass(frozen=True, slots=True)
class Message:
    kind: int
    reply_to: int
    interface: str
    member: str
    body: bytes
    fds: tuple[int, ...] = ()


def pack_call(
    serial: int, destination: str, path: str, interface: str, member: str, *texts: str
) -> bytes:
    """A call whose arguments are texts, in little-endian."""
    fields = {_PATH: path, _INTERFACE: interface, _MEMBER: member, _DESTINATION: destination}
    header = bytearray()
    for code, value in fields.items():
        _pad(header, 8)
        header += bytes((code, 1)) + _TYPES[code] + b"\0" + _text(header, 4, value)
    body = bytearray()
    for each in texts:
        _pad(body, 4)
        body += _text(body, 0, each)
    if texts:
        _pad(header, 8)
        header += bytes((_SIGNATURE, 1)) + b"g\0" + bytes((len(texts),)) + b"s" * len(texts) + b"\0"
    fixed = _FIXED.pack(b"l", CALL, 0, 1, len(body), serial, len(header))
    _pad(header, 8)
    return fixed + bytes(header) + bytes(body)


def _text(before: bytearray, more: int, value: str) -> bytes:
    """Aligned to 4, where `more` bytes come in between."""
    encoded = value.encode()
    gap = -(len(before) + more) % 4
    return bytes(gap) + struct.pack("<I", len(encoded)) + encoded + b"\0"


def _pad(data: bytearray, to: int) -> None:
    data += bytes(-len(data) % to)


def parse(header: bytes, body: bytes, kind: int, fds: tuple[int, ...] = ()) -> Message:
    """Of the fields of a header. Raises BusError."""
    found: dict[int, str | int] = {}
    at = 0
    try:
        while at < len(header):
            at += -at % 8
            code, length = header[at], header[at + 1]
            kind_of = header[at + 2 : at + 2 + length]
            at += 3 + length
            if kind_of == b"g":
                size = header[at]
                at += 1
            else:
                at += -at % 4
                (size,) = struct.unpack_from("<I", header, at)
                at += 4
            if kind_of == b"u":
                found[code] = size
                continue
            found[code] = header[at : at + size].decode()
            at += size + 1
    except (struct.error, IndexError, UnicodeDecodeError) as problem:
        raise BusError(f"the bus says what is no message: {problem}") from problem
    reply_to = found.get(_REPLY_TO, 0)
    interface, member = str(found.get(_INTERFACE, "")), str(found.get(_MEMBER, ""))
    return Message(kind, reply_to if type(reply_to) is int else 0, interface, member, body, fds)


class Bus:
    """A connection with a bus. `close` it."""

    def __init__(self, connection: trio.socket.SocketType) -> None:
        self._connection = connection
        self._received = bytearray()
        self._fds: list[int] = []
        self._serial = 0
        self._signals: deque[Message] = deque(maxlen=_MAX_SIGNALS)

    @classmethod
    async def connect(cls, path: Path = SYSTEM_BUS) -> Self:
        """As this user. Raises OSError."""
        connection = trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        bus = cls(connection)
        try:
            await connection.connect(str(path))
            user = str(os.getuid()).encode().hex()
            await bus._said(f"\0AUTH EXTERNAL {user}\r\n".encode(), b"OK")
            await bus._said(b"NEGOTIATE_UNIX_FD\r\n", b"AGREE_UNIX_FD")
            await connection.send(b"BEGIN\r\n")
            own = "org.freedesktop.DBus"
            await bus.call(own, "/org/freedesktop/DBus", own, "Hello")
        except BaseException:
            bus.close()
            raise
        return bus

    def close(self) -> None:
        self._connection.close()
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()

    async def call(
        self, destination: str, path: str, interface: str, member: str, *texts: str
    ) -> Message:
        """The answer; signals that come before it are kept. Raises OSError."""
        self._serial += 1
        serial = self._serial
        data = pack_call(serial, destination, path, interface, member, *texts)
        while data:
            data = data[await self._connection.send(data) :]
        while True:
            message = await self._next()
            if message.kind == SIGNAL:
                self._signals.append(message)
            elif message.reply_to == serial and message.kind == RETURN:
                return message
            elif message.reply_to == serial:
                raise BusError(f"{member} is refused")

    async def signal(self) -> Message:
        """The next one. Raises OSError."""
        while not self._signals:
            message = await self._next()
            if message.kind == SIGNAL:
                self._signals.append(message)
        return self._signals.popleft()

    async def _said(self, line: bytes, expected: bytes) -> None:
        await self._connection.send(line)
        while b"\r\n" not in self._received:
            if len(self._received) > _MAX_LINE_BYTES:
                raise BusError("the bus says what is no D-Bus")
            await self._receive()
        said, _, rest = bytes(self._received).partition(b"\r\n")
        self._received = bytearray(rest)
        if not said.startswith(expected):
            raise BusError(f"the bus refuses: {said.decode(errors='replace')}")

    async def _next(self) -> Message:
        await self._until(_FIXED.size)
        order, kind, _, _, body_bytes, _, header_bytes = _FIXED.unpack_from(self._received)
        if order != b"l" or body_bytes + header_bytes > MAX_MESSAGE_BYTES:
            raise BusError("the bus says what is no message of ours")
        start = _FIXED.size + header_bytes + -header_bytes % 8
        await self._until(start + body_bytes)
        header = bytes(self._received[_FIXED.size : _FIXED.size + header_bytes])
        body = bytes(self._received[start : start + body_bytes])
        del self._received[: start + body_bytes]
        fds, self._fds = tuple(self._fds), []
        return parse(header, body, kind, fds)

    async def _until(self, size: int) -> None:
        while len(self._received) < size:
            await self._receive()

    async def _receive(self) -> None:
        room = socket.CMSG_SPACE(_MAX_FDS * array.array("i").itemsize)
        data, told, _, _ = await self._connection.recvmsg(4096, room)
        for level, kind, content in told:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                found = array.array("i")
                found.frombytes(content[: len(content) - len(content) % found.itemsize])
                self._fds += found
        if not data:
            raise BusError("the bus has closed")
        self._received += data
