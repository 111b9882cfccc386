"""Which classes of this program a result may have instances of.

A worker names a class, and the caller takes its own of that name. Nothing is imported for it, and
no attribute is looked up but in the dictionaries of modules and classes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from types import ModuleType
from typing import Any, Final, NamedTuple

from cloudpickle import cloudpickle

from formation_p2p.core.errors import NotPlain
from formation_p2p.drivers.result_pickler import is_own as may_be_own

# Those that this process has sent by value, under the id that travels with each: what is defined
# in `__main__`, in a notebook or in a function has no name to be found by.
_SENT: Final[Any] = cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID
PACKAGE: Final = __name__.partition(".")[0]


class ClassName(NamedTuple):
    """`sent` is cloudpickle's id of a class that travelled by value, empty for others."""

    module: str
    qualname: str
    sent: str


class FoundClass(NamedTuple):
    """`own` is whether it is the caller's: neither the standard library's nor an installed
    package's."""

    cls: type
    own: bool
    standard: bool


ClassFinder = Callable[[ClassName], FoundClass]


def found_here(name: ClassName) -> FoundClass:
    """Raises NotPlain where this program has no such class, or has not imported it."""
    if name.sent:
        sent = _SENT.get(name.sent)
        if isinstance(sent, type):
            return FoundClass(sent, own=True, standard=False)
    elif (module := sys.modules.get(name.module)) is not None:
        found: object = module
        for part in name.qualname.split("."):
            inside = found.__dict__ if isinstance(found, ModuleType | type) else {}
            found = inside.get(part)
        if isinstance(found, type) and found.__module__ == name.module:
            standard = name.module.partition(".")[0] in sys.stdlib_module_names
            return FoundClass(found, own=is_own(name.module), standard=standard)
    raise NotPlain(
        f"a result holds a {name.module}.{name.qualname}, and this program has no such class, or"
        " has not imported it; import it first, if it is an exception or of your own modules, or"
        " return plain data"
    )


def imported(name: ClassName) -> FoundClass:
    """For a caller that trusts its workers: imports the module. Raises whatever that raises."""
    if name.sent:
        return found_here(name)
    found: Any = import_module(name.module)
    for part in name.qualname.split("."):
        found = getattr(found, part)
    return FoundClass(found, own=True, standard=False)


@lru_cache(maxsize=1024)
def is_own(module: str) -> bool:
    return module.partition(".")[0] != PACKAGE and may_be_own(module)
