"""What a node asks of replicas elsewhere beside what they serve, and what it tells of its own: what
they print, and programs that are run beside them."""

from __future__ import annotations

import logging
import os
import socket
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import LocalError, ProtocolViolation, RemoteError
from formation_p2p.core.identity import Identity, PeerId, short_id
from formation_p2p.core.units import KIB
from formation_p2p.features.services.core.messages import ServiceError
from formation_p2p.features.services.core.tending import (
    EXIT,
    MAX_MESSAGE_BYTES,
    STDERR,
    STDOUT,
    AskSecret,
    Question,
    ReadLog,
    RunBeside,
    SecretBox,
    Tended,
    TendingMessage,
    Untended,
    pack,
    parse,
)
from formation_p2p.features.services.host.log_file import log_of
from formation_p2p.features.services.host.reads import ServiceReads
from formation_p2p.features.services.host.replicas import Replicas
from formation_p2p.features.services.host.stream import ServiceStream, hear
from formation_p2p.net.limits import counted
from formation_p2p.net.transport.errors import IOException
from formation_p2p.net.transport.frames import encode_frame, read_frame
from formation_p2p.net.tunnels import LocalStream, TunnelStream
from formation_p2p.secrets.store import Secrets, opened, seal
from formation_p2p.trust.core.grants import Right
from formation_p2p.workload.core.blob import Blob, Cid

if TYPE_CHECKING:
    from formation_p2p.net.connection import Connection
    from formation_p2p.net.transport.stream import MuxedStream
    from formation_p2p.reach.stack import Stack

log = logging.getLogger(__name__)

PROTOCOL: Final = "/formation/replica/1.0.0"
# To say what is asked, and to be answered; to dial.
ANSWER_S: Final = 10.0
OPEN_S: Final = 20.0
# A person reads the logs of some services at once; each stream is a task and a file.
MAX_PEER_STREAMS: Final = 16
MAX_NODE_STREAMS: Final = 64
# Between two looks at a log that is followed.
FOLLOW_S: Final = 0.3
PIECE_BYTES: Final = 64 * KIB
# For what a program has printed before it ended; what it leaves running may print for ever.
LAST_WORDS_S: Final = 0.5


class Admit(Protocol):
    def __call__(self, peer: Contact, grant: bytes, right: Right | None = None, /) -> str | None:
        """Why not."""


