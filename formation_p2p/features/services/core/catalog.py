"""The services of a network: which of them a worker takes on, and of which there are too few.

    assign(WorkerType.GPU, {"llm-inference": 1}, 1, catalog)   # ('vision-ocr',)
    gaps(catalog, {"llm-inference": 1})                        # critical first

`coverage` and `ready` count replicas by the name of their service; a name that is missing has none.
The order of a catalog decides between services of equal coverage and priority.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.errors import BadRecord
from formation_p2p.core.keyspace import KEY_BITS, Key
from formation_p2p.core.units import GIB
from formation_p2p.dht.core import messages as kad
from formation_p2p.dht.core.operations import Answer, Asked, Searched
from formation_p2p.features.services.core.events import ServiceStep, SpecPublished
from formation_p2p.features.services.core.means import Means, ignored
from formation_p2p.features.services.core.shelf import asking, catalog_name, counts_more
from formation_p2p.features.services.core.signed_spec import SignedSpec
from formation_p2p.features.services.core.spec import ServiceSpec, WorkerType
from formation_p2p.machine.core.capability import Capability
from formation_p2p.records.core.profile import SignedProfile

# Knowing the catalog: reading what its holders have, and giving them what they lack.


class CatalogReader:
    """Of a worker it reads again and again, from `start` to `stop`."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._name = catalog_name(means.network_id)
        self._due_s = float("inf")
        self._located = False
        self._goes_on = False
        self._young_until_s = float("-inf")

    def start(self, now: Moment) -> None:
        if not self._goes_on:
            self._young_until_s = now.mono_s + self._means.parameters.young_s
        self._goes_on = True
        self._due_s = min(self._due_s, now.mono_s + self._means.rng.random())

    def stop(self) -> None:
        self._goes_on = False
        self._due_s = float("inf")

    def tick(self, now: Moment) -> None:
        if now.mono_s >= self._due_s:
            self._due_s = float("inf")
            self.read(now, self._again)

    def next_timeout(self) -> float:
        return self._due_s

    def read(self, now: Moment, then: Callable[[bool, Moment], None], width: int = 1) -> None:
        """`then` gets whether any holder answered; what it has is known by then."""
        if not self._located:
            self._locate(now, lambda now: self._ask(now, then, width))
        else:
            self._ask(now, then, width)

    def publish(self, signed: SignedSpec, now: Moment) -> None:
        """Ends in SpecPublished."""
        means = self._means
        try:
            means.shelf.open_spec(signed.raw, now)
        except BadRecord as error:
            self._published(signed, 0, str(error))
            return
        known = means.shelf.catalog.specs.get(signed.spec.name)
        # The same signed at another time has another digest. Whether that counts is chance, and
        # where it does, all replicas are started anew: what is known is put again.
        if known is not None and known.spec == signed.spec and _lasts(known, signed, now):
            counts = known
        elif means.shelf.catalog.take(signed):
            counts = signed
        else:
            why = "a newer version is known; publish one with a higher version"
            self._published(signed, 0, why)
            return
        self._locate(now, lambda now: self._put(counts, signed, now))

    def _put(self, counts: SignedSpec, signed: SignedSpec, now: Moment) -> None:
        means = self._means
        put = kad.PutValue(self._name, counts.raw)
        asked = [(contact, put) for contact in means.holders.nearest(self._name, now)]
        then = partial(self._stored, signed)
        means.inquiries.ask(asked, now, "publish", then, len(asked))

    def _stored(self, signed: SignedSpec, ended: Asked, now: Moment) -> None:
        self._means.holders.answered(self._name, ended.answers, now)
        stored = len(ended.good)
        why = "" if stored else "no peer took it; is this node connected?"
        self._published(signed, stored, why)
        if stored:
            why = f"version {signed.spec.version}, at {stored} peers"
            self._means.emit(signed.spec.name, 0, ServiceStep.PUBLISHED, why, now)

    def _published(self, signed: SignedSpec, stored: int, why: str) -> None:
        told = SpecPublished(signed.digest, stored, why, cause="publish")
        self._means.effects.append(told)

    def _again(self, answered: bool, now: Moment) -> None:
        if not self._goes_on:
            return
        ours = self._means.parameters
        every_s = ours.catalog_s + ours.catalog_node_s * self._means.dht_size()
        is_empty = not self._means.shelf.catalog.specs and now.mono_s < self._young_until_s
        if not answered or is_empty:
            # In a network that has just begun the next peer may be the first that knows of any.
            self._located = False
            every_s = ours.catalog_retry_s
        spread = 0.8 + 0.4 * self._means.rng.random()
        self._due_s = now.mono_s + min(every_s, ours.max_catalog_s) * spread

    def _locate(self, now: Moment, then: Callable[[Moment], None]) -> None:
        def located(ended: Searched[SignedProfile], now: Moment) -> None:
            self._located = bool(ended.closest)
            self._means.holders.found(self._name, ended.closest)
            then(now)

        width = self._means.parameters.holders
        self._means.inquiries.search(kad.FindNode(self._name), now, "catalog", located, width)

    def _ask(self, now: Moment, then: Callable[[bool, Moment], None], width: int) -> None:
        means = self._means
        holders = means.holders.nearest(self._name, now)
        others = [each for each in holders if each.peer_id != means.peer_id] or list(holders)
        chosen = means.rng.sample(others, min(width, len(others)))
        target = Key(means.rng.getrandbits(KEY_BITS))
        request = asking(self._name, kad.MAX_RECORDS, target, means.shelf.catalog.hash)
        answered = partial(self._answered, then)
        asked: list[tuple[Contact, kad.GetProviders | kad.PutValue]]
        asked = [(contact, request) for contact in chosen]
        means.inquiries.ask(asked, now, "catalog", answered, width)

    def _answered(self, then: Callable[[bool, Moment], None], ended: Asked, now: Moment) -> None:
        means = self._means
        means.holders.answered(self._name, ended.answers, now)
        for answer in ended.good:
            self._merge(answer, now)
        then(bool(ended.good), now)

    def _merge(self, answer: Answer, now: Moment) -> None:
        """Take what a holder has, and give it what it lacks, or has an older version of."""
        means, reply = self._means, answer.reply
        if not isinstance(reply, kad.Providers) or reply.count is None:
            return
        if not reply.providers and reply.count.members == len(means.shelf.catalog.specs):
            return  # it knows the same
        theirs: dict[str, SignedSpec] = {}
        for provider in reply.providers:
            try:
                signed = means.shelf.open_spec(provider.profile, now)
            except BadRecord:
                continue
            theirs[signed.spec.name] = signed
            means.shelf.catalog.take(signed)
        if reply.count.members > len(reply.providers):
            return  # a part of it alone: what is not in it may be there
        puts = [
            (answer.to, kad.PutValue(self._name, ours.raw))
            for name, ours in means.shelf.catalog.specs.items()
            if name not in theirs or counts_more(ours, theirs[name])
        ]
        if puts:
            means.inquiries.ask(puts, now, "read repair", ignored, len(puts))


def _lasts(known: SignedSpec, signed: SignedSpec, now: Moment) -> bool:
    """For half as long yet as it would if it were published anew."""
    whole_s = signed.expires_unix_s - signed.issued_unix_s
    return known.expires_unix_s - now.unix_s >= whole_s / 2


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


def more_workers(kind: WorkerType, count: int) -> str:
    """`2 more GPU workers`"""
    shown = kind.value.upper() if kind in (WorkerType.GPU, WorkerType.CPU) else kind.value
    return f"{count} more {shown} worker{'s' if count > 1 else ''}"


def wanted(found: Iterable[Gap]) -> dict[WorkerType, int]:
    """How many more workers of each type would have every service ready somewhere, for people: "we
    need 2 more GPU workers". Types that lack none are left out."""
    lacking: dict[WorkerType, int] = {}
    for gap in found:
        if gap.status is GapStatus.CRITICAL:
            lacking[gap.required_type] = lacking.get(gap.required_type, 0) + 1
    return lacking
