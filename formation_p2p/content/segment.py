"""Memory that other processes map: a file without a name, sealed."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence
from contextlib import suppress

from formation_p2p.content.files import write_all
from formation_p2p.content.mapping import copy
from formation_p2p.core.errors import LocalError
from formation_p2p.machine import platform
from formation_p2p.workload.core.parcel import places_of


class Segment:
    """Memory of `size_bytes`, that this process alone can write to. It begins with `pieces`, laid
    out as in a parcel."""

    def __init__(self, size_bytes: int, pieces: Sequence[memoryview] = ()) -> None:
        """Blocks, while other threads run. Raises OSError."""
        self.file = platform.memory_file("formation")
        try:
            os.ftruncate(self.file, size_bytes)
            # Pages that a write makes, or that are made at once, cost half of those that come one
            # by one as they are touched.
            if pieces:
                write_all(self.file, pieces)
            else:
                platform.allocate(self.file, size_bytes)
            self._map = mmap.mmap(self.file, size_bytes)
            platform.seal(self.file, but_for_maps=True)
        except BaseException:
            os.close(self.file)
            raise
        self.size_bytes = size_bytes
        self.spare_since_s = 0.0

    def fill(self, pieces: Sequence[memoryview]) -> None:
        """Blocks, while other threads run."""
        sizes = [piece.nbytes for piece in pieces]
        with memoryview(self._map) as into:
            for at, piece, size in zip(places_of(sizes), pieces, sizes, strict=False):
                copy(into[at : at + size], piece)

    @property
    def view(self) -> memoryview:
        return memoryview(self._map)

    def close(self) -> None:
        with suppress(BufferError):  # a fetch that failed may name a part of it still
            self._map.close()
        os.close(self.file)


def check_sealed(file: int, size_bytes: int) -> None:
    """Raises LocalError for all but memory of at least this size, which stays as it is."""
    try:
        is_sealed = platform.is_sealed(file)
    except OSError as error:
        raise LocalError("what was handed over is not memory") from error
    if not is_sealed:
        raise LocalError("what was handed over can still be changed")
    if os.fstat(file).st_size < size_bytes:
        raise LocalError("what was handed over is too short")


def moved(file: int, size_bytes: int) -> int:
    """The same in sealed memory of this process, as the kernel counts it; `file` is closed. Blocks.
    Raises LocalError."""
    own = platform.memory_file("formation")
    try:
        at = 0
        while at < size_bytes:
            if not (copied := os.sendfile(own, file, at, size_bytes - at)):
                raise LocalError("what was handed over is too short")
            at += copied
        platform.seal(own)
    except OSError as error:
        os.close(own)
        raise LocalError(f"no memory for a result: {error.strerror}") from error
    except BaseException:
        os.close(own)
        raise
    finally:
        os.close(file)
    return own
