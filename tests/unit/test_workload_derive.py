"""The tasks that stages make, and the plan of a job."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.keyspace import key_of
from formation_p2p.core.units import GIB, MIB
from formation_p2p.jobs.core.job import Job
from formation_p2p.machine.core.requirements import DEFAULT_MEMORY_BYTES, Requirements
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.derive import Stage, derive, told_apart
from formation_p2p.workload.core.inputs_from import bound
from formation_p2p.workload.core.matrix import (
    MAX_PARAMETERS,
    MAX_RULES,
    MAX_VALUE_CHARS,
    Parameters,
    Value,
    combinations,
    fill,
    label_of,
    of_input,
    written,
)
from formation_p2p.workload.core.memory_estimate import MIN_RUNS, MemoryEstimate, kind_of, learn
from formation_p2p.workload.core.plan import Plan, PlannedTask, plan_of, tasks_of
from formation_p2p.workload.core.process import ContainerSpec, ProcessSpec, WasmSpec
from formation_p2p.workload.core.work import (
    MAX_KIND_CHARS,
    MAX_PAYLOAD_BYTES,
    MAX_TASK_ID_CHARS,
    MAX_TASKS,
    MIN_MEMORY_BYTES,
    InputFrom,
    PythonCall,
    Task,
    Work,
    task_id,
)
from tests.support.stories import NEEDS, job

TRUE = ProcessSpec(("true",))
MODULE = b"\0asm\x01\0\0\0"


@dataclass(frozen=True, slots=True)
class Own:
    """Work for a driver of somebody's own."""

    driver: str = "own"
    kind: str = ""

    def encode(self) -> bytes:
        return b"own"


def refused(stages: dict[str, Stage]) -> str:
    with pytest.raises(InvalidInput) as error:
        derive(stages)
    return str(error.value)


def argv(work: Work) -> tuple[str, ...]:
    assert isinstance(work, ProcessSpec)
    return work.argv


# -- stages ---------------------------------------------------------------------------------


def test_a_stage_is_one_task_or_one_for_each_combination() -> None:
    plan = derive(
        {
            "prepare": Stage(TRUE),
            "train": Stage(
                ProcessSpec(("train", "--lr={lr}", "{seed}")),
                matrix={"lr": (0.1, 0.01), "seed": (1, 2)},
                exclude=({"lr": 0.1, "seed": 2},),
                after=("prepare",),
                needs="gpu=1",
            ),
            "compare": Stage(TRUE, after=("train", "prepare"), needs=Requirements()),
        }
    )
    assert [(task.label, task.after) for task in plan.tasks] == [
        ("prepare", ()),
        ("train-0.1-1", (0,)),
        ("train-0.01-1", (0,)),
        ("train-0.01-2", (0,)),
        ("compare", (1, 2, 3, 0)),
    ]
    assert [argv(task.work)[1:] for task in plan.tasks[1:4]] == [
        ("--lr=0.1", "1"),
        ("--lr=0.01", "1"),
        ("--lr=0.01", "2"),
    ]
    assert [task.needs and task.needs.gpu_count for task in plan.tasks] == [None, 1, 1, 1, 0]
    assert [task.memory_given for task in plan.tasks] == [False] * 4 + [True]


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from("abc"), st.lists(st.integers(0, 5), min_size=1, unique=True), max_size=3
        ),
        min_size=1,
        max_size=4,
    )
)
def test_there_are_as_many_tasks_as_combinations_and_each_comes_after_those_before(
    matrices: list[dict[str, list[int]]],
) -> None:
    stages = {
        f"s{n}": Stage(TRUE, matrix, after=(f"s{n - 1}",) if n else ())
        for n, matrix in enumerate(matrices)
    }
    plan = derive(stages)
    assert len(plan.tasks) == sum(math.prod(map(len, m.values())) for m in matrices)
    assert all(before < place for place, x in enumerate(plan.tasks) for before in x.after)
    assert len({task.label for task in plan.tasks}) == len(plan.tasks)


