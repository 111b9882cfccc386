"""Instances of the caller's own classes, made without running any of their code.

No constructor, `__setstate__` or `__setattr__` of a class is called: its C base makes an instance,
and the attributes go where the instance keeps them. What may run is what CPython runs for every
object: so classes with a `__del__` are refused, and those with a `__hash__` of their own, which
would be called where an instance is the key of a dict.
"""

from __future__ import annotations

import abc
import enum
from collections.abc import Callable
from types import (
    FunctionType,
    MemberDescriptorType,
    MethodType,
    SimpleNamespace,
    WrapperDescriptorType,
)
from typing import Any, Final, Generic, Protocol

from formation_p2p.core.errors import NotPlain
from formation_p2p.drivers.result_pickler import CONTENTS, STANDARD
from formation_p2p.results.budget import ITEM_BYTES, OBJECT_BYTES
from formation_p2p.results.hashing import weight_of
from formation_p2p.results.own_classes import PACKAGE, ClassName, FoundClass, is_own
from formation_p2p.results.values import Reading, text_of

# Classes that C code defines are not made on the heap (CPython's Py_TPFLAGS_HEAPTYPE).
_HEAP: Final = 1 << 9
# With its attributes in place, and its entry in `Reading.unfilled`.
_INSTANCE_BYTES: Final = 160
_SUBCLASS_BYTES: Final = 112
_ATTRIBUTE_BYTES: Final = 48
_ERROR_BYTES: Final = 128
# How a built-in base takes what it has, whatever its subclass says.
_ADDING: Final[dict[type, Callable[[Any, Any], None]]] = {dict: dict.update, list: list.extend}
_METHODS: Final = (FunctionType, classmethod, staticmethod)
# Of an instance that is hashed by its attributes, with all that these hold: by code in Python.
_MAX_HASHED: Final = 1024
_BASES: Final = (object, abc.ABC, Generic, Protocol)
_SAYS_ITSELF: Final = (
    *("__class__", "__getattr__", "__getattribute__", "__getnewargs__", "__getnewargs_ex__"),
    *("__getstate__", "__reduce__", "__reduce_ex__", "__setstate__"),
)
# What `namedtuple` and `NamedTuple` give a class, in CPython 3.11 to 3.14; with the fields these
# are all that a class without code of its own has.
_NAMEDTUPLE: Final = frozenset(
    {
        *("__annotate__", "__annotate_func__", "__annotations__", "__annotations_cache__"),
        *("__conditional_annotations__", "__doc__", "__firstlineno__", "__getnewargs__"),
        *("__match_args__", "__module__", "__new__", "__orig_bases__", "__replace__", "__repr__"),
        *("__slots__", "__static_attributes__", "__type_params__", "_asdict", "_field_defaults"),
        *("_fields", "_make", "_replace"),
    }
)


def error(
    reading: Reading,
    name: ClassName,
    args: tuple[Any, ...],
    group: tuple[str, tuple[Exception, ...]] | None = None,
) -> Exception:
    """An exception whose class this program has imported. `group` are the text and the exceptions
    of one that has others: its class may have been called with other arguments."""
    cls = checked(reading, error, name, _check_error)
    if type(args) is not tuple or not (
        group is None or (type(group) is tuple and type(group[1]) is tuple)
    ):
        raise NotPlain("a result holds an exception of what are no arguments")
    reading.budget.spend(_ERROR_BYTES + sum(map(_size, args)))
    base = _base(cls)
    if issubclass(base, OSError | SyntaxError | UnicodeError):  # others keep them as they are
        check_parts(reading, args)
    made: Exception = base.__new__(cls, *(args if group is None else group))
    base.__init__(made, *args)
    reading.unfilled[id(made)] = made
    return made


def _check_error(found: FoundClass) -> None:
    cls = found.cls
    if Exception not in type.mro(cls):
        raise refusal(cls, "which is not an exception")
    if cls.__module__.partition(".")[0] == PACKAGE:
        raise refusal(cls, "which says what befell this program's own calls")
    base = _base(cls)
    if base.__module__ != "builtins":
        raise refusal(cls, f"which {base.__module__} defines in C")
    _check_harmless(cls)


