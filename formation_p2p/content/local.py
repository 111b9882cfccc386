"""Private blobs between the nodes of one user on one machine: the descriptor goes over, not a byte.

Each node listens on a socket of the abstract namespace (unix(7)), which has the user and the peer
in its name. A reader keeps one connection to each owner (local_reader.py). It begins with a nonce,
which the owner signs, since any process of the machine may take the name of a socket. Then it asks
for blobs, each by a number of its own and its name, and is answered with the size and a descriptor.
It says when it has done with one; what it has not done with when the connection ends may be read
for ever. Both ends see that the other is a process of their own user.
"""

from __future__ import annotations

import logging
import os
import socket as sockets
import struct
from typing import Final

import trio

from formation_p2p.content.lent_blob import Lent
from formation_p2p.content.memory import PrivateBlobs
from formation_p2p.content.same_user import SameUserListener, received, send_with_file
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.workload.core.private_blob import NAME_BYTES

log = logging.getLogger(__name__)

# The peer is on this machine: it answers at once, or its node is stopped.
ANSWER_S: Final = 5.0
# Readers that are connected at once, and blobs that they read at once: each has a descriptor. Each
# lease has a few.
MAX_READERS: Final = 256
MAX_LENT: Final = 256
NONCE_BYTES: Final = 16
SIGNATURE_BYTES: Final = 64
# What a reader says: a kind and the number of a blob, and where it asks for one, its name.
SAID: Final = struct.Struct(f"!cI{NAME_BYTES}s")
ASK: Final = b"?"
DONE: Final = b"."  # no process reads it any more
KEPT: Final = b"!"  # one may read it for ever
# What it is answered: the number, and the size; or one of the others, without a descriptor.
ANSWER: Final = struct.Struct("!IQ")
NOT_HERE: Final = 0
BUSY: Final = (1 << 64) - 1
DOMAIN: Final = b"formation private blobs\0"


class LocalBlobs:
    """Serves the private blobs of this node to others of its user: to so many `readers`, of which
    so many blobs are `lent`. For the trio thread."""

    def __init__(self, blobs: PrivateBlobs, identity: Identity, answer_s: float = ANSWER_S) -> None:
        self._blobs = blobs
        self._answer_s = answer_s
        self._identity = identity
        self._listener = SameUserListener(address_of(identity.peer_id), MAX_READERS)
        self.lent = 0

    @property
    def readers(self) -> int:
        return self._listener.connected

    async def serve(self) -> None:
        """Until cancelled. Where the socket cannot be had, nothing is served this way."""
        otherwise = "calls on this machine get their data over the network"
        await self._listener.serve(self._serve, otherwise)

    async def _serve(self, connection: sockets.socket) -> None:
        lent: dict[int, Lent] = {}
        try:
            with trio.fail_after(self._answer_s):
                nonce = await received(connection, NONCE_BYTES + 1)
            if len(nonce) != NONCE_BYTES:
                return
            connection.send(self._identity.sign(DOMAIN + nonce))
            while said := await received(connection, SAID.size + 1):
                if not self._answer(connection, said, lent):
                    return
        except (OSError, trio.TooSlowError) as error:
            log.debug("a reader on this machine is gone: %s", error)
        finally:
            self.lent -= len(lent)
            for each in lent.values():
                each.done(clean=False)

    def _answer(self, connection: sockets.socket, said: bytes, lent: dict[int, Lent]) -> bool:
        """False for what no reader of ours says. Raises OSError, also where the reader does not
        take what it asked for."""
        if len(said) != SAID.size:
            return False
        kind, number, name = SAID.unpack(said)
        if kind == ASK and number not in lent:
            self._lend(connection, number, name, lent)
        elif kind in (DONE, KEPT) and number in lent:
            self.lent -= 1
            lent.pop(number).done(clean=kind == DONE)
        else:
            return False
        return True

    def _lend(
        self, connection: sockets.socket, number: int, name: bytes, lent: dict[int, Lent]
    ) -> None:
        if self.lent >= MAX_LENT:
            connection.send(ANSWER.pack(number, BUSY))
            return
        blob = self._blobs.lend(name)
        if blob is None:
            connection.send(ANSWER.pack(number, NOT_HERE))
            return
        lent[number] = blob
        self.lent += 1
        send_with_file(connection, ANSWER.pack(number, blob.size_bytes), blob.file)


def address_of(peer: PeerId) -> str:
    return f"\0formation/blobs/{os.geteuid()}/{peer}"
