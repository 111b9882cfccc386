"""Large pickles, in the interpreter that runs the calls: read where they lie, in memory that the
node has handed over.

`python_child.py` loads this file with the first of them; nothing of this package is imported. What
comes is a body of parcels, the call's own and then those that it refers to, and in one message on
the data socket a descriptor for each that has memory. A parcel is a PARCEL, the SIZE of each buffer
and the pickle, unless that is in the memory: there it comes first, and each piece at the next
multiple of ALIGNMENT_BYTES. The mapping is private, so that what a call writes is its own.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
import weakref

TYPE_CHECKING = False  # as in supervisor.py
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

# Bytes of the pickle in memory, and here, and how many buffers there are.
PARCEL = struct.Struct("!QII")
SIZE = struct.Struct("!Q")
# As in core/workload/parcel.py.
ALIGNMENT_BYTES = 64
# One for the call, and one for each reference.
MAX_FILES = 129
# What a message with descriptors has beside them: it cannot be empty.
NOTE = b"+"

_forks = 0


def forking() -> None:
    global _forks
    _forks += 1


os.register_at_fork(before=forking)


class Parcels:
    """The parcels of one call, in memory until they are loaded."""

    def __init__(self, body: bytes, data: int) -> None:
        """Takes the descriptors of the next message."""
        self.forks = _forks
        with socket.socket(fileno=os.dup(data)) as connection:
            files = socket.recv_fds(connection, len(NOTE), MAX_FILES)[1]
        try:
            maps = [mmap.mmap(file, 0, mmap.MAP_PRIVATE) for file in files]
        finally:
            for file in files:
                os.close(file)
        self.maps = [weakref.ref(each) for each in maps]
        self.parts = list(parts(memoryview(body), maps))

    def load(self, load: Callable[..., Any]) -> Any:
        """What the first of them is the pickle of."""
        (pickled, buffers), *others = self.parts
        self.parts = []
        values: dict[int, Any] = {}

        def referred(index: int) -> Any:
            if index not in values:
                values[index] = load(*others[index])
            return values[index]

        return load(pickled, buffers, referred if others else None)

    def are_kept(self) -> bool:
        """Whether any of the memory may still be used, now that the call is over."""
        self.parts = []
        return self.forks != _forks or any(each() is not None for each in self.maps)


def parts(body: memoryview, maps: list[mmap.mmap]) -> Iterator[tuple[Any, list[memoryview]]]:
    """Of each parcel its pickle and its buffers."""
    at = used = 0
    while at < len(body):
        inside, here, count = PARCEL.unpack_from(body, at)
        at += PARCEL.size
        sizes = [size for (size,) in SIZE.iter_unpack(body[at : at + count * SIZE.size])]
        at += count * SIZE.size
        pickled = body[at : at + here]
        at += here
        buffers: list[memoryview] = []
        if inside or any(sizes):
            memory = memoryview(maps[used])
            used += 1
            place = inside
            if inside:
                pickled = memory[:inside]
            for size in sizes:
                place += -place % ALIGNMENT_BYTES
                buffers.append(memory[place : place + size])
                place += size
        yield pickled, buffers
