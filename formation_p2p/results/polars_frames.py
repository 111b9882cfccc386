"""Values of Polars, from the columns that frame_pickler.py describes.

They are made by public constructors from arrays and lists whose types and lengths were checked.
Polars reads no bytes of a worker: it does not check its own formats.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from formation_p2p.core.errors import NotPlain
from formation_p2p.results.budget import ITEM_BYTES
from formation_p2p.results.frames import COLUMN_BYTES, check, is_array
from formation_p2p.results.values import ZONE, Reading, library, text_of

_NAMED: Final = frozenset(
    {
        *("Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Float32"),
        *("Float64", "Boolean", "String", "Binary", "Date", "Time", "Categorical", "Null"),
    }
)
_UNITS: Final = ("ms", "us", "ns")
_MAX_DEPTH: Final = 16


def frame(reading: Reading, columns: list[Any]) -> Any:
    made = [series(reading, *each) for each in columns]
    return _panics(library("polars").DataFrame, made)


def series(reading: Reading, name: str, kind: Any, values: Any, valid: Any) -> Any:
    pl = library("polars")
    dtype = _polars_type(kind, 0)
    check(type(name) is str)
    reading.budget.spend(COLUMN_BYTES)
    if not is_array(values):
        check(type(values) is list and valid is None)
        _weigh(reading, values, 0)
        return _panics(pl.Series, name, values, dtype=dtype, strict=True)
    check(values.ndim == 1 and values.dtype.kind in "biuf")
    if kind[0] in ("Date", "Datetime", "Time") and values.size:
        low, high = _moments(*kind)
        check(values.dtype.kind == "i" and low <= values.min() and values.max() <= high)
    # It copies them, and converts and masks the copy.
    reading.budget.spend(3 * values.nbytes)
    made = _panics(pl.Series, name, values)
    if made.dtype != dtype:
        made = _panics(made.cast, dtype, strict=True)
    if valid is not None:
        check(is_array(valid) and valid.dtype.kind == "b")
        check(valid.shape == values.shape)
        both = pl.DataFrame({"values": made, "valid": valid})
        masked = pl.when(pl.col("valid")).then(pl.col("values"))
        made = _panics(both.select, masked).to_series().rename(name)
    return made


def _moments(name: str, unit: str = "", _: object = None) -> tuple[int, int]:
    """Between which Polars can print them: of others it panics."""
    if name == "Time":
        return 0, 24 * 3600 * 10**9 - 1
    days = 95_000_000  # some 260,000 years
    most = days * {"": 1, "ms": 86_400_000, "us": 86_400_000_000, "ns": 10**12}[unit]
    return -most, most


def _polars_type(kind: Any, depth: int) -> Any:
    pl = library("polars")
    check(type(kind) is tuple and bool(kind) and depth < _MAX_DEPTH)
    name, *parts = kind
    text_of(name)
    if name in ("Datetime", "Duration"):
        check(parts[0] in _UNITS)
        if name == "Duration":
            return pl.Duration(*parts)
        check(parts[1] is None or ZONE.fullmatch(parts[1]) is not None)
        return pl.Datetime(*parts)
    if name == "Decimal":
        return pl.Decimal(*parts)
    if name == "Enum":
        (categories,) = parts
        check(all(type(each) is str for each in categories))
        return pl.Enum(categories)
    if name == "List":
        return pl.List(_polars_type(parts[0], depth + 1))
    if name == "Array":
        inner, size = parts
        check(type(size) is int and size > 0)
        return pl.Array(_polars_type(inner, depth + 1), size)
    if name == "Struct":
        names, *inners = parts
        fields = zip(names, (_polars_type(each, depth + 1) for each in inners), strict=True)
        return pl.Struct(dict(fields))
    check(name in _NAMED and not parts)
    return getattr(pl, name)


def _weigh(reading: Reading, values: Any, depth: int) -> None:
    """Spend what the values of a column take: one list may be in it any number of times."""
    check(depth < _MAX_DEPTH)
    reading.budget.spend(ITEM_BYTES * len(values))
    for value in values:
        if type(value) is str or type(value) is bytes:
            reading.budget.spend(2 * len(value))
        elif type(value) is list:
            _weigh(reading, value, depth + 1)
        elif type(value) is dict:
            _weigh(reading, list(value.values()), depth + 1)


def _panics(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Its result. What Rust calls a panic is not an Exception there."""
    try:
        return function(*args, **kwargs)
    except BaseException as problem:
        if type(problem).__name__ != "PanicException":
            raise
        raise NotPlain(f"a result holds a table that Polars cannot make: {problem}") from None
