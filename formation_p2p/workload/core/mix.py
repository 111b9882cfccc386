"""The mix of tasks with GPUs that the network has seen, by which `packed` measures fragments.

A worker remembers the last few tasks with GPUs that it was asked about, and announces them; a
scheduler adds up what its candidates announce. Sixteen such memories of eight tasks place as well
as the true distribution does (docs/explanation/performance.md), and follow it when it changes.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple, Self

from formation_p2p.core.errors import InvalidInput
from formation_p2p.machine.core.bounds import check_amount, shown
from formation_p2p.machine.core.gpu import WHOLE_GPU_MILLI
from formation_p2p.machine.core.requirements import Requirements

# Tasks that a worker remembers. With twice as many its placements are no better, and all of them
# fit into its profile: eight shapes of 20 bytes.
REMEMBERED: Final = 8
# Shapes in a sum of mixes. Sixteen candidates name about as many different ones, and a candidate
# is then scored in a fifth of a millisecond.
MAX_SHAPES: Final = 32


class Shape(NamedTuple):
    """The part of a task's needs that can leave a GPU idle for want of something else.

    Memory and storage of the machine are left out, as in the paper that
    `placement/core/fragmentation.py` names: with memory the measured placements were no better.
    """

    cpu_milli: int
    gpu_count: int
    gpu_share_milli: int
    gpu_memory_bytes: int = 0
    gpu_compute_capability: int = 0
    gpu_models: tuple[str, ...] = ()

    @classmethod
    def of(cls, needs: Requirements) -> Self:
        return cls(*(getattr(needs, name) for name in cls._fields))


@dataclass(frozen=True, slots=True)
class Mix:
    """Shapes of tasks and how often each was seen: the most frequent first, none twice."""

    shapes: tuple[tuple[Shape, int], ...]

    @property
    def weight(self) -> int:
        """The number of tasks."""
        return sum(count for _, count in self.shapes)


# What is expected before anything was seen: mostly whole devices, some halves and quarters, each
# with as many cores as rented machines have of them. The placements of a cluster's first minutes
# last; with no expectation at all they cost 0.15 per cent of its GPUs.
_NEWCOMER: Final = (
    *[Shape(8000, 1, WHOLE_GPU_MILLI)] * 5,
    *[Shape(4000, 1, WHOLE_GPU_MILLI // 2)] * 2,
    Shape(2000, 1, WHOLE_GPU_MILLI // 4),
)


class Seen:
    """The last tasks with GPUs that a worker was asked about."""

    def __init__(self) -> None:
        self._last = deque(_NEWCOMER, REMEMBERED)

    def see(self, needs: Requirements) -> None:
        """Tasks without GPUs are not remembered: every GPU is useless to them."""
        if needs.gpu_count:
            self._last.append(Shape.of(needs))

    @property
    def mix(self) -> Mix:
        return _counted(Counter(self._last))


def merged(mixes: Iterable[Mix]) -> Mix:
    """The sum of several; `EMPTY_MIX` of none."""
    counts: Counter[Shape] = Counter()
    for mix in mixes:
        for shape, count in mix.shapes:
            counts[shape] += count
    return _counted(counts) if counts else EMPTY_MIX


def pack_mix(mix: Mix) -> list[list[object]]:
    """For CBOR. The mix of a newcomer is not written out: every peer has it."""
    if mix == EMPTY_MIX:
        return []
    return [[count, *shape[:-1], list(shape.gpu_models)] for shape, count in mix.shapes]


def unpack_mix(value: object) -> Mix:
    """One worker's. Raises InvalidInput, also for more tasks than a worker remembers: all workers
    count the same."""
    if not isinstance(value, list):
        raise InvalidInput("mix", f"{shown(value)} is not a list of shapes")
    if not value:
        return EMPTY_MIX
    counts: Counter[Shape] = Counter()
    for item in value[: REMEMBERED + 1]:
        match item:
            case [int(count), *amounts, [*models]] if len(amounts) == len(Shape._fields) - 1:
                fields = zip(Shape._fields, (*amounts, tuple(models)), strict=True)
                needs = Requirements(**dict(fields))
                check_amount("gpu", needs.gpu_count, 1, needs.gpu_count)
                check_amount("mix.count", count, 1, REMEMBERED)
                counts[Shape.of(needs)] += count
            case _:
                raise InvalidInput("mix", f"{shown(item)} is not a shape of seven fields")
    if counts.total() > REMEMBERED:
        raise InvalidInput("mix", f"has more than {REMEMBERED} tasks; a worker remembers so many")
    return _counted(counts)


def _counted(counts: Counter[Shape]) -> Mix:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return Mix(tuple(ordered[:MAX_SHAPES]))


EMPTY_MIX: Final = Seen().mix
