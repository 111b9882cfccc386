"""The files that tasks of a job have made for later ones, and the workers that keep them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.inputs_from import outputs_of
from formation_p2p.workload.core.work import Task

if TYPE_CHECKING:
    from formation_p2p.jobs.core.task_run import TaskRun

# One worker that cannot reach the keeper of a file may be to blame itself.
WITNESSES: Final = 2


@dataclass(frozen=True, slots=True)
class _Made:
    """By a run of a task that has succeeded."""

    run: TaskRun
    worker: PeerId
    blobs: Mapping[str, Blob]


class Outputs:
    """Of the tasks of one job: which of them others wait for by their files, and the files of those
    that have succeeded."""

    def __init__(self, tasks: Iterable[Task]) -> None:
        self._names: dict[str, set[str]] = {}
        self._reads: Counter[str] = Counter()  # of each, by tasks that have not ended
        for task in tasks:
            for each in task.inputs_from:
                self._names.setdefault(each.task_id, set()).add(each.output)
            self.reader_ended(task, -1)
        self._made: dict[str, _Made] = {}
        self._never: set[str] = set()

    def read(self, task_id: str, result: bytes) -> Mapping[str, Blob] | None:
        """The files that others read, from a result; None where it does not have all of them."""
        names = self._names.get(task_id)
        if names is None:
            return {}
        try:
            found = outputs_of(result)
        except InvalidInput:
            return None
        return {name: found[name] for name in names} if names <= found.keys() else None

    def made(self, run: TaskRun, worker: PeerId, blobs: Mapping[str, Blob]) -> None:
        if run.task.task_id in self._names:
            self._made[run.task.task_id] = _Made(run, worker, blobs)

    def held(self, run: TaskRun, sources: tuple[Contact, ...]) -> None:
        """These workers have what it has made, by now."""
        made = self._made.get(run.task.task_id)
        if made is not None and made.run is run:
            blobs = {name: replace(x, sources=sources) for name, x in made.blobs.items()}
            self._made[run.task.task_id] = replace(made, blobs=blobs)

    def missing(self, task: Task) -> dict[str, None]:
        """The tasks whose files it reads, and which are to make them, or to make them again."""
        return {x.task_id: None for x in task.inputs_from if x.task_id not in self._made}

    def of(self, task: Task) -> tuple[dict[str, Blob], PeerId]:
        """The files that it reads, all of them made, and the worker that keeps most of them."""
        inputs: dict[str, Blob] = {}
        kept: Counter[PeerId] = Counter()
        for each in task.inputs_from:
            made = self._made[each.task_id]
            blob = inputs[each.name] = made.blobs[each.output]
            kept[made.worker] += blob.size_bytes
        return inputs, kept.most_common(1)[0][0]

    def reader_ended(self, task: Task, more: int = 1) -> None:
        """It reads its files no more; with -1, it is to read them."""
        for each in task.inputs_from:
            self._reads[each.task_id] -= more

    def needed(self) -> Iterator[tuple[PeerId, Blob]]:
        """The files that tasks are yet to read, or read now, and the workers that keep them."""
        for task_id, made in self._made.items():
            if self._reads[task_id]:
                yield from ((made.worker, blob) for blob in made.blobs.values())

    def never(self, task: Task) -> str | None:
        """The task that will not make a file that this one reads, if there is one."""
        return next((x.task_id for x in task.inputs_from if x.task_id in self._never), None)

    def gave_up(self, task_id: str) -> None:
        """It has ended and brought no result."""
        if task_id in self._names:
            self._never.add(task_id)

    def lost(self, run: TaskRun, name: str, worker: PeerId) -> list[tuple[TaskRun, PeerId]]:
        """A worker could not have an input of this run. Returns the tasks that are to make their
        files once more, and who kept them: all of the same keeper that the run reads, if that has
        lost them itself, or another worker has missed them too."""
        source = next((each for each in run.task.inputs_from if each.name == name), None)
        made = None if source is None else self._made.get(source.task_id)
        if source is None or made is None:
            return []  # not one of those, or to be made again
        if dict(run.inputs)[name] != made.blobs[source.output]:
            return []  # made again meanwhile
        witnesses = sum(each.lost for each in run.attempts)
        if worker != made.worker and witnesses < WITNESSES:
            return []
        gone = [
            task_id
            for task_id in {each.task_id: None for each in run.task.inputs_from}
            if task_id in self._made and self._made[task_id].worker == made.worker
        ]
        return [(self._made.pop(task_id).run, made.worker) for task_id in gone]