class Tending:
    """Of one node. Methods are for its thread. `allows_exec` is whether the publisher of a service
    may run programs beside its replicas here."""

    def __init__(
        self,
        stack: Stack,
        identity: Identity,
        secrets: Secrets,
        reads: ServiceReads,
        admit: Admit,
        grant: Callable[[], bytes],
        replicas: Callable[[], Replicas | None],
        spawn: Callable[[Callable[[], Awaitable[None]]], None],
    ) -> None:
        self.allows_exec = False
        self._stack = stack
        self._me = identity.peer_id
        self._identity = identity
        self.secrets = secrets
        self._reads = reads
        self._admit = admit
        self._grant = grant
        self._replicas = replicas
        self._spawn = spawn
        self._streams: Counter[PeerId] = Counter()
        stack.served.by_protocol[PROTOCOL] = self.accept

    # -- to ask -----------------------------------------------------------------------------------

    async def ask(self, to: Contact, question: Question) -> ServiceStream:
        """What follows the answer. Raises ServiceError where there is none."""
        asked = replace(question, grant=self._grant())
        stream: MuxedStream | LocalStream | None = None
        try:
            with trio.fail_after(OPEN_S):
                if to.peer_id == self._me:
                    stream, its = LocalStream.pair()
                    self._spawn(partial(self._serve, asked, its, self._me))
                else:
                    stream = await self._opened(to, asked)
                answer = parse(await read_frame(stream, MAX_MESSAGE_BYTES))
            if not isinstance(answer, Tended):
                raise _refused(to, answer)
            if not isinstance(stream, LocalStream):
                stream.become_tunnel()
        except BaseException as error:
            if stream is not None:
                stream.abort("it was not opened")
            if isinstance(error, ServiceError):
                raise
            if isinstance(error, RemoteError | IOException | trio.TooSlowError):
                why = "no answer in time" if isinstance(error, trio.TooSlowError) else str(error)
                problem = f"{short_id(to.peer_id)} was not asked about {question.service}: {why}"
                raise ServiceError(problem) from error
            raise
        return ServiceStream(stream, question.service, to.peer_id)

    async def secret(self, secret: Blob, owner: PeerId, service: str = "") -> bytes:
        """Of a task of that owner; or of a service, from its owner, or who runs it too. Raises
        ServiceError, LocalError."""
        if (kept := self.secrets.get(secret.cid, service)) is not None:
            return kept
        claims = (await self._reads.read(service)).claims if service else ()
        others = (each.claim for each in claims if each.claim.service == service)
        near = {each.peer_id: each for each in (Contact(owner), *secret.sources)}
        for each in others:
            near.setdefault(each.peer_id, Contact(each.peer_id, each.addresses))
        near.pop(self._me, None)
        error = ServiceError("no other peer has it")
        for contact in near.values():
            try:
                content = await self._secret_of(contact, secret.cid, service)
            except ServiceError as problem:
                error = problem
                continue
            if service:
                self.secrets.keep(secret.cid, content, service)
            return content
        raise error

    async def _secret_of(self, owner: Contact, cid: Cid, service: str) -> bytes:
        asked = AskSecret(service, self._grant(), cid)
        try:
            with trio.fail_after(OPEN_S):
                stream = await self._opened(owner, asked)
                try:
                    answer = parse(await read_frame(stream, MAX_MESSAGE_BYTES))
                finally:
                    stream.abort("it was answered")
            if isinstance(answer, SecretBox):
                return opened(self._identity, answer.box, service.encode())
        except (RemoteError, IOException, LocalError, trio.TooSlowError) as error:
            why = "no answer in time" if isinstance(error, trio.TooSlowError) else error
            raise ServiceError(f"{short_id(owner.peer_id)} was not asked: {why}") from error
        raise _refused(owner, answer)

    async def _opened(self, to: Contact, asked: Question | AskSecret) -> MuxedStream:
        first = encode_frame(pack(asked))
        return await self._stack.open(to, PROTOCOL, timeout_s=OPEN_S, first=first)

    # -- to answer --------------------------------------------------------------------------------

    async def accept(self, stream: MuxedStream, connection: Connection) -> None:
        """One that a peer opens, until it is over. Raises RemoteError, IOException,
        TooSlowError."""
        with trio.fail_after(ANSWER_S):
            asked = parse(await read_frame(stream, MAX_MESSAGE_BYTES))
        if isinstance(asked, AskSecret):
            with counted(self._streams, connection.peer):
                await _answer(stream, await self._secret_for(asked, connection.peer))
            await stream.close()
            return
        if not isinstance(asked, ReadLog | RunBeside):
            raise ProtocolViolation("a stream about a replica that does not begin with a question")
        admitted = partial(connection.tunnels, stream)
        await self._serve(asked, stream, connection.peer, admitted)

    async def _serve(
        self,
        asked: Question,
        stream: TunnelStream,
        peer: PeerId,
        admitted: Callable[[], None] = lambda: None,
    ) -> None:
        try:
            with counted(self._streams, peer):
                if (why := self._why_not(asked, peer)) is not None:
                    await _answer(stream, Untended(why))
                    await stream.close()
                    return
                admitted()
                if isinstance(asked, ReadLog):
                    await self._tell(asked, stream, peer)
                else:
                    await self._run(asked, stream, peer)
        except* (RemoteError, IOException, LocalError, trio.TooSlowError) as ended:
            log.debug("a stream about %s ends: %r", asked.service, ended.exceptions)
            stream.abort("ended there")

    async def _secret_for(self, asked: AskSecret, peer: PeerId) -> SecretBox | Untended:
        if (why := self._busy(peer)) is not None:
            return Untended(why)
        if (why := self._admit(Contact(peer), asked.grant, Right.WORK)) is not None:
            return Untended(why)
        try:
            content = self.secrets.get(asked.cid, asked.service)
        except LocalError as error:
            return Untended(str(error))
        if content is not None and asked.service:
            found = await self._reads.read(asked.service)
            runs = (x.claim.peer_id for x in found.claims if x.claim.service == asked.service)
            content = content if peer in runs else None
        if content is None:
            return Untended("it has no such secret for you")
        return SecretBox(seal(peer, content, asked.service.encode()))

    def _busy(self, peer: PeerId) -> str | None:
        many = self._streams[peer] > MAX_PEER_STREAMS
        if many or self._streams.total() > MAX_NODE_STREAMS:
            return f"it has as many such streams as it can, {MAX_PEER_STREAMS} for each peer"
        return None

    def _why_not(self, asked: Question, peer: PeerId) -> str | None:
        if (why := self._busy(peer)) is not None:
            return why
        is_owner, replicas = peer == self._me, self._replicas()
        right = Right.SERVICES if isinstance(asked, ReadLog) else None
        if not is_owner and (why := self._admit(Contact(peer), asked.grant, right)) is not None:
            return why
        here = None if replicas is None else replicas.here(asked.service)
        if isinstance(asked, ReadLog):
            kept = replicas is not None and log_of(replicas.root, asked.service).is_there
            return None if kept else f"{asked.service} has printed nothing here"
        if here is None:
            return f"no replica of {asked.service} is here"
        if is_owner or (self.allows_exec and peer == here.start.signed.publisher):
            return None
        if self.allows_exec:
            return f"{asked.service} is published by another peer"
        return "its owner does not allow it; the worker has to be started with --allow-exec"

    async def _tell(self, asked: ReadLog, stream: TunnelStream, peer: PeerId) -> None:
        replicas = self._replicas()
        assert replicas is not None, "it was looked at before"
        kept = log_of(replicas.root, asked.service)
        told, left = ServiceStream(stream, asked.service, peer), _left(stream)
        await _answer(stream, Tended())
        async with trio.open_nursery() as nursery:

            async def until_left() -> None:
                await left.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(until_left)
            try:
                read = partial(kept.since, asked.since_unix_s, asked.tail)
                printed, mark = await trio.to_thread.run_sync(read)
                await told.write(printed)
                while asked.follows:
                    await trio.sleep(FOLLOW_S)
                    printed, mark = await trio.to_thread.run_sync(kept.after, mark)
                    await told.write(printed)
                await told.finish()
            except OSError as error:
                stream.abort(f"the log of {asked.service} cannot be read: {error.strerror}")
            nursery.cancel_scope.cancel()

    async def _run(self, asked: RunBeside, stream: TunnelStream, peer: PeerId) -> None:
        replicas = self._replicas()
        here = None if replicas is None else replicas.here(asked.service)
        assert here is not None, "it was looked at before"
        with ExitStack() as held:
            theirs = ExitStack()
            held.enter_context(theirs)
            into, its_input = _pair(held, theirs)
            told, its_exit = _pair(held, theirs)
            prints: dict[int, int] = {}
            fds = [its_input.fileno()]
            for kind in (STDOUT, STDERR):
                prints[kind], its = os.pipe()
                held.callback(os.close, prints[kind])
                theirs.callback(os.close, its)
                os.set_blocking(prints[kind], False)
                fds.append(its)
            try:
                await here.begin(asked.argv, [*fds, its_exit.fileno()])
            except OSError as error:
                await _answer(
                    stream, Untended(f"it cannot be run there: {error.strerror or error}")
                )
                await stream.close()
                return
            theirs.close()
            await _answer(stream, Tended())
            await _piped(ServiceStream(stream, asked.service, peer), into, told, prints)


