"""A connection with a message bus, for one that calls methods and hears signals.

jeepney packs and parses the messages (D-Bus Specification 0.43). Its own connections are not used:
they wait for ever where the bus ends while they authenticate, and take messages of any size.
"""

from __future__ import annotations

import itertools
from collections import deque
from pathlib import Path
from typing import Final, Self

import trio
from jeepney import DBusAddress, HeaderFields, Message, MessageType, new_method_call
from jeepney.auth import BEGIN, AuthenticationError, Authenticator
from jeepney.bus_messages import message_bus
from jeepney.fds import FileDescriptor, fds_buf_size
from jeepney.low_level import Parser

SYSTEM_BUS: Final = Path("/run/dbus/system_bus_socket")
# What is asked for here is answered in some hundred bytes.
MAX_MESSAGE_BYTES: Final = 64 * 1024
_READ_BYTES: Final = 4096
_MAX_SIGNALS: Final = 16


class BusError(OSError):
    """The bus refuses, or does not speak D-Bus."""


class Bus:
    """`close` it."""

    def __init__(self, connection: trio.socket.SocketType) -> None:
        self._connection = connection
        self._parser = Parser()
        self._files: list[FileDescriptor] = []
        self._serials = itertools.count(1)
        self._signals: deque[Message] = deque(maxlen=_MAX_SIGNALS)

    @classmethod
    async def connect(cls, path: Path = SYSTEM_BUS) -> Self:
        """As this user. Raises OSError."""
        connection = trio.socket.socket(trio.socket.AF_UNIX, trio.socket.SOCK_STREAM)
        bus = cls(connection)
        try:
            await connection.connect(str(path))
            authenticator = Authenticator(enable_fds=True)
            for line in authenticator:
                await bus._send(line)
                authenticator.feed(await bus._receive(_READ_BYTES))
            await bus._send(BEGIN)
            await bus._call(message_bus.Hello())
        except AuthenticationError as error:
            bus.close()
            raise BusError(f"the bus refuses: {error}") from error
        except BaseException:
            bus.close()
            raise
        return bus

    def close(self) -> None:
        self._connection.close()
        for file in (*self._files, *self._parser.fds):
            file.close()

    async def call(self, on: DBusAddress, method: str, *texts: str) -> Message:
        """The answer; signals that come before it are kept. Raises OSError."""
        return await self._call(new_method_call(on, method, "s" * len(texts) or None, texts))

    async def signal(self) -> Message:
        """The next one. Raises OSError."""
        while not self._signals:
            await self._next()
        return self._signals.popleft()

    async def _call(self, message: Message) -> Message:
        serial = next(self._serials)
        await self._send(message.serialise(serial))
        while True:
            answer = await self._next()
            if answer.header.fields.get(HeaderFields.reply_serial) != serial:
                continue
            if answer.header.message_type is MessageType.method_return:
                return answer
            raise BusError(f"{message.header.fields[HeaderFields.member]} is refused")

    async def _next(self) -> Message:
        """Any message. A signal is kept for `signal`. Raises OSError."""
        while (message := self._parsed()) is None:
            wanted = self._parser.bytes_desired()
            if wanted > MAX_MESSAGE_BYTES:
                raise BusError("the bus says what is no message of ours")
            self._parser.add_data(await self._receive(wanted), self._files)
            self._files.clear()
        if message.header.message_type is MessageType.signal:
            self._signals.append(message)
        return message

    def _parsed(self) -> Message | None:
        try:
            return self._parser.get_next_message()
        except Exception as problem:  # jeepney raises what the bytes happen to lead to
            raise BusError(f"the bus says what is no message: {problem!r}") from problem

    async def _receive(self, most: int) -> bytes:
        data, told, _, _ = await self._connection.recvmsg(most, fds_buf_size())
        self._files += FileDescriptor.from_ancdata(told)
        if not data:
            raise BusError("the bus has closed")
        return data

    async def _send(self, data: bytes) -> None:
        while data:
            data = data[await self._connection.send(data) :]
