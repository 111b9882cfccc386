"""The executor beyond what CPython's cases ask (test_executor_cpython.py): on a node that lives
in somebody's loop, and is left."""

import asyncio
import gc
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator
from concurrent.futures import Future, wait
from contextlib import asynccontextmanager
from itertools import count, islice
from operator import add
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from formation_p2p import Limits, Node, NodeClosed, NotPlain, RemoteTraceback, TaskRaised
from formation_p2p.core.units import MIB
from tests.support.loopback import LISTEN
from tests.support.network import gate_at
from tests.support.waiting import HANGS_S, until

# Its interpreter imports this module for the functions here, and all that it imports.
SMALL = "cpu=0.5,memory=256MiB"


pytestmark = pytest.mark.asyncio(loop_scope="module")


@asynccontextmanager
async def alone(folder: Path) -> AsyncIterator[Node]:
    """One that works for itself. Its calls see the test's files."""
    async with (
        gate_at(folder) as invitation,
        Node.join(invitation(), home=folder / "alice", listen=LISTEN) as alice,
    ):
        limits = Limits(cpu_milli=2000, memory_bytes=1024 * MIB)
        await alice.worker(limits=limits, sandbox="off")
        yield alice


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def node(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Node]:
    async with alone(tmp_path_factory.mktemp("executor")) as alice:
        yield alice


async def begun(future: Future[Any]) -> None:
    await until(lambda: future.running())


def until_there(path: Path) -> tuple[Any, ...]:
    """A call that an interpreter need not import this module for; it returns 0."""
    return subprocess.call, ["sh", "-c", f"until [ -e {path} ]; do sleep 0.05; done"]


def fail() -> None:
    raise RuntimeError(123)  # as it is written here


async def test_a_call_is_submitted_from_any_thread(node: Node) -> None:
    def elsewhere() -> int:
        with node.executor(needs=SMALL) as executor:
            return executor.submit(pow, 2, 5).result(HANGS_S)

    assert await asyncio.to_thread(elsewhere) == 32
    executor = node.executor(needs=SMALL)
    loop = asyncio.get_running_loop()
    assert await loop.run_in_executor(executor, pow, 2, 6) == 64
    # Even by the loop's own thread, while that waits for the result.
    assert executor.submit(pow, 2, 7).result(HANGS_S) == 128
    executor.shutdown()


async def test_small_arguments_are_as_they_were_when_they_were_submitted(node: Node) -> None:
    row, text = [0] * 100, bytearray(1000)
    kept = await node.put([1])
    with node.executor(needs=SMALL) as executor:
        sums, texts, pairs = [], [], list[Future[Any]]()
        for number in range(100):
            row[:], text[:] = [number] * 100, bytes([number]) * 1000
            sums.append(executor.submit(sum, row))
            texts.append(executor.submit(bytes, text))
            pairs.append(executor.submit(add, kept, row))
        row[:], text[:] = [-1] * 100, b"?" * 1000
        for number, (total, copy, pair) in enumerate(zip(sums, texts, pairs, strict=True)):
            assert await asyncio.wrap_future(total) == 100 * number
            assert await asyncio.wrap_future(copy) == bytes([number]) * 1000
            assert await asyncio.wrap_future(pair) == [1, *[number] * 100]


async def test_an_exception_is_what_was_raised_and_tells_where(node: Node) -> None:
    with node.executor(needs=SMALL) as executor:
        error = await asyncio.to_thread(executor.submit(fail).exception)
        odd = await asyncio.to_thread(executor.submit(Odd).exception)
        worse = await asyncio.to_thread(executor.submit(raise_odd).exception)
        leaves = await asyncio.to_thread(executor.submit(sys.exit, 3).exception)
        unsendable = await asyncio.to_thread(executor.submit(id, gc_lock()).exception)
    assert isinstance(error, RuntimeError)
    assert error.args == (123,)
    assert isinstance(error.__cause__, RemoteTraceback)
    assert "raise RuntimeError(123)  # as it is written here" in str(error.__cause__)
    assert isinstance(odd, NotPlain)
    assert isinstance(odd.load_trusted(), Odd)
    assert isinstance(worse, OddError)
    assert (worse.args, worse.code) == (("an odd one",), 7)
    assert isinstance(leaves, TaskRaised)
    assert "SystemExit: 3" in str(leaves)
    assert isinstance(leaves.load_trusted(), SystemExit)
    assert isinstance(unsendable, TypeError)


class Odd:
    """It says itself what it has."""

    def __getstate__(self) -> int:
        return 1

    def __setstate__(self, state: int) -> None:
        self.state = state


class OddError(Exception):
    def __init__(self, *, code: int) -> None:
        super().__init__("an odd one")
        self.code = code


def raise_odd() -> None:
    raise OddError(code=7)


def gc_lock() -> object:
    return threading.Lock()


async def test_a_map_with_a_buffer_takes_items_as_its_results_are_taken(node: Node) -> None:
    numbers = count()

    def use() -> list[int]:
        with node.executor(needs=SMALL) as pool:
            results = pool.map(abs, numbers, buffersize=4)
            assert next(numbers) == 4
            return list(islice(results, 3))

    assert await asyncio.to_thread(use) == [0, 1, 2]
    assert next(numbers) == 8


async def test_leaving_the_node_ends_every_future(tmp_path: Path) -> None:
    async with alone(tmp_path) as alice:
        executor = alice.executor(needs=SMALL, max_workers=1)
        runs, waits = executor.submit(time.sleep, 600), executor.submit(time.sleep, 600)
        await begun(runs)
    assert isinstance(await asyncio.to_thread(runs.exception), NodeClosed)
    await asyncio.to_thread(wait, [waits])
    assert waits.cancelled()
    with pytest.raises(RuntimeError, match="the node was closed"):
        executor.submit(abs, 1)
    executor.shutdown()


class PickledLate:
    """A function that is pickled only once `go` is set."""

    def __init__(self, begun: threading.Event, go: threading.Event) -> None:
        self._begun, self._go = begun, go

    def __reduce__(self) -> tuple[type[int], tuple[()]]:
        self._begun.set()
        self._go.wait(HANGS_S)
        return int, ()

    def __call__(self) -> None:
        """Nobody does."""


async def test_what_waits_is_cancelled_where_the_node_refuses_what_was_begun(
    tmp_path: Path,
) -> None:
    async with alone(tmp_path) as node:
        pickling, go = threading.Event(), threading.Event()
        executor = node.executor(needs=SMALL, max_workers=1)
        begins, waits = executor.submit(PickledLate(pickling, go)), executor.submit(abs, 1)
        await asyncio.to_thread(pickling.wait, HANGS_S)
        closing = node.close()
        closing.send(None)  # the node refuses all from here on, and its loop stands still
        go.set()
        assert isinstance(begins.exception(HANGS_S), NodeClosed)
        wait([waits], HANGS_S)
        closing.close()
    assert waits.cancelled()


async def test_an_executor_that_nobody_keeps_ends_once_its_calls_have(node: Node) -> None:
    future: Future[int] = node.executor(needs=SMALL).submit(pow, 2, 5)
    gc.collect()
    assert await asyncio.wrap_future(future) == 32

    await until(lambda: "formation-executor" not in {each.name for each in threading.enumerate()})
