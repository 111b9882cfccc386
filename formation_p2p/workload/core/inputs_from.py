"""Files that one task makes and a later one of its job reads, by content.

The first keeps them as `outputs` of its process, the second finds them among its `inputs`. Which
blobs these are is known once the first has succeeded: then the second is bound to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Final

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import InvalidInput
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.process import (
    ContainerSpec,
    ImageSpec,
    ProcessResult,
    ProcessSpec,
    WasmSpec,
)
from formation_p2p.workload.core.work import Task, Work

# Stands for the content while that is not known.
_UNKNOWN: Final = Blob(Cid(RAW, digest_of(b"")), 0)


def handing_on(work: Work, names: Iterable[str]) -> Work:
    """The work, with these of its files kept for tasks that read them. Raises InvalidInput for
    work that makes no files."""

    def keep(process: ProcessSpec) -> ProcessSpec:
        kept = dict.fromkeys((*process.outputs, *names))
        sent = tuple(name for name in process.files_out if name not in kept)
        return replace(process, files_out=sent, outputs=tuple(kept))

    return changed(work, keep)


def reading(work: Work, names: Iterable[str]) -> Work:
    """The work, with files of these names among its inputs, of content that is not known yet.
    Raises InvalidInput for a name that it has already, and for work that reads no files."""
    unknown = dict.fromkeys(names, _UNKNOWN)

    def add(process: ProcessSpec) -> ProcessSpec:
        taken = sorted(unknown.keys() & process.inputs.keys())
        if taken:
            raise InvalidInput("inputs", f"{taken[0]!r} is there twice")
        return replace(process, inputs={**process.inputs, **unknown})

    return changed(work, add)


def bound(task: Task, inputs: Mapping[str, Blob]) -> Task:
    """The task, with this content for these of its inputs. Raises InvalidInput."""

    def bind(process: ProcessSpec) -> ProcessSpec:
        return replace(process, inputs={**process.inputs, **inputs})

    work = work_of(task)
    assert work is not None, "a plan has inputs for processes alone"
    return replace(task, payload=changed(work, bind).encode())


def work_of(task: Task) -> ProcessSpec | ContainerSpec | WasmSpec | None:
    """What a task of any kind of process runs; None for others. Raises InvalidInput."""
    match task.needs.driver:
        case ProcessSpec.driver:
            return ProcessSpec.decode(task.payload)
        case ImageSpec.driver:
            return ImageSpec.decode(task.payload)
        case ContainerSpec.driver:
            return ContainerSpec.decode(task.payload)
        case WasmSpec.driver:
            return WasmSpec.decode(task.shared, task.payload)
        case _:
            return None


def process_in(work: Work | None) -> ProcessSpec | None:
    """Of any kind; None where there is none."""
    if isinstance(work, ContainerSpec | WasmSpec):
        return work.process
    return work if isinstance(work, ProcessSpec) else None


def emptied(task: Task) -> bytes:
    """The payload of a task that is over, without the files and the input that came with it: what
    tells of its results. Empty for a task of another kind, and one that no driver could read."""
    try:
        work = work_of(task)
    except InvalidInput:
        work = None
    if work is None:
        return b""
    return changed(work, lambda process: replace(process, files_in={}, stdin=None)).encode()


def outputs_of(result: bytes) -> Mapping[str, Blob]:
    """What a process has left for others. Raises InvalidInput, whatever the bytes are."""
    return ProcessResult.decode(result).outputs


def held_by(result: bytes, sources: tuple[Contact, ...]) -> bytes:
    """The result of a process, with these for the workers that hold its outputs. Raises
    InvalidInput."""
    process = ProcessResult.decode(result)
    outputs = {name: replace(blob, sources=sources) for name, blob in process.outputs.items()}
    return replace(process, outputs=outputs).encode()


def changed(work: Work, change: Callable[[ProcessSpec], ProcessSpec]) -> Work:
    """The work with its process changed. Raises InvalidInput where it has none."""
    if isinstance(work, ProcessSpec):
        return change(work)
    if isinstance(work, ContainerSpec | WasmSpec):
        return replace(work, process=change(work.process))
    problem = f"a {type(work).__name__} has no files; hand on data by content (Node.put)"
    raise InvalidInput("inputs", problem)
