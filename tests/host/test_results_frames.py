"""Tables come back as they were: of pandas, Polars and Arrow."""

from __future__ import annotations

import datetime
import decimal
import importlib
from typing import Any

import numpy as np
import pandas as pd
import pandas.testing as pdt
import polars as pl
import polars.testing as plt
import pyarrow as pa
import pytest

from formation_p2p.core.errors import NotPlain
from formation_p2p.host.results import libraries
from formation_p2p.host.results.load import load_result
from tests.support.results_world import Call, hostile, travelled, travelled_beside

DAYS = pd.date_range("2020-01-01", periods=5, freq="D")
TABLE = pd.DataFrame(
    {
        "whole": range(5),
        "float": [0.5, 1, 2, 3, 4],
        "text": list("abcde"),
        "object": pd.Series(["x", None, "y", float("nan"), "z"], dtype=object),
        "category": pd.Categorical(list("aabba"), ordered=True),
        "day": DAYS,
        "zoned": DAYS.tz_localize("Europe/Berlin"),
        "fixed": DAYS.tz_localize(datetime.timezone(datetime.timedelta(hours=2))),
        "Int64": pd.array([1, None, 3, 4, 5], dtype="Int64"),
        "boolean": pd.array([True, None, False, True, True], dtype="boolean"),
        "Float32": pd.array([1.0, None, 3, 4, 5], dtype="Float32"),
        "length": pd.to_timedelta(range(5), unit="s"),
        "period": pd.period_range("2020-01", periods=5, freq="M"),
        "string": pd.array(["a", None, "b", "c", "d"], dtype="string"),
        "arrow": pd.array([1, 2, None, 4, 5], dtype="int64[pyarrow]"),
    }
)
PANDAS: dict[str, Any] = {
    "mixed": TABLE,
    "by day": TABLE.set_index("day"),
    "by two": TABLE.set_index(["text", "whole"]),
    "floats": pd.DataFrame(np.arange(12.0).reshape(4, 3)),
    "sliced": TABLE.iloc[::2],
    "empty": pd.DataFrame(),
    "only rows": pd.DataFrame(index=[1, 2]),
    "same names": pd.DataFrame([[1, 2], [3, 4]], columns=["a", "a"]),
    "series": TABLE["float"],
    "counts": TABLE["category"].value_counts(),
    "days": DAYS,
    "products": pd.MultiIndex.from_product([[1, 2], ["a", "b"]], names=["q", "r"]),
    "columns": TABLE.columns,
}


def assert_same(read: Any, value: Any) -> None:
    if isinstance(value, pd.DataFrame):
        pdt.assert_frame_equal(read, value)
    elif isinstance(value, pd.Series):
        pdt.assert_series_equal(read, value)
    else:
        pdt.assert_index_equal(read, value)


@pytest.mark.parametrize("value", PANDAS.values(), ids=PANDAS)
def test_what_pandas_has_comes_back(value: Any) -> None:
    assert_same(travelled(value), value)
    assert_same(travelled_beside(value), value)
    assert_same(travelled(value, trust=True), value)


@pytest.mark.parametrize(
    "value",
    [
        pd.Timestamp("2020-01-01"),
        pd.Timestamp("2020-01-01", tz="Europe/Berlin"),
        pd.Timedelta("1s"),
    ],
    ids=repr,
)
def test_moments_come_back(value: Any) -> None:
    read = travelled([value, pd.NaT, pd.NA])
    assert (type(read[0]), read[0]) == (type(value), value)
    assert read[1:] == [pd.NaT, pd.NA]


def test_a_frame_keeps_its_attributes() -> None:
    frame = TABLE[["whole"]]
    frame.attrs["source"] = {"a": [1]}
    assert travelled(frame).attrs == {"source": {"a": [1]}}


POLARS = pl.DataFrame(
    {
        "whole": [1, None, 3],
        "float": [1.0, 2.0, float("nan")],
        "boolean": [True, None, False],
        "text": ["a", None, "c"],
        "day": [datetime.date(2020, 1, 1), None, None],
        "moment": [datetime.datetime(2020, 1, 1)] * 3,
        "list": [[1], [], None],
        "struct": [{"a": 1, "b": "x"}] * 3,
        "decimal": [decimal.Decimal("1.5")] * 3,
        "bytes": [b"x", None, b""],
        "time": [datetime.time(1)] * 3,
        "length": [datetime.timedelta(1), None, None],
    }
).with_columns(
    pl.col("text").cast(pl.Categorical).alias("category"),
    pl.col("text").cast(pl.Enum(["a", "c"])).alias("enum"),
    pl.col("moment").dt.replace_time_zone("Europe/Berlin").alias("zoned"),
    pl.lit(None).alias("null"),
    pl.Series("array", [[1, 2]] * 3, dtype=pl.Array(pl.Int8, 2)),
    pl.Series("small", [1, 2, 3], dtype=pl.UInt8),
)


