"""What a machine costs, from the person who lends it to the person who pays."""

from pathlib import Path

import pytest

from formation_p2p import Limits, ProcessSpec, TooDear, Unplaceable
from formation_p2p.core.units import MIB
from tests.support.network import small_network


async def test_a_job_runs_on_no_machine_that_costs_more_than_it_may(tmp_path: Path) -> None:
    limits = Limits(cpu_milli=1000, memory_bytes=256 * MIB)
    async with small_network(tmp_path, limits=limits, price_micro=50_000) as network:
        alice, bob = network.alice, network.bob
        assert [each.price_micro for each in await bob.workers()] == [50_000]
        needs = "cpu=1,memory=64MiB"
        true = ProcessSpec(("true",))
        (dear,) = await (await bob.submit(true, needs=needs, max_price_micro=49_999))
        assert dear.status == "unplaceable"
        assert dear.refusals == ((alice.peer_id, TooDear(50_000, 49_999)),)
        (done,) = await (await bob.submit(true, needs=needs, max_price_micro=50_000))
        assert done.status == "succeeded"
        with pytest.raises(Unplaceable, match="too dear: asks 0"):
            await bob.map(abs, [-1], needs=needs, max_price_micro=0)
