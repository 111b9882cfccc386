"""What `Node.submit` does with a plan: large files and arguments are kept, tasks are made, and the
job begins."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from formation_p2p.api.bridge import Bridge
from formation_p2p.api.durable import DurableJobs
from formation_p2p.api.environments import resolved
from formation_p2p.api.job import JobHandle
from formation_p2p.api.opened import NodeServices
from formation_p2p.api.planned_calls import with_parcels
from formation_p2p.core.units import KIB
from formation_p2p.jobs.core.job import Job
from formation_p2p.placement.core.data_rules import within_rules
from formation_p2p.placement.core.task_options import TaskOptions
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.code_bundle import Code
from formation_p2p.workload.core.environment import Environment
from formation_p2p.workload.core.inputs_from import changed, process_in
from formation_p2p.workload.core.plan import Plan, tasks_of
from formation_p2p.workload.core.process import ProcessSpec

# Files that a caller gives with a job and that are too large to travel with its tasks: they travel
# by content, and are held until the job is over.
# A file up to here goes with the task: to fetch it would take a round trip more.
INLINE_BYTES: Final = 256 * KIB
# To hash and to write them takes a core each; the job begins once all are kept.
_KEPT_AT_ONCE: Final = 4


def has_large(plan: Plan) -> bool:
    """Whether a file of a task is too large to go with it."""
    return next(_large(plan), None) is not None


def _large(plan: Plan) -> Iterator[bytes]:
    for task in plan.tasks:
        if (process := process_in(task.work)) is not None:
            yield from (x for x in process.files_in.values() if len(x) > INLINE_BYTES)


def by_content(plan: Plan, keep: Callable[[bytes], Blob]) -> Plan:
    """The plan, with its large files kept by `keep`, each once, and named as inputs. Raises what
    `keep` does."""
    # By identity: the plan has all of them meanwhile.
    large = {id(content): content for content in _large(plan)}
    with ThreadPoolExecutor(_KEPT_AT_ONCE) as pool:
        kept = dict(zip(large, pool.map(keep, large.values()), strict=True))

    def named(process: ProcessSpec) -> ProcessSpec:
        small: dict[str, bytes] = {}
        inputs = dict(process.inputs)
        for name, content in process.files_in.items():
            if len(content) <= INLINE_BYTES:
                small[name] = content
                continue
            inputs[name] = kept[id(content)]
        return replace(process, files_in=small, inputs=inputs)

    return Plan(
        tuple(
            task if process_in(task.work) is None else replace(task, work=changed(task.work, named))
            for task in plan.tasks
        )
    )


@dataclass(frozen=True, slots=True)
class Submission:
    """Of a node. `durable` are its jobs where it has a state."""

    services: NodeServices
    bridge: Bridge
    durable: DurableJobs | None

    async def begin(
        self, plan: Plan, code: Code | None, name: str, chosen: TaskOptions, *, shown: bool
    ) -> JobHandle:
        """Raises InvalidInput, LocalError, StateError; nothing is held for the job then."""
        chosen = await resolved(chosen, self.services.with_environment)
        job_id = secrets.token_hex(8)
        try:
            return await self._begin(plan, code, name, chosen, job_id, shown=shown)
        except BaseException:
            self.services.over(job_id)
            if self.durable is not None:
                self.durable.let_go(job_id)
            raise

    async def _begin(
        self,
        plan: Plan,
        code: Code | None,
        name: str,
        chosen: TaskOptions,
        job_id: str,
        *,
        shown: bool,
    ) -> JobHandle:
        services, durable = self.services, self.durable
        environment = chosen.env if isinstance(chosen.env, Environment) else None
        if code is not None and durable is not None:
            hold = partial(services.blobs.hold, job_id, (code.blob.cid,), durable=True)
            await asyncio.to_thread(hold)
        given, estimates = chosen.memory_given, None
        if chosen.learn:
            kinds = plan.kinds(memory_given=given)
            estimates = await asyncio.to_thread(services.sizes.learnt, kinds) if kinds else {}
        if has_large(plan):
            held = durable is not None
            keep = partial(services.add, holder=job_id, rule=services.rule(), durable=held)
            plan = await asyncio.to_thread(by_content, plan, keep)
        chosen = within_rules(chosen, plan)
        packer = self.bridge.packer if durable is None else durable.packer(job_id)
        plan, parcels = await asyncio.to_thread(with_parcels, plan, job_id, packer)
        with packer.releasing(parcels):
            tasks, sizes = tasks_of(
                plan, job_id, chosen.needs, estimates, environment, memory_given=given
            )
            job = Job(job_id, tasks, name, chosen, code)
        if durable is not None:
            services.submitted(job)
            return await durable.begin(job, sizes, show_output=shown)
        handle = JobHandle(job, self.bridge, sizes=sizes, over=services.over, show_output=shown)
        self.bridge.begin(job, handle, parcels)
        return handle
