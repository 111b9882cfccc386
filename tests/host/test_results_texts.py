"""numpy's texts of any length come back, whatever stands for those that are missing."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.errors import NotPlain
from formation_p2p.results.load import load_result
from tests.support.results_world import Call, hostile, travelled

TEXT = np.dtypes.StringDType
ARRAYS = {
    "plain": np.array(["a", "ß" * 100, ""], TEXT()),
    "2-d": np.array([["a", "b"], ["c", "d"]], TEXT()).T,
    "0-d": np.array("a", TEXT()),
    "empty": np.zeros((0, 3), TEXT()),
    "not contiguous": np.array(["a", "b", "c"], TEXT())[::-2],
    "missing as None": np.array(["a", None], TEXT(na_object=None)),
    "missing as nan": np.array(["a", math.nan], TEXT(na_object=math.nan)),
    "strict": np.array(["a"], TEXT(coerce=False)),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_texts_come_back(array: np.ndarray[Any, Any]) -> None:
    for read in (travelled(array), travelled(array, trust=True)):
        assert (read.dtype, read.shape) == (array.dtype, array.shape)
        assert repr(read.tolist()) == repr(array.tolist())
        assert read.flags.writeable


@given(st.lists(st.text() | st.none()))
def test_any_texts_come_back(texts: list[str | None]) -> None:
    assert travelled(np.array(texts, TEXT(na_object=None))).tolist() == texts


def test_what_stands_for_missing_ones_and_is_an_object_is_refused() -> None:
    array = np.array(["a", "?"], TEXT(na_object="?"))
    with pytest.raises(NotPlain) as refused:
        travelled(array)
    assert refused.value.load_trusted().tolist() == ["a", "?"]


FALSE = {
    "a number": ([1], (1,), "", True),
    "missing": ([None], (1,), "", True),
    "not a list": (("a",), (1,), "", True),
    "too few": (["a"], (2,), "", True),
    "no shape": (["a"], [1], "", True),
    "no letter": (["\ud800"], (1,), "", True),
    "objects for missing": (["a"], (1,), "object", True),
    "code for missing": (["a"], (1,), ["nan"], True),
}


@pytest.mark.parametrize("false", FALSE.values(), ids=FALSE)
def test_texts_that_are_none_are_refused(false: tuple[Any, ...]) -> None:
    with pytest.raises(NotPlain):
        load_result(hostile(Call("numpy_texts", *false)))


def test_one_text_named_again_and_again_is_counted_each_time() -> None:
    with pytest.raises(NotPlain, match="far more memory than"):
        load_result(hostile(Call("numpy_texts", ["x" * 10_000] * 10_000, (10_000,), "", True)))
