"""Small blobs between the nodes of one user on one machine (same_user.py).

A reader says `Open`, with its grant, as over the network (content/core/messages.py). It is answered
`BlobRefused`, or `Opened` with the descriptor; with `Have` it says that it has stored that. It is
judged as over the network, and content with rules of its own is not handed over this way.
"""

from __future__ import annotations

import logging
import os
import socket as sockets
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

import trio

from formation_p2p.content.core import messages
from formation_p2p.content.core.messages import MAX_WHY_CHARS, BlobRefused, Have, Open, Opened
from formation_p2p.content.files import Content
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
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.machine.locks import acquired
from formation_p2p.workload.core.blob import Blob, Cid
from formation_p2p.workload.core.checkpoint import MAX_CHECKPOINT_BYTES

log = logging.getLogger(__name__)


KIND: Final = "nearby"
# Readers that are connected at once: each has a descriptor, and one for what it is handed.
MAX_READERS: Final = 64
# Larger ones go over the network, which tells of their progress and can be cancelled. A large
# checkpoint is copied in less than a second.
MAX_HANDED_BYTES: Final = MAX_CHECKPOINT_BYTES
# Owners that are connected to at once.
MAX_OWNERS: Final = 16
# One that gave no answer, such as a node that is stopped, is asked over the network for so long.
SILENT_S: Final = 60.0
# Of the largest answer: a refusal, in four bytes for each of its characters.
_MAX_ANSWER_BYTES: Final = 4 * MAX_WHY_CHARS + 64


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
        self._judge = judge
        self._content = content
        self._has = has
        self._listener = ContentListener(KIND, identity, MAX_READERS, answer_s)
        self.handed = 0

    async def serve(self) -> None:
        """Until cancelled. Where the socket cannot be had, nothing is served this way."""
        otherwise = "nodes on this machine get files over the network"
        await self._listener.serve(self._talk, otherwise)

    async def _talk(self, connection: sockets.socket, peer: PeerId) -> None:
        """Until it hangs up. Raises OSError, also where the reader does not take what it asked
        for, and ProtocolViolation."""
        reader = Contact(peer)
        handed: Cid | None = None
        while said := await received(connection, messages.MAX_REQUEST_BYTES):
            match messages.parse_request(said):
                case Open(grant, cid):
                    handed = cid if await self._answer(connection, reader, grant, cid) else None
                case Have(addresses) if handed is not None:
                    self._has(handed, Contact(peer, addresses))
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


class NearbyReader:
    """For the trio thread. `close` ends all connections."""

    def __init__(self, identity: Identity, answer_s: float = ANSWER_S) -> None:
        self._me = identity.peer_id
        self._answer_s = answer_s
        self._owners = Owners(KIND, identity, MAX_OWNERS)
        self.close = self._owners.close

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
            if source.peer_id == self._me:
                continue
            try:
                if await self._fetch(self._owners.of(source.peer_id), asked, have, store):
                    return True
                log.warning("%s handed over other content than %s", source.peer_id, blob.cid)
            except NotLocal as why:
                log.debug("%s is asked over the network: %s", source.peer_id, why)
        return False

    async def _fetch(
        self, owner: Owner, asked: Open, have: Have | None, store: Callable[[int], bool]
    ) -> bool:
        """Raises NotLocal."""
        await acquired(owner.turn)
        try:
            file = await self._file(owner, asked)
            try:
                if not await trio.to_thread.run_sync(store, file):
                    return False
            finally:
                os.close(file)
            if have is not None and owner.connection is not None:
                with suppress(OSError):  # its node has ended: the next that asks finds out
                    owner.connection.send(messages.pack_request(have))
            return True
        finally:
            owner.turn.release()

    async def _file(self, owner: Owner, asked: Open) -> int:
        """Raises NotLocal."""
        if trio.current_time() < owner.silent_until_s:
            raise NotLocal("it gave no answer a moment ago")
        try:
            with trio.fail_after(self._answer_s):
                return await owner.ask(partial(_ask, owner, asked))
        except trio.TooSlowError as error:
            owner.silent_until_s = trio.current_time() + SILENT_S
            raise NotLocal("it gives no answer") from error
        except (OSError, ProtocolViolation, trio.ClosedResourceError) as error:
            raise NotLocal(str(error)) from error


async def _ask(owner: Owner, asked: Open, connection: sockets.socket) -> int:
    """Raises OSError, ProtocolViolation, NotLocal."""
    try:
        connection.send(messages.pack_request(asked))
        answer, file = await _answered(connection)
    except BaseException:
        owner.hang_up()  # the answer may come yet, and would be taken for another
        raise
    if isinstance(answer, Opened) and file is not None:
        return file
    if file is not None:
        os.close(file)
    if isinstance(answer, BlobRefused):
        raise NotLocal(answer.why)
    raise OSError("the answer is malformed")


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
