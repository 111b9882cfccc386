"""A gang, as its owner sees it: workers that are leased together, each under a rank."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from formation_p2p.api.bridge import Breaking, Bridge
from formation_p2p.api.calls import value_of
from formation_p2p.api.code import CallCode
from formation_p2p.api.job import JobHandle
from formation_p2p.api.opened import NodeServices
from formation_p2p.api.submission import Submission, python_call, with_code
from formation_p2p.core.errors import (
    FormationError,
    InvalidInput,
    LocalError,
    NodeClosed,
    Unplaceable,
)
from formation_p2p.core.units import KIB
from formation_p2p.features.gangs.api.store import GangStore
from formation_p2p.features.gangs.api.work import GangWork
from formation_p2p.features.gangs.core.events import (
    EndGang,
    FormGang,
    GangEnded,
    GangEvent,
    GangFormed,
    GangMember,
    GangNotGrown,
    GangRejected,
    GangUnplaceable,
    MemberJoined,
    MemberLost,
    MemberReleased,
    MemberReplaced,
    MemberUsed,
    ResizeGang,
)
from formation_p2p.features.gangs.core.roster import HALF_BYTES, OWNER, gang_id_of
from formation_p2p.features.gangs.core.spec import GangSpec
from formation_p2p.features.gangs.core.tunnel import TunnelError, is_service
from formation_p2p.features.gangs.host.programs import splice
from formation_p2p.features.gangs.host.tunnels import WAIT_S
from formation_p2p.jobs.core.job_events import TaskEnd, TaskSucceeded
from formation_p2p.machine.names import named
from formation_p2p.net.logged import logged
from formation_p2p.workload.core.call_context import CallContext
from formation_p2p.workload.core.plan import Plan, PlannedTask
from formation_p2p.workload.core.work import PythonCall, Work, task_id

if TYPE_CHECKING:
    from formation_p2p.api.bridge import Bridge
    from formation_p2p.peer.shell import Shell

# Streams of a gang's owner: to services of its members, and from ports of this machine.

log = logging.getLogger(__name__)

LOOPBACK: Final = "127.0.0.1"
# A program that has connected waits in the kernel until the member's port is reached.
BACKLOG: Final = 128
COPY_BYTES: Final = 256 * KIB
# That have connected to ports and are not connected to members yet, each with a descriptor.
MAX_CONNECTING: Final = 256


class OwnerStreams:
    """Of one gang. For the loop; `close` it with the gang."""

    def __init__(self, bridge: Bridge, gang_id: str) -> None:
        self._bridge = bridge
        self._gang_id = gang_id
        self._servers: list[asyncio.Server] = []
        self._connecting = 0

    async def connect(
        self, rank: int, service: str, wait_s: float = WAIT_S
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Raises TunnelError, InvalidInput, NodeClosed."""
        breaking = Breaking()

        def broken(error: TunnelError) -> None:  # on the node's thread
            self._bridge.on_loop(partial(breaking.told, error))

        async def opened(shell: Shell) -> socket.socket:
            """Where the caller is gone by then its end is closed, and with it the tunnel."""
            tunnel = await shell.features.gangs.tunnels.open(
                self._gang_id, OWNER, rank, service, wait_s=wait_s
            )
            try:
                here, its = socket.socketpair()
            except OSError as error:
                tunnel.abort("there is no descriptor for it")
                raise LocalError(f"no stream: {error}; raise the limit `ulimit -n`") from error
            here.setblocking(False)
            its.setblocking(False)
            shell.do(logged, partial(splice, tunnel, its, b"", broken))
            return here

        here = await self._bridge.perform(opened)
        try:
            reader, writer = await asyncio.open_unix_connection(sock=here)
        except BaseException:
            here.close()
            raise
        breaking.follow(reader)
        return reader, writer

    async def forward(self, rank: int, to: str, port: int) -> int:
        """A port of this machine's loopback interface that leads there; which one it is. Raises
        InvalidInput where it is taken."""

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                if self._connecting >= MAX_CONNECTING:
                    raise TunnelError(f"{MAX_CONNECTING} others wait to be connected; try later")
                self._connecting += 1
                try:
                    there, out = await self.connect(rank, to)
                finally:
                    self._connecting -= 1
            except FormationError as error:
                log.warning("a connection to %s of member %d is closed: %s", to, rank, error)
                writer.transport.abort()
                return
            try:
                async with asyncio.TaskGroup() as both:
                    both.create_task(_copy(reader, out))
                    both.create_task(_copy(there, writer))
            except* (OSError, TunnelError) as ended:
                log.debug("a connection to %s of member %d ends: %s", to, rank, ended.exceptions)
                writer.transport.abort()  # its program is told by a reset
            finally:
                out.transport.abort()
                writer.close()

        try:
            server = await asyncio.start_server(connected, LOOPBACK, port, backlog=BACKLOG)
        except OSError as error:
            problem = f"{port} cannot be listened on: {error.strerror}; choose another, or 0"
            raise InvalidInput("port", problem) from error
        self._servers.append(server)
        found: int = server.sockets[0].getsockname()[1]
        return found

    def close(self) -> None:
        """Ports are free again. Streams end with the gang's leases."""
        for server in self._servers:
            server.close()
        self._servers.clear()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(COPY_BYTES):
        writer.write(data)
        await writer.drain()
    with contextlib.suppress(OSError):
        writer.write_eof()


