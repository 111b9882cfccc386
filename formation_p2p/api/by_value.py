"""What goes inside the pickles of calls, since no worker finds it by its name."""

from __future__ import annotations

import functools
import sys
import typing
from collections.abc import Callable
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any, Final
from weakref import WeakKeyDictionary, WeakSet

import cloudpickle

from formation_p2p.api.tracebacks import told_file
from formation_p2p.code.modules import is_installed

# As cloudpickle names the file of all code that travels.
_NO_FILE: Final = "<dynamic-code>"
# Modules that workers find by their names: each call asks, and the answer takes several looks at
# the disk.
_WITH_FILE: Final[WeakSet[ModuleType]] = WeakSet()


def is_sent(module: str) -> bool:
    """Whether functions and classes of this module travel by value: of `__main__`, of modules that
    were registered with cloudpickle, and of those that have no file which could go along."""
    if module == "__main__":
        return True
    registered = cloudpickle.list_registry_pickle_by_value()
    if any(parent in registered for parent in _with_parents(module)):
        return True
    found = sys.modules.get(module)
    if found is None or not (_is_orphan(module) or _is_homeless(module)):
        return False
    cloudpickle.register_pickle_by_value(found)
    return True


def _with_parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(len(parts), 0, -1)]


def _is_homeless(module: str) -> bool:
    """Whether neither it nor a package that it is in has a file that could go along, or that
    workers may have installed: it comes out of a zip, or a program made it."""
    if (found := sys.modules[module]) in _WITH_FILE:
        return False
    names = _with_parents(module)
    if names[-1] not in sys.stdlib_module_names and not any(
        _has_file(sys.modules.get(name)) for name in names
    ):
        return True
    _WITH_FILE.add(found)
    return False


def _has_file(module: ModuleType | None) -> bool:
    spec = getattr(module, "__spec__", None)
    found = [getattr(module, "__file__", None), getattr(spec, "origin", None)]
    found += getattr(spec, "submodule_search_locations", None) or ()
    places = [Path(each) for each in found if isinstance(each, str)]
    return any(each.exists() or is_installed(each) for each in places)


def _is_orphan(module: str) -> bool:
    """Whether the package that its name says is not there, so that pickle does not find it."""
    package = module.rpartition(".")[0]
    return bool(package) and package not in sys.modules


class _Maker:
    """Pickles as what this call returns, which makes something of further arguments."""

    def __init__(self, make: Callable[..., Any], *args: Any) -> None:
        self._made = make, args

    def __reduce__(self) -> tuple[Any, ...]:
        return self._made

    def __call__(self, *args: Any) -> Any:
        """pickle asks whether it can be called."""
        return self._made[0](*self._made[1])(*args)


def _cached(wrapper: Any) -> tuple[Any, ...]:
    """Its cache stays here."""
    options = wrapper.cache_parameters()
    maker = _Maker(functools.lru_cache, options["maxsize"], options["typed"])
    return maker, (wrapper.__wrapped__,)


# What pickle refers to by name, or not at all, and how to make another one.
_REDUCERS: Final[dict[type, Callable[[Any], tuple[Any, ...]]]] = {
    functools._lru_cache_wrapper: _cached,
    # Before Python 3.12 it has a lock.
    functools.cached_property: lambda it: (type(it), (it.func,), {"attrname": it.attrname}),
    WeakKeyDictionary: lambda keys: (WeakKeyDictionary, (dict(keys),)),
    typing.NewType: lambda new: (typing.NewType, (new.__name__, new.__supertype__)),
    typing.ParamSpec: lambda spec: (typing.ParamSpec, (spec.__name__,)),
    typing.TypeVarTuple: lambda spec: (typing.TypeVarTuple, (spec.__name__,)),
}
if sys.version_info >= (3, 12):
    _REDUCERS[typing.TypeAliasType] = lambda it: (typing.TypeAliasType, (it.__name__, it.__value__))


def reduced(value: Any) -> tuple[Any, ...] | None:
    """How to pickle what has a name that no worker finds; None for all else."""
    reducer = _REDUCERS.get(type(value))
    if reducer is None:
        return None
    if isinstance(value, WeakKeyDictionary):  # of `functools.singledispatch`
        return reducer(value)
    named = getattr(value, "func", value)
    name = getattr(named, "__qualname__", "") or named.__name__
    return reducer(value) if "<" in name or is_sent(named.__module__) else None


def reduced_code(code: CodeType) -> tuple[Any, ...]:
    """As cloudpickle, with the name of its file, for tracebacks."""
    make, args = cloudpickle.Pickler.dispatch_table[CodeType](code)
    name = told_file(code.co_filename)
    return make, tuple(name if each == _NO_FILE else each for each in args)
