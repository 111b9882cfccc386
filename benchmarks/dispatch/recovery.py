"""How long the tasks of a worker that died were nowhere, by what their job told."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from formation_p2p import JobEvent, TaskBegan, TaskPlaced, TaskSucceeded


@dataclass(frozen=True, slots=True)
class Told:
    """An event, and when it was heard of, on the clock that the kill is timed with."""

    at_s: float
    event: JobEvent


@dataclass(frozen=True, slots=True)
class Recovery:
    """`tasks` were the dead worker's, and all of them ran elsewhere `took_s` after its death."""

    tasks: int
    took_s: float


def recovery(reported: Iterable[Told], dead: str, killed_s: float) -> Recovery:
    """A task is the dead worker's where its last placement is, be that told after the death, until
    it runs elsewhere; what it ended is not. Raises ValueError where one never ran elsewhere."""
    lost: set[str] = set()
    recovered = 0
    took_s = 0.0
    for each in reported:
        match each.event:
            case TaskPlaced(task_id, _, worker) if worker == dead:
                lost.add(task_id)
            case TaskPlaced(task_id) if each.at_s <= killed_s:
                lost.discard(task_id)  # it was moved while both lived
            case TaskSucceeded(task_id, worker) if worker == dead:
                lost.discard(task_id)
            case TaskBegan(task_id, worker) | TaskSucceeded(task_id, worker):
                if task_id in lost and worker != dead:
                    lost.discard(task_id)
                    recovered += 1
                    took_s = max(took_s, each.at_s - killed_s)
            case _:
                pass
    if lost:
        raise ValueError(f"{len(lost)} tasks of the dead worker never ran elsewhere")
    return Recovery(recovered, took_s)
