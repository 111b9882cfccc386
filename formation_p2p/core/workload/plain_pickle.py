"""Reading a result that another machine pickled, without running what it says.

A pickle is a program. The result of a worker may hold nothing but plain data: numbers, text,
bytes, lists, tuples, dicts, sets, dates, decimals, UUIDs, paths, and the exceptions of the language
itself. A caller that trusts its workers with its own machine reads any pickle.
"""

from __future__ import annotations

import builtins
import io
import pickle
import re
import uuid
from collections.abc import Iterator, Sized
from fractions import Fraction
from typing import Any, Final

from formation_p2p.core.errors import RemoteError
from formation_p2p.core.units import MIB, format_bytes

# Each builds a value from plain arguments and does nothing else.
_PLAIN: Final = {
    "builtins": ["bytearray", "complex", "frozenset", "range", "set", "slice"],
    "collections": ["Counter", "OrderedDict", "deque"],
    "datetime": ["date", "datetime", "time", "timedelta", "timezone"],
    "decimal": ["Decimal"],
    "fractions": ["Fraction"],
    "pathlib": ["PosixPath", "PurePosixPath"],
    "uuid": ["UUID"],
}

# What pickles from protocol 4 on are made of (PEP 3154, PEP 574): opcodes of a fixed length, and
# how long the length of the others is. Of older ones BINPUT alone: LONG_BINPUT and PUT name a place
# in a table that is then made as long as they say, which with seven bytes takes 16 GiB.
_FIXED: Final = re.compile(
    rb"(?:[()N\x88\x89\]aetsu}\x85-\x87\x8f-\x94R\x81b01]|[\x80Khq].|M..|[Jj].{4}|[G\x95].{8})*+",
    re.DOTALL,
)
_LENGTHS: Final = {
    **dict.fromkeys((b"\x8c", b"C", b"\x8a"), 1),
    **dict.fromkeys((b"X", b"B", b"\x8b"), 4),
    **dict.fromkeys((b"\x8d", b"\x8e", b"\x96"), 8),
}
_STOP: Final = b"."

# What decoding may take: an allowance, and so much for each byte of the pickle. Plain data takes
# two to thirty times its pickle; only long lists of empty containers take more.
ALLOWANCE_BYTES: Final = 64 * MIB
BYTES_PER_BYTE: Final = 32
# What values of CPython 3.11 to 3.14 take at the most, with their place in a container. An opcode
# makes one value, most of them small; these make larger ones.
_VALUE_BYTES: Final = 48
_LARGER: Final = {
    **dict.fromkeys((b"]", b"}", b"t", b"\x85", b"\x86", b"\x87"), 48),
    **dict.fromkeys((b"\x8f", b"\x91"), 200),
}
_WITH_ARGUMENT: Final = re.compile(rb"[\x80Khq].|M..|[Jj].{4}|[G\x95].{8}", re.DOTALL)
# A container has a place for each of its items; a deque alone has 760 bytes when empty.
_ITEM_BYTES: Final = 128
_OBJECT_BYTES: Final = 768
# These take what their argument has, byte by byte; all others item by item.
_FLAT: Final = ("bytearray", "Decimal", "Fraction", "PosixPath", "PurePosixPath", "UUID")

# Of an argument of the above. Division and decimal digits take time by the square of it.
MAX_INT_BITS: Final = 16_384


class NotPlain(RemoteError):
    """A result holds more than plain data, or cannot be read."""


