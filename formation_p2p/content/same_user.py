"""Content between the nodes of one user on one machine: a descriptor goes over, not a byte.

Each node listens on sockets of the abstract namespace (unix(7)), which have the kind of content,
the user and the peer in their names. A reader keeps one connection to each owner. What goes over it
are messages, and descriptors of files with them.

Any process of the machine may take the name of a socket, so that both ends begin with proof of
which peers they are: the reader says a nonce; the owner signs that, and says a nonce of its own;
the reader signs this, for that owner. Both ends see, too, that the other is a process of their own
user, and no task. For the trio thread.
"""

from __future__ import annotations

import array
import logging
import os
import secrets
import socket as sockets
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

import trio

from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.core.identity import (
    Identity,
    PeerId,
    is_signed_by,
    peer_id_from_bytes,
    peer_id_to_bytes,
)
from formation_p2p.machine import platform
from formation_p2p.machine.unix_socket import is_beside_us
from formation_p2p.net.transport.tcp import next_client

log = logging.getLogger(__name__)

_T = TypeVar("_T")

# The peer is on this machine: it answers at once, or its node is stopped.
ANSWER_S: Final = 5.0
# An owner that was not asked for so long, and of which nothing is read, is connected to again when
# it is asked.
IDLE_S: Final = 10.0
NONCE_BYTES: Final = 16
SIGNATURE_BYTES: Final = 64
# The answer to a reader's nonce: the signature, and a nonce of the owner's own.
GREETING_BYTES: Final = SIGNATURE_BYTES + NONCE_BYTES
# What a reader says to that: its signature, and its peer id.
_MAX_PROOF_BYTES: Final = SIGNATURE_BYTES + 64
_DESCRIPTOR_BYTES: Final = array.array("i").itemsize


class NotLocal(Exception):
    """The owner is not on this machine, or not of this user, or does not answer: it is to be asked
    over the network."""


def address_of(kind: str, peer: PeerId) -> str:
    return f"\0formation/{kind}/{os.geteuid()}/{peer}"


def owner_signs(kind: str, nonce: bytes) -> bytes:
    """Neither this signature nor the reader's is of use as the other, or for another kind."""
    return f"formation {kind} blobs: owner\0".encode() + nonce


def reader_signs(kind: str, owner: PeerId, nonce: bytes) -> bytes:
    """For this owner alone, so that no owner hands the proof on to another."""
    return f"formation {kind} blobs: reader\0".encode() + peer_id_to_bytes(owner) + nonce


class ContentListener:
    """Takes connections of `most` readers at once."""

    def __init__(self, kind: str, identity: Identity, most: int, answer_s: float) -> None:
        self._kind = kind
        self._identity = identity
        self._most = most
        self._answer_s = answer_s
        self.connected = 0

    async def serve(
        self, talk: Callable[[sockets.socket, PeerId], Awaitable[None]], otherwise: str
    ) -> None:
        """Until cancelled: `talk`, with each connection and the peer that has proven to be at its
        other end. The connection is closed then. Where the socket cannot be had, nothing is served,
        and the log says what happens `otherwise`."""
        bound = sockets.socket(sockets.AF_UNIX, sockets.SOCK_SEQPACKET)
        try:
            bound.bind(address_of(self._kind, self._identity.peer_id))
            bound.listen(self._most)
        except OSError as error:
            bound.close()
            log.warning("%s: %s", otherwise, error)
            return
        with trio.socket.from_stdlib_socket(bound) as listener:
            async with trio.open_nursery() as nursery:
                while True:
                    accepted = await next_client(listener)
                    connection = sockets.socket(fileno=accepted.detach())
                    connection.setblocking(False)
                    if self.connected >= self._most or not is_beside_us(connection):
                        connection.close()
                        continue
                    self.connected += 1
                    nursery.start_soon(self._serve, talk, connection)

    async def _serve(
        self,
        talk: Callable[[sockets.socket, PeerId], Awaitable[None]],
        connection: sockets.socket,
    ) -> None:
        try:
            with connection:
                with trio.fail_after(self._answer_s):
                    reader = await self._greet(connection)
                if reader is not None:
                    await talk(connection, reader)
        except (OSError, ProtocolViolation, ValueError, trio.TooSlowError) as error:
            log.debug("a reader on this machine is gone: %s", error)
        finally:
            self.connected -= 1

    async def _greet(self, connection: sockets.socket) -> PeerId | None:
        """Whose connection it is; None for anyone who does not prove it. Raises OSError,
        ValueError."""
        nonce = await received(connection, NONCE_BYTES + 1)
        if len(nonce) != NONCE_BYTES:
            return None
        own = secrets.token_bytes(NONCE_BYTES)
        connection.send(self._identity.sign(owner_signs(self._kind, nonce)) + own)
        proof = await received(connection, _MAX_PROOF_BYTES)
        peer = peer_id_from_bytes(proof[SIGNATURE_BYTES:])
        proven = reader_signs(self._kind, self._identity.peer_id, own)
        return peer if is_signed_by(peer, proof[:SIGNATURE_BYTES], proven) else None


