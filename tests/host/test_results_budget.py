"""Each value of a result is charged what it takes: rows of a database come back, bombs do not."""

import array
import collections
import datetime
import decimal
import enum
import fractions
import ipaddress
import pathlib
import re
import time
import tracemalloc
import types
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd
import pytest

from formation_p2p.core.errors import NotPlain
from formation_p2p.core.units import MIB
from formation_p2p.drivers.result_pickler import dumps
from formation_p2p.results.budget import (
    ALLOWANCE_BYTES,
    BYTES_PER_BYTE,
    LEAST_BYTES,
    Budget,
)
from formation_p2p.results.load import load_result


def moment(seconds: int) -> datetime.datetime:
    return datetime.datetime(2026, 1, 1) + datetime.timedelta(seconds=seconds)


def row(number: int) -> tuple[int, str, decimal.Decimal, datetime.datetime]:
    return number, f"name {number}", decimal.Decimal(number) / 100, moment(number)


class Color(enum.Enum):
    RED = 1


class Point(NamedTuple):
    x: int
    y: int


@dataclass
class Plain:
    number: int
    text: str


class Ordinary:
    def __init__(self, number: int) -> None:
        self.number = number


class Rows(list[int]):
    """Of a built-in class."""


KINDS: dict[str, Callable[[int], object]] = {
    "int": int,
    "float": lambda i: i + 0.5,
    "text": str,
    "list": lambda _: [],
    "list of one": lambda i: [i],
    "tuple": lambda i: (i, i),
    "dict": lambda _: {},
    "dict of one": lambda i: {"a": i},
    "dict of six": lambda i: dict.fromkeys(range(i, i + 6)),
    "set": lambda _: set(),
    "set of one": lambda i: {i},
    "frozenset": lambda i: frozenset([i]),
    "bytearray": lambda _: bytearray(b"x"),
    "complex": lambda i: complex(i, 1),
    "range": range,
    "slice": lambda i: slice(i, 1),
    "Counter": lambda i: collections.Counter(a=i),
    "OrderedDict": lambda _: collections.OrderedDict(),
    "defaultdict": lambda _: collections.defaultdict(list),
    "deque": lambda _: collections.deque(),
    "deque of one": lambda i: collections.deque([i]),
    "date": lambda i: datetime.date.fromordinal(700_000 + i),
    "datetime": moment,
    "datetime of a zone": lambda i: moment(i).replace(tzinfo=datetime.UTC),
    "time": lambda i: datetime.time(i % 24, i % 60),
    "timedelta": datetime.timedelta,
    "timezone": lambda i: datetime.timezone(datetime.timedelta(seconds=i)),
    "Decimal": lambda i: decimal.Decimal(i) / 100,
    "Fraction": lambda i: fractions.Fraction(i, 7),
    "path": lambda i: pathlib.PurePosixPath(f"/a/b/{i}"),
    "UUID": lambda i: uuid.UUID(int=i),
    "row": row,
    "row by column": lambda i: {"id": i, "at": moment(i), "price": row(i)[2]},
    "enum": lambda _: Color.RED,
    "namedtuple": lambda i: Point(i, i),
    "dataclass": lambda i: Plain(i, "x"),
    "instance": Ordinary,
    "subclass": lambda i: Rows([i]),
    "namespace": lambda i: types.SimpleNamespace(a=i),
    "address": ipaddress.IPv4Address,
    "network": lambda i: ipaddress.IPv6Network((i, 128)),
    "array of the machine": lambda i: array.array("d", [i]),
    "pattern": lambda i: re.compile(f"a{i}"),
    "structure": lambda i: time.gmtime(i),
    "chain": lambda i: collections.ChainMap({"a": i}),
    "alias": lambda _: list[int],
    "error": ValueError,
    "numpy": lambda i: np.float64(i + 0.5),
    "array": lambda i: np.array([i]),
    "Timestamp": lambda i: pd.Timestamp(1_700_000_000 + i, unit="s"),
}
# The bounds, smaller by so much.
SCALE = 400


def held(pickled: bytes) -> int:
    """What reading it leaves in memory."""
    tracemalloc.start()
    try:
        read = load_result(pickled, trust=True)
        return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
        del read


def pickled_to(name: str, bytes_: int) -> bytes:
    """A list of them that takes so much memory."""
    few = range(1000, 1500)  # Python has smaller numbers already
    each = held(dumps([KINDS[name](i) for i in few])) / len(few)
    return dumps([KINDS[name](i) for i in range(1000, 1000 + int(bytes_ / each))])


@pytest.mark.parametrize("name", KINDS)
def test_whatever_takes_a_hundred_mib_comes_back(name: str) -> None:
    pickled = pickled_to(name, 100 * MIB // SCALE)
    allowed = ALLOWANCE_BYTES // SCALE + BYTES_PER_BYTE * len(pickled)
    budget = Budget(len(pickled), most=max(LEAST_BYTES // SCALE, allowed))
    assert len(load_result(pickled, budget=budget)) == len(load_result(pickled, trust=True))


@pytest.mark.parametrize("name", sorted(set(KINDS) - {"enum"}))  # of which there is one
def test_whatever_takes_more_than_is_allowed_is_refused(name: str) -> None:
    most = MIB // 4
    pickled = pickled_to(name, 2 * most)
    load_result(dumps(KINDS[name](1)))  # which imports what it needs
    tracemalloc.start()
    with pytest.raises(NotPlain, match="far more memory than 256KiB"):
        load_result(pickled, budget=Budget(len(pickled), most=most))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # What looks at the opcodes has them all before it.
    assert peak < 2 * most + 16 * len(pickled)
