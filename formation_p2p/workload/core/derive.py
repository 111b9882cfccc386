"""The tasks of a job from stages: one for each combination and each input, some after others.

plan = derive({
    "prepare": Stage(ProcessSpec(("prepare.sh",))),
    "train": Stage(
        ProcessSpec(("train.py", "--lr", "{lr}", "--seed", "{seed}")),
        matrix={"lr": (0.1, 0.01), "seed": (1, 2, 3)},
        exclude=({"lr": 0.1, "seed": 3},),
        needs="gpu.memory=24GB",
        after=("prepare",),
    ),
    "compare": Stage(ProcessSpec(("compare.py",)), inputs={"{label}.bin": "train:model.bin"}),
})
job = await node.submit(plan)
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from heapq import nlargest
from itertools import takewhile
from operator import eq
from typing import Final, Generic, TypedDict, TypeVar

from formation_p2p.core.errors import InvalidInput
from formation_p2p.machine.core.bounds import shown
from formation_p2p.machine.core.requirements import Requirements, needs_and_memory
from formation_p2p.workload.core.inputs_from import handing_on
from formation_p2p.workload.core.matrix import (
    MAX_LABEL_CHARS,
    Parameters,
    Value,
    clean_label,
    combinations,
    fill,
    given_label,
    label_of,
    of_input,
    telling,
)
from formation_p2p.workload.core.plan import Plan, PlannedTask, check_texts
from formation_p2p.workload.core.work import MAX_TASKS, Work

T = TypeVar("T")
Makes = Callable[[Parameters], Work]


@dataclass(frozen=True, slots=True)
class Stage:
    """One task, or one for each combination of `matrix` (matrix.py), of each of `inputs`.

    `inputs` that are a mapping are files that tasks of other stages make: `{"part.txt":
    "prepare-{p}:part.txt"}` is, by the name on the left, the file of the task, or of all tasks of
    the stage, on the right; `stage.output("part.txt")` means the latter. The task waits for them.

    `{lr}` in the texts of `work` becomes the value; a callable `work` is called with the values.
    `{index}` is the number of the task in the stage, from 0. An input gives `input`, `name` and
    `stem`. `after` names stages, or labels of tasks, that must
    have succeeded before. They are filled in as well: `after=("prepare-{lr}",)` waits for its
    counterpart alone.

    `needs` None are those given to `submit`. Memory that a text does not name may be learnt from
    earlier runs of `kind`, by default that of the work.
    """

    work: Work | Makes
    matrix: Mapping[str, Sequence[Value]] = field(default_factory=dict)
    include: Sequence[Parameters] = ()
    exclude: Sequence[Parameters] = ()
    inputs: Sequence[str] | Mapping[str, str | Output] = ()
    after: Sequence[str] = ()
    needs: Requirements | str | None = None
    label: str = ""
    kind: str = ""

    def output(self, name: str, task: str = "") -> Output:
        """A file that the tasks of this stage make, or the one of them with the label `task`, for
        the `inputs` of another stage."""
        return Output(self, name, task)


@dataclass(frozen=True, slots=True, eq=False)
class Output:
    """The file `name` of each task of a stage, or of the one with the label `task`."""

    stage: Stage
    name: str
    task: str = ""


def derive(stages: Mapping[str, Stage]) -> Plan:
    """The tasks of all stages, in order. Raises InvalidInput, whose message names the stage: for
    too many tasks, an unknown name, a circle of tasks that wait for each other."""
    drafts: list[Draft[PlannedTask]] = []
    groups: dict[str, range] = {}
    names = {id(stage): name for name, stage in stages.items()}
    for name, stage in stages.items():
        first = len(drafts)
        try:
            # Mistakes of callers without types, which Python would take for something else.
            given: object = stage
            if not isinstance(given, Stage):
                raise InvalidInput("stage", f"{shown(given)} is not a Stage; write Stage(…)")
            check_texts("after", stage.after)
            files = _files(stage.inputs, names)
            inputs = () if isinstance(stage.inputs, Mapping) else stage.inputs
            check_texts("inputs", inputs)
            combined = parameters_of(stage.matrix, stage.include, stage.exclude, inputs)
            if len(drafts) + len(combined) > MAX_TASKS:
                raise InvalidInput("tasks", f"there are more than {MAX_TASKS}; split the job")
            for place, parameters in enumerate(combined):
                texts = {"index": place, **parameters}
                drafts.append(_draft(name, stage, parameters, texts, files))
        except InvalidInput as error:
            raise InvalidInput(f"{name}: {error.field}", error.problem) from None
        groups[name] = range(first, len(drafts))
    return Plan(tuple(_placed(task, **place) for task, place in settled(drafts, groups)))


def _placed(
    task: PlannedTask,
    label: str,
    after: tuple[int, ...],
    inputs_from: Reads,
    handed_on: tuple[str, ...],
) -> PlannedTask:
    work = handing_on(task.work, handed_on) if handed_on else task.work
    return replace(task, label=label, work=work, after=after, inputs_from=inputs_from)


@dataclass(frozen=True, slots=True)
class Draft(Generic[T]):
    """A task whose label and order are not settled. Its label, where it `is_made` of names and
    values, may change. `after` are names, `reads` files of others by their names here, `texts` its
    parameters."""

    task: T
    label: str
    is_made: bool
    after: Sequence[str]
    reads: Mapping[str, str]
    texts: Parameters


class Place(TypedDict):
    """Of a task in its job: `after` are the places of the tasks that it waits for, `inputs_from`
    the files of these that it reads, `handed_on` those of its own that others read."""

    label: str
    after: tuple[int, ...]
    inputs_from: Reads
    handed_on: tuple[str, ...]


def settled(
    drafts: Sequence[Draft[T]], groups: Mapping[str, Sequence[int]]
) -> Iterator[tuple[T, Place]]:
    """All tasks of a job; `groups` are the places of those that have a name together. Raises
    InvalidInput."""
    made = [each.is_made for each in drafts]
    labels = told_apart([each.label for each in drafts], made, groups)
    edges, reads = _linked_files(labels, drafts, groups)
    handed_on = _files_made(reads)
    for n, (draft, label) in enumerate(zip(drafts, labels, strict=True)):
        place: Place = {
            "label": label,
            "after": edges[n],
            "inputs_from": reads[n],
            "handed_on": handed_on.get(n, ()),
        }
        yield draft.task, place


def _files(
    inputs: Sequence[str] | Mapping[str, str | Output], names: Mapping[int, str]
) -> dict[str, str]:
    """Of other tasks, as texts. Raises InvalidInput."""
    files: dict[str, str] = {}
    for name, source in inputs.items() if isinstance(inputs, Mapping) else ():
        if isinstance(source, Output):
            stage = names.get(id(source.stage))
            if stage is None:
                raise InvalidInput("inputs", f"{name} is of a stage that is not in this plan")
            source = f"{source.task or stage}:{source.name}"
        check_texts("inputs", (name, source))
        files[name] = source
    return files


def parameters_of(
    matrix: Mapping[str, Sequence[Value]],
    include: Sequence[Parameters] = (),
    exclude: Sequence[Parameters] = (),
    inputs: Sequence[str] = (),
) -> list[dict[str, Value]]:
    """The parameters of each task: of each input, each combination. Raises InvalidInput."""
    found = combinations(matrix, include, exclude)
    if not inputs:
        return found
    for name in of_input(""):
        if any(name in chosen for chosen in found):
            problem = f"{name} is of each input already; give the parameter another name"
            raise InvalidInput("matrix", problem)
    if len(inputs) * len(found) > MAX_TASKS:
        raise InvalidInput("inputs", f"they make more than {MAX_TASKS} tasks; split the job")
    return [of_input(each) | chosen for each in inputs for chosen in found]


def told_apart(
    labels: Sequence[str], made: Sequence[bool], groups: Mapping[str, Sequence[int]]
) -> list[str]:
    """The labels, of which those that are `made` of names and values are cleaned, and numbered
    where they are there twice. Raises InvalidInput where two others are the same, or one is another
    stage's name."""
    owner: dict[str, int] = {}

    def is_taken(label: str, index: int) -> bool:
        return label in owner or (label in groups and index not in groups[label])

    for index, (label, is_made) in enumerate(zip(labels, made, strict=True)):
        if not is_made:
            if label in owner:
                problem = f"two tasks are called {shown(label)}; write a label with all parameters"
                raise InvalidInput("label", f"{problem}, or with {{index}}")
            if is_taken(label, index):
                problem = f"{shown(label)} is the name of other tasks as well; write another"
                raise InvalidInput("label", problem)
            owner[label] = index
    found = list(labels)
    counts = Counter[str]()
    for index, is_made in enumerate(made):
        if is_made:
            label = base = clean_label(labels[index])
            while is_taken(label, index):
                counts[base] += 1
                number = f"-{counts[base] + 1}"
                label = base[: MAX_LABEL_CHARS - len(number)] + number
            found[index] = label
            owner[label] = index
    return found