class Owner:
    """A node that is asked for content. Ask in turn, under `turn`."""

    def __init__(self, kind: str, identity: Identity, peer: PeerId) -> None:
        self.peer = peer
        self.turn = trio.Lock()
        self.used_s = 0.0
        self.reading = 0  # of what has come by this connection
        self.silent_until_s = 0.0  # it is not asked before
        self.connection: sockets.socket | None = None
        self._kind = kind
        self._identity = identity

    @property
    def is_used(self) -> bool:
        return self.reading > 0 or self.turn.locked()

    async def ask(self, ask: Callable[[sockets.socket], Awaitable[_T]]) -> _T:
        """What `ask` gets over the connection, or over a new one where the node there has ended:
        another of the same peer may be there. Raises OSError, NotLocal."""
        if self.connection is not None:
            try:
                return await ask(self.connection)
            except OSError:
                self.hang_up()
        self.connection = connection = await self._connected()
        try:
            return await ask(connection)
        except OSError:
            self.hang_up()
            raise

    def hang_up(self) -> None:
        connection, self.connection = self.connection, None
        self.reading = 0
        if connection is not None:
            trio.lowlevel.notify_closing(connection.fileno())
            connection.close()

    async def _connected(self) -> sockets.socket:
        connection = sockets.socket(sockets.AF_UNIX, sockets.SOCK_SEQPACKET)
        try:
            connection.setblocking(False)
            connection.connect(address_of(self._kind, self.peer))
            if not is_beside_us(connection):
                raise NotLocal("the socket is another user's, or a task's")
            nonce = secrets.token_bytes(NONCE_BYTES)
            connection.send(nonce)
            greeting = await received(connection, GREETING_BYTES + 1)
            signature, its = greeting[:SIGNATURE_BYTES], greeting[SIGNATURE_BYTES:]
            if not is_signed_by(self.peer, signature, owner_signs(self._kind, nonce)):
                raise NotLocal("another process has the name of its socket")
            me = self._identity
            proof = me.sign(reader_signs(self._kind, self.peer, its))
            connection.send(proof + peer_id_to_bytes(me.peer_id))
        except BaseException:  # a descriptor is not left open, whatever ends this
            connection.close()
            raise
        return connection


class Owners:
    """The owners that a reader has asked: `most` at once."""

    def __init__(self, kind: str, identity: Identity, most: int) -> None:
        self._kind = kind
        self._identity = identity
        self._most = most
        self._owners: dict[PeerId, Owner] = {}  # that which was asked last at the end

    def __len__(self) -> int:
        return len(self._owners)

    def of(self, peer: PeerId) -> Owner:
        """The one that is asked now."""
        owner = self._owners.pop(peer, None) or Owner(self._kind, self._identity, peer)
        self.trim(self._most - 1)
        self._owners[peer] = owner
        owner.used_s = trio.current_time()
        return owner

    def trim(self, most: int | None = None) -> None:
        """Hang up on those that were not asked for long, and those past the bound."""
        due_s = trio.current_time() - IDLE_S
        bound = self._most if most is None else most
        for peer, owner in [*self._owners.items()]:
            if not owner.is_used and (owner.used_s <= due_s or len(self._owners) > bound):
                self._owners.pop(peer).hang_up()

    def close(self) -> None:
        """What is read then stays readable."""
        for owner in self._owners.values():
            owner.hang_up()
        self._owners.clear()


async def received(connection: sockets.socket, most: int) -> bytes:
    """The next message; empty at the end. Raises OSError."""
    while True:
        try:
            return connection.recv(most)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(connection.fileno())


def send_with_file(connection: sockets.socket, message: bytes, file: int) -> None:
    """Raises OSError, also where the other end does not take it now."""
    files = array.array("i", [file]).tobytes()
    connection.sendmsg([message], [(sockets.SOL_SOCKET, sockets.SCM_RIGHTS, files)])


async def received_with_file(connection: sockets.socket, most: int) -> tuple[bytes, int | None]:
    """The next message, and the descriptor that came along, which is the caller's to close. Raises
    OSError, also where more than one came."""
    space = sockets.CMSG_SPACE(_DESCRIPTOR_BYTES)
    while True:
        try:
            message, ancillary, _, _ = connection.recvmsg(most, space, platform.FILES_CLOSE_ON_EXEC)
            break
        except BlockingIOError:
            await trio.lowlevel.wait_readable(connection.fileno())
    files = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (sockets.SOL_SOCKET, sockets.SCM_RIGHTS):
            files.frombytes(data[: len(data) - len(data) % _DESCRIPTOR_BYTES])
    if len(files) > 1:
        for file in files:
            os.close(file)
        raise OSError("more than one descriptor came")
    return message, files[0] if files else None
