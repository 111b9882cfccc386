"""The job file of `formation submit`."""

import tomllib
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.command.job_file import JobFile, parse_job_file, read_job_file
from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.core.units import KIB, MIB
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.placement.core.policies import Balanced
from formation_p2p.placement.core.task_options import DEFAULT_OPTIONS, TaskOptions
from formation_p2p.workload.core.blob import RAW, Blob, Cid
from formation_p2p.workload.core.hints import Hints
from formation_p2p.workload.core.process import ContainerSpec, ProcessSpec, WasmSpec
from formation_p2p.workload.core.scope import Scope

HERE = Path("/jobs")


def parsed(text: str) -> JobFile:
    return parse_job_file(dedent(text), HERE)


def refused(text: str) -> str:
    with pytest.raises(InvalidInput) as error:
        parsed(text)
    return str(error.value)


def test_the_least_job_is_one_command() -> None:
    job = parsed("""
        [[task]]
        argv = ["true"]
    """)
    assert (job.name, job.options) == ("", DEFAULT_OPTIONS)
    (task,) = job.tasks
    assert (task.label, task.argv, task.env, task.stdin) == ("0", ("true",), {}, None)
    assert (task.files_in, task.files_out) == ({}, ())


def test_a_job_with_everything_in_it() -> None:
    job = parsed("""
        name = "words"
        needs = { cpu = 0.5, memory = "64MiB", label = { zone = "a" } }
        priority = 7
        attempts = 2
        timeout = "5m"
        deadline = "2h"
        speculate = true
        max_price = "0.05"
        policy = "balanced"
        hints = ["region=eu"]
        scope = "org"
        learn = false

        [[task]]
        each = ["a.txt", "b.txt"]
        label = "count-{each}"
        argv = ["sh", "-c", "wc {each} > ${OUT}"]
        files_in = ["texts/{each}"]
        files_out = ["{each}.count"]
        env = { OUT = "{each}.count" }
        stdin = "of {each}"

        [[task]]
        argv = ["hostname"]
    """)
    assert job.name == "words"
    assert job.options == TaskOptions(
        needs=Requirements(cpu_milli=500, memory_bytes=64 * MIB, labels=(("zone", "a"),)),
        priority=7,
        attempts=2,
        timeout_s=300.0,
        deadline_s=7200.0,
        speculate=True,
        max_price_micro=50_000,
        policy=Balanced(),
        hints=Hints(region="eu"),
        scope=Scope.ORG,
        learn=False,
    )
    a, b, last = job.tasks
    assert a.label == "count-a.txt"
    assert a.argv == ("sh", "-c", "wc a.txt > ${OUT}")
    assert a.files_in == {"a.txt": HERE / "texts/a.txt"}
    assert (b.files_out, b.env, b.stdin) == (("b.txt.count",), {"OUT": "b.txt.count"}, b"of b.txt")
    assert last.label == "2"


def test_needs_may_be_written_as_on_the_command_line_and_time_in_seconds() -> None:
    job = parsed("""
        needs = "cpu=2,gpu.memory=24GB"
        timeout = 1.5
        [[task]]
        argv = ["true"]
    """)
    needs = job.options.needs
    assert (needs.cpu_milli, needs.gpu_count, job.options.timeout_s) == (2000, 1, 1.5)
    assert not job.options.memory_given


