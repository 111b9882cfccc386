"""What describes values of pandas, Polars and pyarrow for `result_pickler.py`, which loads this
file once a task has returned one. Columns are numpy arrays, Arrow's buffers or lists.

It imports none of them. A reducer gives None for what has no description, such as arrays of others.
"""

from __future__ import annotations

import sys
from pickle import PickleBuffer

TYPE_CHECKING = False  # as in supervisor.py
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Reduced = tuple[Any, ...] | None
    Reducer = Callable[[Any], Reduced]
    Described = tuple[Any, ...] | None

MARKED = sys.modules["formation_p2p_result"]
IS_DATA: Callable[[object], bool] = MARKED._is_data  # of `result_pickler.py`


def pandas_reducer(kind: type) -> Reducer | None:
    pd = sys.modules["pandas"]
    if issubclass(kind, pd.api.extensions.ExtensionDtype):
        return reduce_dtype
    return {
        pd.DataFrame: reduce_frame,
        pd.Series: reduce_series,
        pd.RangeIndex: reduce_range,
        pd.MultiIndex: reduce_multi_index,
        pd.Timestamp: reduce_timestamp,
        pd.Timedelta: lambda value: (MARKED.pandas_timedelta, (value.asm8,)),
        type(pd.NaT): lambda _: (MARKED.pandas_missing, ("NaT",)),
        type(pd.NA): lambda _: (MARKED.pandas_missing, ("NA",)),
        **dict.fromkeys(
            (pd.Index, pd.DatetimeIndex, pd.TimedeltaIndex, pd.CategoricalIndex, pd.PeriodIndex),
            reduce_index,
        ),
        pd.IntervalIndex: reduce_index,
        pd.Interval: lambda value: (
            MARKED.pandas_interval,
            (value.left, value.right, value.closed),
        ),
        pd.Period: lambda value: (MARKED.pandas_period, (value.ordinal, value.freqstr)),
    }.get(kind)


def undescribed(value: Any, what: str) -> Reduced:
    """As ever, behind a text that tells the caller what it is. As an argument of that it comes here
    again, at once."""
    if UNDESCRIBED and UNDESCRIBED[-1] is value:
        UNDESCRIBED.pop()
        return None
    UNDESCRIBED.append(value)
    return MARKED.pandas_undescribed, (what, value)


UNDESCRIBED: list[Any] = []


def kind_of(array: Any) -> str:
    """For a person to read."""
    if str(array.dtype) != "object":
        return f"of dtype {array.dtype}"
    refused = (each for each in array if not IS_DATA([each]))
    kinds = sorted({type(each).__name__ for each in refused})
    return f"of dtype object, with values of type {', '.join(kinds[:3])}"


def reduce_frame(frame: Any) -> Reduced:
    kinds = set(frame.dtypes)
    if len(kinds) == 1 and len(frame.columns) > 1 and is_plain(kinds.pop()):
        columns: Any = frame.to_numpy()
    else:
        arrays = [frame.iloc[:, at].array for at in range(len(frame.columns))]
        columns = [column(array) for array in arrays]
        for name, array, described in zip(frame.columns, arrays, columns, strict=True):
            if described is None:
                return undescribed(
                    frame, f"a pandas.DataFrame with the column {name!r} {kind_of(array)}"
                )
    described = (columns, frame.index, frame.columns, dict(frame.attrs))
    return MARKED.pandas_frame, (*described, frame.flags.allows_duplicate_labels)


def reduce_series(series: Any) -> Reduced:
    described = column(series.array)
    if described is None:
        return undescribed(series, f"a pandas.Series {kind_of(series.array)}")
    parts = (described, series.index, series.name, dict(series.attrs))
    return MARKED.pandas_series, (*parts, series.flags.allows_duplicate_labels)


def reduce_index(index: Any) -> Reduced:
    described = column(index.array)
    if described is None:
        return undescribed(index, f"a pandas.Index {kind_of(index.array)}")
    freq = getattr(index, "freqstr", None) if type(index).__name__ != "PeriodIndex" else None
    return MARKED.pandas_index, (described, index.name, freq)


def reduce_range(index: Any) -> Reduced:
    return MARKED.pandas_range, (index.start, index.stop, index.step, index.name)


def reduce_multi_index(index: Any) -> Reduced:
    codes = [sys.modules["numpy"].asarray(each) for each in index.codes]
    return MARKED.pandas_multi_index, (list(index.levels), codes, list(index.names))


def reduce_dtype(dtype: Any) -> Reduced:
    described = column(sys.modules["pandas"].Series([], dtype=dtype).array)
    return None if described is None else (MARKED.pandas_dtype, (described,))


