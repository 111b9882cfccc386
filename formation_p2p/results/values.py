"""Values of the standard library whose own pickles take more than a call with plain arguments."""

from __future__ import annotations

import collections
import ipaddress
import os
import re
import resource
import sys
import time
import uuid
import zoneinfo
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from types import GenericAlias, MappingProxyType
from typing import Any, Final, Literal

from formation_p2p.core.errors import NotPlain
from formation_p2p.drivers.result_pickler import ADDRESSES, BUILTINS, VIEWS
from formation_p2p.results.budget import OBJECT_BYTES, Budget
from formation_p2p.results.hashing import Weight
from formation_p2p.results.own_classes import ClassFinder, FoundClass


@dataclass(slots=True)
class Reading:
    """`found` are the classes that it may have instances of, by what makes these and their names.
    `unfilled` are the instances made so far that have no attributes yet, by their `id`: what is
    in here stays alive, so that an id is of one object. `attributes` are what the classes of those
    have, with their bases. `hashed` are the weights of the instances that are hashed by their
    attributes, by their `id`, and `kept` those instances."""

    budget: Budget
    classes: ClassFinder
    trust: bool = False
    found: dict[tuple[Callable[..., object], object], FoundClass] = field(default_factory=dict)
    unfilled: dict[int, object] = field(default_factory=dict)
    hashed: dict[int, Weight] = field(default_factory=dict)
    kept: list[object] = field(default_factory=list)
    attributes: dict[type, dict[str, Any]] = field(default_factory=dict)


_FACTORIES: Final = MappingProxyType(
    {kind.__name__: kind for kind in (bool, bytes, dict, float, int, list, set, str, tuple)}
)
_UUID_BYTES: Final = 128
_DEFAULTDICT_BYTES: Final = 96
# The name of a file below the folders of the time zones.
ZONE: Final = re.compile(r"[A-Za-z0-9_+-][A-Za-z0-9_:+-]{0,40}(?:/[A-Za-z0-9_+-]{1,40}){0,3}")


_BUILTINS: Final = {name: value for value, name in BUILTINS.items()}
_ADDRESSES: Final[dict[str, Callable[[str], object]]] = {
    name: getattr(ipaddress, name) for name in ADDRESSES
}
_ADDRESS: Final = re.compile(r"[0-9a-fA-F.:]{1,45}(?:%[\w.-]{1,64})?(?:/[0-9]{1,3})?")
_STRUCTURES: Final[dict[str, Any]] = {
    f"{kind.__module__}.{kind.__qualname__}": kind
    for kind in (
        *(os.stat_result, os.statvfs_result, os.terminal_size, os.times_result, os.uname_result),
        *(resource.struct_rusage, time.struct_time),
    )
}
_MAPS: Final = frozenset(
    {dict, collections.ChainMap, collections.Counter, collections.OrderedDict}
    | {collections.defaultdict}
)
_ORIGINS: Final = frozenset({dict, frozenset, list, set, tuple})
_OF_ALIASES: Final = frozenset({type, GenericAlias, type(Ellipsis), str})
_ADDRESS_BYTES: Final = 256
_ARRAY_BYTES: Final = 96
_INSTANCE_BYTES: Final = 160
_ALIAS_BYTES: Final = 80
# The most that any of them has, and more.
_MAX_PARTS: Final = 32
# To make one takes 20 ms at the most, and memory for each letter.
_MAX_PATTERN: Final = 4096
_PATTERN_BYTES: Final = 192
_PATTERN_LETTER_BYTES: Final = 24
_FAR_RANGE: Final = re.compile(r"-(?:[^\x00-\x7f]|\\[uUN])")


def uuid_of(reading: Reading, number: int) -> uuid.UUID:
    reading.budget.spend(_UUID_BYTES)
    return uuid.UUID(int=number)


def zone(reading: Reading, key: str) -> zoneinfo.ZoneInfo:
    if not ZONE.fullmatch(key):
        raise NotPlain(f"a result holds the time zone {key[:100]!r}, which has no such name")
    reading.budget.spend(OBJECT_BYTES)
    return zoneinfo.ZoneInfo(key)


def defaultdict(reading: Reading, factory: str) -> collections.defaultdict[Any, Any]:
    """Of what `factory` makes, empty for none."""
    reading.budget.spend(_DEFAULTDICT_BYTES)
    found: Callable[[], Any] | None = _FACTORIES[text_of(factory)] if factory else None
    return collections.defaultdict(found)


def builtin(_: Reading, name: str) -> object:
    return _BUILTINS[text_of(name)]


