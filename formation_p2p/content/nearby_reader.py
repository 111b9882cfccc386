"""Takes small blobs from other nodes of this user on this machine: see nearby.py."""

from __future__ import annotations

import logging
import os
import secrets
import socket as sockets
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import trio

from formation_p2p.content.core import messages
from formation_p2p.content.core.messages import MAX_WHY_CHARS, BlobRefused, Have, Open, Opened
from formation_p2p.content.files import Content
from formation_p2p.content.local import ANSWER_S, NONCE_BYTES, SIGNATURE_BYTES
from formation_p2p.content.same_user import (
    SameUserListener,
    connected_to,
    received,
    received_with_file,
    send_with_file,
)
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.core.identity import (
    Identity,
    PeerId,
    is_signed_by,
    peer_id_from_bytes,
    peer_id_to_bytes,
)
from formation_p2p.machine.locks import acquired
from formation_p2p.workload.core.blob import Blob, Cid
from formation_p2p.workload.core.checkpoint import MAX_CHECKPOINT_BYTES

log = logging.getLogger(__name__)


# Small blobs between the nodes of one user on one machine: the descriptor goes over, not a byte.
# Each node listens on a socket of the abstract namespace (unix(7)), which has the user and the peer
# in its name. A reader keeps one connection to each owner (nearby_reader.py). Both begin with proof
# of who they are, since any process of the machine may take the name of a socket: a nonce, which
# the other end signs. Then the reader says `Open`, with its grant, as over the network
# (content/core/messages.py), and is answered `BlobRefused`, or `Opened` with the descriptor; with
# `Have` it says that it has stored that. It is judged as over the network, and content with rules
# of its own is not handed over this way.
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


# Larger ones go over the network, which tells of their progress and can be cancelled. A large
# checkpoint is copied in less than a second.
MAX_HANDED_BYTES: Final = MAX_CHECKPOINT_BYTES
# Owners that are connected to at once. One that nothing was asked of for so long is connected to
# again when it is.
MAX_OWNERS: Final = 16
IDLE_S: Final = 10.0
# One that gave no answer, such as a node that is stopped, is asked over the network for so long.
SILENT_S: Final = 60.0
# Of the largest answer: a refusal, in four bytes for each of its characters.
_MAX_ANSWER_BYTES: Final = 4 * MAX_WHY_CHARS + 64


class NotNearby(Exception):
    """Its owner is not on this machine, or does not hand it over: ask over the network."""


class NearbyReader:
    """For the trio thread. `close` ends all connections."""

    def __init__(self, identity: Identity, answer_s: float = ANSWER_S) -> None:
        self._identity = identity
        self._answer_s = answer_s
        self._owners: dict[PeerId, _Owner] = {}  # that which was asked last at the end

    def __len__(self) -> int:
        return len(self._owners)

    async def fetch(
        self,
        blob: Blob,
        grant: bytes,
        store: Callable[[int], bool],
        addresses: tuple[str, ...] | None = None,
    ) -> bool:
        """Whether a source of it is nearby, and `store` took what that handed over: it is given a
        descriptor, and may block. The source is told that it is kept here too, at these addresses,
        if it is. Raises what `store` does."""
        if blob.rule is not None or blob.size_bytes > MAX_HANDED_BYTES:
            return False
        asked = Open(grant, blob.cid, manifest=False)
        have = None if addresses is None else Have(addresses)
        for source in blob.sources:
            if source.peer_id == self._identity.peer_id:
                continue
            try:
                if await self._owner(source.peer_id).fetch(asked, have, store):
                    return True
                log.warning("%s handed over other content than %s", source.peer_id, blob.cid)
            except NotNearby as why:
                log.debug("%s is asked over the network: %s", source.peer_id, why)
        return False

    def _owner(self, peer: PeerId) -> _Owner:
        """That of a peer, asked now. Others that were not for long are hung up on, and those past
        the bound."""
        owner = self._owners.pop(peer, None) or _Owner(peer, self._identity, self._answer_s)
        self._owners[peer] = owner
        owner.used_s = trio.current_time()
        for other, idle in [*self._owners.items()][:-1]:
            if idle.used_s >= owner.used_s - IDLE_S and len(self._owners) <= MAX_OWNERS:
                break
            if not idle.is_asked:
                self._owners.pop(other).hang_up()
        return owner

    def close(self) -> None:
        for owner in self._owners.values():
            owner.hang_up()
        self._owners.clear()


