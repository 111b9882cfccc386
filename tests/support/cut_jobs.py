"""A job that goes through a relay of strangers, which cuts each circuit after 128 KiB."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from formation_p2p import Home, Limits, Rights
from formation_p2p.core.effects import Moment
from formation_p2p.core.units import KIB, MIB
from formation_p2p.drivers.core.effects import ExecutionsEnded
from formation_p2p.leases.core.session import Fence
from formation_p2p.reach.core.paths import Path as ConnectionPath
from formation_p2p.reach.stack import Stack
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome
from tests.support.loopback import LISTEN
from tests.support.network import sees
from tests.support.nodes import OpenNode
from tests.support.waiting import until

# Nowhere that a dial could succeed, so that circuits are all there is.
NOWHERE = "/ip4/127.0.0.1/tcp/9"
# Of no module, since that of a test would go along with it.
IN_HEX = "lambda content: content.hex()"
SIZE = "lambda content: len(content)"
TASKS = 300


def has_run(outcome: Outcome) -> bool:
    return not (isinstance(outcome, Failed) and outcome.kind is FailureKind.CANCELLED)


async def job_through(relay: str, folder: Path) -> None:
    """`relay` is its address. Many small tasks, and one with a large argument: each runs once."""
    runs: Counter[str] = Counter()
    expired: list[str] = []

    def count(event: object, effects: Sequence[object], now: Moment) -> None:
        # What is taken back before it began, because a task before it is slow, has not run.
        if isinstance(event, ExecutionsEnded):
            runs.update(each.attempt_id for each in event.ended if has_run(each.outcome))
        for effect in effects:
            if isinstance(effect, Fence) and effect.cause.endswith("expired"):
                expired.append(effect.cause)

    home = Home(folder / "gate")
    home.create_network()
    async with OpenNode.join(home=home.path, listen=LISTEN) as gate:
        home.add_gate(relay)
        home.add_gate(gate.addresses[0])
        invite = home.invite(Rights(2**31))
        hidden = OpenNode.join(invite, home=folder / "worker", listen=LISTEN, announce=(NOWHERE,))
        config = replace(hidden.config, reserves=True, observers=(count,))
        async with OpenNode(config) as worker:
            await worker.worker(limits=Limits(cpu_milli=1000, memory_bytes=512 * MIB))
            await until(lambda: any("p2p-circuit" in each for each in worker.addresses))
            far = OpenNode.join(invite, home=folder / "bob", listen=())
            async with OpenNode(replace(far.config, shares_memory=False)) as bob:
                await sees(bob, 1)
                small = [os.urandom(4 * KIB) for _ in range(TASKS)]
                in_hex = eval(IN_HEX, {"__name__": "__main__"})
                assert await bob.map(in_hex, small) == [each.hex() for each in small]
                size = eval(SIZE, {"__name__": "__main__"})
                assert await bob.map(size, [os.urandom(MIB)]) == [MIB]
                paths = []

                async def look(stack: Stack) -> None:
                    paths.append(stack.path_to(worker.peer_id))

                bob.on_stack(look)
                await until(lambda: paths == [ConnectionPath.RELAYED])
        assert len(runs) == sum(runs.values())
        # More are tried where a lease was lost to a machine that stood still, not to a cut.
        assert len(runs) == TASKS + 1 or expired, len(runs)
