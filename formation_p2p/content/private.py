"""Private blobs of others: from this process, from another of this user on this machine, or over
the network."""

from __future__ import annotations

import fcntl
import logging
import os
import socket as sockets
import stat
import struct
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Final

import trio

from formation_p2p.content.arrivals import COPIED_BYTES, Arrivals, Arrived
from formation_p2p.content.lent_blob import Lent
from formation_p2p.content.memory import SPARE_S, PrivateBlobs
from formation_p2p.content.remote import PrivateContent, RemoteBlobs
from formation_p2p.content.results import ResultBlobs
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
from formation_p2p.core.errors import ProtocolViolation, RemoteError
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.machine.locks import KeyedLocks, acquired
from formation_p2p.workload.core.blob import NAME_BYTES, PrivateBlob

log = logging.getLogger(__name__)


# Private blobs of others that later calls ask for again: functions, and what calls refer to. They
# are kept by their owner and name, and a lease gets those of its own owner alone
# (drivers/call_data.py). Past the bounds those that were used the longest ago go.
# Each has a descriptor, of 1,024 that a process has, and one more for each call that reads it.
MAX_FETCHED: Final = 128
# Not asked for in so long: the caller has gone on to other things. To fetch it again takes as long
# as it took; on this machine, where it keeps the owner's memory from others, next to nothing.
IDLE_S: Final = 600.0
LOCAL_IDLE_S: Final = 10.0


_Key = tuple[str, bytes, int]


def _key(blob: PrivateBlob) -> _Key:
    return blob.owner.peer_id, blob.name, blob.size_bytes


@dataclass(slots=True)
class _Kept:
    lent: Lent
    idle_s: float
    used_s: float = 0.0
    readers: int = 0
    is_out: bool = False  # of the cache

    def read(self) -> Lent:
        file = fcntl.fcntl(self.lent.file, fcntl.F_DUPFD_CLOEXEC, 3)
        self.readers += 1
        self.used_s = trio.current_time()
        return Lent(file, self.lent.size_bytes, self._returned)

    def _returned(self, clean: bool) -> None:
        self.readers -= 1
        self._close_unused()

    def go(self) -> None:
        self.is_out = True
        self._close_unused()

    def _close_unused(self) -> None:
        if self.is_out and not self.readers:
            self.lent.done(clean=False)  # interpreters keep it mapped


class FetchedBlobs:
    """For the trio thread. `fetch` brings one, and says how long it is kept unused."""

    def __init__(
        self,
        fetch: Callable[[PrivateBlob], Awaitable[tuple[Lent, float]]],
        limit_bytes: int,
        max_blobs: int = MAX_FETCHED,
    ) -> None:
        self._fetch = fetch
        self._limit_bytes = limit_bytes
        self._max_blobs = max_blobs
        self._kept: dict[_Key, _Kept] = {}  # that which was used last at the end
        self._turns = KeyedLocks[_Key]()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def kept_bytes(self) -> int:
        return sum(kept.lent.size_bytes for kept in self._kept.values())

    async def lend(self, blob: PrivateBlob) -> Lent:
        """Fetched once for all that ask for it meanwhile. Raises LocalError, RemoteError."""
        key = _key(blob)
        async with self._turns.of(key):
            kept = self._kept.pop(key, None)
            if kept is None:
                kept = _Kept(*await self._fetch(blob))
            self._kept[key] = kept
            lent = kept.read()
        self.trim()
        return lent

    def lend_kept(self, blob: PrivateBlob) -> Lent | None:
        """None where it has to be fetched."""
        key = _key(blob)
        kept = self._kept.pop(key, None)
        if kept is None:
            return None
        self._kept[key] = kept
        try:
            return kept.read()
        except OSError as error:  # for want of descriptors: to wait for it says so
            log.debug("what was kept cannot be lent: %s", error)
            return None

    def trim(self) -> None:
        """Let go of what was not used for long, and of what is past the bounds; but for the newest,
        which a call waits for."""
        now_s = trio.current_time()
        over_bytes = self.kept_bytes - self._limit_bytes
        for key, kept in [*self._kept.items()]:
            if now_s > kept.used_s + kept.idle_s and not kept.readers:
                pass
            elif len(self._kept) == 1 or not (over_bytes > 0 or len(self._kept) > self._max_blobs):
                continue
            over_bytes -= kept.lent.size_bytes
            del self._kept[key]
            kept.go()

    def close(self) -> None:
        kept, self._kept = [*self._kept.values()], {}
        for each in kept:
            each.go()