def test_one_may_wait_for_its_own_counterpart_alone() -> None:
    plan = derive(
        {
            "fetch": Stage(TRUE, inputs=("a/x.csv", "b/y.csv"), label="got {stem}"),
            "read": Stage(
                ProcessSpec(("cat", "{name}")), inputs=("x", "y"), after=("got {input}",)
            ),
        }
    )
    assert [(task.label, task.after) for task in plan.tasks] == [
        ("got x", ()),
        ("got y", ()),
        ("read-x", (0,)),
        ("read-y", (1,)),
    ]


def test_all_texts_of_a_process_are_filled_also_in_an_image_or_a_module() -> None:
    spec = ProcessSpec(
        ("{n}",), {"N": "{n}"}, b"{n}", {"{n}.txt": b"{n}"}, ("{n}.out",), {}, ("{n}.big",)
    )
    full = ProcessSpec(("7",), {"N": "7"}, b"{n}", {"7.txt": b"{n}"}, ("7.out",), {}, ("7.big",))
    module = WasmSpec(MODULE, spec)
    made = [
        derive({"a": Stage(work, {"n": (7,)})}).tasks[0].work
        for work in (spec, ContainerSpec("alpine", spec), module, Own())
    ]
    assert made == [full, ContainerSpec("alpine", full), WasmSpec(MODULE, full), Own()]


def test_work_may_be_made_of_the_values_themselves() -> None:
    def call(parameters: object) -> PythonCall:
        return PythonCall(b"f", repr(parameters).encode())

    plan = derive({"f": Stage(call, {"x": (1, 2.5, True)}, kind="f-{x}")})
    assert [task.work for task in plan.tasks] == [
        PythonCall(b"f", b"{'x': 1}"),
        PythonCall(b"f", b"{'x': 2.5}"),
        PythonCall(b"f", b"{'x': True}"),
    ]
    assert [task.kind for task in plan.tasks] == ["f-1", "f-2.5", "f-true"]
    assert [task.label for task in plan.tasks] == ["f-1", "f-2.5", "f-true"]


def test_needs_may_depend_on_a_parameter() -> None:
    plan = derive({"a": Stage(TRUE, {"gib": (1, 2)}, needs="memory={gib}GiB")})
    needs = [task.needs for task in plan.tasks]
    assert needs == [Requirements(memory_bytes=GIB), Requirements(memory_bytes=2 * GIB)]
    assert all(task.memory_given for task in plan.tasks)


def test_what_is_wrong_is_named_with_its_stage() -> None:
    assert refused({"a": Stage(TRUE, {"x": ()})}).startswith("a: matrix.x: is not a list")
    assert refused({"a": Stage(TRUE, needs="cpus=1")}).startswith("a: cpus: is not a requirement")
    assert "b waits for 'c', and no task" in refused({"b": Stage(TRUE, after=("c",))})
    circle = {"a": Stage(TRUE, after=("b",)), "b": Stage(TRUE, after=("a",))}
    assert refused(circle).endswith("in a circle: 'a' for 'b' for 'a'")
    same = {"a": Stage(TRUE, {"x": (1, 2)}, label="same")}
    assert "two tasks are called 'same'" in refused(same)
    other = {"a": Stage(TRUE), "b": Stage(TRUE, label="a")}
    assert "'a' is the name of other tasks as well" in refused(other)
    many = tuple(map(str, range(MAX_TASKS)))
    reported = refused({"a": Stage(TRUE, {"x": (1, 2)}, inputs=many)})
    assert reported.startswith("a: inputs: they make more than 100000 tasks")
    reported = refused({"a": Stage(TRUE), "b": Stage(TRUE, inputs=many)})
    assert reported == "b: tasks: there are more than 100000; split the job"
    assert refused({}) == "tasks: a job has 1 to 100000 tasks, not 0"


