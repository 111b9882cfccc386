"""The tasks of a job file as it was read, and the plan that they make."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from formation_p2p.command.files import ALL_INLINE_BYTES, INLINE_BYTES, read_input, size_of
from formation_p2p.command.task_flags import Kind
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import GIB, format_bytes
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.placement.core.task_options import TaskOptions
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.derive import Reads
from formation_p2p.workload.core.plan import Plan, PlannedTask
from formation_p2p.workload.core.process import ProcessSpec

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
