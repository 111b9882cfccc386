"""Which part of a value cannot be pickled, as the person who wrote it knows it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from inspect import getclosurevars, iscoroutine, signature
from itertools import islice
from types import FunctionType, MethodType
from typing import Final

from formation_p2p.core.errors import FormationError

# How far it is looked for what cannot be pickled, in functions that use others.
_DEEPEST: Final = 8
# Of a list; each is pickled by itself.
_MAX_ITEMS: Final = 1000


def name_part(error: Exception, value: object, is_sent: Callable[[object], bool]) -> None:
    """Have an error say which part of a value cannot be pickled: pickle names a type alone."""
    if isinstance(error, FormationError):
        return  # it says what to do
    note = name = ""
    for _ in range(_DEEPEST):
        parts = _parts(value, name or "the object")
        found = next(((name, each) for name, each in parts if not is_sent(each)), None)
        if found is None:
            break
        name, value = found
        cure = "await it first" if iscoroutine(value) else "make it where the call runs"
        note = f"{name} is a {type(value).__qualname__}, which cannot be sent; {cure}"
    if note and error.args == (str(error),):
        error.args = (f"{note} ({error})",)
    elif note:
        error.add_note(note)


def _parts(value: object, name: str) -> list[tuple[str, object]]:
    """Of a function what it uses, functions last, for these may use it in turn; of a call each
    argument; of a container of this name its first items; of an instance what it has, and its
    class. As people name them."""
    match value:
        case MethodType():
            return [(f"the object of {value.__qualname__}", value.__self__)]
        case partial():
            called = getattr(value.func, "__qualname__", type(value.func).__qualname__)
            of_call = _parts((value.args, dict(value.keywords)), "")
            return [
                *((f"{part} of {called}", each) for part, each in of_call),
                (called, value.func),
            ]
        case FunctionType():
            try:
                used = getclosurevars(value)
            except ValueError:  # a name that has no value yet
                return []
            named = {**used.globals, **used.nonlocals}
            names = sorted(named, key=lambda name: isinstance(named[name], FunctionType))
            in_use = [
                (f"{name!r}, which {value.__qualname__} uses,", named[name]) for name in names
            ]
            defaults = [
                (f"the default of {name!r} of {value.__qualname__}", each.default)
                for name, each in signature(value).parameters.items()
                if each.default is not each.empty
            ]
            return [*defaults, *in_use]
        case (tuple(args), dict(kwargs)):
            numbered = ((f"argument {number}", each) for number, each in enumerate(args, 1))
            return [*numbered, *((f"the argument {key!r}", kwargs[key]) for key in kwargs)]
        case (function, tuple() as args, dict() as kwargs) if callable(function):  # one of joblib's
            called = getattr(function, "__qualname__", type(function).__qualname__)
            of_call = [(f"{part} of {called}", each) for part, each in _parts((args, kwargs), "")]
            return [*of_call, (called, function)]
        case list() | tuple() | set() | frozenset():
            items = enumerate(islice(value, _MAX_ITEMS), 1)
            return [(f"item {number} of {name}", each) for number, each in items]
        case dict():
            return [(f"{key!r} of {name}", value[key]) for key in islice(value, _MAX_ITEMS)]
        case type():
            held = {key: each for key, each in vars(value).items() if not key.startswith("__")}
            return [(f"{key!r} of {name}", each) for key, each in held.items()]
        case _:
            kind = type(value)
            if kind.__reduce_ex__ is not object.__reduce_ex__ or (
                kind.__reduce__ is not object.__reduce__
            ):
                return []
            slots = {key: getattr(value, key, None) for key in getattr(kind, "__slots__", ())}
            held = {**slots, **getattr(value, "__dict__", {})}
            parts = [(f"{key!r} of {name}", each) for key, each in held.items()]
            return [*parts, (f"the class {kind.__qualname__}", kind)]
