"""Values of the standard library and instances of ordinary classes come back, and run no code."""

from __future__ import annotations

import abc
import argparse
import array
import builtins
import collections
import ctypes
import datetime
import decimal
import enum
import io
import ipaddress
import json
import os
import pickle
import re
import resource
import subprocess
import threading
import time
import urllib.parse
import zoneinfo
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Generic, TypeVar

import numpy as np
import pandas as pd
import polars
import pyarrow
import pytest
import requests

from formation_p2p.core.errors import NodeClosed, NotPlain
from formation_p2p.drivers import python_error, result_pickler
from formation_p2p.drivers.result_pickler import BUILTINS, MARKERS, dumps
from formation_p2p.results.budget import Unlimited
from formation_p2p.results.load import _MARKED, load_result
from formation_p2p.results.own_classes import imported
from formation_p2p.results.values import Reading
from tests.support.results_world import Call, hostile, sent, travelled, travelled_beside

HERE = Path(__file__)
STANDARD: list[Any] = [
    *(ipaddress.ip_address(each) for each in ("192.0.2.1", "2001:db8::1", "fe80::1%eth0")),
    ipaddress.ip_network("192.0.2.0/24"),
    ipaddress.ip_interface("2001:db8::1/64"),
    *(array.array(code, [1, 2, 3]) for code in "bBhHiIlLqQfd"),
    array.array("u", "héß"),
    array.array("d"),
    SimpleNamespace(a=1, b=[SimpleNamespace()]),
    collections.ChainMap({"a": 1}, {"b": 2}, collections.OrderedDict(c=3)),
    time.localtime(),
    time.struct_time((2026, 1, 2, 3, 4, 5, 6, 7, 0)),
    HERE.stat(),
    os.statvfs("/"),
    os.terminal_size((80, 24)),
    os.uname(),
    os.times(),
    resource.getrusage(resource.RUSAGE_SELF),
    re.compile(r"(?P<a>x+)[a-zé]-\d", re.IGNORECASE | re.VERBOSE),
    re.compile(rb"[\x00-\xff]"),
    Ellipsis,
    NotImplemented,
    *BUILTINS,
    list[int],
    dict[str, list[tuple[int, ...]]],
    complex(1, 2),
    range(1, 9, 2),
    slice(1, None, [2]),
    {int: len, "type": type(None), ValueError: KeyError},
    [decimal.InvalidOperation, json.JSONDecodeError, np.linalg.LinAlgError],
    argparse.Namespace(a=1, b=[2]),
    urllib.parse.urlparse("http://a/b?c"),
]


@pytest.mark.parametrize("value", STANDARD, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("trust", [False, True])
def test_a_value_of_the_standard_library_comes_back(value: Any, trust: bool) -> None:
    for read in (*travelled([value, value], trust=trust), travelled_beside(value)):
        assert (type(read), read, repr(read)) == (type(value), value, repr(value))


def test_what_a_structure_has_besides_its_items_comes_back() -> None:
    found = HERE.stat()
    assert travelled(found).st_mtime_ns == found.st_mtime_ns
    assert travelled(time.localtime()).tm_zone == time.localtime().tm_zone


@pytest.mark.parametrize(
    "value",
    [
        *(eval, exec, compile, open, __import__, getattr, setattr, vars, input, type, iter),
        *(datetime.datetime, collections.Counter, [collections.deque], {1: decimal.Decimal}),
        *(os.system, os.path.join, SystemExit, SimpleNamespace, abc.ABC),
        list[datetime.date],
    ],
    ids=lambda value: getattr(value, "__qualname__", None) or type(value).__name__,
)
def test_what_is_not_harmless_by_its_name_is_refused(value: Any) -> None:
    with pytest.raises(NotPlain, match="a result ") as refused:
        travelled(value)
    assert refused.value.load_trusted() == value


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (iter([1]), "an iterator .* return a list of what it yields"),
        (enumerate("ab"), "an iterator .* return a list of what it yields"),
        ((ctypes.c_int * 2)(1, 2), "a value of ctypes .* return plain data"),
        (np.random.default_rng(1), "a value of numpy .* return plain data"),
    ],
)
def test_what_is_refused_is_named_with_what_to_return(value: Any, said: str) -> None:
    with pytest.raises(NotPlain, match=said):
        travelled(value)


RAN: list[str] = []


class Base(abc.ABC):
    kind = "base"

    @abc.abstractmethod
    def name(self) -> str: ...

    def area(self) -> float:
        RAN.append("area")
        return 0.0


T = TypeVar("T")


