"""Results of science come back as they were, and the caller's own classes without their code."""

import collections
import datetime
import enum
import http
import json
import os
import subprocess
import sys
import uuid
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from formation_p2p.core.errors import NotPlain
from formation_p2p.drivers.result_pickler import dumps
from formation_p2p.results.load import load_result
from tests.support.results_world import sent, travelled, travelled_beside

STRUCTURE = np.dtype([("a", "<i4"), ("b", [("c", "f8", (2, 2)), ("d", "U3")])])
SPREAD = np.dtype(
    {
        "names": ["a", "b"],
        "formats": ["i1", "?"],
        "offsets": [3, 8],
        "itemsize": 32,
        "titles": ["A", None],
    }
)
ARRAYS = {
    "2-d": np.arange(12.0).reshape(3, 4),
    "fortran": np.arange(12).reshape(3, 4).T,
    "not contiguous": np.arange(20)[::-2],
    "0-d": np.array(3),
    "empty": np.zeros((0, 5), "f4"),
    "texts": np.array(["a", "bcd"]),
    "bytes": np.array([b"x", b"yy"]),
    "dates": np.array(["2020-01-01"], "M8[D]"),
    "lengths": np.array([3], "m8[25s]"),
    "booleans": np.array([True, False]),
    "complex": np.array([1j]),
    "long": np.array([1], np.longdouble),
    "other byte order": np.arange(3, dtype=">i4"),
    "structured": np.ones(3, STRUCTURE),
    "spread": np.zeros(3, SPREAD),
}


@pytest.mark.parametrize("array", ARRAYS.values(), ids=ARRAYS)
def test_an_array_comes_back_and_can_be_written(array: np.ndarray[Any, Any]) -> None:
    for read in (travelled(array), travelled_beside(array), travelled(array, trust=True)):
        assert (read.dtype, read.shape) == (array.dtype, array.shape)
        assert read.flags.writeable
        assert read.tobytes() == array.tobytes()
    fortran = array.flags.f_contiguous and not array.flags.c_contiguous
    assert travelled(array).flags.f_contiguous or not fortran


def test_arrays_are_views_of_the_buffers_that_came() -> None:
    memory = bytearray(np.arange(4.0).tobytes())
    pickled = dumps(np.arange(4.0), lambda _: None)
    array = load_result(pickled, buffers=[memoryview(memory)])
    array[0] = 7
    assert np.frombuffer(memory)[0] == 7
    memory_of_another = memoryview(memory).toreadonly()
    assert not load_result(pickled, buffers=[memory_of_another]).flags.writeable


SCALARS = [
    np.float64(1.5),
    np.int8(-3),
    np.bool_(True),
    np.complex64(1j),
    np.longdouble(1) / 3,
    np.datetime64("2020-01-01T00:00"),
    np.str_("hé"),
    np.bytes_(b"x"),
    np.ones(2, STRUCTURE)[0],
    np.dtype("f4"),
    np.dtype(object),
    np.float64,
    np.bool_,
    STRUCTURE,
]


@pytest.mark.parametrize("value", SCALARS, ids=repr)
def test_a_scalar_and_a_dtype_come_back(value: Any) -> None:
    read = travelled([value, value])
    assert read[0] == value
    assert type(read[0]) is type(value)


DTYPES = (
    npst.scalar_dtypes()
    | npst.nested_dtypes(max_itemsize=200)
    | npst.array_dtypes(max_size=3, allow_subarrays=True)
)


RECORDS = {
    "recarray": np.ones(3, STRUCTURE).view(np.recarray),
    "its base": np.ones(3, STRUCTURE).view(np.recarray).view(np.ndarray),
    "without fields": np.arange(3).view(np.recarray),
    "within": np.ones(2, [("r", (np.record, STRUCTURE)), ("s", "i1")]),
    "in a shape": np.ones(2, [("r", (np.record, STRUCTURE), (2,))]),
    "spread": np.zeros(2, SPREAD).view(np.recarray),
}


def classes(dtype: np.dtype[Any]) -> object:
    """Of its scalars, and of those of its fields: equal dtypes may differ in them."""
    base = dtype.base
    return base.type, [classes(base[name]) for name in base.names or ()]


