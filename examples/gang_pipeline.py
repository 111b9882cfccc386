"""A model in stages over three workers, one for each rank: activations go from one to the next.

    formation network create          # once, and a worker in each of three other terminals
    formation worker
    python examples/gang_pipeline.py

Each layer is a matrix. `pipeline` gives consecutive layers to each member, so that the slowest
stage is as fast as can be and none has more than fits into its memory. Every member computes its
layers on what it reads from the stream of the one before, and writes to the next; the last returns
the sums.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from array import array
from collections.abc import Iterator
from typing import Any

from formation_p2p import Node, Part

LAYERS, WIDTH, BATCHES = 9, 48, 8


def layer(number: int) -> list[array[float]]:
    """Its weights, by row: made up, and the same wherever it is made."""
    return [
        array(
            "d",
            [((number + 1) * (row + 3) * (column + 7) % 13 - 6) / 40 for column in range(WIDTH)],
        )
        for row in range(WIDTH)
    ]


def applied(weights: list[array[float]], activations: array[float]) -> array[float]:
    """A layer, with a rectifier behind it."""
    products = (sum(map(float.__mul__, row, activations)) for row in weights)
    return array("d", [max(product, 0.0) + 0.01 for product in products])


def received(stream: socket.socket) -> Iterator[array[float]]:
    """The activations of each batch, until the member before has no more."""
    with stream, stream.makefile("rb") as data:
        while head := data.read(4):
            batch: array[float] = array("d")
            batch.frombytes(data.read(struct.unpack("!I", head)[0]))
            yield batch


def stage(member: Any, stages: list[tuple[int, list[int]]]) -> list[float]:
    """What a member does: `stages` has the layers of each rank in the order of the pipeline."""
    mine = [rank for rank, _ in stages].index(member.rank)
    weights = [layer(number) for number in stages[mine][1]]
    batches: Iterator[array[float]]
    if mine == 0:
        batches = (array("d", [float(n + batch) for n in range(WIDTH)]) for batch in range(BATCHES))
    else:
        connection, _ = member.listen("activations").accept()
        batches = received(connection)
    behind = member.connect(stages[mine + 1][0], "activations") if mine + 1 < len(stages) else None
    sums = []
    for activations in batches:
        for each in weights:
            activations = applied(each, activations)
        if behind is None:
            sums.append(sum(activations))
        else:
            data = activations.tobytes()
            behind.sendall(struct.pack("!I", len(data)) + data)
    if behind is not None:
        behind.close()
    return sums


def alone() -> list[float]:
    """The same on one machine."""
    sums = []
    for batch in range(BATCHES):
        activations = array("d", [float(n + batch) for n in range(WIDTH)])
        for number in range(LAYERS):
            activations = applied(layer(number), activations)
        sums.append(sum(activations))
    return sums


async def main(node: Node) -> None:
    size = WIDTH * 8
    parts = [
        Part(
            f"layer{number}",
            work=WIDTH * WIDTH,
            memory_bytes=WIDTH * size,
            sends={f"layer{number + 1}": size} if number + 1 < LAYERS else {},
        )
        for number in range(LAYERS)
    ]
    async with node.gang(3, needs="cpu=0.5,memory=128MiB") as gang:
        found = gang.partition(parts, "pipeline")
        print(found.explain())
        stages = [
            (rank, [int(name.removeprefix("layer")) for name in found.of(rank)])
            for rank in found.ranks
        ]
        calls = [gang.call(rank, stage, stages) for rank, _ in stages]
        sums = (await asyncio.gather(*calls))[-1]
        print("the same as on one machine:", sums == alone())
        for used in gang.usage():
            print(f"rank {used.rank}: {used.memory_bytes >> 20} MiB")


async def joined() -> None:
    async with Node.join(listen=()) as node:
        await main(node)


if __name__ == "__main__":
    asyncio.run(joined())
