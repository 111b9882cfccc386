"""Calls with results of any size, between real peers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from formation_p2p import python_calls, value_of
from formation_p2p.core.units import KIB, MIB
from tests.support.loopback import LISTEN
from tests.support.network import DEADLINE_S, MACHINE, SmallNetwork, gate_at, sees, small_network
from tests.support.nodes import OpenNode
from tests.support.waiting import until

NEEDS = "cpu=0.5,memory=512MiB"


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[SmallNetwork]:
    async with small_network(tmp_path) as network:
        yield network


def doubled(array: Any) -> Any:
    return array * 2


def filled(number: int) -> Any:
    return {"name": f"number {number}", "array": np.full(64 * KIB, number)}


async def test_arrays_come_back_by_the_memory_of_this_machine(world: SmallNetwork) -> None:
    async with asyncio.timeout(DEADLINE_S):
        big = await world.bob.map(lambda n: np.full(50 * MIB // 8, n), [7], needs=NEEDS)
        assert (big[0].nbytes, big[0].sum()) == (50 * MIB, 7 * 50 * MIB // 8)
        big[0][0] = 1  # it is the caller's own
        results = await world.bob.map(filled, range(8), needs=NEEDS)
        assert [int(each["array"].sum()) for each in results] == [64 * KIB * n for n in range(8)]
        arrays = [each["array"] for each in results]
        with world.bob.executor(needs=NEEDS) as executor:
            futures = [executor.submit(doubled, array) for array in arrays]
            twice = [await asyncio.wrap_future(future) for future in futures]
        assert [int(each[3]) for each in twice] == [2 * n for n in range(8)]
        job = await world.bob.submit(python_calls(filled, [3, 4]), needs=NEEDS)
        ended = await job
        assert [int(value_of(result)["array"][1]) for result in ended] == [3, 4]
        texts = await world.bob.map(lambda n: ["x" * n] * 4, [10, 100_000], needs=NEEDS)
        assert [sum(map(len, each)) for each in texts] == [40, 400_000]
        text = await world.bob.map(lambda n: b"y" * n, [9_000_000], needs=NEEDS)
        assert text == [b"y" * 9_000_000]
        await until(lambda: len(world.alice.services.packer.blobs) == 0)


async def test_arrays_come_back_over_the_network(tmp_path: Path) -> None:
    async with gate_at(tmp_path) as invitation:
        joining = OpenNode.join(invitation(), home=tmp_path / "bob", listen=())
        apart = replace(joining.config, shares_memory=False)  # as on a machine of his own
        async with OpenNode.join(invitation(), home=tmp_path / "alice", listen=LISTEN) as alice:
            await alice.worker(limits=MACHINE)
            async with asyncio.timeout(DEADLINE_S), OpenNode(apart) as bob:
                await sees(bob, 1)
                results = await bob.map(filled, range(5), needs=NEEDS)
                assert [each["array"][0] for each in results] == list(range(5))
                (big,) = await bob.map(lambda n: np.ones(n), [MIB], needs=NEEDS)
                assert big.sum() == MIB
                await until(lambda: len(alice.services.packer.blobs) == 0)
