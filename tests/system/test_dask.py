"""A Dask cluster on real nodes: its members are tasks in sandboxes without a network."""

import asyncio
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import cloudpickle
import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pandas.testing as pdt
import pytest
from distributed import wait

from formation_p2p import NotPlain
from tests.support.network import small_network
from tests.support.programs import running
from tests.support.waiting import HANGS_S

# What the tests send is theirs, as a script's own functions are.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

# Three of these fit into the machine of a test.
SMALL = "cpu=0.5,memory=320MiB"
# pandas and Arrow alone take 200 MiB.
LARGER = "cpu=0.5,memory=480MiB"


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


async def test_a_cluster_works_and_outlives_its_scheduler(tmp_path: Path) -> None:
    async with small_network(tmp_path) as network:
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


async def test_data_frames_come_back_as_data(tmp_path: Path) -> None:
    """What the first pages of their documentation do."""
    days = pd.date_range("2021-09-01", periods=2400, freq="1h")
    whole = pd.DataFrame({"a": np.arange(2400), "b": list("abcaddbe" * 300)}, index=days)
    frame = dd.from_pandas(whole, npartitions=4)
    some = frame["2021-10-01":"2021-10-09 5:00"]
    means = frame.groupby("b").a.agg(["mean", "sum", "std"])
    asked = {
        "all": frame,
        "a partition": frame.partitions[1],
        "rows": some,
        "a column": frame["b"],
        "a mean": frame.a.mean(),
        "a moment": frame.index.max(),
        "unique": frame.b.drop_duplicates(),
        "sums": some.a.cumsum() - 100,
        "counts": frame.b.value_counts(),
        "groups": means,
        "described": frame.describe(),
        "joined": frame.merge(means, left_on="b", right_index=True).nlargest(5, "a"),
        "missing": frame.assign(b=frame.b.where(frame.a > 5)).partitions[0],
        "lengths": frame.map_partitions(len),
    }
    with dask.config.set({"dataframe.shuffle.method": "tasks"}):
        here = {name: lazy.compute(scheduler="sync") for name, lazy in asked.items()}
    async with (
        small_network(tmp_path) as network,
        network.bob.dask(1, needs=LARGER, scheduler_needs=LARGER) as cluster,
        cluster.get_client() as client,
    ):
        for name, lazy in asked.items():
            read, value = await client.compute(lazy), here[name]
            assert type(read) is type(value), name
            if isinstance(value, pd.DataFrame):
                pdt.assert_frame_equal(read.sort_index(), value.sort_index())
            elif isinstance(value, pd.Series):
                # Of texts, Dask makes another kind where it shuffles through files.
                same = {"check_index_type": name != "counts"}
                pdt.assert_series_equal(read.sort_index(), value.sort_index(), **same)
            else:
                assert read == value
        head = await client.submit(pd.DataFrame.head, whole)
        pdt.assert_frame_equal(head, whole.head())
        told = await client.run(lambda: pd.Series(["x", None]))
        pdt.assert_series_equal(*told.values(), pd.Series(["x", None]))
        with pytest.raises(NotPlain):
            await client.submit(lambda: Path)


def test_an_array_that_no_worker_could_hold_is_summed() -> None:
    with running("-m", "examples.dask_cluster", forked=True) as example:
        # Seven processes that import Dask, beside those of other tests.
        assert example.ended(2 * HANGS_S) == 0, example.output
    assert "360 MiB lie on workers of 320 MiB each; their sum is 1113255499530240" in example.output