@pytest.mark.parametrize(
    ("stage", "reported"),
    [
        (Stage(TRUE, after="prepare"), "a: after: 'prepare' is not a list of texts; write ['…']"),
        (Stage(TRUE, after=(1,)), "a: after: 1 is not a text"),  # type: ignore[arg-type]
        (Stage(TRUE, after=None), "a: after: a NoneType is not a list"),  # type: ignore[arg-type]
        (Stage(TRUE, inputs="abc"), "a: inputs: 'abc' is not a list of texts; write ['…']"),
        (Stage(TRUE, inputs=(1,)), "a: inputs: 1 is not a text"),  # type: ignore[arg-type]
        (Stage(TRUE, matrix=(1, 2)), "a: matrix: a tuple is not a table"),  # type: ignore[arg-type]
        (Stage("echo"), "a: work: 'echo' is not work; write ProcessSpec"),  # type: ignore[arg-type]
        (Stage(TRUE, needs=3), "a: needs: 3 is not Requirements"),  # type: ignore[arg-type]
        (TRUE, "a: stage: a ProcessSpec is not a Stage; write Stage"),
        (Stage(TRUE, label="a\nb"), "a: label: 'a\\nb' cannot name a folder as well"),
        (Stage(TRUE, label="x" * 61), "cannot name a folder as well; write 1 to 60 characters"),
        (Stage(TRUE, {"name": ("b",)}, inputs=("x",)), "a: matrix: name is of each input already"),
        (
            Stage(TRUE, include=({"input": 1},), inputs=("x",)),
            "a: matrix: input is of each input already; give the parameter another name",
        ),
    ],
)
def test_a_slip_in_a_stage_is_told_where_it_is(stage: Stage, reported: str) -> None:
    assert reported in refused({"a": stage})


def test_parameters_that_are_called_as_those_of_inputs_are_told_apart_by_their_values() -> None:
    plan = derive({"s": Stage(TRUE, {"input": ("a.txt",), "name": ("a", "b"), "stem": ("a",)})})
    assert [task.label for task in plan.tasks] == ["s-a.txt-a", "s-a.txt-b"]


def test_a_label_is_no_other_stages_name() -> None:
    given = {"a": (0,), "b": (1, 2)}
    assert told_apart(["a", "b-1", "b-2"], [False] * 3, given) == ["a", "b-1", "b-2"]
    with pytest.raises(InvalidInput, match="'b' is the name of other tasks as well"):
        told_apart(["b", "c-1"], [False] * 2, {"a": (0,), "b": (1,)})
    assert told_apart(["b", "c-1"], [True] * 2, {"a": (0,), "b": (1,)}) == ["b-2", "c-1"]


def test_labels_that_are_made_of_values_name_folders_and_are_told_apart() -> None:
    long, url = "x" * 70, "https://a.org/b?c"
    sentence = "two words: \x1b[2J, a / and an end"
    plan = derive({"a": Stage(TRUE, inputs=(long, long + "y", url, url, sentence, "..", "same"))})
    cut = f"a-{long}"[:60]
    assert [task.label for task in plan.tasks] == [
        *(cut, f"{cut[:58]}-2", "a-https:--a.org-b?c", "a-https:--a.org-b?c-2"),
        *("a-two words: -[2J, a - and an end", "a-..", "a-same"),
    ]
    # A person's label is kept, but for what the values bring.
    stages = {
        "b": Stage(TRUE, {"n": ("same", "...")}, label="{n}"),
        "a": Stage(TRUE, inputs=(url, "x"), label="{index}-{input}"),
    }
    labels = ["same", "task", "0-https:--a.org-b?c", "1-x"]
    assert [task.label for task in derive(stages).tasks] == labels
    for label in ("a/{input}", ".{input}", "x" * 61 + "{input}"):
        assert "cannot name a folder as well" in refused({"a": Stage(TRUE, label=label)})


def test_values_are_filled_in_once() -> None:
    value = "{index}{label}{p}{x}"
    work = ProcessSpec(("true", "{p}"), outputs=("o",))
    prepare = Stage(work, {"p": (value,)})
    reads = Stage(TRUE, {"x": (value,)}, inputs={"{x}-{label}": "prepare:o"}, label="{x}")
    plan = derive({"prepare": prepare, "reads": reads})
    assert [task.label for task in plan.tasks] == [f"prepare-{value}", value]
    assert plan.tasks[0].work == replace(work, argv=("true", value))
    ((name, _, _),) = plan.tasks[1].inputs_from
    assert name == f"{value}-prepare-{value}"


# -- plans ----------------------------------------------------------------------------------


def tasks(
    plan: Plan, *estimates: MemoryEstimate, memory_given: bool = False
) -> tuple[tuple[Task, ...], tuple[MemoryEstimate, ...]]:
    known = {each.kind: each for each in estimates}
    return tasks_of(plan, "job", Requirements(), known, memory_given=memory_given)


