"""A node as the source of a gateway."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import FormationError, LocalError
from formation_p2p.core.identity import PeerId, key_of_peer, parse_peer_id, short_id
from formation_p2p.core.units import KIB, format_bytes
from formation_p2p.features.gangs.host.gangs_json import gangs_in_json
from formation_p2p.features.gateway.sources import (
    GangView,
    ReplicaView,
    ServicesView,
    ServiceUnavailable,
    Upstream,
    WorkerView,
)
from formation_p2p.features.services.api.kept import Wanted
from formation_p2p.features.services.core.catalog import detected_on, worker_type_of
from formation_p2p.features.services.core.claim import Claim
from formation_p2p.features.services.core.events import MembersServe
from formation_p2p.features.services.core.messages import ANY, ServiceError, ServiceRefusal
from formation_p2p.features.services.core.spec import MAX_REQUESTS, ServiceSpec, WorkerType
from formation_p2p.machine.names import name_of
from formation_p2p.observe.status_json import event_in_json
from formation_p2p.reach import probing
from formation_p2p.workload.core.process import ProcessResult, ProcessSpec
from formation_p2p.workload.core.scope import Scope

if TYPE_CHECKING:
    from formation_p2p.api.bridge import Bridge
    from formation_p2p.api.job import JobHandle
    from formation_p2p.api.node import Node
    from formation_p2p.api.task_result import TaskResult
    from formation_p2p.features.services.host.server import ServiceServer
    from formation_p2p.peer.shell import Shell
    from formation_p2p.records.core.profile import Profile
    from formation_p2p.trust.core.reputation import Standing

# The workers that speak HTTP only, as the node of their gateway has them: it claims that they
# serve, and leads the streams of other peers to the gateway, which asks one of them.

# As much as one replica may take at most.
_MOST: Final = MAX_REQUESTS


@dataclass(frozen=True, slots=True)
class Share:
    """So many members serve this, and have so many requests."""

    spec: ServiceSpec
    members: int
    outstanding: int = 0


class MembersHere:
    """Of one service, for the node's thread: where a stream to it is led."""

    digest = ANY
    is_stopping = False

    def __init__(self, of: NodeMembers, service: str) -> None:
        self._of = of
        self._service = service
        self.outstanding = 0

    @property
    def scope(self) -> Scope:
        share = self._of.shares.get(self._service)
        return Scope.COMMONS if share is None else share.spec.scope

    @property
    def max_requests(self) -> int:
        share = self._of.shares.get(self._service)
        return 0 if share is None else min(share.members * share.spec.max_requests, _MOST)

    async def connect(self) -> socket.socket:
        """Raises OSError."""
        own, its = socket.socketpair()
        own.setblocking(False)
        its.setblocking(False)
        try:
            self._of.lead(self._service, its)
        except RuntimeError as error:  # the gateway has been left
            own.close()
            its.close()
            raise ConnectionRefusedError(str(error)) from error
        return own

    def count(self, change: int) -> None:
        self.outstanding += change

    def refused(self) -> None:
        """How many members there are is not for this network to say."""


class NodeMembers:
    """Of one gateway. `begin` has `opened` called, on this loop, for each stream to a service that
    members serve, and `tell` says which those are."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self.shares: Mapping[str, Share] = {}
        self._server: ServiceServer | None = None
        self._here: dict[str, MembersHere] = {}
        self._loop = asyncio.get_running_loop()
        self._opened: Callable[[str, socket.socket], None] | None = None

    def begin(self, opened: Callable[[str, socket.socket], None]) -> None:
        self._opened = opened

        def attach(shell: Shell) -> None:
            self._server = shell.features.services.server
            self._server.members = self

        self._bridge.call(attach)

    def tell(self, shares: Mapping[str, Share]) -> None:
        """What is told again costs nothing."""
        before, self.shares = self.shares, dict(shares)
        told = [
            MembersServe(name, 0 if share is None else share.members, _outstanding(share))
            for name in {*before, *shares}
            if (share := shares.get(name)) != before.get(name)
        ]

        def feed(shell: Shell) -> None:
            for event in told:
                shell.feed(event)

        if told:
            self._bridge.call(feed)

    def leads(self, service: str) -> bool:
        """Whether a stream to the service on this node is led here."""
        server = self._server
        is_own = server is not None and server.replicas.here(service) is not None
        return service in self.shares and not is_own

    def lead(self, service: str, end: socket.socket) -> None:
        """From the node's thread. Raises RuntimeError where the loop has ended."""
        assert self._opened is not None, "it has begun"
        self._loop.call_soon_threadsafe(self._opened, service, end)

    def here(self, service: str) -> MembersHere | None:
        """On the node's thread."""
        if service not in self.shares:
            return None
        return self._here.setdefault(service, MembersHere(self, service))


def _outstanding(share: Share | None) -> int:
    return 0 if share is None else share.outstanding


# Which of the workers that the network names are there: a profile outlives its worker by up to two
# minutes.

# Of one worker that this node is not connected to: between two questions.
AGAIN_S: Final = 10.0
# Workers that are asked at once, so that a network of hundreds is asked within some reads.
MAX_ASKING: Final = 16


