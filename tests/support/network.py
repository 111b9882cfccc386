"""A network of nodes in this process, over real libp2p on loopback."""

import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import psutil

from formation_p2p import Limits, Node
from formation_p2p.core.units import MIB
from formation_p2p.machine.home import Home
from formation_p2p.trust.core.grants import Rights
from tests.support.loopback import LISTEN
from tests.support.nodes import OpenNode
from tests.support.waiting import until

MACHINE: Final = Limits(cpu_milli=2000, memory_bytes=1024 * MIB)
NOTHING: Final[Mapping[str, Any]] = MappingProxyType({})


@asynccontextmanager
async def gate_at(folder: Path) -> AsyncIterator[Callable[..., str]]:
    """A running gate of a new network; what it gives makes invites, of rights that are
    limited as `Rights` says."""
    home = Home(folder / "gate")
    home.create_network()
    async with Node.join(home=home.path, listen=LISTEN) as gate:
        home.add_gate(gate.addresses[0])
        yield lambda **limits: home.invite(Rights(int(time.time()) + 3600, **limits))


@dataclass(frozen=True)
class SmallNetwork:
    """A gate, the worker alice, and bob, who submits."""

    folder: Path
    invite: str
    alice: OpenNode
    bob: OpenNode


@asynccontextmanager
async def small_network(
    folder: Path,
    *,
    limits: Limits = MACHINE,
    alice: Mapping[str, Any] = NOTHING,
    bob: Mapping[str, Any] = NOTHING,
    shares_memory: bool = True,
    **serves: Any,
) -> AsyncIterator[SmallNetwork]:
    """Yields once bob finds alice. `serves` says how alice works; `alice` and `bob` how their nodes
    join, where that differs: alice listens on loopback, bob nowhere. Where bob's memory is not
    shared, he is as on a machine of his own."""
    async with gate_at(folder) as invitation:
        invite = invitation()
        alices = {"home": folder / "alice", "listen": LISTEN, **alice}
        async with OpenNode.join(invite, **alices) as worker:
            await worker.worker(limits=limits, **serves)
            bobs = {"home": folder / "bob", "listen": (), **bob}
            joining = OpenNode.join(invite, **bobs)
            config = replace(joining.config, shares_memory=shares_memory)
            async with OpenNode(config) as person:
                await sees(person, 1)
                yield SmallNetwork(folder, invite, worker, person)


@asynccontextmanager
async def three_workers(folder: Path) -> AsyncIterator[tuple[Node, list[OpenNode]]]:
    """Bob, who finds three workers."""
    async with AsyncExitStack() as stack:
        invitation = await stack.enter_async_context(gate_at(folder))
        workers = []
        for name in ("alice", "carol", "dave"):
            joining = OpenNode.join(invitation(), home=folder / name, listen=LISTEN, name=name)
            worker = await stack.enter_async_context(joining)
            await worker.worker(limits=MACHINE)
            workers.append(worker)
        bob = OpenNode.join(invitation(), home=folder / "bob", listen=LISTEN)
        owner = await stack.enter_async_context(bob)
        await sees(owner, 3)
        yield owner, workers


async def sees(node: Node, workers: int) -> None:
    """Returns once a node finds so many workers."""

    async def found() -> bool:
        return len(await node.workers()) == workers

    await until(found, every_s=0.05)  # each time it asks the network


# To look for a program takes tens of milliseconds where many run.
LOOKS_S = 0.2


def runs(argument: str) -> bool:
    """Whether a program of this machine was called with this argument."""
    return any(
        argument in (each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])
    )
