"""What holds for each class that waits, beside the one that is awaited."""

import inspect
import re
import types
import typing
from typing import Final

# How the node tells a handle what happens; not for the person who holds it.
FOR_THE_NODE: Final = {"reads_placed", "notify", "flush", "fail"}


def public(kind: type) -> set[str]:
    return {name for name in dir(kind) if not name.startswith("_")} - FOR_THE_NODE


def _parameters_of(function: object) -> list[inspect.Parameter]:
    assert callable(function)
    return list(inspect.signature(function).parameters.values())


def check_signature(kind: type, sync: type, name: str) -> None:
    its, ours = inspect.getattr_static(kind, name), inspect.getattr_static(sync, name)
    assert type(its) is type(ours)
    if isinstance(its, property):
        assert isinstance(ours, property)
        assert its.fget is not None
        assert ours.fget is not None
        assert typing.get_type_hints(ours.fget) == typing.get_type_hints(its.fget)
    else:
        assert _parameters_of(getattr(sync, name)) == _parameters_of(getattr(kind, name))
        assert getattr(sync, name).__doc__, "it says what it does"
        assert isinstance(ours, types.FunctionType | classmethod)
        assert not inspect.iscoroutinefunction(getattr(sync, name))


def told_of_await(sync: type) -> list[str]:
    """The names whose help speaks of `await`; that of `join` is of both."""
    told = {name: getattr(sync, name).__doc__ or "" for name in public(sync) - {"join"}}
    return [name for name in told if re.search(r"\bawait|\basync", told[name])]