def address(reading: Reading, kind: str, text: str) -> object:
    if not _ADDRESS.fullmatch(text_of(text)):
        raise NotPlain(f"a result holds the address {text[:100]!r}, which is none")
    reading.budget.spend(_ADDRESS_BYTES)
    return _ADDRESSES[text_of(kind)](text)


def machine_array(
    reading: Reading, code: str, itemsize: int, byteorder: str, data: object
) -> array[Any]:
    made: array[Any] = array(text_of(code))
    if isinstance(data, str):
        reading.budget.spend(_ARRAY_BYTES + 4 * len(data))
        made.fromunicode(data)
        return made
    fits = code not in "uw" and made.itemsize == itemsize
    if not (fits and isinstance(data, bytes | bytearray | memoryview)):
        raise NotPlain(f"a result holds an array of {code[:10]!r} that does not fit in here")
    reading.budget.spend(_ARRAY_BYTES + len(data))
    made.frombytes(data)
    if text_of(byteorder) != sys.byteorder:
        made.byteswap()
    return made


def view(reading: Reading, data: bytes, kind: str, shape: tuple[int, ...]) -> memoryview:
    if type(data) is not bytes or type(shape) is not tuple or len(text_of(kind)) > 2:
        raise NotPlain("a result holds a memoryview of what are no bytes")
    reading.budget.spend(_INSTANCE_BYTES + 16 * len(shape))
    made: memoryview = memoryview(data).cast(kind, shape)  # type: ignore[call-overload]  # it checks
    return made


def pattern(reading: Reading, text: str | bytes, flags: int) -> re.Pattern[Any]:
    """What takes time to make is bounded: above all a range of letters without case is gone
    through letter by letter."""
    letters = text.decode("latin-1") if type(text) is bytes else text_of(text)
    if type(flags) is not int or flags & re.DEBUG or len(letters) > _MAX_PATTERN:
        raise NotPlain(f"a result holds a pattern that is none, or longer than {_MAX_PATTERN}")
    if _FAR_RANGE.search(letters):
        raise NotPlain("a result holds a pattern with a range of letters that are not ASCII")
    reading.budget.spend(_PATTERN_BYTES + _PATTERN_LETTER_BYTES * len(letters))
    began_s = time.thread_time()
    made = re.compile(text, flags)
    reading.budget.inserted(time.thread_time() - began_s)
    return made


def chain_map(reading: Reading, *maps: Any) -> collections.ChainMap[Any, Any]:
    if not all(type(each) in _MAPS for each in maps):
        raise NotPlain("a result holds a ChainMap of what are no dicts")
    reading.budget.spend(_INSTANCE_BYTES + 8 * len(maps))
    return collections.ChainMap(*maps)


def dict_view(reading: Reading, kind: str, mapping: dict[Any, Any]) -> object:
    if type(mapping) is not dict or text_of(kind) not in VIEWS.values():
        raise NotPlain("a result holds a view of what is not a dict")
    reading.budget.spend(_INSTANCE_BYTES)
    view: object = getattr(mapping, kind)()
    return view


def structure(
    reading: Reading, kind: str, parts: tuple[Any, ...], rest: dict[str, Any]
) -> tuple[Any, ...]:
    """A tuple of the standard library whose parts have names."""
    if type(parts) is not tuple or type(rest) is not dict or len(parts) > _MAX_PARTS:
        raise NotPlain("a result holds a structure that is none")
    reading.budget.spend(_INSTANCE_BYTES + 8 * _MAX_PARTS)
    made: tuple[Any, ...] = _STRUCTURES[text_of(kind)](parts, rest)
    return made


def alias(reading: Reading, origin: Any, args: tuple[Any, ...]) -> GenericAlias:
    """Such as `list[int]`."""
    fits = type(origin) is type and origin in _ORIGINS and type(args) is tuple
    if not fits or not all(type(each) in _OF_ALIASES for each in args):
        raise NotPlain("a result holds a type of what are no types")
    reading.budget.spend(_ALIAS_BYTES)
    return GenericAlias(origin, args)


def text_of(name: object) -> str:
    """What is looked up: of anything else the hash may take long. Raises NotPlain."""
    if type(name) is not str:
        raise NotPlain("a result has a name that is not a text; do not trust its worker")
    return name


# The libraries whose values a result may hold; this package needs none of them.


@cache
def library(name: Literal["numpy", "pandas", "polars", "pyarrow"]) -> Any:
    """Raises NotPlain where it is not installed."""
    try:
        return import_module(name)
    except ImportError as problem:
        raise NotPlain(
            f"a result holds a value of {name}, which is not installed here ({problem}); install"
            f" it: pip install {name}"
        ) from problem
