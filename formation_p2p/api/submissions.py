"""Jobs as the application hands them in, and finds them again where they are kept."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from formation_p2p.api.bridge import JobBridge
from formation_p2p.api.durable import DurableJobs
from formation_p2p.api.job import JobHandle
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.placement.policy import PlacementPolicy
from formation_p2p.core.workload.memory_estimate import MemoryEstimate
from formation_p2p.core.workload.plan import Plan, TaskDefaults, tasks_of
from formation_p2p.core.workload.task import Job, Task
from formation_p2p.host.policies import parse_policy
from formation_p2p.host.storage.memory_samples import MemorySamples
from formation_p2p.host.storage.rows import JobSummary


class Submissions:
    """`durable` where the node has a state; `begun` is told of each job that goes there, as the
    desk's is of the others."""

    def __init__(
        self,
        desk: JobBridge,
        durable: DurableJobs | None,
        sizes: MemorySamples,
        begun: Callable[[Job], None],
    ) -> None:
        self._desk = desk
        self._durable = durable
        self._sizes = sizes
        self._begun = begun

    async def tasks_of(
        self, plan: Plan, job_id: str, terms: TaskDefaults, *, learn: bool
    ) -> tuple[tuple[Task, ...], tuple[MemoryEstimate, ...]]:
        """As in core/workload/plan.py, with what this machine has learnt."""
        if learn:
            kinds = plan.kinds(memory_given=terms.memory_given)
            learnt = await asyncio.to_thread(self._sizes.learnt, kinds) if kinds else {}
            terms = replace(terms, learnt=learnt)
        return tasks_of(plan, job_id, terms)

    async def begin(self, job: Job, policy: PlacementPolicy) -> JobHandle:
        """Raises InvalidInput, NodeClosed, StateError."""
        if self._durable is None:
            handle = JobHandle(job, self._desk, policy=policy)
            self._desk.begin(job, handle, policy)
            return handle
        if not _has_a_name(policy):
            problem = "the node's state keeps none of one's own; name one, or join without a state"
            raise InvalidInput("policy", problem)
        self._begun(job)
        return await self._durable.begin(job)

    def under_way(self) -> tuple[JobHandle, ...]:
        return () if self._durable is None else tuple(self._durable.under_way().values())

    async def find(self, job_id: str) -> JobHandle:
        """Raises InvalidInput, StateError."""
        if self._durable is None:
            raise InvalidInput("state", "this node keeps no jobs; join with state=…")
        return await self._durable.job(job_id)

    async def kept(self) -> tuple[JobSummary, ...]:
        """Raises StateError."""
        return () if self._durable is None else await self._durable.summaries()


def _has_a_name(policy: PlacementPolicy) -> bool:
    """By which another life of the node, which may not have its code, can make it again."""
    try:
        return parse_policy(str(policy)) == policy
    except InvalidInput:
        return False
