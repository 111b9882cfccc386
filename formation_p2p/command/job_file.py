"""The job file of `formation submit`: TOML, of which every key is known or refused.

`formation submit --help` and docs/reference/job-files.md show the keys. Only `task` and its `argv`
must be there.
"""

from __future__ import annotations

import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from formation_p2p.command.files import (
    ALL_INLINE_BYTES,
    INLINE_BYTES,
    local,
    named,
    read_input,
    secret_files,
    size_of,
)
from formation_p2p.command.task_flags import FLAGS, Kind, kwargs_of_file, text, typed
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import GIB, format_bytes
from formation_p2p.machine.core.bounds import shown
from formation_p2p.machine.core.requirements import Requirements, requirements_from_mapping
from formation_p2p.placement.core.task_options import TaskOptions
from formation_p2p.placement.policies import options_of
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.derive import Draft, Reads, needs_of, parameters_of, settled
from formation_p2p.workload.core.matrix import (
    Parameters,
    fill,
    given_label,
    label_of,
    places,
    telling,
)
from formation_p2p.workload.core.plan import Plan, PlannedTask
from formation_p2p.workload.core.process import ProcessSpec
from formation_p2p.workload.core.work import MAX_TASKS

# All inputs that travel with the tasks of a job are held in memory until it ends.
MAX_INPUT_BYTES: Final = 2 * GIB


@dataclass(frozen=True, slots=True)
class TaskLine:
    """One task, with its parameters in place. `files_in` are by the names that the task sees;
    `after` are the places of the tasks before it, `inputs_from` the files of these that it reads,
    `outputs` those of its own that come by content and `handed_on` those that others read. `needs`
    None are the job's."""

    label: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    stdin: bytes | None
    files_in: Mapping[str, Path]
    files_out: tuple[str, ...]
    kind: Kind = Kind()  # noqa: RUF009 - it is frozen
    after: tuple[int, ...] = ()
    needs: Requirements | None = None
    memory_given: bool = False
    learnt_as: str = ""
    outputs: tuple[str, ...] = ()
    inputs_from: Reads = ()
    handed_on: tuple[str, ...] = ()
    secrets: Mapping[str, Path] = field(default_factory=dict)

    @property
    def brought(self) -> tuple[str, ...]:
        """The files that are sent back by content."""
        sent = tuple(name for name in self.files_out if name in self.handed_on)
        return (*self.outputs, *(name for name in sent if name not in self.outputs))

    @property
    def sent(self) -> tuple[str, ...]:
        """The files that come with the result."""
        return tuple(name for name in self.files_out if name not in self.handed_on)


@dataclass(frozen=True, slots=True)
class JobFile:
    """What a job file says; command/job_file.py reads it."""

    name: str
    options: TaskOptions
    tasks: tuple[TaskLine, ...]

    def read(self, max_input_bytes: int = MAX_INPUT_BYTES) -> dict[Path, bytes]:
        """The files that travel with the tasks, each read once. Those that are large, or that many
        tasks read, travel by content. Raises InvalidInput, LocalError."""
        uses = Counter(path for task in self.tasks for path in task.files_in.values())
        contents: dict[Path, bytes] = {}
        left_bytes = max_input_bytes
        for path, count in uses.items():
            size = size_of(path)
            if size > INLINE_BYTES or (count > 1 and size * count > ALL_INLINE_BYTES):
                continue
            contents[path] = read_input(path)
            left_bytes -= size * count
            if left_bytes < 0:
                limit = format_bytes(max_input_bytes)
                problem = f"the small ones of all tasks have more than {limit}; split the job"
                raise InvalidInput("files_in", problem)
        return contents

    def large(self, contents: Mapping[Path, bytes]) -> list[Path]:
        """The files that travel by content, beside these."""
        every = (path for task in self.tasks for path in _apart(task, contents)[1].values())
        return list(dict.fromkeys(every))

    def plan(
        self,
        contents: Mapping[Path, bytes] | None = None,
        blobs: Mapping[Path, Blob] | None = None,
        secrets: Mapping[Path, Blob] | None = None,
    ) -> Plan:
        """With the files: `contents` as `read` has them, which is called where there are none, and
        `blobs` those that are `large`; `secrets` are those that tasks name. Raises InvalidInput,
        LocalError."""
        contents = self.read() if contents is None else contents
        fetched = blobs or {}
        planned: list[PlannedTask] = []
        for task in self.tasks:
            small, large = _apart(task, contents)
            files_in = {name: contents[path] for name, path in small.items()}
            inputs = {name: fetched[path] for name, path in large.items()}
            outputs = tuple(dict.fromkeys((*task.outputs, *task.handed_on)))
            with inside(f"task {task.label}"):
                process = ProcessSpec(
                    task.argv,
                    task.env,
                    task.stdin,
                    files_in,
                    task.sent,
                    inputs,
                    outputs,
                    secrets={name: (secrets or {})[path] for name, path in task.secrets.items()},
                )
                work = task.kind.of(process)
            about = (task.label, task.after, task.needs, task.memory_given, task.learnt_as)
            planned.append(PlannedTask(work, *about, task.inputs_from))
        return Plan(tuple(planned))


