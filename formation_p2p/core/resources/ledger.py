"""A worker's own reservations: they alone decide about its capacity.

Amounts are integers and devices have names, so that reservations and releases in any order end
where they began.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

from formation_p2p.core.errors import InvalidInput, ensure
from formation_p2p.core.refusals import Busy, Infeasible
from formation_p2p.core.resources.capability import Capability, Capacity, GpuFree, amounts, idle
from formation_p2p.core.resources.fits import GpuClaim, claims_on, lacks_room
from formation_p2p.core.resources.requirements import Requirements

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
    """Reservations against a fixed capability, to which `Limits` have been applied. `claims`
    chooses the devices. Labels and drivers are checked before, by `fits`."""

    def __init__(self, capability: Capability, claims: Claims = claims_on) -> None:
        self.max_reservations = MAX_RESERVATIONS
        self._capability = capability
        self._claims = claims
        self._free = idle(capability)
        self._reservations: dict[str, Reservation] = {}

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

    def release(self, reservation_id: str) -> bool:
        """Gives back exactly what was taken; False for an unknown id."""
        reservation = self._reservations.pop(reservation_id, None)
        if reservation is not None:
            self._free = _moved(self._free, reservation, +1)
        return reservation is not None

    def validate(self, held: Collection[str]) -> None:
        """Raises InvariantBroken where what is free and what is reserved do not add up to what
        there is, or where the ids of the reservations are not those `held`."""
        ensure(self._reservations.keys() == set(held), "the ledger reserves for other leases")
        whole = self._free
        for reservation in self._reservations.values():
            whole = _moved(whole, reservation, +1)
        ensure(whole == idle(self._capability), "what is free and reserved is not all there is")


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