def filled(work: Work, parameters: Parameters) -> Work:
    """The work with the parameters in its texts, where it has any."""
    fill_in: Callable[[Callable[[str], str]], Work] | None = getattr(work, "filled", None)
    return fill_in(lambda text: fill(text, parameters)) if fill_in else work


def _draft(
    name: str, stage: Stage, parameters: Parameters, texts: Parameters, files: Mapping[str, str]
) -> Draft[PlannedTask]:
    """`texts` are the parameters as texts have them."""
    work = stage.work(parameters) if callable(stage.work) else filled(stage.work, texts)
    needs, memory_given = needs_of(stage.needs, texts)
    label, is_made = label_of(name, telling(parameters)), True
    if stage.label:
        label, is_made = given_label("label", stage.label, texts)
    task = PlannedTask(work, label, (), needs, memory_given, fill(stage.kind, texts))
    after = tuple(fill(each, texts) for each in stage.after)
    return Draft(task, label, is_made, after, files, texts)


def needs_of(
    needs: Requirements | str | None, parameters: Parameters
) -> tuple[Requirements | None, bool]:
    """With the parameters filled in, and whether they say how much memory. Raises InvalidInput."""
    if not isinstance(needs, str):
        return needs, needs is not None
    return _parsed(fill(needs, parameters))


