"""Flags that are set together come back as those of their class, and its code does not run."""

from __future__ import annotations

import enum
import re
import sys
from typing import Any

import pytest

from formation_p2p.core.errors import NotPlain
from formation_p2p.results import objects
from formation_p2p.results.load import load_result
from tests.support.results_world import Call, hostile, sent, travelled

HERE = __name__
RAN: list[object] = []


class Perm(enum.Flag):
    X = 4  # not in the order of their values
    R = 1
    W = 2
    RW = R | W


class Access(enum.IntFlag):
    READ = 1
    WRITE = 2


class Wide(enum.Flag):
    ALL = 7  # a part of which has no name
    ONE = 1


TOGETHER = [
    Perm.R | Perm.W,
    Perm.R | Perm.X,
    Perm(0),
    ~Perm.W,
    Access.READ | Access.WRITE,
    Access(0),
    re.IGNORECASE | re.MULTILINE,
]


@pytest.mark.parametrize("value", TOGETHER, ids=repr)
@pytest.mark.parametrize("trust", [False, True])
def test_flags_come_back(value: enum.Flag, trust: bool) -> None:
    read = travelled([value, {value: 1}], trust=trust)
    assert read[0] is value
    assert read[1] == {value: 1}


def test_flags_that_this_program_has_never_had_come_back() -> None:
    Never = enum.Flag("Never", {"C": 4, "A": 1, "B": 2}, module=HERE)
    sys.modules[HERE].__dict__["Never"] = Never
    read = load_result(hostile(Call("flags", (HERE, "Never", ""), 5)))
    assert type(read) is Never
    assert read is Never["A"] | Never["C"]
    assert (read.name, read.value) == ("C|A", 5)


def test_flags_of_a_class_without_a_name_come_back() -> None:
    class Local(enum.Flag):
        A = 1
        B = 2

    sent(Local)
    value = Local.A | Local.B
    assert travelled(value) is value


class Lenient(enum.Flag):
    A = 1
    B = 2

    @classmethod
    def _missing_(cls, value: object) -> Any:
        RAN.append(value)
        return cls.A


class Sets(enum.Flag):
    A = 1
    B = 2

    def __setattr__(self, name: str, value: object) -> None:
        RAN.append(name)
        super().__setattr__(name, value)


class Gets(enum.Flag):
    A = 1
    B = 2

    def __getattr__(self, name: str) -> object:
        RAN.append(name)
        raise AttributeError(name)


class Iterates(enum.Flag):
    A = 1
    B = 2

    @classmethod
    def _iter_member_(cls, value: int) -> Any:
        RAN.append(value)
        return iter(())


class Meta(enum.EnumMeta):
    pass


class Metered(enum.Flag, metaclass=Meta):
    A = 1
    B = 2


class Named(enum.Enum):
    A = 1


class Number(int):
    def __new__(cls, *_: object) -> Number:
        RAN.append("__new__")
        return super().__new__(cls, 1)


class Numbers(Number, enum.Flag):  # type: ignore[misc]  # as both define the same operators
    A = 1
    B = 2


FALSE = {
    "no flags": ("Named", 1),
    "no enum": ("Number", 1),
    "no class": ("RAN", 1),
    "no bit": ("Perm", 8),
    "a bit of none": ("Access", 1 << 100_000),
    "a part without a name": ("Wide", 2),
    "negative": ("Perm", -3),
    "a truth value": ("Perm", True),
    "a text": ("Perm", "3"),
    "a list": ("Perm", [3]),
    "its own _missing_": ("Lenient", 3),
    "its own __setattr__": ("Sets", 3),
    "its own __getattr__": ("Gets", 3),
    "its own iteration": ("Iterates", 3),
    "its own metaclass": ("Metered", 3),
    "its own numbers": ("Numbers", 3),
}


@pytest.mark.parametrize("false", FALSE.values(), ids=FALSE)
def test_flags_that_are_none_are_refused_and_run_nothing(false: tuple[str, object]) -> None:
    name, value = false
    RAN.clear()
    with pytest.raises(NotPlain):
        load_result(hostile(Call("flags", (HERE, name, ""), value)))
    assert RAN == []


def test_a_worker_does_not_fill_a_class_with_flags() -> None:
    members = [(f"F{bit}", 1 << bit) for bit in range(15)]
    many = enum.Flag("Many", members, module=HERE)  # type: ignore[misc]  # they are no literal
    sys.modules[HERE].__dict__["Many"] = many
    known = many.__dict__["_value2member_map_"]
    for value in range(objects.MAX_FLAG_VALUES):
        many(value)
        if len(known) == objects.MAX_FLAG_VALUES - 1:
            break
    left = [value for value in range(1 << 15) if value not in known][:2]
    assert load_result(hostile(Call("flags", (HERE, "Many", ""), left[0]))) is many(left[0])
    with pytest.raises(NotPlain, match="combinations"):
        load_result(hostile(Call("flags", (HERE, "Many", ""), left[1])))
    assert len(known) == objects.MAX_FLAG_VALUES
