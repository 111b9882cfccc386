"""A worker whose grant ends waits for a new one, and takes it up as it runs."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import pytest

from formation_p2p import GrantEnded, Node, ProcessSpec, TaskRetried, Unauthorized
from formation_p2p.cli.status import status
from formation_p2p.core.trust.grants import Right, Rights
from formation_p2p.core.trust.life import MAX_EXPIRY_UNIX_S, Life
from formation_p2p.core.trust.network import parse_invite
from formation_p2p.host.machine.home import Home
from tests.support.loopback import LISTEN
from tests.support.network import MACHINE, sees
from tests.support.waiting import until


def ends(home: Home) -> int:
    network = home.network()
    assert network is not None
    return network.rights.expires_unix_s


async def renewed_after(node: Node, seconds: float) -> None:
    """Once the issuer has looked at what is withdrawn."""
    await asyncio.sleep(seconds)
    await node.renew()


async def test_a_worker_whose_grant_has_ended_works_again_with_a_new_one(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    gate_home = Home(tmp_path / "gate")
    gate_home.create_network()

    def invite(lasts_s: int, life: Life | None = None) -> str:
        return gate_home.invite(Rights(int(time.time()) + lasts_s, frozenset(Right), life=life))

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
            # One that lasts for a while, and is renewed.
            home = Home(tmp_path / "alice")
            first = home.join(parse_invite(invite(12, Life(12, MAX_EXPIRY_UNIX_S))))
            await until(lambda: "has a new grant" in caplog.text)
            await sees(bob, 1)
            assert (await bob.run(["true"])).exit_code == 0
            await until(lambda: ends(home) > first.rights.expires_unix_s)
            await asyncio.to_thread(status, home.path, False)
            shown = capsys.readouterr().out
            assert f"node     {alice.name} …{alice.peer_id[-8:]}" in shown
            assert ": worker" in shown
            gate_home.withdraw(alice.peer_id)
            with pytest.raises(Unauthorized, match="was withdrawn"):
                await renewed_after(alice, 3.0)
    assert "formation network join" in caplog.text
