"""The memory of tasks that do not ask for any, from what earlier runs of their kind have used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from formation_p2p.core.units import MIB
from formation_p2p.machine.core.bounds import DEFAULT_MEMORY_BYTES, MAX_MEMORY_BYTES
from formation_p2p.workload.core.learnt import HEADROOM_PERCENT, PERCENTILE, learnt_in_words
from formation_p2p.workload.core.work import MAX_KIND_CHARS, MIN_MEMORY_BYTES, Work

# Fewer say little of the next one.
MIN_RUNS: Final = 5
# Of one kind. Needs change with the program: older samples tell of an older one.
MAX_SAMPLES: Final = 200
# Many more than a person has programs.
MAX_KINDS: Final = 1_000
# Sizes are multiples of this, so that tasks whose needs are nearly the same share leases.
_STEP_BYTES: Final = 16 * MIB


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """The memory for tasks of a kind, which begins with the driver: `process:train.py`.

    It is the 95th percentile of what the last runs have used, and a fifth more. A task that is
    stopped at that limit is tried again with more, so that an estimate never fails what the default
    would run.
    """

    kind: str
    runs: int
    memory_bytes: int

    @property
    def more_bytes(self) -> int:
        """The memory for another attempt of a task that was stopped at its limit."""
        return min(max(2 * self.memory_bytes, DEFAULT_MEMORY_BYTES), MAX_MEMORY_BYTES)

    def __str__(self) -> str:
        return learnt_in_words(self.kind, self.runs, self.memory_bytes)


def learn(kind: str, used_bytes: Sequence[int]) -> MemoryEstimate | None:
    """From the memory that earlier runs have used; None where they are too few."""
    if len(used_bytes) < MIN_RUNS:
        return None
    ranked = sorted(used_bytes)
    most = ranked[-(-PERCENTILE * len(ranked) // 100) - 1]
    wanted = max(-(-most * (100 + HEADROOM_PERCENT) // 100), MIN_MEMORY_BYTES)
    stepped = -(-wanted // _STEP_BYTES) * _STEP_BYTES
    return MemoryEstimate(kind, len(ranked), min(stepped, MAX_MEMORY_BYTES))


def kind_of(work: Work, name: str = "") -> str:
    """The name under which the memory of a piece of work is learnt: the one given, or what it
    runs. Empty where that says nothing, such as a command in the arguments of a shell."""
    named = name or str(getattr(work, "kind", ""))
    kind = f"{work.driver}:{named}" if named else ""
    return kind if len(kind) <= MAX_KIND_CHARS and kind.isprintable() else ""
