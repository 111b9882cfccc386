"""What is missing: how the services of a catalog stand and why, and how many workers would do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from formation_p2p.features.gateway.sources import ReplicaView, ServicesView
from formation_p2p.features.services.core import catalog
from formation_p2p.features.services.core.catalog import COVERED, Gap, GapStatus
from formation_p2p.features.services.core.spec import ServiceSpec, WorkerType

READY: Final = "ready"
JOINING: Final = "joining"
# Too few peers answered about it: it counts as no gap.
UNKNOWN: Final = "unknown"
_ORDER: Final = (GapStatus.CRITICAL.value, GapStatus.WARNING.value, UNKNOWN, GapStatus.OK.value)


class Note(StrEnum):
    """What is under way with a service that is not a gap."""

    SCALED = "scaled"
    """By its load it has more or fewer replicas than at first."""
    UPDATING = "updating"
    """A new version is replacing the one before it."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How one service stands."""

    service: ServiceSpec
    gap: Gap
    joining: int
    status: str
    why: str
    wanted: int
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, slots=True)
class Need:
    """Workers of a type that would close the gaps that they can close."""

    worker_type: WorkerType
    workers: int
    services: tuple[str, ...]

    @property
    def sentence(self) -> str:
        return f"We need {catalog.more_workers(self.worker_type, self.workers)}"


def standings_of(view: ServicesView) -> tuple[Standing, ...]:
    """The worst first, then by priority."""
    replicas = by_service(view.replicas)
    specs = {each.name: each for each in view.catalog}
    found = [
        _standing(specs[gap.service], gap, replicas.get(gap.service, ()), view)
        for gap in catalog.gaps(view.catalog, ready_of(view))
    ]
    return tuple(sorted(found, key=lambda each: _ORDER.index(each.status)))


def ready_of(view: ServicesView) -> dict[str, int]:
    """Replicas that are ready, by service."""
    counted: defaultdict[str, int] = defaultdict(int)
    for each in view.replicas:
        counted[each.service] += each.workers if each.state == READY else 0
    return counted


def by_service(replicas: Sequence[ReplicaView]) -> dict[str, list[ReplicaView]]:
    found: defaultdict[str, list[ReplicaView]] = defaultdict(list)
    for each in replicas:
        found[each.service].append(each)
    return found


def needs_of(standings: Sequence[Standing]) -> tuple[Need, ...]:
    """Of services that no worker serves, or is about to."""
    open_gaps = [each.gap for each in standings if each.status != UNKNOWN and not each.joining]
    lacking = catalog.wanted(open_gaps)
    return tuple(
        Need(
            kind,
            count,
            tuple(
                gap.service
                for gap in open_gaps
                if gap.required_type is kind and gap.status is GapStatus.CRITICAL
            ),
        )
        for kind, count in lacking.items()
    )


def _standing(
    service: ServiceSpec, gap: Gap, replicas: Sequence[ReplicaView], view: ServicesView
) -> Standing:
    joining = sum(each.state == JOINING for each in replicas)
    is_unknown = service.name in view.unknown and gap.status is not GapStatus.OK
    status = UNKNOWN if is_unknown else gap.status.value
    wanted = view.wanted.get(service.name, service.replicas.target)
    noted = {} if status == UNKNOWN else _noted(service, replicas, wanted)
    why = "; ".join((_why(service, gap, replicas, wanted, status), *noted.values()))
    return Standing(service, gap, joining, status, why, wanted, tuple(noted))


def _noted(service: ServiceSpec, replicas: Sequence[ReplicaView], wanted: int) -> dict[Note, str]:
    noted = {}
    if wanted != service.replicas.target:
        noted[Note.SCALED] = f"scaled by its load from {service.replicas.target} to {wanted}"
    versions = [each.version for each in replicas if each.state in (READY, JOINING)]
    old = sum(0 < each < service.version for each in versions)
    if old:
        new = sum(each == service.version for each in versions)
        noted[Note.UPDATING] = (
            f"version {service.version} is replacing an older one: {new} of {new + old} are new"
        )
    return noted


def _why(
    service: ServiceSpec,
    gap: Gap,
    replicas: Sequence[ReplicaView],
    wanted: int,
    status: str,
) -> str:
    if status == UNKNOWN:
        return "too few peers answered about it; nothing is started or stopped on that"
    enough = min(COVERED, wanted)
    parts = [f"{gap.current_workers} of {enough} workers are ready"]
    for each in replicas:
        if each.state != READY:
            reason = f": {each.why}" if each.why else ""
            parts.append(f"{each.worker} is {each.state}{reason}")
    if status != GapStatus.OK and not any(each.state == JOINING for each in replicas):
        if service.pinned is not None:
            parts.append("its data is on one machine, which does not serve it")
        else:
            parts.append(f"no {service.worker_type} worker with room has taken it")
    return "; ".join(parts)
