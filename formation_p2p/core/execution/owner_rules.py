"""What a task makes goes to the owner of its job: the rules of its inputs must let him have it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.resources.requirements import Requirements
from formation_p2p.core.workload.data_rule import DataRule
from formation_p2p.core.workload.inputs_from import process_in, work_of
from formation_p2p.core.workload.process import ContainerSpec, ImageSpec, ProcessSpec, WasmSpec
from formation_p2p.core.workload.work import Task

# The work of others names no data that has rules.
_DRIVERS: Final = frozenset(
    each.driver for each in (ContainerSpec, ImageSpec, ProcessSpec, WasmSpec)
)


def process_of(needs: Requirements, payload: bytes, shared: bytes) -> ProcessSpec | None:
    """What a task runs; None for the work of others, and for what its driver will refuse."""
    if needs.driver not in _DRIVERS:
        return None
    try:
        return process_in(work_of(Task("task", needs, payload, shared=shared)))
    except InvalidInput:
        return None


def outside(process: ProcessSpec | None, refuses: Callable[[DataRule], str | None]) -> str | None:
    """Why the owner of a task may not have what it makes; None where he may. `refuses` says why he
    may not read data under a rule."""
    for name, blob in () if process is None else process.inputs.items():
        why = None if blob.rule is None else refuses(blob.rule)
        if why is not None:
            return f"what is made of {name!r} is not for you: its owner {why}; submit it from there"
    return None
