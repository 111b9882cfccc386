"""Which workers are asked for: as conditions that are tried for many, and as one exact answer."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import floor, isfinite
from typing import Final

from benchmarks.placement.columns import (
    CEILING,
    Amount,
    AtLeast,
    Condition,
    HasNames,
    Names,
    bits_of,
    whole_mib,
)
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import MIB
from formation_p2p.machine.core.bounds import shown
from formation_p2p.machine.core.fits import fits, fits_now
from formation_p2p.machine.core.gpu import WHOLE_GPU_MILLI
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.records.core.profile import Profile

# 1 KiB each. The tasks of a job ask for the same, or for a few things.
_QUESTIONS_REMEMBERED: Final = 4096
_IDLE: Final = (Amount.MEMORY, Amount.STORAGE, Amount.CPU, Amount.NETWORK)
_FREE: Final = (Amount.FREE_MEMORY, Amount.FREE_STORAGE, Amount.FREE_CPU, Amount.FREE_NETWORK)


@dataclass(frozen=True, slots=True)
class Question:
    """Workers whose profile is valid at `now_unix_s`, is not too dear, and fits the needs: an idle
    machine does or, with `free_now`, what is free on it. Raises InvalidInput."""

    needs: Requirements
    now_unix_s: float
    free_now: bool = False
    max_price_micro: int | None = None

    def __post_init__(self) -> None:
        _check(self.needs, self.now_unix_s, self.max_price_micro)

    def admits(self, profile: Profile) -> bool:
        """The answer for one worker, in some 3 us."""
        if profile.expires_unix_s <= self.now_unix_s:
            return False
        if self.max_price_micro is not None and profile.price_micro > self.max_price_micro:
            return False
        needs, has, labels = self.needs, profile.capability, dict(profile.labels)
        if self.free_now:
            return fits_now(needs, has, labels, profile.drivers, profile.capacity) is None
        return fits(needs, has, labels, profile.drivers) is None

    def conditions(self) -> tuple[Condition, ...]:
        """What everyone who is admitted meets, the rarest first. Never empty."""
        lasting, _ = _lasting(self.needs, self.free_now, self.max_price_micro)
        return (*lasting, AtLeast(Amount.EXPIRES, min(self._first_second(), CEILING)))

    def settled(self) -> bool:
        """Whether all who meet the conditions are admitted, so that none need be asked."""
        _, exact = _lasting(self.needs, self.free_now, self.max_price_micro)
        return exact and self._first_second() <= CEILING

    def _first_second(self) -> int:
        """At which a profile may expire. An empty slot has 0, which is never late enough."""
        return max(floor(self.now_unix_s) + 1, 1)


def _check(needs: object, now_unix_s: object, max_price_micro: object) -> None:
    if not isinstance(needs, Requirements):
        hint = "write it like parse_requirements('cpu=1')"
        raise InvalidInput("needs", f"{shown(needs)} is no Requirements; {hint}")
    if not isinstance(now_unix_s, int | float) or not isfinite(now_unix_s):
        raise InvalidInput(
            "now_unix_s", f"{shown(now_unix_s)} is no time; write seconds since 1970"
        )
    if max_price_micro is not None and type(max_price_micro) is not int:
        problem = f"{shown(max_price_micro)} is no price; write a whole number of millionths"
        raise InvalidInput("max_price_micro", problem)


@lru_cache(maxsize=_QUESTIONS_REMEMBERED)
def _lasting(
    needs: Requirements, free_now: bool, max_price_micro: int | None
) -> tuple[tuple[Condition, ...], bool]:
    """The conditions that are the same at all times, and whether who meets them is admitted."""
    labels, labels_too, kinds = _names(needs)
    sizes = _amounts(needs, free_now, max_price_micro)
    amounts = [AtLeast(column, min(least, CEILING)) for column, least, _ in sizes if least > 0]
    devices = _devices(needs, free_now)
    asked: list[Condition] = [labels, *devices, kinds, *amounts, labels_too]
    conditions = [each for each in asked if isinstance(each, AtLeast) or any(each.masks)]
    coarse = needs.labels or needs.driver or needs.gpu_count
    exact = all(exact and least <= CEILING for _, least, exact in sizes)
    return tuple(conditions), exact and not coarse


def _names(needs: Requirements) -> tuple[HasNames, HasNames, HasNames]:
    """Inexact: several names may have the bits of one."""
    driver = bits_of(Names.KINDS, [("driver", needs.driver)] if needs.driver else [])
    kinds = [driver | bits_of(Names.KINDS, [("model", each)]) for each in needs.gpu_models]
    return (
        HasNames(Names.LABELS, (bits_of(Names.LABELS, needs.labels),)),
        HasNames(Names.LABELS_TOO, (bits_of(Names.LABELS_TOO, needs.labels),)),
        HasNames(Names.KINDS, tuple(kinds) or (driver,)),
    )


def _devices(needs: Requirements, free_now: bool) -> list[AtLeast]:
    """Inexact: one device may have the memory, and another the version."""
    if needs.gpu_count == 0:
        return []
    asked = {
        Amount.GPUS: needs.gpu_count,
        Amount.GPU_MEMORY: whole_mib(needs.gpu_memory_bytes),
        Amount.GPU_CC: needs.gpu_compute_capability,
    }
    if free_now and needs.gpu_share_milli == WHOLE_GPU_MILLI:
        asked[Amount.FREE_GPUS] = needs.gpu_count
    elif free_now:
        asked[Amount.FREE_SHARE] = needs.gpu_share_milli
    return [AtLeast(column, least) for column, least in asked.items() if least > 0]


def _amounts(
    needs: Requirements, free_now: bool, max_price_micro: int | None
) -> list[tuple[Amount, int, bool]]:
    """The least value in each column, and whether that says all."""
    memory, storage, cpu, network = _FREE if free_now else _IDLE
    sizes = ((memory, needs.memory_bytes), (storage, needs.storage_bytes))
    asked = [(column, size // MIB, size % MIB == 0) for column, size in sizes]
    asked += [(cpu, needs.cpu_milli, True), (network, needs.network_mbps, True)]
    if max_price_micro is not None:
        cheapness = CEILING - max_price_micro
        asked.append((Amount.CHEAPNESS, cheapness, cheapness > 0))
    return asked
