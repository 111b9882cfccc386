"""The same arrays over plain TCP on loopback, from the memory of one process into that of another:
neither encrypted nor verified, and nothing is computed."""

from __future__ import annotations

import argparse
import socket
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from benchmarks.cpu import spent
from benchmarks.data.arrays import ITEM_BYTES, MB, Array, arguments_of, make
from benchmarks.dispatch.timing import percentile, put

# Nothing here takes longer, for 500 MB on two cores.
DEADLINE_S: Final = 60.0


def take(port: int, count: int, size_mb: int) -> None:
    """The other end: a byte goes back for each lot of arrays."""
    with socket.create_connection(("127.0.0.1", port)) as connection:
        while True:
            taken: list[Array] = []
            for _ in range(count):
                array: Array = np.empty(size_mb * MB // ITEM_BYTES)
                view = memoryview(array).cast("B")
                while len(view):
                    size = connection.recv_into(view)
                    if size == 0:
                        return
                    view = view[size:]
                taken.append(array)
            connection.sendall(b".")


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    rates: list[float] = []
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(DEADLINE_S)
        what = (str(server.getsockname()[1]), str(arguments.arrays), str(arguments.mb))
        taker = subprocess.Popen((sys.executable, "-m", "benchmarks.data.arrays_tcp", *what))
        connection, _ = server.accept()
        with connection:
            connection.settimeout(DEADLINE_S)
            for number in range(arguments.rounds + 1):
                arrays = make(arguments.arrays, arguments.mb, 1000 * number)
                with spent() as took:
                    send(connection, arrays)
                if number:  # the first is a warm-up
                    rates.append(arguments.arrays * arguments.mb / took.wall_s)
        taker.wait(DEADLINE_S)
    return {"mb_s": round(percentile(rates, 50), 1), "rounds_mb_s": [round(r, 1) for r in rates]}


def send(connection: socket.socket, arrays: Sequence[Array]) -> None:
    for array in arrays:
        connection.sendall(memoryview(array).cast("B"))
    if connection.recv(1) != b".":
        raise RuntimeError("the other end is gone")


if __name__ == "__main__":
    if len(sys.argv) == 4 and sys.argv[1].isdecimal():
        take(*map(int, sys.argv[1:]))
    else:
        put(measure(arguments_of(__doc__)))
