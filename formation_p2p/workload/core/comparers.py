"""When two answers of one task count as the same.

    bytes                      what the driver returned, byte for byte; the default
    cbor                       the values, whatever the order of a map's keys
    numbers(1e-06)             the values, where numbers may differ by a millionth of the larger
    numbers(1e-06,1e-12)       or by this much

Closeness is not transitive, so answers are compared with one of them alone (jobs/core/
quorum_ballot.py). Of a process the exit code, the files and the standard output count, not what it
wrote to the standard error.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import cbor2

from formation_p2p.core import cbor
from formation_p2p.core.errors import InvalidInput
from formation_p2p.machine.core.bounds import shown
from formation_p2p.workload.core.blob import Content
from formation_p2p.workload.core.process import ContainerSpec, ProcessResult, ProcessSpec, WasmSpec
from formation_p2p.workload.core.work import MAX_RESULT_BYTES, check_size

# What a sum of a million floats in another order differs by is far below this.
DEFAULT_RELATIVE: Final = 1e-9

# Reads the answer of a driver as a value. Raises ValueError where it cannot be read.
Read = Callable[[str, bytes, Content | None], object]


class Comparer(Protocol):
    """`reads` is whether it compares values; else it is given bytes."""

    @property
    def reads(self) -> bool: ...

    def same(self, one: object, other: object) -> bool: ...


@dataclass(frozen=True, slots=True)
class SameBytes:
    reads = False

    def same(self, one: object, other: object) -> bool:
        return one == other

    def __str__(self) -> str:
        return "bytes"


@dataclass(frozen=True, slots=True)
class SameValues:
    """Numbers may differ by `relative` of the larger one, or by `absolute`. Raises InvalidInput."""

    relative: float = 0.0
    absolute: float = 0.0
    reads = True

    def __post_init__(self) -> None:
        for bound in (self.relative, self.absolute):
            if isinstance(bound, bool) or not isinstance(bound, int | float) or not 0 <= bound < 1:
                raise InvalidInput("same", f"{shown(bound)} is not a tolerance; write 0 to 1")

    def same(self, one: object, other: object) -> bool:
        one, other = _plain(one), _plain(other)
        if isinstance(one, float | int) and isinstance(other, float | int):
            return self._close(one, other)
        if type(one) is not type(other):
            return False
        if isinstance(one, Mapping) and isinstance(other, Mapping):
            return one.keys() == other.keys() and all(self.same(one[x], other[x]) for x in one)
        if isinstance(one, list | tuple) and isinstance(other, list | tuple):
            return len(one) == len(other) and all(map(self.same, one, other))
        return bool(one == other)

    def _close(self, one: float, other: float) -> bool:
        exact = isinstance(one, bool) or isinstance(other, bool) or not self.relative
        if exact and not self.absolute:
            both_none = one != one and other != other  # not a number
            return type(one) is type(other) and (one == other or both_none)
        if math.isnan(one) or math.isnan(other):
            return math.isnan(one) and math.isnan(other)
        return math.isclose(one, other, rel_tol=self.relative, abs_tol=self.absolute)

    def __str__(self) -> str:
        if not self.relative and not self.absolute:
            return "cbor"
        tolerances = (self.relative, self.absolute) if self.absolute else (self.relative,)
        return f"numbers({','.join(map(repr, map(float, tolerances)))})"


@dataclass(frozen=True, slots=True)
class Own:
    """A function of the caller's: of two values, whether they are the same."""

    function: Callable[[Any, Any], object]
    reads = True

    def same(self, one: object, other: object) -> bool:
        return bool(self.function(one, other))

    def __str__(self) -> str:
        return f"own({getattr(self.function, '__qualname__', type(self.function).__name__)})"


BYTES: Final = SameBytes()
CBOR: Final = SameValues()


def numbers(relative: float = DEFAULT_RELATIVE, absolute: float = 0.0) -> SameValues:
    """Values whose numbers are close. Raises InvalidInput."""
    return SameValues(relative, absolute)


_NUMBERS: Final = re.compile(
    r"numbers(?:\(\s*([0-9.e+-]{1,24})\s*(?:,\s*([0-9.e+-]{1,24})\s*)?\))?"
)


def comparer_of(same: object) -> Comparer:
    """What a person wrote: a text, a function, or a comparer. Raises InvalidInput."""
    if isinstance(same, str):
        return _parsed(same)
    if isinstance(same, SameBytes | SameValues | Own):
        return same
    if callable(same):
        return Own(same)
    hint = "write 'bytes', 'cbor', 'numbers(1e-6)' or a function of two values"
    raise InvalidInput("same", f"{shown(same)} compares nothing; {hint}")


def _parsed(text: str) -> Comparer:
    if text in ("bytes", "cbor"):
        return BYTES if text == "bytes" else CBOR
    match = _NUMBERS.fullmatch(text)
    try:
        tolerances = [] if match is None else [float(each) for each in match.groups() if each]
    except ValueError:
        match = None
    if match is None:
        hint = "write bytes, cbor or numbers(1e-6)"
        raise InvalidInput("same", f"{shown(text)} is not a comparer; {hint}")
    return numbers(*tolerances)


# -- what is compared ------------------------------------------------------------------------------

_PROCESSES: Final = frozenset({ProcessSpec.driver, ContainerSpec.driver, WasmSpec.driver, "image"})


def bytes_of(driver: str, result: bytes, content: Content | None) -> bytes:
    """Of an answer, what counts where bytes are compared. What cannot be read counts as it is."""
    if driver in _PROCESSES:
        try:
            return cbor2.dumps(_of_process(result), canonical=True)
        except (InvalidInput, ValueError):
            return result
    return result if content is None else bytes(content.take())


def read_plain(driver: str, result: bytes, content: Content | None) -> object:
    """The value of an answer, where that is CBOR. Raises ValueError."""
    if driver in _PROCESSES:
        return _of_process(result)
    return cbor.decode(check_size("result", result, MAX_RESULT_BYTES))


def _of_process(result: bytes) -> list[object]:
    """A worker may add addresses to what it keeps: the contents count."""
    read = ProcessResult.decode(result)
    outputs = {name: str(blob.cid) for name, blob in sorted(read.outputs.items())}
    stdout = [read.stdout_tail, read.stdout_sha256]
    return [read.exit_code, dict(sorted(read.files.items())), stdout, outputs]


_LIBRARIES: Final = sys.stdlib_module_names | {"numpy", "pandas", "polars", "pyarrow"}


def _plain(value: object) -> object:
    """An array as lists; an instance of a caller's own class as what it has, so that workers' data
    reach none of its code."""
    kind = type(value)
    package = kind.__module__.partition(".")[0]
    if isinstance(value, Sequence | Mapping | type):
        return value
    if package in _LIBRARIES and package != "__main__":
        listed = getattr(value, "tolist", None)
        return listed() if callable(listed) else value
    slots = {slot for base in kind.__mro__ for slot in getattr(base, "__slots__", ())}
    held = {slot: getattr(value, slot) for slot in sorted(slots) if hasattr(value, slot)}
    return kind, {**held, **getattr(value, "__dict__", {})}
