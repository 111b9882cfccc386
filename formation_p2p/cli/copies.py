"""What the copies of a task print: with a quorum several workers run each task, and one result
counts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from formation_p2p.core.dispatch.job_events import (
    JobEvent,
    TaskDisagreed,
    TaskGaveUp,
    TaskPrinted,
    TaskRetried,
    TaskSucceeded,
)
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import MIB

# Of each copy, as calls pass on of what they print.
MAX_HELD_BYTES: Final = 16 * MIB
# That each piece takes in memory, however short it is.
EVENT_BYTES: Final = 256


def passed_on(quorum: object) -> Callable[[JobEvent], Sequence[JobEvent]]:
    """What is shown of each event of a job. With a quorum, what a copy prints is held until its
    task has a result, and shown where the result is that of its worker."""
    return (lambda event: (event,)) if quorum is None else _Copies().passed_on


@dataclass(slots=True)
class _Printed:
    events: list[TaskPrinted] = field(default_factory=list)
    size_bytes: int = 0


class _Copies:
    def __init__(self) -> None:
        self._held: dict[str, dict[PeerId, _Printed]] = {}  # by task

    def passed_on(self, event: JobEvent) -> Sequence[JobEvent]:
        match event:
            case TaskPrinted(task_id, _, data, worker):
                held = self._held.setdefault(task_id, {}).setdefault(worker, _Printed())
                held.size_bytes += len(data) + EVENT_BYTES
                if held.size_bytes <= MAX_HELD_BYTES:
                    held.events.append(event)
                return ()
            case TaskRetried(task_id, attempt):
                self._held.get(task_id, {}).pop(attempt.worker, None)
            case TaskSucceeded(task_id, worker):
                held = self._held.pop(task_id, {}).get(worker, _Printed())
                return (*held.events, event)
            case TaskGaveUp(task_id) | TaskDisagreed(task_id):
                self._held.pop(task_id, None)
            case _:
                pass
        return (event,)
