"""Results are read as data; a pickle that would run something is refused."""

import datetime
import decimal
import fractions
import os
import pickle
import sys
import uuid
from collections import Counter, OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.errors import NotPlain
from formation_p2p.core.units import MIB
from formation_p2p.drivers.result_pickler import MARKERS, dumps
from formation_p2p.results.load import MAX_INT_BITS, load_result
from tests.support.results_world import read_apart

PLAIN = [
    None,
    (1, 2.5, "text", b"bytes", True, 1j),
    {"a": [1, {2, 3}], "b": frozenset({4})},
    bytearray(b"x"),
    range(3),
    OrderedDict(a=1),
    Counter("aab"),
    deque([1, 2]),
    datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC),
    decimal.Decimal("0.1"),
    uuid.UUID(int=7),
    PurePosixPath("a/b"),
]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
@pytest.mark.parametrize("trust", [False, True])
def test_plain_data_comes_back_as_it_was(value: object, trust: bool) -> None:
    assert load_result(dumps(value), trust=trust) == value


class Evil:
    """What a hostile worker would send."""

    def __reduce__(self) -> tuple[Any, ...]:
        return (os.system, ("exit 1",))


class EvilBuiltin:
    def __reduce__(self) -> tuple[Any, ...]:
        return (eval, ("1 + 1",))


class Leaves:
    def __reduce__(self) -> tuple[Any, ...]:
        return (SystemExit, (3,))


@dataclass
class OfTheCaller:
    value: int


@pytest.mark.parametrize(
    "value", [Evil(), EvilBuiltin(), Leaves(), OfTheCaller(1), getattr, [os.system]]
)
def test_whatever_could_run_code_is_refused_by_name(value: object) -> None:
    with pytest.raises(NotPlain, match="trust_results=True"):
        load_result(pickle.dumps(value), trust=False)


def test_a_caller_that_trusts_its_workers_gets_its_own_classes() -> None:
    assert load_result(pickle.dumps(OfTheCaller(1)), trust=True) == OfTheCaller(1)


@pytest.mark.parametrize(
    "value", [None, True, False, 0, 255, 256, 65_535, 65_536, -1, 2**31 - 1, 0.5]
)
def test_small_values_are_read_whoever_sends_them(value: object) -> None:
    for protocol in (4, 5):
        loaded = load_result(pickle.dumps(value, protocol))
        assert (type(loaded), loaded) == (type(value), value)


def test_a_small_value_in_a_wrong_frame_is_not_plain() -> None:
    with pytest.raises(NotPlain):
        load_result(b"\x80\x05\x95\xff\0\0\0\0\0\0\0N.")


def test_a_pickle_that_cannot_be_read_is_not_plain() -> None:
    with pytest.raises(NotPlain, match="could not be read: UnpicklingError"):
        load_result(b"\x80\x05e.", trust=False)


@given(st.binary(max_size=200))
def test_any_bytes_load_or_are_not_plain(raw: bytes) -> None:
    with suppress(NotPlain):
        load_result(raw, trust=False)


@given(st.binary(max_size=60), st.integers(0, 200))
def test_a_mutated_pickle_loads_or_is_not_plain(junk: bytes, at: int) -> None:
    good = dumps(PLAIN)
    with suppress(NotPlain):
        load_result(good[:at] + junk + good[at + len(junk) :], trust=False)


HUGE = 1 << MAX_INT_BITS


