"""Private blobs between the nodes of one user on one machine: the descriptor goes over, not a byte.

Each node listens on a socket of the abstract namespace (unix(7)), which has the user and the peer
in its name. A reader says the name of the blob and a nonce; the owner answers with its size, the
descriptor, and a signature, since any process of the machine may take the name of a socket. The
connection stays for as long as the blob is read; DONE ends it where no process reads it any more.
Both ends see that the other is a process of their own user.
"""

from __future__ import annotations

import array
import logging
import os
import secrets
import socket as sockets
import stat
import struct
from contextlib import suppress
from typing import Final

import trio

from formation_p2p.core.errors import RemoteError
from formation_p2p.core.identity import Identity, PeerId, is_signed_by
from formation_p2p.core.workload.private_blob import NAME_BYTES, PrivateBlob
from formation_p2p.host.blobs.memory import Lent, PrivateBlobs

log = logging.getLogger(__name__)

# The peer is on this machine: it answers at once, or its node is stopped.
ANSWER_S: Final = 5.0
# Blobs that others read at once. Each lease has a few.
MAX_READERS: Final = 256
_NONCE_BYTES: Final = 16
_SIGNATURE_BYTES: Final = 64
_SIZE: Final = struct.Struct("!Q")
_ANSWER_BYTES: Final = _SIZE.size + _SIGNATURE_BYTES
_DONE: Final = b"."
_NOT_HERE: Final = b"-"
_DOMAIN: Final = b"formation private blob\0"
# unix(7), struct ucred: the process, the user, the group.
_CREDENTIALS: Final = struct.Struct("3i")


class NotLocal(Exception):
    """The owner is not on this machine, or not of this user, or does not answer."""


class Dropped(RemoteError):
    """The owner of a private blob does not have it any more."""


class LocalBlobs:
    """Serves the private blobs of this node to others of its user, and asks for theirs. For the
    trio thread."""

    def __init__(self, blobs: PrivateBlobs, identity: Identity, answer_s: float = ANSWER_S) -> None:
        self._blobs = blobs
        self._answer_s = answer_s
        self._identity = identity
        self._readers = 0
        self._nursery: trio.Nursery | None = None

    async def serve(self) -> None:
        """Until cancelled. Where the socket cannot be had, nothing is served this way."""
        bound = sockets.socket(sockets.AF_UNIX, sockets.SOCK_SEQPACKET)
        try:
            bound.bind(_address(self._identity.peer_id))
            bound.listen(MAX_READERS)
        except OSError as error:
            bound.close()
            log.warning("calls on this machine get their data over the network: %s", error)
            return
        with trio.socket.from_stdlib_socket(bound) as listener:
            async with trio.open_nursery() as nursery:
                while True:
                    connection, _ = await listener.accept()
                    if self._readers >= MAX_READERS or _user_of(connection) != os.geteuid():
                        connection.close()
                        continue
                    self._readers += 1
                    nursery.start_soon(self._serve, connection)

    async def _serve(self, connection: trio.socket.SocketType) -> None:
        try:
            with connection:
                await self._lend(connection)
        except (OSError, trio.TooSlowError) as error:
            log.debug("a reader on this machine is gone: %s", error)
        finally:
            self._readers -= 1

    async def _lend(self, connection: trio.socket.SocketType) -> None:
        with trio.fail_after(self._answer_s):
            asked = await connection.recv(NAME_BYTES + _NONCE_BYTES + 1)
        lent = self._blobs.lend(asked[:NAME_BYTES])
        if lent is None or len(asked) != NAME_BYTES + _NONCE_BYTES:
            await connection.send(_NOT_HERE)
            return
        clean = False
        try:
            signature = self._identity.sign(_DOMAIN + asked)
            descriptors = array.array("i", [lent.file]).tobytes()
            with trio.fail_after(self._answer_s):
                await connection.sendmsg(
                    [_SIZE.pack(lent.size_bytes) + signature],
                    [(sockets.SOL_SOCKET, sockets.SCM_RIGHTS, descriptors)],
                )
            clean = await connection.recv(1) == _DONE
        finally:
            lent.done(clean=clean)

    async def lend(self, blob: PrivateBlob) -> Lent:
        """Raises NotLocal; Dropped where its owner is here, and does not have it."""
        owner = blob.owner.peer_id
        connection = trio.socket.socket(sockets.AF_UNIX, sockets.SOCK_SEQPACKET)
        try:
            with trio.fail_after(self._answer_s):
                await connection.connect(_address(owner))
                if _user_of(connection) != os.geteuid():
                    raise NotLocal("the socket is another user's")
                file = await self._ask(connection, blob)
        except (OSError, trio.TooSlowError) as error:
            connection.close()
            raise NotLocal(str(error)) from error
        except BaseException:
            connection.close()
            raise

        def done(clean: bool) -> None:
            with connection, suppress(OSError):  # its owner may be gone
                if clean:
                    # Never blocks: nothing was sent but the question.
                    os.write(connection.fileno(), _DONE)

        return Lent(file, blob.size_bytes, done)

    async def _ask(self, connection: trio.socket.SocketType, blob: PrivateBlob) -> int:
        asked = blob.name + secrets.token_bytes(_NONCE_BYTES)
        await connection.send(asked)
        space = sockets.CMSG_SPACE(array.array("i").itemsize)
        answer, ancillary, _, _ = await connection.recvmsg(
            _ANSWER_BYTES + 1, space, sockets.MSG_CMSG_CLOEXEC
        )
        files = array.array("i")
        for level, kind, data in ancillary:
            if (level, kind) == (sockets.SOL_SOCKET, sockets.SCM_RIGHTS):
                files.frombytes(data[: len(data) - len(data) % files.itemsize])
        try:
            if answer == _NOT_HERE:
                raise Dropped(f"{blob.owner.peer_id} does not have it any more")
            if len(answer) != _ANSWER_BYTES or len(files) != 1:
                raise NotLocal("the answer is malformed")
            signature = answer[_SIZE.size :]
            if not is_signed_by(blob.owner.peer_id, signature, _DOMAIN + asked):
                raise NotLocal("another process has the name of its socket")
            status = os.fstat(files[0])
            if not stat.S_ISREG(status.st_mode) or status.st_size < blob.size_bytes:
                raise NotLocal("what was handed over is not the blob")
        except BaseException:
            for file in files:
                os.close(file)
            raise
        return files[0]


def _address(peer: PeerId) -> str:
    return f"\0formation/{os.geteuid()}/{peer}"


def _user_of(connection: trio.socket.SocketType) -> int:
    raw = connection.getsockopt(sockets.SOL_SOCKET, sockets.SO_PEERCRED, _CREDENTIALS.size)
    user: int = _CREDENTIALS.unpack(raw)[1]
    return user