# A hundred thousand tasks have few different needs.
_parsed = lru_cache(maxsize=1024)(needs_and_memory)


# -- the order of tasks: names become indexes, and cycles are refused ------------------------------

# Of one job. The scheduler follows each twice, in half a second altogether. One task in between
# replaces the million edges of a thousand tasks that wait for a thousand others.
MAX_EDGES: Final = 500_000
# Of a cycle, in a message.
_MAX_NAMED: Final = 8
# Of the labels that a name may have meant, in a message.
_MAX_LIKE: Final = 3

Edges = Sequence[Sequence[int]]


def linked(
    labels: Sequence[str], after: Sequence[Sequence[str]], groups: Mapping[str, Sequence[int]]
) -> list[tuple[int, ...]]:
    """For each task, the indexes of those that it waits for, each once.

    A name in `after` is that of a group, for all of its tasks, or the label of a task. Raises
    InvalidInput for other names, and for a cycle, which the message shows.
    """
    by_name = {label: (index,) for index, label in enumerate(labels)} | dict(groups)
    edges: list[tuple[int, ...]] = []
    count = 0
    known: dict[tuple[str, ...], tuple[int, ...]] = {}
    for label, names in zip(labels, after, strict=True):
        key = tuple(names)
        if key not in known:
            for name in key:
                if name not in by_name:
                    problem = f"{label} waits for {shown(name)}, and no task is called that"
                    problem += _likest(name, by_name)
                    raise InvalidInput("after", problem)
            known[key] = tuple(dict.fromkeys(i for name in key for i in by_name[name]))
        edges.append(known[key])
        count += len(known[key])
        refuse_many(count)
    refuse_cycles(labels, edges)
    return edges


