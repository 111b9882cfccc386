"""Records the memory that tasks use, and writes it down when their job is over."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final, NamedTuple

from formation_p2p.core.dispatch.job import Job
from formation_p2p.core.dispatch.job_events import (
    Attempt,
    EmitJobEvent,
    JobEnded,
    TaskRetried,
    TaskSucceeded,
)
from formation_p2p.core.effects import Effect, Moment
from formation_p2p.core.errors import StateError
from formation_p2p.core.peer.events import PeerEvent, Resume, Submit
from formation_p2p.core.workload.memory_estimate import MAX_SAMPLES
from formation_p2p.host.storage.memory_samples import MemorySamples, Sample

log = logging.getLogger(__name__)

# Of one job; a sweep over thousands of programs is rare.
_MAX_KEPT: Final = 10 * MAX_SAMPLES


class _Known(NamedTuple):
    """Of a task: what it has, and what it is to have if that is too little. A worker that reports
    more is wrong, or lies."""

    kind: str
    had_bytes: int
    more_bytes: int


class MemoryRecorder:
    """`observe` on the node's thread; `close` waits for what is being written."""

    def __init__(self, file: MemorySamples) -> None:
        self._file = file
        self._writer = ThreadPoolExecutor(1, "formation-sizes")
        self._kinds: dict[str, dict[str, _Known]] = {}  # by job and task
        self._samples: dict[str, deque[Sample]] = {}

    def observe(self, event: PeerEvent, effects: Sequence[Effect], now: Moment) -> None:
        if type(event) is Submit:
            self._know(event.job)
        elif type(event) is Resume:
            for saved in event.jobs:
                self._know(saved.job)
        if self._kinds:
            for effect in effects:
                if type(effect) is EmitJobEvent and effect.job_id in self._kinds:
                    self._record(effect)

    def close(self) -> None:
        for job_id in list(self._kinds):
            self._write(job_id)
        self._writer.shutdown()

    def _know(self, job: Job) -> None:
        kinds: dict[str, _Known] = {}
        same: dict[_Known, _Known] = {}  # one for all of a kind, of which there may be many
        for task in job.tasks:
            if task.kind:
                known = _Known(task.kind, task.needs.memory_bytes, task.more_memory_bytes)
                kinds[task.task_id] = same.setdefault(known, known)
        if kinds:
            self._kinds[job.job_id] = kinds
            self._samples[job.job_id] = deque(maxlen=_MAX_KEPT)

    def _record(self, emitted: EmitJobEvent) -> None:
        tasks = self._kinds[emitted.job_id]
        match emitted.event:
            case TaskRetried(task_id, Attempt(lost=False), counts=False) if task_id in tasks:
                # It had too little memory: no other failure counts for nothing.
                kind, had_bytes, more_bytes = tasks[task_id]
                tasks[task_id] = _Known(kind, max(had_bytes, more_bytes), 0)
            case TaskSucceeded(task_id, ran_ms=ran_ms, used=used) if task_id in tasks:
                if used.memory_bytes is not None:
                    kind, had_bytes, _ = tasks[task_id]
                    memory_bytes = min(used.memory_bytes, had_bytes)
                    sample = Sample(kind, ran_ms, memory_bytes, used.cpu_ms)
                    self._samples[emitted.job_id].append(sample)
            case JobEnded():
                self._write(emitted.job_id)
            case _:
                pass

    def _write(self, job_id: str) -> None:
        del self._kinds[job_id]
        if samples := tuple(self._samples.pop(job_id)):
            self._writer.submit(self._add, samples)

    def _add(self, samples: tuple[Sample, ...]) -> None:
        try:
            self._file.add(samples)
        except StateError as error:
            log.warning("memory samples are lost: %s", error)
