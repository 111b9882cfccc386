"""Files that a caller gives with a job and that are too large to travel with its tasks: they travel
by content, and are held until the job is over."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Final

from formation_p2p.core.units import KIB
from formation_p2p.core.workload.blob import Blob
from formation_p2p.core.workload.inputs_from import changed, process_in
from formation_p2p.core.workload.plan import Plan
from formation_p2p.core.workload.process import ProcessSpec

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
