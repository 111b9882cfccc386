"""`formation_p2p`, as calls see it in an interpreter that does not have it: one of another version
than the node's, or of an environment of packages.

A module that joins a network and defines functions for calls imports this package at its top, and a
worker needs the functions alone. So all imports of the package succeed there. What they give can be
a base class or an annotation, and be called, as at the top of a module; to use more of it raises
ModuleNotFoundError. `python_child.py` loads this file where no path leads to the package, so that
this file must import nothing of it.
"""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

TYPE_CHECKING = False  # as in supervisor.py
if TYPE_CHECKING:
    from typing import Any

PACKAGE = "formation_p2p"
# What calls may use of it: this file needs nothing else.
CHECKPOINTS = ("checkpoint", "restored", "leaving", "Steps")
CHECKPOINT = "formation_p2p_checkpoint"
CHECKPOINT_FILE = Path(__file__).resolve().parent / "python_checkpoint.py"


def missing(name: str) -> Exception:
    """Or the answer to those who ask what an object can do."""
    if name.startswith("__"):
        return AttributeError(name)
    return ModuleNotFoundError(
        f"{name} of {PACKAGE} is used in a call, and this worker's {sys.executable} does not have "
        f"that package; use {PACKAGE} where you make calls, not within them",
        name=PACKAGE,
    )


class AbsentType(type):
    """Of all names in the package."""

    def __getattr__(cls, name: str) -> Any:
        raise missing(name)

    def __getitem__(cls, _: object) -> AbsentType:
        return cls


class Absent(Exception, metaclass=AbsentType):
    """An exception, so that `except` takes it."""

    def __new__(cls, *_: object, **__: object) -> Absent:
        return super().__new__(cls)

    def __init__(self, *_: object, **__: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        raise missing(name)

    def __setstate__(self, _: object) -> None:
        """Of one that was unpickled; nothing reads it."""

    def __reduce__(self) -> Any:
        raise missing(type(self).__name__)


class AbsentModule(ModuleType):
    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name in CHECKPOINTS:
            spec = spec_from_file_location(CHECKPOINT, CHECKPOINT_FILE)
            assert spec is not None
            assert spec.loader is not None
            spec.loader.exec_module(loaded := module_from_spec(spec))
            return getattr(loaded, name)
        made = AbsentType(name, (Absent,), {"__module__": self.__name__})
        setattr(self, name, made)
        return made


class Loader:
    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return AbsentModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """It has its names when they are asked for."""


def spec_of(name: str) -> ModuleSpec | None:
    """Of the package or a module in it, where the package is not installed."""
    if name != PACKAGE and not isinstance(sys.modules.get(PACKAGE), AbsentModule):
        return None
    return ModuleSpec(name, Loader(), is_package=True)  # type: ignore[arg-type]  # it is no subclass
