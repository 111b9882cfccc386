"""A gate that comes back has forgotten everybody; they do not leave it at that."""

import time
from pathlib import Path

from formation_p2p import Home, Limits, Node, Rights
from formation_p2p.core.units import MIB
from tests.support.loopback import LISTEN, free_port, tcp
from tests.support.waiting import until


async def test_a_worker_is_seen_again_soon_after_its_gate_restarted(tmp_path: Path) -> None:
    home = Home(tmp_path / "gate")
    home.create_network()
    listen = (tcp(free_port()),)
    async with Node.join(home=home.path, listen=listen) as gate:
        home.add_gate(gate.addresses[0])
        join = home.invite(Rights(int(time.time()) + 3600))
        alice = Node.join(join, home=tmp_path / "alice", listen=LISTEN)
        await alice.__aenter__()
        await alice.worker(limits=Limits(cpu_milli=1000, memory_bytes=512 * MIB))
        await _found(join, tmp_path)
    try:
        async with Node.join(home=home.path, listen=listen):
            await _found(join, tmp_path)
    finally:
        await alice.__aexit__(None, None, None)


async def _found(join: str, folder: Path) -> None:
    async def found() -> bool:
        async with Node.join(join, home=folder / "bob", listen=()) as bob:
            return len(await bob.workers()) == 1

    await until(found)
