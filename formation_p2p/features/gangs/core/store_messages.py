"""What the store of a gang and its clients say to each other, over the tunnel `_store`.

Each node that uses the store has one client of it, for all that runs there. To a client that has
connected the store tells what it holds now, an `Entry` each, and `Opened`; from there on it answers
requests, and tells every change. A frame is a CBOR array: the message's number, then its fields in
order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import KIB, MIB
from formation_p2p.records.core import schema
from formation_p2p.records.core.codec import MAX_INT, Malformed, take_text
from formation_p2p.records.core.schema import Schema

# The names that torch's process groups make have up to 150.
MAX_KEY_CHARS: Final = 512
# An address, a number, a small state. What is larger travels as a stream, or by content.
MAX_VALUE_BYTES: Final = MIB
# Of one request: a member waits for something from each of the others.
MAX_WAIT_KEYS: Final = 256
# Longer than anything is waited for without a look at it; torch waits for 5 minutes by default.
MAX_TIMEOUT_MS: Final = 24 * 3600 * 1000
# A value, its key in UTF-8, and what is around them.
MAX_FRAME_BYTES: Final = MAX_VALUE_BYTES + 4 * MAX_KEY_CHARS + KIB
MAX_WHY_CHARS: Final = 256
# What a key takes beside its own bytes and its value's, in each copy.
KEY_BYTES: Final = 128
# The keys under which the store keeps how often each barrier was passed.
BARRIERS: Final = "_barrier/"
_COUNT: Final = re.compile(rb"[0-9]{1,18}")


def check_key(key: str) -> str:
    """Raises InvalidInput."""
    if not 0 < len(key) <= MAX_KEY_CHARS or not key.isprintable() or " " in key:
        problem = f"write 1 to {MAX_KEY_CHARS} characters that print, without a space"
        raise InvalidInput("key", problem)
    if key.startswith(BARRIERS):
        raise InvalidInput("key", f"names with {BARRIERS} are the store's own; choose another")
    return key


def _read_key(value: object) -> str:
    return check_key(take_text(value, "key", MAX_KEY_CHARS))


_KEY: Final = schema.custom(_read_key)
_VALUE: Final = schema.octets(MAX_VALUE_BYTES)
_TIMEOUT: Final = schema.integer(0, MAX_TIMEOUT_MS)
_NUMBER: Final = schema.integer(0, MAX_INT)
Key = Annotated[str, _KEY]
Number = Annotated[int, _NUMBER]
TimeoutMs = Annotated[int, _TIMEOUT]

_FROM_CLIENTS: Final[Schema[FromClient]] = Schema("store protocol", MAX_FRAME_BYTES)
_FROM_STORE: Final[Schema[FromStore]] = Schema("store protocol", MAX_FRAME_BYTES)


class Problem(StrEnum):
    """Why a request was refused."""

    TIMEOUT = "timeout"
    FULL = "full"
    INVALID = "invalid"
    MOVED = "moved"
    """The connection was lost while the request was under way: whether it was done is not known."""


def _read_problem(value: object) -> Problem:
    try:
        return Problem(take_text(value, "problem", MAX_KEY_CHARS))
    except ValueError as error:
        raise Malformed("problem", "is not known") from error


_PROBLEM: Final = schema.custom(_read_problem)


@_FROM_CLIENTS.message(3)
@dataclass(frozen=True, slots=True)
class Set:
    number: Number
    key: Key
    value: Annotated[bytes, _VALUE]


@_FROM_CLIENTS.message(4)
@dataclass(frozen=True, slots=True)
class Get:
    """The value, once there is one."""

    number: Number
    key: Key
    timeout_ms: TimeoutMs


@_FROM_CLIENTS.message(5)
@dataclass(frozen=True, slots=True)
class Wait:
    """Until all of these have a value."""

    number: Number
    keys: Annotated[tuple[str, ...], schema.items(_KEY, MAX_WAIT_KEYS)]
    timeout_ms: TimeoutMs


@_FROM_CLIENTS.message(6)
@dataclass(frozen=True, slots=True)
class Add:
    """To the number that the value is in decimal, 0 where there is none. Answered with the sum."""

    number: Number
    key: Key
    amount: Annotated[int, schema.integer(-MAX_INT, MAX_INT)]


@_FROM_CLIENTS.message(7)
@dataclass(frozen=True, slots=True)
class CompareSet:
    """Sets `desired` where the value is `expected`, or where there is none and that is empty.
    Answered with the value then; with `expected` where there is none."""

    number: Number
    key: Key
    expected: Annotated[bytes, _VALUE]
    desired: Annotated[bytes, _VALUE]


@_FROM_CLIENTS.message(8)
@dataclass(frozen=True, slots=True)
class Delete:
    """Answered with 1 where there was a value, else 0."""

    number: Number
    key: Key


@_FROM_CLIENTS.message(9)
@dataclass(frozen=True, slots=True)
class CountKeys:
    number: Number


@_FROM_CLIENTS.message(10)
@dataclass(frozen=True, slots=True)
class Arrive:
    """At a barrier, which opens for the `turn`th time once every rank has arrived."""

    number: Number
    barrier: Key
    turn: Annotated[int, schema.integer(1, MAX_INT)]
    timeout_ms: TimeoutMs


@_FROM_CLIENTS.message(11)
@dataclass(frozen=True, slots=True)
class CancelRequest:
    """The one who asked is gone."""

    number: Number


@_FROM_STORE.message(20)
@dataclass(frozen=True, slots=True)
class Entry:
    """The newest value of a key; None where it was deleted. Also for the store's own keys."""

    key: Annotated[str, schema.text(MAX_KEY_CHARS + len(BARRIERS))]
    version: Annotated[int, schema.integer(1, MAX_INT)]
    value: Annotated[bytes | None, schema.optional(schema.octets(MAX_VALUE_BYTES))]

    def __post_init__(self) -> None:
        """Raises Malformed."""
        if self.key.startswith(BARRIERS) and _COUNT.fullmatch(self.value or b"") is None:
            raise Malformed("value", "is not how often a barrier was passed")

    @property
    def size_bytes(self) -> int:
        """What it takes of a store's bytes."""
        return KEY_BYTES + len(self.key.encode()) + len(self.value or b"")


