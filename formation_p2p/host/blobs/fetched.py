"""Private blobs of others that later calls ask for again: functions, and what calls refer to.

They are kept by their owner and name, and a lease gets those of its own owner alone
(drivers/call_data.py). Past the bounds those that were used the longest ago go.
"""

from __future__ import annotations

import fcntl
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import trio

from formation_p2p.core.workload.private_blob import PrivateBlob
from formation_p2p.host.blobs.lent_blob import Lent
from formation_p2p.host.locks import KeyedLocks

# Each has a descriptor, of 1,024 that a process has, and one more for each call that reads it.
MAX_FETCHED: Final = 128
# Not asked for in so long: the caller has gone on to other things. To fetch it again takes as long
# as it took; on this machine, where it keeps the owner's memory from others, next to nothing.
IDLE_S: Final = 600.0
LOCAL_IDLE_S: Final = 10.0

log = logging.getLogger(__name__)

_Key = tuple[str, bytes, int]


def _key(blob: PrivateBlob) -> _Key:
    return blob.owner.peer_id, blob.name, blob.size_bytes


@dataclass(slots=True)
class _Kept:
    lent: Lent
    idle_s: float
    used_s: float = 0.0
    readers: int = 0
    is_out: bool = False  # of the cache

    def read(self) -> Lent:
        file = fcntl.fcntl(self.lent.file, fcntl.F_DUPFD_CLOEXEC, 3)
        self.readers += 1
        self.used_s = trio.current_time()
        return Lent(file, self.lent.size_bytes, self._returned)

    def _returned(self, clean: bool) -> None:
        self.readers -= 1
        self._close_unused()

    def go(self) -> None:
        self.is_out = True
        self._close_unused()

    def _close_unused(self) -> None:
        if self.is_out and not self.readers:
            self.lent.done(clean=False)  # interpreters keep it mapped


class FetchedBlobs:
    """For the trio thread. `fetch` brings one, and says how long it is kept unused."""

    def __init__(
        self,
        fetch: Callable[[PrivateBlob], Awaitable[tuple[Lent, float]]],
        limit_bytes: int,
        max_blobs: int = MAX_FETCHED,
    ) -> None:
        self._fetch = fetch
        self._limit_bytes = limit_bytes
        self._max_blobs = max_blobs
        self._kept: dict[_Key, _Kept] = {}  # that which was used last at the end
        self._turns = KeyedLocks[_Key]()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def kept_bytes(self) -> int:
        return sum(kept.lent.size_bytes for kept in self._kept.values())

    async def lend(self, blob: PrivateBlob) -> Lent:
        """Fetched once for all that ask for it meanwhile. Raises LocalError, RemoteError."""
        key = _key(blob)
        async with self._turns.of(key):
            kept = self._kept.pop(key, None)
            if kept is None:
                kept = _Kept(*await self._fetch(blob))
            self._kept[key] = kept
            lent = kept.read()
        self.trim()
        return lent

    def lend_kept(self, blob: PrivateBlob) -> Lent | None:
        """None where it has to be fetched."""
        key = _key(blob)
        kept = self._kept.pop(key, None)
        if kept is None:
            return None
        self._kept[key] = kept
        try:
            return kept.read()
        except OSError as error:  # for want of descriptors: to wait for it says so
            log.debug("what was kept cannot be lent: %s", error)
            return None

    def trim(self) -> None:
        """Let go of what was not used for long, and of what is past the bounds; but for the newest,
        which a call waits for."""
        now_s = trio.current_time()
        over_bytes = self.kept_bytes - self._limit_bytes
        for key, kept in [*self._kept.items()]:
            if now_s > kept.used_s + kept.idle_s and not kept.readers:
                pass
            elif len(self._kept) == 1 or not (over_bytes > 0 or len(self._kept) > self._max_blobs):
                continue
            over_bytes -= kept.lent.size_bytes
            del self._kept[key]
            kept.go()

    def close(self) -> None:
        kept, self._kept = [*self._kept.values()], {}
        for each in kept:
            each.go()
