"""What cannot be pickled is named as the person who wrote it knows it."""

import threading
from collections.abc import Callable
from functools import partial
from typing import ClassVar

import pytest

from formation_p2p.api.code import note_part, pickled
from formation_p2p.api.node import Node
from formation_p2p.api.sync import SyncNode
from formation_p2p.core.errors import InvalidInput

LOCK = threading.Lock()


def told(value: object) -> str:
    with pytest.raises(TypeError) as refused:
        pickled(value)
    return str(refused.value)


def outer() -> Callable[[int], object]:
    def first(number: int) -> object:
        return second(number)

    def second(number: int) -> object:
        return first(number - 1) if number else (table, LOCK)

    table = [1, 2]
    first.__module__ = second.__module__ = "__main__"
    return first


def test_a_function_that_uses_it_through_others_names_it() -> None:
    name = "test_a_function_that_uses_it_through_others_names_it"
    assert told(outer()).startswith("'LOCK', which outer.<locals>.second uses, is a lock")
    held = threading.Lock()
    assert told(lambda: held) == (
        f"'held', which {name}.<locals>.<lambda> uses, is a lock, which cannot be sent; "
        "make it where the call runs (cannot pickle '_thread.lock' object)"
    )


@pytest.mark.parametrize("kind", [Node, SyncNode])
def test_a_node_stays_where_it_is(kind: type[Node | SyncNode]) -> None:
    node = kind.__new__(kind)
    with pytest.raises(
        TypeError, match=r"cannot travel to a worker: call with data.*Node\.join"
    ) as it:
        pickled(lambda number: node.peer_id if number else None)
    assert str(it.value).startswith("'node', which test_a_node_stays_where_it_is")


def test_an_argument_is_named_by_its_place() -> None:
    async def wait() -> None: ...

    waiting = wait()
    what = "argument 2 is a coroutine, which cannot be sent; await it first ("
    assert told(((1, waiting), {})).startswith(what)
    waiting.close()
    within = "item 1 of 'y' of the argument 'x' is a lock, which cannot be sent"
    assert told(((), {"x": {"y": [LOCK]}})).startswith(within)
    batch: list[object] = [(abs, (1,), {}), (pow, (2, [LOCK]), {})]
    assert told(((batch, None), {})).startswith("item 1 of argument 2 of pow is a lock")
    assert told([(print, (), {"file": LOCK})]).startswith("the argument 'file' of print is a")
    assert told([lambda: LOCK]).startswith("'LOCK', which ")


class Held:
    lock = None

    def __init__(self, lock: object) -> None:
        self.inner = {"a": [1, lock]}

    def run(self, number: int) -> int:
        return number


class Shared:
    table: ClassVar = {"a": threading.Lock()}


Shared.__module__ = "__main__"


def with_default(number: int, lock: object = LOCK) -> object:
    return number, lock


with_default.__module__ = "__main__"
PLACES = {
    "item 2 of 'a' of 'inner' of the object of Held.run": Held(LOCK).run,
    "item 2 of 'a' of 'inner' of the argument 'held'": ((), {"held": Held(LOCK)}),
    "item 1 of 1 of item 1 of argument 1": (([{1: {LOCK}}],), {}),
    "the argument 'file' of print": partial(print, 1, file=LOCK),
    "'a' of 'table' of the class Shared": ((Shared(),), {}),
    "the default of 'lock' of with_default": with_default,
}


@pytest.mark.parametrize("place", PLACES)
def test_wherever_it_is_its_place_is_named(place: str) -> None:
    assert told(PLACES[place]).startswith(f"{place} is a lock, which cannot be sent; make it")


def test_an_error_with_arguments_of_its_own_has_a_note() -> None:
    class Odd:
        def __reduce__(self) -> str:
            raise OSError(5, "no")

    with pytest.raises(OSError, match="no") as refused:
        pickled(((1, Odd()), {}))
    assert refused.value.__notes__[0].startswith("argument 2 is a test_an_error_with")


def test_where_no_part_is_at_fault_nothing_is_noted() -> None:
    def unset() -> object:
        return later

    values: list[object] = [1, ((1,), {}), unset]
    for value in values:
        error = TypeError("no")
        note_part(error, value)
        assert error.args == ("no",)
    refused = InvalidInput("python", "another")
    note_part(refused, ((LOCK,), {}))
    assert "argument" not in str(refused)
    later = 1