def error_class(reading: Reading, name: ClassName) -> type:
    """That of an exception, itself."""
    return checked(reading, error, name, _check_error)


def dataclass(reading: Reading, name: ClassName) -> object:
    return _made(reading, checked(reading, dataclass, name, _check_dataclass))


def instance(reading: Reading, name: ClassName) -> object:
    """Of an ordinary class."""
    return _made(reading, checked(reading, instance, name, _check_instance))


def namespace(reading: Reading) -> object:
    return _made(reading, SimpleNamespace)


def subclass(reading: Reading, name: ClassName, content: Any) -> object:
    """An instance of an ordinary class whose base is a built-in one, with what that has."""
    cls: Any = checked(reading, subclass, name, _check_subclass)
    base = _base(cls)
    if type(content) not in CONTENTS or type(content) is not base:
        raise refusal(cls, "which has no such content")
    reading.budget.spend(_SUBCLASS_BYTES)
    made: object
    if (add := _ADDING.get(base)) is not None:
        reading.budget.spend((16 if base is list else ITEM_BYTES) * len(content))
        made = _new(base, cls)
        add(made, content)
    else:
        made = _new(base, cls, content)
    reading.unfilled[id(made)] = made
    return made


def _new(base: Any, cls: type, *args: Any) -> object:
    made: object = base.__new__(cls, *args)
    return made


def _check_subclass(found: FoundClass) -> None:
    _check_own(found, (*_BASES, *CONTENTS), _base(found.cls))


def _made(reading: Reading, cls: Any) -> object:
    """Without attributes yet: these may refer to it."""
    reading.budget.spend(_INSTANCE_BYTES)
    made: object = (object if cls is not SimpleNamespace else cls).__new__(cls)
    reading.unfilled[id(made)] = made
    return made


def _check_dataclass(found: FoundClass) -> None:
    if not found.own or "__dataclass_fields__" not in names_of(found.cls):
        raise refusal(found.cls, "which is not a dataclass of this program")
    _check_harmless(found.cls)


def _check_instance(found: FoundClass) -> None:
    if not (found.standard and f"{found.cls.__module__}.{found.cls.__qualname__}" in STANDARD):
        _check_own(found, _BASES, object)


def _check_own(found: FoundClass, bases: tuple[Any, ...], base: type) -> None:
    """Of modules of the program's own alone, and with nothing that says itself how it is made or
    what it has."""
    cls = found.cls
    if not found.own:
        raise refusal(cls, "which is not of this program's own modules")
    for each in type.mro(cls):
        if each not in bases and not is_own(each.__module__):
            raise refusal(cls, f"whose base {each.__qualname__} is not of this program's own")
    names, usual = names_of(cls), names_of(base)
    for name in _SAYS_ITSELF:
        if names.get(name) is not usual.get(name):
            raise refusal(cls, f"which has a {name}")
    _check_harmless(cls)


def namedtuple(
    reading: Reading, name: ClassName, fields: tuple[str, ...], values: tuple[Any, ...]
) -> tuple[Any, ...]:
    cls = checked(reading, namedtuple, name, _check_namedtuple)
    if type(values) is not tuple or type(fields) is not tuple or not are_texts(fields):
        raise refusal(cls, "of what are no fields")
    if cls.__dict__.get("_fields", fields) != fields or len(values) != len(fields):
        raise refusal(cls, f"whose fields are not {', '.join(fields)} here")
    reading.budget.spend(_INSTANCE_BYTES + 8 * len(values))
    return tuple.__new__(cls, values)


def _check_namedtuple(found: FoundClass) -> None:
    cls = found.cls
    names = names_of(cls)
    bare = type.mro(cls) == [cls, tuple, object] and not (
        cls.__dict__.keys() - _NAMEDTUPLE - set(names.get("_fields", ()))
    )
    if (
        tuple not in type.mro(cls)
        or "_fields" not in names
        or not (found.own or found.standard or bare)
    ):
        raise refusal(cls, "which is not a namedtuple of this program")
    _check_harmless(cls)


