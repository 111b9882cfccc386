"""Small blobs between the nodes of one user on one machine: the descriptor goes over, not a byte.

Each node listens on a socket of the abstract namespace (unix(7)), which has the user and the peer
in its name. A reader keeps one connection to each owner (nearby_reader.py). Both begin with proof
of who they are, since any process of the machine may take the name of a socket: a nonce, which the
other end signs. Then the reader says `Open`, with its grant, as over the network
(core/data/messages.py), and is answered `BlobRefused`, or `Opened` with the descriptor; with `Have`
it says that it has stored that. It is judged as over the network, and content with rules of its own
is not handed over this way.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket as sockets
from collections.abc import Callable
from typing import Final

import trio

from formation_p2p.core.data import messages
from formation_p2p.core.data.messages import BlobRefused, Have, Open, Opened
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.core.identity import (
    Identity,
    PeerId,
    is_signed_by,
    peer_id_from_bytes,
    peer_id_to_bytes,
)
from formation_p2p.core.workload.blob import Cid
from formation_p2p.host.blobs.files import Content
from formation_p2p.host.blobs.local import ANSWER_S, NONCE_BYTES, SIGNATURE_BYTES
from formation_p2p.host.blobs.same_user import SameUserListener, received, send_with_file

log = logging.getLogger(__name__)

# Readers that are connected at once: each has a descriptor, and one for what it is handed.
MAX_READERS: Final = 64
# What its owner signs, and what its reader does: so neither signature is of use as the other.
OWNER: Final = b"formation nearby blobs: owner\0"
READER: Final = b"formation nearby blobs: reader\0"
# The answer to a reader's nonce: the signature, and a nonce of the owner's own.
GREETING_BYTES: Final = SIGNATURE_BYTES + NONCE_BYTES
# What a reader says to that: its signature, and its peer id.
_MAX_PROOF_BYTES: Final = SIGNATURE_BYTES + 64


class NearbyBlobs:
    """Serves the blobs of this node to others of its user. `judge` says why a peer, which showed a
    grant, may not read some content this way; `content` opens it, and may block on the disk; `has`
    is told who has stored it. For the trio thread."""

    def __init__(
        self,
        identity: Identity,
        judge: Callable[[Contact, bytes, Cid], str | None],
        content: Callable[[Cid], Content | None],
        has: Callable[[Cid, Contact], None],
        answer_s: float = ANSWER_S,
    ) -> None:
        self._identity = identity
        self._judge = judge
        self._content = content
        self._has = has
        self._answer_s = answer_s
        self._listener = SameUserListener(address_of(identity.peer_id), MAX_READERS)
        self.handed = 0

    async def serve(self) -> None:
        """Until cancelled. Where the socket cannot be had, nothing is served this way."""
        otherwise = "nodes on this machine get files over the network"
        await self._listener.serve(self._serve, otherwise)

    async def _serve(self, connection: sockets.socket) -> None:
        try:
            with trio.fail_after(self._answer_s):
                reader = await self._greet(connection)
            if reader is not None:
                await self._talk(connection, reader)
        except (OSError, ProtocolViolation, ValueError, trio.TooSlowError) as error:
            log.debug("a reader on this machine is gone: %s", error)

    async def _greet(self, connection: sockets.socket) -> Contact | None:
        """Whose connection it is; None for anyone who does not prove it. Raises OSError,
        ValueError."""
        nonce = await received(connection, NONCE_BYTES + 1)
        if len(nonce) != NONCE_BYTES:
            return None
        own = secrets.token_bytes(NONCE_BYTES)
        connection.send(self._identity.sign(OWNER + nonce) + own)
        proof = await received(connection, _MAX_PROOF_BYTES)
        peer = peer_id_from_bytes(proof[SIGNATURE_BYTES:])
        proven = proof_of(self._identity.peer_id, own)
        is_proven = is_signed_by(peer, proof[:SIGNATURE_BYTES], proven)
        return Contact(peer) if is_proven else None

    async def _talk(self, connection: sockets.socket, reader: Contact) -> None:
        """Until it hangs up. Raises OSError, also where the reader does not take what it asked
        for, and ProtocolViolation."""
        handed: Cid | None = None
        while said := await received(connection, messages.MAX_REQUEST_BYTES):
            match messages.parse_request(said):
                case Open(grant, cid):
                    handed = cid if await self._answer(connection, reader, grant, cid) else None
                case Have(addresses) if handed is not None:
                    self._has(handed, Contact(reader.peer_id, addresses))
                    handed = None
                case other:
                    raise ProtocolViolation(f"{type(other).__name__} to a node nearby")

    async def _answer(
        self, connection: sockets.socket, reader: Contact, grant: bytes, cid: Cid
    ) -> bool:
        """Whether it was handed over. Raises OSError."""
        why = self._judge(reader, grant, cid)
        content = None if why else await trio.to_thread.run_sync(self._content, cid)
        if content is None:
            connection.send(messages.pack_reply(BlobRefused(why or "does not have it")))
            return False
        with content:
            send_with_file(connection, messages.pack_reply(Opened()), content.file)
        self.handed += 1
        return True


def proof_of(owner: PeerId, nonce: bytes) -> bytes:
    """What a reader signs: for this owner alone, so that none hands it on to another."""
    return READER + peer_id_to_bytes(owner) + nonce


def address_of(peer: PeerId) -> str:
    return f"\0formation/nearby/{os.geteuid()}/{peer}"