def reduce_timestamp(value: Any) -> Reduced:
    return MARKED.pandas_timestamp, (value.asm8, value.tzinfo)


def is_plain(dtype: Any) -> bool:
    """Of numpy, and without objects."""
    return getattr(dtype, "kind", "O") in "biufcmM" and type(dtype).__module__.startswith("numpy")


def column(array: Any) -> Described:
    """What makes an array of pandas, None for one without a description."""
    pd = sys.modules["pandas"]
    dtype = array.dtype
    # Before all others: an array of texts may be a subclass of that of numpy's values.
    if isinstance(dtype, pd.StringDtype):
        texts = [
            None if missing else text for text, missing in zip(array, array.isna(), strict=True)
        ]
        nan = isinstance(dtype.na_value, float)
        return "text", texts, dtype.storage, nan
    if isinstance(array, pd.arrays.NumpyExtensionArray) or is_plain(dtype):
        values = array.to_numpy()
        if is_plain(values.dtype):
            return "numpy", values
        objects = list(values) if values.dtype.kind == "O" else None
        return ("objects", objects) if objects is not None and IS_DATA(objects) else None
    if isinstance(dtype, pd.DatetimeTZDtype):
        return "zoned", array.tz_convert("UTC").tz_localize(None).to_numpy(), dtype.tz
    if isinstance(dtype, pd.CategoricalDtype):
        return "categorical", array.codes, dtype.categories, bool(dtype.ordered)
    if isinstance(dtype, pd.PeriodDtype):
        return "period", array.asi8, array.freqstr
    if isinstance(dtype, pd.IntervalDtype):
        sides = column(array.left.array), column(array.right.array)
        return None if None in sides else ("interval", *sides, array.closed)
    if isinstance(dtype, pd.SparseDtype):
        if not is_plain(dtype.subtype):
            return None
        index = array.sp_index
        places = index.to_int_index().indices
        is_block = type(index).__name__ == "BlockIndex"
        return "sparse", array.sp_values, len(array), places, is_block, array.fill_value
    if isinstance(dtype, pd.ArrowDtype):
        return "arrow", array.__arrow_array__()
    if getattr(dtype, "kind", "O") in "biuf" and hasattr(dtype, "numpy_dtype"):
        data = array.to_numpy(dtype=dtype.numpy_dtype, na_value=0)
        return "masked", data, array.isna()
    return None


# Polars


def polars_reducer(kind: type) -> Reducer | None:
    pl = sys.modules["polars"]
    return {pl.DataFrame: reduce_polars_frame, pl.Series: reduce_polars_series}.get(kind)


def reduce_polars_frame(frame: Any) -> Reduced:
    columns = [polars_column(each) for each in frame.get_columns()]
    if None in columns:  # Polars pickles none of them
        return type(frame), (frame.get_columns(),)
    return MARKED.polars_frame, (columns,)


def reduce_polars_series(series: Any) -> Reduced:
    described = polars_column(series)
    if described is None:
        return type(series), (series.name, series.to_list(), series.dtype)
    return MARKED.polars_series, described


def polars_column(series: Any) -> Described:
    kind = polars_type(series.dtype)
    if kind is None:
        return None
    boolean = kind == ("Boolean",)
    flat = series.dtype.is_numeric() or series.dtype.is_temporal() or boolean
    if not flat or kind[0] == "Decimal":
        return series.name, kind, series.to_list(), None
    values = series.to_physical()
    if not series.null_count():
        return series.name, kind, values.to_numpy(), None
    filled = values.fill_null(False if boolean else 0)
    return series.name, kind, filled.to_numpy(), series.is_not_null().to_numpy()


def polars_type(dtype: Any) -> Described:
    """A name, and what the type of that name takes."""
    name = type(dtype).__name__ if not isinstance(dtype, type) else dtype.__name__
    inner: tuple[Any, ...]
    if name == "Datetime":
        return name, dtype.time_unit, dtype.time_zone
    if name == "Duration":
        return name, dtype.time_unit
    if name == "Decimal":
        return name, dtype.precision, dtype.scale
    if name == "Enum":
        return name, dtype.categories.to_list()
    if name == "List":
        inner = (polars_type(dtype.inner),)
    elif name == "Array":
        inner = (polars_type(dtype.inner), dtype.size)
    elif name == "Struct":
        names = tuple(field.name for field in dtype.fields)
        inner = (names, *(polars_type(field.dtype) for field in dtype.fields))
    else:
        return None if name in ("Object", "Unknown") else (name,)
    return None if None in inner else (name, *inner)


