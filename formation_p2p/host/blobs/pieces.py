"""Pieces of a parcel, in a file."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from formation_p2p.core.errors import LocalError
from formation_p2p.core.units import format_bytes
from formation_p2p.core.workload.parcel import places_of
from formation_p2p.host.blobs.files import check_disk


def write_pieces(
    path: Path, pieces: Sequence[memoryview], size: int, *, durable: bool = False
) -> None:
    """A new file, where they lie as in a parcel. With `durable` it is on the disk once this
    returns. Raises LocalError, and leaves nothing then."""
    folder = path.parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        check_disk(folder, size)
        with path.open("xb", buffering=0) as file:
            write_all(file.fileno(), pieces)
            os.ftruncate(file.fileno(), size)
            if durable:
                os.fsync(file.fileno())
    except OSError as error:
        with suppress(OSError):
            path.unlink()
        problem = f"{format_bytes(size)} cannot be kept: {error.strerror or error}"
        raise LocalError(f"{problem}; free some of the disk at {folder}") from error


def write_all(file: int, pieces: Sequence[memoryview]) -> None:
    """Pieces into a file, where they lie as in a parcel. Raises OSError."""
    sizes = [piece.nbytes for piece in pieces]
    for at, piece in zip(places_of(sizes), pieces, strict=False):
        rest = piece
        while rest:
            written = os.pwrite(file, rest, at)
            at, rest = at + written, rest[written:]
