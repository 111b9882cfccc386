"""What cannot be pickled is named as the person who wrote it knows it."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from formation_p2p.api.code import note_part, pickled
from formation_p2p.api.node import Node
from formation_p2p.api.sync import SyncNode
from formation_p2p.core.errors import InvalidInput

LOCK = threading.Lock()


def notes(value: object) -> list[str]:
    with pytest.raises(TypeError) as refused:
        pickled(value)
    return refused.value.__notes__


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
    assert notes(outer())[0].startswith("'LOCK', which outer.<locals>.second uses, is a lock")
    held = threading.Lock()
    assert notes(lambda: held) == [
        f"'held', which {name}.<locals>.<lambda> uses, is a lock, which cannot be sent; "
        "make it where the call runs"
    ]


@pytest.mark.parametrize("kind", [Node, SyncNode])
def test_a_node_stays_where_it_is(kind: type[Node | SyncNode]) -> None:
    node = kind.__new__(kind)
    with pytest.raises(
        TypeError, match=r"cannot travel to a worker: call with data.*Node\.join"
    ) as it:
        pickled(lambda number: node.peer_id if number else None)
    assert it.value.__notes__[0].startswith("'node', which test_a_node_stays_where_it_is")


def test_an_argument_is_named_by_its_place() -> None:
    async def wait() -> None: ...

    waiting = wait()
    assert notes(((1, waiting), {})) == [
        "argument 2 is a coroutine, which cannot be sent; await it first"
    ]
    waiting.close()
    within = "item 1 of 'y' of the argument 'x' is a lock, which cannot be sent"
    assert notes(((), {"x": {"y": [LOCK]}}))[0].startswith(within)
    batch: list[object] = [(abs, (1,), {}), (pow, (2, [LOCK]), {})]
    assert notes(((batch, None), {}))[0].startswith("item 1 of argument 2 of pow is a lock")
    assert notes([(print, (), {"file": LOCK})])[0].startswith("the argument 'file' of print is a")
    assert notes([lambda: LOCK])[0].startswith("'LOCK', which ")


def test_where_no_part_is_at_fault_nothing_is_noted() -> None:
    def unset() -> object:
        return later

    values: list[object] = [1, ((1,), {}), unset]
    for value in values:
        error = TypeError("no")
        note_part(error, value)
        assert not hasattr(error, "__notes__")
    refused = InvalidInput("python", "another")
    note_part(refused, ((LOCK,), {}))
    assert not hasattr(refused, "__notes__")
    later = 1