@pytest.mark.parametrize("name", POLARS.columns)
def test_a_column_of_polars_comes_back(name: str) -> None:
    plt.assert_series_equal(travelled(POLARS[name]), POLARS[name])


def test_a_frame_of_polars_comes_back() -> None:
    plt.assert_frame_equal(travelled(POLARS), POLARS)
    plt.assert_frame_equal(travelled_beside(POLARS), POLARS)


ARROW = pa.table(
    {
        "whole": [1, None, 3],
        "text": ["a", None, "c"],
        "list": [[1], [], None],
        "struct": [{"a": 1, "b": [b"x"]}] * 3,
        "dictionary": pa.array(["a", "b", "a"]).dictionary_encode(),
        "moment": pa.array([1, 2, 3], pa.timestamp("us", "UTC")),
        "boolean": [True, None, False],
        "null": pa.nulls(3),
        "decimal": pa.array([decimal.Decimal("1.50")] * 3),
        "two bytes": pa.array([b"ab"] * 3, pa.binary(2)),
        "two numbers": pa.array([[1, 2]] * 3, pa.list_(pa.int8(), 2)),
        "day": pa.array([1, 2, 3], pa.date32()),
        "half": pa.array([1, 2, 3], pa.float16()),
        "large": pa.array(["a"] * 3, pa.large_string()),
        "lists": pa.array([["a"]] * 3, pa.large_list(pa.string())),
        "time": pa.array([1] * 3, pa.time64("us")),
        "length": pa.array([1] * 3, pa.duration("ns")),
    },
    metadata={"a": "b"},
)


@pytest.mark.parametrize(
    "value",
    [
        ARROW,
        ARROW.slice(1, 1),
        ARROW.slice(0, 0),
        ARROW.to_batches()[0],
        pa.concat_tables([ARROW, ARROW]),
        ARROW["text"],
        ARROW["struct"].chunk(0),
        ARROW["text"].chunk(0).slice(2),
    ],
    ids=["table", "slice", "empty", "batch", "chunks", "chunked", "array", "end"],
)
def test_what_arrow_has_comes_back(value: Any) -> None:
    for read in (travelled(value), travelled_beside(value), travelled(value, trust=True)):
        assert type(read) is type(value)
        assert read.equals(value)


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (
            pd.DataFrame({"a": [1], "b c": [object()]}),
            "a pandas.DataFrame with the column 'b c' of dtype object, with values of type object,",
        ),
        (pd.DataFrame({"a": pd.interval_range(0, 3)}), "the column 'a' of dtype interval[int64"),
        (pd.Series([{1}, 2]), "a pandas.Series of dtype object, with values of type int, set,"),
        (pd.interval_range(0, 3), "a pandas.Index of dtype interval[int64"),
        (pd.Period("2026"), "a pandas.Period,"),
        (pd.Interval(0, 1), "a pandas.Interval,"),
        (pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8())), "a kind that does not travel"),
    ],
    ids=["objects", "intervals", "sets", "index", "period", "interval", "maps"],
)
def test_what_has_no_description_is_refused_by_name_and_kept(value: Any, told: str) -> None:
    with pytest.raises(NotPlain) as refused:
        travelled([value, value])
    assert told in str(refused.value)
    assert "does not travel" in str(refused.value)
    first, second = refused.value.load_trusted()
    assert first is second
    assert type(first) is type(value)


def test_a_description_that_a_worker_makes_up_is_refused() -> None:
    for told in ("x\n" * 100, 1, [DAYS]):
        with pytest.raises(NotPlain, match="which does not travel") as refused:
            load_result(hostile(Call("pandas_undescribed", told, 1)))
        assert "\n" not in str(refused.value)


def test_a_caller_without_the_library_is_told_which(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str) -> Any:
        if name == "polars":
            raise ImportError("No module named 'polars'")
        return importlib.import_module(name)

    monkeypatch.setattr(libraries, "import_module", fails)
    libraries.library.cache_clear()
    with pytest.raises(NotPlain, match="pip install polars"):
        travelled(POLARS)
    libraries.library.cache_clear()


@pytest.mark.parametrize(
    "value",
    [pl.DataFrame({"a": [1, 2], "b": [{1}, None]}), pl.Series("a", [{1}, "x"], dtype=pl.Object)],
    ids=["frame", "series"],
)
def test_objects_in_a_table_of_polars_are_refused_by_name_and_kept(value: Any) -> None:
    with pytest.raises(NotPlain, match=r"a polars\..* with objects in it") as refused:
        travelled(value)
    assert str(refused.value.load_trusted()) == str(value)
