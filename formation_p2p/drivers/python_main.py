"""What the calls of one interpreter find around them, for `python_child.py`, which loads this file
beside it: a `__main__` with the definitions of the caller's, and a process as the call before
found it.

pickle finds functions and classes by their names in `__main__`, as where a call hands them to a
`multiprocessing.Pool` of its own.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # `signal` takes 7 ms to import
import functools
import gc
import os
import sys
import types
from contextlib import suppress

import cloudpickle.cloudpickle as by_value

TYPE_CHECKING = False  # as in supervisor.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

MAIN = "__main__"
STREAMS = ("stdin", "stdout", "stderr")
SIGQUIT = 3  # faulthandler has it


class Main:
    """Of the interpreter: `defined` are the names that the pickles of a call bring for `__main__`;
    None for those that a call reads itself, as a Dask worker does."""

    def __init__(self) -> None:
        self.module = sys.modules[MAIN] = types.ModuleType(MAIN)
        self.defined: dict[str, Any] | None = None
        for name in ("_function_setstate", "_class_setstate"):
            setattr(by_value, name, self.noting(getattr(by_value, name)))

    def noting(self, set_state: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(set_state)  # a pickle names it as that
        def noted(thing: Any, state: Any) -> Any:
            made = set_state(thing, state)
            if self.defined is not None and thing.__module__ == MAIN:
                names = getattr(thing, "__globals__", {})
                # What the function uses may be a wrapper of a name's own function.
                self.defined |= {name: names[name] for name in names if not name.startswith("__")}
                if thing.__qualname__.isidentifier():
                    self.defined.setdefault(thing.__name__, thing)
            return made

        return noted

    def reads(self) -> None:
        """What is read from here on is of a call."""
        self.defined = {}

    def taken(self) -> dict[str, Any]:
        taken, self.defined = self.defined, {}
        return taken or {}

    def define(self, names: dict[str, Any]) -> None:
        """Those of a call's function, and of its arguments, all of which are read."""
        vars(self.module).update(self.taken())
        vars(self.module).update(names)
        self.defined = None


class Surroundings:
    """Of this process, as a call finds them."""

    def __init__(self, files: list[int]) -> None:
        """`files` are what the standard streams are to be."""
        self.streams = [getattr(sys, name) for name in STREAMS]
        self.files = files
        self.recursion = sys.getrecursionlimit()
        self.mask = os.umask(0o77)
        os.umask(self.mask)
        signals = [int(each) for each in _signal.valid_signals() if each != SIGQUIT]
        self.handlers = {each: _signal.getsignal(each) for each in signals}
        self.variables: dict[bytes, bytes] = {}

    def keep(self) -> None:
        """As they are before a call."""
        self.variables = os.environ._data.copy()  # type: ignore[attr-defined]  # a tenth of the time

    def restore(self) -> None:
        """After the call, whatever it has done."""
        _signal.setitimer(_signal.ITIMER_REAL, 0)
        if "signal" in sys.modules:
            for each, handler in self.handlers.items():
                if _signal.getsignal(each) is not handler and handler is not None:
                    _signal.signal(each, handler)
        if os.environ._data != self.variables:  # type: ignore[attr-defined]
            self.restore_variables()
        for name, stream in zip(STREAMS, self.streams, strict=True):
            found = getattr(sys, name)
            if found is not stream:
                with suppress(Exception):  # it is closed, or of the call's own making
                    found.flush()
                setattr(sys, name, stream)
        for fd, kept in enumerate(self.files):
            with suppress(OSError):  # it has closed all that there are
                os.dup2(kept, fd)
        if sys.getrecursionlimit() != self.recursion:
            sys.setrecursionlimit(self.recursion)
        os.umask(self.mask)
        sys.settrace(None)
        sys.setprofile(None)
        gc.enable()

    def restore_variables(self) -> None:
        for name in os.environ._data.copy():  # type: ignore[attr-defined]
            if name not in self.variables:
                del os.environb[name]
        for name, value in self.variables.items():
            if os.environb.get(name) != value:
                os.environb[name] = value
