"""What the members of a gang have together, and which of it is whose.

A pool is made of machines, and maps back to them: what no machine holds alone is divided into a
part for each of several.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from formation_p2p.core.identity import PeerId
from formation_p2p.core.refusals import Infeasible
from formation_p2p.machine.core.bounds import AMOUNTS
from formation_p2p.machine.core.capability import Capability, Capacity, GpuFree, amounts
from formation_p2p.machine.core.fits import claims_on, fits
from formation_p2p.machine.core.gpu import WHOLE_GPU_MILLI
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.placement.core.task_options import Needs, needs_of


@dataclass(frozen=True, slots=True)
class PoolAmounts:
    """`gpus` are counts by model."""

    cpu_milli: int = 0
    memory_bytes: int = 0
    storage_bytes: int = 0
    network_mbps: int = 0
    gpus: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PoolMember:
    """A machine. `rank` is that of a gang's member, None for one that is no member yet; `reserved`
    what the gang holds of it, with these devices. `used_cpu_milli` and `used_memory_bytes` are what
    its tasks used when that was last reported."""

    peer_id: PeerId
    capability: Capability
    free: Capacity
    rank: int | None = None
    reserved: Requirements | None = None
    device_ids: tuple[str, ...] = ()
    used_cpu_milli: int = 0
    used_memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Pool:
    """`total` is what the machines lend, `free` what was not leased when they last announced it,
    less what the gang has leased since, `reserved` what the gang holds, `used` what its tasks
    use."""

    members: tuple[PoolMember, ...]

    @property
    def total(self) -> PoolAmounts:
        models = Counter(gpu.model for each in self.members for gpu in each.capability.gpus)
        return PoolAmounts(*_sums([amounts(x.capability) for x in self.members]), models)

    @property
    def free(self) -> PoolAmounts:
        models: Counter[str] = Counter()
        for each in self.members:
            whole = {x.device_id for x in each.free.gpus if x.share_milli == WHOLE_GPU_MILLI}
            models.update(x.model for x in each.capability.gpus if x.device_id in whole)
        return PoolAmounts(*_sums([amounts(x.free) for x in self.members]), models)

    @property
    def reserved(self) -> PoolAmounts:
        held = [amounts(each.reserved) for each in self.members if each.reserved is not None]
        models = Counter(
            gpu.model
            for each in self.members
            for gpu in each.capability.gpus
            if gpu.device_id in each.device_ids
        )
        return PoolAmounts(*_sums(held), models)

    @property
    def used(self) -> PoolAmounts:
        cpu_milli = sum(each.used_cpu_milli for each in self.members)
        return PoolAmounts(cpu_milli, sum(each.used_memory_bytes for each in self.members))

    def member(self, rank: int) -> PoolMember | None:
        return next((each for each in self.members if each.rank == rank), None)

    def whose(self, device_id: str) -> tuple[PoolMember, ...]:
        """The machines that have a GPU of this id: one, unless two number theirs alike."""
        return tuple(
            each
            for each in self.members
            if any(gpu.device_id == device_id for gpu in each.capability.gpus)
        )

    def divided(self, needs: Needs) -> Mapping[PeerId, Requirements] | Infeasible:
        """A share of `needs` for each of as few machines as hold them together, in proportion to
        what is free there; or what is lacking. A GPU is not divided, and other fields, such as
        labels, hold for each share."""
        needs = needs_of(needs)[0]
        able = [each for each in self.members if _is_able(needs, each)]
        able.sort(key=lambda each: (-_part_of(needs, each), each.peer_id))
        lacking = _lacking(needs, able)
        if lacking is not None:
            return lacking
        most = next(n for n in range(1, len(able) + 1) if _lacking(needs, able[:n]) is None)
        chosen = able[:most]
        shares = [
            _shared(needed, [amounts(each.free)[place] for each in chosen], least)
            for place, (needed, least) in enumerate(zip(amounts(needs), (1, 1, 0, 0), strict=True))
        ]
        gpus_left = needs.gpu_count
        divided = {}
        for place, each in enumerate(chosen):
            gpus = min(_able_gpus(needs, each), gpus_left)
            gpus_left -= gpus
            cpu_milli, memory_bytes, storage_bytes, network_mbps = (
                share[place] for share in shares
            )
            divided[each.peer_id] = replace(
                _with_gpus(needs, gpus),
                cpu_milli=cpu_milli,
                memory_bytes=memory_bytes,
                storage_bytes=storage_bytes,
                network_mbps=network_mbps,
            )
        return divided


def less(free: Capacity, needs: Requirements, device_ids: Collection[str] = ()) -> Capacity:
    """What is left of free capacity once `needs` is leased there, with these devices: at least
    nothing, since what is free was announced a while ago."""
    left = (max(has - taken, 0) for has, taken in zip(amounts(free), amounts(needs), strict=True))
    share_milli = needs.gpu_share_milli
    gpus = []
    for gpu in free.gpus:
        if gpu.device_id in device_ids:
            part_bytes = gpu.memory_bytes * share_milli // max(gpu.share_milli, share_milli)
            taken_bytes = needs.gpu_memory_bytes or part_bytes
            gpu = GpuFree(
                gpu.device_id,
                max(gpu.share_milli - share_milli, 0),
                0 if share_milli == WHOLE_GPU_MILLI else max(gpu.memory_bytes - taken_bytes, 0),
            )
        gpus.append(gpu)
    cpu_milli, memory_bytes, storage_bytes, network_mbps = left
    return Capacity(cpu_milli, memory_bytes, storage_bytes, network_mbps, tuple(gpus))


def _sums(rows: Sequence[tuple[int, int, int, int]]) -> tuple[int, int, int, int]:
    cpu_milli, memory_bytes, storage_bytes, network_mbps = (
        sum(row[place] for row in rows) for place in range(len(AMOUNTS))
    )
    return cpu_milli, memory_bytes, storage_bytes, network_mbps


def _with_gpus(needs: Requirements, count: int) -> Requirements:
    if count:
        return replace(needs, gpu_count=count)
    return replace(
        needs,
        gpu_count=0,
        gpu_memory_bytes=0,
        gpu_compute_capability=0,
        gpu_models=(),
        gpu_share_milli=WHOLE_GPU_MILLI,
        gpu_vendor="",
    )


def _is_able(needs: Requirements, member: PoolMember) -> bool:
    """Whether any share could run there: by all that is not an amount."""
    least = replace(
        _with_gpus(needs, 0),
        cpu_milli=1,
        memory_bytes=1,
        storage_bytes=0,
        network_mbps=0,
        labels=(),
    )
    room = member.free.cpu_milli > 0 and member.free.memory_bytes > 0
    return room and fits(least, member.capability, {}, (needs.driver,)) is None


def _able_gpus(needs: Requirements, member: PoolMember) -> int:
    """How many GPUs as these needs want them are free there."""
    count = min(needs.gpu_count, len(member.capability.gpus))
    while count:
        least = replace(
            needs, gpu_count=count, cpu_milli=1, memory_bytes=1, storage_bytes=0, network_mbps=0
        )
        if not isinstance(claims_on(least, member.capability, member.free), Infeasible):
            break
        count -= 1
    return count


def _part_of(needs: Requirements, member: PoolMember) -> float:
    """The least part of what is needed that is free there, of all that is needed."""
    pairs = [*zip(amounts(needs), amounts(member.free), strict=True)]
    pairs.append((needs.gpu_count, _able_gpus(needs, member)))
    return min(min(free / needed, 1.0) for needed, free in pairs if needed)


def _lacking(needs: Requirements, members: Sequence[PoolMember]) -> Infeasible | None:
    free = _sums([amounts(each.free) for each in members])
    for resource, needed, has in zip(AMOUNTS, amounts(needs), free, strict=True):
        if needed > has or needed < len(members) * (resource in ("cpu", "memory")):
            return Infeasible(resource, needed, has)
    gpus = sum(_able_gpus(needs, each) for each in members)
    return Infeasible("gpu", needs.gpu_count, gpus) if gpus < needs.gpu_count else None


def _shared(needed: int, free: Sequence[int], least: int) -> list[int]:
    """In proportion, in whole units, each at least so much and at most what is free there."""
    total = max(sum(free), 1)
    shares = [min(max(needed * each // total, least), each) for each in free]
    for place, each in enumerate(free):
        change = needed - sum(shares)
        shares[place] = min(max(shares[place] + change, least), each)
    return shares
