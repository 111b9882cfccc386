"""Large pickles, in the interpreter that runs the calls: read where they lie, in memory that the
node has handed over; and results, which are handed to the node so.

`python_child.py` loads this file with the first of them; nothing of this package is imported. What
comes is a body of parcels, the call's own and then those that it refers to, and in one message on
the data socket a descriptor for each that has memory. A parcel is a name, a PARCEL, the SIZE of
each buffer and the pickle, unless that is in the memory: there it comes first, and each piece at
the next multiple of ALIGNMENT_BYTES.

The mapping of the call's own is private, so that what a call writes is its own. What it refers to
is mapped read-only and stays mapped for the calls that come, by its name; its value is read anew
for each call that takes it, unless no call can change it.

A result is one parcel, without a name, in memory that is sealed: nothing changes it any more.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import socket
import struct
import weakref

TYPE_CHECKING = False  # as in supervisor.py
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pickle import PickleBuffer
    from typing import Any

# Bytes of the pickle in memory, and here, and how many buffers there are.
PARCEL = struct.Struct("!QII")
SIZE = struct.Struct("!Q")
# In place of the name that it is kept by: it is the call's own.
OWN = bytes(16)
# As in workload/core/parcel.py.
ALIGNMENT_BYTES = 64
# One for the call, and one for each reference.
MAX_FILES = 129
# Kept beside those of the newest call: what a call refers to, and as much as four arrays of 256
# MiB. Its owner may have released it, and then this keeps it in memory.
MAX_KEPT = 128
MAX_KEPT_BYTES = 1024 * 1024 * 1024
# A pickle of more lies in memory; as there.
LARGE_BYTES = 256 * 1024
# As in python_child.py.
TOO_LARGE = b"L"
# What a message with descriptors has beside them: it cannot be empty.
NOTE = b"+"
# Of these, and tuples of them, one object serves all calls.
UNCHANGING = frozenset({int, float, complex, bool, str, bytes, type(None), range})
# How far tuples are looked into.
MAX_DEPTH = 8

_forks = 0


def forking() -> None:
    global _forks
    _forks += 1


os.register_at_fork(before=forking)


class Part:
    """One parcel: its pickle and its buffers, and its value once that is known to stay as it is."""

    def __init__(self, pickled: Any, buffers: list[memoryview], size_bytes: int) -> None:
        self.pickled = pickled
        self.buffers = buffers
        self.size_bytes = size_bytes
        self.values: list[Any] = []

    def load(self, load: Callable[..., Any]) -> Any:
        if self.values:
            return self.values[0]
        value = load(self.pickled, self.buffers)
        if is_unchanging(value):
            self.values.append(value)
        return value


kept: dict[bytes, Part] = {}  # by name, the one that was used last at the end


class Parcels:
    """The parcels of one call, in memory until they are loaded."""

    def __init__(self, body: bytes, data: int) -> None:
        """Takes the descriptors of the next message."""
        self.forks = _forks
        with socket.socket(fileno=os.dup(data)) as connection:
            files = socket.recv_fds(connection, len(NOTE), MAX_FILES)[1]
        self.maps: list[weakref.ref[mmap.mmap]] = []
        self.parts: list[Part] = []
        named: set[bytes] = set()
        try:
            self.take(body, iter(files), named)
        finally:
            for file in files:
                os.close(file)
        trim(named)

    def take(self, body: bytes, files: Iterator[int], named: set[bytes]) -> None:
        for name, inside, pickled, sizes in read(memoryview(body)):
            file = next(files) if inside or any(sizes) else None
            part = None if name == OWN else kept.pop(name, None)
            if part is None:
                mapped = None if file is None else self.map(file, own=name == OWN)
                part = part_of(mapped, inside, pickled, sizes)
            if name != OWN:
                kept[name] = part
                named.add(name)
            self.parts.append(part)

    def map(self, file: int, *, own: bool) -> mmap.mmap:
        if not own:
            return mmap.mmap(file, 0, access=mmap.ACCESS_READ)
        mapped = mmap.mmap(file, 0, mmap.MAP_PRIVATE)
        self.maps.append(weakref.ref(mapped))
        return mapped

    def load(self, load: Callable[..., Any]) -> Any:
        """What the first of them is the pickle of."""
        own, *others = self.parts
        self.parts = []
        values: dict[int, Any] = {}

        def referred(index: int) -> Any:
            if index not in values:
                values[index] = others[index].load(load)
            return values[index]

        return load(own.pickled, own.buffers, referred if others else None)

    def are_kept(self) -> bool:
        """Whether any of the call's own memory may still be used, now that it is over."""
        self.parts = []
        return self.forks != _forks or any(each() is not None for each in self.maps)


