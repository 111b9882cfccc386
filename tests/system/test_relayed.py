"""Work for a machine that cannot be dialled, through a gate: whole nodes over loopback."""

import asyncio
import os
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from formation_p2p import Home, JobHandle, Limits, ProcessSpec, Rights, TaskSucceeded, WorkerLost
from formation_p2p.command.node_socket import answer, sockets_of
from formation_p2p.command.words import Json
from formation_p2p.core.units import MIB
from formation_p2p.drivers.machine import Sandboxing
from formation_p2p.net.transport.addresses import TcpAddress
from formation_p2p.reach.circuit_settings import RelaySettings
from formation_p2p.reach.core.paths import Path as NetPath
from formation_p2p.reach.stack import Stack
from tests.support.loopback import LISTEN
from tests.support.network import sees
from tests.support.nodes import OpenNode
from tests.support.stillness import standing_still
from tests.support.waiting import until

INPUT_BYTES = 32 * MIB
MACHINE = Limits(cpu_milli=2000, memory_bytes=1024 * MIB)
# An address that leads nowhere: so is one behind a router, for those that are not.
NOWHERE = "/ip4/127.0.0.1/tcp/9"


@dataclass
class Relayed:
    gate: OpenNode
    worker: OpenNode
    bob: OpenNode


@asynccontextmanager
async def relayed(folder: Path, sandbox: Sandboxing = "auto") -> AsyncIterator[Relayed]:
    """A gate, a worker that is reached through it alone, and bob, who submits."""
    home = Home(folder / "gate")
    home.create_network()
    async with OpenNode.join(home=home.path, listen=LISTEN, relay=RelaySettings()) as gate:
        home.add_gate(gate.addresses[0])
        invite = home.invite(Rights(2**31))
        hidden = OpenNode.join(invite, home=folder / "worker", listen=LISTEN, announce=(NOWHERE,))
        async with OpenNode(replace(hidden.config, reserves=True)) as worker:
            await worker.worker(limits=MACHINE, sandbox=sandbox)
            await until(lambda: any("p2p-circuit" in each for each in worker.addresses))
            far = OpenNode.join(invite, home=folder / "bob", listen=())
            async with OpenNode(replace(far.config, shares_memory=False)) as bob:
                await sees(bob, 1)
                yield Relayed(gate, worker, bob)


def answer_of(node: OpenNode) -> Json:
    """What `formation status` shows."""
    [status] = [answer(path, "status") for path in sockets_of(node.config.home.path)]
    return status


def test_a_worker_that_cannot_be_dialled_runs_tasks_of_who_knows_its_circuit(
    tmp_path: Path,
) -> None:
    async def story() -> None:
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

    asyncio.run(story())


# -- from a circuit to a direct connection ---------------------------------------------------


class Upgraded:
    """Has bob dial the worker directly, which punching cannot do over loopback, and cuts that."""

    def __init__(self, world: Relayed) -> None:
        self._bob, self._worker = world.bob, world.worker
        self._address = ""
        self.path: NetPath | None = None

    async def begin(self) -> None:
        async def look(stack: Stack) -> None:
            [self._address] = stack.addresses

        self._worker.on_stack(look)
        await until(lambda: self._address)

    def go(self) -> None:
        async def dial(stack: Stack) -> None:
            parsed = TcpAddress.parse(self._address)
            connection = await stack.swarm.dialler.dial_address(parsed, self._worker.peer_id)
            stack.swarm.adopt_dialled(connection)

        self._bob.on_stack(dial)

    def cut(self) -> None:
        async def abort(stack: Stack) -> None:
            for connection in stack.swarm.connections_to(self._worker.peer_id):
                if connection.via is None:
                    connection.abort("cut, for a test")

        self._bob.on_stack(abort)

    async def reaches(self, path: NetPath) -> None:
        async def look(stack: Stack) -> None:
            self.path = stack.path_to(self._worker.peer_id)

        def is_there() -> bool:
            self._bob.on_stack(look)
            return self.path is path

        await until(is_there, every_s=0.05)


def test_a_job_goes_on_while_it_leaves_its_circuit_and_when_the_direct_way_is_cut_again(
    tmp_path: Path,
) -> None:
    """Many tasks, and one with a large input: all succeed, none is lost, each runs once."""
    cuts, tasks = 2, 200
    mark, large = tmp_path / "ran", tmp_path / "large"
    mark.touch()
    large.write_bytes(os.urandom(INPUT_BYTES))
    note = ("sh", "-c", 'echo "$1" >> "$2"', "sh")
    seen: Counter[type] = Counter()

    async def count(job: JobHandle) -> None:
        async for event in job.events():
            seen[type(event)] += 1

    async def story() -> None:
        async with relayed(tmp_path, "off") as world:
            way = Upgraded(world)
            await way.begin()
            specs = [ProcessSpec((*note, str(n), str(mark))) for n in range(tasks)]
            blob = await world.bob.put(large)
            reads = ProcessSpec(("cksum", "data"), inputs={"data": blob})
            jobs = [
                await world.bob.submit(each, needs="cpu=0.5,memory=64MiB")
                for each in (specs, [reads])
            ]
            async with asyncio.TaskGroup() as group:
                for job in jobs:
                    group.create_task(count(job))
                await until(lambda: seen[TaskSucceeded] >= 50)
                way.go()
                await way.reaches(NetPath.DIRECT)
                for turn in range(1, cuts + 1):
                    await until(lambda n=turn: seen[TaskSucceeded] >= 50 + 60 * n)  # type: ignore[misc]
                    way.cut()
                    await asyncio.sleep(0.2)
                    way.go()
                    await way.reaches(NetPath.DIRECT)
            assert seen[TaskSucceeded] == tasks + 1
            ran = Counter(mark.read_text().split())
            assert ran.keys() == set(map(str, range(tasks)))
            assert (seen[WorkerLost], ran.total()) == (0, tasks) or stood_still()

    with standing_still() as stood_still:
        asyncio.run(story())
