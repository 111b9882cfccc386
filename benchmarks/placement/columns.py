"""Profiles as columns of numbers, and conditions on them that are tried for many at once.

A column may be coarser than the profile: amounts of memory are in whole MiB, names are bits, and
of several GPUs it has the most that any of them has. Who does not pass here cannot pass at all.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import lru_cache
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from formation_p2p.core.keyspace import KEY_BITS, Key
from formation_p2p.core.units import MIB
from formation_p2p.machine.core.gpu import WHOLE_GPU_MILLI
from formation_p2p.records.core.profile import Profile

# The most that a column of amounts holds; more is held as this.
CEILING: Final = 2**32 - 1
# A name is up to six of the 64 bits of its column, as in a Bloom filter: of workers with four
# labels, one in a thousand seems to have a label that it has not, and one in a million by both
# columns. Whatever names strangers think up, they are bits of their own slots only; a list of
# known names could be filled by them.
_BITS_OF_NAME: Final = 6
# 100 bytes each. Names come from strangers.
_NAMES_REMEMBERED: Final = 65_536
# Where fewer than one in so many is left, the rest is looked up one by one.
_FEW: Final = 16
_LOW_BITS: Final = KEY_BITS - 64

Slots: TypeAlias = npt.NDArray[np.intp]
Flags: TypeAlias = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Steps:
    """How a table is read and grows. Smaller steps show in a small table what a large one does."""

    # The neighbourhood of a key is tried in blocks, each four times as large as the one before,
    first_block: int = 128
    block_growth: int = 4
    # up to a 512th of the table: a slot tried by itself takes as long as a hundred of a scan.
    neighbourhood: int = 512
    # So many are put in order at a time; as a rule the first are enough.
    ordered_at_once: int = 64
    # Slots tried at a time by a scan, so that what they leave fits into a core's cache.
    scanned_at_once: int = 32_768
    least_room: int = 256


LARGE_STEPS: Final = Steps()


class Amount(IntEnum):
    """Columns of which a least value may be asked. `EXPIRES` is 0 where a slot is empty."""

    CPU = 0
    MEMORY = 1
    STORAGE = 2
    NETWORK = 3
    GPUS = 4
    GPU_MEMORY = 5
    GPU_CC = 6
    FREE_CPU = 7
    FREE_MEMORY = 8
    FREE_STORAGE = 9
    FREE_NETWORK = 10
    FREE_GPUS = 11
    FREE_SHARE = 12
    CHEAPNESS = 13
    EXPIRES = 14


class Names(IntEnum):
    """Columns of which certain bits may be asked. `LABELS_TOO` are other bits of the labels, for
    the few that are left; `KINDS` are drivers and models of GPUs."""

    LABELS = 0
    LABELS_TOO = 1
    KINDS = 2


@dataclass(frozen=True, slots=True)
class AtLeast:
    column: Amount
    least: int

    def test(self, columns: Columns, where: Slots | slice) -> Flags:
        flags: Flags = columns.amounts[self.column][where] >= np.uint32(self.least)
        return flags


@dataclass(frozen=True, slots=True)
class HasNames:
    """Every bit of one of `masks`, of which there is at least one."""

    column: Names
    masks: tuple[int, ...]

    def test(self, columns: Columns, where: Slots | slice) -> Flags:
        bits = columns.names[self.column][where]
        first, *others = (np.uint64(mask) for mask in self.masks)
        flags: Flags = bits & first == first
        for mask in others:
            flags |= bits & mask == mask
        return flags


Condition: TypeAlias = AtLeast | HasNames


class Columns:
    """A number for each slot in each column, and room for twice as many slots when they run out."""

    def __init__(self, steps: Steps = LARGE_STEPS) -> None:
        self._steps = steps
        self.amounts = np.zeros((len(Amount), 0), np.uint32)
        self.names = np.zeros((len(Names), 0), np.uint64)
        # The first 64 bits of each key.
        self.prefixes = np.zeros(0, np.uint64)

    def write(self, slot: int, key: Key, profile: Profile) -> None:
        if slot >= len(self.prefixes):
            self._widen()
        self.prefixes[slot] = key >> _LOW_BITS
        self.amounts[:, slot] = _amounts_of(profile)
        self.names[:, slot] = _names_of(profile)

    def erase(self, slot: int) -> None:
        self.amounts[Amount.EXPIRES, slot] = 0

    def passing(self, conditions: Sequence[Condition], slots: Slots) -> Slots:
        """Those of `slots` that meet all conditions, in their order."""
        for condition in conditions:
            slots = slots[condition.test(self, slots)]
        return slots

    def scan(self, conditions: Sequence[Condition], end: int) -> Slots:
        """All slots below `end` that meet all conditions, of which there is at least one."""
        at_once = self._steps.scanned_at_once
        found = [
            self._scan(conditions, start, min(start + at_once, end))
            for start in range(0, end, at_once)
        ]
        return np.concatenate([np.empty(0, np.intp), *found])

    def nearest_first(self, slots: Slots, target: Key) -> tuple[Slots, npt.NDArray[np.uint64]]:
        """By the first 64 bits of their distance, and these bits."""
        far = self.prefixes[slots] ^ np.uint64(target >> _LOW_BITS)
        order = np.argsort(far)
        return slots[order], far[order]

    def _widen(self) -> None:
        had = len(self.prefixes)
        room = max(2 * had, self._steps.least_room)
        amounts, names, prefixes = self.amounts, self.names, self.prefixes
        self.amounts = np.zeros((len(Amount), room), np.uint32)
        self.names = np.zeros((len(Names), room), np.uint64)
        self.prefixes = np.zeros(room, np.uint64)
        self.amounts[:, :had], self.names[:, :had], self.prefixes[:had] = amounts, names, prefixes

    def _scan(self, conditions: Sequence[Condition], start: int, end: int) -> Slots:
        flags = conditions[0].test(self, slice(start, end))
        for done, condition in enumerate(conditions[1:], 1):
            if np.count_nonzero(flags) * _FEW < end - start:
                return self.passing(conditions[done:], np.flatnonzero(flags) + start)
            flags &= condition.test(self, slice(start, end))
        return np.flatnonzero(flags) + start


def bits_of(column: Names, names: Iterable[tuple[str, str]]) -> int:
    """Of keys and values, kinds and names: the same bits on every machine."""
    bits = 0
    for name in names:
        bits |= _bits_of(column, name)
    return bits


@lru_cache(maxsize=_NAMES_REMEMBERED)
def _bits_of(column: Names, name: tuple[str, str]) -> int:
    digest = hashlib.sha256(f"{column} {name[0]}={name[1]}".encode()).digest()
    bits = 0
    for byte in digest[:_BITS_OF_NAME]:
        bits |= 1 << byte % 64
    return bits


def whole_mib(size: int) -> int:
    return min(size // MIB, CEILING)


def _amounts_of(profile: Profile) -> tuple[int, ...]:
    """In the order of `Amount`. What is free is never more than what there is."""
    has, free = profile.capability, profile.capacity
    gpus = {gpu.device_id for gpu in has.gpus}
    shares = [left.share_milli for left in free.gpus if left.device_id in gpus]
    return (
        has.cpu_milli,
        whole_mib(has.memory_bytes),
        whole_mib(has.storage_bytes),
        has.network_mbps,
        len(gpus),
        whole_mib(max((gpu.memory_bytes for gpu in has.gpus), default=0)),
        max((gpu.compute_capability for gpu in has.gpus), default=0),
        min(has.cpu_milli, free.cpu_milli),
        whole_mib(min(has.memory_bytes, free.memory_bytes)),
        whole_mib(min(has.storage_bytes, free.storage_bytes)),
        min(has.network_mbps, free.network_mbps),
        shares.count(WHOLE_GPU_MILLI),
        max(shares, default=0),
        CEILING - min(profile.price_micro, CEILING),
        min(profile.expires_unix_s, CEILING),
    )


def _names_of(profile: Profile) -> tuple[int, ...]:
    """In the order of `Names`."""
    kinds = [("driver", driver) for driver in profile.drivers]
    kinds += [("model", gpu.model) for gpu in profile.capability.gpus]
    return (
        bits_of(Names.LABELS, profile.labels),
        bits_of(Names.LABELS_TOO, profile.labels),
        bits_of(Names.KINDS, kinds),
    )
