"""The services of a network as of one read: the catalog, what runs of it, and what is missing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from formation_p2p.features.services.core.catalog import Gap, gaps
from formation_p2p.features.services.core.claim import Claim, ClaimState
from formation_p2p.features.services.core.events import ServicesRead
from formation_p2p.features.services.core.scaling import wanted
from formation_p2p.features.services.core.spec import ServiceSpec


@dataclass(frozen=True, slots=True)
class ServicesView:
    """`replicas` are the claims of workers, also of those that are starting or about to stop.
    `gaps` say of each service how it is covered, the worst first; the services `unknown` are left
    out there, since no peer answered that keeps their claims. Without `was_heard` not even the
    catalog could be read: it is as this node remembers it."""

    catalog: tuple[ServiceSpec, ...]
    replicas: tuple[Claim, ...]
    gaps: tuple[Gap, ...]
    unknown: tuple[str, ...] = ()
    was_heard: bool = True

    def of(self, service: str) -> tuple[Claim, ...]:
        """The replicas of one."""
        return tuple(each for each in self.replicas if each.service == service)

    def wanted(self, service: str) -> int:
        """How many of it there are to be, by their load."""
        live = [each for each in self.of(service) if each.is_live]
        return sum(wanted(each, live) for each in self.catalog if each.name == service)


def view_of(read: ServicesRead) -> ServicesView:
    catalog = tuple(each.spec for each in read.catalog if not each.spec.withdrawn)
    replicas = tuple(each.claim for each in read.claims if each.claim.state is not ClaimState.GONE)
    ready = Counter[str]()
    for each in replicas:
        ready[each.service] += each.serving
    known = [spec for spec in catalog if spec.name not in read.unknown]
    return ServicesView(catalog, replicas, gaps(known, ready), read.unknown, read.heard)
