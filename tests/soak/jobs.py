"""The kinds of job that the soak submits, and what is right as their results.

A job is named after its kind and its seed, from which both its work and its results follow: who
finds it in a state knows what belongs there.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from formation_p2p import (
    ProcessResult,
    ProcessSpec,
    TaskOptionKwargs,
    TaskResult,
    python_calls,
    value_of,
)
from formation_p2p.core.units import MIB
from formation_p2p.workload.core.outcome import FailureKind
from formation_p2p.workload.core.work import Work
from tests.soak.calls import doubled, escaped, squared, takes
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
# Of a hostile member, two for ten others: tasks that look for ways out of their sandbox; and tasks
# that take memory which is no data, or threads, until they are ended, and beside them one that does
# not.
GREEDY: Final = ("tables", "messages", "threads")
GREEDY_NEEDS: Final = "cpu=0.25,memory=256MiB"
ENDED: Final = (FailureKind.EXIT, FailureKind.MEMORY)
if not WHY_NONE:
    KINDS += ("escape", "greedy")


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

    @property
    def options(self) -> TaskOptionKwargs:
        """A greedy task ends alike on each worker."""
        if self.kind == "greedy":
            return {"needs": GREEDY_NEEDS, "attempts": 1}
        return {"needs": NEEDS}

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
            case "greedy":
                return [*python_calls(takes, GREEDY), *python_calls(squared, [self.seed])]
            case _:
                return python_calls(doubled, self.large)

    def failures(self, results: Sequence[TaskResult]) -> list[str]:
        """Why those brought no result that were to bring one."""
        due = results[len(GREEDY) :] if self.kind == "greedy" else results
        return [str(each.error()) for each in due if each.status != "succeeded"]

    def hostile_ends(self, results: Sequence[TaskResult]) -> list[str]:
        """How each hostile task has ended, after its name."""
        match self.kind:
            case "escape":
                return [f"escape: {', '.join(value_of(each)) or 'held'}" for each in results]
            case "greedy":
                ends = zip(GREEDY, results, strict=False)
                return [f"{name}: {each.kind or value_of(each) or 'held'}" for name, each in ends]
            case _:
                return []

    def is_right(self, results: Sequence[TaskResult]) -> bool:
        """Of all tasks, in their order, without `failures`."""
        match self.kind:
            case "process":
                printed = [ProcessResult.decode(each.result).stdout_tail for each in results]
                return printed == [b"%d\n" % number for number in self.numbers]
            case "calls":
                return [value_of(each) for each in results] == [n * n for n in self.numbers]
            case "escape":
                return not any(value_of(each) for each in results)
            case "greedy":
                tables, messages, threads, beside = results
                return (
                    tables.kind is messages.kind is FailureKind.MEMORY
                    # Of root's the kernel counts none, and they are ended.
                    and (threads.kind in ENDED or (not threads.kind and not value_of(threads)))
                    and value_of(beside) == self.seed**2
                )
            case _:
                return [value_of(each) for each in results] == [d + d for d in self.large]
