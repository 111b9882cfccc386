"""What is kept of tasks that are over, when their files travel on to others."""

from __future__ import annotations

import pytest

from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.workload.core.inputs_from import emptied
from formation_p2p.workload.core.process import ContainerSpec, ProcessSpec, WasmSpec
from formation_p2p.workload.core.work import PythonCall, Task, Work

LARGE = ProcessSpec(("wc", "a.txt"), files_in={"a.txt": b"a" * 1000}, stdin=b"b" * 1000)
SMALL = ProcessSpec(("wc", "a.txt"))
MODULE = b"\0asm"


def task_of(work: Work, payload: bytes | None = None) -> Task:
    needs = Requirements(driver=work.driver)
    encoded = work.encode() if payload is None else payload
    return Task("job/0", needs, encoded, shared=getattr(work, "shared", b""))


@pytest.mark.parametrize(
    ("work", "left"),
    [
        (LARGE, SMALL),
        (ContainerSpec("alpine", LARGE), ContainerSpec("alpine", SMALL)),
        (WasmSpec(MODULE, LARGE), WasmSpec(MODULE, SMALL)),
    ],
)
def test_a_process_that_is_over_is_kept_without_what_came_with_it(work: Work, left: Work) -> None:
    assert emptied(task_of(work)) == left.encode()


def test_nothing_is_kept_of_a_call_or_of_what_cannot_be_read() -> None:
    assert emptied(task_of(PythonCall(b"function", b"arguments"))) == b""
    assert emptied(task_of(LARGE, b"not a process")) == b""
