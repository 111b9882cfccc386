"""`node.map` as a stream, against real peers."""

import asyncio
import itertools
import secrets
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

import cloudpickle
import pytest

from formation_p2p import InvalidInput, Node, RemoteTraceback
from tests.support.network import LOOKS_S, SmallNetwork, runs
from tests.support.waiting import until

# As a script's own functions: interpreters need not import this module, and all that it imports.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.asyncio(loop_scope="module")
SMALL = "cpu=0.5,memory=64MiB"


@pytest.fixture
def bob(unboxed: SmallNetwork) -> Node:
    return unboxed.bob


def divide(by: int) -> float:
    return 1 / by


async def test_what_is_not_awaited_says_so(bob: Node) -> None:
    """As a prompt or a notebook shows it, where nothing runs yet."""
    assert "`await` them" in repr(bob.map(str, [1]))


def waits_for(path: Path | None) -> bool:
    """Whether it had to be there first."""
    while path is not None and not path.exists():
        time.sleep(0.05)
    return path is not None


async def test_results_come_in_the_order_of_the_items(bob: Node, tmp_path: Path) -> None:
    """The first ends after the second has."""
    there = tmp_path / "there"

    def ends(number: int) -> int:
        if number == 2:
            there.touch()
        waits_for(there)
        return number

    assert [n async for n in bob.map(ends, [1, 2], needs=SMALL)] == [1, 2]


async def test_results_come_as_they_are_ready(bob: Node, tmp_path: Path) -> None:
    """The first ends once the second is here."""
    here, waited = tmp_path / "here", []
    async for waits in bob.map(waits_for, [here, None], needs=SMALL, ordered=False):
        waited.append(waits)
        here.touch()
    assert waited == [False, True]


async def test_an_endless_iterable_is_read_no_further_than_the_look_ahead(bob: Node) -> None:
    given: list[int] = []

    def numbers() -> Iterator[int]:
        for number in itertools.count():
            given.append(number)
            yield -number

    taken = []
    async for value in bob.map(abs, numbers(), needs=SMALL, buffersize=8):
        taken.append(value)
        if len(taken) == 20:
            break
    assert taken == list(range(20))
    assert len(given) <= 20 + 8


@pytest.mark.parametrize("endless", [itertools.count(), itertools.repeat(1), itertools.cycle([1])])
async def test_there_is_no_list_of_what_has_no_end(bob: Node, endless: Iterator[int]) -> None:
    with pytest.raises(InvalidInput, match=r"no end.*async for.*SyncNode.*buffersize"):
        await bob.map(abs, endless, needs=SMALL)
    assert await bob.map(pow, [2, 3], endless, needs=SMALL)
    assert await bob.map(abs, itertools.repeat(-1, 2), needs=SMALL) == [1, 1]


async def test_an_asynchronous_iterable_is_read_as_it_comes(bob: Node) -> None:
    given = 0

    async def numbers() -> AsyncGenerator[int, None]:
        nonlocal given
        for number in itertools.count():
            if number == 10:
                await asyncio.sleep(0.2)
            given += 1
            yield -number

    taken = []
    async with aclosing(numbers()) as source:
        async for value in bob.map(abs, source, needs=SMALL, buffersize=8):
            taken.append(value)
            if len(taken) == 20:
                break
        assert taken == list(range(20))
        assert given <= 20 + 8
        assert await bob.map(abs, aiter_of([-1, -2]), needs=SMALL) == [1, 2]


async def aiter_of(items: list[int]) -> AsyncIterator[int]:
    for item in items:
        yield item


async def test_a_call_takes_one_item_of_each_iterable(bob: Node) -> None:
    """The shortest ends them. How many calls there are is known where all have a length."""
    totals: set[int | None] = set()

    def progress(done: int, failed: int, total: int | None) -> None:
        totals.add(total)

    assert await bob.map(pow, itertools.count(2), [3, 2], needs=SMALL) == [8, 9]
    powers = bob.map(pow, [2, 3, 4], [3, 2], [7, 7], needs=SMALL, progress=progress)
    assert await powers == [1, 2]
    assert totals == {2}


async def test_what_the_iterable_raises_is_raised(bob: Node) -> None:
    def broken() -> Iterator[int]:
        yield 1
        raise LookupError("no more")

    async def also_broken() -> AsyncIterator[int]:
        yield 1
        raise LookupError("no more")

    with pytest.raises(LookupError, match="no more"):
        await bob.map(abs, broken(), needs=SMALL)
    with pytest.raises(LookupError, match="no more"):
        await bob.map(abs, also_broken(), needs=SMALL)


async def test_a_failure_comes_in_its_place(unboxed: SmallNetwork, bob: Node) -> None:
    got: list[float] = []

    async def take() -> None:
        async for value in bob.map(divide, [1, 2, 0, 4], needs=SMALL, attempts=1):
            got.append(value)

    with pytest.raises(ZeroDivisionError) as raised:
        await take()
    assert got == [1.0, 0.5]
    where = raised.value.__cause__
    assert isinstance(where, RemoteTraceback)
    assert "in divide" in str(where)
    assert (where.worker, where.attempts) == (unboxed.alice.peer_id, 1)


def sleep_as_a_program(s: str) -> None:
    subprocess.run(["sleep", s], check=True)


async def test_whoever_stops_half_way_stops_what_runs(bob: Node) -> None:
    long = f"600.{secrets.randbelow(10**9)}"

    async for _ in bob.map(sleep_as_a_program, ["0", long], needs=SMALL):
        await until(lambda: runs(long), every_s=LOOKS_S)
        break
    await until(lambda: not runs(long), every_s=LOOKS_S)


async def test_a_map_can_be_a_task_a_part_of_a_gathering_and_be_timed_out(bob: Node) -> None:
    one = asyncio.create_task(bob.map(abs, [-1], needs=SMALL))
    both = await asyncio.gather(bob.map(abs, [-2], needs=SMALL), one)
    assert list(both) == [[2], [1]]
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(bob.map(time.sleep, [600], needs=SMALL), 0.3)


async def test_a_look_ahead_of_nothing_is_refused(bob: Node) -> None:
    with pytest.raises(InvalidInput, match="buffersize"):
        bob.map(abs, [1], buffersize=0)


async def test_an_asynchronous_iterable_beside_another_is_refused(bob: Node) -> None:
    async def numbers() -> AsyncIterator[int]:
        yield 1

    with pytest.raises(InvalidInput, match="comes alone"):
        bob.map(pow, [1], numbers())  # type: ignore[call-overload]