def test_a_plan_becomes_tasks_with_ids() -> None:
    plan = Plan((PlannedTask(TRUE, "a"), PlannedTask(PythonCall(b"f", b"x"), "b", (0,))))
    (first, second), sizes = tasks(plan)
    assert (first.task_id, first.label, first.needs.driver) == ("job/0", "a", "process")
    assert (second.after, second.needs.driver, second.shared) == (("job/0",), "python", b"f")
    assert sizes == ()
    assert (first.kind, second.kind) == ("process:true", "")


def test_work_alone_or_in_a_list_is_a_plan_with_labels() -> None:
    assert plan_of(TRUE) == Plan((PlannedTask(TRUE),))
    several = plan_of((each for each in (TRUE, TRUE)), ["one"])
    assert [task.label for task in several.tasks] == ["one", ""]
    assert plan_of(several, ["other"]) is several


@pytest.mark.parametrize(
    ("work", "labels", "reported"),
    [
        ("true", (), "work: 'true' is not work; write ProcessSpec"),
        (["true"], (), "work: 'true' is not work"),
        (None, (), "work: a NoneType is not work"),
        (Stage(TRUE), (), "work: a Stage is not work"),
        (TRUE, "abc", "labels: 'abc' is not a list of texts"),
        (TRUE, (5,), "labels: 5 is not a text"),
    ],
)
def test_what_is_no_work_is_refused_with_what_to_write(
    work: Any, labels: Any, reported: str
) -> None:
    with pytest.raises(InvalidInput, match=reported):
        plan_of(work, labels)


def test_places_must_be_there() -> None:
    for after in ((1,), (-1,)):
        with pytest.raises(InvalidInput, match="after: a place is not from 0 to 0"):
            Plan((PlannedTask(TRUE, after=after),))


def test_a_driver_of_the_needs_must_be_that_of_the_work() -> None:
    plan = Plan((PlannedTask(TRUE, needs=Requirements(driver="python")),))
    with pytest.raises(InvalidInput, match="driver: python does not run a ProcessSpec"):
        tasks(plan)


def test_memory_that_nobody_gave_is_what_was_learnt() -> None:
    size = MemoryEstimate("process:true", 9, 100 * MIB)
    own = Requirements(memory_bytes=GIB)
    plan = Plan(
        (
            PlannedTask(TRUE),
            PlannedTask(TRUE, needs=own, memory_given=True),
            PlannedTask(TRUE, needs=Requirements(cpu_milli=1)),
            PlannedTask(Own()),
            PlannedTask(TRUE, kind="other"),
            PlannedTask(TRUE),
        )
    )
    assert plan.kinds(memory_given=False) == {"process:true", "process:other"}
    assert plan.kinds(memory_given=True) == {"process:true"}
    made, sizes = tasks(plan, size)
    assert sizes == (size,)
    expected = [100 * MIB, GIB, 100 * MIB, DEFAULT_MEMORY_BYTES, DEFAULT_MEMORY_BYTES, 100 * MIB]
    assert [task.needs.memory_bytes for task in made] == expected
    more = DEFAULT_MEMORY_BYTES
    assert [task.more_memory_bytes for task in made] == [more, 0, more, 0, 0, more]
    kinds = ["process:true"] * 3 + ["", "process:other", "process:true"]
    assert [task.kind for task in made] == kinds
    made, sizes = tasks(plan, size, memory_given=True)
    assert [task.more_memory_bytes for task in made] == [0, 0, more, 0, 0, 0]


def test_tasks_of_one_kind_share_what_says_so() -> None:
    size = MemoryEstimate("process:true", 20, 100 * MIB)
    first, second = tasks(plan_of([TRUE, TRUE]), size)[0]
    assert (first.needs, first.kind) == (second.needs, second.kind)
    assert first.needs is second.needs
    assert first.kind is second.kind


def test_nothing_is_learnt_where_nobody_wants_it() -> None:
    plan = Plan((PlannedTask(TRUE),))
    (task,), sizes = tasks_of(plan, "job", Requirements(), None, memory_given=False)
    assert (task.kind, task.needs.memory_bytes, sizes) == ("", DEFAULT_MEMORY_BYTES, ())