class Presence:
    """`ping` raises FormationError where none answers. Questions go on beside what is read:
    who does not answer is left out of the next read, until it announces itself anew or answers."""

    def __init__(self, ping: Callable[[Contact], Awaitable[object]]) -> None:
        self._ping = ping
        self._asked_s: dict[PeerId, float] = {}
        self._asking: dict[PeerId, asyncio.Task[None]] = {}
        self._gone: dict[PeerId, int] = {}  # the profile of that number is of none that is there

    def there(self, found: Iterable[tuple[Profile, bool]]) -> list[Profile]:
        """Of profiles, each with whether its worker is connected."""
        pairs, now_s = list(found), time.monotonic()
        names = {each.peer_id for each, _ in pairs}
        for known in (self._asked_s, self._gone):
            for peer in known.keys() - names:
                del known[peer]
        for each, is_connected in pairs:
            peer = each.peer_id
            is_due = now_s - self._asked_s.get(peer, now_s - AGAIN_S) >= AGAIN_S
            if is_connected:
                self._gone.pop(peer, None)
            elif is_due and len(self._asking) < MAX_ASKING and peer not in self._asking:
                self._asked_s[peer] = now_s
                self._asking[peer] = asyncio.create_task(self._ask(each))
        return [each for each, _ in pairs if self._gone.get(each.peer_id) != each.sequence]

    async def _ask(self, profile: Profile) -> None:
        peer = profile.peer_id
        try:
            await self._ping(Contact(peer, profile.addresses))
            self._gone.pop(peer, None)
        except FormationError:
            self._gone[peer] = profile.sequence
        finally:
            del self._asking[peer]


# For a replica that takes one more request. Starting one takes longer; its clients come again.
WAIT_S: Final = 10.0
RETRY_AFTER_S: Final = 5
# Of each output of one task, in an answer that may have a thousand.
MAX_OUTPUT_BYTES: Final = 16 * KIB
# The node's own metrics come over loopback.
METRICS_S: Final = 5.0
MAX_METRICS_BYTES: Final = 1024 * KIB
_RING: Final = float(2**256)


