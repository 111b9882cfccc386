"""Workers that speak HTTP only, as members through this gateway: they register, say that they live,
and get requests at their tunnel. Nothing of them outlives their heartbeats: a gateway that starts
again gives those that it had as much time to say that they live as any other."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from formation_p2p.core.errors import FormationError, InvalidInput, LocalError, StateError
from formation_p2p.features.gateway.coverage import READY, ready_of
from formation_p2p.features.gateway.member import HTTP, Member
from formation_p2p.features.gateway.node_source import Share
from formation_p2p.features.gateway.sources import (
    ReplicaView,
    ServicesView,
    ServiceUnavailable,
    Source,
    Upstream,
    WorkerView,
)
from formation_p2p.features.gateway.tunnel_url import connected, parse_tunnel_url, resolved
from formation_p2p.features.services.api.kept import Wanted
from formation_p2p.features.services.core.catalog import Detected, assign, worker_type_of
from formation_p2p.features.services.core.spec import ServiceSpec, WorkerType
from formation_p2p.state.http_members import HttpMemberFile
from formation_p2p.workload.core.scope import Scope

# The members of a gateway on disk: read as it starts, written as they come and go.

log = logging.getLogger(__name__)


class KeptMembers:
    """Puts those that `file` has into `members`. Raises StateError."""

    def __init__(
        self,
        file: HttpMemberFile | None,
        members: dict[str, Member],
        most: int,
        *,
        allows_private: bool,
    ) -> None:
        self._file = file
        self._members = members
        self._changed: set[str] = set()
        self._writing = asyncio.Lock()
        for row in () if file is None else file.rows(most):
            try:
                member = Member.of_row(row, allows_private=allows_private)
            except InvalidInput as error:
                log.info("%s is not taken on again: %s", row["worker_id"], error)
            else:
                members[member.worker_id] = member

    def changed(self, worker_id: str) -> None:
        """It came, or went."""
        self._changed.add(worker_id)

    async def write(self) -> None:
        """Returns once what has changed is on the disk. Where it cannot be, the log says so."""
        async with self._writing:
            changed, self._changed = self._changed, set()
            if self._file is None or not changed:
                return
            put = {x: self._members[x].as_row() for x in changed if x in self._members}
            try:
                await asyncio.to_thread(self._file.write, put, changed - put.keys())
            except StateError as error:
                log.warning("%s; who registers is forgotten when the gateway ends", error)

    async def close(self) -> None:
        """What comes from now on is not kept."""
        await self.write()
        if self._file is not None:
            self._file.close()
            self._file = None


# A gateway's own; each has a few KiB.
MAX_MEMBERS: Final = 1024
# Of one holder of tokens, so that three that want all leave room.
MAX_OF_ONE: Final = 256
# What a worker says of itself, shown to people.
MAX_CAPABILITIES: Final = 32
MAX_CAPABILITIES_BYTES: Final = 4096
MAX_MODELS: Final = 64
# One that answered with an error of its own is there, and may do better soon.
FAILED_S: Final = 10.0
# A tunnel's far end answers within a second. A request goes on to others for as long as it waits
# for a replica of the network's own.
TRY_S: Final = 3.0
WITHIN_S: Final = 10.0
RETRY_AFTER_S: Final = 5
_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,63}")


class UnknownWorker(LocalError):
    """No worker of this id is registered here, or its heartbeats have stopped: it registers."""


class Members:
    """The services and the workers of a source, and the streams to them, with the members added."""

    def __init__(
        self,
        source: Source,
        *,
        allows_private: bool,
        scope_of: Callable[[bytes], Scope] = lambda on_behalf: Scope.LOCAL,
        try_s: float = TRY_S,
        within_s: float = WITHIN_S,
        file: HttpMemberFile | None = None,
    ) -> None:
        self._source = source
        self._try_s = try_s
        self._within_s = within_s
        self.allows_private = allows_private
        self._scope_of = scope_of
        self._members: dict[str, Member] = {}
        self._specs: dict[str, ServiceSpec] = {}  # of the last read
        self.kept = KeptMembers(file, self._members, MAX_MEMBERS, allows_private=allows_private)

    def alive(self) -> list[Member]:
        now_s = time.monotonic()
        for each in [each for each in self._members.values() if not each.is_alive(now_s)]:
            del self._members[each.worker_id]
            self.kept.changed(each.worker_id)
        return list(self._members.values())

    async def register(
        self, worker_id: str, tunnel_url: str, capabilities: Mapping[str, Any], holder: str = ""
    ) -> Member:
        """Its services are those that are missing now. Raises InvalidInput, and what reading the
        catalog raises."""
        if _ID.fullmatch(worker_id) is None:
            problem = "use up to 64 letters, digits and . _ : -, with a letter or digit first"
            raise InvalidInput("worker_id", problem)
        if len(capabilities) > MAX_CAPABILITIES:
            raise InvalidInput("capabilities", f"name at most {MAX_CAPABILITIES}")
        if (size := len(json.dumps(capabilities))) > MAX_CAPABILITIES_BYTES:
            problem = f"they take {size} bytes; use at most {MAX_CAPABILITIES_BYTES}"
            raise InvalidInput("capabilities", problem)
        url = parse_tunnel_url(tunnel_url, allows_private=self.allows_private)
        if not self.allows_private:
            await resolved(url, allows_private=False)
        kind = declared_type(capabilities)
        self._check_holder(worker_id, holder)
        others = [each for each in self.alive() if each.worker_id != worker_id]
        view = self._with(await self._source.services(), others)
        now_s, now_unix_s = time.monotonic(), time.time()
        member = Member(
            worker_id,
            url,
            tunnel_url,
            kind,
            dict(capabilities),
            assign(kind, ready_of(view), _others_of(kind, view), view.catalog),
            now_unix_s,
            now_unix_s,
            now_s,
            holder=holder,
        )
        self._check_holder(worker_id, holder)  # the catalog was read meanwhile
        others = [each for each in self.alive() if each.worker_id != worker_id]
        if len(others) >= MAX_MEMBERS:
            raise InvalidInput("worker", f"{MAX_MEMBERS} are registered; use another gateway")
        if holder and sum(each.holder == holder for each in others) >= MAX_OF_ONE:
            raise InvalidInput("worker", f"{MAX_OF_ONE} of yours are registered; end some")
        self._members[worker_id] = member
        self.kept.changed(worker_id)
        await self.kept.write()
        return member

    def heard(self, worker_id: str, said: Mapping[str, Any], holder: str = "") -> Member:
        """Raises UnknownWorker, InvalidInput."""
        member = self._known(worker_id)
        self._check_holder(worker_id, holder)
        member.heard_s, member.heard_unix_s = time.monotonic(), time.time()
        member.status = str(said.get("status", "healthy"))
        member.current_load = float(said.get("current_load") or 0.0)
        member.active_requests = int(said.get("active_requests") or 0)
        statuses = said.get("services_status") or {}
        member.said = {name: statuses[name] for name in member.services if name in statuses}
        return member

    def unregister(self, worker_id: str, holder: str = "") -> None:
        """Raises UnknownWorker, InvalidInput."""
        known = self._known(worker_id)
        self._check_holder(worker_id, holder)
        del self._members[known.worker_id]
        self.kept.changed(known.worker_id)

    def _check_holder(self, worker_id: str, holder: str) -> None:
        """Raises InvalidInput."""
        known = self._members.get(worker_id)
        if known is not None and known.is_alive(time.monotonic()) and known.holder != holder:
            problem = "it was registered with the token of another member; choose another id"
            raise InvalidInput("worker_id", problem)

    def _known(self, worker_id: str) -> Member:
        self.alive()
        if worker_id not in self._members:
            raise UnknownWorker("Worker not found; register it again")
        return self._members[worker_id]

    # -- with those of the source -----------------------------------------------------------------

    async def services(self) -> ServicesView:
        return self._with(await self._source.services(), self.alive())

    def shares(self) -> dict[str, Share]:
        """What serves here now, by service: for the other nodes of the network."""
        found: dict[str, Share] = {}
        for member in self.alive():
            for name in filter(member.serves, member.services):
                if (spec := self._specs.get(name)) is not None:
                    before = found.get(name, Share(spec, 0))
                    busy = before.outstanding + max(member.outstanding, member.active_requests)
                    found[name] = Share(spec, before.members + 1, busy)
        return found

    def _with(self, view: ServicesView, members: Sequence[Member]) -> ServicesView:
        self._specs = {spec.name: spec for spec in view.catalog}
        added = tuple(
            ReplicaView(
                service,
                f"http:{member.worker_id}",
                member.worker_id,
                READY if member.serves(service) else "unready",
                member.kind,
                outstanding=max(member.outstanding, member.active_requests),
                since_unix_s=int(member.registered_unix_s),
                why="" if member.serves(service) else "its heartbeat says that it fails",
            )
            for member in members
            for service in member.services
        )
        return replace(view, replicas=view.replicas + added)

    async def workers(self) -> Sequence[WorkerView]:
        own = tuple(
            WorkerView(
                f"http:{each.worker_id}",
                each.worker_id,
                each.kind,
                f"over HTTP, at {each.url.authority}",
            )
            for each in self.alive()
        )
        return (*await self._source.workers(), *own)

    def failed(self, service: str, replica: str) -> None:
        if not replica.startswith(HTTP):
            self._source.failed(service, replica)
            return
        for each in self._members.values():
            if each.replica == replica:
                each.ejected_until_s = time.monotonic() + FAILED_S

    async def connect(self, wanted: Wanted, caller: str, full: Callable[[], None]) -> Upstream:
        service, on_behalf = wanted.service, wanted.on_behalf
        is_mine = wanted.sticky is not None and wanted.sticky.startswith(HTTP)
        missing: ServiceUnavailable | None = None
        if not is_mine:
            try:
                return await self._source.connect(wanted, caller, full)
            except ServiceUnavailable as error:
                missing = error
        if not self._candidates(wanted):
            if missing is not None:
                raise missing
            return await self._source.connect(wanted._replace(sticky=None), caller, full)
        spec = self._specs.get(service)
        if on_behalf and (spec is None or self._scope_of(on_behalf) > spec.scope):
            problem = f"{service} is not for your circles; ask for a grant of its own"
            raise ServiceUnavailable(problem, None, is_denied=True)
        return await self.connect_here(wanted)

    async def connect_here(self, wanted: Wanted) -> Upstream:
        """To one of the members. Raises ServiceUnavailable, also where too many do not answer for
        all to be tried in the time that a request has."""
        last_s = time.monotonic() + self._within_s - self._try_s  # what begins by then ends in time
        for member in self._candidates(wanted):
            if time.monotonic() > last_s:
                break
            try:
                async with asyncio.timeout(self._try_s):
                    there = await connected(member.url, allows_private=self.allows_private)
            except (FormationError, TimeoutError):
                member.eject(time.monotonic())
                continue
            member.failures = 0
            (reader, writer), url = there, member.url
            return Upstream(reader, writer, member.replica, url.authority, url.path)
        problem = f"no worker of {wanted.service} answers now; try again"
        raise ServiceUnavailable(problem, RETRY_AFTER_S)

    def _candidates(self, wanted: Wanted) -> list[Member]:
        """The one that the client had before, then by load; who has failed lately comes last, and
        of these first whose time is over the soonest."""
        now_s = time.monotonic()
        found = [each for each in self.alive() if each.serves(wanted.service)]
        random.shuffle(found)

        def rank(each: Member) -> tuple[float, bool, float]:
            is_other = wanted.sticky != each.replica
            return max(each.ejected_until_s, now_s), is_other, each.current_load

        return sorted(found, key=rank)


def declared_type(capabilities: Mapping[str, Any]) -> WorkerType:
    """What a worker is by what it says, as the plan words it."""
    said = capabilities.get("worker_type")
    declared = WorkerType(said) if isinstance(said, str) and said in set(WorkerType) else None
    has_edge = bool(capabilities.get("has_edge") or capabilities.get("has_public_ip"))
    has_storage = bool(capabilities.get("has_storage"))
    has_gpu = bool(capabilities.get("has_gpu")) or declared is WorkerType.GPU
    return worker_type_of(Detected(has_gpu, has_edge, has_storage, declared))


def _others_of(kind: WorkerType, view: ServicesView) -> int:
    return len({each.peer_id for each in view.replicas if each.kind is kind})
