"""Results of science, from a worker of the network to its caller."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from tests.support.network import small_network

NEEDS = "cpu=1,memory=1GiB"


def measure(size: int) -> dict[str, Any]:
    if size < 0:
        raise TooSmall(size=size)
    frame = pd.DataFrame({"x": np.arange(size), "name": [str(n) for n in range(size)]})
    return {"mean": np.float64(size / 2), "array": np.ones((size, 2)), "frame": frame}


class TooSmall(ValueError):
    def __init__(self, *, size: int) -> None:
        super().__init__(f"{size} is too small")
        self.size = size


async def test_results_of_science_and_own_exceptions_come_back(tmp_path: Path) -> None:
    async with small_network(tmp_path) as world:
        (read,) = await world.bob.map(measure, [3], needs=NEEDS)
        with pytest.raises(TooSmall, match="-1 is too small") as raised:
            await world.bob.map(measure, [-1], needs=NEEDS, attempts=1)
    assert read["mean"] == 1.5
    assert read["array"].tolist() == [[1, 1]] * 3
    assert read["frame"].name.tolist() == ["0", "1", "2"]
    assert raised.value.size == -1
