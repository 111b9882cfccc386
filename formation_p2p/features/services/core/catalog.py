"""The services of a network: which of them a worker takes on, and of which there are too few.

    assign(WorkerType.GPU, {"llm-inference": 1}, 1, catalog)   # ('vision-ocr',)
    gaps(catalog, {"llm-inference": 1})                        # critical first

`coverage` and `ready` count replicas by the name of their service; a name that is missing has none.
The order of a catalog decides between services of equal coverage and priority.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from formation_p2p.core.units import GIB
from formation_p2p.features.services.core.spec import ServiceSpec, WorkerType
from formation_p2p.machine.core.capability import Capability

# With fewer, the loss of one machine ends a service.
COVERED: Final = 2
# What a model of seven billion parameters takes, in four bits, with its context: less is no worker
# for inference. Makers count in powers of ten, and drivers report a little less than they sell.
_GPU_BYTES: Final = 8 * 10**9 * 95 // 100
# Below, a machine holds the data of others, and computes nothing.
_CPU_MILLI: Final = 2000
# Of what is sold with 4 GB the system keeps some.
_MEMORY_BYTES: Final = 35 * GIB // 10
# Data of services: some databases, or the shards of some.
_STORAGE_BYTES: Final = 500 * GIB


class Sharing(StrEnum):
    """How many services a worker takes on at once, with the workers of its type that there are."""

    FEW = "few"  # the first of a type two, later ones one; at the edge always two
    WIDE = "wide"  # three, or two from half as many workers as services on, or one from as many on
    ALL = "all"  # the first GPU those of GPUs and CPUs, later ones one; others as WIDE


@dataclass(frozen=True, slots=True)
class Detected:
    """What a worker says that it is, or what was seen of its machine."""

    has_gpu: bool = False
    has_public_ip: bool = False
    has_storage: bool = False
    declared: WorkerType | None = None


def worker_type_of(detected: Detected) -> WorkerType:
    """A GPU is too rare to serve as anything else; else a worker is what it says."""
    if detected.has_gpu:
        return WorkerType.GPU
    if detected.declared is not None:
        return detected.declared
    if detected.has_public_ip:
        return WorkerType.EDGE
    return WorkerType.STORAGE if detected.has_storage else WorkerType.CPU


def tier_of(capability: Capability) -> int:
    """What a machine is good for by its amounts: 1 with a GPU of 8 GB, 2 with two cores and 4 GB of
    memory, 3 otherwise."""
    if any(gpu.memory_bytes >= _GPU_BYTES for gpu in capability.gpus):
        return 1
    computes = capability.cpu_milli >= _CPU_MILLI and capability.memory_bytes >= _MEMORY_BYTES
    return 2 if computes else 3


def detected_on(capability: Capability, *, is_public: bool) -> Detected:
    """What `--serve auto` goes by. `is_public` where others reach the machine from outside."""
    tier = tier_of(capability)
    has_storage = tier == 3 or capability.storage_bytes >= _STORAGE_BYTES
    return Detected(tier == 1, is_public, has_storage)


def assign(
    worker_type: WorkerType,
    coverage: Mapping[str, int],
    healthy: int,
    catalog: Iterable[ServiceSpec],
    sharing: Sharing = Sharing.FEW,
) -> tuple[str, ...]:
    """The services that one more worker takes on, by priority, where `healthy` others are of its
    type: those with the least coverage, and of these those of the lowest priority number."""
    lends_cpu = worker_type is WorkerType.GPU and sharing is Sharing.ALL
    types = {worker_type, WorkerType.CPU} if lends_cpu else {worker_type}
    eligible = [x for x in catalog if x.worker_type in types and not x.withdrawn]
    ranked = sorted(eligible, key=lambda x: (coverage.get(x.name, 0), x.priority))
    taken = ranked[: at_once(worker_type, healthy, len(eligible), sharing)]
    return tuple(x.name for x in sorted(taken, key=lambda x: (x.priority, eligible.index(x))))


def at_once(worker_type: WorkerType, healthy: int, eligible: int, sharing: Sharing) -> int:
    """How many of `eligible` services a worker takes on where `healthy` others are of its type."""
    match sharing, worker_type:
        case (Sharing.FEW, _):
            most = 2 if healthy == 0 or worker_type is WorkerType.EDGE else 1
        case (Sharing.ALL, WorkerType.GPU):
            most = eligible if healthy == 0 else 1
        case _ if healthy >= eligible:
            most = 1
        case _:
            most = 2 if 2 * healthy >= eligible else 3
    return min(most, eligible)


class GapStatus(StrEnum):
    CRITICAL = "critical"  # no replica is ready
    WARNING = "warning"  # the next loss ends it
    OK = "ok"


@dataclass(frozen=True, slots=True)
class Gap:
    """How a service is covered."""

    service: str
    required_type: WorkerType
    priority: int
    current_workers: int
    status: GapStatus
    port: int


@dataclass(frozen=True, slots=True)
class Summary:
    total_services: int
    covered: int

    @property
    def needs_attention(self) -> int:
        return self.total_services - self.covered


def gaps(catalog: Iterable[ServiceSpec], ready: Mapping[str, int]) -> tuple[Gap, ...]:
    """Of every service that is not withdrawn: the worst first, and by priority. One that is to have
    one replica is covered by that."""
    found = [
        Gap(x.name, x.worker_type, x.priority, count, _status(x, count), x.port)
        for x in catalog
        if not x.withdrawn
        for count in (ready.get(x.name, 0),)
    ]
    order = list(GapStatus)
    return tuple(sorted(found, key=lambda gap: (order.index(gap.status), gap.priority)))


def _status(spec: ServiceSpec, count: int) -> GapStatus:
    if count == 0:
        return GapStatus.CRITICAL
    return GapStatus.OK if count >= min(COVERED, spec.replicas.target) else GapStatus.WARNING


def summary(found: Sequence[Gap]) -> Summary:
    return Summary(len(found), sum(gap.status is GapStatus.OK for gap in found))


def wanted(found: Iterable[Gap]) -> dict[WorkerType, int]:
    """How many more workers of each type would have every service ready somewhere, for people: "we
    need 2 more GPU workers". Types that lack none are left out."""
    lacking: dict[WorkerType, int] = {}
    for gap in found:
        if gap.status is GapStatus.CRITICAL:
            lacking[gap.required_type] = lacking.get(gap.required_type, 0) + 1
    return lacking
