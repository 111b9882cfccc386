"""Run an MPI program over the network of a gang: every rank is a worker that this program starts,
and MPICH, as it comes from PyPI, finds the others by the names m0, m1 and m2.

pip install mpich mpi4py
python -m examples.allreduce
"""

import asyncio
import os
import socket
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from subprocess import PIPE, STDOUT
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))  # where `examples` is

from formation_demo.local_network import LocalNetwork
from formation_p2p import Node

RANKS = 3
# Any port will do: nothing else is in this network.
PORT = 2222
# What MPI runs on every rank.
PROGRAM = """
import array, time
from mpi4py import MPI
world = MPI.COMM_WORLD
mine = array.array("d", [world.rank + 1.0]) * 2**19
total = array.array("d", [0.0]) * len(mine)
world.Barrier()
began = time.monotonic()
for _ in range(4):
    world.Allreduce(mine, total)
took = time.monotonic() - began
moved = 4 * 2 * len(mine) * 8 * (world.size - 1) / world.size
if world.rank == 0:
    print(f"{world.size} ranks; the sum is {total[0]:g}; {moved / took / 1e6:.0f} MB/s on each")
"""
# Instead of ssh: hand the command to the rank that waits for it, and print what it prints.
REMOTE = """#!{python}
import socket, sys, time
for _ in range(200):
    try:
        end = socket.create_connection((sys.argv[1], {port}))
        break
    except OSError:
        time.sleep(0.05)
end.sendall(" ".join(sys.argv[2:]).encode() + b"\\n")
while data := end.recv(65536):
    sys.stdout.buffer.write(data)
    sys.stdout.flush()
"""


def mpiexec() -> Path:
    """Of MPICH, which must be installed where this runs: here, and on every worker."""
    try:
        distribution("mpi4py")
        files = distribution("mpich").files or ()
    except PackageNotFoundError as lacking:
        what = f"{lacking.name} is not installed for {sys.executable}"
        raise RuntimeError(f"{what}; run: {sys.executable} -m pip install mpich mpi4py") from None
    found = next(each for each in files if each.name == "mpiexec")
    return Path(str(found.locate())).resolve()


def allreduce(member: Any, program: str = PROGRAM) -> str:
    """Runs on every rank. Rank 0 starts the program, the others what it has them start."""
    bin = mpiexec().parent
    settings = {
        **os.environ,
        "PATH": f"{bin}:{os.environ['PATH']}",
        "LD_LIBRARY_PATH": str(bin.parent / "lib"),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    # The same folder on every rank, where each has its own: its sandbox's, in memory.
    folder = Path("/tmp")
    (folder / "program.py").write_text(program)
    if member.rank > 0:
        with socket.create_server((f"m{member.rank}", PORT)) as waiting:
            end, _ = waiting.accept()
        with end:
            command = end.makefile().readline()
            subprocess.run(command, shell=True, stdout=end.fileno(), env=settings, check=False)
        return ""
    remote = folder / "remote"
    remote.write_text(REMOTE.format(python=sys.executable, port=PORT))
    remote.chmod(0o700)
    hosts = ",".join(f"m{rank}" for rank in range(member.size))
    launcher = ("-launcher", "rsh", "-launcher-exec", str(remote))
    ranks = ("-n", str(member.size), "-ppn", "1", "-wdir", str(folder))
    argv = ("mpiexec", *launcher, "-hosts", hosts, *ranks, sys.executable, "program.py")
    ended = subprocess.run(argv, env=settings, stdout=PIPE, stderr=STDOUT, text=True, check=False)
    if ended.returncode:
        raise RuntimeError(ended.stdout)
    return ended.stdout.strip()


async def main() -> None:
    mpiexec()  # the workers, which this starts, have the same Python
    async with (
        LocalNetwork(workers=RANKS) as network,
        Node.join(network.invite, home=network.home, listen=()) as node,
    ):
        await network.seen_by(node)
        async with node.gang(RANKS, needs="cpu=1,memory=512MiB", network="gang") as gang:
            printed = await gang.run(allreduce)
        print(printed[0])


if __name__ == "__main__":
    asyncio.run(main())
