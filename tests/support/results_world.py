"""Results as a worker pickles them, honest and hostile."""

import pickle
import subprocess
import sys
from collections.abc import Iterable
from typing import Any

import cloudpickle

from formation_p2p.drivers.result_pickler import MARKED, dumps
from formation_p2p.results.load import load_result
from tests.support.waiting import HANGS_S


class Call:
    """What a hostile worker would have its caller call: a marker, with any arguments."""

    def __init__(self, marker: str, *arguments: object) -> None:
        self._reduced = (getattr(MARKED, marker), arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._reduced


def hostile(value: object) -> bytes:
    return pickle.dumps(value, 5)


def travelled(value: object, *, trust: bool = False) -> Any:
    """As it comes back in the pickle alone."""
    return load_result(dumps(value), trust=trust)


def travelled_beside(value: object) -> Any:
    """As it comes back with its buffers beside the pickle, in memory that can be written."""
    beside: list[pickle.PickleBuffer] = []
    pickled = dumps(value, beside.append)
    return load_result(pickled, buffers=[memoryview(bytearray(each.raw())) for each in beside])


def sent(*classes: type) -> None:
    """As a caller sends a function that uses them: by value."""
    cloudpickle.dumps(classes)


# Each in a fork: what a process has had at the most never falls.
_READS = """
import importlib, os, resource, sys
list(map(importlib.import_module, sys.argv[1:]))
from formation_p2p.core.errors import NotPlain
from formation_p2p.results.load import load_result
pickles = sys.stdin.buffer
while size := int.from_bytes(pickles.read(4), "big"):
    pickled = pickles.read(size)
    if os.fork() == 0:
        before, refusal = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, ""
        try:
            load_result(pickled)
        except NotPlain as error:
            refusal = error
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, refusal, flush=True)
        os._exit(0)
    os.wait()
"""


def read_apart(pickles: Iterable[bytes], *imported: str) -> list[tuple[str, int]]:
    """Of each, read in a process of its own that has imported these modules, why it is refused, and
    by how many bytes the process grew."""
    framed = b"".join(len(each).to_bytes(4, "big") + each for each in pickles)
    command = [sys.executable, "-c", _READS, *imported]
    done = subprocess.run(command, input=framed, capture_output=True, timeout=HANGS_S, check=True)
    lines = (line.partition(" ") for line in done.stdout.decode().splitlines())
    return [(refusal, 1024 * int(grown_kib)) for grown_kib, _, refusal in lines]
