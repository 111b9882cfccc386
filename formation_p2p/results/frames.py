"""Values of pandas, from the columns that frame_pickler.py describes.

They are made by public constructors from arrays and lists whose types and lengths were checked.
pandas reads no bytes of a worker: its own formats name Python classes.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, Final
from zoneinfo import ZoneInfo

from formation_p2p.core.errors import NotPlain
from formation_p2p.results import arrays
from formation_p2p.results.hashing import weight_of
from formation_p2p.results.inserting import of_items
from formation_p2p.results.values import Reading, library, text_of

# What a column, an index or a series takes beside its values.
COLUMN_BYTES: Final = 4096
# Of what pandas hashes, to see that it is unique.
_HASHED_BYTES: Final = 64
_FREQUENCY: Final = re.compile(r"-?[0-9]{0,9}[A-Za-z-]{1,20}")
_CLOSED: Final = ("left", "right", "both", "neither")
# Of what an interval lies between, beside moments.
_NUMBERS: Final = (int, float)


def frame(
    reading: Reading,
    columns: Any,
    index: Any,
    names: Any,
    attrs: dict[Any, Any],
    may_repeat: bool = True,
) -> Any:
    pd = _pandas()
    check(isinstance(index, pd.Index) and isinstance(names, pd.Index))
    if is_array(columns):
        check(columns.shape == (len(index), len(names)) and columns.dtype.kind in "biufcmM")
        reading.budget.spend(COLUMN_BYTES + _copied(columns))
        made = pd.DataFrame(columns, index=index, copy=False)
    else:
        check(type(columns) is list and len(columns) == len(names))
        held = [_column(reading, each) for each in columns]
        check(all(len(each) == len(index) for each in held))
        if not held:
            reading.budget.spend(len(index))  # which has no bytes
        made = pd.DataFrame(dict(enumerate(held)), index=index, copy=False)
    made.columns = names
    return _flagged(reading, made, attrs, may_repeat)


def _flagged(reading: Reading, made: Any, attrs: object, may_repeat: object) -> Any:
    """`may_repeat` are its labels, as its flags say."""
    check(type(attrs) is dict)
    made.attrs.update(attrs)
    if may_repeat is not True:
        for axis in made.axes:
            reading.budget.spend(_HASHED_BYTES * len(axis))
            _hash(reading, axis)
        made.flags.allows_duplicate_labels = False
    return made


def series(
    reading: Reading,
    column: Any,
    index: Any,
    name: Any,
    attrs: dict[Any, Any],
    may_repeat: bool = True,
) -> Any:
    pd = _pandas()
    array = _column(reading, column)
    _weigh_names(reading, [name])
    check(isinstance(index, pd.Index) and len(array) == len(index))
    made = pd.Series(array, index=index, name=name, copy=False)
    return _flagged(reading, made, attrs, may_repeat)


def index(reading: Reading, column: Any, name: Any, frequency: str | None) -> Any:
    array = _column(reading, column)
    _weigh_names(reading, [name])
    # Of objects it would make what it takes them for.
    dtype = object if array.dtype == object else None
    made: Any = _pandas().Index(array, dtype=dtype, name=name, copy=False)
    if frequency is not None:
        check(_FREQUENCY.fullmatch(frequency) is not None)
        reading.budget.spend(64 * len(made))  # it is compared with what has it
        made.freq = frequency
    return made


def range_index(reading: Reading, start: int, stop: int, step: int, name: Any) -> Any:
    check(all(type(each) is int for each in (start, stop, step)))
    reading.budget.spend(COLUMN_BYTES)
    _weigh_names(reading, [name])
    return _pandas().RangeIndex(start, stop, step, name=name)


def multi_index(reading: Reading, levels: list[Any], codes: list[Any], names: list[Any]) -> Any:
    pd = _pandas()
    check(all(isinstance(each, pd.Index) for each in levels))
    check(all(is_array(each) and each.dtype.kind == "i" for each in codes))
    reading.budget.spend(sum(COLUMN_BYTES + _HASHED_BYTES * len(each) for each in levels))
    reading.budget.spend(sum(16 * len(each) for each in codes))
    for each in levels:
        _hash(reading, each)
    _weigh_names(reading, names)
    return pd.MultiIndex(levels=levels, codes=codes, names=names)


def dtype(reading: Reading, column: Any) -> Any:
    """Of a column that is empty."""
    return _column(reading, column).dtype


def timestamp(reading: Reading, moment: Any, zone: Any) -> Any:
    reading.budget.spend(_HASHED_BYTES * 4)
    check(isinstance(moment, library("numpy").datetime64))
    made = _pandas().Timestamp(moment)
    return made if zone is None else made.tz_localize("UTC").tz_convert(_zone(zone))


def timedelta(reading: Reading, length: Any) -> Any:
    reading.budget.spend(_HASHED_BYTES * 4)
    check(isinstance(length, library("numpy").timedelta64))
    return _pandas().Timedelta(length)


def missing(_: Reading, name: str) -> Any:
    return {"NaT": _pandas().NaT, "NA": _pandas().NA}[text_of(name)]


def interval(reading: Reading, left: Any, right: Any, closed: str) -> Any:
    pd = _pandas()
    reading.budget.spend(_HASHED_BYTES * 4)
    kinds = (*_NUMBERS, pd.Timestamp, pd.Timedelta)
    is_number = isinstance(left, library("numpy").number)
    check(type(left) is type(right) and (is_number or type(left) in kinds))
    check(text_of(closed) in _CLOSED)
    return pd.Interval(left, right, closed)


def period(reading: Reading, ordinal: int, frequency: str) -> Any:
    reading.budget.spend(_HASHED_BYTES * 4)
    check(type(ordinal) is int and bool(_FREQUENCY.fullmatch(frequency)))
    return _pandas().Period(ordinal=ordinal, freq=frequency)


def _hash(reading: Reading, index: Any) -> None:
    """Before pandas does, to see that it is unique: on the clock, where these are objects."""
    if index.dtype == object:
        values = index.tolist()
        _weigh_names(reading, values)
        of_items(values, reading.budget)


def _weigh_names(reading: Reading, names: list[Any]) -> None:
    """pandas hashes them."""
    check(type(names) is list)
    for name in names:
        reading.budget.hash(*weight_of(name, reading.hashed))


def _column(reading: Reading, described: Any) -> Any:
    check(type(described) is tuple and bool(described))
    kind, *parts = described
    reading.budget.spend(COLUMN_BYTES)
    return _COLUMNS[text_of(kind)](reading, *parts)


def _numpy(reading: Reading, array: Any) -> Any:
    check(is_array(array) and array.ndim == 1)
    check(array.dtype.kind in "biufcmM")
    reading.budget.spend(_copied(array))
    return array


def _copied(array: Any) -> int:
    """pandas converts dates that are not in its units."""
    return int(array.nbytes) * 2 if array.dtype.kind in "mM" else 0


def _zoned(reading: Reading, array: Any, zone: Any) -> Any:
    check(_numpy(reading, array).dtype.kind == "M")
    reading.budget.spend(array.nbytes)
    dates = _pandas().DatetimeIndex(array).tz_localize("UTC")
    return dates.tz_convert(_zone(zone)).array


def _zone(zone: object) -> object:
    check(type(zone) in (ZoneInfo, datetime.timezone))
    return zone


def _text(reading: Reading, values: list[Any], storage: str, nan: bool) -> Any:
    pd = _pandas()
    _check_texts(reading, values)
    if storage == "pyarrow":
        try:
            library("pyarrow")
        except NotPlain:
            storage = "python"  # the same values, in more memory
    missing = float("nan") if nan else pd.NA
    return pd.array(values, dtype=pd.StringDtype(storage, na_value=missing))


def _objects(reading: Reading, values: list[Any]) -> Any:
    array = arrays.objects(reading, values)
    return _pandas().Index(array, dtype=object)  # of anything else it makes texts


def _check_texts(reading: Reading, values: list[Any]) -> None:
    check(type(values) is list and all(type(each) in (str, type(None)) for each in values))
    texts = sum(len(each) for each in values if type(each) is str)
    reading.budget.spend(32 * len(values) + 4 * texts)


def _interval(reading: Reading, left: Any, right: Any, closed: str) -> Any:
    sides = [_column(reading, each) for each in (left, right)]
    check(text_of(closed) in _CLOSED)
    reading.budget.spend(2 * sum(each.nbytes for each in sides))  # they are compared, and copied
    return _pandas().arrays.IntervalArray.from_arrays(*sides, closed=closed)


def _sparse(
    reading: Reading, values: Any, length: int, places: Any, is_block: bool, filling: Any
) -> Any:
    make = getattr(_pandas().arrays.SparseArray, "from_indices", None)
    if make is None:
        raise NotPlain("a result holds a sparse column, which this pandas cannot make; update it")
    check(_numpy(reading, places).dtype.str == "<i4" and type(length) is int)
    check(len(_numpy(reading, values)) == len(places) and 0 <= length < 2**31)
    # pandas looks at them for one of its two kinds only.
    check(bool((places[1:] > places[:-1]).all()))
    check(not len(places) or 0 <= places[0] <= places[-1] < length)
    check(filling is _pandas().NaT or type(filling) in _NUMBERS or _is_scalar(filling))
    # Most of what is done with it has one for each place.
    reading.budget.spend(length + 4 * values.nbytes)
    kind = "block" if is_block else "integer"
    return make(values, places, length, fill_value=filling, kind=kind, dtype=values.dtype)


def _categorical(reading: Reading, codes: Any, categories: Any, ordered: bool) -> Any:
    pd = _pandas()
    check(_numpy(reading, codes).dtype.kind == "i" and isinstance(categories, pd.Index))
    reading.budget.spend(2 * codes.nbytes + _HASHED_BYTES * len(categories))
    _hash(reading, categories)
    return pd.Categorical.from_codes(codes, categories=categories, ordered=ordered)


def _period(reading: Reading, ordinals: Any, frequency: str) -> Any:
    check(_numpy(reading, ordinals).dtype.str == "<i8" and bool(_FREQUENCY.fullmatch(frequency)))
    reading.budget.spend(2 * ordinals.nbytes)
    return _pandas().PeriodIndex.from_ordinals(ordinals, freq=frequency).array


def _masked(reading: Reading, data: Any, mask: Any) -> Any:
    pandas = _pandas().arrays
    check(_numpy(reading, mask).dtype.kind == "b" and len(data) == len(mask))
    kinds = {"b": pandas.BooleanArray, "f": pandas.FloatingArray}
    return kinds.get(_numpy(reading, data).dtype.kind, pandas.IntegerArray)(data, mask)


def _arrow(_: Reading, array: Any) -> Any:
    pa = library("pyarrow")
    check(isinstance(array, pa.Array | pa.ChunkedArray))
    return _pandas().arrays.ArrowExtensionArray(array)


_COLUMNS: Final[MappingProxyType[str, Callable[..., Any]]] = MappingProxyType(
    {
        "arrow": _arrow,
        "categorical": _categorical,
        "interval": _interval,
        "masked": _masked,
        "numpy": _numpy,
        "objects": _objects,
        "period": _period,
        "sparse": _sparse,
        "text": _text,
        "zoned": _zoned,
    }
)


def is_array(value: object) -> bool:
    """And of no subclass: of these the libraries copy more, or other things."""
    return type(value) is library("numpy").ndarray


def _is_scalar(value: object) -> bool:
    return type(value) is not library("numpy").void and isinstance(value, library("numpy").generic)


def _pandas() -> Any:
    return library("pandas")


def check(holds: bool) -> None:
    if not holds:
        raise NotPlain("a result holds a table whose parts do not fit; do not trust its worker")
