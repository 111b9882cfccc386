"""Quotas on a real worker: alice lends her machine, bob has used up what he may."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from formation_p2p import Limits, Node, ProcessSpec
from formation_p2p.host.home import Home
from formation_p2p.refusals import Denied
from formation_p2p.trust.grants import Rights
from formation_p2p.trust.quota import Quota
from formation_p2p.units import MIB
from tests.system.in_process import LOOPBACK, gate_at, until
from tests.system.test_cli_network import formation

# A lease comes up for renewal after 7 s; two lives of alice and starting them come on top.
DEADLINE_S = 60.0
LIMITS = Limits(cpu_milli=1000, memory_bytes=256 * MIB)
NEEDS = "cpu=1,memory=64MiB"


async def sees(bob: Node, worker: Node) -> None:
    async def known() -> bool:
        return [each.peer_id for each in await bob.workers()] == [worker.peer_id]

    await until(known)


async def end_of(bob: Node, *argv: str) -> str | None:
    """Why it was refused; None where it ran."""
    (result,) = await (await bob.submit(ProcessSpec(argv), needs=NEEDS))
    if result.status == "succeeded":
        return None
    ((_, why),) = result.refusals
    assert isinstance(why, Denied)
    return why.why


async def test_a_quota_outlives_the_worker_that_counts_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # A thousandth of an hour: 3.6 s of a core.
    rights = Rights(int(time.time()) + 3600, quota=Quota(cpu_milli_hours=1))

    def joins(name: str, invite: Callable[[], str]) -> Node:
        return Node.join(invite(), home=tmp_path / name, listen=LOOPBACK)

    async with asyncio.timeout(DEADLINE_S), gate_at(tmp_path) as invite:
        bobs = Home(tmp_path / "gate").invite(rights)
        async with Node.join(bobs, home=tmp_path / "bob", listen=()) as bob:
            async with joins("alice", invite) as alice:
                await alice.worker(limits=LIMITS)
                await sees(bob, alice)
                over = await end_of(bob, "sleep", "30")
                assert over is not None
                assert over.startswith("Monthly CPU quota exceeded: 0.00")
                assert over.endswith("/0.001 hours")
            async with joins("alice", invite) as alice:
                await alice.worker(limits=LIMITS)
                await sees(bob, alice)
                again = await end_of(bob, "true")
                assert again is not None  # by more, where the end was charged for meanwhile
                assert again.startswith("Monthly CPU quota exceeded: 0.00")
            async with joins("alice", invite) as alice:
                await alice.worker(limits=LIMITS, permissive=True)
                await sees(bob, alice)
                with caplog.at_level(logging.WARNING):
                    assert await end_of(bob, "true") is None
                assert f"{bob.peer_id} is served although: Monthly CPU quota" in caplog.text
            whose = bob.peer_id
    shown = await asyncio.to_thread(formation, tmp_path / "alice", "usage", "--json")
    peer, grant = json.loads(shown.out)["usage"]
    if peer["kind"] == "grant":
        peer, grant = grant, peer
    assert (peer["account"], grant["kind"]) == (whose, "grant")
    assert peer["cpu_milli_s"] == grant["cpu_milli_s"] > 3600
    assert peer["cpu_milli_hours"] == 1
    table = (await asyncio.to_thread(formation, tmp_path / "alice", "usage")).out.decode()
    assert table.count(" of 0.001") == 2
    assert f"…{whose[-8:]}" in table