def _refused(by: Contact, answer: TendingMessage) -> ServiceError:
    why = answer.why if isinstance(answer, Untended) else "with an answer that is none"
    return ServiceError(f"{short_id(by.peer_id)} refuses: {why}")


async def _piped(
    stream: ServiceStream, into: socket.socket, told: socket.socket, prints: dict[int, int]
) -> None:
    """Until the program has ended, or its user has left. Raises ServiceError."""
    writing, left = trio.Lock(), _left(stream.stream)

    async def until_left() -> None:
        await left.wait()
        raise ServiceError(f"its user has left {stream.service}")

    async def say(kind: int, data: bytes) -> None:
        async with writing:
            await stream.write(bytes([kind]) + len(data).to_bytes(4) + data)

    async def pass_on(kind: int, fd: int) -> None:
        while data := await _read(fd):
            await say(kind, data)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(hear, stream, into)  # what its user writes
        nursery.start_soon(until_left)
        async with trio.open_nursery() as printing:
            for kind, fd in prints.items():
                printing.start_soon(pass_on, kind, fd)
            await trio.lowlevel.wait_readable(told.fileno())
            code = told.recv(1) or b"\xff"  # the replica has ended, and with it this
            printing.cancel_scope.deadline = trio.current_time() + LAST_WORDS_S
        await say(EXIT, code)
        await stream.finish()
        nursery.cancel_scope.cancel()


def _left(stream: TunnelStream) -> trio.Event:
    """Set once it is over. One that has said all it has to say reads on."""
    left = trio.Event()
    stream.on_over = left.set
    if stream.broken is not None:
        left.set()
    return left


async def _read(fd: int) -> bytes:
    while True:
        try:
            return os.read(fd, PIECE_BYTES)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(fd)


def _pair(held: ExitStack, theirs: ExitStack) -> tuple[socket.socket, socket.socket]:
    ours, its = socket.socketpair()
    held.callback(ours.close)
    theirs.callback(its.close)
    ours.setblocking(False)
    return ours, its


async def _answer(stream: TunnelStream, message: TendingMessage) -> None:
    with trio.fail_after(ANSWER_S):
        await stream.write(encode_frame(pack(message)))
