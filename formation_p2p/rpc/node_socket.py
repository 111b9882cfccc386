"""The socket of a running node, for other programs of its user (wire.py): a table of methods, into
which each part of the node enters its own.

A method is answered on the node's thread, or handed over to whoever answers it elsewhere. All is
bounded: clients, their questions, what is kept for a client that reads slowly. The node never waits
for any of them.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import trio

from formation_p2p.core.errors import FormationError, InvalidInput
from formation_p2p.machine.unix_socket import is_beside_us, reachable
from formation_p2p.net.transport.tcp import serve_clients
from formation_p2p.peer.shell import Shell
from formation_p2p.rpc.values import arguments_of
from formation_p2p.rpc.wire import (
    EXCHANGE_S,
    LENGTH,
    MAX_GREETING_BYTES,
    VERSION,
    Message,
    decoded,
    encoded,
    error_to_wire,
    length_of,
)

log = logging.getLogger(__name__)

# A person's scripts, which may all begin at once; each is here until its question has been asked.
MAX_CLIENTS: Final = 64
# Not yet accepted: with a burst of them the kernel refuses some, before they could be told why.
BACKLOG: Final = 256
# A job, a service: by name.
MAX_QUESTION_BYTES: Final = 1024


@dataclass(frozen=True, slots=True)
class Method:
    """`handler` is called with the shell and what its further parameters declare, and returns a
    document, or several, one after the other. `at_once` clients may have it asked."""

    handler: Callable[..., Any]
    at_once: int = MAX_CLIENTS


# Takes over a connection whose client has been greeted, on the node's thread; of this very version.
TakeOver = Callable[[socket.socket], None]


class NodeSocket:
    """The socket, from the node's start to its end; `serve` with each new shell."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._methods: dict[str, Method | TakeOver] = {}
        self._asked: dict[str, int] = {}
        self._listener: socket.socket | None = None

    def open(self) -> None:
        """A node runs just as well without: where there can be no socket, that is logged."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            # Its last owner is gone: the caller has the lock on this identity.
            self.path.unlink(missing_ok=True)
            with reachable(self.path) as name:
                listener.bind(name)
            self.path.chmod(0o600)
            listener.listen(BACKLOG)
        except OSError as error:
            listener.close()
            log.warning("other programs cannot see this node: %s: %s", self.path, error)
        else:
            self._listener = listener

    def close(self) -> None:
        if self._listener is not None:
            self._listener.close()
            self.path.unlink(missing_ok=True)

    def enter(self, methods: Mapping[str, Method | TakeOver]) -> None:
        """On any thread, as `remove`."""
        twice = self._methods.keys() & methods.keys()
        assert not twice, f"{twice} are there"
        self._methods |= methods

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            del self._methods[name]

    async def serve(self, shell: Shell) -> None:
        """Until cancelled."""
        if self._listener is not None:
            await serve_clients(self._listener, partial(self._greet, shell), MAX_CLIENTS)

    async def _greet(self, shell: Shell, client: trio.SocketStream) -> None:
        if not is_beside_us(client.socket):
            return
        try:
            greeting = await _told(client, MAX_GREETING_BYTES)
            name = str(greeting.get("ask"))
            method = self._methods.get(name)
            if not isinstance(method, Method) and greeting.get("formation") != VERSION:
                method = None
            await _say(client, {"formation": VERSION, "has": method is not None})
            if isinstance(method, Method):
                await self._answer(method, name, shell, client)
            elif method is not None:
                method(socket.socket(fileno=os.dup(client.socket.fileno())))
        except* (trio.BrokenResourceError, trio.TooSlowError, EOFError, InvalidInput):
            # A star: a client of many answers is served by two tasks, whose end is a group.
            log.debug("a client has left, reads too slowly, or makes no sense")
        except* OSError as error:
            log.warning("a client cannot be handed over: %s", error)

    async def _answer(
        self, method: Method, name: str, shell: Shell, client: trio.SocketStream
    ) -> None:
        if self._asked.get(name, 0) >= method.at_once:
            return
        self._asked[name] = self._asked.get(name, 0) + 1
        try:
            question = await _told(client, MAX_QUESTION_BYTES)
            found = method.handler(shell, **arguments_of(method.handler, question, given=1))
            if isinstance(found, AsyncGenerator):
                await _say_each(client, found)
            else:
                await _say(client, {"is": await found})
        except FormationError as error:
            await _say(client, {"error": error_to_wire(error)})
        finally:
            self._asked[name] -= 1


async def _told(client: trio.SocketStream, max_bytes: int) -> Message:
    """Not a byte more is read than the message has: what follows may be another's to read."""
    with trio.fail_after(EXCHANGE_S):
        head = await _exactly(client, LENGTH.size)
        return decoded(await _exactly(client, length_of(head, max_bytes)))


async def _exactly(client: trio.SocketStream, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        if not (more := await client.receive_some(size - len(data))):
            raise EOFError
        data += more
    return bytes(data)


async def _say(client: trio.SocketStream, message: Message) -> None:
    with trio.fail_after(EXCHANGE_S):
        await client.send_all(encoded(message))


async def _say_each(client: trio.SocketStream, documents: AsyncGenerator[object, Any]) -> None:
    """A client that is told several says nothing more: what it sends, or its end, ends it."""

    async def until_left(scope: trio.CancelScope) -> None:
        await client.receive_some(1)
        scope.cancel()

    async with trio.open_nursery() as nursery, aclosing(documents):
        nursery.start_soon(until_left, nursery.cancel_scope)
        async for each in documents:
            await _say(client, {"is": each})
        nursery.cancel_scope.cancel()
