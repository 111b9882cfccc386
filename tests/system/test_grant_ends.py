"""A worker whose grant ends waits for a new one, and takes it up as it runs."""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from formation_p2p import (
    GrantEnded,
    JobEvent,
    Node,
    ProcessSpec,
    TaskPlaced,
    TaskRetried,
    Unauthorized,
)
from formation_p2p.command.status import status
from formation_p2p.machine.home import Home
from formation_p2p.trust.core.grant_form import MAX_EXPIRY_UNIX_S, Life
from formation_p2p.trust.core.grants import Right, Rights
from formation_p2p.trust.core.network import parse_invite
from tests.support.loopback import LISTEN
from tests.support.network import MACHINE, sees
from tests.support.waiting import until


def ends(home: Home) -> int:
    network = home.network()
    assert network is not None
    return network.rights.expires_unix_s


async def with_work(
    bob: Node, home: Path, invite: Callable[[int], str], lasts_s: int = 8
) -> tuple[Node, AsyncIterator[JobEvent]]:
    """A worker at which a task of bob's is, under a grant that ends soon: in twice the time, where
    the machine is so busy that it has ended before."""
    alice = job = None
    try:
        async with asyncio.timeout(lasts_s):
            alice = await Node.join(invite(lasts_s), home=home, listen=LISTEN)
            await alice.worker(limits=MACHINE)
            await sees(bob, 1)
            job = await bob.submit(ProcessSpec(("sleep", "600")))
            events = job.events()
            await anext(each async for each in events if isinstance(each, TaskPlaced))
            return alice, events
    except (TimeoutError, Unauthorized):
        if job is not None:
            job.cancel()
        if alice is not None:
            await alice.close()
        return await with_work(bob, home, invite, 2 * lasts_s)


async def is_withdrawn(node: Node) -> bool:
    """The issuer looks at what is now and then."""
    try:
        await node.renew()
    except Unauthorized as refused:
        return "was withdrawn" in str(refused)
    return False


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
            Node.join(invite(3600), home=tmp_path / "bob", listen=()) as bob,
            AsyncExitStack() as held,
        ):
            home = Home(tmp_path / "alice")
            alice, events = await with_work(bob, home.path, invite)
            held.push_async_callback(alice.close)
            why = ""
            while why != str(GrantEnded()):
                lost = await anext(x async for x in events if isinstance(x, TaskRetried))
                why = lost.attempt.why
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
            await until(lambda: is_withdrawn(alice))
    assert "formation network join" in caplog.text