def trim(named: set[bytes]) -> None:
    """Forget those that were used the longest ago, past the bounds; not those of this call."""
    kept_bytes = sum(part.size_bytes for part in kept.values())
    for name in [*kept]:
        if name in named or (len(kept) <= MAX_KEPT and kept_bytes <= MAX_KEPT_BYTES):
            return
        kept_bytes -= kept.pop(name).size_bytes


def read(body: memoryview) -> Iterator[tuple[bytes, int, memoryview, list[int]]]:
    """Of each parcel its name, the size of its pickle in memory or the pickle, and the sizes of its
    buffers."""
    at = 0
    while at < len(body):
        name = bytes(body[at : at + len(OWN)])
        at += len(OWN)
        inside, here, count = PARCEL.unpack_from(body, at)
        at += PARCEL.size
        sizes = [size for (size,) in SIZE.iter_unpack(body[at : at + count * SIZE.size])]
        at += count * SIZE.size
        yield name, inside, body[at : at + here], sizes
        at += here


def part_of(mapped: mmap.mmap | None, inside: int, pickled: memoryview, sizes: list[int]) -> Part:
    if mapped is None:
        return Part(pickled, [memoryview(b"") for _ in sizes], 0)
    memory = memoryview(mapped)
    if inside:
        pickled = memory[:inside]
    place = inside
    buffers: list[memoryview] = []
    for size in sizes:
        place += -place % ALIGNMENT_BYTES
        buffers.append(memory[place : place + size])
        place += size
    return Part(pickled, buffers, len(memory))


def is_unchanging(value: object, depth: int = 0) -> bool:
    kind = type(value)
    if kind is tuple or kind is frozenset:
        return depth < MAX_DEPTH and all(is_unchanging(each, depth + 1) for each in value)  # type: ignore[attr-defined]  # they are iterated
    return kind in UNCHANGING


def handed_over(
    kind: bytes,
    message: bytes,
    pickled: bytes,
    buffers: list[PickleBuffer],
    data: int,
    max_bytes: int,
) -> tuple[bytes, bytes, bytes]:
    """What to reply to a call with such a result, once the node has that: it takes at most
    `max_bytes`."""
    size = len(pickled) + sum(each.raw().nbytes for each in buffers)
    problem = f"the result has {size} bytes, more than the {max_bytes} of memory leased"
    if size <= max_bytes:
        try:
            return kind.lower(), message, hand_over(pickled, buffers, data)
        except OSError as error:
            problem = f"the result of {size} bytes cannot be kept: {error.strerror or error}"
    return TOO_LARGE, problem.encode(), b""


def hand_over(pickled: bytes, buffers: list[PickleBuffer], data: int) -> bytes:
    """The body of a result's parcel, once the node has the memory. Raises OSError."""
    inside = len(pickled) > LARGE_BYTES or not buffers
    views = [each.raw() for each in buffers]
    memory = os.memfd_create("formation-result", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        place = 0
        for view in ([memoryview(pickled)] if inside else []) + views:
            place += -place % ALIGNMENT_BYTES
            rest = view
            while rest:
                written = os.pwrite(memory, rest, place)
                place, rest = place + written, rest[written:]
        # What has the sizes of all pieces in it ends at such a multiple.
        os.ftruncate(memory, place + -place % ALIGNMENT_BYTES)
        seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE | fcntl.F_SEAL_SEAL
        fcntl.fcntl(memory, fcntl.F_ADD_SEALS, seals)
        with socket.socket(fileno=os.dup(data)) as connection:
            socket.send_fds(connection, [NOTE], [memory])
    finally:
        os.close(memory)
    here = b"" if inside else pickled
    header = PARCEL.pack(len(pickled) if inside else 0, len(here), len(views))
    return b"".join((header, *(SIZE.pack(view.nbytes) for view in views), here))
