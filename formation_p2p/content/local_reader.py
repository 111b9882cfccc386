"""Asks other nodes of this user on this machine for their private blobs: see local.py."""

from __future__ import annotations

import os
import secrets
import socket as sockets
import stat
from typing import Final

import trio

from formation_p2p.content.lent_blob import Lent
from formation_p2p.content.local import (
    ANSWER,
    ANSWER_S,
    ASK,
    BUSY,
    DOMAIN,
    DONE,
    KEPT,
    NONCE_BYTES,
    NOT_HERE,
    SAID,
    SIGNATURE_BYTES,
    address_of,
)
from formation_p2p.content.same_user import connected_to, received, received_with_file
from formation_p2p.core.errors import RemoteError
from formation_p2p.core.identity import PeerId, is_signed_by
from formation_p2p.machine.locks import acquired
from formation_p2p.workload.core.private_blob import NAME_BYTES, PrivateBlob

# Owners that are connected to at once. One that nothing was asked of for so long, and of which
# nothing is read, is connected to again when it is asked.
MAX_OWNERS: Final = 64
IDLE_S: Final = 10.0
_NO_NAME: Final = bytes(NAME_BYTES)
_NUMBERS: Final = 1 << 32


class NotLocal(Exception):
    """The owner is not on this machine, or not of this user, or does not answer."""


class Dropped(RemoteError):
    """The owner of a private blob does not have it any more."""


class LocalReader:
    """For the trio thread. `close` ends all connections: what is read then stays readable."""

    def __init__(self, answer_s: float = ANSWER_S) -> None:
        self._answer_s = answer_s
        self._owners: dict[PeerId, _Owner] = {}  # that which was asked last at the end

    def __len__(self) -> int:
        return len(self._owners)

    async def lend(self, blob: PrivateBlob) -> Lent:
        """Raises NotLocal; Dropped where its owner is here, and does not have it."""
        peer = blob.owner.peer_id
        owner = self._owners.pop(peer, None) or _Owner(peer)
        self._owners[peer] = owner
        if len(self._owners) > MAX_OWNERS:
            self._forget(next((p for p, x in self._owners.items() if not x.is_used), peer))
        owner.used_s = trio.current_time()
        try:
            with trio.fail_after(self._answer_s):
                return await owner.lend(blob)
        except (OSError, trio.TooSlowError, trio.ClosedResourceError) as error:
            raise NotLocal(str(error)) from error

    def trim(self) -> None:
        due_s = trio.current_time() - IDLE_S
        idle = [p for p, x in self._owners.items() if x.used_s <= due_s and not x.is_used]
        for peer in idle:
            self._forget(peer)

    def close(self) -> None:
        for peer in [*self._owners]:
            self._forget(peer)

    def _forget(self, peer: PeerId) -> None:
        self._owners.pop(peer).hang_up()


class _Owner:
    """One of them, and the connection to it."""

    def __init__(self, peer: PeerId) -> None:
        self.used_s = 0.0
        self._peer = peer
        self._turn = trio.Lock()  # for one that asks
        self._connection: sockets.socket | None = None
        self._numbers = 0
        self._reading = 0  # of what has come by this connection

    @property
    def is_used(self) -> bool:
        return self._reading > 0 or self._turn.locked()

    async def lend(self, blob: PrivateBlob) -> Lent:
        """As in LocalReader. Raises OSError."""
        await acquired(self._turn)
        try:
            return await self._lend(blob)
        finally:
            self._turn.release()

    async def _lend(self, blob: PrivateBlob) -> Lent:
        if self._connection is not None:
            try:
                return await self._ask(self._connection, blob)
            except OSError:  # its node has ended; another of the same peer may be there
                self.hang_up()
        self._connection = connection = await self._connected()
        try:
            return await self._ask(connection, blob)
        except OSError:
            self.hang_up()
            raise

    def hang_up(self) -> None:
        connection, self._connection = self._connection, None
        self._reading = 0
        if connection is not None:
            trio.lowlevel.notify_closing(connection.fileno())
            connection.close()

    async def _connected(self) -> sockets.socket:
        connection = connected_to(address_of(self._peer))
        if connection is None:
            raise NotLocal("the socket is another user's")
        try:
            nonce = secrets.token_bytes(NONCE_BYTES)
            connection.send(nonce)
            signature = await received(connection, SIGNATURE_BYTES + 1)
            if not is_signed_by(self._peer, signature, DOMAIN + nonce):
                raise NotLocal("another process has the name of its socket")
        except BaseException:  # a descriptor is not left open, whatever ends this
            connection.close()
            raise
        return connection

    async def _ask(self, connection: sockets.socket, blob: PrivateBlob) -> Lent:
        number = self._numbers = (self._numbers + 1) % _NUMBERS
        connection.send(SAID.pack(ASK, number, blob.name))
        while True:
            answered, size, file = await _answer(connection)
            if answered == number:
                break
            if file is not None:  # who asked was cancelled
                os.close(file)
                self._tell(connection, DONE, answered)
        if size in (NOT_HERE, BUSY):
            if size == BUSY:
                raise NotLocal("its owner has too many readers")
            raise Dropped(f"{self._peer} does not have it any more")
        if file is None:
            raise OSError("the answer is malformed")
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size < blob.size_bytes:
            os.close(file)
            self._tell(connection, DONE, number)
            raise NotLocal("what was handed over is not the blob")
        self._reading += 1

        def done(clean: bool) -> None:
            if connection is self._connection:
                self._reading -= 1
                self._tell(connection, DONE if clean else KEPT, number)

        return Lent(file, blob.size_bytes, done)

    def _tell(self, connection: sockets.socket, kind: bytes, number: int) -> None:
        """Never blocks."""
        try:
            connection.send(SAID.pack(kind, number, _NO_NAME))
        except OSError:  # its owner is gone, or stopped
            self.hang_up()


async def _answer(connection: sockets.socket) -> tuple[int, int, int | None]:
    """The number, the size and the descriptor. Raises OSError."""
    answer, file = await received_with_file(connection, ANSWER.size + 1)
    if len(answer) != ANSWER.size:
        if file is not None:
            os.close(file)
        raise OSError("the answer is malformed")
    number, size = ANSWER.unpack(answer)
    return number, size, file
