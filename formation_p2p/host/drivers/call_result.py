"""A large result of a call, on its way from the interpreter to the owner of the lease."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, replace
from typing import Final, Self

import trio

from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.core.units import format_bytes
from formation_p2p.core.workload.outcome import Failed, FailureKind, Outcome, Succeeded
from formation_p2p.core.workload.parcel import Parcel, places_of
from formation_p2p.host.blobs.segment import check_sealed, moved
from formation_p2p.host.drivers import python_parcels
from formation_p2p.host.drivers.driver import BlobAccess, Execution

# Of stat(2), whatever the file system.
_BLOCK_BYTES: Final = 512


@dataclass(slots=True)
class GivenResult:
    """`file` is memory that has what the parcel has beside `pickled`. Call `kept` or `close`."""

    pickled: bytes
    pickle_bytes: int
    buffers: tuple[int, ...]
    file: int

    @classmethod
    def take(cls, body: bytes, data: socket.socket) -> Self | None:
        """The memory is the next on the data socket. None for what no interpreter of ours sends:
        the call may write too."""
        try:
            note, flags = len(python_parcels.NOTE), socket.MSG_CMSG_CLOEXEC
            _, files, _, _ = socket.recv_fds(data, note, 1, flags)
        except OSError:
            return None
        if not files:
            return None
        given = cls(b"", 0, (), files[0])
        size, head = len(body), python_parcels.PARCEL.size
        if size >= head:
            given.pickle_bytes, here, count = python_parcels.PARCEL.unpack_from(body)
            end = head + count * python_parcels.SIZE.size
            if end + here == size:
                sizes = python_parcels.SIZE.iter_unpack(body[head:end])
                given.buffers, given.pickled = tuple(each for (each,) in sizes), body[end:]
                return given
        given.close()
        return None

    async def kept(
        self, outcome: Outcome, execution: Execution, blobs: BlobAccess | None, *, counted: bool
    ) -> Outcome:
        """The outcome of the call, with the record of its parcel. `counted`: the kernel holds the
        memory against the interpreter for as long as there is any of it, with the owner too."""
        size = places_of((self.pickle_bytes, *self.buffers))[-1]
        allowed = isinstance(outcome, Succeeded)
        try:
            if blobs is None:
                self.close()
                raise LocalError("the driver has no access to private blobs")
            try:
                self._check_written(size)
            except LocalError:
                self.close()
                raise
            file = self.file
            if counted:
                with trio.CancelScope(shield=True):  # else the file may stay open
                    file = await trio.to_thread.run_sync(moved, file, size)
            blob = await blobs.keep_result(file, size, execution, allowed=allowed)
            record = Parcel(self.pickled, self.pickle_bytes, self.buffers, blob).encode()
        except (InvalidInput, LocalError) as problem:
            if isinstance(outcome, Failed):
                return replace(outcome, message=f"{outcome.message}; it is not kept: {problem}")
            why = f"its result of {format_bytes(size)} cannot be kept: {problem}"
            return Failed(FailureKind.OUTPUT, why)
        return replace(outcome, result=record)

    def _check_written(self, size: int) -> None:
        """That it is memory of this size, and all of it was paid for by the interpreter: a hole in
        it costs that nothing, and this process its size once it is copied. Raises LocalError."""
        status = os.fstat(self.file)
        if status.st_size != size or status.st_blocks * _BLOCK_BYTES < size:
            raise LocalError("the interpreter has written something else")
        check_sealed(self.file, size)

    def close(self) -> None:
        os.close(self.file)
