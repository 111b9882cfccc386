"""A worker that describes values falsely runs nothing at its caller, and takes no memory there."""

import pickle
import sys
from contextlib import suppress
from dataclasses import dataclass, make_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formation_p2p.core.errors import NotPlain
from formation_p2p.core.units import MIB
from formation_p2p.drivers.result_pickler import MARKERS, dumps
from formation_p2p.results.load import load_result
from tests.host.test_results_arrow import ARROW
from tests.host.test_results_pandas import PANDAS
from tests.host.test_results_polars import POLARS
from tests.host.test_results_science import ARRAYS, ERRORS, OWN, RAN, SCALARS, Key, Plain, Point
from tests.host.test_results_science import RECORDS as ARRAYS_OF_RECORDS
from tests.host.test_results_values import STANDARD, Folder
from tests.support.results_world import Call, hostile, read_apart

PLAIN = (Plain.__module__, "Plain", "")
FLOATS = bytes(16)


def array(
    data: object = FLOATS, spec: object = "<f8", shape: object = (2,), fortran: bool = False
) -> Call:
    return Call("numpy_array", data, spec, shape, fortran)


def structure(**parts: Any) -> tuple[Any, ...]:
    fields = {"names": ("a",), "formats": ("<f8",), "offsets": (0,), "titles": (None,), "size": 8}
    return tuple((fields | parts).values())


def deep(levels: int) -> object:
    spec: object = "<f8"
    for _ in range(levels):
        spec = (spec, (1,))
    return spec


FALSE_ARRAYS = {
    "too few bytes": array(shape=(3,)),
    "too many bytes": array(shape=(1,)),
    "huge": array(shape=(2**62, 2**62)),
    "overflow": array(shape=(2**61 + 2,)),
    "negative": array(shape=(-1, -2)),
    "of booleans": array(shape=(True, 2)),
    "of floats": array(shape=(2.0,)),
    "a list": array(shape=[2]),
    "many dimensions": array(shape=(2,) + (1,) * 100),
    "nothing, far": array(b"", shape=(0, 2**40)),
    "no size": array(b"", "|S0", (2**40,)),
    "of what": array("text"),
    "of an array": array(array(spec="|u1", shape=(16,)), shape=(2,)),
    "objects": array(spec="|O"),
    "objects by name": array(spec="O"),
    "two": array(spec="<f8,|O"),
    "object in structure": array(spec=structure(formats=("|O",))),
    "object below": array(spec=structure(formats=(structure(formats=("|O8",)),))),
    "object in shape": array(spec=("|O", (1,))),
    "beyond its size": array(spec=structure(offsets=(9,))),
    "before its start": array(spec=structure(offsets=(-8,))),
    "negative size": array(spec=structure(size=-8)),
    "twice": array(spec=structure(names=("a", "a"), formats=("<f8",) * 2)),
    "a name that is none": array(spec=structure(names=(1,))),
    "a title that is none": array(spec=structure(titles=(1,))),
    "unequal": array(spec=structure(offsets=())),
    "deep": array(spec=deep(20)),
    "large shape": array(spec=("<f8", (2**40,))),
    "no shape": array(spec=("<f8", [1])),
    "code": array(spec="__import__('os').system('true')"),
    "metadata": array(spec=("<f8", {"a": 1})),
    "neither true nor false": array(b"\x02\x00", "|b1"),
    "false field": array(b"\x02", structure(formats=("|b1",), size=1), (1,)),
    "scalar": Call("numpy_scalar", "<f8", b""),
    "object scalar": Call("numpy_scalar", "|O", bytes(8)),
    "scalar of what": Call("numpy_scalar", "<f8", [1]),
    "dtype": Call("numpy_dtype", ("|O", (2,))),
    "type": Call("numpy_type", "ndarray"),
    "type of what": Call("numpy_type", "load"),
    "no such part": array(spec=(*structure(), "recarray")),
    "a part that is no text": array(spec=(*structure(), 1)),
    "record of objects": array(spec=(*structure(formats=("|O",)), "record")),
    "records of too few bytes": Call(
        "numpy_records", FLOATS, (*structure(), "record"), (3,), False
    ),
    "records of objects": Call("numpy_records", FLOATS, "|O", (2,), False),
    "no such letter": array(b"\xff" * 16, "<U4", (1,)),
}


