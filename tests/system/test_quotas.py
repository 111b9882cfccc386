"""Quotas on a real worker: alice lends her machine, bob has used up what he may."""

import asyncio
import json
import logging
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from formation_p2p import Limits, Node, ProcessSpec
from formation_p2p.core.refusals import Denied
from formation_p2p.core.units import MIB
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.machine.home import Home
from formation_p2p.trust.core.grants import Rights
from formation_p2p.trust.core.hours import parse_hours
from formation_p2p.trust.core.network import parse_invite
from formation_p2p.trust.core.quota import Quota
from tests.support.commands import formation
from tests.support.loopback import LISTEN
from tests.support.network import gate_at
from tests.support.waiting import until

# A lease comes up for renewal after 7 s; two incarnations of alice and starting them come on top.
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
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


async def test_explain_tells_where_and_when_a_grant_is_good(tmp_path: Path) -> None:
    other_day = parse_hours(f"{_DAYS[(time.gmtime().tm_wday + 3) % 7]} 00:00-24:00")
    async with gate_at(tmp_path) as invite:
        for name, limits in (
            ("bob", {"labels": frozenset({("site", "lab")})}),
            ("dave", {"hours": other_day}),
            ("erin", {"drivers": frozenset({"wasm"})}),
        ):
            Home(tmp_path / name).join(parse_invite(invite(**limits)))
        async with Node.join(invite(), home=tmp_path / "alice", listen=LISTEN) as alice:
            await alice.worker(limits=LIMITS)
            async with Node.join(home=tmp_path / "bob", listen=()) as bob:
                await sees(bob, alice)
                decision = await bob.explain(NEEDS)
                assert "the grant is for workers with site=lab" in str(decision)
                why = await end_of(bob, "true")
                assert [each.lacking for each in decision.ranked] == [Denied("submit", str(why))]
            async with Node.join(home=tmp_path / "dave", listen=()) as dave:
                await sees(dave, alice)
                (ranked,) = (await dave.explain(NEEDS)).ranked
                assert str(ranked.lacking).startswith(
                    f"not allowed to submit: the grant is good {other_day} UTC; that begins next"
                )
            async with Node.join(home=tmp_path / "erin", listen=()) as erin:
                await sees(erin, alice)
                needs = Requirements(driver="process")
                ((_, denied),) = (await erin.explain(needs)).rejected
                assert str(denied).endswith("the grant allows the drivers wasm, not process")
            argv = ("explain", "--needs", NEEDS, "--json")
            shown = await asyncio.to_thread(formation, tmp_path / "bob", *argv)
            (row,) = json.loads(shown.out)["ranked"]
            assert row["lacking"] == f"not allowed to submit: {why}"


async def test_a_quota_outlives_the_worker_that_counts_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    # A thousandth of an hour: 3.6 s of a core.
    rights = Rights(int(time.time()) + 3600, quota=Quota(cpu_milli_hours=1))

    def joins(name: str, invite: Callable[[], str]) -> Node:
        return Node.join(invite(), home=tmp_path / name, listen=LISTEN)

    async with gate_at(tmp_path) as invite:
        bobs = Home(tmp_path / "gate").invite(rights)
        async with Node.join(bobs, home=tmp_path / "bob", listen=()) as bob:
            async with joins("alice", invite) as alice:
                await alice.worker(limits=LIMITS)
                await sees(bob, alice)
                over = await end_of(bob, "sleep", "600")
                assert over is not None
                assert over.startswith("Monthly CPU quota exceeded: 0.00")
                assert "/0.001 hours, until " in over
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


async def test_usage_shows_what_is_handed_out_in_the_network(tmp_path: Path) -> None:
    rights = Rights(int(time.time()) + 3600, quota=Quota(cpu_milli_hours=100_000))
    async with gate_at(tmp_path) as invite:
        bobs = Home(tmp_path / "gate").invite(rights)
        async with (
            Node.join(invite(), home=tmp_path / "alice", listen=LISTEN) as alice,
            Node.join(bobs, home=tmp_path / "bob", listen=()) as bob,
        ):
            await alice.worker(limits=LIMITS)
            await sees(bob, alice)
            job = await bob.submit(ProcessSpec(("sleep", "600")), needs=NEEDS)
            usage = tmp_path / "alice", "usage"

            async def handed_out() -> bool:
                shown = await asyncio.to_thread(formation, *usage, "--json")
                quotas = json.loads(shown.out)["quotas"]
                return [each["verdict"] for each in quotas] == ["held"]

            await until(handed_out)

            async def shown() -> bool:  # once something is charged for
                table = (await asyncio.to_thread(formation, *usage)).out.decode()
                return "IN THE NETWORK" in table and " of 100.0 h" in table

            await until(shown)
            job.cancel()
