"""Members of an enum's flags together, made by the standard library's code alone.

A class keeps one object for each value that its program has ever had, so that `is` tells them
apart. One that is not there yet is made as the class itself would: a class whose own code takes
part in that is refused.
"""

from __future__ import annotations

import enum
from types import MethodType, WrapperDescriptorType
from typing import Any, Final

from formation_p2p.core.errors import NotPlain
from formation_p2p.host.results.budget import OBJECT_BYTES
from formation_p2p.host.results.objects import checked, names_of, refusal
from formation_p2p.host.results.own_classes import ClassName, FoundClass
from formation_p2p.host.results.values import Reading

# What a class keeps, it keeps to the end of the program: 16 MiB at the most. No honest program has
# all combinations of 14 flags.
MAX_VALUES: Final = 1 << 14
_STANDARD: Final[Any] = enum.Flag.__dict__
_MAKING: Final = ("_missing_", "_iter_member_by_value_", "_iter_member_by_def_")
_ITERATING: Final = tuple(_STANDARD[name].__func__ for name in _MAKING[1:])


def flags(reading: Reading, name: ClassName, value: int) -> enum.Flag:
    """Several members together, or none: of any enum that this program has imported."""
    cls: Any = checked(reading, flags, name, _check)
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
        if len(known) >= MAX_VALUES:
            raise refusal(cls, f"which has {MAX_VALUES} combinations of flags here already")
        reading.budget.spend(OBJECT_BYTES)
        _STANDARD["_missing_"].__func__(cls, value)
    return known[value]


def _check(found: FoundClass) -> None:
    cls = found.cls
    if type(cls) is not enum.EnumMeta or enum.Flag not in type.mro(cls):
        raise refusal(cls, "which is not an enum of flags here")
    names = names_of(cls)
    iterates = names["_iter_member_"]
    if not (
        any(names["_member_type_"] is kind for kind in (object, int))
        and all(names[name] is _STANDARD[name] for name in _MAKING)
        and type(iterates) in (classmethod, MethodType)
        and any(iterates.__func__ is function for function in _ITERATING)
        and all(
            type(names[name]) is WrapperDescriptorType
            for name in ("__getattribute__", "__setattr__")
        )
        and not names.keys() & {"__getattr__", "_name_", "_value_"}
    ):
        raise refusal(cls, "whose own code would make flags here")
