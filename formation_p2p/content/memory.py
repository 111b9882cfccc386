"""The private blobs that this node has: in memory up to a bound, past it in files.

Memory is that of a file without a name (memfd_create(2)), which other processes map: nothing is
copied on the way to them. It is sealed, so that they cannot write to it. Those that this node has
filled itself it uses again, since new pages cost four times as much as copying into them: it keeps
a mapping from before they were sealed, and waits until all readers have said that they have done
with them. All methods may be called from any thread.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import mmap
import os
import queue
import secrets
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from formation_p2p.content.files import write_pieces
from formation_p2p.content.lent_blob import Lent
from formation_p2p.content.segment import Segment, check_sealed
from formation_p2p.core.errors import LocalError, NodeClosed
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import MIB
from formation_p2p.workload.core.blob import NAME_BYTES
from formation_p2p.workload.core.parcel import places_of

log = logging.getLogger(__name__)

# Of the machine's memory: the rest is for what the arguments are made of, and what tasks take.
MEMORY_SHARE: Final = 4
# Held in memory, and kept to be used again. Each has two descriptors, of 1,024 that a process has.
MAX_SEGMENTS: Final = 192
# Kept to be used again: a few arrays of the size that one worker reads while the next is written.
MAX_SPARE_BYTES: Final = 512 * MIB
MAX_SPARE: Final = 32
# ...for so long. A caller that goes on does it within this; else the memory is for others.
SPARE_S: Final = 10.0
# Named at all. Those past the bounds of memory are files.
MAX_PRIVATE: Final = 65_536


@dataclass(slots=True)
class _Held:
    """One private blob: in a segment of ours, in memory that is sealed (`file`), or at `path`.

    `readers` have its descriptor and have not said that they have done with it. `spoilt` is one
    that may be read for ever. Over the network `peer` alone may read it, where there is one. A
    file that `stays` is not removed here.
    """

    size_bytes: int
    segment: Segment | None = None
    file: int | None = None
    path: Path | None = None
    holders: int = 1
    readers: int = 0
    spoilt: bool = False
    peer: PeerId | None = None
    stays: bool = False

    def opened(self) -> int:
        """Raises OSError."""
        if self.path is not None:
            return os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        file = self.file if self.segment is None else self.segment.file
        assert file is not None
        return fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 3)

    def remove(self) -> None:
        if self.path is not None and not self.stays:
            self.path.unlink(missing_ok=True)


class Memory:
    """What private blobs take of it: segments of ours, the spare ones too, and files that others
    have filled. `used_bytes` is all of that, `limit_bytes` the most. From any thread."""

    def __init__(self, limit_bytes: int, spare_bytes: int, spare_s: float) -> None:
        self.limit_bytes: Final = limit_bytes
        self.used_bytes = 0
        self._spare_bytes, self._spare_s = spare_bytes, spare_s
        self._lock = threading.Lock()
        self._spare: deque[Segment] = deque()  # the longest unused first
        self._segments = 0
        self._files = 0

    def is_full(self, more_bytes: int) -> bool:
        """Whether it has no room for another file of so many bytes."""
        with self._lock:
            return self._files >= MAX_SEGMENTS or self._is_past_bounds(more_bytes)

    def holds(self, size_bytes: int) -> None:
        """One more file."""
        with self._lock:
            self.used_bytes += size_bytes
            self._files += 1

    def lets_go(self, size_bytes: int) -> None:
        """Of a file."""
        with self._lock:
            self.used_bytes -= size_bytes
            self._files -= 1

    def segment(self, size_bytes: int, pieces: Sequence[memoryview] = ()) -> Segment | None:
        """A spare one of about this size, or a new one, with these pieces; None where it is past
        the bounds. Blocks."""
        capacity = -(-size_bytes // MIB) * MIB
        spare = self._take_spare(size_bytes, capacity)
        if spare is not None:
            try:
                spare.fill(pieces)
            except BaseException:
                self.drop(spare)
                raise
            return spare
        with self._lock:
            while self._spare and self._is_past_bounds(capacity):
                self._dropped(self._spare.popleft())
            if self._is_past_bounds(capacity):
                return None
            self.used_bytes += capacity
            self._segments += 1
        try:
            return Segment(capacity, pieces)
        except OSError as error:
            with self._lock:
                self.used_bytes -= capacity
                self._segments -= 1
            if error.errno not in (errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOSPC):
                raise LocalError(f"no memory to share: {error.strerror}") from error
            return None

    def spare(self, segment: Segment) -> None:
        """No process reads it, or has it mapped: it may be used again."""
        with self._lock:
            segment.spare_since_s = time.monotonic()
            self._spare.append(segment)
        self.trim(all_of_it=False)

    def drop(self, segment: Segment) -> None:
        with self._lock:
            self._dropped(segment)

    def trim(self, *, all_of_it: bool) -> None:
        """Give back the spare segments that were not used for a while."""
        now_s = time.monotonic()
        while True:
            with self._lock:
                spare_bytes = sum(segment.size_bytes for segment in self._spare)
                old = self._spare and self._spare[0].spare_since_s + self._spare_s <= now_s
                too_much = spare_bytes > self._spare_bytes or len(self._spare) > MAX_SPARE
                if not (old or too_much or (all_of_it and self._spare)):
                    return
                segment = self._spare.popleft()
            self.drop(segment)

    def _take_spare(self, size_bytes: int, capacity: int) -> Segment | None:
        with self._lock:
            for segment in reversed(self._spare):
                if size_bytes <= segment.size_bytes <= 2 * capacity:
                    self._spare.remove(segment)
                    return segment
        return None

    def _is_past_bounds(self, more_bytes: int) -> bool:
        too_many = self._segments >= MAX_SEGMENTS
        return too_many or self.used_bytes + more_bytes > self.limit_bytes

    def _dropped(self, segment: Segment) -> None:
        segment.close()
        self.used_bytes -= segment.size_bytes
        self._segments -= 1


class PrivateBlobs:
    """See the module. `open` says which folder is for what does not fit into `memory`; `close` lets
    go of all of it."""

    def __init__(
        self,
        limit_bytes: int | None = None,
        spare_bytes: int = MAX_SPARE_BYTES,
        spare_s: float = SPARE_S,
        max_blobs: int = MAX_PRIVATE,
    ) -> None:
        self._max_blobs = max_blobs
        self._folder: Path | None = None
        if limit_bytes is None:
            pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
            limit_bytes = pages // MEMORY_SHARE
        self.memory = Memory(limit_bytes, spare_bytes, spare_s)
        self._lock = threading.Lock()
        self._held: dict[bytes, _Held] = {}
        self._dropped_names: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def open(self, folder: Path) -> None:
        self._folder = folder

    def __len__(self) -> int:
        return len(self._held)

    def put(self, pieces: Sequence[memoryview]) -> tuple[bytes, int]:
        """Keep these, laid out as in a parcel, until `release`. Returns the name and the size.
        Raises LocalError where neither memory nor the disk has room."""
        self._release_dropped()
        size = places_of(piece.nbytes for piece in pieces)[-1]
        segment = self.memory.segment(size, pieces)
        path = self._written(pieces, size) if segment is None else None
        return self._add(_Held(size, segment, path=path)), size

    def room(self, size_bytes: int) -> Room:
        """Room for a blob that comes from elsewhere. Blocks, while its pages are made. Raises
        LocalError."""
        segment = self.memory.segment(size_bytes)
        path = self._written((), size_bytes) if segment is None else None
        return Room(self, _Held(size_bytes, segment, path=path))

    def adopt(self, file: int, size_bytes: int, peer: PeerId | None = None) -> bytes:
        """Keep memory that another process has filled, whose descriptor is given away: where there
        is a `peer`, for that alone. Its name. Past the bounds of memory it is copied to a file.
        Raises LocalError for what is not a memory file of this size, or can be written to, and
        where the disk has no room; `file` is closed then."""
        try:
            check_sealed(file, size_bytes)
            path = self._copied(file, size_bytes) if self.memory.is_full(size_bytes) else None
        except BaseException:
            os.close(file)
            raise
        if path is None:
            return self._add(_Held(size_bytes, file=file, peer=peer))
        os.close(file)
        return self._add(_Held(size_bytes, path=path, peer=peer))

    def _copied(self, file: int, size_bytes: int) -> Path:
        content = mmap.mmap(file, size_bytes, prot=mmap.PROT_READ)
        with content, memoryview(content) as view:
            return self._written([view], size_bytes)

    def _add(self, held: _Held, name: bytes = b"") -> bytes:
        name = name or secrets.token_bytes(NAME_BYTES)
        with self._lock:
            if len(self._held) < self._max_blobs:
                self._held[name] = held
                if held.file is not None:
                    self.memory.holds(held.size_bytes)
                return name
        self._forget(held)
        raise LocalError(f"{self._max_blobs} private blobs are held; wait until calls have ended")

    def keep_file(self, name: bytes, path: Path, size_bytes: int) -> None:
        """Have the file at `path`, which is others' to remove. Raises LocalError."""
        self._add(_Held(size_bytes, path=path, stays=True), name)

    def hold(self, name: bytes) -> bool:
        """One more holder; False where it is not here."""
        with self._lock:
            held = self._held.get(name)
            if held is None:
                return False
            held.holders += 1
            return True

    def release(self, name: bytes) -> None:
        """One holder less; with the last it is gone for new readers."""
        with self._lock:
            held = self._held.get(name)
            if held is None:
                return
            held.holders -= 1
            if held.holders:
                return
            del self._held[name]
            if held.file is not None:
                self.memory.lets_go(held.size_bytes)
            if held.readers:
                return
        self._forget(held)

    def release_soon(self, name: bytes) -> None:
        """As `release`, for finalizers: they may interrupt what holds the lock."""
        self._dropped_names.put(name)

    def _release_dropped(self) -> None:
        with suppress(queue.Empty):
            while True:
                self.release(self._dropped_names.get_nowait())

    def lend(self, name: bytes, peer: PeerId | None = None) -> Lent | None:
        """For a reader, which is to call `Lent.done`; None where it is not here, or for another
        `peer`. Raises OSError."""
        with self._lock:
            held = self._held.get(name)
            if held is None or (peer is not None and held.peer not in (None, peer)):
                return None
            held.readers += 1
            try:
                file = held.opened()
            except BaseException:
                held.readers -= 1
                raise
        memory = None if held.segment is None else held.segment.view[: held.size_bytes]
        return Lent(file, held.size_bytes, lambda clean: self._returned(held, clean), memory)

    def _returned(self, held: _Held, clean: bool) -> None:
        with self._lock:
            held.readers -= 1
            held.spoilt = held.spoilt or not clean
            if held.holders or held.readers:
                return
        self._forget(held)

    def _forget(self, held: _Held) -> None:
        """It has neither holders nor readers."""
        held.remove()
        if held.file is not None:
            os.close(held.file)
        if held.segment is not None and held.spoilt:
            self.memory.drop(held.segment)
        elif held.segment is not None:
            self.memory.spare(held.segment)

    def trim(self, *, all_of_it: bool = False) -> None:
        """Give back the memory of what finalizers released, and of spare segments that were not
        used for a while."""
        self._release_dropped()
        self.memory.trim(all_of_it=all_of_it)

    def _written(self, pieces: Sequence[memoryview], size: int) -> Path:
        if self._folder is None:
            raise NodeClosed("the node is not entered, or was left; nothing can be kept for it")
        path = self._folder / f"{secrets.token_hex(8)}.private"
        write_pieces(path, pieces, size)
        return path

    def close(self) -> None:
        """Readers keep what they have opened, and all else goes."""
        with self._lock:
            self._folder = None
            held, self._held = list(self._held.values()), {}
        for each in held:
            if each.file is not None:
                self.memory.lets_go(each.size_bytes)
            each.holders = 0
            if not each.readers:
                self._forget(each)
            else:
                each.remove()
        self.trim(all_of_it=True)


class Room:
    """Where a blob is written that comes from elsewhere: `view`. Call `keep` or `give_back`."""

    def __init__(self, blobs: PrivateBlobs, held: _Held) -> None:
        self._blobs, self._held = blobs, held
        self._map: mmap.mmap | None = None
        if held.segment is not None:
            self.view = held.segment.view[: held.size_bytes]
        else:
            assert held.path is not None
            with held.path.open("r+b") as file:
                self._map = mmap.mmap(file.fileno(), held.size_bytes)
            self.view = memoryview(self._map)

    def keep(self) -> bytes:
        """All of it is there: the name under which it is held. Raises LocalError."""
        self._end()
        return self._blobs._add(self._held)

    def give_back(self) -> None:
        self._end()
        self._blobs._forget(self._held)

    def _end(self) -> None:
        self.view.release()
        if self._map is not None:
            with suppress(BufferError):  # as above
                self._map.close()
