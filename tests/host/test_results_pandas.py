"""Tables of pandas come back as they were: equal, with dtypes, flags and classes."""

import datetime
import decimal
from contextlib import suppress
from typing import Any

import numpy as np
import pandas as pd
import pandas.testing as pdt
import pytest

from formation_p2p.core.errors import NotPlain
from formation_p2p.results.load import load_result
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
        "python": pd.array(["a", None, "b", "c", "d"], dtype=pd.StringDtype("python")),
        "interval": pd.interval_range(0.5, periods=5, closed="both"),
        "of days": pd.interval_range(DAYS[0], periods=5),
        "sparse": pd.arrays.SparseArray([0, 0, 1, 2, 0]),
        "blocks": pd.arrays.SparseArray([1.5, None, None, 2.5, 3], kind="block"),
        "objects": [{"a": [1]}, (2, "x"), None, decimal.Decimal("0.1"), DAYS[0].date()],
        "lists": [[1], [1, 2], [], [3], [{"a": b"b"}]],
        "moments": pd.Series([each.to_pydatetime() for each in DAYS], dtype=object),
        "arrays": pd.Series([np.arange(2), np.ones(2), np.array(3), 1, [2]], dtype=object),
    }
)
with suppress(ImportError):  # without pyarrow
    TABLE["arrow"] = pd.array([1, 2, None, 4, 5], dtype="int64[pyarrow]")
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
    "by text": TABLE.set_index("text"),
    "by missing text": TABLE.set_index("string"),
    "by object": TABLE.set_index("object"),
    "by category": TABLE.set_index("category"),
    "by interval": TABLE.set_index("interval"),
    "by period": TABLE.set_index("period"),
    "by objects": pd.Series(1, index=[(1, "a"), ("b",), 3]),
    "categories of objects": pd.Series(pd.Categorical([1, "a", (2, 3)])),
    "text": TABLE["text"],
    "all texts": TABLE[["text", "python"]],
    "no texts": pd.Series([], dtype="str"),
    "grouped": TABLE.groupby("text")[["whole", "float"]].describe(),
    "dtypes": TABLE.dtypes,
    "unique": TABLE.set_flags(allows_duplicate_labels=False),
    "unique series": TABLE["text"].set_flags(allows_duplicate_labels=False),
}


def assert_same(read: Any, value: Any) -> None:
    if isinstance(value, pd.DataFrame):
        pdt.assert_frame_equal(read, value)
    elif isinstance(value, pd.Series):
        pdt.assert_series_equal(read, value)
    else:
        pdt.assert_index_equal(read, value)
    assert (type(read), shape(read)) == (type(value), shape(value))


def shape(value: Any) -> Any:
    """What equal ones may differ in."""
    if isinstance(value, pd.DataFrame):
        axes = [shape(each) for each in value.axes]
        return axes, list(value.dtypes), value.flags.allows_duplicate_labels
    if isinstance(value, pd.Series):
        return shape(value.index), value.dtype, value.flags.allows_duplicate_labels
    levels = [shape(each) for each in value.levels] if isinstance(value, pd.MultiIndex) else []
    return type(value), value.dtype, list(value.names), levels


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
        pd.Interval(0.0, 1.5, closed="left"),
        pd.Interval(pd.Timestamp("2020-01-01"), pd.Timestamp("2020-01-02")),
        pd.Period("2026-02", freq="M"),
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


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (
            pd.DataFrame({"a": [1], "b c": [object()]}),
            "a pandas.DataFrame with the column 'b c' of dtype object, with values of type object,",
        ),
        (pd.Series([{1}, lambda: 1, 2]), "of dtype object, with values of type function,"),
        (pd.Index([object()]), "a pandas.Index of dtype object, with values of type object,"),
    ],
    ids=["frame", "series", "index"],
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