class _PlainUnpickler(pickle.Unpickler):
    def __init__(self, pickled: bytes) -> None:
        super().__init__(io.BytesIO(pickled))
        self._pickled = pickled
        self._budget = _Budget(len(pickled))
        self._knows_builds = False
        _check_opcodes(pickled, self._budget)

    def find_class(self, module: str, name: str) -> Any:
        if name in _PLAIN.get(module, ()):
            found = super().find_class(module, name)
            # A UUID is made without being called, which takes the class itself.
            return found if found is uuid.UUID else _Frugal(found, self._budget)
        if module == "builtins":
            found = getattr(builtins, name, None)
            if isinstance(found, type) and issubclass(found, Exception):
                self._spend_on_builds()
                return _Frugal(found, self._budget)
        raise NotPlain(
            f"a result holds a {module}.{name}, which is not plain data; return plain data, or "
            "pass trust_results=True where the workers may run code on this machine"
        )

    def _spend_on_builds(self) -> None:
        """Each exception that has attributes copies a dict, which may be any of the pickle's: of
        at most half as many items as that has bytes."""
        if not self._knows_builds:
            opcodes = b"".join(_runs(self._pickled))
            builds = _WITH_ARGUMENT.sub(b"K", opcodes).count(b"b")
            self._budget.spend(builds * len(self._pickled) * _ITEM_BYTES // 2)
            self._knows_builds = True


class _Budget:
    """The memory that decoding one result may take."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._most = self._left = ALLOWANCE_BYTES + BYTES_PER_BYTE * size

    def allows(self, bytes_: int) -> bool:
        return bytes_ <= self._left

    def spend(self, bytes_: int) -> None:
        """Raises NotPlain."""
        self._left -= bytes_
        if self._left < 0:
            raise NotPlain(
                f"a result of {format_bytes(self._size)} would take far more memory than"
                f" {format_bytes(self._most)}; return larger pieces, as bytes or text"
            )


class _Frugal:
    """Makes values no larger than what they are made of: forty bytes of a pickle can ask for
    `bytearray(10**12)`, `set(range(10**12))` or `Fraction("1e999999999")`. And all of them together
    take no more than the budget: one argument may be named any number of times."""

    def __init__(self, kind: type, budget: _Budget) -> None:
        self._kind = kind
        self._budget = budget
        self._item_bytes = 1 if kind.__name__ in _FLAT else _ITEM_BYTES

    def __call__(self, *arguments: Any) -> Any:
        for argument in arguments:
            large = type(argument) is int and argument.bit_length() > MAX_INT_BITS
            if large or type(argument) is range:
                raise self._refusal
        if self._kind is bytearray and any(type(each) is int for each in arguments):
            raise self._refusal
        if self._kind is Fraction and not all(map(_is_whole, arguments)):
            raise self._refusal
        items = sum(len(each) for each in arguments if isinstance(each, Sized))
        self._budget.spend(_OBJECT_BYTES + items * self._item_bytes)
        return self._kind(*arguments)

    @property
    def _refusal(self) -> NotPlain:
        return NotPlain(
            f"a result holds a {self._kind.__name__} that would take far more memory or time "
            "than it has bytes; return it as a text or as bytes"
        )


def _is_whole(argument: object) -> bool:
    """A number, or the text that a fraction is pickled as: `-1/3`."""
    return type(argument) is int or (
        type(argument) is str and re.fullmatch("-?[0-9]+(/[0-9]+)?", argument) is not None
    )


def load_result(pickled: bytes, *, trust: bool) -> Any:
    """The value that a worker pickled. Raises NotPlain.

    With `trust` the worker may run any code here: unpickling is running.
    """
    try:
        if trust:
            return pickle.loads(pickled)
        return _PlainUnpickler(pickled).load()
    except NotPlain:
        raise
    except Exception as error:
        # A pickle raises what it likes while it is read.
        raise NotPlain(f"a result could not be read: {type(error).__name__}: {error}") from error


def _check_opcodes(pickled: bytes, budget: _Budget) -> None:
    """Raises NotPlain for opcodes that plain data does not need, and where the values that they
    make take too much memory."""
    runs = list(_runs(pickled))
    opcodes = b"".join(runs)
    cost = _cost(opcodes)
    if not budget.allows(cost):
        cost = _cost(_WITH_ARGUMENT.sub(b"K", opcodes))  # arguments are not opcodes
    budget.spend(cost + _VALUE_BYTES * len(runs))


def _cost(opcodes: bytes) -> int:
    larger = sum(more * opcodes.count(opcode) for opcode, more in _LARGER.items())
    return _VALUE_BYTES * len(opcodes) + larger


def _runs(pickled: bytes) -> Iterator[bytes]:
    """The opcodes of a fixed length, with their arguments, up to each of another length. Raises
    NotPlain."""
    at = 0
    while True:
        run = _FIXED.match(pickled, at)
        assert run is not None, "it matches nothing, too"
        yield run[0]
        at = run.end()
        opcode = pickled[at : at + 1]
        if opcode == _STOP:
            return
        if opcode not in _LENGTHS:
            what = f"holds the opcode {opcode!r}" if opcode else "is cut short"
            raise NotPlain(f"a result {what}; pickle it whole, with protocol 4 or 5")
        after = at + 1 + _LENGTHS[opcode]
        at = min(after + int.from_bytes(pickled[at + 1 : after], "little"), len(pickled))
