"""A job before it has an id: pieces of work, and what each of them needs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.machine.core.bounds import shown
from formation_p2p.machine.core.requirements import Requirements, driven_by
from formation_p2p.workload.core.call_context import CallContext
from formation_p2p.workload.core.environment import Environment
from formation_p2p.workload.core.inputs_from import reading
from formation_p2p.workload.core.memory_estimate import MemoryEstimate, kind_of
from formation_p2p.workload.core.work import MAX_TASKS, InputFrom, Task, Work, task_id

_NO_WORK: Final = "is not work; write ProcessSpec((…)), or python_call(…)"


@dataclass(frozen=True, slots=True)
class PlannedTask:
    """`after` are the places of the tasks that must succeed before. `inputs_from` are files of
    tasks among these: the name here, the place of the task, and the name there; the work of that
    has the name among its outputs. `needs` None are the job's;
    `memory_given` is whether they give the memory. `kind` is the name under which memory use is
    recorded, where that is not what the work runs. `member` and
    `goes_on_from` are as in `Task`."""

    work: Work
    label: str = ""
    after: tuple[int, ...] = ()
    needs: Requirements | None = None
    memory_given: bool = False
    kind: str = ""
    inputs_from: tuple[tuple[str, int, str], ...] = ()
    member: tuple[str, int] | None = None
    goes_on_from: str = ""

    def __post_init__(self) -> None:
        if not hasattr(self.work, "driver") or not hasattr(self.work, "encode"):
            raise InvalidInput("work", f"{shown(self.work)} {_NO_WORK}")
        if not isinstance(self.needs, Requirements | None):
            raise InvalidInput("needs", f"{shown(self.needs)} is not Requirements")


@dataclass(frozen=True, slots=True)
class Plan:
    """The tasks of a job, as `Node.submit` takes them. Raises InvalidInput."""

    tasks: tuple[PlannedTask, ...]

    def __post_init__(self) -> None:
        count = len(self.tasks)
        if not 1 <= count <= MAX_TASKS:
            raise InvalidInput("tasks", f"a job has 1 to {MAX_TASKS} tasks, not {count}")
        if not all(0 <= each < count for task in self.tasks for each in task.after):
            raise InvalidInput("after", f"a place is not from 0 to {count - 1}")
        for task in self.tasks:
            if any(place not in task.after for _, place, _ in task.inputs_from):
                raise InvalidInput("inputs", "a task does not wait for one of which it reads files")
            if task.inputs_from:  # names that it has already, or work that reads none
                reading(task.work, [name for name, _, _ in task.inputs_from])

    def kinds(self, *, memory_given: bool) -> set[str]:
        """Of tasks without explicit memory. `memory_given` is whether the job's needs give it."""
        given = (memory_given if each.needs is None else each.memory_given for each in self.tasks)
        kinds = {
            kind_of(x.work, x.kind) for x, said in zip(self.tasks, given, strict=True) if not said
        }
        return kinds - {""}


def plan_of(work: Plan | Work | Iterable[Work], labels: Sequence[str] = ()) -> Plan:
    """`labels` name the first tasks. Raises InvalidInput."""
    if isinstance(work, Plan):
        return work
    check_texts("labels", labels)
    given: object = work
    if isinstance(given, str):  # Python takes it for its characters
        raise InvalidInput("work", f"{shown(given)} {_NO_WORK}")
    pieces = list(work) if isinstance(work, Iterable) else [work]
    named = itertools.chain(labels, itertools.repeat(""))
    return Plan(tuple(map(PlannedTask, pieces, named)))


def check_texts(field: str, given: object) -> None:
    """Refuses all but a list of texts, and one text, which Python takes for its characters."""
    if isinstance(given, str) or not isinstance(given, Sequence):
        raise InvalidInput(field, f"{shown(given)} is not a list of texts; write ['…']")
    for each in given:
        if not isinstance(each, str):
            raise InvalidInput(field, f"{shown(each)} is not a text; write it as one")


def tasks_of(
    plan: Plan,
    job_id: str,
    needs: Requirements,
    estimates: Mapping[str, MemoryEstimate] | None,
    environment: Environment | None = None,
    *,
    memory_given: bool,
) -> tuple[tuple[Task, ...], tuple[MemoryEstimate, ...]]:
    """The tasks, in this environment, and the estimates that they use. Raises InvalidInput.

    `needs` are those of tasks without their own. `estimates` are by kind; None where what the tasks
    use is not to be recorded either.
    """
    ids = [task_id(job_id, place) for place in range(len(plan.tasks))]
    used: dict[str, MemoryEstimate] = {}
    known: dict[tuple[object, ...], tuple[Requirements, str, int]] = {}
    in_environment: dict[bytes, bytes] = {}
    tasks: list[Task] = []
    for place, each in enumerate(plan.tasks):
        work = each.work
        asked, given = needs, memory_given
        if each.needs is not None:
            asked, given = each.needs, each.memory_given
        kind = "" if estimates is None else kind_of(work, each.kind)
        versions = getattr(work, "python", ""), getattr(work, "cloudpickle", 0)
        key = (asked, given, work.driver, kind, versions)
        if key not in known:
            if asked.driver not in ("", work.driver):
                raise InvalidInput("driver", f"{asked.driver} does not run a {type(work).__name__}")
            driven = driven_by(asked, work.driver, *versions)
            if environment is not None:
                python = driven.python or needs.python
                name = environment.name(python)
                driven = replace(driven, python=python, environment=name)
            estimate = None if given else (estimates or {}).get(kind)
            known[key] = driven, kind, 0
            if estimate is not None:
                used[kind] = estimate
                driven = replace(driven, memory_bytes=estimate.memory_bytes)
                known[key] = driven, kind, estimate.more_bytes
        # Not only equal, but the same for all: a hundred thousand tasks may have them.
        sized, kind, more_bytes = known[key]
        shared: bytes = getattr(work, "shared", b"")
        if environment is not None:
            if shared not in in_environment:
                in_environment[shared] = shared_in(environment, work.driver, shared)
            shared = in_environment[shared]
        after = tuple(ids[before] for before in each.after)
        files = tuple(InputFrom(name, ids[x], output) for name, x, output in each.inputs_from)
        payload = work.encode()
        named = ids[place], sized, payload, each.label
        last = each.member, each.goes_on_from
        tasks.append(Task(*named, shared, after, kind, more_bytes, files, *last))
    return tuple(tasks), tuple(used.values())


def shared_in(environment: Environment, driver: str, shared: bytes) -> bytes:
    """What pieces of work have in common, with the packages that they need. Raises InvalidInput."""
    match driver:
        case "process":
            return environment.encode()
        case "python":
            return replace(CallContext.decode(shared), environment=environment.encode()).encode()
        case _:
            raise InvalidInput("env", f"{driver} tasks bring their packages themselves")
