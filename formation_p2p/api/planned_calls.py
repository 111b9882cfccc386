"""Calls for `submit`: made without a node, which then adds the code that they need, and keeps what
is large in them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from functools import partial, reduce
from operator import or_
from typing import Any, TypeVar

from formation_p2p.api.calls import context_of, qualified_name, referring, told_name
from formation_p2p.api.code import CallCode
from formation_p2p.api.parcels import Packer
from formation_p2p.api.reference import good_for
from formation_p2p.core.errors import InvalidInput
from formation_p2p.drivers.python_checkpoint import Steps
from formation_p2p.machine.pythons import CLOUDPICKLE, own_name
from formation_p2p.placement.core.task_options import DEFAULT_OPTIONS, TaskOptions
from formation_p2p.workload.core.call_context import CallContext
from formation_p2p.workload.core.code_bundle import Code
from formation_p2p.workload.core.parcel import LARGE_BYTES, Parcel
from formation_p2p.workload.core.plan import Plan, PlannedTask
from formation_p2p.workload.core.work import FunctionPickle, PythonCall, task_id

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
