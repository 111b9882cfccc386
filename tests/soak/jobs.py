"""The kinds of job that the soak submits, and what is right as their results.

A job is named after its kind and its seed, from which both its work and its results follow: who
finds it in a state knows what belongs there.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from formation_p2p import ProcessResult, ProcessSpec, TaskResult, python_calls, value_of
from formation_p2p.core.units import MIB
from formation_p2p.workload.core.work import Work
from tests.soak.calls import doubled, escaped, squared
from tests.support.programs import ROOT
from tests.support.sandboxes import WHY_NONE

NEEDS: Final = "cpu=0.25,memory=64MiB"
TASKS: Final = 4
# Larger than what travels in a message, and small enough for two cores and a disk of others.
LARGE_BYTES: Final = 3 * MIB
LARGE_TASKS: Final = 2
# Tens of megabytes each in the submitter: it does one at a time, and each first, so that it has
# settled soon.
HEAVY: Final = ("large", "map")
# Of ten jobs.
KINDS: tuple[str, ...] = ("process",) * 4 + ("calls",) * 4 + ("large",) + ("map",)
# Of a hostile member, one for ten others: its tasks look for ways out of their sandbox.
if not WHY_NONE:
    KINDS += ("escape",)


@dataclass(frozen=True)
class Drawn:
    """A job of a kind, drawn by its seed."""

    kind: str
    seed: int

    @classmethod
    def named(cls, name: str) -> Drawn:
        kind, seed = name.split()
        return cls(kind, int(seed))

    @property
    def name(self) -> str:
        return f"{self.kind} {self.seed}"

    @property
    def numbers(self) -> range:
        return range(self.seed, self.seed + TASKS)

    @property
    def large(self) -> list[bytes]:
        rng = random.Random(self.seed)
        return [rng.randbytes(LARGE_BYTES) for _ in range(LARGE_TASKS)]

    def work(self) -> Iterable[Work]:
        match self.kind:
            case "process":
                return [
                    ProcessSpec(("sh", "-c", f"sleep 0.{number % 3}; echo {number}"))
                    for number in self.numbers
                ]
            case "calls":
                return python_calls(squared, self.numbers)
            case "escape":
                return python_calls(escaped, [str(ROOT)] * TASKS)
            case _:
                return python_calls(doubled, self.large)

    def is_right(self, results: Sequence[TaskResult]) -> bool:
        """Of tasks that all succeeded, in their order."""
        match self.kind:
            case "process":
                printed = [ProcessResult.decode(each.result).stdout_tail for each in results]
                return printed == [b"%d\n" % number for number in self.numbers]
            case "calls":
                return [value_of(each) for each in results] == [n * n for n in self.numbers]
            case "escape":
                return not any(value_of(each) for each in results)
            case _:
                return [value_of(each) for each in results] == [d + d for d in self.large]