Reads = tuple[tuple[str, int, str], ...]


def _linked_files(
    labels: Sequence[str], drafts: Sequence[Draft[T]], groups: Mapping[str, Sequence[int]]
) -> tuple[list[tuple[int, ...]], list[Reads]]:
    """As `linked`, and for each task the files that it reads of others: the name that it gives to
    one, the index of the task that makes it, and the name there. Both are written `TASK:FILE`,
    with the name of a group for all of its tasks, and with the parameters of the task that reads;
    `{label}` in the name is the label of each that makes one. Raises InvalidInput."""
    by_name = {label: (index,) for index, label in enumerate(labels)} | dict(groups)
    found: list[Reads] = []
    waits: list[Sequence[str]] = []
    for label, draft in zip(labels, drafts, strict=True):
        each: dict[str, tuple[str, int, str]] = {}
        makers: list[str] = []
        for name, text in draft.reads.items():
            source = fill(text, draft.texts)
            maker, _, file = source.partition(":")
            if maker not in by_name or not file:
                problem = f"{shown(source)} names no file of a task; write TASK:FILE"
                problem += "" if maker in by_name else _likest(maker, by_name)
                raise InvalidInput("inputs", f"{label}: {problem}")
            makers.append(maker)
            for index in by_name[maker]:
                here = fill(name, {"label": labels[index], **draft.texts})
                if here in each:
                    problem = f"several files are called {shown(here)}; write {{label}} in the name"
                    raise InvalidInput("inputs", f"{label}: {problem}")
                each[here] = here, index, file
        found.append(tuple(each.values()))
        waits.append((*draft.after, *makers) if makers else draft.after)
    return linked(labels, waits, groups), found


def _likest(name: str, labels: Iterable[str]) -> str:
    """For a message: of the tasks that there are, those whose labels begin most as `name` does."""
    found = nlargest(_MAX_LIKE, labels, key=lambda each: sum(takewhile(bool, map(eq, each, name))))
    return f"; tasks are called {', '.join(map(shown, found))}"


def _files_made(reads: Iterable[Reads]) -> dict[int, tuple[str, ...]]:
    """By the index of a task, the files of it that others read."""
    made: dict[int, dict[str, None]] = {}
    for each in reads:
        for _, index, file in each:
            made.setdefault(index, {})[file] = None
    return {index: tuple(files) for index, files in made.items()}


def refuse_many(edges: int) -> None:
    if edges > MAX_EDGES:
        many = f"there are more than {MAX_EDGES} pairs of tasks that wait for one another"
        hint = "put one task between the many, for which the later ones wait"
        raise InvalidInput("after", f"{many}; {hint}")


def refuse_cycles(labels: Sequence[str], edges: Edges) -> None:
    """Raises InvalidInput, which shows one, where tasks wait for each other in a circle.

    Source: Kahn, "Topological sorting of large networks", 1962.
    """
    left = [len(set(before)) for before in edges]
    followers: list[list[int]] = [[] for _ in edges]
    for index, before in enumerate(edges):
        for each in set(before):
            followers[each].append(index)
    free = deque(index for index, count in enumerate(left) if count == 0)
    done = 0
    while free:
        done += 1
        for follower in followers[free.popleft()]:
            left[follower] -= 1
            if left[follower] == 0:
                free.append(follower)
    if done < len(left):
        circle = " for ".join(shown(labels[index]) for index in _cycle(edges, left))
        raise InvalidInput("after", f"tasks wait for each other in a circle: {circle}")


def _cycle(edges: Edges, left: Sequence[int]) -> list[int]:
    """Back along the tasks that are left, which ends in a circle."""
    at = next(index for index, count in enumerate(left) if count)
    seen: dict[int, int] = {}
    while at not in seen:
        seen[at] = len(seen)
        at = min(each for each in edges[at] if left[each])
    return [*list(seen)[seen[at] :][:_MAX_NAMED], at]