@pytest.mark.parametrize("value", FALSE_ARRAYS.values(), ids=FALSE_ARRAYS)
def test_a_false_array_is_refused(value: Call) -> None:
    with pytest.raises(NotPlain):
        load_result(hostile(value))


class Owned:
    """Not a dataclass."""


@dataclass
class Ends:
    def __del__(self) -> None:
        RAN.append("__del__")


@dataclass
class Hashes:
    a: int = 1

    def __hash__(self) -> int:
        RAN.append("__hash__")
        return 1


@dataclass(frozen=True)
class Equals:
    a: int = 1

    def __eq__(self, _: object) -> bool:
        RAN.append("__eq__")
        return True


class Quits(SystemExit):
    pass


INSTALLED = ModuleType("installed")
INSTALLED.__file__ = "/usr/lib/python3/site-packages/installed.py"
FOREIGN = make_dataclass("Foreign", ["a"], namespace={"__module__": "installed"})
INSTALLED.__dict__["Foreign"] = FOREIGN
HERE = __name__

FALSE_CLASSES = {
    "program": ("dataclass", ("subprocess", "Popen", "")),
    "function": ("dataclass", ("os", "system", "")),
    "not imported": ("dataclass", ("antigravity", "x", "")),
    "module attribute": ("dataclass", (HERE, "subprocess.Popen", "")),
    "not a dataclass": ("dataclass", (HERE, "Owned", "")),
    "installed": ("dataclass", ("installed", "Foreign", "")),
    "the library's own": ("dataclass", ("formation_p2p.content.core.messages", "Open", "")),
    "of the standard library": ("dataclass", ("pstats", "FunctionProfile", "")),
    "with an end": ("dataclass", (HERE, "Ends", "")),
    "with a hash": ("dataclass", (HERE, "Hashes", "")),
    "with an equality": ("dataclass", (HERE, "Equals", "")),
    "never sent": ("dataclass", (HERE, "Owned", "0" * 32)),
    "no name": ("dataclass", [HERE, "Plain", ""]),
    "no names": ("dataclass", (1, 2, 3)),
    "quits": ("error", (HERE, "Quits", ""), ()),
    "exits": ("error", ("builtins", "SystemExit", ""), ()),
    "no exception": ("error", ("builtins", "int", ""), ("1",)),
    "wrong arguments": ("error", ("builtins", "UnicodeDecodeError", ""), (1,)),
    "other fields": ("namedtuple", (Point.__module__, "Point", ""), ("x",), (1,)),
    "too few": ("namedtuple", (Point.__module__, "Point", ""), ("x", "y"), (1,)),
    "no tuple": ("namedtuple", (HERE, "Owned", ""), (), ()),
    "no enum": ("enum", (HERE, "Owned", ""), "mro"),
    "no member": ("enum", ("http", "HTTPStatus", ""), "__class__"),
    "an unknown factory": ("defaultdict", "system"),
    "zone": ("zone", "../../../../etc/passwd"),
    "absolute zone": ("zone", "/dev/zero"),
    "unknown": ("no_such_marker", 1),
    "private": ("fill", "x", (("a",), (1,))),
}


@pytest.mark.parametrize("false", FALSE_CLASSES.values(), ids=FALSE_CLASSES)
def test_a_class_that_is_not_the_callers_own_is_refused(
    false: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "installed", INSTALLED)
    RAN.clear()
    with pytest.raises(NotPlain):
        load_result(hostile({Call(*false)} if "Hash" in str(false) else Call(*false)))
    assert RAN == []


