"""Tables of Polars come back as they were."""

import datetime
import decimal
import importlib
from typing import Any

import polars as pl
import polars.testing as plt
import pytest

from formation_p2p.core.errors import NotPlain
from formation_p2p.results import values
from tests.support.results_world import travelled, travelled_beside

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


def test_a_caller_without_the_library_is_told_which(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(name: str) -> Any:
        if name == "polars":
            raise ImportError("No module named 'polars'")
        return importlib.import_module(name)

    monkeypatch.setattr(values, "import_module", fails)
    values.library.cache_clear()
    with pytest.raises(NotPlain, match="pip install polars"):
        travelled(POLARS)
    values.library.cache_clear()


@pytest.mark.parametrize(
    "value",
    [pl.DataFrame({"a": [1, 2], "b": [{1}, None]}), pl.Series("a", [{1}, "x"], dtype=pl.Object)],
    ids=["frame", "series"],
)
def test_objects_in_a_table_of_polars_are_refused_by_name_and_kept(value: Any) -> None:
    with pytest.raises(NotPlain, match=r"a polars\..* with objects in it") as refused:
        travelled(value)
    assert str(refused.value.load_trusted()) == str(value)
