"""The output of a task that several workers run: with a quorum, only what the copies agree on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from formation_p2p.cli.outcomes import process_result
from formation_p2p.cli.words import say
from formation_p2p.core.dispatch.job_events import (
    JobEvent,
    TaskDisagreed,
    TaskGaveUp,
    TaskPrinted,
    TaskRetried,
    TaskSucceeded,
)
from formation_p2p.core.errors import TaskFailed
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import MIB, format_bytes

# The stdout of each copy that is held until the result is known: workers stream as much at most.
MAX_HELD_BYTES: Final = 16 * MIB
# Each piece takes this much memory besides, however short it is.
EVENT_BYTES: Final = 256


def passed_on(quorum: object) -> Callable[[JobEvent], Sequence[JobEvent]]:
    """The events to show for each event of a job. With a quorum, the stdout of the copies is held
    until the task has a result. Then the stdout that the result stands for is shown: the quorum
    compares its digest. Workers may stream anything, so a stream that differs from the result is
    not shown, and neither is stderr, which is not compared."""
    return (lambda event: (event,)) if quorum is None else _Copies().passed_on


@dataclass(slots=True)
class _Held:
    stdout: list[TaskPrinted] = field(default_factory=list)
    size_bytes: int = 0


class _Copies:
    def __init__(self) -> None:
        self._held: dict[str, dict[PeerId, _Held]] = {}  # by task

    def passed_on(self, event: JobEvent) -> Sequence[JobEvent]:
        match event:
            case TaskPrinted(is_stderr=True):
                return ()
            case TaskPrinted(task_id, _, data, worker):
                held = self._held.setdefault(task_id, {}).setdefault(worker, _Held())
                held.size_bytes += len(data) + EVENT_BYTES
                if held.size_bytes <= MAX_HELD_BYTES:
                    held.stdout.append(event)
                return ()
            case TaskRetried(task_id, attempt):
                self._held.get(task_id, {}).pop(attempt.worker, None)
            case TaskSucceeded(task_id, worker):
                held = self._held.pop(task_id, {}).get(worker, _Held())
                return (*_agreed(event, held.stdout), event)
            case TaskGaveUp(task_id) | TaskDisagreed(task_id):
                self._held.pop(task_id, None)
            case _:
                pass
        return (event,)


def _agreed(ended: TaskSucceeded, stdout: Sequence[TaskPrinted]) -> Sequence[TaskPrinted]:
    """The stdout of a task that has ended: of a short one the result has all."""
    try:
        result = process_result(ended.result)
    except TaskFailed:  # those that look at the result say so
        return ()
    if result.stdout_sha256:
        digest = hashlib.sha256()
        for each in stdout:
            digest.update(each.data)
        if digest.digest() == result.stdout_sha256:
            return stdout
        say(
            f"formation: the copies agree on more stdout than their workers have sent on; this is "
            f"the last {format_bytes(len(result.stdout_tail))}: write long output to a file"
        )
    if not result.stdout_tail:
        return ()
    return (TaskPrinted(ended.task_id, False, result.stdout_tail, ended.worker),)
