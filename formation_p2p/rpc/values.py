"""Values of this package's own types as plain CBOR, and back: between two programs of one user and
one version, which have the same types.

A dataclass is a list of its name and its fields; what two values need not share to be equal is left
out. Whatever comes back is of exactly the type that was asked for: `unpack` checks every part, and
the types check themselves as they are made.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import (
    Any,
    Final,
    Literal,
    NewType,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from formation_p2p.core.errors import InvalidInput
from formation_p2p.workload.core.process import ContainerSpec, ImageSpec, ProcessSpec, WasmSpec
from formation_p2p.workload.core.work import Work

T = TypeVar("T")

# What CBOR holds without a tag; a key of the DHT is larger, and travels as its bytes.
_SMALL_INT: Final = 2**63
# What a command may submit: the work of a plan, whose type is a protocol.
_WORK: Final = ProcessSpec | ContainerSpec | ImageSpec | WasmSpec


def pack(value: object) -> object:
    """Of the types that `unpack` knows."""
    match value:
        case Enum():
            return value.value
        case int() if abs(value) >= _SMALL_INT:
            return value.to_bytes(32, "big")
        case None | bool() | int() | float() | str() | bytes():
            return value
        case Path():
            return str(value.absolute())  # the node has another working folder
        case Mapping():
            return {key: pack(each) for key, each in value.items()}
        case _ if is_dataclass(value) and not isinstance(value, type):
            named = (pack(getattr(value, each.name)) for each in _carried(type(value)))
            return [type(value).__name__, *named]
        case Iterable():
            return [pack(each) for each in value]
        case _:
            raise TypeError(f"{type(value)} has no form here")


def unpack(kind: type[T], packed: object) -> T:
    """Raises InvalidInput for what is no such value."""
    try:
        value: T = _unpack(kind, packed)
    except (TypeError, ValueError, KeyError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput("message", f"it is no {kind}: {error}") from None
    return value


def unpack_as(kind: object, packed: object) -> Any:
    """As `unpack`, for a type that is written as a union or with its parts."""
    return unpack(kind, packed)  # type: ignore[arg-type]


def arguments_of(
    handler: Callable[..., object], question: Mapping[str, object], *, given: int = 0
) -> dict[str, Any]:
    """What a handler is called with, by its own declaration; so many parameters are given to it
    besides. Raises InvalidInput."""
    hints = _hints(getattr(handler, "__func__", handler))
    parameters = [*inspect.signature(handler).parameters.values()][given:]
    needed = {each.name for each in parameters if each.default is each.empty}
    if not needed <= question.keys() <= {each.name for each in parameters}:
        names = ", ".join(each.name for each in parameters)
        raise InvalidInput("question", f"its parameters are to be {names or 'none'}")
    return {name: unpack(hints[name], each) for name, each in question.items()}


def _unpack(kind: Any, packed: Any) -> Any:
    if kind is Any:
        return packed
    if kind is Path:
        return Path(_unpack(str, packed))
    if isinstance(kind, NewType):
        return _unpack(kind.__supertype__, packed)
    if kind is Work:
        return _unpack_union(_WORK, get_args(_WORK), packed)
    parts, origin = get_args(kind), get_origin(kind)
    if origin in (Union, types.UnionType):
        return _unpack_union(kind, parts, packed)
    if origin is Literal:
        return _check(packed in parts, packed)
    if origin is tuple:
        given = _check(type(packed) is list, packed)
        if parts[1:] == (...,):
            return tuple(_unpack(parts[0], each) for each in given)
        return tuple(_unpack(part, each) for part, each in zip(parts, given, strict=True))
    if origin in (frozenset, Collection, Iterable):
        given = _check(type(packed) is list, packed)
        every = (_unpack(parts[0], each) for each in given)
        return tuple(every) if origin is Iterable else frozenset(every)
    if origin is Mapping or origin is dict:
        given = _check(type(packed) is dict, packed)
        return {_unpack(parts[0], key): _unpack(parts[1], each) for key, each in given.items()}
    if kind in (int, str, bytes, bool, type(None)):
        if kind is int and type(packed) is bytes:
            return int.from_bytes(_check(len(packed) == 32, packed), "big")
        return _check(type(packed) is kind, packed)
    if kind is float:
        return _check(type(packed) in (float, int), packed)
    if issubclass(kind, Enum):
        return kind(packed)
    given = _check(type(packed) is list and bool(packed), packed)
    if issubclass(kind, tuple):  # a NamedTuple
        hints = get_type_hints(kind)
        return kind(*(_unpack(hints[n], x) for n, x in zip(kind._fields, given, strict=True)))
    return _unpack_named({kind.__name__: kind}, given)


def _unpack_union(kind: Any, parts: tuple[Any, ...], packed: Any) -> Any:
    if type(packed) is list and packed and str(packed[0]) in (named := _named(kind)):
        return _unpack_named(named, packed)
    for part in parts:
        try:
            return _unpack(part, packed)
        except (TypeError, ValueError, KeyError):
            continue
    raise TypeError("it is none of the types that it may have")


def _unpack_named(kinds: Mapping[str, Any], packed: Any) -> Any:
    name, *values = _check(bool(packed), packed)
    kind = kinds[_check(type(name) is str, name)]
    hints = _hints(kind)
    carried = _carried(kind)
    return kind(
        **{each.name: _unpack(hints[each.name], x) for each, x in zip(carried, values, strict=True)}
    )


def _check(holds: bool, value: Any) -> Any:
    if not holds:
        raise TypeError(f"{type(value).__name__} is not expected there")
    return value


@cache
def _named(union: Any) -> dict[str, Any]:
    """The dataclasses of a union, by their names."""
    kinds: tuple[type, ...] = get_args(union)
    return {each.__name__: each for each in kinds if is_dataclass(each)}


@cache
def _carried(kind: type) -> tuple[Field[Any], ...]:
    """What is only for people is not compared, and carried where its field says so, or has to."""
    return tuple(
        each
        for each in fields(kind)
        if each.init
        and (
            each.compare
            or "carried" in each.metadata
            or each.default is each.default_factory is MISSING
        )
    )


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)