@pytest.mark.parametrize(
    ("each", "words", "labels"),
    [
        ("each = { from = 9, to = 11 }", ["9", "10", "11"], ["9", "10", "11"]),
        # A path still names a folder.
        ('each = ["texts/a", "b"]', ["texts/a", "b"], ["texts-a", "b"]),
        (
            'each = ["a", "b"]\nmatrix = { n = [1, 2] }',
            ["a1", "a2", "b1", "b2"],
            ["a-1", "a-2", "b-1", "b-2"],
        ),
    ],
    ids=["a range has both its ends", "paths", "each and a matrix"],
)
def test_each_makes_a_task_of_each_value(each: str, words: list[str], labels: list[str]) -> None:
    word = "{each}{n}" if "matrix" in each else "{each}"
    job = parsed(f'[[task]]\n{each}\nargv = ["render", "{word}"]')
    assert [task.argv[1] for task in job.tasks] == words
    assert [task.label for task in job.tasks] == labels


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("argv = [", "is not TOML"),
        ("", "there is none; write at least one [[task]]"),
        ("tasks = []", "'tasks' is not a key here; there are name, needs"),
        ("task = 3", "task: 3 is not a list of tables"),
        ("task = [3]", "task 1: 3 is not a table"),
        (
            '[[task]]\ncomand = "x"',
            "task 1: 'comand' is not a key here; there are label, each, argv",
        ),
        ('[[task]]\nargv=["a"]\n[[task]]\n', "task 2: argv: is missing"),
        ('[[task]]\nargv="true"', "task 1: argv: 'true' is not a list of texts"),
        ("[[task]]\nargv=[1]", "task 1: argv: 1 is not a text; put it in quotes"),
        ('[[task]]\nargv=["a"]\nenv={A=1}', "task 1: env.A: 1 is not a text"),
        ('[[task]]\nargv=["a"]\nstdin=[]', "task 1: stdin: a list is not a text"),
        ('[[task]]\nargv=["a"]\nlabel="a/b"', "task 1: label: 'a/b' cannot name a folder"),
        ('[[task]]\nargv=["a"]\nlabel=".."', "cannot name a folder"),
        ('[[task]]\nargv=["a"]\nlabel=""', "cannot name a folder"),
        ('[[task]]\nargv=["a"]\nlabel="\\u001b[2J"', "cannot name a folder"),
        ('[[task]]\nargv=["a"]\neach=["x", 1]\nlabel="same"', "two tasks are called 'same'"),
        ('[[task]]\nargv=["a"]\neach=[]', "task 1: each: is not a list of texts"),
        ('[[task]]\nargv=["a"]\neach=[1.5]', "each: is not a list of texts"),
        ('[[task]]\nargv=["a"]\neach={from=1}', "each: is not a list of texts"),
        ('[[task]]\nargv=["a"]\neach={from=1,to=2,by=1}', "each: is not a list of texts"),
        ('[[task]]\nargv=["a"]\neach={from=true,to=true}', "each: is not a list of texts"),
        ('[[task]]\nargv=["a"]\neach={from=2,to=1}', "each: is empty"),
        ('[[task]]\nargv=["a"]\neach={from=1,to=999999999999}', "more than 100000"),
        ('[[task]]\nargv=["a"]\nfiles_in=["a/x","b/x"]', "would both be x"),
        ('[[task]]\nargv=["a"]\nfiles_out=["stdout"]', "give the file another name"),
        ('priority="1"\n[[task]]\nargv=["a"]', "priority: '1' is not a whole number"),
        ('attempts=true\n[[task]]\nargv=["a"]', "attempts: True is not a whole number"),
        ('timeout="soon"\n[[task]]\nargv=["a"]', "timeout: 'soon' is not a duration"),
        ('deadline="soon"\n[[task]]\nargv=["a"]', "deadline: 'soon' is not a duration"),
        ('speculate=1\n[[task]]\nargv=["a"]', "speculate: 1 is not true or false"),
        ('timeout=true\n[[task]]\nargv=["a"]', "timeout: True is not a text"),
        ('name=1\n[[task]]\nargv=["a"]', "name: 1 is not a text"),
        ('needs="cpus=1"\n[[task]]\nargv=["a"]', "cpus: is not a requirement"),
        ('needs=3\n[[task]]\nargv=["a"]', "needs: 3 is not a text"),
        (f"priority={'9' * 5000}", "job file: is not TOML: "),
        (f"name={'[' * 5000}", "job file: has too many brackets inside brackets"),
    ],
)
def test_what_is_wrong_is_named(text: str, reported: str) -> None:
    assert reported in refused(text)


KEYS = ("name", "needs", "attempts", "timeout", "deadline", "speculate", "task")
VALUES = ("true", "-7", "1e300", "nan", '""', '"x"', "[]", "[[1]]", "{}", "{argv=1}", "{to=[]}")


@pytest.mark.parametrize("value", [*VALUES, "[{each={}}]", '[{argv=["a"],label=1}]'])
def test_whatever_stands_there_is_refused(value: str) -> None:
    for key in KEYS:
        text = f"{key} = {value}"
        with pytest.raises(InvalidInput):
            parse_job_file(text if key == "task" else text + "\n[[task]]\nargv = [1]", HERE)


# -- the files of a job ------------------------------------------------------------------------


def written(folder: Path, text: str) -> Path:
    path = folder / "job.toml"
    path.write_text(dedent(text), encoding="utf-8")
    return path


