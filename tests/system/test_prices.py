"""What a machine costs, from the person who lends it to the person who pays."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from formation_p2p import Limits, Node, ProcessSpec, TooDear, Unplaceable
from formation_p2p.core.units import MIB
from tests.support.loopback import LISTEN
from tests.support.network import DEADLINE_S, gate_at
from tests.support.waiting import until


async def test_a_job_runs_on_no_machine_that_costs_more_than_it_may(tmp_path: Path) -> None:
    limits = Limits(cpu_milli=1000, memory_bytes=256 * MIB)
    async with (
        asyncio.timeout(DEADLINE_S),
        gate_at(tmp_path) as invite,
        Node.join(invite(), home=tmp_path / "alice", listen=LISTEN) as alice,
        Node.join(invite(), home=tmp_path / "bob", listen=()) as bob,
    ):
        await alice.worker(limits=limits, price_micro=50_000)

        async def known() -> bool:
            return [each.price_micro for each in await bob.workers()] == [50_000]

        await until(known)
        needs = "cpu=1,memory=64MiB"
        true = ProcessSpec(("true",))
        (dear,) = await (await bob.submit(true, needs=needs, max_price_micro=49_999))
        assert dear.status == "unplaceable"
        assert dear.refusals == ((alice.peer_id, TooDear(50_000, 49_999)),)
        (done,) = await (await bob.submit(true, needs=needs, max_price_micro=50_000))
        assert done.status == "succeeded"
        with pytest.raises(Unplaceable, match="too dear: asks 0"):
            await bob.map(abs, [-1], needs=needs, max_price_micro=0)
