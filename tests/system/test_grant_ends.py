"""A worker whose grant ends waits for a new one, and takes it up as it runs."""

from __future__ import annotations

import logging
import time
from pathlib import Path

import pytest

from formation_p2p import GrantEnded, Node, ProcessSpec, TaskRetried
from formation_p2p.core.trust.grants import Right, Rights
from formation_p2p.core.trust.network import parse_invite
from formation_p2p.host.machine.home import Home
from tests.support.loopback import LISTEN
from tests.support.network import MACHINE, sees
from tests.support.waiting import until


async def test_a_worker_whose_grant_has_ended_works_again_with_a_new_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    gate_home = Home(tmp_path / "gate")
    gate_home.create_network()

    def invite(lasts_s: int) -> str:
        return gate_home.invite(Rights(int(time.time()) + lasts_s, frozenset(Right)))

    caplog.set_level(logging.WARNING, logger="formation_p2p")
    async with Node.join(home=gate_home.path, listen=LISTEN) as gate:
        gate_home.add_gate(gate.addresses[0])
        async with (
            Node.join(invite(8), home=tmp_path / "alice", listen=LISTEN) as alice,
            Node.join(invite(3600), home=tmp_path / "bob", listen=()) as bob,
        ):
            await alice.worker(limits=MACHINE)
            await sees(bob, 1)
            job = await bob.submit(ProcessSpec(("sleep", "60")))
            async for event in job.events():
                if isinstance(event, TaskRetried):
                    assert event.attempt.why == str(GrantEnded())
                    break
            assert "grant ended on" in caplog.text
            await sees(bob, 0)
            Home(tmp_path / "alice").join(parse_invite(invite(3600)))
            await until(lambda: "has a new grant" in caplog.text)
            await sees(bob, 1)
            assert (await bob.run(["true"])).exit_code == 0
    assert "formation network join" in caplog.text
