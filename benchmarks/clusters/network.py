"""The network of a gang: `net_mb_s`, `net_bytes_ok`, `net_copy_mb_s`.

Two workers, each a process of its own, on loopback. MPICH, unmodified, sums arrays over both of
them; then one copies to the other over one TCP connection. Bytes are those that the relays have
passed, which the devices of the tasks count: only the relay reads from one and writes to it.
`net_mb_s` is what passes one of them in both directions, `net_copy_mb_s` in one.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from typing import Any, Final

from examples.allreduce import allreduce
from formation_demo.local_network import LocalNetwork
from formation_p2p import Node

ARRAY_MIB: Final = 32
SUMS: Final = 8
COPY_MIB: Final = 1024

_SUM: Final = """
import array, json, pathlib, time
from mpi4py import MPI
def passed():
    counts = pathlib.Path("/sys/class/net/gang0/statistics")
    return sum(int((counts / name).read_text()) for name in ("rx_bytes", "tx_bytes"))
world = MPI.COMM_WORLD
mine = array.array("d", [world.rank + 1.0]) * (MIB * 2**17)
total = array.array("d", [0.0]) * len(mine)
world.Allreduce(mine, total)
world.Barrier()
before, began = passed(), time.monotonic()
for _ in range(SUMS):
    world.Allreduce(mine, total)
world.Barrier()
took = time.monotonic() - began
right = total[0] == total[-1] == world.size * (world.size + 1) / 2
if world.rank == 0:
    print(json.dumps([passed() - before, took, right]))
"""


def copied(member: Any, mib: int) -> float:
    """Bytes a second from rank 1 to rank 0, as that sees them come."""
    if member.rank == 1:
        member.barrier()
        with socket.create_connection(("m0", 5000)) as end:
            piece = bytes(2**20)
            for _ in range(mib):
                end.sendall(piece)
        return 0.0
    with socket.create_server(("m0", 5000)) as server:
        member.barrier()
        end, _ = server.accept()
    with end:
        began_s, size, into = time.monotonic(), 0, bytearray(2**20)
        while more := end.recv_into(into):
            size += more
        return size / (time.monotonic() - began_s)


async def _measured(mib: int, sums: int, copy_mib: int) -> dict[str, Any]:
    program = _SUM.replace("MIB", str(mib)).replace("SUMS", str(sums))
    async with (
        LocalNetwork(workers=2, cpu_milli=2000) as network,
        Node.join(network.invite, home=network.home, listen=()) as node,
    ):
        await network.seen_by(node)
        needs = "cpu=1,memory=1GiB"
        async with node.gang(2, needs=needs, network="gang") as gang:
            printed = (await gang.run(allreduce, program))[0]
            rate = (await gang.run(copied, copy_mib))[0]
    passed, took_s, right = json.loads(printed)
    # Two ranks: each sends its array to the other, and gets that of the other, in each sum.
    least = 2 * mib * 2**20 * sums
    return {
        "net_mb_s": round(passed / took_s / 1e6),
        "net_bytes_ok": bool(right and least <= passed <= 1.1 * least),
        "net_bytes": passed,
        "net_bytes_least": least,
        "net_copy_mb_s": round(rate / 1e6),
    }


def figures(mib: int = ARRAY_MIB, sums: int = SUMS, copy_mib: int = COPY_MIB) -> dict[str, Any]:
    """Needs MPICH and mpi4py in this environment, bubblewrap and /dev/net/tun."""
    return asyncio.run(_measured(mib, sums, copy_mib))


if __name__ == "__main__":
    print(json.dumps(figures(), indent=2))
