"""A network whose only gate is killed, and comes back: what goes on."""

import logging
import signal
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from formation_p2p import Awaited, Home, JobWaits, Limits, Node, ProcessSpec, Rights
from formation_p2p.core.units import MIB
from tests.support.commands import started
from tests.support.loopback import LISTEN, free_port, tcp
from tests.support.programs import Program
from tests.support.waiting import until

SMALL = "cpu=0.1,memory=64MiB"


def gate(home: Home, port: int) -> AbstractContextManager[Program]:
    return started(home.path, "gate", "--listen", tcp(port))


async def runs(folder: Path, name: str, join: str) -> None:
    """A job of a node that joins now."""
    async with Node.join(join, home=folder / name, listen=()) as node:
        await node.run(["true"], needs=SMALL)


async def test_the_only_gate_is_killed_and_comes_back(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "formation_p2p.gates")

    def told() -> list[str]:
        records = [each for each in caplog.records if each.name == "formation_p2p.gates"]
        return [each.getMessage().split(" is ")[1].split(";")[0] for each in records]

    home = Home(tmp_path / "gate")
    home.create_network()
    port = free_port()
    with gate(home, port) as first:
        first.line_with("to invite others")
        join = home.invite(Rights(int(time.time()) + 3600))
        alice = await Node.join(join, home=tmp_path / "alice", listen=LISTEN)
        await alice.worker(limits=Limits(cpu_milli=1000, memory_bytes=512 * MIB))
        await runs(tmp_path, "bob", join)
        first.process.send_signal(signal.SIGKILL)
        first.ended()
    await runs(tmp_path, "bob", join)  # who was there before
    state = tmp_path / "jobs.db"
    async with Node.join(join, home=tmp_path / "carol", listen=(), state=state) as carol:
        job = await carol.submit(ProcessSpec(("true",)), needs=SMALL)
        waits = await anext(e async for e in job.events() if isinstance(e, JobWaits))
        assert waits.awaited is Awaited.PEERS
        await until(told)
        with gate(home, port) as second:
            second.line_with("to invite others")
            await runs(tmp_path, "dave", join)
            (result,) = await job
            assert result.status == "succeeded"
            await alice.close()
    assert told()[:2] == ["lost", "back"]