def test_files_are_named_from_the_job_files_own_folder(tmp_path: Path) -> None:
    (tmp_path / "texts").mkdir()
    (tmp_path / "texts/a.txt").write_bytes(b"a\n")
    path = written(
        tmp_path,
        """
        [[task]]
        argv = ["wc", "a.txt"]
        files_in = ["texts/a.txt"]
        stdin = "x"
        """,
    )
    assert [task.work for task in read_job_file(path).plan().tasks] == [
        ProcessSpec(("wc", "a.txt"), stdin=b"x", files_in={"a.txt": b"a\n"})
    ]


def test_a_job_file_that_is_missing_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="No such file"):
        read_job_file(tmp_path / "none.toml")
    (tmp_path / "x.toml").write_bytes(b"\xff")
    with pytest.raises(InvalidInput, match="not UTF-8 text"):
        read_job_file(tmp_path / "x.toml")


def test_a_mark_of_the_byte_order_is_no_part_of_a_job(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("a\n", encoding="utf-8-sig")
    text = '[[task]]\ninputs = { lines = "lines.txt" }\nargv = ["wc", "{input}"]\n'
    (tmp_path / "job.toml").write_text(text, encoding="utf-8-sig")
    (task,) = read_job_file(tmp_path / "job.toml").tasks
    assert (task.label, task.argv) == ("a", ("wc", "a"))


def test_an_input_that_is_missing_and_what_no_process_takes_are_named(tmp_path: Path) -> None:
    path = written(tmp_path, '[[task]]\nargv = ["a"]\nfiles_in = ["none.txt"]')
    with pytest.raises(LocalError, match=r"none\.txt: No such file"):
        read_job_file(path).plan()
    path = written(tmp_path, '[[task]]\nlabel = "x"\nargv = ["a"]\nfiles_out = ["../b"]')
    with pytest.raises(InvalidInput, match=r"task x: files_out: '\.\./b' is not a plain"):
        read_job_file(path).plan()


def test_inputs_of_a_whole_job_are_bounded(tmp_path: Path) -> None:
    (tmp_path / "big").write_bytes(bytes(9))
    path = written(
        tmp_path,
        """
        [[task]]
        each = [1, 2, 3]
        argv = ["a"]
        files_in = ["big"]
        """,
    )
    with pytest.raises(InvalidInput, match="files_in: the small ones of all tasks have more"):
        read_job_file(path).read(max_input_bytes=20)


def test_large_files_and_those_of_many_tasks_travel_by_content(tmp_path: Path) -> None:
    sizes = {"small": 9, "large": 300 * KIB, "common": 200 * KIB, "half": 200 * KIB}
    for name, size in sizes.items():
        (tmp_path / name).write_bytes(bytes(size))
    many = "\n".join("[[task]]\nargv = ['a']\nfiles_in = ['common']" for _ in range(30))
    one = "[[task]]\nargv = ['a']\nfiles_in = ['small', 'large', 'half']\n"
    job = read_job_file(written(tmp_path, one + many))
    contents = job.read()
    assert {path.name for path in contents} == {"small", "half"}
    assert [path.name for path in job.large(contents)] == ["large", "common"]
    blobs = {path: Blob(Cid(RAW, bytes(32)), 1) for path in job.large(contents)}
    first, second, *_ = [task.work for task in job.plan(contents, blobs).tasks]
    assert isinstance(first, ProcessSpec)
    assert isinstance(second, ProcessSpec)
    assert set(first.files_in) == {"small", "half"}
    assert set(first.inputs) == {"large"}
    assert set(second.inputs) == {"common"}


def test_files_of_other_tasks_are_inputs_and_those_tasks_keep_them() -> None:
    job = parsed("""
        [[task]]
        name = "prepare"
        matrix = { p = [1, 2] }
        argv = ["prepare", "{p}"]
        files_out = ["part.txt", "log"]
        outputs = ["huge"]

        [[task]]
        name = "use"
        matrix = { p = [1, 2] }
        inputs = { "{p}.txt" = "prepare-{p}:part.txt" }
        argv = ["use"]

        [[task]]
        inputs = { "{label}" = "use:made" }
        argv = ["merge"]
    """)
    plan = job.plan()
    assert [task.after for task in plan.tasks] == [(), (), (0,), (1,), (2, 3)]
    assert [task.inputs_from for task in plan.tasks[2:]] == [
        (("1.txt", 0, "part.txt"),),
        (("2.txt", 1, "part.txt"),),
        (("use-1", 2, "made"), ("use-2", 3, "made")),
    ]
    works = [task.work for task in plan.tasks]
    assert [(w.files_out, w.outputs) for w in works if isinstance(w, ProcessSpec)] == [
        (("log",), ("huge", "part.txt")),
        (("log",), ("huge", "part.txt")),
        ((), ("made",)),
        ((), ("made",)),
        ((), ()),
    ]
    assert [(line.sent, line.brought) for line in job.tasks[1:3]] == [
        (("log",), ("huge", "part.txt")),
        ((), ()),
    ]


def test_inputs_of_other_tasks_are_texts_that_name_one() -> None:
    assert "task 1: inputs.a: 3 is not a text" in refused("[[task]]\nargv=['a']\ninputs={a=3}")
    assert "names no file of a task" in refused("[[task]]\nargv=['a']\ninputs={a='b'}")
    table = "[[task]]\nargv=['a']\noutputs=['stdout']"
    assert "task 1: outputs: stdout is where" in refused(table)


def test_a_task_may_be_a_module_or_run_in_an_image(tmp_path: Path) -> None:
    (tmp_path / "count-a.wasm").write_bytes(b"\0asm\1\0\0\0")
    job = parse_job_file(
        dedent("""
            [[task]]
            each = ["a"]
            wasm = "count-{each}.wasm"
            fuel = 1_000
            argv = ["words-{each}"]

            [[task]]
            wasm = "count-a.wasm"

            [[task]]
            image = "alpine:3.22"
            argv = ["true"]
        """),
        tmp_path,
    )
    module = (tmp_path / "count-a.wasm").read_bytes()
    assert [task.work for task in job.plan().tasks] == [
        WasmSpec(module, ProcessSpec(("count-a.wasm", "words-a")), 1000),
        WasmSpec(module, ProcessSpec(("count-a.wasm",))),
        ContainerSpec("alpine:3.22", ProcessSpec(("true",))),
    ]
    assert [task.kind.driver for task in job.tasks] == ["wasm", "wasm", "container"]


def test_a_task_is_of_one_kind() -> None:
    task = "[[task]]\nargv = ['true']\n"
    assert refused(task + "wasm = 'a.wasm'\nimage = 'b'") == (
        "task 1: wasm: a task is a module or in an image, not both"
    )
    assert refused(task + "fuel = 7") == "task 1: fuel: is for a module; name one with wasm"
    assert refused(task + "fuel = '7'") == "task 1: fuel: '7' is not a whole number"
    with pytest.raises(InvalidInput, match="task 0: image: is not a name of an image"):
        parsed(task + "image = '-v'").plan()
    with pytest.raises(LocalError, match=r"a\.wasm: No such file"):
        parsed(task + "wasm = 'a.wasm'").plan()


# -- many tasks in an order -------------------------------------------------------------------


def test_a_matrix_makes_a_task_of_each_combination() -> None:
    job = parsed("""
        [[task]]
        name = "train"
        argv = ["./train.py", "--lr", "{lr}", "--seed", "{seed}", "{tag}"]
        files_out = ["{lr}.bin"]
        env = { SEED = "{seed}" }

        [task.matrix]
        lr = [0.1, 0.01]
        seed = { from = 1, to = 2 }
        exclude = [{ lr = 0.1, seed = 2 }]
        include = [{ lr = 0.1, tag = "slow" }]
    """)
    assert [task.label for task in job.tasks] == [
        "train-0.1-1-slow",
        "train-0.01-1",
        "train-0.01-2",
    ]
    assert job.tasks[0].argv == ("./train.py", "--lr", "0.1", "--seed", "1", "slow")
    assert job.tasks[1].argv[-1] == "{tag}"  # nobody's, here
    assert (job.tasks[2].files_out, job.tasks[2].env) == (("0.01.bin",), {"SEED": "2"})


def test_tasks_come_after_others_by_name_or_label() -> None:
    job = parsed("""
        [[task]]
        name = "fetch"
        each = ["x", "y"]
        argv = ["fetch", "{each}"]

        [[task]]
        name = "read"
        each = ["x", "y"]
        after = ["fetch-{each}"]
        argv = ["read", "{each}"]

        [[task]]
        after = ["fetch", "read"]
        argv = ["sum"]
    """)
    assert [(task.label, task.after) for task in job.tasks] == [
        ("fetch-x", ()),
        ("fetch-y", ()),
        ("read-x", (0,)),
        ("read-y", (1,)),
        ("4", (0, 1, 2, 3)),
    ]
    assert [task.after for task in job.plan().tasks] == [task.after for task in job.tasks]


def test_inputs_are_files_that_go_with_their_tasks(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    for name in ("b.csv", "a.csv", "other.txt"):
        (tmp_path / "data" / name).write_text(name)
    text = """
        [[task]]
        inputs = ["data/*.csv", "data/other.txt", "data/a.csv"]
        label = "{stem}"
        files_in = ["data/other.txt"]
        argv = ["wc", "{name}", "{input}"]
    """
    job = parse_job_file(dedent(text), tmp_path)
    assert [task.argv[1:] for task in job.tasks] == [
        ("a.csv", "data/a.csv"),
        ("b.csv", "data/b.csv"),
        ("other.txt", "data/other.txt"),
    ]
    assert [task.label for task in job.tasks] == ["a", "b", "other"]
    assert [sorted(task.files_in) for task in job.tasks] == [
        ["a.csv", "other.txt"],
        ["b.csv", "other.txt"],
        ["other.txt"],
    ]


def test_a_file_that_is_called_like_a_pattern_is_that_file(tmp_path: Path) -> None:
    for name in ("a[1].csv", "b?.csv", "a1.csv"):
        (tmp_path / name).write_text(name)
    for inputs, found in (
        ("a[1].csv", ["a[1].csv"]),
        ("b?.csv", ["b?.csv"]),
        ("a[0-9].csv", ["a1.csv"]),
    ):
        job = parse_job_file(
            f'[[task]]\ninputs = ["{inputs}"]\nargv = ["wc", "{{name}}"]', tmp_path
        )
        assert [task.argv[1] for task in job.tasks] == found


def test_inputs_that_are_not_there_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_text("\n")
    for inputs, reported in (
        ('["*.csv"]', "task 1: inputs: '*.csv' names no file; look for it in"),
        ('["/*.csv"]', "'/*.csv' names no files here"),
        (f'["{"x" * 300}*"]', "names no file"),
        (f'["{"**/" * 999}*"]', "names no files here: maximum recursion depth"),
        ("[]", "is neither a list of files"),
        ("[1]", "is neither a list of files"),
        ('{ lines = "empty" }', "empty has no line"),
        ('{ lines = "empty", more = 1 }', "is neither a list of files"),
    ):
        with pytest.raises(InvalidInput) as error:
            parse_job_file(f'[[task]]\ninputs = {inputs}\nargv = ["x"]', tmp_path)
        assert reported in str(error.value)
    with pytest.raises(LocalError, match="No such file"):
        parse_job_file('[[task]]\ninputs = { lines = "gone" }\nargv = ["x"]', tmp_path)


def test_a_task_may_have_needs_and_a_kind_of_its_own() -> None:
    job = parsed("""
        needs = "cpu=2"

        [[task]]
        argv = ["true"]

        [[task]]
        needs = "memory=1GiB"
        kind = "large"
        argv = ["true"]

        [[task]]
        name = "small"
        matrix = { mib = [64, 128] }
        needs = { cpu = 0.5, memory = "{mib}MiB" }
        argv = ["true"]
    """)
    first, large, small, smaller = job.plan().tasks
    assert first.needs is None  # so that it has the job's
    assert (job.options.needs, job.options.memory_given) == (Requirements(cpu_milli=2000), False)
    assert (large.needs, large.memory_given) == (Requirements(memory_bytes=1024 * MIB), True)
    assert (large.kind, first.kind) == ("large", "")
    assert small.needs == Requirements(cpu_milli=500, memory_bytes=64 * MIB)
    assert smaller.needs == Requirements(cpu_milli=500, memory_bytes=128 * MIB)
    assert parsed('needs = "memory=1GiB"\n[[task]]\nargv = ["a"]').options.memory_given
    table = 'needs = { memory = "1GiB" }\n[[task]]\nargv = ["a"]'
    assert parsed(table).options.memory_given


def test_each_line_of_a_real_list_is_a_task(tmp_path: Path) -> None:
    url = f"https://example.org/{'a' * 65}"
    lines = f"{url}\nsame\n\n  same\n{{index}}\nsay it, twice / more\n"
    (tmp_path / "urls.txt").write_text(lines)
    text = """
        [[task]]
        inputs = { lines = "urls.txt" }
        argv = ["curl", "-o", "{index}.html", "{input}"]
        files_out = ["{index}.html"]
    """
    job = parse_job_file(dedent(text), tmp_path)
    assert [(task.label, *task.argv[2:]) for task in job.tasks] == [
        (url.replace("/", "-")[:60], "0.html", url),
        ("same", "1.html", "same"),
        ("same-2", "2.html", "same"),
        ("{index}", "3.html", "{index}"),
        ("say it, twice - more", "4.html", "say it, twice / more"),
    ]
    assert job.tasks[0].files_in == {}


HAS = 'argv = ["echo", "{a}"]\n'


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        (f'matrix = {{ a = [1] }}\n{HAS}stdin = "{{b}}"', "task 2: stdin: line 6: {b} is not"),
        (f'matrix = {{ a = [1] }}\n{HAS}stdin = "{{b}}"', "there are {a}, {index}; braces of"),
        (f"matrix = {{ a = [1], c = [2] }}\n{HAS}", "task 2: matrix.c: line 4: no text has {c}"),
        ('argv = ["echo", "{input}"]', "line 4: {input} is not a parameter"),
        (f'{HAS}each = ["a"]', "line 4: {a} is not a parameter"),
        (f'{HAS}inputs = {{ "x-{{l}}" = "one:x" }}', "task 2: argv: line 4: {a} is not"),
    ],
)
def test_a_name_in_braces_is_a_parameter(text: str, reported: str) -> None:
    assert reported in refused(f'[[task]]\nargv = ["x"]\n[[task]]\n{text}\n')


