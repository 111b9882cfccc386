"""A node as the source of a gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import LocalError
from formation_p2p.core.identity import key_of_peer, parse_peer_id, short_id
from formation_p2p.core.units import KIB, format_bytes
from formation_p2p.features.gangs.host.gangs_json import gangs_in_json
from formation_p2p.features.gateway.node_members import Call, NodeMembers
from formation_p2p.features.gateway.presence import Presence
from formation_p2p.features.gateway.sources import (
    Command,
    GangView,
    ReplicaView,
    ServicesView,
    ServiceUnavailable,
    Upstream,
    WorkerView,
)
from formation_p2p.features.services.core.catalog import detected_on, worker_type_of
from formation_p2p.features.services.core.claim import Claim
from formation_p2p.features.services.core.messages import ServiceError, ServiceRefusal
from formation_p2p.features.services.core.spec import WorkerType
from formation_p2p.machine.names import name_of
from formation_p2p.observe.status_json import event_in_json
from formation_p2p.workload.core.process import ProcessResult, ProcessSpec

if TYPE_CHECKING:
    from formation_p2p.api.job import JobHandle
    from formation_p2p.api.node import Node
    from formation_p2p.api.task_result import TaskResult
    from formation_p2p.peer.shell import Shell
    from formation_p2p.records.core.profile import Profile
    from formation_p2p.trust.core.reputation import Standing

# For a replica that takes one more request. Starting one takes longer; its clients come again.
WAIT_S: Final = 10.0
RETRY_AFTER_S: Final = 5
# Of each output of one task, in an answer that may have a thousand.
MAX_OUTPUT_BYTES: Final = 16 * KIB
# The node's own metrics come over loopback.
METRICS_S: Final = 5.0
MAX_METRICS_BYTES: Final = 1024 * KIB
_RING: Final = float(2**256)


class Look(Protocol):
    """What a function returns on the node's thread."""

    def __call__(self, at: Callable[[Shell], Any]) -> Awaitable[Any]: ...


class NodeSource:
    """On the node's own loop."""

    def __init__(
        self, node: Node, look: Look, call: Call, ping: Callable[[Contact], Awaitable[object]]
    ) -> None:
        self._node = node
        self._look = look
        self._known: frozenset[str] = frozenset()
        self._serving_as: dict[str, WorkerType] = {}  # of the last read
        self.members = NodeMembers(call)
        self._presence = Presence(ping)

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

    async def connect(
        self, service: str, sticky: str | None, caller: str, on_behalf: bytes
    ) -> Upstream:
        wanted = None
        with suppress(ValueError):
            wanted = None if sticky is None else parse_peer_id(sticky)
        client = self._node.service(service, within_s=WAIT_S)
        try:
            stream = await client.connect(sticky=wanted, caller=caller, on_behalf=on_behalf)
        except ServiceError as error:
            if error.refusal is ServiceRefusal.DENIED:
                raise ServiceUnavailable(str(error), None, is_denied=True) from error
            again_s = None if await self._is_missing(service) else RETRY_AFTER_S
            raise ServiceUnavailable(str(error), again_s) from error
        if stream.replica == self.peer_id and self.members.leads(service):
            stream.writer.close()
            problem = f"{service} is served behind this gateway alone"
            raise ServiceUnavailable(problem, RETRY_AFTER_S)
        return Upstream(stream.reader, stream.writer, stream.replica)

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
            router = shell.services.router
            return [(router.is_connected(each), router.round_trip_us(each)) for each in peers]

        seen = await self._look(measured)
        rtts_us = {peer: rtt_us for peer, (_, rtt_us) in zip(peers, seen, strict=True)}
        connected = (is_connected for is_connected, _ in seen)
        return tuple(
            _worker(each, known.get(peer), self._serving_as.get(peer), rtts_us[peer])
            for each in self._presence.there(zip(profiles, connected, strict=True))
            if (peer := each.peer_id)
        )

    async def gangs(self) -> Sequence[GangView]:
        found = await self._look(lambda shell: gangs_in_json(shell, with_links=False))
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
        self, commands: Sequence[Command], name: str, options: Mapping[str, Any]
    ) -> NodeJob:
        specs = [ProcessSpec(each.argv, env=dict(each.env)) for each in commands]
        labels = [each.label or " ".join(each.argv)[:64] for each in commands]
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
