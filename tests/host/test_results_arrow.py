"""Tables and arrays of Arrow come back as they were."""

import decimal
from typing import Any

import pyarrow as pa
import pytest

from formation_p2p.core.errors import NotPlain
from tests.support.results_world import travelled, travelled_beside

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


def test_what_has_no_description_is_refused_by_name() -> None:
    maps = pa.array([[("a", 1)]], pa.map_(pa.string(), pa.int8()))
    with pytest.raises(NotPlain, match="a kind that does not travel") as refused:
        travelled(maps)
    assert refused.value.load_trusted().equals(maps)
