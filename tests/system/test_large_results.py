"""Calls with results of any size, between real peers."""

import asyncio
import fcntl
import gc
import os
import random
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import cloudpickle
import numpy as np
import pytest
import trio

from formation_p2p import FormationError, NotPlain, ResultTooLarge, python_calls, value_of
from formation_p2p.content.private import PrivateExchange
from formation_p2p.core.errors import StateError
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import KIB, MIB
from formation_p2p.state.state import Retention, State
from formation_p2p.workload.core.blob import PrivateBlob
from formation_p2p.workload.core.parcel import Parcel
from tests.support.commands import started
from tests.support.loopback import LISTEN
from tests.support.network import MACHINE, SmallNetwork, gate_at, sees, small_network
from tests.support.nodes import OpenNode
from tests.support.waiting import until

# As a script's own functions: interpreters need not import this module, and all that it imports.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.asyncio(loop_scope="module")
NEEDS = "cpu=0.5,memory=512MiB"


def doubled(array: Any) -> Any:
    return array * 2


def filled(number: int) -> Any:
    return {"name": f"number {number}", "array": np.full(64 * KIB, number)}


def texts_of(count: int) -> list[str]:
    return [str(number) for number in range(count)]


async def test_arrays_come_back_by_the_memory_of_this_machine(small: SmallNetwork) -> None:
    big = await small.bob.map(lambda n: np.full(50 * MIB // 8, n), [7], needs=NEEDS)
    assert (big[0].nbytes, big[0].sum()) == (50 * MIB, 7 * 50 * MIB // 8)
    big[0][0] = 1  # it is the caller's own
    results = await small.bob.map(filled, range(8), needs=NEEDS)
    assert [int(each["array"].sum()) for each in results] == [64 * KIB * n for n in range(8)]
    arrays = [each["array"] for each in results]
    with small.bob.executor(needs=NEEDS) as executor:
        futures = [executor.submit(doubled, array) for array in arrays]
        twice = [await asyncio.wrap_future(future) for future in futures]
    assert [int(each[3]) for each in twice] == [2 * n for n in range(8)]
    job = await small.bob.submit(python_calls(filled, [3, 4]), needs=NEEDS)
    ended = await job
    assert [int(value_of(result)["array"][1]) for result in ended] == [3, 4]
    texts = await small.bob.map(texts_of, [10, 60_000], needs=NEEDS)
    assert texts == [texts_of(10), texts_of(60_000)]
    await until(lambda: len(small.alice.inside.packer.blobs) == 0)


async def test_arrays_come_back_over_the_network(apart: SmallNetwork) -> None:
    results = await apart.bob.map(filled, range(5), needs=NEEDS)
    assert [each["array"][0] for each in results] == list(range(5))
    (big,) = await apart.bob.map(lambda n: np.ones(n), [MIB], needs=NEEDS)
    assert big.sum() == MIB
    await until(lambda: len(apart.alice.inside.packer.blobs) == 0)


async def test_what_is_larger_than_allowed_stays_with_its_worker(tmp_path: Path) -> None:
    async with small_network(tmp_path) as small:
        bob = small.bob
        with pytest.raises(ResultTooLarge, match="where the call allows 1000") as of:
            await bob.map(filled, [5], needs=NEEDS, max_result=1000)
        assert of.value.worker == small.alice.peer_id
        assert of.value.size_bytes > 64 * KIB * 8
        value = await bob.fetch_result(of.value)
        assert (value["name"], value["array"][9]) == ("number 5", 5)
        with bob.executor(needs=NEEDS, max_result="1KiB") as executor:
            future = executor.submit(filled, 6)
            with pytest.raises(ResultTooLarge) as of:
                await asyncio.wrap_future(future)
        assert (await bob.fetch_result(of.value))["array"][0] == 6
        job = await bob.submit(python_calls(filled, [7]), needs=NEEDS, max_result=1000)
        (result,) = await job
        assert len(result.reasons) == 1  # the next attempt would return as much
        with pytest.raises(ResultTooLarge) as of:
            value_of(result)
        (blob,) = Parcel.decode(of.value.record).blobs
        small.alice.inside.packer.blobs.release(blob.name)
        with pytest.raises(FormationError, match="does not have it"):
            await bob.fetch_result(of.value)


async def test_results_that_are_lost_or_garbage_or_not_wanted(small: SmallNetwork) -> None:
    """The first is there when it is told, and gone when it is fetched: the call runs again."""
    blobs = small.alice.inside.packer.blobs
    kept = blobs.adopt
    dropped: list[bytes] = []

    def adopt(*of: Any) -> bytes:
        name = kept(*of)
        if not dropped:
            dropped.append(name)
            blobs.release(name)
        return name

    with patch.object(blobs, "adopt", adopt):
        (value,) = await small.bob.map(filled, [5], needs=NEEDS)
    assert value["array"][0] == 5
    assert len(dropped) == 1

    def garbled(file: int, size_bytes: int, peer: PeerId | None = None) -> bytes:
        os.close(file)
        garbage = os.memfd_create("garbage", os.MFD_ALLOW_SEALING)
        os.write(garbage, random.Random(7).randbytes(size_bytes))
        shape = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
        fcntl.fcntl(garbage, fcntl.F_ADD_SEALS, shape)
        return kept(garbage, size_bytes, peer)

    with patch.object(blobs, "adopt", garbled), pytest.raises(NotPlain) as refused:
        await small.bob.map(texts_of, [60_000], needs=NEEDS)
    assert len(refused.value.result_bytes) > 100_000
    async for value in small.bob.map(filled, range(50), needs=NEEDS):
        assert value["array"][0] == 0
        break
    gc.collect()
    await until(lambda: len(small.alice.inside.packer.blobs) == 0)
    await until(lambda: gc.collect() >= 0 and small.bob.inside.arrivals.unread_bytes == 0)


@contextmanager
def paused_fetch(count: int = 1) -> Iterator[tuple[threading.Event, threading.Event]]:
    """The first fetches of large results, so many, set one event, and go on with the other one."""
    fetch = PrivateExchange.result
    fetching, goes_on = threading.Event(), threading.Event()
    left = iter(range(count - 1, -1, -1))

    async def result(self: PrivateExchange, blob: PrivateBlob) -> Any:
        others = next(left, None)
        if others == 0:
            fetching.set()
        if others is not None:
            await trio.to_thread.run_sync(goes_on.wait)
        return await fetch(self, blob)

    with patch.object(PrivateExchange, "result", result):
        yield fetching, goes_on


async def test_a_worker_that_is_killed_before_its_results_are_fetched(tmp_path: Path) -> None:
    """One by the memory of the machine, one over the network."""
    async with gate_at(tmp_path) as invitation:
        invite = invitation()
        (tmp_path / "invite").write_text(invite)
        joining = OpenNode.join(invite, home=tmp_path / "far", listen=())
        config = replace(joining.config, shares_memory=False)
        offers = ("--join", str(tmp_path / "invite"), "--cpu", "2", "--listen", LISTEN[0])
        with paused_fetch(2) as (fetching, gone):
            async with (
                OpenNode.join(invite, home=tmp_path / "near", listen=()) as near,
                OpenNode(config) as far,
                OpenNode.join(invite, home=tmp_path / "carol", listen=LISTEN) as carol,
            ):
                with started(tmp_path / "alice", "worker", *offers) as alice:
                    await asyncio.gather(sees(near, 1), sees(far, 1))
                    mapped = [
                        asyncio.create_task(owner.map(filled, [number], needs=NEEDS))
                        for number, owner in ((5, near), (6, far))
                    ]
                    await asyncio.to_thread(fetching.wait)
                    await carol.worker(limits=MACHINE)
                    await asyncio.gather(sees(near, 2), sees(far, 2))
                    alice.process.kill()
                    await asyncio.to_thread(alice.process.wait)
                gone.set()
                (by_memory,), (over_network,) = await asyncio.gather(*mapped)
    assert (by_memory["array"][0], over_network["array"][0]) == (5, 6)


async def test_large_results_of_a_job_survive_their_submitter(tmp_path: Path) -> None:
    state = tmp_path / "jobs.db"
    async with gate_at(tmp_path) as invitation:
        alices = OpenNode.join(invitation(), home=tmp_path / "alice", listen=LISTEN)
        bobs: dict[str, Any] = {"home": tmp_path / "bob", "listen": (), "state": state}
        async with alices as alice:
            await alice.worker(limits=MACHINE)
            async with OpenNode.join(invitation(), **bobs) as bob:
                await sees(bob, 1)
                job = await bob.submit(python_calls(filled, [3, 4]), needs=NEEDS)
                assert [value_of(each)["array"][0] for each in await job] == [3, 4]
                job_id = job.job_id
                assert len(list((tmp_path / "jobs.db.results" / job_id).iterdir())) == 2
    async with OpenNode.join(invitation(), **bobs) as bob:
        again = await bob.job(job_id)
        results = await again.results()
        assert [value_of(each)["array"][5] for each in results] == [3, 4]
        unread = await (await bob.job(job_id)).results()
    with closing(State(state, Retention(jobs=0))) as kept:
        kept.prune()
    assert not (tmp_path / "jobs.db.results").exists()
    with pytest.raises(StateError, match="deleted with its job"):
        value_of(unread[0])