class Shape(Base, Generic[T]):
    count: int = 0

    def __new__(cls, *_: object, **__: object) -> Any:
        RAN.append("__new__")
        return super().__new__(cls)

    def __init__(self, width: float, inner: Any = None) -> None:
        RAN.append("__init__")
        self.width = width
        self.inner = inner
        self.hidden = {"a": np.arange(3)}

    def __setattr__(self, name: str, value: object) -> None:
        RAN.append("__setattr__")
        super().__setattr__(name, value)

    def __eq__(self, other: object) -> bool:
        RAN.append("__eq__")
        return isinstance(other, Shape) and self.width == other.width

    __hash__ = None  # type: ignore[assignment]  # as Python has it beside __eq__

    def __repr__(self) -> str:
        RAN.append("__repr__")
        return "shape"

    def name(self) -> str:
        return "shape"

    @property
    def doubled(self) -> float:
        return 2 * self.width


class Slotted:
    __slots__ = ("__private", "a", "b")

    def __init__(self) -> None:
        self.a = 1
        self.__private = 2

    def private(self) -> int:
        return self.__private


class Both(Slotted):
    def __init__(self) -> None:
        super().__init__()
        self.c = self


def test_an_instance_of_an_ordinary_class_comes_back() -> None:
    shape = Shape[int](1.5, inner=[Slotted(), SimpleNamespace(x=1)])
    shape.inner.append(shape)
    RAN.clear()
    read = travelled([shape, shape])
    assert RAN == []
    assert read[0] is read[1] is read[0].inner[2]
    first = read[0]
    assert (type(first), first.width, first.doubled) == (Shape, 1.5, 3.0)
    assert first.hidden["a"].tolist() == [0, 1, 2]
    assert (first.inner[0].a, first.inner[0].private()) == (1, 2)
    assert not hasattr(first.inner[0], "b")
    both = travelled(Both())
    assert (type(both), both.c is both, both.private()) == (Both, True, 2)
    assert travelled(shape, trust=True).width == 1.5


def test_an_instance_is_a_key_by_what_it_is() -> None:
    slotted = Slotted()
    read = travelled({slotted: [slotted]})
    (key,) = read
    assert read[key][0] is key


def test_a_class_that_travelled_by_value_comes_back() -> None:
    class Local:
        def __init__(self, a: int) -> None:
            self.a = a

    with pytest.raises(NotPlain, match="Local"):
        travelled(Local(1))

    class Sent(Local):
        pass

    sent(Local, Sent)
    read = travelled([Sent(2)])
    assert (type(read[0]), read[0].a) == (Sent, 2)


class Flags(enum.IntFlag):
    A = 1
    B = 2


class Deleted:
    def __del__(self) -> None:
        RAN.append("__del__")


class Hashed:
    def __hash__(self) -> int:
        RAN.append("__hash__")
        return 1


class Asking:
    def __getattr__(self, name: str) -> Any:
        RAN.append(name)
        raise AttributeError(name)


class AskedAll:
    def __getattribute__(self, name: str) -> Any:
        return super().__getattribute__(name)


class Stated:
    def __setstate__(self, state: Any) -> None:
        RAN.append("__setstate__")


class OfAsking(Asking):
    pass


class OfStandard(argparse.Namespace):
    pass


class OfDict(dict[str, int]):
    pass


class Rows(list[Any]):
    def __iter__(self) -> Any:
        RAN.append("__iter__")
        return super().__iter__()

    def append(self, value: Any) -> None:
        RAN.append("append")
        super().append(value)

    extend = __iadd__ = append  # type: ignore[assignment]


class Temperature(float):
    def __new__(cls, *_: object) -> Any:
        raise AssertionError


class Named(str):
    __slots__ = ()


class Overridden(int):
    def __getnewargs__(self) -> tuple[int]:
        return (1,)


def test_an_instance_of_a_subclass_of_a_built_in_class_comes_back() -> None:
    rows, config = Rows([1, Rows([2])]), OfDict(a=1)
    rows.source = config  # type: ignore[attr-defined]
    values = [rows, config, float.__new__(Temperature, 1.5), Named("x"), {Named("k"): 1}]
    pickled = dumps(values)
    RAN.clear()
    read = load_result(pickled)
    assert RAN == []
    assert [type(each) for each in read] == [type(each) for each in values]
    assert read == values
    assert (type(read[0][1]), type(read[0].source), read[0].source) == (Rows, OfDict, {"a": 1})
    assert travelled(values, trust=True) == values
    with pytest.raises(NotPlain, match="Overridden"):
        travelled([Overridden(1)])
    for false in ([1], {"a": 1}, Call("builtin", "len")):
        with pytest.raises(NotPlain):
            load_result(hostile(Call("subclass", (__name__, "Named", ""), false)))


