"""A network whose only gate is killed, and comes back: what goes on, and how soon."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from formation_p2p import Awaited, Home, JobWaits, Limits, Node, ProcessSpec, Rights
from formation_p2p.core.units import MIB
from tests.support.commands import started
from tests.support.loopback import LISTEN
from tests.support.network import DEADLINE_S
from tests.support.programs import Program

SMALL = "cpu=0.1,memory=64MiB"
# A second on an idle machine, and five at the most.
SOON_S = 60.0


def gate(home: Home, port: str = "0") -> AbstractContextManager[Program]:
    return started(home.path, "gate", "--listen", f"/ip4/127.0.0.1/tcp/{port}")


async def ran(folder: Path, name: str, join: str) -> float:
    """How long a job of a node takes that joins now, in seconds."""
    began_s = time.monotonic()
    async with Node.join(join, home=folder / name, listen=()) as node:
        await node.run(["true"], needs=SMALL)
    return time.monotonic() - began_s


async def test_the_only_gate_is_killed_and_comes_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = Home(tmp_path / "gate")
    home.create_network()
    async with asyncio.timeout(DEADLINE_S):
        with gate(home) as first:
            port = first.line_with("/ip4/127.0.0.1/tcp/").split("/")[4]
            first.line_with("to invite others")
            join = home.invite(Rights(int(time.time()) + 3600))
            alice = await Node.join(join, home=tmp_path / "alice", listen=LISTEN)
            await alice.worker(limits=Limits(cpu_milli=1000, memory_bytes=512 * MIB))
            await ran(tmp_path, "bob", join)
            first.process.send_signal(signal.SIGKILL)
            first.ended()
        without_s = await ran(tmp_path, "bob", join)  # who was there before
        state = tmp_path / "jobs.db"
        async with Node.join(join, home=tmp_path / "carol", listen=(), state=state) as carol:
            job = await carol.submit(ProcessSpec(("true",)), needs=SMALL)
            waits = await anext(e async for e in job.events() if isinstance(e, JobWaits))
            assert waits.awaited is Awaited.PEERS
            with gate(home, port) as second:
                second.line_with("to invite others")
                began_s = time.monotonic()
                newcomers_s = await ran(tmp_path, "dave", join)
                (result,) = await job
                assert result.status == "succeeded"
                waited_s = time.monotonic() - began_s
                await alice.close()
    told = [each.getMessage() for each in caplog.records if each.name == "formation_p2p.gates"]
    assert [text.split(" is ")[1].split(";")[0] for text in told][:2] == ["lost", "back"]
    print(f"gate dead: {without_s:.1f} s, back: {newcomers_s:.1f} s, waited: {waited_s:.1f} s")
    assert max(without_s, newcomers_s, waited_s) < SOON_S