class Form(NamedTuple):
    """Of a job file that is not TOML: whether a path is of one, and what reads it."""

    is_of: Callable[[Path], bool]
    read: Callable[[Path], AbstractContextManager[JobFile]]


def _apart(
    task: TaskLine, contents: Mapping[Path, bytes]
) -> tuple[dict[str, Path], dict[str, Path]]:
    """The files that go with a task, and those that it fetches."""
    small: dict[str, Path] = {}
    left_bytes = ALL_INLINE_BYTES
    for name, path in task.files_in.items():
        if path in contents and len(contents[path]) <= left_bytes:
            small[name] = path
            left_bytes -= len(contents[path])
    return small, {name: path for name, path in task.files_in.items() if name not in small}


@contextmanager
def inside(where: str) -> Iterator[None]:
    """Names the task in what is raised of one of its fields."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error.field}", error.problem) from None


# What a task without parameters has in braces by mistake: other names are a program's own.
_OF_INPUTS: Final = ("each", "input", "stem")
# What a task prints is kept beside the files that it sends back, under these names.
PRINTED: Final = ("stdout", "stderr")

_JOB_KEYS: Final = ("name", *(flag.file_key for flag in FLAGS.values()), "task")
TASK_KEYS: Final = (
    *("label", "each", "argv", "env", "stdin", "files_in", "files_out", "outputs"),
    *("wasm", "fuel", "image", "secrets"),
    *("name", "matrix", "inputs", "after", "needs", "kind"),
)


def read_job_file(path: Path) -> JobFile:
    """Raises InvalidInput, LocalError."""
    return parse_job_file(_read("job file", path), path.parent)


def parse_job_file(content: str, folder: Path) -> JobFile:
    """`folder` is the job file's own, from which `files_in` are named.

    Raises InvalidInput, whose `field` says which key of which task: `task 2: argv`.
    """
    try:
        job = tomllib.loads(content)
    except RecursionError:
        raise InvalidInput("job file", "has too many brackets inside brackets") from None
    except ValueError as error:  # or a number of too many digits
        raise InvalidInput("job file", f"is not TOML: {error}") from None
    _refuse_unknown("job", job, _JOB_KEYS)
    lines = content.splitlines()
    tables = typed("task", job.get("task", []), list, "a list of tables, each written as [[task]]")
    drafts: list[Draft[TaskLine]] = []
    groups: dict[str, range] = {}
    for number, table in enumerate(tables, start=1):
        where = f"task {number}"
        checked = typed(where, table, dict, "a table, written as [[task]]")
        first = len(drafts)
        drafts += _drafts(where, checked, folder, first, partial(_line_of, lines, number))
        if len(drafts) > MAX_TASKS:
            raise InvalidInput("task", f"there are more than {MAX_TASKS}; split the job")
        if name := text(f"{where}: name", checked.get("name", "")):
            if name in groups:
                raise InvalidInput(f"{where}: name", f"{shown(name)} is there twice")
            groups[name] = range(first, len(drafts))
    if not drafts:
        raise InvalidInput("task", "there is none; write at least one [[task]] with an argv")
    tasks = tuple(replace(task, **place) for task, place in settled(drafts, groups))
    kwargs = kwargs_of_file(job)
    if isinstance(env := kwargs.get("env"), str):
        kwargs["env"] = folder / env
    options = options_of(kwargs)
    return JobFile(text("name", job.get("name", "")), options, tasks)


def _drafts(
    where: str, table: dict[str, Any], folder: Path, count: int, line_of: Callable[[str], int]
) -> Iterator[Draft[TaskLine]]:
    """The tasks of one [[task]]. Those without a name, a label and parameters are numbered on from
    `count`. `line_of` finds a text in it."""
    _refuse_unknown(where, table, TASK_KEYS)
    if "argv" not in table and "wasm" not in table:
        raise InvalidInput(f"{where}: argv", "is missing; write the command and its arguments")
    name = text(f"{where}: name", table.get("name", ""))
    given = table.get("inputs")
    files = _files_of_tasks(f"{where}: inputs", given)
    inputs, sent = _inputs(f"{where}: inputs", None if files else given, folder)
    with inside(where):
        every = parameters_of(*_matrix(where, table), inputs=inputs)
    _check_places(where, table, every, line_of)
    for place, parameters in enumerate(every):
        texts: Parameters = {"index": place, **parameters}
        label, is_made = label_of(name, telling(parameters)) or str(count + place), True
        if "label" in table:
            field = f"{where}: label"
            label, is_made = given_label(field, text(field, table["label"]), texts)
        file = str(parameters["input"]) if sent else None
        line = _task(where, table, folder, label, partial(fill, parameters=texts), file)
        needs, memory_given = None, False
        if "needs" in table:
            needs, memory_given = _needs(f"{where}: needs", table["needs"], texts)
        before = typed(f"{where}: after", table.get("after", []), list, "a list of texts")
        names = [fill(text(f"{where}: after", each), texts) for each in before]
        kind = fill(text(f"{where}: kind", table.get("kind", "")), texts)
        line = replace(line, needs=needs, memory_given=memory_given, learnt_as=kind)
        yield Draft(line, label, is_made, names, files, texts)


def _check_places(
    where: str,
    table: Mapping[str, Any],
    every: Sequence[Parameters],
    line_of: Callable[[str], int],
) -> None:
    """Raises InvalidInput for a name in braces that is not a parameter, in a task with some, and
    for a parameter of the matrix that stands nowhere."""
    used: set[str] = set()
    known = {"index", *(name for each in every for name in each)}
    given = "matrix" in table or "each" in table or "inputs" in table
    for key, value in table.items():
        if key in ("matrix", "each", "name") or (key == "inputs" and _is_of_files(value)):
            continue
        there = known | {"label"} if key == "inputs" else known
        for name in _places_in(value):
            used.add(name)
            if name in there or not (given or name in _OF_INPUTS):
                continue
            has = f"there are {', '.join(f'{{{each}}}' for each in sorted(there))}"
            raise InvalidInput(
                f"{where}: {key}",
                f"line {line_of(f'{{{name}}}')}: {{{name}}} is not a parameter; {has}; "
                f"braces of a program's own have a space in them: {{ {name} }}",
            )
    for name in table.get("matrix", {}):
        if name not in (*used, "include", "exclude"):
            raise InvalidInput(
                f"{where}: matrix.{name}",
                f"line {line_of(name)}: no text has {{{name}}}, so that tasks do the same; write "
                f'it where the value belongs, or `label = "...-{{{name}}}"` to run all of them',
            )


def _places_in(value: object) -> Iterator[str]:
    match value:
        case str():
            yield from places(value)
        case list():
            for each in value:
                yield from _places_in(each)
        case dict():
            for key, each in value.items():
                yield from places(key)
                yield from _places_in(each)
        case _:
            pass


def _line_of(lines: Sequence[str], task: int, sought: str) -> int:
    """The number of the line of the file where that stands in the [[task]] of this number."""
    heads = [n for n, line in enumerate(lines) if line.replace(" ", "").startswith("[[task]]")]
    first = heads[task - 1] if task <= len(heads) else 0
    last = heads[task] if task < len(heads) else len(lines)
    return 1 + next((n for n in range(first, last) if sought in lines[n]), first)


def _matrix(
    where: str, table: Mapping[str, Any]
) -> tuple[dict[str, list[Any]], list[Any], list[Any]]:
    """The parameters and their values, and what is included and excluded besides."""
    field = f"{where}: matrix"
    matrix = dict(typed(field, table.get("matrix", {}), dict, "a table of lists"))
    rules = [
        typed(f"{field}.{key}", matrix.pop(key, []), list, "a list of tables")
        for key in ("include", "exclude")
    ]
    axes = {
        name: _each(f"{field}.{name}", values) if isinstance(values, dict) else values
        for name, values in matrix.items()
    }
    if "each" in table:
        axes = {"each": _each(f"{where}: each", table["each"]), **axes}
    return axes, rules[0], rules[1]


def _task(
    where: str,
    table: dict[str, Any],
    folder: Path,
    label: str,
    fill: Callable[[str], str],
    sent: str | None,
) -> TaskLine:
    def texts(key: str) -> list[str]:
        field = f"{where}: {key}"
        values = typed(field, table.get(key, []), list, "a list of texts")
        return [fill(text(field, value)) for value in values]

    env = typed(f"{where}: env", table.get("env", {}), dict, "a table of texts")
    files_out = tuple(texts("files_out"))
    outputs = tuple(texts("outputs"))
    for key, names in (("files_out", files_out), ("outputs", outputs)):
        for name in PRINTED:
            if name in names:
                problem = (
                    f"{name} is where what the task prints is kept; give the file another name"
                )
                raise InvalidInput(f"{where}: {key}", problem)
    stdin = table.get("stdin")
    files_in = texts("files_in")
    if sent is not None and sent not in files_in:
        files_in.append(sent)
    kind = _kind(where, table, folder, fill)
    return TaskLine(
        label,
        (*kind.program, *texts("argv")),
        {name: fill(text(f"{where}: env.{name}", value)) for name, value in env.items()},
        None if stdin is None else fill(text(f"{where}: stdin", stdin)).encode(),
        named(f"{where}: files_in", [folder / name for name in files_in]),
        files_out,
        kind,
        outputs=outputs,
        secrets=secret_files(texts("secrets"), folder),
    )


def _kind(where: str, table: dict[str, Any], folder: Path, fill: Callable[[str], str]) -> Kind:
    wasm, image = (
        fill(text(f"{where}: {key}", table[key])) if key in table else None
        for key in ("wasm", "image")
    )
    fuel = typed(f"{where}: fuel", table.get("fuel", 0), int, "a whole number")
    with inside(where):
        return Kind(None if wasm is None else folder / wasm, fuel, image)


def _each(field: str, value: object) -> list[str]:
    match value:
        case [_, *_] if all(type(item) in (str, int) for item in value):
            return [str(item) for item in value]
        case {"from": first, "to": last, **rest} if type(first) is type(last) is int and not rest:
            values = [str(number) for number in range(first, min(last, first + MAX_TASKS) + 1)]
        case _:
            problem = "is not a list of texts or whole numbers, or { from = 1, to = 9 }"
            raise InvalidInput(field, problem)
    if not values:
        raise InvalidInput(field, "is empty: `to` is less than `from`")
    return values


def _needs(field: str, value: object, parameters: Parameters) -> tuple[Requirements, bool]:
    """And whether they say how much memory."""
    if isinstance(value, dict):
        filled = {k: fill(v, parameters) if isinstance(v, str) else v for k, v in value.items()}
        return requirements_from_mapping(filled), "memory" in value
    needs, given = needs_of(text(field, value), parameters)
    assert needs is not None, "they are None only without a text"
    return needs, given


def _files_of_tasks(field: str, value: object) -> dict[str, str]:
    """Of an `inputs` that names files of other tasks; none of any other."""
    if _is_of_files(value) or not isinstance(value, dict):
        return {}
    return {name: text(f"{field}.{name}", source) for name, source in value.items()}


def _is_of_files(value: object) -> bool:
    """Whether each file, or line of one, makes a task."""
    return not isinstance(value, dict) or "lines" in value


def _inputs(field: str, value: object, folder: Path) -> tuple[list[str], bool]:
    """One for each task, none where nothing is said; and whether they are files of `folder`, to be
    sent along. Raises InvalidInput, LocalError."""
    match value:
        case None:
            return [], False
        case {"lines": str(name), **rest} if not rest:
            stripped = map(str.strip, _read(name, folder / name).splitlines())
            lines = [line for line in stripped if line]
            if not lines:
                raise InvalidInput(field, f"{name} has no line; write one for each task")
            return lines, False
        case [_, *_] if all(type(item) is str for item in value):
            files = [file for item in value for file in _files(field, str(item), folder)]
            return list(dict.fromkeys(files)), True
        case _:
            problem = (
                'is neither a list of files, such as ["images/*.png"], nor { lines = "urls.txt" }, '
                'nor { "part.txt" = "TASK:part.txt" }'
            )
            raise InvalidInput(field, problem)


def _read(what: str, path: Path) -> str:
    """Raises LocalError; InvalidInput for a file that is not UTF-8 text."""
    try:
        with local(path):
            return path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidInput(what, f"{path} is not UTF-8 text") from None


def _files(field: str, pattern: str, folder: Path) -> list[str]:
    if not any(sign in pattern for sign in "*?["):
        return [pattern]
    try:
        if (folder / pattern).is_file():  # which is called so
            return [pattern]
        found = sorted(str(x.relative_to(folder)) for x in folder.glob(pattern) if x.is_file())
    except (OSError, ValueError, NotImplementedError, RecursionError) as error:
        # `glob` takes no absolute pattern (NotImplementedError), none like `a**` (ValueError), and
        # none of a thousand parts (RecursionError).
        raise InvalidInput(field, f"{shown(pattern)} names no files here: {error}") from None
    if not found:
        raise InvalidInput(field, f"{shown(pattern)} names no file; look for it in {folder}")
    return found


def _refuse_unknown(where: str, table: Mapping[str, Any], known: Collection[str]) -> None:
    for key in table:
        if key not in known:
            problem = f"{shown(key)} is not a key here; there are {', '.join(known)}"
            raise InvalidInput(where, problem)