@pytest.mark.parametrize("what", ["keys", "values", "items"])
def test_a_view_of_a_dict_comes_back(what: str) -> None:
    view = getattr({"a": 1, (2, 3): [4]}, what)()
    read = travelled(view)
    assert (type(read), list(read)) == (type(view), list(view))


REFUSED = [Deleted, Hashed, Asking, AskedAll, Stated, OfAsking, OfStandard]


@pytest.mark.parametrize("kind", [*REFUSED, Base, argparse.ArgumentParser, SimpleNamespace])
def test_a_class_whose_code_could_run_has_no_instances(kind: type) -> None:
    """Whatever a worker says of it."""
    RAN.clear()
    for marker in ("instance", "dataclass"):
        with pytest.raises(NotPlain):
            load_result(hostile(Call(marker, (kind.__module__, kind.__qualname__, ""))))
    assert RAN == []


@pytest.mark.parametrize("kind", REFUSED)
def test_an_instance_of_such_a_class_is_refused_by_name(kind: type) -> None:
    value = kind()
    with pytest.raises(NotPlain, match=f"{kind.__name__}"):
        travelled([value])
    RAN.clear()


class Trap:
    """An ordinary class with all the code that reading could run."""


@dataclass
class DataTrap(Trap):
    a: int = 1


def traps(name: str) -> Any:
    def trap(*_: object, **__: object) -> Any:
        RAN.append(name)
        raise AssertionError(name)

    return trap


OF_MANY: list[type] = [int, list, dict, str, set, memoryview, type(iter([]))]
SPECIAL = {
    *(name for kind in OF_MANY for name in vars(kind)),
    *("__fspath__", "__array__", "__array_ufunc__", "__array_function__", "__buffer__", "keys"),
    *("__complex__", "__dataframe__", "__arrow_array__", "__arrow_c_array__", "__arrow_c_stream__"),
    *("append", "items", "values", "__bytes__", "__call__", "__await__", "__aiter__", "__enter__"),
    *(
        "__set_name__",
        "tzinfo",
        "utcoffset",
        "dtype",
        "shape",
        "read",
        "to_numpy",
        "__length_hint__",
    ),
    *("__array_struct__", "__array_interface__", "__array_priority__", "__index__", "as_py"),
} - {
    *("__new__", "__init__", "__hash__", "__getattribute__", "__doc__", "__class_getitem__"),
    *("__getnewargs__", "__init_subclass__", "__getstate__", "__setstate__", "__reduce__"),
    *("__reduce_ex__", "__eq__", "__subclasshook__", "__class__", "__del__", "__dir__"),
}
for special in SPECIAL:
    setattr(Trap, special, traps(special))
Trap.__eq__ = traps("__eq__")  # type: ignore[method-assign]
Trap.__hash__ = None  # type: ignore[assignment]
DataTrap.__repr__ = Trap.__repr__  # type: ignore[method-assign]
DataTrap.__eq__ = Trap.__eq__  # type: ignore[method-assign]


