"""Who needs which content of the cache: a job, the code of a call, an environment.

Content with a holder is not evicted. The holders that are jobs of a node's state are kept on the
disk, in one file each of one CID a line, and are found again by the next incarnation.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.workload.core.blob import Cid

log = logging.getLogger(__name__)

# Each is an entry of some hundred bytes and, where it is durable, a file.
MAX_HOLDERS: Final = 4096
# Of all holders together: four for each blob that the cache may have.
MAX_HOLDS: Final = 65_536
# A durable holder of which the node has not heard for as long has no state any more.
FORGOTTEN_S: Final = 30 * 24 * 3600.0
# A job's id, a digest or a word: it names a file.
_NAME: Final = re.compile(r"[0-9A-Za-z_-]{1,128}")
_LINE_CHARS: Final = 128


class Holders:
    """Blocks on the disk. The store calls it under its lock. Call `load` first."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._held: dict[str, set[Cid]] = {}
        self._durable: set[str] = set()
        self._count: Counter[Cid] = Counter()

    def load(self) -> None:
        """Raises OSError."""
        oldest_s = time.time() - FORGOTTEN_S
        for path in self._root.iterdir() if self._root.exists() else ():
            status = path.stat()
            too_long = status.st_size > MAX_HOLDS * _LINE_CHARS
            if too_long or status.st_mtime < oldest_s or not _NAME.fullmatch(path.name):
                log.warning("%s holds nothing any more and is removed", path)
                path.unlink()
                continue
            self._durable.add(path.name)
            self._count_in(path.name, _read(path))

    def hold(self, holder: str, cids: Iterable[Cid], *, durable: bool) -> None:
        """Raises InvalidInput for a holder that cannot name a file, LocalError past the bounds,
        OSError; nothing is held then that was not before."""
        if not _NAME.fullmatch(holder):
            raise InvalidInput("holder", f"{holder!r} is not 1 to 128 of 0-9, A-Z, a-z, _ and -")
        new = set(cids) - self._held.get(holder, set())
        if len(self._held.keys() | {holder}) > MAX_HOLDERS:
            raise LocalError(f"{MAX_HOLDERS} holders use this cache; end a job first")
        if sum(map(len, self._held.values())) + len(new) > MAX_HOLDS:
            raise LocalError(f"jobs need more than {MAX_HOLDS} blobs of this cache; end one first")
        if durable or holder in self._durable:
            self._write(holder, new)
            self._durable.add(holder)
        self._count_in(holder, new)

    def release(self, holder: str) -> tuple[Cid, ...]:
        """What has no holder from now on. Raises OSError."""
        held = self._held.pop(holder, set())
        self._count.subtract(held)
        free = tuple(cid for cid in held if not self._count[cid])
        for cid in free:
            del self._count[cid]
        if holder in self._durable:
            (self._root / holder).unlink(missing_ok=True)
            self._durable.discard(holder)
        return free

    def __contains__(self, holder: str) -> bool:
        return holder in self._held

    def need(self, cid: Cid) -> bool:
        return cid in self._count

    def need_durably(self, cid: Cid) -> bool:
        return any(cid in self._held.get(holder, ()) for holder in self._durable)

    @property
    def durable(self) -> frozenset[str]:
        return frozenset(self._durable)

    def _count_in(self, holder: str, cids: set[Cid]) -> None:
        self._held.setdefault(holder, set()).update(cids)
        self._count.update(cids)

    def _write(self, holder: str, new: set[Cid]) -> None:
        """Before anything depends on it. What is cut short here is no CID, and is passed over."""
        self._root.mkdir(mode=0o700, exist_ok=True)
        lines = "\n".join(["", *map(str, sorted(new))])  # from a new line on, after a cut one
        with (self._root / holder).open("a", encoding="ascii") as file:
            file.write(lines)
            file.flush()
            os.fsync(file.fileno())


def _read(path: Path) -> set[Cid]:
    cids: set[Cid] = set()
    for line in path.read_text(encoding="ascii", errors="replace").splitlines():
        try:
            if line:
                cids.add(Cid.parse(line))
        except InvalidInput:
            log.warning("a line of %s is cut short and is passed over", path)
    return cids
