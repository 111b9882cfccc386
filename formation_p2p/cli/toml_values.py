"""Values of a TOML file, checked by their type."""

from __future__ import annotations

from typing import TypeVar

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.resources.bounds import shown

T = TypeVar("T")


def text(field: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidInput(field, f"{shown(value)} is not a text; put it in quotes")
    return value


def typed(field: str, value: object, kind: type[T], wanted: str) -> T:
    # bool is an int to Python, but not to a person who writes `attempts = true`.
    if type(value) is not kind:
        raise InvalidInput(field, f"{shown(value)} is not {wanted}")
    return value
