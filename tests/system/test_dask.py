"""A Dask cluster on real nodes: its members are tasks in sandboxes without a network."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import cloudpickle
import dask.array as da
import numpy as np
import pytest
from distributed import wait

from formation_p2p import NotPlain
from tests.support.network import small_network
from tests.support.programs import DEADLINE_S, running

# What the tests send is theirs, as a script's own functions are.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

# Three of these fit into the machine of a test.
SMALL = "cpu=0.5,memory=320MiB"


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def test_a_cluster_works_and_outlives_its_scheduler(tmp_path: Path) -> None:
    async with asyncio.timeout(120), small_network(tmp_path) as network:
        asked: dict[str, Any] = {
            "needs": SMALL,
            "scheduler_needs": SMALL,
            "state": tmp_path / "state",
        }
        async with network.bob.dask(2, **asked) as cluster, cluster.get_client() as client:
            array = da.ones((400, 400), chunks=(100, 100))
            assert await client.compute((array + array.T).sum()) == 320_000
            np.testing.assert_array_equal(await client.submit(np.arange, 4), [0, 1, 2, 3])
            with pytest.raises(ZeroDivisionError):
                await client.submit(divmod, 1, 0)
            with pytest.raises(NotPlain):
                await client.submit(lambda: Path)
            kept = client.map(np.square, range(4))
            await cluster.keep(kept)
            later = client.map(np.negative, kept)
            await wait(later)

            async def gathered(after_s: float) -> Any:
                await asyncio.sleep(after_s)
                return await client.gather(kept)

            # The next life is asked for results before it is told who waits for them.
            gathers = [asyncio.create_task(gathered(n * 0.002)) for n in range(50)]
            with suppress(OSError):
                await client.run_on_scheduler(die)
            assert await asyncio.gather(*gathers) == 50 * [[0, 1, 4, 9]]
            assert await client.gather(kept) == [0, 1, 4, 9]
            assert await client.gather(later) == [0, -1, -4, -9]


def test_an_array_that_no_worker_could_hold_is_summed() -> None:
    with running(sys.executable, "-m", "examples.dask_cluster") as example:
        # Seven processes that import Dask, beside those of other tests.
        assert example.ended(2 * DEADLINE_S) == 0, example.output
    assert "360 MiB lie on workers of 320 MiB each; their sum is 1113255499530240" in example.output