@pytest.mark.parametrize("array", RECORDS.values(), ids=RECORDS)
def test_records_come_back_as_records(array: np.ndarray[Any, Any]) -> None:
    for read in (travelled(array), travelled_beside(array), travelled(array, trust=True)):
        assert (type(read), read.dtype, read.shape) == (type(array), array.dtype, array.shape)
        assert classes(read.dtype) == classes(array.dtype)
        assert read.tobytes() == array.tobytes()
    record = travelled(array[0])
    assert (type(record), str(record)) == (type(array[0]), str(array[0]))


@pytest.mark.parametrize("record_first", [False, True])
def test_records_and_what_equals_them_are_told_apart(record_first: bool) -> None:
    fields = [("first" if record_first else "second", "i4"), ("r", [("x", "f8")])]
    plain = np.dtype(fields)
    within = np.dtype([fields[0], ("r", (np.record, [("x", "f8")]))])
    dtypes = [plain, np.dtype((np.record, plain)), within]
    for dtype in reversed(dtypes) if record_first else dtypes:
        assert classes(travelled(np.zeros(2, dtype)).dtype) == classes(dtype)


@given(DTYPES.flatmap(lambda dtype: npst.arrays(dtype, npst.array_shapes(min_side=0, max_side=4))))
def test_arrays_of_any_dtype_and_shape_come_back(array: np.ndarray[Any, Any]) -> None:
    for read in (travelled(array), travelled_beside(array)):
        assert (read.dtype, read.shape) == (array.dtype, array.shape)
        assert read.tobytes() == array.tobytes()


@pytest.mark.parametrize(
    "value",
    [
        np.array([os.system]),
        np.zeros(2, [("a", "O")]),
        np.dtype([("a", [("b", "O")])]),
        np.ma.zeros(1, [("a", "i4")]),
    ],
)
def test_objects_and_subclasses_are_refused_by_name_and_kept(value: object) -> None:
    with pytest.raises(NotPlain, match=r"numpy\.") as refused:
        travelled(value)
    assert len(refused.value.result_bytes) > 10
    assert str(refused.value.load_trusted()) == str(value)


OBJECTS = [
    np.array([{1}, None, "a", [1]], object),
    np.array([[1, "a"], [b"x", (2, {"b": 1.5})]], object).T,
    np.array(datetime.date(2026, 1, 1), object),
    np.array([], object),
]


@pytest.mark.parametrize("array", OBJECTS, ids=str)
def test_an_array_of_data_comes_back(array: np.ndarray[Any, Any]) -> None:
    for read in (travelled(array), travelled_beside(array), travelled(array, trust=True)):
        assert (read.dtype, read.shape) == (array.dtype, array.shape)
        assert read.tolist() == array.tolist()


def test_arrays_within_arrays_come_back() -> None:
    inner: Any = np.array([1, "a", None], object)
    for _ in range(40):
        outer = np.empty(2, object)
        outer[:] = inner, inner
        inner = outer
    read = travelled(inner)
    assert read[0] is read[1]
    for _ in range(40):
        read = read[0]
    assert read.tolist() == [1, "a", None]


class Odd:
    """No dataclass."""


def test_an_instance_of_no_class_that_was_sent_is_refused_with_its_class() -> None:
    cloudpickle.register_pickle_by_value(sys.modules[__name__])  # as __main__ is
    try:
        with pytest.raises(NotPlain) as refused:
            travelled([Odd()])
    finally:
        cloudpickle.unregister_pickle_by_value(sys.modules[__name__])
    assert f"an instance of {__name__}.Odd, or that class, which is not data" in str(refused.value)
    assert "error.load_trusted()" in str(refused.value)
    assert type(refused.value.load_trusted()[0]).__name__ == "Odd"


def test_what_names_no_class_is_refused_all_the_same() -> None:
    name = b"\x8c\x17cloudpickle.cloudpickle\x8c\x14_make_skeleton_class\x93"
    for rest in (b"", b"(\x8c\x01", b"(\x8c\x04<a>\n)tR.", b"(NNtR."):
        with pytest.raises(NotPlain):
            load_result(b"\x80\x05" + name + rest)


class Color(enum.Enum):
    RED = 1


class Access(enum.IntFlag):
    READ = 1
    WRITE = 2


