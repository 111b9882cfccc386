"""Whether the write-ahead log of an SQLite file is damaged, looked at before SQLite opens it.

SQLite reads a log up to the first frame that does not verify, takes what follows for the rest of a
transaction that was never committed, and goes on without it. Where that frame was altered after it
was written, all that was committed from there on is lost without a word.

Committed are: what the index beside the log (-shm) counts, which a process that is killed leaves as
it was; and what another transaction follows, since a transaction begins once the one before it is
on the disk. So the last transaction of a machine that lost its power may be torn, and is no damage.

The formats: https://sqlite.org/fileformat2.html#walformat and https://sqlite.org/walformat.html.
"""

from __future__ import annotations

import shlex
import struct
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from formation_p2p.core.errors import StateError

_MAGIC: Final = 0x377F0682  # its last bit says that checksums are of big-endian words
_VERSION: Final = 3_007_000
_HEADER: Final = struct.Struct(">6I2I")
_FRAME: Final = struct.Struct(">2I8s2I")
# Of the index: two copies of this, in the byte order of the machine.
_INDEX: Final = struct.Struct("=3I2BH6I2I")
_INDEX_SUMMED_BYTES: Final = 40
_DATABASE_PAGE_SIZE_AT: Final = 16
_WORD: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class _Log:
    """`readable` frames are those that SQLite will take; `committed` is how many it has to."""

    readable: int
    committed: int
    frames: int
    frame_bytes: int


def check_log(path: Path, until_s: float) -> bool:
    """Whether the log of the database at `path`, which no process uses, was looked at whole by
    `until_s` on the monotonic clock. Raises StateError where it is damaged, OSError."""
    wal = path.with_name(f"{path.name}-wal")
    shm = path.with_name(f"{path.name}-shm")
    if not wal.exists() or wal.stat().st_size <= _HEADER.size:
        return True
    index = shm.read_bytes()[: 2 * _INDEX.size] if shm.exists() else None
    with wal.open("rb") as file:
        log = _read(file, wal.stat().st_size, _page_bytes(path), index, until_s)
    if log is None:
        return False
    if log.readable < log.committed:
        kept = _HEADER.size + log.readable * log.frame_bytes if log.readable else 0
        names = shlex.quote(str(wal)), shlex.quote(str(shm))
        raise StateError(
            f"{wal} is damaged: of {log.frames} pages that were logged, {log.readable} can be "
            f"read; put back a copy of {path.name} with what lies beside it, or go on without "
            f"what was stored last: truncate -s {kept} {names[0]} && rm -f {names[1]}"
        )
    return True


def _page_bytes(path: Path) -> int:
    with path.open("rb") as file:
        file.seek(_DATABASE_PAGE_SIZE_AT)
        size = int.from_bytes(file.read(2), "big")
    return 65_536 if size == 1 else max(size, 512)


def _read(
    file: BinaryIO, size_bytes: int, page_bytes: int, index: bytes | None, until_s: float
) -> _Log | None:
    raw = file.read(_HEADER.size)
    magic, version, logged_page_bytes, *_, sum0, sum1 = _HEADER.unpack(raw)
    order = ">" if magic & 1 else "<"
    salts, sums = raw[16:24], (sum0, sum1)
    is_sound = (
        magic & ~1 == _MAGIC
        and version == _VERSION
        and logged_page_bytes == page_bytes
        and _summed(raw[:24], (0, 0), order) == sums
    )
    frame_bytes = _FRAME.size + page_bytes
    frames = (size_bytes - _HEADER.size) // frame_bytes
    readable = committed = last = 0  # the numbers of frames that end a transaction
    for number in range(1, frames + 1):
        if time.monotonic() > until_s:
            return None
        file.seek(_HEADER.size + (number - 1) * frame_bytes)
        head = file.read(_FRAME.size)
        _, pages, own_salts, *own_sums = _FRAME.unpack(head)
        if number == 1 and not is_sound:
            salts = own_salts  # those of the header may be what was altered
        is_sound = is_sound and own_salts == salts
        if is_sound:
            sums = _summed(head[:8] + file.read(page_bytes), sums, order)
            is_sound = sums == tuple(own_sums)
        if own_salts != salts:
            continue  # of before the log began anew
        committed = max(committed, last)  # it has a frame after it
        if pages:
            last = number
            readable = number if is_sound else readable
    known = _indexed(index, salts)
    committed = last if known is None else max(committed, known)
    return _Log(readable, committed, frames, frame_bytes)


def _indexed(index: bytes | None, salts: bytes) -> int | None:
    """How many frames the index counts; 0 where it is of another log, or unreadable. None where
    there is none: then the log is a copy of what was committed."""
    if index is None:
        return None
    if len(index) < 2 * _INDEX.size:
        return 0
    first, second = index[: _INDEX.size], index[_INDEX.size :]
    fields = _INDEX.unpack(first)
    sums = _summed(first[:_INDEX_SUMMED_BYTES], (0, 0), "<" if sys.byteorder == "little" else ">")
    is_ours = first == second and sums == fields[-2:] and first[32:40] == salts
    return int(fields[6]) if is_ours else 0


def _summed(content: bytes, sums: tuple[int, int], order: str) -> tuple[int, int]:
    """SQLite's checksum of pairs of words, begun with that of what comes before."""
    words = struct.unpack(f"{order}{len(content) // 4}I", content)
    s0, s1 = sums
    for even, odd in zip(words[::2], words[1::2], strict=True):
        s0 = (s0 + even + s1) & _WORD
        s1 = (s1 + odd + s0) & _WORD
    return s0, s1
