"""Python functions as work, and what came of them: the caller's side of the `python` driver."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, TypeVar

import cloudpickle

from formation_p2p.errors import FormationError
from formation_p2p.job import TaskResult
from formation_p2p.workload.outcome import FailureKind
from formation_p2p.workload.plain_pickle import NotPlain, load_result
from formation_p2p.workload.python_call import PythonCall

T = TypeVar("T")


def python_calls(function: Callable[[T], Any], items: Iterable[T]) -> list[PythonCall]:
    """One call of `function` for each item; the function is pickled once."""
    pickled = cloudpickle.dumps(function)
    return [PythonCall(pickled, cloudpickle.dumps(((item,), {}))) for item in items]


def value_of(result: TaskResult, *, trust_results: bool = False) -> Any:
    """What a python task returned. Raises TaskFailed, from what it raised; Unplaceable."""
    if result.status != "succeeded":
        raise error_of(result, trust_results=trust_results)
    return load_result(result.result, trust=trust_results)


def error_of(result: TaskResult, *, trust_results: bool = False) -> FormationError:
    """The error of a task without a result; its cause is what the function itself raised."""
    error = result.error()
    assert error is not None, "the task succeeded"
    if result.kind is FailureKind.EXCEPTION and result.result:
        # An exception of the caller's own may not be plain; its traceback is in the message.
        with suppress(NotPlain):
            error.__cause__ = load_result(result.result, trust=trust_results)
    return error