class _Owner:
    """One of them, and the connection to it."""

    def __init__(self, peer: PeerId, identity: Identity, answer_s: float) -> None:
        self.used_s = 0.0
        self._peer = peer
        self._identity = identity
        self._answer_s = answer_s
        self._turn = trio.Lock()  # for one that asks
        self._silent_until_s = 0.0
        self._connection: sockets.socket | None = None

    @property
    def is_asked(self) -> bool:
        return self._turn.locked()

    async def fetch(self, asked: Open, have: Have | None, store: Callable[[int], bool]) -> bool:
        """As that of NearbyReader. Raises NotNearby."""
        await acquired(self._turn)
        try:
            file = await self._file(asked)
            try:
                if not await trio.to_thread.run_sync(store, file):
                    return False
            finally:
                os.close(file)
            if have is not None and self._connection is not None:
                with suppress(OSError):  # its node has ended: the next that asks finds out
                    self._connection.send(messages.pack_request(have))
            return True
        finally:
            self._turn.release()

    def hang_up(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            trio.lowlevel.notify_closing(connection.fileno())
            connection.close()

    async def _file(self, asked: Open) -> int:
        """Raises NotNearby."""
        if trio.current_time() < self._silent_until_s:
            raise NotNearby("it gave no answer a moment ago")
        was_connected = self._connection is not None
        try:
            with trio.fail_after(self._answer_s):
                try:
                    return await self._ask(asked)
                except OSError:
                    if not was_connected:
                        raise
                # Its node has ended; another of the same peer may be there.
                return await self._ask(asked)
        except trio.TooSlowError as error:
            self._silent_until_s = trio.current_time() + SILENT_S
            raise NotNearby("it gives no answer") from error
        except (OSError, ProtocolViolation, trio.ClosedResourceError) as error:
            raise NotNearby(str(error)) from error

    async def _ask(self, asked: Open) -> int:
        """Raises OSError, ProtocolViolation, NotNearby."""
        if self._connection is None:
            self._connection = await self._connected()
        try:
            self._connection.send(messages.pack_request(asked))
            answer, file = await _answered(self._connection)
        except BaseException:
            self.hang_up()  # the answer may come yet, and would be taken for another
            raise
        if isinstance(answer, Opened) and file is not None:
            return file
        if file is not None:
            os.close(file)
        if isinstance(answer, BlobRefused):
            raise NotNearby(answer.why)
        self.hang_up()
        raise OSError("the answer is malformed")

    async def _connected(self) -> sockets.socket:
        connection = connected_to(address_of(self._peer))
        if connection is None:
            raise NotNearby("the socket is another user's, or a task's")
        try:
            nonce = secrets.token_bytes(NONCE_BYTES)
            connection.send(nonce)
            greeting = await received(connection, GREETING_BYTES + 1)
            signature, its = greeting[:SIGNATURE_BYTES], greeting[SIGNATURE_BYTES:]
            if not is_signed_by(self._peer, signature, OWNER + nonce):
                raise NotNearby("another process has the name of its socket")
            me = self._identity
            connection.send(me.sign(proof_of(self._peer, its)) + peer_id_to_bytes(me.peer_id))
        except BaseException:  # a descriptor is not left open, whatever ends this
            connection.close()
            raise
        return connection


async def _answered(connection: sockets.socket) -> tuple[messages.Reply, int | None]:
    """The answer, and the descriptor that came along. Raises OSError, ProtocolViolation."""
    answer, file = await received_with_file(connection, _MAX_ANSWER_BYTES)
    try:
        if not answer:
            raise OSError("its node has ended")
        return messages.parse_reply(answer), file
    except BaseException:  # what is not handed on is closed, whatever ends this
        if file is not None:
            os.close(file)
        raise
