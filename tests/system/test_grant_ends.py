"""A worker whose grant ends waits for a new one, and takes it up as it runs."""

from __future__ import annotations

import asyncio
import logging
import time
from pathlib import Path

import pytest

from formation_p2p import GrantEnded, Node, ProcessSpec, TaskPlaced, TaskRetried, Unauthorized
from formation_p2p.cli.status import status
from formation_p2p.core.trust.grants import Right, Rights
from formation_p2p.core.trust.life import MAX_EXPIRY_UNIX_S, Life
from formation_p2p.core.trust.network import parse_invite
from formation_p2p.host.machine.home import Home
from tests.support.loopback import LISTEN
from tests.support.network import MACHINE, sees
from tests.support.waiting import HANGS_S, until


def ends(home: Home) -> int:
    network = home.network()
    assert network is not None
    return network.rights.expires_unix_s


async def renewed_until_it_is_withdrawn(node: Node) -> None:
    """The issuer looks now and then at what is."""
    async with asyncio.timeout(HANGS_S):
        while True:
            await node.renew()
            await asyncio.sleep(0.2)


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
            Node.join(invite(3600), home=tmp_path / "alice", listen=LISTEN) as alice,
            Node.join(invite(3600), home=tmp_path / "bob", listen=()) as bob,
        ):
            await alice.worker(limits=MACHINE)
            await sees(bob, 1)
            job = await bob.submit(ProcessSpec(("sleep", "600")))
            home = Home(tmp_path / "alice")
            why = ""
            async for event in job.events():
                if isinstance(event, TaskPlaced):
                    home.join(parse_invite(invite(4)))  # it takes that up, and works until then
                if isinstance(event, TaskRetried):
                    why = event.attempt.why
                if why == str(GrantEnded()):
                    break
            assert "grant ended on" in caplog.text
            await sees(bob, 0)
            # One of which little is left, so that it is renewed.
            first = home.join(parse_invite(invite(600, Life(3600, MAX_EXPIRY_UNIX_S))))
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
                await renewed_until_it_is_withdrawn(alice)
    assert "formation network join" in caplog.text
