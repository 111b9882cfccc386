"""Files that a caller gives with a job and that are too large to travel with its tasks: they travel
by content, and are held until the job is over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from formation_p2p.core.units import KIB
from formation_p2p.core.workload.blob import Blob
from formation_p2p.core.workload.inputs_from import changed, process_in
from formation_p2p.core.workload.plan import Plan
from formation_p2p.core.workload.process import ProcessSpec

# A file up to here goes with the task: to fetch it would take a round trip more.
INLINE_BYTES: Final = 256 * KIB


def has_large(plan: Plan) -> bool:
    """Whether a file of a task is too large to go with it."""
    processes = (process_in(task.work) for task in plan.tasks)
    return any(
        len(content) > INLINE_BYTES
        for process in processes
        if process is not None
        for content in process.files_in.values()
    )


def by_content(plan: Plan, keep: Callable[[bytes], Blob]) -> Plan:
    """The plan, with its large files kept by `keep`, each once, and named as inputs. Raises what
    `keep` does."""
    kept: dict[int, Blob] = {}  # by identity: the plan has all of them meanwhile

    def named(process: ProcessSpec) -> ProcessSpec:
        small: dict[str, bytes] = {}
        inputs = dict(process.inputs)
        for name, content in process.files_in.items():
            if len(content) <= INLINE_BYTES:
                small[name] = content
                continue
            if id(content) not in kept:
                kept[id(content)] = keep(content)
            inputs[name] = kept[id(content)]
        return replace(process, files_in=small, inputs=inputs)

    return Plan(
        tuple(
            task if process_in(task.work) is None else replace(task, work=changed(task.work, named))
            for task in plan.tasks
        )
    )