def marker(name: str) -> bytes:
    """The opcodes that look it up."""
    names = (MARKERS.encode(), name.encode())
    return b"".join(b"\x8c" + bytes([len(each)]) + each for each in names) + b"\x93"


def text(value: str) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value.encode()


MADE = marker("dataclass") + b"".join(map(text, PLAIN)) + b"\x87\x85R"
DTYPE = marker("numpy_dtype") + text("<f8") + b"\x85R"
PROGRAMS = {
    "calls an instance": MADE + b")R.",
    "calls one of the memo": MADE + b"\x940h\x00)R.",
    "appends to one": MADE + b"K\x01a.",
    "extends one": MADE + b"(K\x01e.",
    "sets an item": MADE + b"K\x01K\x02s.",
    "sets items": MADE + b"(K\x01K\x02u.",
    "adds to one": MADE + b"(K\x01\x90.",
    "sets a state": MADE + b"}b.",
    "sets a state of a dtype": DTYPE + b"(K\x03" + text("|") + b"NNNJ\xff\xff\xff\xffK\x3ftb.",
    "makes one of a dtype": DTYPE + b")\x81.",
    "calls a result": marker("uuid") + b"K\x01\x85R)R" + MADE + b".",
    "calls a text": text("x") + b")R" + MADE + b".",
    "looks up what was made": MADE + text("x") + b"\x93.",
    "calls below the mark": MADE + b"()R.",
    "fills twice": MADE + b"\x94" + (marker("fill") + b"h\x00))\x86\x86R0") * 2 + b".",
    "fills a list": marker("fill") + b"]))\x86\x86R.",
    "fills with no text": marker("fill") + MADE + b"K\x01\x85K\x01\x85\x86\x86R.",
    "fills unequally": marker("fill") + MADE + text("a") + b"\x85)\x86\x86R.",
    "underflow": MADE + b"\x87.",
    "no mark": MADE + b"t.",
    "no memo": MADE + b"h\x07.",
    "cut": MADE,
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_only_names_are_called_and_only_containers_get_items(program: bytes) -> None:
    RAN.clear()
    with pytest.raises(NotPlain):
        load_result(b"\x80\x05" + program)
    assert RAN == []


@pytest.mark.parametrize("hidden", [MADE + b"}b.", MADE + b")R.", DTYPE + b")\x81."])
def test_no_frame_hides_opcodes_in_a_text(hidden: bytes) -> None:
    """It ends three bytes into a text: an unpickler of a file passes over these, and reads on three
    bytes after its end."""
    frame = b"X\x0a\x00\x00\x00abc"
    shown = b"defghij" + b"C" + bytes([len(hidden) + 1]) + b"N" + hidden + b"."
    pickled = b"\x80\x05\x95" + len(frame).to_bytes(8, "little") + frame + shown
    assert load_result(pickled) == pickle.loads(pickled)


def test_attributes_are_where_no_code_of_a_class_sees_them() -> None:
    class Watched:
        @property
        def secret(self) -> int:
            return 1

        @secret.setter
        def secret(self, _: int) -> None:
            RAN.append("setter")

        def __setattr__(self, *_: object) -> None:
            RAN.append("__setattr__")

    RAN.clear()
    Plain.watched = property(lambda _: 1, lambda *_: RAN.append("setter"))  # type: ignore[attr-defined]
    filled = marker("fill") + MADE + b"\x94"
    for name in ("watched", "__class__", "__dict__"):
        state = text(name) + b"\x85K\x05\x85\x86\x86R."
        load_result(b"\x80\x05" + filled + state)
    del Plain.watched  # type: ignore[attr-defined]
    assert RAN == []


def arrow(kind: object, *parts: object) -> Call:
    return Call("arrow_array", kind, [parts])


INT = ("int64",)
TEXT = ("string",)
FALSE_ARROW = {
    "too long": arrow(INT, 100, (None, bytes(8)), ()),
    "negative": arrow(INT, -1, (None, bytes(8)), ()),
    "beyond": arrow(INT, 2**62, (None, bytes(8)), ()),
    "without bytes": arrow(INT, 2**40, (None, None), ()),
    "without any": arrow(INT, 1, (), ()),
    "endless nulls": arrow(("null",), 2**60, (None,), ()),
    "endless structs": arrow(("struct",), 2**60, (None,), ()),
    "endless lists": arrow(
        ("fixed_size_list", ("x", INT, True), 0), 2**60, (None,), ((0, (None, b""), ()),)
    ),
    "short bitmap": arrow(INT, 64, (b"\x01", bytes(512)), ()),
    "offsets beyond": arrow(TEXT, 1, (None, b"\0\0\0\0\xff\xff\xff\x7f", b"abc"), ()),
    "offsets back": arrow(TEXT, 2, (None, b"\3\0\0\0\1\0\0\0\2\0\0\0", b"abc"), ()),
    "no text": arrow(TEXT, 1, (None, b"\0\0\0\0\2\0\0\0", b"\xff\xfe"), ()),
    "list beyond": arrow(
        ("list", ("x", INT, True)), 1, (None, b"\0\0\0\0\x09\0\0\0"), ((1, (None, bytes(8)), ()),)
    ),
    "struct of short": arrow(
        ("struct", ("x", INT, True)), 2, (None,), ((1, (None, bytes(8)), ()),)
    ),
    "no child": arrow(("list", ("x", INT, True)), 1, (None, bytes(8)), ()),
    "index beyond": arrow(
        ("dictionary", INT, INT, False),
        1,
        (),
        ((1, (None, b"\x09" + bytes(7)), ()), (1, (None, bytes(8)), ())),
    ),
    "extension": arrow(("extension",), 0, (None, b""), ()),
    "builtin": arrow(("foreign_buffer",), 0, (None, b""), ()),
    "deep": arrow(
        __import__("functools").reduce(lambda t, _: ("list", ("x", t, True)), range(40), INT),
        0,
        (None, b""),
        (),
    ),
    "digits": arrow(("decimal128", 2, 0), 1, (None, b"\xff" * 8 + b"\x7f" * 8), ()),
    "precision": arrow(("decimal128", 2**40, 0), 1, (None, bytes(16)), ()),
    "zone": arrow(("timestamp", "s", "dateutil//etc/passwd\0"), 0, (None, b""), ()),
    "unlike columns": Call(
        "arrow_table",
        ("a", "b"),
        (True, True),
        [(INT, [(1, (None, bytes(8)), ())]), (INT, [(2, (None, bytes(16)), ())])],
        {},
        False,
    ),
}


@pytest.mark.parametrize("value", FALSE_ARROW.values(), ids=FALSE_ARROW)
def test_a_false_arrow_array_is_refused(value: Call) -> None:
    with pytest.raises(NotPlain):
        load_result(hostile(value))


RANGE = Call("pandas_range", 0, 2**40, 1, None)
SMALL = Call("pandas_range", 0, 2, 1, None)
ONE = Call("pandas_range", 0, 1, 1, None)
NUMBERS = ("numpy", array())
SAME = Call("pandas_index", NUMBERS, None, None)
PLACES = array(b"\x00\x00\x00\x00\x01\x00\x00\x00", "<i4")
PLACES_BACK = array(b"\x01\x00\x00\x00\x00\x00\x00\x00", "<i4")
RECORDS = Call("numpy_records", FLOATS, "<f8", (2,), False)


def wide(levels: int) -> list[object]:
    values: list[object] = ["x"]
    for _ in range(levels):
        values = [values] * 100
    return values


FALSE_TABLES = {
    "long": Call("pandas_frame", [NUMBERS], RANGE, ONE, {}),
    "nothing but long": Call("pandas_frame", [], RANGE, Call("pandas_range", 0, 0, 1, None), {}),
    "unnamed": Call("pandas_frame", [NUMBERS, NUMBERS], SMALL, ONE, {}),
    "no index": Call("pandas_frame", [NUMBERS], [0, 1], ONE, {}),
    "one array": Call("pandas_frame", array(), SMALL, ONE, {}),
    "objects": Call("pandas_series", ("objects", ([1],)), ONE, None, {}),
    "attributes": Call("pandas_series", ("objects", [1]), ONE, None, [("a", 1)]),
    "same labels": Call("pandas_series", NUMBERS, SAME, None, {}, False),
    "sides": Call("pandas_index", ("interval", NUMBERS, ("numpy", array(b"", shape=(0,))), "left")),
    "closed": Call("pandas_interval", 0, 1, "open"),
    "between texts": Call("pandas_interval", "a", "b", "left"),
    "an endless ordinal": Call("pandas_period", 2**80, "M"),
    "sparse": Call(
        "pandas_series", ("sparse", array(), 2**30, PLACES, False, 0.0), SMALL, None, {}
    ),
    "beyond": Call("pandas_index", ("sparse", array(), 1, PLACES, False, 0.0), None, None),
    "backwards": Call("pandas_index", ("sparse", array(), 9, PLACES_BACK, True, 0.0), None, None),
    "too few": Call("pandas_index", ("sparse", array(bytes(8), shape=(1,)), 9, PLACES, True, 0)),
    "filled with": Call("pandas_index", ("sparse", array(), 9, PLACES, True, [0]), None, None),
    "texts": Call("pandas_series", ("text", [1], "python", True), ONE, None, {}),
    "unknown": Call("pandas_series", ("eval", "1"), ONE, None, {}),
    "structured": Call("pandas_series", ("numpy", array(spec=structure())), SMALL, None, {}),
    "categories": Call(
        "pandas_series",
        ("categorical", array(b"\x05", "|i1", (1,)), Call("pandas_index", NUMBERS, None, None), 0),
        ONE,
        None,
        {},
    ),
    "mask": Call("pandas_series", ("masked", array(), array(b"\1", "|b1", (1,))), SMALL, 0, {}),
    "zone": Call("pandas_series", ("zoned", array(spec="<M8[s]"), "dateutil//dev/zero"), SMALL),
    "frequency": Call("pandas_index", ("numpy", array(spec="<M8[s]")), None, "eval()"),
    "codes": Call(
        "pandas_multi_index", [Call("pandas_index", NUMBERS, None, None)], [array(spec="<i8")], [1]
    ),
    "records": Call("pandas_series", ("numpy", RECORDS), SMALL, None, {}),
    "records in Polars": Call("polars_series", "x", ("Float64",), RECORDS, None),
    "series": Call("polars_series", "x", ("Int64",), wide(4), None),
    "nested": Call(
        "polars_series", "x", ("List", ("List", ("List", ("List", ("String",))))), wide(4), None
    ),
    "object": Call("polars_series", "x", ("Object",), [1], None),
    "not a type": Call("polars_series", "x", ("read_ipc",), [1], None),
    "array": Call("polars_series", "x", ("Array", ("Int8",), 2**60), [[1]], None),
    "width": Call("polars_series", "x", ("Int8",), array(b"\xff" * 16), None),
    "validity": Call("polars_series", "x", ("Float64",), array(), array(b"\1", "|b1", (1,))),
    "shape": Call("polars_series", "x", ("Float64",), array(shape=(2, 1)), None),
    "no moment": Call(
        "polars_series", "x", ("Datetime", "ms", None), array(b"\x7f" * 16, "<i8"), None
    ),
    "no time": Call("polars_series", "x", ("Time",), array(b"\xff" * 16, "<i8"), None),
    "polars zone": Call("polars_series", "x", ("Datetime", "us", "../x"), array(spec="<i8"), None),
    "heights": Call(
        "polars_frame",
        [
            ("a", ("Float64",), array(), None),
            ("b", ("Float64",), array(bytes(8), shape=(1,)), None),
        ],
    ),
}


@pytest.mark.parametrize("value", FALSE_TABLES.values(), ids=FALSE_TABLES)
def test_a_false_table_is_refused(value: Call) -> None:
    with pytest.raises(NotPlain):
        load_result(hostile([value, "R" * 10]))


SAMPLES = [
    *map(
        dumps,
        [*ARRAYS.values(), *ARRAYS_OF_RECORDS.values(), SCALARS, OWN, ERRORS, Plain(1, Key("a"))],
    ),
    *map(dumps, [*PANDAS.values(), POLARS, ARROW]),
    *map(dumps, [STANDARD, Folder(Path())]),
]


@settings(max_examples=300)
@given(st.data())
def test_any_mutation_is_read_or_refused_and_runs_nothing(data: st.DataObject) -> None:
    pickled = data.draw(st.sampled_from(SAMPLES))
    at = data.draw(st.integers(0, len(pickled) - 1))
    junk = data.draw(
        st.binary(min_size=1, max_size=4) | st.sampled_from([b"R", b"b", b"\x81", b"a"])
    )
    cut = data.draw(st.integers(0, 6))
    RAN.clear()
    with suppress(NotPlain):
        load_result(pickled[:at] + junk + pickled[at + cut :])
    assert RAN == []


BIG = b"\x96" + (4 * MIB).to_bytes(8, "little") + bytes(4 * MIB) + b"\x94"
TEXTS = b"](" + text("x") + b"\x94" + b"h\x00" * 200_000 + b"e\x94"
COLUMN = b"(h\x00" + text("<i8") + b"J\x00\x00\x08\x00\x85\x89tR\x94"


def again(*opcodes: bytes) -> bytes:
    return b"]" + b"".join((b"(", *opcodes, b"Re")) * 400


BOMBS = {
    "one array": BIG
    + (marker("polars_series") + b"\x94" + marker("numpy_array") + COLUMN)
    + again(b"h\x01(" + text("x") + text("Int64") + b"\x85h\x02Nt"),
    "one list": TEXTS
    + (marker("pandas_index") + b"\x94")
    + again(b"h\x02" + text("objects") + b"h\x01\x86NN\x87"),
    "one text": BIG.replace(b"\x96", b"\x8e", 1)
    + (marker("numpy_scalar") + b"\x94")
    + again(b"h\x01" + text(f"|S{4 * MIB}") + b"h\x00\x86"),
}


def test_one_column_named_again_and_again_does_not_take_the_callers_memory() -> None:
    pickles = [b"\x80\x05" + bomb + b"." for bomb in BOMBS.values()]
    read = read_apart(pickles, "numpy", "pandas", "polars", "pyarrow")
    for name, (refusal, grown_bytes) in zip(BOMBS, read, strict=True):
        assert "far more memory than" in refusal, name
        assert grown_bytes < 300 * MIB, name


def test_what_lies_beside_the_pickle_is_counted_once() -> None:
    memory = bytearray(200 * MIB)
    pickled = dumps(np.frombuffer(memory, np.uint8), lambda _: None)
    assert load_result(pickled, buffers=[memoryview(memory)]).nbytes == len(memory)


def test_a_pickle_does_not_take_more_buffers_than_there_are() -> None:
    with pytest.raises(NotPlain):
        load_result(b"\x80\x05\x97\x97\x86.", buffers=[b"x"])
    assert load_result(b"\x80\x05\x97\x98.", buffers=[b"x"]) == b"x"


def test_arrow_and_pickle_know_nothing_of_the_markers_alone() -> None:
    with pytest.raises(TypeError, match="value_of"):
        pickle.loads(dumps(np.float64(1)))
    assert pa.__version__