def member(reading: Reading, name: ClassName, value_name: str) -> enum.Enum:
    """One that the class has already: of any enum that this program has imported."""
    cls = checked(reading, member, name, _check_enum)
    members: dict[str, enum.Enum] = cls.__dict__["_member_map_"]
    if text_of(value_name) not in members:
        raise refusal(cls, f"which has no member {value_name} here")
    return members[value_name]


def _check_enum(found: FoundClass) -> None:
    if not isinstance(found.cls, enum.EnumMeta):
        raise refusal(found.cls, "which is not an enum here")


def fill(reading: Reading, made: object, state: tuple[tuple[str, ...], tuple[Any, ...]]) -> None:
    """Give an instance that was made for this result its attributes, once."""
    if reading.unfilled.pop(id(made), None) is not made:
        raise NotPlain("a result sets attributes of what is not its own; do not trust its worker")
    cls = type(made)
    if cls not in reading.attributes:
        reading.attributes[cls] = names_of(cls)
    attributes = reading.attributes[cls]
    names, values = state if type(state) is tuple else ((), ())
    if type(names) is not tuple or type(values) is not tuple or not are_texts(names):
        raise NotPlain("a result has an attribute whose name is not a text")
    reading.budget.spend(_ATTRIBUTE_BYTES * len(names))
    if type(attributes["__hash__"]) is FunctionType:
        _weigh(reading, made, values)
    for name, value in zip(names, values, strict=True):
        place = attributes.get(name)
        if type(place) in _METHODS and name not in attributes.get("__dataclass_fields__", ()):
            raise refusal(cls, f"with an attribute in the place of its method {name}")
        if place is None or type(place) is MemberDescriptorType or not hasattr(place, "__set__"):
            object.__setattr__(made, name, value)
        else:  # a property, which may be code
            object.__getattribute__(made, "__dict__")[name] = value


def _weigh(reading: Reading, made: object, values: tuple[Any, ...]) -> None:
    """Of an instance that is hashed by its attributes: they are all there before it, as the class
    is frozen."""
    weight, depth = weight_of(values, reading.hashed)
    if weight > _MAX_HASHED:
        raise refusal(type(made), f"whose hash is that of more than {_MAX_HASHED} values")
    reading.hashed[id(made)] = weight, depth
    reading.kept.append(made)


def are_texts(names: tuple[object, ...]) -> bool:
    return all(type(each) is str for each in names)


def checked(
    reading: Reading,
    made_by: Callable[..., object],
    name: ClassName,
    check: Callable[[FoundClass], None],
) -> type:
    """The class of that name, once it has passed the check."""
    if not (type(name) is tuple and len(name) == 3 and are_texts(name)):
        raise NotPlain("a result names a class in a way that no worker of this version does")
    found = reading.found.get((made_by, name))
    if found is None:
        found = reading.classes(ClassName(*name))
        if not reading.trust:
            check(found)
        reading.found[made_by, name] = found
    return found.cls


def _check_harmless(cls: type) -> None:
    names = names_of(cls)
    for name in ("__class__", "__getattribute__"):
        if names[name] is not names_of(_base(cls))[name]:
            raise refusal(cls, f"whose {name} would run here")
    if "__del__" in names:
        raise refusal(cls, "whose __del__ would run here")
    for name in ("__hash__", "__eq__") if names["__hash__"] is not None else ():
        method = names[name]
        # A dataclass's own are compiled from no file.
        generated = type(method) is FunctionType and method.__code__.co_filename == "<string>"
        if not generated and type(method) is not WrapperDescriptorType:
            raise refusal(cls, f"whose {name} would run here")


