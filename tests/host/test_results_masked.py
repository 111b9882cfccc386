"""numpy's masked arrays come back as data, mask and what fills them."""

from typing import Any

import numpy as np
import pytest

from formation_p2p.core.errors import NotPlain
from formation_p2p.results.load import load_result
from tests.support.results_world import Call, hostile, travelled, travelled_beside

ARRAYS = {
    "floats": np.ma.array([1.0, 2.0, 3.0], mask=[False, True, False]),
    "filled": np.ma.array([1, 2], mask=[True, False], fill_value=-9),
    "no mask": np.ma.array([1, 2]),
    "hard": np.ma.array([1, 2], mask=[True, False], hard_mask=True),
    "2-d": np.ma.array(np.arange(6).reshape(2, 3).T, mask=np.eye(3, 2) == 1),
    "0-d": np.ma.array(1.5, mask=True),
    "empty": np.ma.zeros((0, 3)),
    "texts": np.ma.array(["a", "b"], mask=[True, False]),
    "dates": np.ma.array(np.array(["2026-01-01"], "M8[D]"), mask=[True]),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_a_masked_array_comes_back(array: np.ma.MaskedArray[Any, Any]) -> None:
    for read in (travelled(array), travelled_beside(array), travelled(array, trust=True)):
        assert type(read) is type(array)
        assert (read.dtype, read.shape, str(read)) == (array.dtype, array.shape, str(array))
        assert read.data.tobytes() == array.data.tobytes()
        assert (read.mask is np.ma.nomask) == (array.mask is np.ma.nomask)
        assert np.array_equal(read.mask, array.mask)
        assert str(read.fill_value) == str(np.array(array.fill_value, array.dtype))
        assert read.hardmask == array.hardmask


def test_its_data_and_mask_are_views_of_what_came() -> None:
    read = travelled_beside(np.ma.array([1.0, 2.0], mask=[False, True]))
    read[0] = np.ma.masked
    read[1] = 5.0
    assert read.tolist() == [None, 5.0]
    assert read.data.tolist() == [1.0, 5.0]


DATA = Call("numpy_array", bytes(16), "<f8", (2,), False)
MASK = Call("numpy_array", bytes(2), "|b1", (2,), False)
ONE = Call("numpy_array", bytes(8), "<f8", (), False)
FIELDS = (("a",), ("<f8",), (0,), (None,), 8)
FALSE = {
    "no data": (None, MASK, ONE, False),
    "a list": ([1.0], None, ONE, False),
    "no filling": (DATA, MASK, None, False),
    "a filling of two": (DATA, MASK, DATA, False),
    "another filling": (DATA, MASK, Call("numpy_array", bytes(8), "<i8", (), False), False),
    "a mask of numbers": (DATA, DATA, ONE, False),
    "a short mask": (DATA, Call("numpy_array", bytes(1), "|b1", (1,), False), ONE, False),
    "a mask of masks": (DATA, Call("numpy_masked", MASK, None, MASK, False), ONE, False),
    "texts": (
        Call("numpy_texts", ["a"], (1,), "", True),
        None,
        Call("numpy_texts", ["a"], (), "", True),
        False,
    ),
    "records": (Call("numpy_records", bytes(16), "<f8", (2,), False), MASK, ONE, False),
    "a structure": (
        Call("numpy_array", bytes(16), FIELDS, (2,), False),
        MASK,
        Call("numpy_array", bytes(8), FIELDS, (), False),
        False,
    ),
}


@pytest.mark.parametrize("false", FALSE.values(), ids=FALSE)
def test_a_false_masked_array_is_refused(false: tuple[Any, ...]) -> None:
    with pytest.raises(NotPlain):
        load_result(hostile(Call("numpy_masked", *false)))


@pytest.mark.parametrize(
    "table",
    [
        Call("pandas_series", ("numpy", Call("numpy_masked", DATA, MASK, ONE, False)), 0, 0, {}),
        Call(
            "polars_series", "x", ("Float64",), Call("numpy_masked", DATA, MASK, ONE, False), None
        ),
    ],
)
def test_a_masked_array_is_no_column(table: Call) -> None:
    with pytest.raises(NotPlain, match="do not fit"):
        load_result(hostile(table))
