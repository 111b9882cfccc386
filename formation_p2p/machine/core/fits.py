"""Whether a machine can run a task: None, or the first reason why not.

`fits` looks at the machine, `fits_now` at its free capacity as well. For profiles of other machines
the answer is advice; a worker's own `Ledger` decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from operator import attrgetter
from typing import Final

from formation_p2p.core.errors import InvalidInput, ensure
from formation_p2p.core.refusals import Busy, Infeasible
from formation_p2p.machine.core.bounds import AMOUNTS
from formation_p2p.machine.core.capability import Capability, Capacity, GpuFree, amounts, idle
from formation_p2p.machine.core.environment import packages_of
from formation_p2p.machine.core.gpu import WHOLE_GPU_MILLI, Gpu
from formation_p2p.machine.core.python import ANY_PYTHON
from formation_p2p.machine.core.requirements import Requirements


@dataclass(frozen=True, slots=True)
class GpuClaim:
    """The part of one device that a task takes: thousandths of it, and bytes of its memory."""

    device_id: str
    share_milli: int
    memory_bytes: int


def fits(
    needs: Requirements,
    capability: Capability,
    labels: Mapping[str, str],
    drivers: Collection[str],
) -> Infeasible | None:
    """Whether the machine could run it when idle."""
    if needs.driver and needs.driver not in drivers:
        return Infeasible("driver", needs.driver, ",".join(sorted(drivers)) or "none")
    for key, value in needs.labels:
        if labels.get(key) != value:
            return Infeasible(f"label.{key}", value, labels.get(key, "none"))
    if packages_of(needs.environment) and not capability.installs:
        return Infeasible("packages", "uv", "none")
    lacking = _lacks_python(needs, capability) or _lacks_amount(needs, capability)
    return lacking or _refusal(_able_devices(needs, capability))


def _lacks_python(needs: Requirements, capability: Capability) -> Infeasible | None:
    offered = capability.pythons
    if needs.python not in ("", ANY_PYTHON):
        offered = tuple(each for each in offered if each.name == needs.python)
        if not offered:
            others = ",".join(each.name for each in capability.pythons)
            return Infeasible("python", needs.python, others or "none")
    if needs.cloudpickle and all(each.cloudpickle != needs.cloudpickle for each in offered):
        others = ",".join(sorted({str(each.cloudpickle) for each in offered}))
        return Infeasible("cloudpickle", needs.cloudpickle, others or "none")
    return None


def fits_now(
    needs: Requirements,
    capability: Capability,
    labels: Mapping[str, str],
    drivers: Collection[str],
    capacity: Capacity,
) -> Infeasible | None:
    """Whether it could start at once."""
    return fits(needs, capability, labels, drivers) or lacks_room(needs, capability, capacity)


def lacks_room(
    needs: Requirements, capability: Capability, capacity: Capacity
) -> Infeasible | None:
    """Why it could not start at once on a machine with its labels and drivers."""
    return _refusal(claims_on(needs, capability, capacity))


def claims_on(
    needs: Requirements, capability: Capability, capacity: Capacity
) -> tuple[GpuClaim, ...] | Infeasible:
    """The devices to take, if all amounts are free; labels and drivers are not looked at.

    Best fit, and deterministic: whole devices are the smallest that will do, shares come from the
    fullest, so that large and idle devices remain for tasks that need them.
    """
    lacking = _lacks_amount(needs, capacity)
    if lacking is not None:
        return lacking
    able = _able_devices(needs, capability)
    if isinstance(able, Infeasible):
        return able
    if needs.gpu_count == 0:
        return ()
    free = {each.device_id: each for each in capacity.gpus}
    if needs.gpu_share_milli == WHOLE_GPU_MILLI:
        return _whole_devices(needs, able, free)
    return _parts_of_devices(needs, able, free)


def _refusal(answer: object) -> Infeasible | None:
    return answer if isinstance(answer, Infeasible) else None


def _lacks_amount(needs: Requirements, has: Capability | Capacity) -> Infeasible | None:
    for resource, needed, free in zip(AMOUNTS, amounts(needs), amounts(has), strict=True):
        if needed > free:
            return Infeasible(resource, needed, free)
    return None


def _able_devices(needs: Requirements, capability: Capability) -> list[Gpu] | Infeasible:
    """The devices that satisfy every GPU field when idle; at least `gpu_count` of them."""
    count = needs.gpu_count
    able = list(capability.gpus)
    if len(able) < count:
        return Infeasible("gpu", count, len(able))
    if needs.gpu_vendor:
        able = [gpu for gpu in able if gpu.vendor == needs.gpu_vendor]
        if len(able) < count:
            has = ",".join(sorted({gpu.vendor for gpu in capability.gpus}))
            return Infeasible("gpu.vendor", f"{count} by {needs.gpu_vendor}", has)
    if needs.gpu_models:
        able = [gpu for gpu in able if gpu.model in needs.gpu_models]
        if len(able) < count:
            kinds = sorted(Counter(gpu.model for gpu in capability.gpus).items())
            has = ", ".join(f"{number} of {model}" for model, number in kinds)
            return Infeasible("gpu.model", f"{count} of {'|'.join(needs.gpu_models)}", has)
    if count == 0:
        return able
    # Of the best `count` devices the last one decides.
    last = sorted((gpu.compute_capability for gpu in able), reverse=True)[count - 1]
    if last < needs.gpu_compute_capability:
        return Infeasible("gpu.cc", needs.gpu_compute_capability, last)
    able = [gpu for gpu in able if gpu.compute_capability >= needs.gpu_compute_capability]
    last = sorted((gpu.memory_bytes for gpu in able), reverse=True)[count - 1]
    if last < needs.gpu_memory_bytes:
        return Infeasible("gpu.memory", needs.gpu_memory_bytes, last)
    return [gpu for gpu in able if gpu.memory_bytes >= needs.gpu_memory_bytes]


def _whole_devices(
    needs: Requirements, able: list[Gpu], free: Mapping[str, GpuFree]
) -> tuple[GpuClaim, ...] | Infeasible:
    smallest = sorted(able, key=lambda x: (x.memory_bytes, x.compute_capability, x.device_id))
    left = [free[gpu.device_id] for gpu in smallest if gpu.device_id in free]
    unused = [each for each in left if each.share_milli == WHOLE_GPU_MILLI]
    if len(unused) < needs.gpu_count:
        return Infeasible("gpu", needs.gpu_count, len(unused))
    roomy = [each for each in unused if each.memory_bytes >= needs.gpu_memory_bytes]
    if len(roomy) < needs.gpu_count:
        memory = sorted((each.memory_bytes for each in unused), reverse=True)
        return Infeasible("gpu.memory", needs.gpu_memory_bytes, memory[needs.gpu_count - 1])
    chosen = roomy[: needs.gpu_count]
    return tuple(GpuClaim(x.device_id, WHOLE_GPU_MILLI, x.memory_bytes) for x in chosen)


def _parts_of_devices(
    needs: Requirements, able: list[Gpu], free: Mapping[str, GpuFree]
) -> tuple[GpuClaim, ...] | Infeasible:
    count, share = needs.gpu_count, needs.gpu_share_milli
    left = {gpu.device_id: free.get(gpu.device_id, GpuFree(gpu.device_id, 0, 0)) for gpu in able}
    shares = sorted((each.share_milli for each in left.values()), reverse=True)
    if shares[count - 1] < share:
        return Infeasible("gpu.share", share, shares[count - 1])
    claims = []
    for gpu in able:
        if left[gpu.device_id].share_milli >= share:
            memory = needs.gpu_memory_bytes or gpu.memory_bytes * share // WHOLE_GPU_MILLI
            claims.append(GpuClaim(gpu.device_id, share, memory))
    claims.sort(key=lambda claim: claim.memory_bytes - left[claim.device_id].memory_bytes)
    short = claims[count - 1]
    if short.memory_bytes > left[short.device_id].memory_bytes:
        return Infeasible("gpu.memory", short.memory_bytes, left[short.device_id].memory_bytes)
    roomy = [each for each in claims if each.memory_bytes <= left[each.device_id].memory_bytes]
    fullness = attrgetter("share_milli", "memory_bytes", "device_id")
    roomy.sort(key=lambda claim: fullness(left[claim.device_id]))
    return tuple(roomy[:count])


# Holds and leases of one machine. Needs may be as small as a thousandth of a core, so cores
# alone would not bound the table; four for each core of the largest machines do.
MAX_RESERVATIONS: Final = 1024


@dataclass(frozen=True, slots=True)
class Reservation:
    """Taken under one id: the amounts of `needs`, and the parts of devices in `gpus`."""

    reservation_id: str
    needs: Requirements
    gpus: tuple[GpuClaim, ...]


Claims = Callable[[Requirements, Capability, Capacity], tuple[GpuClaim, ...] | Infeasible]


class Ledger:
    """A worker's own reservations against a fixed capability, to which `Limits` have been applied:
    they alone decide about its capacity. `claims` chooses the devices. Labels and drivers are
    checked before, by `fits`.

    Amounts are integers and devices have names, so that reservations and releases in any order end
    where they began.
    """

    def __init__(self, capability: Capability, claims: Claims = claims_on) -> None:
        self.max_reservations = MAX_RESERVATIONS
        self._capability = capability
        self._claims = claims
        self._free = self._idle = idle(capability)
        self._reservations: dict[str, Reservation] = {}
        self._aside: set[str] = set()

    @property
    def free(self) -> Capacity:
        return self._free

    def with_back(self, free: Capacity, reservation_id: str) -> Capacity:
        """`free` with a reservation given back; unchanged where there is none."""
        held = self._reservations.get(reservation_id)
        return free if held is None else _moved(free, held, +1)

    def with_taken(self, free: Capacity, reservation_id: str) -> Capacity:
        """Undoes `with_back`."""
        held = self._reservations.get(reservation_id)
        return free if held is None else _moved(free, held, -1)

    def lacks(self, needs: Requirements, free: Capacity) -> Infeasible | None:
        """Why these needs do not fit into this free capacity; None where they do."""
        return lacks_room(needs, self._capability, free)

    def reserve(self, reservation_id: str, needs: Requirements) -> Reservation | Infeasible | Busy:
        """All or nothing. The same id and needs again give the same reservation; with other needs
        it raises InvalidInput."""
        held = self._reservations.get(reservation_id)
        if held is not None:
            if held.needs != needs:
                raise InvalidInput("reservation", "this id holds other needs; release it first")
            return held
        if len(self._reservations) >= self.max_reservations:
            return Busy("the ledger", self.max_reservations)
        claims = self._claims(needs, self._capability, self._free)
        if isinstance(claims, Infeasible):
            return claims
        reservation = Reservation(reservation_id, needs, claims)
        self._free = _moved(self._free, reservation, -1)
        self._reservations[reservation_id] = reservation
        return reservation

    def retake(self, reservation: Reservation) -> bool:
        """Take what was released, the same devices too, if all of it is free."""
        if len(self._reservations) >= self.max_reservations:
            return False
        if _lacks_amount(reservation.needs, self._free) is not None:
            return False
        free = {gpu.device_id: gpu for gpu in self._free.gpus}
        for claim in reservation.gpus:
            gpu = free[claim.device_id]
            if gpu.share_milli < claim.share_milli or gpu.memory_bytes < claim.memory_bytes:
                return False
        self._free = _moved(self._free, reservation, -1)
        self._reservations[reservation.reservation_id] = reservation
        return True

    def release(self, reservation_id: str) -> bool:
        """Gives back exactly what was taken; False for an unknown id."""
        reservation = self._reservations.pop(reservation_id, None)
        self._aside.discard(reservation_id)
        if reservation is not None:
            self._free = _moved(self._free, reservation, +1)
        return reservation is not None

    def set_aside(self, reservation_id: str, needs: Requirements) -> Reservation | None:
        """Reserve what is not to be leased, until `release`; None where there was no room."""
        held = self.reserve(reservation_id, needs)
        if not isinstance(held, Reservation):
            return None
        self._aside.add(reservation_id)
        return held

    def validate(self, held: Collection[str]) -> None:
        """Raises InvariantBroken where what is free and what is reserved do not add up to what
        there is, or where the ids of the reservations are not those `held` and set aside."""
        ensure(
            self._reservations.keys() == {*held, *self._aside},
            "the ledger reserves for other leases",
        )
        whole = self._free
        for reservation in self._reservations.values():
            whole = _moved(whole, reservation, +1)
        ensure(whole == self._idle, "what is free and reserved is not all there is")


def _moved(free: Capacity, reservation: Reservation, sign: int) -> Capacity:
    """`free` with the reservation given back (+1) or taken (-1)."""
    gpus = {gpu.device_id: gpu for gpu in free.gpus}
    for claim in reservation.gpus:
        gpu = gpus[claim.device_id]
        share_milli = gpu.share_milli + sign * claim.share_milli
        memory_bytes = gpu.memory_bytes + sign * claim.memory_bytes
        gpus[claim.device_id] = GpuFree(claim.device_id, share_milli, memory_bytes)
    needs = amounts(reservation.needs)
    cpu, memory, storage, network = (
        amount + sign * part for amount, part in zip(amounts(free), needs, strict=True)
    )
    return Capacity(cpu, memory, storage, network, tuple(gpus.values()))