R = TypeVar("R")

# Events kept for a reader that lags behind; the oldest are dropped.
MAX_UNREAD: Final = 1024


@dataclass(frozen=True, slots=True)
class GangMeans:
    """What a node's gangs are made with."""

    services: NodeServices
    bridge: Bridge
    code: CallCode


class Gang(GangWork):
    """Made by `Node.gang`. Leave its `async with`, or `close` it, to give its workers back.

    `gang_id` names it, `members` are those of now, by rank, `store` is what they share. What its
    tasks run under is the lease of the member with that rank; while a member is being replaced they
    wait.
    """

    def __init__(self, means: GangMeans, spec: GangSpec) -> None:
        super().__init__()
        self.gang_id = gang_id_of(means.services.contact.peer_id, secrets.token_bytes(HALF_BYTES))
        self._means = means
        self._spec = spec
        self.store = GangStore(means.bridge, self.gang_id)
        self._members: dict[int, GangMember] = {}
        self._unread: deque[GangEvent] = deque(maxlen=MAX_UNREAD)
        self._news = asyncio.Event()
        self._reading = False
        loop = asyncio.get_running_loop()
        self._formed: asyncio.Future[None] = loop.create_future()
        self._ended: asyncio.Future[None] = loop.create_future()
        self._resized: asyncio.Future[None] | None = None
        self._streams = OwnerStreams(means.bridge, self.gang_id)

    @property
    def members(self) -> tuple[GangMember, ...]:
        """By rank; without those that are being replaced."""
        return tuple(self._members[rank] for rank in sorted(self._members))

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._spec.size

    @property
    def is_over(self) -> bool:
        return self._ended.done()

    # -- work -------------------------------------------------------------------------------------

    async def run(self, function: Callable[..., R], *args: Any, **kwargs: Any) -> list[R]:
        """`function(member, *args, **kwargs)` on every rank at once; what each returned, by rank.
        `member` says which it is, and reaches the others. Raises, for the first rank that fails,
        what `value_of` does, and cancels the rest."""
        call = _for_member(python_call(function, *args, **kwargs))
        job = await self._begin([(rank, call) for rank in range(self.size)], _name_of(function))
        failed: str | None = None
        try:
            async for event in job.events():
                if (
                    failed is None
                    and isinstance(event, TaskEnd)
                    and type(event) is not TaskSucceeded
                ):
                    failed = event.task_id
                    job.cancel()  # others may wait for it for ever
        except asyncio.CancelledError:
            job.cancel()
            raise
        results = await job.results()
        for result in results:
            if result.task_id == failed:
                value_of(result)
        return [value_of(result) for result in results]

    def call(
        self, rank: int, function: Callable[..., R], *args: Any, **kwargs: Any
    ) -> asyncio.Task[R]:
        """`function(member, *args, **kwargs)` on one rank, after what that was given before. Await
        it for what the call returned; cancel it to cancel the call."""
        call = _for_member(python_call(function, *args, **kwargs))
        return asyncio.create_task(self._called(rank, call, _name_of(function)))

    async def submit(self, work: Sequence[Work], *, name: str = "") -> JobHandle:
        """One piece of work for each rank, in their order. Raises InvalidInput."""
        if len(work) != self.size:
            problem = f"{len(work)} pieces for {self.size} ranks; give one for each"
            raise InvalidInput("work", problem)
        return await self._begin(list(enumerate(work)), name)

    def begin_part(
        self,
        rank: int,
        function: Callable[..., R],
        args: tuple[Any, ...],
        begun: Callable[[str], None],
        goes_on_from: str = "",
    ) -> asyncio.Task[R]:
        call = _for_member(python_call(function, *args))
        name = _name_of(function)
        return asyncio.create_task(self._called(rank, call, name, begun, goes_on_from))

    async def saved(self) -> Mapping[str, int]:
        return await self._means.bridge.look(lambda shell: shell.peer.scheduler.saved())

    async def _called(
        self,
        rank: int,
        call: PythonCall,
        name: str,
        begun: Callable[[str], None] = lambda _: None,
        goes_on_from: str = "",
    ) -> Any:
        job = await self._begin([(rank, call)], name, goes_on_from)
        begun(task_id(job.job_id, 0))
        (result,) = await job
        return value_of(result)

    async def _begin(
        self, work: Sequence[tuple[int, Work]], name: str, goes_on_from: str = ""
    ) -> JobHandle:
        """Raises InvalidInput."""
        self._check()
        tasks: list[PlannedTask] = []
        for rank, piece in work:
            if not 0 <= rank < self.size:
                raise InvalidInput("rank", f"{rank} is not below the gang's size, {self.size}")
            needs = self._spec.needs[rank]
            if getattr(piece, "driver", None) != needs.driver:
                problem = f"the gang runs tasks of {needs.driver}; form one with driver= of this"
                raise InvalidInput("driver", problem)
            member = (self.gang_id, rank)
            planned = PlannedTask(piece, f"rank {rank}", (), needs, memory_given=True)
            tasks.append(replace(planned, member=member, goes_on_from=goes_on_from))
        means, options = self._means, self._spec.options
        plan, code = await asyncio.to_thread(with_code, Plan(tuple(tasks)), means.code, options)
        submission = Submission(means.services, means.bridge, None)
        return await submission.begin(plan, code, name, options, shown=False)

    # -- streams ----------------------------------------------------------------------------------

    async def connect(
        self, rank: int, service: str, *, wait_s: float = WAIT_S
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A stream to a service of a member, once its task listens, within `wait_s`; `":8080"` is a
        port of its task. It ends with the lease: reading raises TunnelError where it breaks.
        Raises TunnelError, InvalidInput."""
        self._check()
        return await self._streams.connect(rank, service, wait_s)

    async def forward(self, rank: int, to: int | str, *, port: int = 0) -> int:
        """A port of this machine, on 127.0.0.1, that leads to a port or a service of a member; any
        that is free unless `port` says which. Returns it. It is there until the gang ends. All
        programs of this machine can connect to it. Raises InvalidInput."""
        self._check()
        service = f":{to}" if isinstance(to, int) else to
        if not is_service(service):
            raise InvalidInput("to", f"{to!r} is neither a port nor the name of a service")
        if not 0 <= rank < self.size:
            raise InvalidInput("rank", f"{rank} is not below the gang's size, {self.size}")
        return await self._streams.forward(rank, service, port)

    # -- its life ---------------------------------------------------------------------------------

    async def resize(self, size: int) -> None:
        """Have so many ranks: new ones as the last, all or none of them, or the highest released.
        Raises InvalidInput; Unplaceable where there are not workers enough: it stays as it was."""
        self._check()
        if self._resized is not None:
            raise InvalidInput("gang", "its size is changing already; await that first")
        self._resized = asyncio.get_running_loop().create_future()
        before, self._spec = self._spec, self._spec.of_size(size)
        try:
            self._feed(ResizeGang(self.gang_id, size))
            self._look_at_size()
            await self._resized
        except FormationError:
            self._spec = before
            raise
        finally:
            self._resized = None

    async def close(self) -> None:
        """Give its workers back. Tasks that have not ended are cancelled. Returns once that is
        done; once is enough."""
        if not self._ended.done():
            with contextlib.suppress(NodeClosed):
                self._feed(EndGang(self.gang_id))
                await asyncio.shield(self._ended)

    async def events(self) -> AsyncIterator[GangEvent]:
        """All that happens to it, from its forming to its end. One reader only."""
        if self._reading:
            raise InvalidInput("events", "they are read already; keep what you need")
        self._reading = True
        while True:
            while self._unread:
                yield self._unread.popleft()
            if self._ended.done():
                return
            self._news.clear()
            await self._news.wait()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *raised: object) -> None:
        await self.close()

    async def form(self) -> Self:
        """Once each rank has its worker. Raises Unplaceable, InvalidInput, NodeClosed."""
        bridge = self._means.bridge
        bridge.owners[self.gang_id] = self
        try:
            self._feed(FormGang(self.gang_id, self._spec))
            await asyncio.shield(self._formed)
        except BaseException:
            if not self._ended.done():
                with contextlib.suppress(NodeClosed):
                    self._feed(EndGang(self.gang_id))
            raise
        return self

    # For the node (`Owner`), on the loop.

    def notify(self, event: GangEvent) -> None:
        match event:
            case MemberUsed():
                self.watched(event)
                return  # `usage` tells: it comes every few seconds
            case GangFormed(members):
                self._members = {member.rank: member for member in members}
                self._spec = replace(self._spec, needs=self._spec.needs[: len(members)])
                _settle(self._formed)
            case MemberReplaced(member) | MemberJoined(member):
                self._members[member.rank] = member
            case MemberLost(rank) | MemberReleased(rank):
                self._members.pop(rank, None)
            case GangNotGrown(refusals):
                _settle(self._resized, _unplaceable("the gang cannot grow", refusals))
            case GangRejected(why):
                if not self._formed.done():
                    self.fail(InvalidInput("gang", why))
                _settle(self._resized, InvalidInput("gang", why))
            case GangUnplaceable(refusals):
                self.fail(_unplaceable("there are not workers enough for the gang", refusals))
            case GangEnded(why):
                self.fail(NodeClosed(f"the gang has ended: {why}" if why else "it is closed"))
        self._look_at_size()
        self._unread.append(event)
        self._news.set()
        self.watched(event)

    def fail(self, error: FormationError) -> None:
        """It is over."""
        self._streams.close()
        self._members.clear()
        self._means.bridge.owners.pop(self.gang_id, None)
        _settle(self._formed, error)
        _settle(self._resized, error)
        _settle(self._ended)
        self._news.set()

    def _look_at_size(self) -> None:
        if sorted(self._members) == list(range(self.size)):
            _settle(self._resized)

    def _check(self) -> None:
        self._means.bridge.lifecycle.check_loop()
        if self._ended.done():
            raise InvalidInput("gang", "it has ended; form another one")

    def _feed(self, event: FormGang | EndGang | ResizeGang) -> None:
        self._means.bridge.call(lambda shell: shell.feed(event))


def _for_member(call: PythonCall) -> PythonCall:
    context = replace(CallContext.decode(call.function), as_member=True)
    return replace(call, function=context.encode())


def _unplaceable(what: str, refusals: Sequence[tuple[Any, object]]) -> Unplaceable:
    reasons = {str(peer_id): str(refusal) for peer_id, refusal in refusals}
    listed = "; ".join(f"{named(peer_id)}: {why}" for peer_id, why in reasons.items())
    # Those that are there have not refused: each has a rank, as it is arranged.
    why = listed or (
        "fewer were found than it has ranks of their own; `formation workers` lists them: ask for "
        'fewer ranks, or let a worker have several with arrange="spread"'
    )
    return Unplaceable(f"{what}. {why}", reasons)


def _name_of(function: Callable[..., object]) -> str:
    return getattr(function, "__name__", type(function).__name__)


def _settle(future: asyncio.Future[None] | None, error: FormationError | None = None) -> None:
    if future is None or future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
        future.exception()  # seen: it may be that no caller waits
