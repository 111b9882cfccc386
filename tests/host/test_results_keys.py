"""Results whose keys would take a caller years to hash, or more stack than it has."""

import pickle
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import pytest

from formation_p2p.core.errors import NotPlain
from formation_p2p.drivers.result_pickler import BUILTINS, MARKERS
from formation_p2p.results.budget import ALLOWANCE_INSERTING_S, Budget
from formation_p2p.results.inserting import InsertingUnpickler, of_items
from formation_p2p.results.load import load_result
from tests.support.results_world import read_apart, travelled


def named(module: str, name: str) -> bytes:
    """The opcodes that look up a name."""
    texts = (module.encode(), name.encode())
    return b"".join(b"\x8c" + bytes([len(each)]) + each for each in texts) + b"\x93"


def get(place: int) -> bytes:
    return b"h" + bytes([place])


# Each pair is of the one before, twice.
DOUBLED = b")\x94" + b"".join(get(n) * 2 + b"\x86\x94" for n in range(60))
DOUBLED_SETS = b"(\x91\x94" + b"".join(b"(" + get(n) * 2 + b"\x91\x94" for n in range(60))
DEEP = b"N" + b"\x85" * 60_000  # of which 12 MB of a stack would be needed
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


def test_keys_of_keys_neither_stop_nor_crash_the_caller() -> None:
    pickles = [b"\x80\x05" + put(key) + b"." for put in PUT.values() for key in KEYS.values()]
    read = read_apart(pickles)
    assert len(read) == len(pickles)
    assert all(refusal for refusal, _ in read)


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass(frozen=True)
class Both:
    left: Any
    right: Any


@pytest.mark.parametrize("kind", [Pair, Both])
def test_instances_of_the_callers_own_are_weighed_too(
    kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the `hash` that they have of their attributes."""
    monkeypatch.delitem(BUILTINS, frozenset)  # to have it called by its name
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


# Python hashes whole numbers by what is left of a division by this.
MODULUS = 2**61 - 1
SAME_HASH = [b"\x8a\x0a" + (n * MODULUS).to_bytes(10, "little") for n in range(1, 30_001)]
FEWER = SAME_HASH[:8_000]
PAIRS = b"".join(number + b"N" for number in FEWER)
COLLIDING: dict[str, bytes] = {
    "items": b"}(" + PAIRS + b"u",
    "one by one": b"}" + b"".join(number + b"Ns" for number in FEWER),
    "in order": named("collections", "OrderedDict") + b")R(" + PAIRS + b"u",
    "a few at a time": b"}\x94"
    + b"".join(
        b"(" + b"N".join(FEWER[at : at + 8]) + b"Nu0h\x00" for at in range(0, len(FEWER), 8)
    ),
    "set": b"\x8f(" + b"".join(FEWER) + b"\x90",
    "frozenset": b"(" + b"".join(FEWER) + b"\x91",
    "tuples": b"}(" + b"".join(number + b"\x85N" for number in FEWER) + b"u",
}
OF_LISTS: dict[str, bytes] = {
    "counter": named("collections", "Counter") + b"](K\x01e\x85R",
    "ordered": named("collections", "OrderedDict") + b"](K\x01K\x02\x86e\x85R",
}


class Hasty(Budget):
    """Allows a twentieth of the time that all of these take."""

    def __init__(self) -> None:
        super().__init__(0)
        self._took_s = 0.0

    def inserted(self, took_s: float) -> None:
        self._took_s += took_s
        if self._took_s > 0.05:
            super().inserted(ALLOWANCE_INSERTING_S + 1)


@pytest.mark.parametrize("name", COLLIDING)
def test_keys_that_collide_are_refused(name: str) -> None:
    with pytest.raises(NotPlain, match="very long to tell apart"):
        InsertingUnpickler(b"\x80\x05" + COLLIDING[name] + b".", Hasty()).load()


@pytest.mark.parametrize("taking", [b"\x85", b"N\x86", b"NN\x87", b"e", b"t", b"(t\x86u"])
def test_a_small_dict_takes_nothing_from_below_its_mark(taking: bytes) -> None:
    """So that what is added then is not added to the large one."""
    with pytest.raises(NotPlain):
        load_result(b"\x80\x05}(" + PAIRS[: len(PAIRS) // 8] + b"u(N}(" + taking + b"NNuu.")


def test_a_set_of_a_list_is_refused_too() -> None:
    with pytest.raises(NotPlain, match="very long to tell apart"):
        of_items([n * MODULUS for n in range(8_000)], Hasty())


def test_keys_that_collide_do_not_stop_the_caller_for_long() -> None:
    pickled = b"\x80\x05}(" + b"N".join(SAME_HASH) + b"Nu."
    budget = Budget(len(pickled))
    budget.inserted(ALLOWANCE_INSERTING_S - 0.2)  # of the time of the processor 0.2 s are left
    with pytest.raises(NotPlain, match="very long to tell apart"):
        load_result(pickled, budget=budget)


@pytest.mark.parametrize("name", OF_LISTS)
def test_what_no_pickle_makes_of_a_list_is_refused(name: str) -> None:
    with pytest.raises(NotPlain, match="far more memory or time"):
        load_result(b"\x80\x05" + OF_LISTS[name] + b".")


@pytest.mark.parametrize("protocol", [4, 5])
def test_long_results_of_all_containers_come_back_as_they_are(protocol: int) -> None:
    numbers = dict.fromkeys(range(5_000), "text")
    shared = [numbers, set(numbers), frozenset(numbers), {"itself": []}, {1: {2: {3: {}}}}]
    value = [
        *shared,
        shared,
        Counter({n: n for n in range(3_000)}),
        OrderedDict((n, -n) for n in range(3_000)),
        defaultdict(list, {n: [n] for n in range(3_000)}),
        {"u": b"u" * 70_000, "s": "\x95" * 300, 117: 115, 0x90: 0x91},
        [{"u": n, "s": str(n)} for n in range(3_000)],
    ]
    value.append({frozenset(("a", n)): value[0] for n in range(100)})
    back = travelled(value)
    assert back == value
    assert back[0] is back[5][0]
    assert list(back[7]) == list(value[7])
    assert [type(each) for each in back] == [type(each) for each in value]
    plain = pickle.dumps([numbers, set(numbers), {1: 2}], protocol)
    assert load_result(plain) == [numbers, set(numbers), {1: 2}]


def test_a_dict_in_itself_comes_back() -> None:
    value: dict[Any, Any] = dict.fromkeys(range(5_000))
    value["self"] = value
    back = travelled(value)
    assert back["self"] is back


def test_only_containers_get_items() -> None:
    long = b"C\xff" + bytes(255)
    with pytest.raises(NotPlain, match="not a container"):
        load_result(b"\x80\x05(" + long * 40 + b"1](K\x00K\x01u.")