@pytest.mark.parametrize(
    "text",
    [
        'argv = ["awk", "{print}"]',
        'argv = ["sh", "-c", "echo ${HOME} { print } {1,2}"]\neach = ["a"]',
        'argv = ["a"]\nmatrix = { a = [1, 2] }\nlabel = "run-{a}"',
        'argv = ["a"]\nmatrix = { a = [1, 2] }\nneeds = { cpu = "{a}" }',
        'argv = ["a"]\neach = { from = 1, to = 3 }',
        'argv = ["a"]\nenv = { A = "{index}" }',
    ],
)
def test_braces_of_programs_stay(text: str) -> None:
    assert parsed(f"[[task]]\n{text}\n").tasks


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("matrix = 3", "task 1: matrix: 3 is not a table of lists"),
        ("matrix = { a = 3 }", "task 1: matrix.a: is not a list of values"),
        ("matrix = { a = [1], exclude = 3 }", "task 1: matrix.exclude: 3 is not a list of tables"),
        ("matrix = { a = [1], exclude = [3] }", "task 1: exclude: 3 is not a table"),
        ('after = ["b"]', "after: 0 waits for 'b', and no task is called that"),
        ('name = "a"\nafter = ["a"]', "tasks wait for each other in a circle: 'a' for 'a'"),
        ("after = 3", "task 1: after: 3 is not a list of texts"),
        ("after = [3]", "task 1: after: 3 is not a text"),
        ('name = "a"\nargv = ["b"]\n[[task]]\nname = "a"', "task 2: name: 'a' is there twice"),
        ('needs = "cpus=1"', "cpus: is not a requirement"),
        ("kind = 3", "task 1: kind: 3 is not a text"),
        ("name = 3", "task 1: name: 3 is not a text"),
        (
            'matrix = { stem = [1] }\ninputs = ["x"]',
            "task 1: matrix: stem is of each input already; give the parameter another name",
        ),
    ],
)
def test_what_is_wrong_with_many_tasks_is_named(text: str, reported: str) -> None:
    if "argv" in text:
        assert reported in refused(f'[[task]]\n{text}\nargv = ["x"]\nlabel = "other"')
    else:
        assert reported in refused(f'[[task]]\n{text}\nargv = ["x"]')


@given(
    st.recursive(
        st.one_of(st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["argv", "each", "label", "from", "to"]), inner)
        ),
        max_leaves=8,
    ),
    st.sampled_from(["name", "needs", "attempts", "timeout", "deadline", "speculate", "task"]),
)
def test_whatever_stands_there_is_read_or_refused(value: object, key: str) -> None:
    text = f"{key} = {_toml(value)}"
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return
    with pytest.raises(InvalidInput):
        parse_job_file(text if key == "task" else text + "\n[[task]]\nargv = [1]", HERE)


def _toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return '"' + "".join(f"\\U{ord(c):08x}" for c in value) + '"'
        case list():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case dict():
            return (
                "{" + ", ".join(f"{name} = {_toml(inner)}" for name, inner in value.items()) + "}"
            )
        case _:
            return repr(value)
