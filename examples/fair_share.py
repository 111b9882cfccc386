"""Two owners at a machine with one core: who came second does not wait for all of the other's work.

python -m examples.fair_share

It takes a minute and a half: a lease is safe for a slice of 60 seconds, then it gives way.
"""

import asyncio
import tempfile
import time
from pathlib import Path

from formation_p2p import Home, Limits, Node, ProcessSpec, Rights, TaskSucceeded

LISTEN = ("/ip4/127.0.0.1/tcp/0",)
DAY_S = 86_400
ONE_CORE = Limits(cpu_milli=1000, memory_bytes=1 << 28)
NEEDS = "cpu=1,memory=64MiB"
SECOND = ProcessSpec(("sleep", "1"))


async def why_it_waits(node: Node) -> str:
    """As `formation explain` and `formation usage` say it."""
    async with asyncio.timeout(60):
        while True:
            for each in (await node.explain(f"{NEEDS},driver=process")).ranked:
                if "slice" in str(each.lacking):
                    return str(each.lacking)
            await asyncio.sleep(0.5)


async def main(folder: Path) -> None:
    home = Home(folder / "anna")
    home.create_network()
    async with Node.join(home=home.path, listen=LISTEN) as anna:
        home.add_gate(anna.addresses[0])
        # Two invites: to all that were made of one, peers of one owner, a worker gives one share.
        bobs, daves = (home.invite(Rights(int(time.time()) + DAY_S)) for _ in range(2))
        async with (
            Node.join(bobs, name="bob", home=folder / "bob", listen=()) as bob,
            Node.join(daves, name="dave", home=folder / "dave", listen=()) as dave,
        ):
            await anna.worker(limits=ONE_CORE)
            much = await bob.submit([SECOND] * 100, needs=NEEDS)
            async for event in much.events():
                if isinstance(event, TaskSucceeded):
                    break
            little = await dave.submit(SECOND, needs=NEEDS)
            why = await why_it_waits(dave)
            print(f"dave waits: {why.partition(', in ')[0]}")
            await little
            left = sum(much.result(task.task_id) is None for task in much.tasks)
            print(f"dave is done while bob has more to do: {left > 0}")
            much.cancel()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as given:
        asyncio.run(main(Path(given)))