class Point(NamedTuple):
    x: int
    y: object = None

    def length(self) -> int:
        return self.x


RAN: list[str] = []


@dataclass
class Plain:
    number: int
    rest: object = None

    def __post_init__(self) -> None:
        RAN.append("__post_init__")

    def __call__(self) -> None:
        RAN.append("__call__")

    def append(self, _: object) -> None:
        RAN.append("append")

    def __setitem__(self, *_: object) -> None:
        RAN.append("__setitem__")


@dataclass(frozen=True, slots=True)
class Key:
    name: str
    place: Point | None = None


@dataclass
class Late:
    a: int
    b: int = field(init=False, repr=False, compare=False)


OWN = [
    Color.RED,
    Access.WRITE,
    http.HTTPStatus.OK,
    Point(1, [Point(2)]),
    Key("k", Point(3)),
    {Key("k"): [Key("l")]},
    {Key("k"), Key("l", Point(1))},
    Late(1),
    collections.defaultdict(list, {1: [2]}),
    collections.defaultdict(None, {1: 2}),
    collections.Counter("aab"),
    uuid.UUID(int=7),
    ZoneInfo("Europe/Berlin"),
    datetime.datetime(2026, 1, 1, tzinfo=ZoneInfo("UTC")),
    PurePosixPath("a/b"),
]


@pytest.mark.parametrize("value", OWN, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("trust", [False, True])
def test_the_callers_own_and_the_librarys_come_back(value: Any, trust: bool) -> None:
    read = travelled([value, value], trust=trust)[1]
    assert type(read) is type(value)
    assert read == value


def test_no_code_of_a_class_runs() -> None:
    made = Plain(1)
    made.rest = [made]
    made.later = 2  # type: ignore[attr-defined]  # as programs do
    RAN.clear()
    read = travelled(made)
    assert read.rest[0] is read
    assert (read.number, read.later) == (1, 2)
    assert RAN == []


def test_a_result_of_the_libraries_named_tuples_comes_back() -> None:
    read = travelled(np.linalg.eigh(np.eye(2)))
    assert type(read).__name__ == "EighResult"
    assert read.eigenvalues.tolist() == [1, 1]


def test_classes_that_have_no_name_come_back_as_those_that_were_sent() -> None:
    @dataclass
    class Local:
        a: int

    class Bad(Exception):
        def __init__(self, *, code: int) -> None:
            super().__init__("bad")
            self.code = code

    with pytest.raises(NotPlain):
        travelled(Local(1))
    assert travelled(Local(1), trust=True) == Local(1)

    @dataclass
    class Sent:
        a: int

    sent(Sent, Bad)
    assert travelled(Sent(1)) == Sent(1)
    read = travelled(Bad(code=3))
    assert (type(read), read.code) == (Bad, 3)


class Full(OSError):
    def __init__(self, path: str, *, free: int) -> None:
        super().__init__(28, f"no room for {path}")
        self.free = free


ERRORS = [
    ValueError(1, "a"),
    KeyError("k"),
    OSError(2, "no such", "file"),
    UnicodeDecodeError("utf8", b"x", 0, 1, "reason"),
    ImportError("x", name="m", path="p"),
    json.JSONDecodeError("a", "doc", 1),
    subprocess.CalledProcessError(3, ["false"]),
    Full("x", free=3),
    ExceptionGroup("several", [ValueError(1), Full("y", free=4)]),
]


@pytest.mark.parametrize("error", ERRORS, ids=repr)
@pytest.mark.parametrize("trust", [False, True])
def test_an_exception_comes_back_whatever_its_constructor_takes(
    error: Exception, trust: bool
) -> None:
    error.add_note("seen at noon")
    read = travelled(error, trust=trust)
    assert (type(read), str(read), repr(read.args)) == (type(error), str(error), repr(error.args))
    assert vars(read) == vars(error)
    assert getattr(read, "name", None) == getattr(error, "name", None)


@given(st.lists(st.sampled_from(["", "R", "é", "x" * 70])), st.integers(-(2**70), 2**70))
def test_any_attributes_come_back(texts: list[str], number: int) -> None:
    assert travelled(Key("".join(texts), Point(number, texts))) == Key(
        "".join(texts), Point(number, texts)
    )