def check_parts(reading: Reading, parts: tuple[Any, ...]) -> None:
    """Of what describes a value, no part is an instance of the program's own: to compare it, or to
    ask it for its length or its text, is its code. What is in a list of objects is a value. Raises
    NotPlain."""
    own = {found.cls for found in reading.found.values() if found.own or not found.standard}
    waiting: list[Any] = [parts] if own else []
    seen: set[int] = set()
    while waiting:
        some = waiting.pop()
        if not own.isdisjoint(map(type, some)):
            raise NotPlain("a result describes a value by an instance; do not trust its worker")
        if not (some and type(some[0]) is str and some[0] == "objects"):
            for each in some:
                inner = (*each, *each.values()) if type(each) is dict else each
                if type(inner) in (list, tuple) and id(each) not in seen:
                    seen.add(id(each))
                    waiting.append(inner)


def names_of(cls: type) -> dict[str, Any]:
    """What a class has, with its bases: without asking it."""
    found: dict[str, Any] = {}
    for base in reversed(type.mro(cls)):
        found.update(base.__dict__)
    return found


def _base(cls: type) -> Any:
    """The class in C that its instances are made of."""
    return next(base for base in type.mro(cls) if not base.__flags__ & _HEAP)


def _size(argument: object) -> int:
    """What an exception may copy of it."""
    if isinstance(argument, str | bytes):
        return len(argument)
    return ITEM_BYTES * len(argument) if isinstance(argument, list | tuple | dict) else 0


def refusal(cls: type, why: str) -> NotPlain:
    return NotPlain(
        f"a result holds a {cls.__module__}.{cls.__qualname__}, {why}; return plain data, or pass"
        " trust_results=True where the workers may run code on this machine"
    )


# Members of an enum's flags together, made by the standard library's code alone.
#
# A class keeps one object for each value that its program has ever had, so that `is` tells them
# apart. One that is not there yet is made as the class itself would: a class whose own code takes
# part in that is refused.

# What a class keeps, it keeps to the end of the program: 16 MiB at the most. No honest program has
# all combinations of 14 flags.
MAX_FLAG_VALUES: Final = 1 << 14
_FLAG: Final[Any] = enum.Flag.__dict__
_MAKING: Final = ("_missing_", "_iter_member_by_value_", "_iter_member_by_def_")
_ITERATING: Final = tuple(_FLAG[name].__func__ for name in _MAKING[1:])


def flags(reading: Reading, name: ClassName, value: int) -> enum.Flag:
    """Several members together, or none: of any enum that this program has imported."""
    cls: Any = checked(reading, flags, name, _check_flags)
    if type(value) is not int:
        raise NotPlain("a result holds flags that are no number; do not trust its worker")
    if reading.trust:
        return cls(value)  # type: ignore[no-any-return]  # of a class that is found here
    known: dict[int, enum.Flag] = cls.__dict__["_value2member_map_"]
    if value not in known:
        # Before Python 3.11.4 there were flags of one bit alone.
        bits = cls.__dict__.get("_singles_mask_", cls.__dict__["_flag_mask_"])
        if value < 0 or value & ~bits:
            raise refusal(cls, "which has no such flags here")
        if len(known) >= MAX_FLAG_VALUES:
            raise refusal(cls, f"which has {MAX_FLAG_VALUES} combinations of flags here already")
        reading.budget.spend(OBJECT_BYTES)
        _FLAG["_missing_"].__func__(cls, value)
    return known[value]


def _check_flags(found: FoundClass) -> None:
    cls = found.cls
    if type(cls) is not enum.EnumMeta or enum.Flag not in type.mro(cls):
        raise refusal(cls, "which is not an enum of flags here")
    names = names_of(cls)
    iterates = names["_iter_member_"]
    if not (
        any(names["_member_type_"] is kind for kind in (object, int))
        and all(names[name] is _FLAG[name] for name in _MAKING)
        and type(iterates) in (classmethod, MethodType)
        and any(iterates.__func__ is function for function in _ITERATING)
        and all(
            type(names[name]) is WrapperDescriptorType
            for name in ("__getattribute__", "__setattr__")
        )
        and not names.keys() & {"__getattr__", "_name_", "_value_"}
    ):
        raise refusal(cls, "whose own code would make flags here")
