"""What a network takes in which nothing is to do."""

import asyncio

import psutil

from formation_demo.local_network import LocalNetwork
from formation_p2p import Node
from tests.support.waiting import until


async def test_a_worker_that_waits_takes_next_to_nothing() -> None:
    """Once all that its start left to do is done, however busy the machine is."""
    watched_s = 10.0
    async with LocalNetwork(workers=1) as network:
        async with Node.join(network.invite, home=network.home, listen=()) as alice:
            await network.seen_by(alice)
        worker = psutil.Process(network.workers[0].process.pid)

        async def rests() -> bool:
            before = worker.cpu_times()
            await asyncio.sleep(watched_s)
            after = worker.cpu_times()
            busy_s = after.user - before.user + after.system - before.system
            return busy_s / watched_s < 0.02

        await until(rests)
        assert worker.memory_info().rss < 150e6
