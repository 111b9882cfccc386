"""Private blobs between the nodes of one user on one machine (same_user.py).

A reader asks for blobs, each by a number of its own and its name, and is answered with the size and
a descriptor. It says when it has done with one; what it has not done with when the connection ends
may be read for ever. It gets what it would get over the network.
"""

from __future__ import annotations

import os
import socket as sockets
import stat
import struct
from functools import partial
from typing import Final

import trio

from formation_p2p.content.lent_blob import Lent
from formation_p2p.content.memory import PrivateBlobs
from formation_p2p.content.same_user import (
    ANSWER_S,
    ContentListener,
    NotLocal,
    Owner,
    Owners,
    received,
    received_with_file,
    send_with_file,
)
from formation_p2p.core.errors import ProtocolViolation, RemoteError
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.machine.locks import acquired
from formation_p2p.workload.core.blob import NAME_BYTES, PrivateBlob

KIND: Final = "private"
# Readers that are connected at once, and blobs that they read at once: each has a descriptor. Each
# lease has a few.
MAX_READERS: Final = 256
MAX_LENT: Final = 256
# Owners that are connected to at once.
MAX_OWNERS: Final = 64
# What a reader says: a kind and the number of a blob, and where it asks for one, its name.
SAID: Final = struct.Struct(f"!cI{NAME_BYTES}s")
ASK: Final = b"?"
DONE: Final = b"."  # no process reads it any more
KEPT: Final = b"!"  # one may read it for ever
# What it is answered: the number, and the size; or one of the others, without a descriptor.
ANSWER: Final = struct.Struct("!IQ")
NOT_HERE: Final = 0
BUSY: Final = (1 << 64) - 1
_NO_NAME: Final = bytes(NAME_BYTES)
_NUMBERS: Final = 1 << 32


class Dropped(RemoteError):
    """The owner of a private blob does not have it any more."""


class LocalBlobs:
    """Serves the private blobs of this node to others of its user: to so many `readers`, of which
    so many blobs are `lent`. For the trio thread."""

    def __init__(self, blobs: PrivateBlobs, identity: Identity, answer_s: float = ANSWER_S) -> None:
        self._blobs = blobs
        self._listener = ContentListener(KIND, identity, MAX_READERS, answer_s)
        self.lent = 0

    @property
    def readers(self) -> int:
        return self._listener.connected

    async def serve(self) -> None:
        """Until cancelled. Where the socket cannot be had, nothing is served this way."""
        otherwise = "calls on this machine get their data over the network"
        await self._listener.serve(self._talk, otherwise)

    async def _talk(self, connection: sockets.socket, reader: PeerId) -> None:
        lent: dict[int, Lent] = {}
        try:
            while said := await received(connection, SAID.size + 1):
                self._answer(connection, reader, said, lent)
        finally:
            self.lent -= len(lent)
            for each in lent.values():
                each.done(clean=False)

    def _answer(
        self, connection: sockets.socket, reader: PeerId, said: bytes, lent: dict[int, Lent]
    ) -> None:
        """Raises ProtocolViolation for what no reader of ours says, and OSError, also where the
        reader does not take what it asked for."""
        kind, number, name = SAID.unpack(said) if len(said) == SAID.size else (b"", 0, b"")
        if kind == ASK and number not in lent:
            self._lend(connection, reader, number, name, lent)
        elif kind in (DONE, KEPT) and number in lent:
            self.lent -= 1
            lent.pop(number).done(clean=kind == DONE)
        else:
            raise ProtocolViolation("it says what no reader does")

    def _lend(
        self,
        connection: sockets.socket,
        reader: PeerId,
        number: int,
        name: bytes,
        lent: dict[int, Lent],
    ) -> None:
        if self.lent >= MAX_LENT:
            connection.send(ANSWER.pack(number, BUSY))
            return
        blob = self._blobs.lend(name, reader)
        if blob is None:
            connection.send(ANSWER.pack(number, NOT_HERE))
            return
        lent[number] = blob
        self.lent += 1
        send_with_file(connection, ANSWER.pack(number, blob.size_bytes), blob.file)


class LocalReader:
    """For the trio thread. `close` ends all connections: what is read then stays readable."""

    def __init__(self, identity: Identity, answer_s: float = ANSWER_S) -> None:
        self._answer_s = answer_s
        self._owners = Owners(KIND, identity, MAX_OWNERS)
        self._numbers = 0
        self.trim, self.close = self._owners.trim, self._owners.close

    def __len__(self) -> int:
        return len(self._owners)

    async def lend(self, blob: PrivateBlob) -> Lent:
        """Raises NotLocal; Dropped where its owner is here, and does not have it."""
        owner = self._owners.of(blob.owner.peer_id)
        try:
            with trio.fail_after(self._answer_s):
                await acquired(owner.turn)
                try:
                    return await owner.ask(partial(self._ask, owner, blob))
                finally:
                    owner.turn.release()
        except (OSError, trio.TooSlowError, trio.ClosedResourceError) as error:
            raise NotLocal(str(error)) from error

    async def _ask(self, owner: Owner, blob: PrivateBlob, connection: sockets.socket) -> Lent:
        number = self._numbers = (self._numbers + 1) % _NUMBERS
        connection.send(SAID.pack(ASK, number, blob.name))
        while True:
            answered, size, file = await _answer(connection)
            if answered == number:
                break
            if file is not None:  # who asked was cancelled
                os.close(file)
                _tell(owner, connection, DONE, answered)
        if size in (NOT_HERE, BUSY):
            if size == BUSY:
                raise NotLocal("its owner has too many readers")
            raise Dropped(f"{owner.peer} does not have it any more")
        if file is None:
            raise OSError("the answer is malformed")
        status = os.fstat(file)
        if not stat.S_ISREG(status.st_mode) or status.st_size < blob.size_bytes:
            os.close(file)
            _tell(owner, connection, DONE, number)
            raise NotLocal("what was handed over is not the blob")
        owner.reading += 1

        def done(clean: bool) -> None:
            if connection is owner.connection:
                owner.reading -= 1
                _tell(owner, connection, DONE if clean else KEPT, number)

        return Lent(file, blob.size_bytes, done)


def _tell(owner: Owner, connection: sockets.socket, kind: bytes, number: int) -> None:
    """Never blocks."""
    try:
        connection.send(SAID.pack(kind, number, _NO_NAME))
    except OSError:  # its owner is gone, or stopped
        owner.hang_up()


async def _answer(connection: sockets.socket) -> tuple[int, int, int | None]:
    """The number, the size and the descriptor. Raises OSError."""
    answer, file = await received_with_file(connection, ANSWER.size + 1)
    if len(answer) != ANSWER.size:
        if file is not None:
            os.close(file)
        raise OSError("the answer is malformed")
    number, size = ANSWER.unpack(answer)
    return number, size, file
