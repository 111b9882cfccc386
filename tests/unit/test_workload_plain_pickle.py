"""Results are read as data; a pickle that would run something is refused."""

from __future__ import annotations

import datetime
import decimal
import fractions
import os
import pickle
import uuid
from collections import Counter, OrderedDict, deque
from contextlib import suppress
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.workload.plain_pickle import MAX_INT_BITS, NotPlain, load_result

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
    assert load_result(pickle.dumps(value, 5), trust=trust) == value


def test_an_exception_of_the_language_comes_back() -> None:
    error = load_result(pickle.dumps(ZeroDivisionError("by zero")), trust=False)
    assert isinstance(error, ZeroDivisionError)
    assert error.args == ("by zero",)


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


@given(st.binary(max_size=200))
def test_any_bytes_load_or_are_not_plain(raw: bytes) -> None:
    with suppress(NotPlain):
        load_result(raw, trust=False)


@given(st.binary(max_size=60), st.integers(0, 200))
def test_a_mutated_pickle_loads_or_is_not_plain(junk: bytes, at: int) -> None:
    good = pickle.dumps(PLAIN, 5)
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