# -- sizes ----------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 100 * GIB), min_size=MIN_RUNS, max_size=300))
def test_what_is_learnt_holds_nineteen_of_twenty_runs_with_a_fifth_on_top(used: list[int]) -> None:
    size = learn("process:x", used)
    assert size is not None
    enough = sum(5 * size.memory_bytes >= 6 * each for each in used)
    assert 20 * enough >= 19 * len(used)
    assert MIN_MEMORY_BYTES <= size.memory_bytes <= max(max(used) * 6 // 5 + 17 * MIB, 64 * MIB)
    assert size.memory_bytes % (16 * MIB) == 0
    assert size.more_bytes >= max(2 * size.memory_bytes, DEFAULT_MEMORY_BYTES)


def test_of_twenty_runs_the_largest_but_one_counts_with_a_fifth_on_top() -> None:
    size = learn("process:x", [100 * MIB] * 18 + [200 * MIB, 900 * MIB])
    assert size == MemoryEstimate("process:x", 20, 240 * MIB)


def test_few_runs_say_nothing() -> None:
    assert learn("process:x", [1] * (MIN_RUNS - 1)) is None


def test_what_was_learnt_is_said_in_one_line() -> None:
    size = MemoryEstimate("process:train.py", 37, 1216 * MIB)
    reported = "memory 1.2GiB: learnt from 37 runs of train.py (p95 + 20 %)"
    assert str(size) == reported
    assert MemoryEstimate("process:x", 5, 64 * MIB).more_bytes == DEFAULT_MEMORY_BYTES


@pytest.mark.parametrize(
    ("argv", "kind"),
    [
        (("/usr/bin/convert", "a.png"), "process:convert"),
        (("python3.11", "-u", "src/train.py", "--lr", "1"), "process:train.py"),
        (("python3", "-m", "http.server"), "process:http.server"),
        (("bash", "run.sh"), "process:run.sh"),
        (("sh", "-c", "echo"), ""),
        (("perl", "-e", "print"), ""),
        (("python3", "-"), ""),
        (("python3",), ""),
        (("python3", "-u"), ""),
        (("x\ny",), ""),
        (("x" * (MAX_KIND_CHARS - 8),), "process:" + "x" * (MAX_KIND_CHARS - 8)),
        (("x" * (MAX_KIND_CHARS - 7),), ""),
    ],
)
def test_the_kind_of_a_process_is_what_it_runs(argv: tuple[str, ...], kind: str) -> None:
    assert kind_of(ProcessSpec(argv)) == kind


def test_the_kind_of_other_work() -> None:
    process = ProcessSpec(("python3", "train.py"))
    assert kind_of(ContainerSpec("alpine", process)) == "container:alpine train.py"
    assert kind_of(ContainerSpec("alpine", ProcessSpec(("sh", "-c", "x")))) == ""
    assert kind_of(WasmSpec(MODULE, ProcessSpec(("count", "x")))) == "wasm:count"
    assert kind_of(PythonCall(b"f", b"x", "module.f")) == "python:module.f"
    assert kind_of(Own(kind="mine")) == "own:mine"
    assert kind_of(process, "given") == "process:given"


# -- files of other tasks -------------------------------------------------------------------

PREPARE = Stage(
    ProcessSpec(("prepare", "{p}"), files_out=("part.txt", "log")), matrix={"p": (1, 2)}
)


def test_a_task_reads_the_file_of_its_counterpart_and_waits_for_it() -> None:
    plan = derive(
        {
            "prepare": PREPARE,
            "use": Stage(
                ProcessSpec(("use", "{p}")),
                matrix={"p": (1, 2)},
                inputs={"in/{p}.txt": "prepare-{p}:part.txt"},
            ),
        }
    )
    assert [task.after for task in plan.tasks] == [(), (), (0,), (1,)]
    assert [task.inputs_from for task in plan.tasks[2:]] == [
        (("in/1.txt", 0, "part.txt"),),
        (("in/2.txt", 1, "part.txt"),),
    ]
    first = plan.tasks[0].work
    assert isinstance(first, ProcessSpec)
    assert (first.outputs, first.files_out) == (("part.txt",), ("log",))


def test_a_task_reads_the_files_of_a_whole_stage_by_their_labels() -> None:
    sources: tuple[Any, ...] = ("prepare:part.txt", PREPARE.output("part.txt"))
    for source in sources:
        stages = {
            "prepare": PREPARE,
            "merge": Stage(TRUE, inputs={"{label}.txt": source}, after=("prepare",)),
        }
        merge = derive(stages).tasks[2]
        assert merge.after == (0, 1)
        assert merge.inputs_from == (
            ("prepare-1.txt", 0, "part.txt"),
            ("prepare-2.txt", 1, "part.txt"),
        )
    one = {"prepare": PREPARE, "x": Stage(TRUE, inputs={"a": PREPARE.output("b", "prepare-2")})}
    assert derive(one).tasks[2].inputs_from == (("a", 1, "b"),)


@pytest.mark.parametrize(
    ("inputs", "work", "reported"),
    [
        ({"a": "prepare:part.txt"}, TRUE, "x: several files are called 'a'; write {label}"),
        ({"a": "prepare-1"}, TRUE, "x: 'prepare-1' names no file of a task; write TASK:FILE"),
        (
            {"a": "prepare/1:b"},
            TRUE,
            "TASK:FILE; tasks are called 'prepare-1', 'prepare-2', 'prepare'",
        ),
        ({"a": 3}, TRUE, "x: inputs: 3 is not a text"),
        ({"a": Stage(TRUE).output("b")}, TRUE, "x: inputs: a is of a stage that is not in this"),
        ({"a": "x:b"}, TRUE, "tasks wait for each other in a circle"),
        ({"../a": "prepare-1:b"}, TRUE, "'../a' is not a plain relative name"),
        ({"a": "prepare-1:b"}, ProcessSpec(("x",), files_in={"a": b""}), "'a' is there twice"),
        ({"a": "prepare-1:b"}, PythonCall(b"", b""), "a PythonCall has no files; hand on data"),
        ({"a": "own:b"}, TRUE, "a Own has no files"),
    ],
)
def test_inputs_that_are_no_files_of_tasks_are_refused(
    inputs: dict[str, Any], work: Work, reported: str
) -> None:
    stages = {"prepare": PREPARE, "own": Stage(Own()), "x": Stage(work, inputs=inputs)}
    assert reported in refused(stages)


def test_a_name_that_a_task_has_already_is_refused() -> None:
    blob = Blob(Cid(RAW, digest_of(b"a")), 1)
    work = ProcessSpec(("x",), inputs={"a": blob})
    stages = {"prepare": PREPARE, "x": Stage(work, inputs={"a": "prepare-1:b"})}
    assert "'a' is there twice" in refused(stages)


def test_a_plan_that_reads_what_it_does_not_wait_for_is_none() -> None:
    with pytest.raises(InvalidInput, match="does not wait for one of which it reads files"):
        Plan((PlannedTask(TRUE), PlannedTask(TRUE, inputs_from=(("a", 0, "b"),))))


@pytest.mark.parametrize(
    "wrap", [lambda x: x, lambda x: ContainerSpec("a", x), lambda x: WasmSpec(MODULE, x)]
)
def test_a_task_is_bound_to_the_content_whatever_runs_it(wrap: Any) -> None:
    stages = {"prepare": Stage(wrap(TRUE)), "use": Stage(wrap(TRUE), inputs={"a": "prepare:b"})}
    tasks, _ = tasks_of(derive(stages), "job", Requirements(), None, memory_given=True)
    assert tasks[1].inputs_from == (InputFrom("a", "job/0", "b"),)
    blob = Blob(Cid(RAW, digest_of(b"content")), 7)
    payload = bound(tasks[1], {"a": blob}).payload
    assert payload == wrap(ProcessSpec(("true",), inputs={"a": blob})).encode()


# What a person may submit, and what is refused before it goes anywhere.

TASK = Task("job/0", NEEDS, b"payload")


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda: replace(TASK, task_id=""), "task id"),
        (lambda: replace(TASK, task_id="x" * (MAX_TASK_ID_CHARS + 1)), "task id"),
        (lambda: replace(TASK, task_id="job\x1b[2J"), "task id"),
        (lambda: replace(TASK, task_id="job\ud800"), "task id"),
        (lambda: replace(TASK, needs=Requirements()), "driver"),
        (lambda: replace(TASK, payload=bytes(MAX_PAYLOAD_BYTES + 1)), "payload"),
        (lambda: replace(TASK, shared=bytes(MAX_PAYLOAD_BYTES)), "payload"),
        (lambda: replace(TASK, kind="x" * (MAX_KIND_CHARS + 1)), "kind"),
        (lambda: replace(TASK, kind="x\ny"), "kind"),
        (lambda: replace(TASK, more_memory_bytes=-1), "memory"),
        (lambda: Job("job", (replace(TASK, after=("job/1",)),)), "after"),
        (lambda: Job("job", (replace(TASK, after=("job/0",)),)), "after"),
        (lambda: Job("job", ()), "tasks"),
        (lambda: Job("job", (TASK,) * (MAX_TASKS + 1)), "tasks"),
        (lambda: Job("job", (TASK, TASK)), "tasks"),
    ],
)
def test_what_is_out_of_bounds_is_refused_by_its_name(
    change: Callable[[], object], field: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        change()
    assert refused.value.field == field


def test_the_largest_of_everything_is_accepted() -> None:
    task = Task("x" * MAX_TASK_ID_CHARS, NEEDS, bytes(MAX_PAYLOAD_BYTES))
    assert Job("job", (task,)).tasks == (task,)


def test_a_task_stands_at_the_key_of_its_id_on_every_node() -> None:
    assert task_id("job", 3) == "job/3"
    assert job(4).tasks[3].key == key_of(b"job/3")


@given(st.integers(0, MAX_TASKS - 1))
def test_ids_of_our_own_making_always_fit(index: int) -> None:
    own = Task(task_id("0123456789abcdef", index), NEEDS, b"")
    assert len(own.task_id) <= MAX_TASK_ID_CHARS


# Combinations of parameters, and the texts that they fill.

names = st.sampled_from(["lr", "seed", "model", "os"])
values = st.one_of(st.integers(-3, 3), st.booleans(), st.sampled_from(["a", "b", "0.1"]))
axes = st.dictionaries(names, st.lists(values, min_size=1, max_size=4, unique_by=written))


@given(axes)
def test_there_is_one_for_each_choice_of_values_and_none_twice(
    axes: dict[str, list[Value]],
) -> None:
    found = combinations(axes)
    assert len(found) == math.prod(map(len, axes.values()))
    seen = {tuple(map(written, each.values())) for each in found}
    assert len(seen) == len(found)
    assert all(list(each) == list(axes) for each in found)


@given(axes.filter(bool), st.data())
def test_what_is_excluded_is_gone_and_all_else_is_there(
    axes: dict[str, list[Value]], data: st.DataObject
) -> None:
    rule = {name: data.draw(st.sampled_from(values)) for name, values in axes.items()}
    partial = data.draw(st.sampled_from(sorted(rule)))
    kept = combinations(axes | {"also": ["x"]}, [{"also": "y"}], [{partial: rule[partial]}])
    everything = combinations(axes)
    same = [each for each in everything if written(each[partial]) == written(rule[partial])]
    assert len(kept) == len(everything) - len(same) + 1
    assert not [e for e in kept if partial in e and written(e[partial]) == written(rule[partial])]


def test_inclusion_follows_the_example_in_the_workflows_manual() -> None:
    # docs.github.com, "Running variations of jobs in a workflow", "Expanding or adding matrix
    # configurations".
    found = combinations(
        {"fruit": ["apple", "pear"], "animal": ["cat", "dog"]},
        include=[
            {"color": "green"},
            {"color": "pink", "animal": "cat"},
            {"fruit": "apple", "shape": "circle"},
            {"fruit": "banana"},
            {"fruit": "banana", "animal": "cat"},
        ],
    )
    assert found == [
        {"fruit": "apple", "animal": "cat", "color": "pink", "shape": "circle"},
        {"fruit": "apple", "animal": "dog", "color": "green", "shape": "circle"},
        {"fruit": "pear", "animal": "cat", "color": "pink"},
        {"fruit": "pear", "animal": "dog", "color": "green"},
        {"fruit": "banana"},
        {"fruit": "banana", "animal": "cat"},
    ]


def test_as_many_rules_as_there_may_be_are_soon_applied() -> None:
    """To hold each against each combination took a quarter of a minute."""
    axes: dict[str, list[Value]] = {"a": [*range(1000)], "b": [*range(100)]}
    rules: list[Parameters] = [{"a": n, "b": str(n)} for n in range(MAX_RULES)]
    began_s = time.thread_time()
    found = combinations(axes, [{**rule, "c": 1} for rule in rules], rules)
    assert time.thread_time() - began_s < 5
    assert len(found) == MAX_TASKS  # each was taken away, and was then one of its own
    assert found[-1] == {"a": 99, "b": "99", "c": 1}


def test_without_axes_there_is_one_task_or_what_is_included() -> None:
    assert combinations({}) == [{}]
    assert combinations({}, [{"lr": 1}, {"lr": 2}]) == [{"lr": 1}, {"lr": 2}]


@pytest.mark.parametrize(
    ("axes", "include", "exclude", "reported"),
    [
        ({"lr": "0.1"}, (), (), "matrix.lr: is not a list of values"),
        ({"lr": []}, (), (), "matrix.lr: is not a list of values"),
        ({"lr": {1}}, (), (), "matrix.lr: is not a list of values"),
        ({"lr": [1, "1"]}, (), (), "matrix.lr: has a value twice"),
        ({"lr": [None]}, (), (), "matrix.lr: a NoneType is not a text, number"),
        ({"lr": [math.inf]}, (), (), "matrix.lr: inf is not a text, number"),
        ({"lr": [2**64]}, (), (), "is not a text, number"),
        ({"lr": ["x" * (MAX_VALUE_CHARS + 1)]}, (), (), "is not a text, number"),
        ({"a b": [1]}, (), (), "matrix: 'a b' is not a name of a parameter"),
        ({3: [1]}, (), (), "matrix: 3 is not a name of a parameter"),
        ({f"p{n}": [1] for n in range(MAX_PARAMETERS + 1)}, (), (), "more than 16 parameters"),
        ({"lr": range(MAX_TASKS), "seed": [1, 2]}, (), (), "makes more than 100000 tasks"),
        ({"lr": [1]}, (), [{"lr": 1}], "exclude: nothing is left"),
        (
            {"lr": [1]},
            (),
            [{"seed": 1}],
            "exclude: seed is not a parameter of the matrix; there are",
        ),
        ({"lr": [1]}, (), [{}], "exclude: a dict is not a table"),
        ({"lr": [1]}, [3], (), "include: 3 is not a table"),
        ({"lr": [1]}, [{"a b": 1}], (), "'a b' is not a name"),
        ({"lr": [1]}, [{"seed": []}], (), "include: a list is not a text"),
        ({"lr": [1]}, [{"lr": 2}] * (MAX_RULES + 1), (), "include: it has more than 100 entries"),
    ],
)
def test_what_is_no_matrix_is_refused_by_name(
    axes: dict[str, list[Value]],
    include: list[Parameters],
    exclude: list[Parameters],
    reported: str,
) -> None:
    with pytest.raises(InvalidInput) as error:
        combinations(axes, include, exclude)
    assert reported in str(error.value)


def test_values_are_written_as_in_toml() -> None:
    reported = fill("{a} {b} {c} {d}", {"a": True, "b": 0.1, "c": 7, "d": "x"})
    assert reported == "true 0.1 7 x"


@given(st.text(max_size=30), st.dictionaries(names, st.text(max_size=8)))
def test_only_places_of_parameters_are_filled_and_values_are_not_filled_again(
    text: str, parameters: dict[str, str]
) -> None:
    assert fill(text, {}) == text
    inside = {name: "{seed}" + value for name, value in parameters.items()}
    place = "awk '{print $1}' ${HOME} {nobody}"
    assert fill(place, parameters) == place
    for name, value in inside.items():
        assert fill("<{" + name + "}>", inside) == f"<{value}>"


def test_an_input_is_known_whole_and_by_its_name() -> None:
    assert of_input("a/b.tar.gz") == {"input": "a/b.tar.gz", "name": "b.tar.gz", "stem": "b.tar"}
    assert of_input("/") == {"input": "/", "name": "/", "stem": "/"}


def test_a_label_can_name_a_folder() -> None:
    assert label_of("train", {"lr": 0.1, "data": "a/b"}) == "train-0.1-a-b"
    assert label_of("", {"each": "x"}) == "x"