def calls_of(value: Any) -> list[tuple[str, list[Any]]]:
    """The calls of markers in the pickle of a value, with what they are called with."""
    found: list[tuple[str, list[Any]]] = []
    reading = Reading(Unlimited(), imported, trust=True)

    class Recording(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if module != MARKERS:
                return super().find_class(module, name)

            def called(*arguments: Any) -> Any:
                if name != "fill":  # of what was made before
                    found.append((name, list(arguments)))
                return _MARKED[name](reading, *arguments)

            return called

    Recording(io.BytesIO(dumps(value))).load()
    return found


def places(value: Any) -> Any:
    """All that may be something else in a list of arguments, as what makes it so."""
    for at, each in enumerate(value):
        yield lambda trap, at=at: type(value)([*value[:at], trap, *value[at + 1 :]])
        if type(each) in (list, tuple) and each:
            for inner in places(each[:3]):
                yield lambda trap, at=at, inner=inner, each=each: type(value)(
                    [*value[:at], type(each)([*inner(trap), *each[3:]]), *value[at + 1 :]]
                )
        elif type(each) is dict and each:
            key = next(iter(each))
            yield lambda trap, at=at, key=key, each=each: type(value)(
                [*value[:at], {**each, key: trap}, *value[at + 1 :]]
            )


def test_no_argument_of_a_marker_is_asked_anything() -> None:
    """A hostile worker may put an instance of the caller's own class wherever it likes."""
    from tests.host.test_results_arrow import ARROW
    from tests.host.test_results_pandas import PANDAS
    from tests.host.test_results_polars import POLARS
    from tests.host.test_results_science import ARRAYS, ERRORS, OWN, SCALARS
    from tests.host.test_results_texts import ARRAYS as TEXTS

    tables = [PANDAS[name] for name in ("mixed", "by two", "by interval", "unique series", "days")]
    masked = np.ma.masked_array([1, 2], [False, True])
    moments = [pd.Period("2026"), pd.Interval(0, 1), pd.NaT, pd.Timestamp(0), pd.Int8Dtype()]
    moments.append(pd.Timedelta(1))
    found = calls_of(
        [
            *(STANDARD, ARRAYS, ERRORS, OWN, SCALARS, [*TEXTS.values()], POLARS, ARROW, tables),
            *(
                moments,
                masked,
                memoryview(b"x"),
                {}.keys(),
                Rows([1]),
                np.ones(2).view(np.recarray),
                Shape(1.0),
                Flags(3),
            ),
            *(ARROW["text"], ARROW["whole"].chunk(0), POLARS["whole"], np.array([None])),
        ]
    )
    assert {name for name, _ in found} == set(_MARKED) - {"fill"}
    tried: set[str] = set()
    for name, arguments in found:
        for place in places(arguments):
            key = f"{name} {place(0)!r}"[:300]
            for trap in () if key in tried else (Trap, DataTrap):
                pickled = dumps(Call(name, *place(object.__new__(trap))))
                RAN.clear()
                with suppress(NotPlain):
                    load_result(pickled)
                assert RAN == [], (name, place("TRAP"))
            tried.add(key)
    assert len(tried) > 300


@pytest.mark.parametrize("at", range(4))
def test_no_state_of_an_instance_is_asked_anything(at: int) -> None:
    made = Call("instance", (__name__, "Shape", ""))
    trap: Any = Call("instance", (__name__, "Trap", ""))
    parts = [[trap, (1,)], [("width",), trap], [(trap,), (1,)], [("width",), (trap,)]][at]
    RAN.clear()
    with suppress(NotPlain):
        load_result(hostile([made, Call("fill", made, tuple(parts)), Call("fill", trap, trap)]))
    assert RAN == []


@pytest.mark.parametrize("kind", ["set", "frozenset", "complex", "range", "slice", "bytearray"])
def test_no_argument_of_a_plain_kind_is_asked_anything(kind: str) -> None:
    made = Call("instance", (__name__, "Trap", ""))

    class Called:
        def __reduce__(self) -> tuple[Any, ...]:
            return getattr(builtins, kind), (made,)

    RAN.clear()
    with suppress(NotPlain):
        load_result(hostile(Called()))
    assert RAN == []


@pytest.mark.parametrize(
    "false",
    [
        Call("builtin", "eval"),
        Call("builtin", ["len"]),
        Call("called", "set", range(3)),
        Call("address", "IPv4Address", "1" * 5000),
        Call("address", "IPv4Address", 1),
        Call("address", "IPv4Network", "192.0.2.1/24"),
        Call("address", "ip_address", "192.0.2.1"),
        Call("machine_array", "d", 8, "little", b"x"),
        Call("machine_array", "d", 4, "little", b""),
        Call("machine_array", "u", 4, "little", b"\xff" * 4),
        Call("machine_array", "d", 8, "little", [1.0]),
        Call("machine_array", "o", 8, "little", b""),
        Call("view", b"abc", "d", (1,)),
        Call("view", b"abc", "B", (2**60,)),
        Call("error_class", ("builtins", "SystemExit", "")),
        Call("error_class", ("formation_p2p.core.errors", "NodeClosed", "")),
        Call("pandas_dtype", ("eval", "1")),
        Call("pattern", "(" * 3000, 0),
        Call("pattern", "a" * 5000, 0),
        Call("pattern", "a", int(re.DEBUG)),
        Call("pattern", "(?i)" + "[\x00-\U0010ffff]" * 100, 0),
        Call("pattern", r"[\x00-\U0010ffff]", int(re.IGNORECASE)),
        Call("pattern", ["a"], 0),
        Call("chain_map", [("a", 1)]),
        Call("structure", "os.stat_result", (1,), {}),
        Call("structure", "os.stat_result", (1,) * 10**6, {}),
        Call("structure", "os.system", ("true",), {}),
        Call("alias", Call("builtin", "len"), ()),
        Call("alias", Call("builtin", "list"), (1,)),
        Call("alias", "list", ()),
    ],
)
def test_a_false_value_is_refused(false: Call) -> None:
    with pytest.raises(NotPlain):
        load_result(hostile(false))


@dataclass
class Called:
    key: Any = traps


def test_a_field_whose_default_is_a_function_comes_back() -> None:
    assert travelled(Called(len)).key is len


def test_no_attribute_takes_the_place_of_a_method() -> None:
    made = Call("instance", (__name__, "Shape", ""))

    def filled(name: str) -> Call:
        return Call("fill", made, ((name,), (1,)))

    load_result(hostile([made, filled("width")]))
    for name in ("area", "__repr__", "__new__"):
        with pytest.raises(NotPlain, match="in the place of its method"):
            load_result(hostile([made, filled(name)]))


class Coded(ExceptionGroup[Exception]):
    def __new__(cls, errors: list[Exception], code: int) -> Any:
        made = super().__new__(cls, "several", errors)
        made.code = code
        return made

    def __init__(self, errors: list[Exception], code: int) -> None:
        self.code: int

    def derive(self, errors: Any) -> Any:
        return Coded(errors, self.code)


def test_a_group_comes_back_whatever_its_constructor_takes() -> None:
    group = Coded([ValueError(1), KeyError("a"), Coded([OSError(2, "x")], 3)], 7)
    for read in (travelled(group), travelled(group, trust=True)):
        assert (type(read), str(read), repr(read)) == (Coded, str(group), repr(group))
        assert (read.code, read.exceptions[2].code) == (7, 3)
        assert repr(read.args) == repr(group.args)
    kept = travelled(group).subgroup(OSError)
    assert (type(kept), kept.code) == (Coded, 7)


def test_of_a_group_with_what_cannot_be_pickled_the_rest_comes_back() -> None:
    lock = threading.Lock()
    group = Coded([ValueError(lock), Coded([OSError(lock)], 3)], 7)
    read = load_result(python_error.dumps(group, result_pickler))
    assert (type(read), read.code) == (Coded, 7)
    assert [type(each) for each in read.exceptions] == [ValueError, Coded]
    assert read.exceptions[0].args == (repr(lock),)


INSTALLED = [
    np.linalg.LinAlgError("singular"),
    pd.errors.ParserError("line 3"),
    pd.errors.OutOfBoundsDatetime("far"),
    polars.exceptions.ColumnNotFoundError("x"),
    pyarrow.ArrowInvalid("no"),
    requests.HTTPError("404", response=None),
    requests.exceptions.JSONDecodeError("bad", "doc", 1),
    zoneinfo.ZoneInfoNotFoundError("Mars"),
]


@pytest.mark.parametrize("error", INSTALLED, ids=lambda each: type(each).__name__)
def test_an_exception_of_an_installed_package_comes_back_as_itself(error: Exception) -> None:
    error.add_note("seen at noon")
    read = travelled(error)
    assert (type(read), str(read), repr(read.args)) == (type(error), str(error), repr(error.args))
    assert read.__notes__ == ["seen at noon"]


def test_an_exception_of_the_network_itself_does_not_come_from_a_worker() -> None:
    with pytest.raises(NotPlain, match="says what befell"):
        travelled(NodeClosed("it is over"))


@pytest.mark.parametrize("array", [np.arange(6, dtype="u1")[::2], np.ones((2, 3))], ids=str)
def test_a_view_of_memory_comes_back(array: Any) -> None:
    view = memoryview(array)
    assert travelled(view) == travelled(view, trust=True) == view


def test_what_a_program_said_comes_back() -> None:
    done = subprocess.run(["true"], check=True, capture_output=True)
    read = travelled(done)
    assert (type(read), read.args, read.stdout) == (type(done), ["true"], b"")


def test_an_error_that_tells_classes_comes_back() -> None:
    with pytest.raises(decimal.InvalidOperation) as raised:
        decimal.Decimal("x")
    read = load_result(python_error.dumps(raised.value, result_pickler))
    assert (type(read), read.args) == (decimal.InvalidOperation, raised.value.args)


@dataclass
class Box(Generic[T]):
    value: T


def test_an_instance_of_a_generic_dataclass_comes_back() -> None:
    assert travelled([Box[int](1), Box("a")]) == [Box(1), Box("a")]


class Folder:
    """Of a program that removes what it has made."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> Folder:
        return self

    def __exit__(self, *_: object) -> None:
        RAN.append(str(self.path))


def test_a_hostile_worker_chooses_what_an_instance_has_and_the_caller_what_is_done_with_it() -> (
    None
):
    """As docs/explanation/security.md says."""
    chosen = Folder(Path("/chosen/by/the/worker"))
    chosen.more = [Folder(Path("/"))]  # type: ignore[attr-defined]
    RAN.clear()
    read = load_result(dumps([chosen]))[0]
    assert RAN == []
    with read:
        pass
    assert RAN == ["/chosen/by/the/worker"]
