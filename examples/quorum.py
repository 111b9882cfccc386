"""Have several workers run each call, and take what two of them agree on: on a network of three
workers that this program starts.

python -m examples.quorum
"""

import asyncio
import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # where `examples` is

from formation_demo.local_network import LocalNetwork
from formation_p2p import Disagreement, Node, Quorum

# The three are on one machine, by one invite: between strangers leave `apart` out.
TWO_OF_THREE = Quorum(2, of=3, apart=())

# By what a result is worth, in millionths: how many are to run the task, as ICN has it.
WORTH = ((100, "Low", 1), (1_000, "Medium", 2), (10_000, "High", 3))


def quorum_for(worth: int) -> tuple[str, Quorum | None]:
    """How a result of this worth is called, and who is to agree on it: most of those that run."""
    name, copies = next(((n, c) for below, n, c in WORTH if worth < below), ("Critical", 5))
    return name, Quorum(copies // 2 + 1, of=copies) if copies > 1 else None


def largest_prime(below: int) -> int:
    return max(n for n in range(2, below) if all(n % d for d in range(2, int(n**0.5) + 1)))


def noise(_: int) -> float:
    """Another one each time, as is the result of a worker that is broken."""
    return random.random()


async def main() -> None:
    async with (
        LocalNetwork(workers=3) as network,
        Node.join(network.invite, home=network.home, listen=()) as node,
    ):
        await network.seen_by(node)
        print(await node.map(largest_prime, [100, 1_000, 10_000], quorum=TWO_OF_THREE))
        try:
            await node.map(noise, [1], quorum=TWO_OF_THREE)
        except Disagreement as error:
            print(f"{len(error.answers)} answers, {len({v for _, v in error.answers})} different")
        checked = sum(each.successes for each in await node.trust())
        print(f"{checked} answers were the same as another worker's")


if __name__ == "__main__":
    asyncio.run(main())
