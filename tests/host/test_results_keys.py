"""Results whose keys would take a caller years to hash, or more stack than it has."""

from __future__ import annotations

import pickle
import subprocess
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from formation_p2p.core.errors import NotPlain
from formation_p2p.host.drivers.result_pickler import MARKERS
from formation_p2p.host.results.load import load_result
from tests.support.results_world import travelled


def named(module: str, name: str) -> bytes:
    """The opcodes that look up a name."""
    texts = (module.encode(), name.encode())
    return b"".join(b"\x8c" + bytes([len(each)]) + each for each in texts) + b"\x93"


def get(place: int) -> bytes:
    return b"h" + bytes([place])


# Each pair is of the one before, twice.
DOUBLED = b")\x94" + b"".join(get(n) * 2 + b"\x86\x94" for n in range(60))
DOUBLED_SETS = b"(\x91\x94" + b"".join(b"(" + get(n) * 2 + b"\x91\x94" for n in range(60))
DEEP = b"N" + b"\x85" * 200_000
KEYS = {"doubled": DOUBLED, "deep": DEEP, "sets": DOUBLED_SETS}
CLASS = b"".join(b"\x8c" + bytes([len(x)]) + x for x in (b"enum", b"EnumCheck", b"")) + b"\x87"
PUT: dict[str, Callable[[bytes], bytes]] = {
    "dict": lambda key: b"}" + key + b"Ns",
    "items": lambda key: b"}(NN" + key + b"Nu",
    "set": lambda key: b"\x8f(" + key + b"\x90",
    "frozenset": lambda key: b"(" + key + b"\x91",
    "set of list": lambda key: named("builtins", "set") + b"](" + key + b"e\x85R",
    "counter of list": lambda key: named("collections", "Counter") + b"](" + key + b"e\x85R",
    "ordered": lambda key: named("collections", "OrderedDict") + b")R(" + key + b"Nu",
    "name of a class": lambda key: named(MARKERS, "error") + key + b")\x86R",
    "factory": lambda key: named(MARKERS, "defaultdict") + key + b"\x85R",
    "member": lambda key: named(MARKERS, "enum") + CLASS + key + b"\x86R",
    "name of a column": lambda key: (
        named(MARKERS, "pandas_range") + b"(K\x00K\x01K\x01" + key + b"tR"
    ),
    "kind of a column": lambda key: named(MARKERS, "pandas_index") + key + b"\x85NN\x87R",
    "polars": lambda key: named(MARKERS, "polars_series") + b"(\x8c\x01x" + key + b"\x85]NtR",
    "type of an array": lambda key: named(MARKERS, "arrow_array") + key + b"\x85]\x86R",
}
# A process of its own, which may be ended by a signal.
READ = """
import sys
from formation_p2p.core.errors import NotPlain
from formation_p2p.host.results.load import load_result
pickles = sys.stdin.buffer
while size := int.from_bytes(pickles.read(4), "big"):
    try:
        load_result(pickles.read(size))
    except NotPlain as refusal:
        print("refused")
    else:
        print("read")
"""


def test_keys_of_keys_neither_stop_nor_crash_the_caller() -> None:
    """One process for all: each would stop it for good, or end it."""
    pickles = [b"\x80\x05" + put(key) + b"." for put in PUT.values() for key in KEYS.values()]
    framed = b"".join(len(each).to_bytes(4, "big") + each for each in pickles)
    done = subprocess.run(
        [sys.executable, "-c", READ], input=framed, capture_output=True, timeout=120, check=True
    )
    assert done.stdout.decode().split("\n")[:-1] == ["refused"] * len(pickles)


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True)
class Both:
    left: Any
    right: Any


@pytest.mark.parametrize("kind", [Pair, Both])
def test_instances_of_the_callers_own_are_weighed_too(kind: type) -> None:
    """By the `hash` that they have of their attributes."""
    value = kind(0, 1)
    for _ in range(30):
        value = kind(value, value)
    with pytest.raises(NotPlain, match=r"hold one another|whose hash"):
        travelled([frozenset()] * 2 + [value, Asked(frozenset, [value])])


class Asked:
    """Has the caller call a kind with arguments that nothing here hashes."""

    def __init__(self, kind: type, *arguments: object) -> None:
        self._asked = (kind, arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._asked


NESTED: Any = (1, "two")
for _ in range(90):
    NESTED = (NESTED, 3)

DOUBLED_VALUE: Any = ()
for _ in range(40):
    DOUBLED_VALUE = (DOUBLED_VALUE, DOUBLED_VALUE)

HONEST: dict[str, Any] = {
    "places": {(x, y): x * y for x in range(300) for y in range(300)},
    "states": {tuple(range(n, n + 64)) for n in range(2_000)},
    "sets of sets": {frozenset(range(n, n + 20)) for n in range(2_000)},
    "nested": {NESTED: 1},
    "a large key": {tuple(range(200_000)): 1},
    "the same key": [{NESTED: n} for n in range(3_000)],
    "named": Counter({Pair(n, "x"): n for n in range(1_000)}),
    "frozen": {Both(n, Both("a", ("b",))): n for n in range(1_000)},
    "in order": OrderedDict(((n, (n,)), n) for n in range(1_000)),
    "doubled": [DOUBLED_VALUE],
}


@pytest.mark.parametrize("name", HONEST)
def test_honest_keys_are_read(name: str) -> None:
    value = HONEST[name]
    back = travelled(value)
    if name == "doubled":  # to compare it takes as long as to hash it
        assert pickle.dumps(back) == pickle.dumps(value)
    else:
        assert back == value


@pytest.mark.parametrize("cut", [b"\x94", b"h\x07", b"u", b"R", b"\x87", b"s", b"a\x90"])
def test_what_is_no_pickle_is_refused(cut: bytes) -> None:
    with pytest.raises(NotPlain):
        load_result(b"\x80\x05" + b")\x85" * 20 + b"0" * 20 + cut + b"\x91s.")
