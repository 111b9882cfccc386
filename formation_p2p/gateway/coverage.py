"""What is missing: the gaps of a catalog, how many workers would close them, and why."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from formation_p2p.gateway.sources import ReplicaView, ServicesView, ServiceView

READY: Final = "ready"
JOINING: Final = "joining"
DRAINING: Final = "draining"
# A service with one worker stops with it.
ENOUGH: Final = 2
_ORDER: Final = {"critical": 0, "warning": 1, "unknown": 2, "ok": 3}


@dataclass(frozen=True, slots=True)
class Gap:
    """How a service stands: critical without a worker, a warning with one. `unknown` is what too
    few answered about; it counts as no gap."""

    service: ServiceView
    current_workers: int
    joining: int
    status: str
    why: str


@dataclass(frozen=True, slots=True)
class Need:
    """Workers of a type that would close the gaps that they can close."""

    kind: str
    workers: int
    services: tuple[str, ...]

    @property
    def sentence(self) -> str:
        name = self.kind.upper() if self.kind in ("gpu", "cpu") else self.kind
        return f"We need {self.workers} more {name} worker{'s' if self.workers > 1 else ''}"


def gaps_of(view: ServicesView) -> tuple[Gap, ...]:
    """The worst first, then by priority."""
    replicas = by_service(view.replicas)
    found = [
        _gap(each, replicas.get(each.name, ()), each.name in view.unknown) for each in view.catalog
    ]
    return tuple(sorted(found, key=lambda gap: (_ORDER[gap.status], gap.service.priority)))


def by_service(replicas: Sequence[ReplicaView]) -> dict[str, list[ReplicaView]]:
    found: defaultdict[str, list[ReplicaView]] = defaultdict(list)
    for each in replicas:
        found[each.service].append(each)
    return found


def needs_of(gaps: Sequence[Gap]) -> tuple[Need, ...]:
    """The fewest: a worker may take several services, and one of each."""
    missing: defaultdict[str, dict[str, int]] = defaultdict(dict)
    for gap in gaps:
        enough = min(ENOUGH, gap.service.target)
        if gap.status in ("critical", "warning"):
            lacks = enough - gap.current_workers - gap.joining
            if lacks > 0:
                missing[gap.service.kind][gap.service.name] = lacks
    return tuple(Need(kind, max(lacks.values()), tuple(lacks)) for kind, lacks in missing.items())


def _gap(service: ServiceView, replicas: Sequence[ReplicaView], is_unknown: bool) -> Gap:
    ready = sum(each.state == READY for each in replicas)
    joining = sum(each.state == JOINING for each in replicas)
    enough = min(ENOUGH, service.target)
    if is_unknown:
        status = "unknown"
    else:
        status = "critical" if ready == 0 else "warning" if ready < enough else "ok"
    return Gap(service, ready, joining, status, _why(service, replicas, status, ready, enough))


def _why(
    service: ServiceView, replicas: Sequence[ReplicaView], status: str, ready: int, enough: int
) -> str:
    if status == "unknown":
        return "too few peers answered about it; nothing is started or stopped on that"
    parts = [f"{ready} of {enough} workers are ready"]
    for each in replicas:
        if each.state != READY:
            reason = f": {each.why}" if each.why else ""
            parts.append(f"{each.worker} is {each.state}{reason}")
    if status != "ok" and not any(each.state == JOINING for each in replicas):
        parts.append(f"no {service.kind} worker with room has taken it")
    return "; ".join(parts)
