"""A worker whose clock is an hour off: it gets no work, and all say why."""

import asyncio
import json
import sys
import time
from contextlib import ExitStack
from pathlib import Path

from formation_p2p import Home, Rights
from formation_p2p.trust.core.network import parse_invite
from tests.support.commands import LOOPBACK, formation, started
from tests.support.programs import running
from tests.support.waiting import until
from tests.support.worker_processes import working

# A program, on a machine whose clock is ahead.
AHEAD = """
import time
right = time.time
time.time = lambda: right() + 3690
"""
COMMAND = f"""{AHEAD}
from formation_p2p.command.start import main
main()
"""
# On one whose clock is behind.
CALLS = f"""{AHEAD.replace("+", "-")}
from formation_p2p import SyncNode, Unplaceable
with SyncNode.join(listen=()) as node:
    for ask in (lambda: node.map(abs, [1]), node.executor().parallelism):
        try:
            ask()
        except Unplaceable as error:
            print(error, flush=True)
"""


async def test_a_clock_that_is_an_hour_off_is_told_by_all(tmp_path: Path) -> None:
    gate = Home(tmp_path / "gate")
    gate.create_network()

    def invitation() -> str:
        return gate.invite(Rights(int(time.time()) + 30_000))

    def status(home: Path) -> list[str]:
        [node] = json.loads(formation(home, "status", "--json").out)["nodes"]
        found: list[str] = node["troubles"]
        return found

    with ExitStack() as power:
        program = power.enter_context(started(gate.path, "gate", *LOOPBACK))
        await asyncio.to_thread(program.line_with, "to invite others")
        await working(tmp_path, invitation, ("right", "right too"), power)
        wrong = tmp_path / "wrong"
        Home(wrong).join(parse_invite(invitation()))
        argv = ("worker", *LOOPBACK, "--cpu", "1", "--memory", "1GiB")
        worker = power.enter_context(
            running(sys.executable, "-c", COMMAND, *argv, FORMATION_HOME=str(wrong))
        )
        said = await asyncio.to_thread(worker.line_with, "this machine's clock is 61 min ahead of")
        assert "set it" in said

        async def is_told() -> bool:
            at_gate = await asyncio.to_thread(status, gate.path)
            return any("is 61 min ahead: no node finds it as a worker" in each for each in at_gate)

        await until(is_told, every_s=0.5)
        [own] = status(wrong)
        assert own.startswith("this machine's clock is 61 min ahead of")
        assert "trouble  this machine's clock is 61 min" in formation(wrong, "status").out.decode()
        listed = formation(gate.path, "workers", "--json")
        assert len(json.loads(listed.out)["workers"]) == 2
        assert "is 61 min ahead: no node finds it as a worker" in listed.err
        [node] = json.loads(formation(gate.path, "status", "--json").out)["nodes"]
        assert node["untimely_records"] > 0
        listed = formation(wrong, "workers")
        assert "this machine's clock is 61 min ahead of" in listed.err
        submitter = tmp_path / "wrong too"
        Home(submitter).join(parse_invite(invitation()))
        with running(sys.executable, "-c", CALLS, FORMATION_HOME=str(submitter)) as calls:
            for asked in ("of one task", "of all"):
                said = await asyncio.to_thread(calls.line_with, "no worker")
                assert "this machine's clock is 61 min behind" in said, asked
