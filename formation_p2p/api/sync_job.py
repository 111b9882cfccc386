"""A job's handle, without `await`."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from formation_p2p.api.job import JobHandle
from formation_p2p.api.sync_loop import Synchronous, SyncLoop, calls, made, waits
from formation_p2p.core.workload.memory_estimate import MemoryEstimate
from formation_p2p.core.workload.work import Task


class SyncJob(Synchronous[JobHandle]):
    """A `JobHandle` whose results and events are waited for."""

    @property
    def job_id(self) -> str:
        return self._wrapped.job_id

    @property
    def name(self) -> str:
        return self._wrapped.name

    @property
    def tasks(self) -> tuple[Task, ...]:
        return self._wrapped.tasks

    @property
    def sizes(self) -> tuple[MemoryEstimate, ...]:
        return self._wrapped.sizes

    @property
    def is_over(self) -> bool:
        return self._wrapped.is_over

    results = waits(JobHandle.results)
    result = calls(JobHandle.result)
    story = waits(JobHandle.story)
    explain = waits(JobHandle.explain)
    cancel = calls(JobHandle.cancel)
    move = calls(JobHandle.move)

    events = made(JobHandle.events, SyncLoop.iterate)


def job_of(loop: SyncLoop, begin: Callable[[], Coroutine[Any, Any, JobHandle]]) -> SyncJob:
    return SyncJob(loop.run(begin), loop)
