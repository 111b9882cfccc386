"""What a worker announces of the services that it runs, and which of them it may run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from formation_p2p.core.resources.requirements import Requirements
from formation_p2p.core.services.spec import ServiceSpec, WorkerType

# How the labels begin that say so.
SERVES: Final = "serves-"
_YES: Final = "yes"


def labels_of(types: Iterable[WorkerType]) -> tuple[tuple[str, str], ...]:
    """The labels by which such workers are found: each is a bucket of discovery."""
    return tuple((f"{SERVES}{kind}", _YES) for kind in sorted(types))


def needs_of(spec: ServiceSpec) -> Requirements:
    """What a search for workers that could run a service asks for."""
    return of_type(spec.needs, spec.worker_type)


def of_type(needs: Requirements, kind: WorkerType) -> Requirements:
    return replace(needs, labels=(*needs.labels, *labels_of({kind})))
