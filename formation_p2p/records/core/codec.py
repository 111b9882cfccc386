"""CBOR for untrusted bytes, and the readers from which every message's parser is made.

`decode` gives integers, text, bytes, lists, maps, booleans and None; the `take_*` readers check
one such value each. Both raise `Malformed` and nothing else, on any bytes. A parser that reads
each field with them is therefore total:

    match decode(raw, MAX_BYTES):
        case [name, size]:
            return Thing(take_text(name, "name", 64), take_int(size, "size", 0, 10))
        case _:
            raise Malformed("thing", "is not [name, size]")

`encode` is deterministic (RFC 8949, section 4.2.1). `decode` does not insist on that, for a
second encoding of 8 MiB costs 10 ms; what it does refuse, core/cbor.py says.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

import cbor2

from formation_p2p.core import cbor
from formation_p2p.core.errors import FormationError

# A signed 64-bit integer: more than anything counts, or lives.
MAX_INT: Final = 2**63 - 1


class Malformed(FormationError, ValueError):
    """A value is not what the format says; `field` names it.

    The caller that knows what the bytes were for translates it: `MalformedRecord` for a record,
    `ProtocolViolation` for a message.
    """

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


def encode(value: object) -> bytes:
    """The one encoding of a value that this side made: ints, text, bytes, lists, bools, None."""
    return cbor2.dumps(value, canonical=True)


def decode(raw: bytes, max_bytes: int) -> object:
    """One value. What is a float, an undefined or a simple value passes; no reader takes it."""
    if len(raw) > max_bytes:
        raise Malformed("cbor", f"{len(raw)} bytes; at most {max_bytes} are allowed")
    try:
        return cbor.decode(raw)
    except ValueError as error:
        raise Malformed("cbor", str(error)) from error


def take_int(value: object, field: str, low: int, high: int) -> int:
    """An integer from `low` to `high`; a bool is none."""
    if type(value) is not int:
        _refuse(field, value, "an integer")
    if not low <= value <= high:
        raise Malformed(field, f"is not from {low} to {high}")
    return value


def take_bool(value: object, field: str) -> bool:
    if type(value) is not bool:
        raise Malformed(field, "is not a bool")
    return value


def take_text(value: object, field: str, max_chars: int, *, multiline: bool = False) -> str:
    """Text that may be shown in a terminal: no control characters, escapes or direction marks.

    `multiline` allows newlines and tabs.
    """
    if type(value) is not str:
        _refuse(field, value, "text")
    if len(value) > max_chars:
        raise Malformed(field, f"has {len(value)} characters; at most {max_chars} are allowed")
    shown = value.translate(_LAYOUT) if multiline else value
    if not shown.isprintable():
        raise Malformed(field, "holds characters that do not print")
    return value


def take_bytes(value: object, field: str, max_bytes: int) -> bytes:
    if type(value) is not bytes:
        _refuse(field, value, "bytes")
    if len(value) > max_bytes:
        raise Malformed(field, f"has {len(value)} bytes; at most {max_bytes} are allowed")
    return value


def take_list(value: object, field: str, max_items: int) -> list[Any]:
    """A list of at most `max_items`, whose items are still to be read."""
    if type(value) is not list:
        _refuse(field, value, "a list")
    if len(value) > max_items:
        raise Malformed(field, f"has {len(value)} items; at most {max_items} are allowed")
    return value


_LAYOUT: Final = {ord("\n"): " ", ord("\t"): " "}


def _refuse(field: str, value: object, wanted: str) -> NoReturn:
    raise Malformed(field, f"is a {type(value).__name__}, not {wanted}")