@_FROM_STORE.message(22)
@dataclass(frozen=True, slots=True)
class Opened:
    """That was all that I hold, up to this version."""

    version: Number


@_FROM_STORE.message(23)
@dataclass(frozen=True, slots=True)
class Done:
    """`result` is the sum, count or flag that was asked for, else 0."""

    number: Number
    result: Annotated[int, schema.integer(-MAX_INT, MAX_INT)] = 0


@_FROM_STORE.message(24)
@dataclass(frozen=True, slots=True)
class Value:
    number: Number
    value: Annotated[bytes, _VALUE]


@_FROM_STORE.message(25)
@dataclass(frozen=True, slots=True)
class Refused:
    number: Number
    problem: Annotated[Problem, _PROBLEM]
    why: Annotated[str, schema.text(MAX_WHY_CHARS)]


StoreRequest = Set | Get | Wait | Add | CompareSet | Delete | CountKeys | Arrive
FromClient = StoreRequest | CancelRequest
Answer = Done | Value | Refused
FromStore = Entry | Opened | Answer

pack_from_client = _FROM_CLIENTS.pack
parse_from_client = _FROM_CLIENTS.parse
pack_from_store = _FROM_STORE.pack
parse_from_store = _FROM_STORE.parse


@dataclass(frozen=True, slots=True)
class Attached:
    """A client's tunnel was opened. `rank` is None for the owner of the gang."""

    client: int
    rank: int | None


@dataclass(frozen=True, slots=True)
class Detached:
    client: int


@dataclass(frozen=True, slots=True)
class Came:
    client: int
    message: FromClient


@dataclass(frozen=True, slots=True)
class Resized:
    """The gang has so many ranks."""

    size: int


@dataclass(frozen=True, slots=True)
class Tick:
    pass


StoreEvent = Attached | Detached | Came | Resized | Tick


@dataclass(frozen=True, slots=True)
class Tell:
    client: int
    message: FromStore
