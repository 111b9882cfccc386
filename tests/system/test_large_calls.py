"""Calls with arguments and results of any size, between real peers."""

import asyncio
import gc
import pickle
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import psutil
import pytest

from formation_p2p import FailureKind, python_call, python_calls, value_of
from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.core.units import KIB, MIB
from formation_p2p.workload.core.parcel import Parcel
from tests.support.drivers_world import open_descriptors
from tests.support.network import SmallNetwork
from tests.support.nodes import OpenNode
from tests.support.waiting import until

# As a script's own functions: interpreters need not import this module, and all that it imports.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.asyncio(loop_scope="module")
NEEDS = "cpu=0.5,memory=256MiB"


def total(array: Any) -> float:
    return float(array.sum())


async def test_arrays_go_in_by_the_memory_of_this_machine(small: SmallNetwork) -> None:
    arrays = [np.full(64 * KIB, number) for number in range(4)]
    sums = await small.bob.map(total, arrays, needs=NEEDS)
    assert sums == [float(64 * KIB * number) for number in range(4)]

    async def coming() -> AsyncIterator[Any]:
        for array in arrays:
            yield array

    assert [x async for x in small.bob.map(total, coming(), needs=NEEDS)] == sums
    with small.bob.executor(needs=NEEDS) as executor:
        futures = [executor.submit(total, array) for array in arrays]
        assert [await asyncio.wrap_future(future) for future in futures] == sums
    job = await small.bob.submit(python_calls(total, arrays), needs=NEEDS)
    assert [value_of(result) for result in await job] == sums
    big = np.arange(64 * KIB)
    entries = await small.bob.map(lambda n: int(big[n]), range(20), needs=NEEDS)
    assert entries == list(range(20))
    with small.bob.executor(needs=NEEDS) as executor:
        entry = lambda n: int(big[n])  # noqa: E731
        futures = [executor.submit(entry, number) for number in range(20)]
        assert [await asyncio.wrap_future(future) for future in futures] == entries


async def test_arrays_go_over_the_network_to_other_machines(apart: SmallNetwork) -> None:
    bob = apart.bob
    arrays = [np.full(64 * KIB, number) for number in range(3)]
    sums = await bob.map(total, arrays, needs=NEEDS)
    assert sums == [float(64 * KIB * number) for number in range(3)]
    table = np.arange(64 * KIB)
    assert await bob.map(lambda n: int(table[n]), [5, 6], needs=NEEDS) == [5, 6]
    calls = python_calls(lambda array: total(array) + float(table[7]), arrays)
    results = await (await bob.submit(calls, needs=NEEDS))
    assert [value_of(each) for each in results] == [each + 7 for each in sums]
    await until(lambda: held_by(apart) == 0)


async def test_a_reference_is_the_object_in_every_kind_of_call(small: SmallNetwork) -> None:
    def entry(table: Any, number: int) -> float:
        return float(table[number])

    table = await small.bob.put(np.arange(64 * KIB))
    assert table.size_bytes >= 512 * KIB
    numbers = range(20)
    found = await small.bob.map(lambda pair: entry(*pair), [(table, n) for n in numbers])
    assert found == list(map(float, numbers))
    assert await small.bob.map(lambda n: float(table[n]), numbers) == found  # type: ignore[index]
    with small.bob.executor(needs=NEEDS) as executor:
        futures = [executor.submit(entry, table, n) for n in numbers]
        assert [await asyncio.wrap_future(future) for future in futures] == found
        other = await small.alice.put([1])
        with pytest.raises(InvalidInput, match="another node's"):
            await asyncio.wrap_future(executor.submit(repr, other))
    calls = [python_call(entry, table, n) for n in numbers]
    assert [value_of(each) for each in await (await small.bob.submit(calls))] == found
    enclosing = python_calls(lambda n: float(table[n]), numbers)  # type: ignore[index]
    assert [value_of(each) for each in await (await small.bob.submit(enclosing))] == found
    assert await small.bob.explain(NEEDS, function=lambda: table)
    with pytest.raises(LocalError, match=r"put takes a text for a path; .* put \(text,\)"):
        await small.bob.put("text\0" * 1000)
    table.release()
    with pytest.raises(InvalidInput, match="it was released"):
        await small.bob.submit(calls)
    with pytest.raises(InvalidInput, match="it was released"):
        await small.bob.map(lambda pair: entry(*pair), [(table, 1)])
    await until(lambda: held_by(small) == 0)


async def test_a_reference_goes_over_the_network_once(apart: SmallNetwork, tmp_path: Path) -> None:
    async with OpenNode.join(apart.invite, home=tmp_path / "mallory") as mallory:
        await refers(apart.bob, mallory)


async def refers(bob: OpenNode, mallory: OpenNode) -> None:
    before = await bob.bridge.look(lambda shell: shell.exchange.server.sent_bytes)
    table = await bob.put(np.arange(2 * MIB))
    shared = await bob.map(lambda n: float(table[n]), range(40), needs=NEEDS)  # type: ignore[index]
    assert shared == list(map(float, range(40)))
    with bob.executor(needs=NEEDS) as executor:
        futures = [executor.submit(total, table) for _ in range(20)]
        sums = {await asyncio.wrap_future(future) for future in futures}
    assert sums == {float(sum(range(2 * MIB)))}
    sent = await bob.bridge.look(lambda shell: shell.exchange.server.sent_bytes)
    assert table.size_bytes <= sent - before < 1.5 * table.size_bytes
    # A peer that has come to know a name gets nothing from the worker that has the content.
    assert table.parcel.blob is not None
    of_bob = Parcel(pickle.dumps(((1,), {})), references=(table.parcel,))
    claimed = replace(table.parcel.blob, owner=mallory.inside.contact)
    as_own = replace(of_bob, references=(replace(table.parcel, blob=claimed),))
    kinds = []
    for parcel in (of_bob, as_own):
        call = replace(python_call(total, 1), arguments=parcel.encode())
        (result,) = await (await mallory.submit(call, needs=NEEDS))
        kinds.append(result.kind)
    assert kinds == [FailureKind.INVALID, FailureKind.CALLER]


async def test_an_item_that_cannot_be_pickled_leaves_nothing_behind(small: SmallNetwork) -> None:
    def items() -> Any:
        yield np.ones(64 * KIB)
        yield (number for number in range(3))

    with pytest.raises(TypeError, match="pickle"):
        await small.bob.map(total, items(), needs=NEEDS)
    await until(lambda: held_by(small) == 0)


async def test_120_calls_with_arrays_leave_nothing_behind(small: SmallNetwork) -> None:
    async def calls(count: int) -> None:
        arrays = (np.full(40 * KIB, number) for number in range(count))
        sums = await small.bob.map(total, arrays, needs=NEEDS)
        assert sums == [float(40 * KIB * number) for number in range(count)]

    await calls(10)
    gc.collect()
    me = psutil.Process()
    descriptors, memory = open_descriptors(), me.memory_info().rss
    await calls(120)
    gc.collect()
    assert open_descriptors() <= descriptors + 100  # memory that is kept to be used again
    assert me.memory_info().rss - memory < 400 * MIB
    await until(lambda: held_by(small) == 0)


def held_by(small: SmallNetwork) -> int:
    return len(small.bob.inside.packer.blobs)
