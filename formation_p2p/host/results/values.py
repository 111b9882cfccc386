"""Values of the standard library whose own pickles take more than a call with plain arguments."""

from __future__ import annotations

import collections
import re
import uuid
import zoneinfo
from collections.abc import Callable
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from formation_p2p.core.errors import NotPlain
from formation_p2p.host.results.budget import OBJECT_BYTES, Budget
from formation_p2p.host.results.hashing import Weight
from formation_p2p.host.results.own_classes import ClassFinder, FoundClass


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


def text_of(name: object) -> str:
    """What is looked up: of anything else the hash may take long. Raises NotPlain."""
    if type(name) is not str:
        raise NotPlain("a result has a name that is no text; do not trust its worker")
    return name