class Asks:
    """What a hostile worker would send to have its caller run out of memory, or of time."""

    def __init__(self, kind: type, *arguments: object) -> None:
        self._asked = (kind, arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._asked


@pytest.mark.parametrize(
    "bomb",
    [
        Asks(bytearray, 10**6),
        Asks(set, range(10**6)),
        Asks(frozenset, range(10**6)),
        Asks(deque, range(10**6)),
        Asks(Counter, range(10**6)),
        Asks(OrderedDict, range(10**6)),
        Asks(fractions.Fraction, "1e1000"),
        Asks(fractions.Fraction, decimal.Decimal("1e1000")),
        Asks(fractions.Fraction, HUGE, 3),
        Asks(decimal.Decimal, HUGE),
        Asks(range, 0, HUGE, 3),
    ],
)
def test_a_few_bytes_do_not_ask_for_a_large_value(bomb: Asks) -> None:
    with pytest.raises(NotPlain, match="far more memory or time"):
        load_result(pickle.dumps(bomb), trust=False)


BIG = b"B" + (4 * MIB).to_bytes(4, "little") + bytes(4 * MIB) + b"\x94"
LIST = b"](" + b"N" * 400_000 + b"e\x94"
NAMES = b"(" + b"".join(b"\x8c\x04" + b"%04d" % i for i in range(2000)) + b"t"
STATE = NAMES + b"(" + b"N" * 2000 + b"t\x86\x94"
VALUE_ERROR = b"\x8c\x08builtins\x8c\x0aValueError\x8c\x00\x87"


def made(module: str, name: str) -> bytes:
    """The opcodes that look up a name."""
    names = (module.encode(), name.encode())
    return b"".join(b"\x8c" + bytes([len(each)]) + each for each in names) + b"\x93\x94"


AGAIN = b"]" + b"(h\x01h\x00\x85Re" * 500
BOMBS = {
    "copies": BIG + made("builtins", "bytearray") + AGAIN,
    "joined": BIG + made("pathlib", "PosixPath") + b"h\x01(" + b"h\x00" * 500 + b"tR",
    "sets": LIST + made("builtins", "set") + AGAIN,
    "attributes": STATE
    + made(MARKERS, "error")
    + VALUE_ERROR
    + b")\x86\x94"
    + made(MARKERS, "fill")
    + b"]"
    + b"(h\x03h\x01h\x02Rh\x00\x86Re" * 2000,
    "empty sets": b"](" + b"\x8f" * 4_000_000 + b"e",
}


def test_one_large_value_named_again_and_again_does_not_take_the_callers_memory() -> None:
    read = read_apart(b"\x80\x05" + bomb + b"." for bomb in BOMBS.values())
    for name, (refusal, grown_bytes) in zip(BOMBS, read, strict=True):
        assert "far more memory than" in refusal, name
        assert grown_bytes < 250 * MIB, name


@pytest.mark.parametrize(
    "make",
    [
        lambda: [{} for _ in range(500_000)],
        lambda: [0x8F8F8F8F] * 1_000_000 + list(range(10**6)),
        lambda: [datetime.date(2026, 1, 1 + i % 28) for i in range(20_000)],
        lambda: [bytearray(b"x" * 100_000) for _ in range(80)],
        lambda: [deque([i]) for i in range(20_000)],
        lambda: {str(i): (i, float(i)) for i in range(200_000)},
    ],
    ids=["empty dicts", "ints", "dates", "arrays", "deques", "table"],
)
def test_much_plain_data_is_within_the_budget(make: Callable[[], object]) -> None:
    value = make()
    assert load_result(pickle.dumps(value, 5), trust=False) == value


@pytest.mark.parametrize(
    "bomb",
    [
        b"\x80\x05]r\xff\xff\xff\x3f.",  # LONG_BINPUT: a table of 16 GiB
        b"\x80\x05]p1073741823\n.",  # PUT
        b"\x80\x05K\x01" + b"2\x86" * 30 + b".",  # DUP: a tree of 2**30 leaves
        b"\x80\x05}(K\x01",
        b"\x80\x05\x8d\xff\xff\xff\xff\xff\xff\xff\xffx.",
    ],
)
def test_opcodes_that_plain_data_does_not_need_are_refused_before_they_are_read(
    bomb: bytes,
) -> None:
    with pytest.raises(NotPlain, match="pickle it whole, with protocol 4 or 5"):
        load_result(bomb, trust=False)


LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-(2**3000), 2**3000)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary()
    | st.sampled_from(["r" * 300, b"p" * 70_000, "é" * 70_000, 2**2100, bytearray(b"2" * 300)])
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(lambda items: (items, items, tuple(items)))
        | st.dictionaries(st.text() | st.integers() | st.tuples(st.text(), st.integers()), inner)
        | st.frozensets(st.text() | st.integers()).map(lambda items: [items, set(items)])
    ),
)


@given(VALUES, st.sampled_from([4, 5]))
def test_all_that_is_plain_comes_back(value: object, protocol: int) -> None:
    assert load_result(pickle.dumps(value, protocol), trust=False) == value


def test_what_holds_itself_comes_back() -> None:
    ring: list[object] = [1]
    ring.append((ring, ring))
    read = load_result(pickle.dumps(ring, 5), trust=False)
    assert read[1][0] is read[1][1] is read


def test_a_call_that_imports_this_package_can_still_raise() -> None:
    """Then the interpreter has the pickler twice: under the name that it loads it by, and this."""
    from formation_p2p.drivers import python_child, result_pickler

    first = result_pickler.dumps(LookupError("x"))
    again = python_child.load("result_pickler_again", result_pickler.__file__)
    try:
        assert result_pickler.dumps(LookupError("x")) == again.dumps(LookupError("x")) == first
    finally:
        del sys.modules["result_pickler_again"]
