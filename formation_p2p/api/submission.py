"""What `Node.submit` does with a plan: large files and arguments are kept, tasks are made, and the
job begins."""

from __future__ import annotations

import asyncio
import inspect
import secrets
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial, reduce
from operator import or_
from typing import Any, Final, TypeVar

from formation_p2p.api.bridge import Bridge
from formation_p2p.api.calls import context_of, qualified_name, referring, told_name
from formation_p2p.api.code import CallCode
from formation_p2p.api.durable import DurableJobs
from formation_p2p.api.job import JobHandle
from formation_p2p.api.opened import NodeServices
from formation_p2p.api.reference import Packer, good_for
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import KIB
from formation_p2p.drivers.python_checkpoint import Steps
from formation_p2p.environments.prepare import resolved
from formation_p2p.jobs.core.job import Job
from formation_p2p.machine.pythons import CLOUDPICKLE, own_name
from formation_p2p.placement.core.task_options import DEFAULT_OPTIONS, TaskOptions, within_rules
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.call_context import CallContext
from formation_p2p.workload.core.code_bundle import Code
from formation_p2p.workload.core.environment import Environment
from formation_p2p.workload.core.inputs_from import changed, process_in
from formation_p2p.workload.core.parcel import LARGE_BYTES, Parcel
from formation_p2p.workload.core.plan import Plan, PlannedTask, tasks_of
from formation_p2p.workload.core.process import ProcessSpec
from formation_p2p.workload.core.work import FunctionPickle, PythonCall, task_id

# Calls for `submit`: made without a node, which then adds the code that they need, and keeps what
# is large in them.

T = TypeVar("T")


def python_calls(function: Callable[[T], Any], items: Iterable[T]) -> list[PythonCall]:
    """One call of `function` for each item; the function is pickled once."""
    common = _call_of(function)
    modules = common.modules
    calls: list[PythonCall] = []
    for item in items:
        arguments, others, references = referring(((item,), {}))
        modules |= others
        calls.append(replace(common, arguments=arguments, references=references))
    return [replace(call, modules=modules) for call in calls]


def python_call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> PythonCall:
    """`function(*args, **kwargs)`, on whichever machine can."""
    common = _call_of(function)
    arguments, others, references = referring((args, kwargs))
    modules = common.modules | others
    return replace(common, arguments=arguments, references=references, modules=modules)


def steps_call(function: Callable[..., Generator[Any, None, Any]], /, *args: Any) -> PythonCall:
    """`function(last, *args)`, of which each step that it yields is saved: `last` is the one that
    it goes on from, or None. Raises InvalidInput for what makes no generator."""
    inner = function.func if isinstance(function, partial) else function
    if not inspect.isgeneratorfunction(inner):
        name = getattr(inner, "__qualname__", repr(inner))
        raise InvalidInput("steps", f"{name} yields nothing; write `yield state` after each step")
    return python_call(Steps(function), *args)


def _call_of(function: Callable[..., Any]) -> PythonCall:
    """Without arguments."""
    pickled, modules, references = referring(function)
    large = None
    if references or len(pickled) > LARGE_BYTES:
        large, pickled = FunctionPickle(pickled, references), b""
    kind = qualified_name(function)
    shared = context_of(pickled, told_name(function))
    return PythonCall(shared, b"", kind, own_name(), CLOUDPICKLE, modules, large_function=large)


def with_code(plan: Plan, code: CallCode, options: TaskOptions) -> tuple[Plan, Code | None]:
    """The plan with the code that its calls need, and that; and with what these may return. Blocks
    on the disk. Raises as `CallCode.of` does."""
    calls = [each.work for each in plan.tasks if isinstance(each.work, PythonCall)]
    if not calls:
        return plan, None
    sent = code.of(reduce(or_, {call.modules for call in calls}))
    if sent is None and options.max_result == DEFAULT_OPTIONS.max_result:
        return plan, None
    blob, most = None if sent is None else sent.blob, options.max_result
    contexts = {
        shared: replace(CallContext.decode(shared), code=blob, max_result_bytes=most).encode()
        for shared in {call.function for call in calls}
    }
    tasks = (
        replace(each, work=replace(each.work, function=contexts[each.work.function]))
        if isinstance(each.work, PythonCall)
        else each
        for each in plan.tasks
    )
    return Plan(tuple(tasks)), sent


def with_parcels(plan: Plan, job_id: str, packer: Packer) -> tuple[Plan, dict[str, Parcel]]:
    """The plan with what is large in its calls put into private blobs; and the parcels, by task,
    and those of functions. Raises LocalError; InvalidInput for references that are not good."""
    parcels: dict[str, Parcel] = {}
    functions: dict[tuple[bytes, int], bytes] = {}
    tasks: list[PlannedTask] = []
    try:
        for place, each in enumerate(plan.tasks):
            work = each.work
            if isinstance(work, PythonCall):
                if work.references or len(work.arguments) > LARGE_BYTES:
                    referred = good_for(packer, work.references)
                    parcel = packer.pack(work.arguments, references=referred)
                    parcels[task_id(job_id, place)] = parcel
                    work = replace(work, arguments=parcel.encode(), references=())
                large = work.large_function
                if large is not None:
                    key = work.function, id(large)
                    if key not in functions:
                        referred = good_for(packer, large.references)
                        parcel = packer.pack(large.pickled, references=referred)
                        parcels[f"function {len(functions)}"] = parcel
                        context = CallContext.decode(work.function)
                        functions[key] = replace(context, function=parcel.encode()).encode()
                    work = replace(work, function=functions[key], large_function=None)
                each = replace(each, work=work)
            tasks.append(each)
    except BaseException:
        packer.release_all(parcels.values())
        raise
    return (Plan(tuple(tasks)) if parcels else plan), parcels


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
