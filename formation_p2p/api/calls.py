"""Python functions as work, and what came of them: the caller's side of the `python` driver."""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, TypeVar

import cloudpickle

from formation_p2p.api.job import TaskResult
from formation_p2p.core.errors import FormationError
from formation_p2p.core.workload.outcome import FailureKind
from formation_p2p.core.workload.plain_pickle import NotPlain, load_result
from formation_p2p.core.workload.python_call import PythonCall

T = TypeVar("T")

# What any pickler writes alike, with nothing in it to look up.
_SCALARS: Final = frozenset({int, float, bool, str, bytes, type(None)})


class ArgumentPickler:
    """Pickles the arguments of one call after the other, at a tenth of the price of a pickler
    each. For one thread."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._pickler = cloudpickle.Pickler(self._buffer)

    def dumps(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> bytes:
        """Raises whatever an argument that cannot be pickled raises."""
        if not kwargs and all(type(each) in _SCALARS for each in args):
            return pickle.dumps((args, {}), pickle.HIGHEST_PROTOCOL)
        try:
            self._pickler.dump((args, dict(kwargs)))
            return self._buffer.getvalue()
        finally:
            self._pickler.clear_memo()
            self._buffer.seek(0)
            self._buffer.truncate()


def python_calls(function: Callable[[T], Any], items: Iterable[T]) -> list[PythonCall]:
    """One call of `function` for each item; the function is pickled once."""
    pickled, kind = cloudpickle.dumps(function), qualified_name(function)
    pickler = ArgumentPickler()
    return [PythonCall(pickled, pickler.dumps((item,), {}), kind) for item in items]


def python_call(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> PythonCall:
    """`function(*args, **kwargs)`, on whichever machine can."""
    arguments = ArgumentPickler().dumps(args, kwargs)
    return PythonCall(cloudpickle.dumps(function), arguments, qualified_name(function))


def qualified_name(function: Callable[..., Any]) -> str:
    """With its module, or with its script's name; empty for what has no name of its own."""
    name, module = (getattr(function, x, "") for x in ("__qualname__", "__module__"))
    if not isinstance(name, str) or not isinstance(module, str) or "<lambda>" in name:
        return ""
    if module == "__main__":
        module = Path(getattr(sys.modules[module], "__file__", None) or "").stem
    return f"{module}.{name}" if name and module else ""


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