# Of the memory for private blobs, what is kept for calls that ask for it again: the rest is for
# arguments.
FETCHED_SHARE: Final = 2


class PrivateExchange:
    """For the trio thread. Without `local` nothing is shared with other processes of this machine,
    as if they were on others."""

    def __init__(
        self,
        blobs: PrivateBlobs,
        identity: Identity,
        remote: RemoteBlobs,
        arrivals: Arrivals | None = None,
        *,
        local: bool = True,
    ) -> None:
        self.blobs = blobs
        self.results = ResultBlobs(blobs, lambda: Contact(self._me, remote.announced))
        self._arrivals = Arrivals() if arrivals is None else arrivals
        self._me = identity.peer_id
        self.remote = remote
        self._local = LocalBlobs(blobs, identity) if local else None
        self._reader = LocalReader(identity) if local else None
        self.fetched = FetchedBlobs(self._fetch, blobs.memory.limit_bytes // FETCHED_SHARE)

    async def serve(self) -> None:
        """Until cancelled."""
        try:
            async with trio.open_nursery() as nursery:
                if self._local is not None:
                    nursery.start_soon(self._local.serve)
                while True:
                    await trio.sleep(SPARE_S / 2)
                    self.blobs.trim()
                    self.fetched.trim()
                    self.results.trim()
                    if self._reader is not None:
                        self._reader.trim()
        finally:
            if self._reader is not None:
                self._reader.close()
            self.fetched.close()
            self.results.close()

    def content(self, name: bytes, peer: PeerId) -> PrivateContent | None:
        """To serve it over the network to a peer; None where it is not here."""
        lent = self.blobs.lend(name, peer)
        return None if lent is None else PrivateContent(lent)

    async def lend(self, blob: PrivateBlob, *, again: bool = False) -> Lent:
        """A private blob, to be read; with `again` it is kept for others that ask for it. Raises
        LocalError; RemoteError where its owner does not hand it over."""
        lent = self._own(blob)
        if lent is not None:
            return lent
        if again:
            return await self.fetched.lend(blob)
        return (await self._fetch(blob))[0]

    async def result(self, blob: PrivateBlob) -> Arrived:
        """A large result that a worker has. Raises LocalError, RemoteError."""
        arrivals, size = self._arrivals, blob.size_bytes
        lent = self._own(blob) or await self._handed(blob)
        if lent is None:
            arrived = await trio.to_thread.run_sync(arrivals.room, size)
            await self.remote.fetch(blob, arrived.view)
            return arrived
        try:
            if size <= COPIED_BYTES:
                return arrivals.of_worker(lent.file, size)
            return await trio.to_thread.run_sync(arrivals.of_worker, lent.file, size)
        finally:
            lent.done(clean=False)

    def _own(self, blob: PrivateBlob) -> Lent | None:
        """None where another node has it. Raises LocalError."""
        if blob.owner.peer_id != self._me:
            return None
        lent = self.blobs.lend(blob.name)
        if lent is not None and lent.size_bytes >= blob.size_bytes:
            return lent
        if lent is not None:
            lent.done(clean=True)
        raise Dropped("this node does not have it any more")

    async def _fetch(self, blob: PrivateBlob) -> tuple[Lent, float]:
        """And how long it is worth to be kept unused."""
        lent = await self._handed(blob)
        return (await self._copied(blob), IDLE_S) if lent is None else (lent, LOCAL_IDLE_S)

    async def _handed(self, blob: PrivateBlob) -> Lent | None:
        """By a node of this machine; None where its owner is to be asked over the network."""
        if self._reader is not None:
            try:
                return await self._reader.lend(blob)
            except NotLocal as why:
                log.debug("%s is asked over the network: %s", blob.owner.peer_id, why)
        return None

    async def _copied(self, blob: PrivateBlob) -> Lent:
        room = await trio.to_thread.run_sync(self.blobs.room, blob.size_bytes)
        try:
            await self.remote.fetch(blob, room.view)
        except BaseException:
            room.give_back()
            raise
        name = room.keep()
        lent = self.blobs.lend(name)
        self.blobs.release(name)  # it goes with its reader
        assert lent is not None, "it was kept just now"
        return lent


# Private blobs between the nodes of one user on one machine (same_user.py). A reader asks for each
# by a number of its own and the blob's name, and is answered with the size and a descriptor. It
# says when it has done with a blob; what it has not done with when the connection ends may be read
# for ever. It gets what it would get over the network.
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
