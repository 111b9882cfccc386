"""Work for a machine that cannot be dialled, through a gate: whole nodes over loopback."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from formation_p2p import Home, Limits, Rights
from formation_p2p.command.node_socket import answer, sockets_of
from formation_p2p.command.words import Json
from formation_p2p.core.units import MIB
from formation_p2p.reach.circuit_settings import RelaySettings
from tests.support.loopback import LISTEN
from tests.support.network import sees
from tests.support.nodes import OpenNode
from tests.support.waiting import until

MACHINE = Limits(cpu_milli=2000, memory_bytes=1024 * MIB)
# An address that leads nowhere: so is one behind a router, for those that are not.
NOWHERE = "/ip4/127.0.0.1/tcp/9"


@dataclass
class Relayed:
    gate: OpenNode
    worker: OpenNode
    bob: OpenNode


@asynccontextmanager
async def relayed(folder: Path) -> AsyncIterator[Relayed]:
    """A gate, a worker that is reached through it alone, and bob, who submits."""
    home = Home(folder / "gate")
    home.create_network()
    async with OpenNode.join(home=home.path, listen=LISTEN, relay=RelaySettings()) as gate:
        home.add_gate(gate.addresses[0])
        invite = home.invite(Rights(2**31))
        hidden = OpenNode.join(invite, home=folder / "worker", listen=LISTEN, announce=(NOWHERE,))
        async with OpenNode(replace(hidden.config, reserves=True)) as worker:
            await worker.worker(limits=MACHINE)
            await until(lambda: any("p2p-circuit" in each for each in worker.addresses))
            far = OpenNode.join(invite, home=folder / "bob", listen=())
            async with OpenNode(replace(far.config, shares_memory=False)) as bob:
                await sees(bob, 1)
                yield Relayed(gate, worker, bob)


def answer_of(node: OpenNode) -> Json:
    """What `formation status` shows."""
    [status] = [answer(path, "status") for path in sockets_of(node.config.home.path)]
    return status


async def test_a_worker_that_cannot_be_dialled_runs_tasks_of_who_knows_its_circuit(
    tmp_path: Path,
) -> None:
    async with relayed(tmp_path) as world:
        assert await world.bob.map(lambda n: n * n, range(20)) == [n * n for n in range(20)]
        large = os.urandom(8 * MIB)
        [back] = await world.bob.map(bytes.upper, [large])
        assert back == large.upper()
        status = await asyncio.to_thread(answer_of, world.gate)
        relays = status["relays"]
        assert relays["serves"] == "members"
        assert relays["reservations"] == 1
        assert relays["circuits"] >= 1
        assert relays["relayed_bytes"] > 16 * MIB
        assert (await asyncio.to_thread(answer_of, world.bob))["relays"] is None