class NodeSource:
    """On the node's own loop."""

    def __init__(self, node: Node, bridge: Bridge) -> None:
        self._node = node
        self._bridge = bridge
        self._known: frozenset[str] = frozenset()
        self._serving_as: dict[str, WorkerType] = {}  # of the last read
        self.members = NodeMembers(bridge)
        self._presence = Presence(
            lambda to: bridge.perform(lambda shell: probing.ping(shell.stack, to))
        )

    @property
    def peer_id(self) -> str:
        return self._node.peer_id

    @property
    def name(self) -> str:
        return self._node.name

    @property
    def addresses(self) -> Sequence[str]:
        return self._node.addresses

    async def services(self) -> ServicesView:
        read = await self._node.services()
        unknown = read.unknown if read.was_heard else tuple(each.name for each in read.catalog)
        # Those behind this gateway itself are added by it, each by itself.
        others = (x for x in read.replicas if not x.members or x.peer_id != self.peer_id)
        replicas = tuple(_replica(each) for each in others)
        self._serving_as = {each.peer_id: each.worker_type for each in read.replicas}
        self._known = frozenset(each.name for each in read.catalog)
        wanted = {each.name: read.wanted(each.name) for each in read.catalog}
        return ServicesView(read.catalog, replicas, frozenset(unknown), wanted)

    async def connect(self, wanted: Wanted, caller: str, full: Callable[[], None]) -> Upstream:
        service, sticky = wanted.service, None
        with suppress(ValueError):
            sticky = None if wanted.sticky is None else parse_peer_id(wanted.sticky)
        client = self._node.service(service, within_s=WAIT_S)
        try:
            stream = await client.connect(
                sticky=sticky, caller=caller, on_behalf=wanted.on_behalf, full=full
            )
        except ServiceError as error:
            if error.refusal is ServiceRefusal.DENIED:
                raise ServiceUnavailable(str(error), None, is_denied=True) from error
            again_s = None if await self._is_missing(service) else RETRY_AFTER_S
            raise ServiceUnavailable(str(error), again_s) from error
        if stream.replica == self.peer_id and self.members.leads(service):
            stream.writer.close()
            problem = f"{service} is served behind this gateway alone"
            raise ServiceUnavailable(problem, RETRY_AFTER_S)
        return Upstream(stream.reader, stream.writer, stream.replica, leave=stream.leave)

    async def _is_missing(self, service: str) -> bool:
        """Whether the catalog was read, and does not have it; what is known is not read anew."""
        if service in self._known:
            return False
        view = await self._node.services()
        self._known = frozenset(each.name for each in view.catalog)
        return view.was_heard and service not in self._known

    def failed(self, service: str, replica: str) -> None:
        """It answered with an error of its own."""
        with suppress(ValueError):
            self._node.service(service).failed(parse_peer_id(replica))

    async def workers(self) -> Sequence[WorkerView]:
        profiles = await self._node.workers()
        known = {each.peer_id: each for each in await self._node.trust()}
        peers = [each.peer_id for each in profiles]

        def measured(shell: Shell) -> list[tuple[bool, int | None]]:
            router = shell.features.services.router
            return [(router.is_connected(each), router.round_trip_us(each)) for each in peers]

        seen = await self._bridge.look(measured)
        rtts_us = {peer: rtt_us for peer, (_, rtt_us) in zip(peers, seen, strict=True)}
        connected = (is_connected for is_connected, _ in seen)
        return tuple(
            _worker(each, known.get(peer), self._serving_as.get(peer), rtts_us[peer])
            for each in self._presence.there(zip(profiles, connected, strict=True))
            if (peer := each.peer_id)
        )

    async def gangs(self) -> Sequence[GangView]:
        found = await self._bridge.look(lambda shell: gangs_in_json(shell, with_links=False))
        return tuple(
            GangView(
                each["gang_id"],
                each["state"],
                len(each["members"]),
                sum(member["state"] == "held" for member in each["members"]),
                each["since_unix_s"],
            )
            for each in found["gangs"]
        )

    async def submit(
        self,
        specs: Sequence[ProcessSpec],
        labels: Sequence[str],
        name: str,
        options: Mapping[str, Any],
    ) -> NodeJob:
        return NodeJob(
            await self._node.submit(specs, name=name, labels=labels, show_output=False, **options)
        )

    async def metrics(self) -> bytes:
        """Nothing where the node serves none."""
        try:
            host, port = self._node.metrics_address
        except LocalError:
            return b""
        async with asyncio.timeout(METRICS_S):
            reader, writer = await asyncio.open_connection(host, port)
            try:
                writer.write(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
                whole = bytearray()
                while len(whole) < MAX_METRICS_BYTES and (data := await reader.read(KIB * 64)):
                    whole += data
            finally:
                writer.close()
        return bytes(whole).partition(b"\r\n\r\n")[2]


class NodeJob:
    """A job of the node, as JSON."""

    def __init__(self, job: JobHandle) -> None:
        self._job = job

    @property
    def job_id(self) -> str:
        return self._job.job_id

    @property
    def name(self) -> str:
        return self._job.name

    @property
    def task_ids(self) -> Sequence[str]:
        return [each.task_id for each in self._job.tasks]

    async def events(self) -> AsyncIterator[Mapping[str, Any]]:
        labels = {each.task_id: each.label for each in self._job.tasks}
        async for event in self._job.events():
            task = getattr(event, "task_id", None)
            of = {} if task is None else {"task_id": task, "task": labels.get(task, task)}
            yield {**event_in_json(event), **of}

    def results(self) -> list[Mapping[str, Any]]:
        ended = (self._job.result(each) for each in self.task_ids)
        return [_result(each) for each in ended if each is not None]

    def cancel(self) -> None:
        self._job.cancel()


def _result(result: TaskResult) -> Mapping[str, Any]:
    told: dict[str, Any] = {
        "task_id": result.task_id,
        "label": result.label,
        "status": result.status,
        "worker": result.worker,
        "ran_ms": result.ran_ms,
        "attempts": result.attempts,
    }
    error = result.error()
    if error is not None:
        return {**told, "error": str(error)}
    ended = ProcessResult.decode(result.result)
    return {
        **told,
        "exit_code": ended.exit_code,
        "stdout": ended.stdout_tail[-MAX_OUTPUT_BYTES:].decode(errors="replace"),
        "stderr": ended.stderr_tail[-MAX_OUTPUT_BYTES:].decode(errors="replace"),
    }


def _replica(claim: Claim) -> ReplicaView:
    name = name_of(claim.peer_id) or short_id(claim.peer_id)
    return ReplicaView(
        claim.service,
        claim.peer_id,
        f"{name}, a gateway to {claim.members} over HTTP" if claim.members else name,
        claim.state.value,
        claim.worker_type,
        claim.slot,
        claim.outstanding,
        claim.capacity,
        claim.issued_unix_s,
        workers=max(claim.members, 1),
        version=0 if claim.members else claim.version,
    )


def _worker(
    profile: Profile, standing: Standing | None, serving_as: WorkerType | None, rtt_us: int | None
) -> WorkerView:
    """Its type is what it serves as, or what its machine looks like while it serves nothing."""
    can = profile.capability
    cores = f"{can.cpu_milli / 1000:g}"
    gives = [f"{cores} core" if cores == "1" else f"{cores} cores", format_bytes(can.memory_bytes)]
    if can.gpus:
        gives.append(f"{len(can.gpus)} GPU" + ("s" if len(can.gpus) > 1 else ""))
    if link := str(profile.link):
        gives.append(f"{link} to the gates")
    gave = ""
    if standing is not None and standing.successes:
        gave = f"{standing.successes} task{'s' if standing.successes > 1 else ''} done for us"
    return WorkerView(
        profile.peer_id,
        profile.name or short_id(profile.peer_id),
        serving_as or worker_type_of(detected_on(can, is_public=False)),
        ", ".join(gives),
        gave,
        key_of_peer(profile.peer_id) / _RING,
        None if rtt_us is None else round(rtt_us / 1000, 1),
    )