# pyarrow


def arrow_reducer(kind: type) -> Reducer | None:
    pa = sys.modules["pyarrow"]
    if kind in (pa.Table, pa.RecordBatch):
        return reduce_table
    if kind is pa.ChunkedArray:
        return reduce_chunked
    return reduce_arrow_array if issubclass(kind, pa.Array) else None


def reduce_table(table: Any) -> Reduced:
    pa = sys.modules["pyarrow"]
    is_batch = isinstance(table, pa.RecordBatch)
    whole = pa.Table.from_batches([table]) if is_batch else table
    columns = [arrow_column(each.type, each.chunks) for each in whole.columns]
    if None in columns:
        return None
    metadata = dict(table.schema.metadata or {})
    nullable = tuple(field.nullable for field in table.schema)
    names = tuple(table.schema.names)
    return MARKED.arrow_table, (names, nullable, columns, metadata, is_batch)


def reduce_chunked(array: Any) -> Reduced:
    described = arrow_column(array.type, array.chunks)
    return None if described is None else (MARKED.arrow_chunked, described)


def reduce_arrow_array(array: Any) -> Reduced:
    described = arrow_column(array.type, [array])
    return None if described is None else (MARKED.arrow_array, described)


def arrow_column(kind: Any, chunks: list[Any]) -> Described:
    described = arrow_type(kind)
    if described is None:
        return None
    return described, [arrow_parts(whole(chunk)) for chunk in chunks]


def whole(array: Any) -> Any:
    """One that begins where its buffers do."""
    pa = sys.modules["pyarrow"]
    if not array.offset and not array.type.num_fields:
        return array
    sink = pa.BufferOutputStream()
    batch = pa.RecordBatch.from_arrays([array], ["x"])
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return pa.ipc.open_stream(sink.getvalue()).read_next_batch().column(0)


def arrow_parts(array: Any) -> tuple[Any, ...]:
    """The length, the buffers, and the same of each child."""
    pa = sys.modules["pyarrow"]
    kind = array.type
    if pa.types.is_dictionary(kind):
        return len(array), (), (arrow_parts(array.indices), arrow_parts(whole(array.dictionary)))
    if pa.types.is_struct(kind):
        children = [array.field(at) for at in range(kind.num_fields)]
    else:
        children = [array.values] if kind.num_fields else []
    own = array.buffers()[: kind.num_buffers]
    buffers = tuple(None if each is None else PickleBuffer(each) for each in own)
    return len(array), buffers, tuple(map(arrow_parts, children))


def arrow_type(kind: Any) -> Described:
    """A name, and what the type of that name takes."""
    types = sys.modules["pyarrow"].types
    if types.is_timestamp(kind):
        return "timestamp", kind.unit, kind.tz
    if types.is_time(kind) or types.is_duration(kind):
        name = "duration" if types.is_duration(kind) else f"time{kind.bit_width}"
        return name, kind.unit
    if types.is_decimal(kind):
        return f"decimal{kind.bit_width}", kind.precision, kind.scale
    if types.is_fixed_size_binary(kind):
        return "binary", kind.byte_width
    inner: tuple[Any, ...]
    if types.is_dictionary(kind):
        inner = arrow_type(kind.index_type), arrow_type(kind.value_type), kind.ordered
        return None if None in inner else ("dictionary", *inner)
    if types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        inner = tuple(map(arrow_field, fields))
        return None if None in inner else ("struct", *inner)
    if types.is_fixed_size_list(kind):
        inner = arrow_field(kind.value_field), kind.list_size
        return None if None in inner else ("fixed_size_list", *inner)
    if types.is_list(kind) or types.is_large_list(kind):
        name = "list" if types.is_list(kind) else "large_list"
        field = arrow_field(kind.value_field)
        return None if field is None else (name, field)
    name = str(kind)
    return (ARROW_NAMES.get(name, name),) if name in ARROW_SIMPLE else None


def arrow_field(field: Any) -> Described:
    described = arrow_type(field.type)
    return None if described is None else (field.name, described, field.nullable)


ARROW_NAMES = {
    "bool": "bool_", "halffloat": "float16", "float": "float32", "double": "float64",
    "date32[day]": "date32", "date64[ms]": "date64",
}  # fmt: skip
ARROW_SIMPLE = frozenset(
    {
        *("null", "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
        *("halffloat", "float", "double", "string", "large_string", "binary", "large_binary"),
        *("date32[day]", "date64[ms]"),
    }
)
