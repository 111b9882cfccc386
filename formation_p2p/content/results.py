"""Large results of the calls that this machine runs, until their owners have fetched them.

Each is a private blob that only the owner of the lease may read. It goes with the acknowledgement,
or with the lease. One that is larger than its caller allows stays beyond the lease, so that the
work is not lost.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

import trio

from formation_p2p.content.memory import PrivateBlobs
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import LocalError
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import GIB, format_bytes
from formation_p2p.workload.core.blob import PrivateBlob

# What an owner does not fetch is kept no longer; a file that a task has made, for so long at least
# after each use (stage_outputs.py).
KEPT_S: Final = 3600.0
# Larger than their callers allow, of one owner and of all: the oldest give way to a new one.
MAX_UNALLOWED_BYTES: Final = 4 * GIB
MAX_UNALLOWED_OF_OWNER_BYTES: Final = 2 * GIB


@dataclass(frozen=True, slots=True)
class _Kept:
    """`of` is the lease and the attempt; None for one that its caller does not allow."""

    name: bytes
    size_bytes: int
    owner: PeerId
    of: tuple[str, str] | None
    until_s: float


class ResultBlobs:
    """For the trio thread. How much waits under a lease is bounded by the peer, which has it pause
    (drivers/core/executions.py)."""

    def __init__(
        self, blobs: PrivateBlobs, contact: Callable[[], Contact], kept_s: float = KEPT_S
    ) -> None:
        self._blobs = blobs
        self._contact = contact
        self._kept_s = kept_s
        self._kept: deque[_Kept] = deque()  # the oldest first

    async def keep(
        self, file: int, size_bytes: int, owner: PeerId, of: tuple[str, str] | None
    ) -> PrivateBlob:
        """See `BlobAccess.keep_result` (drivers/driver.py)."""
        if of is not None:
            return await self._keep(file, size_bytes, owner, of)
        if size_bytes > MAX_UNALLOWED_OF_OWNER_BYTES:
            os.close(file)
            raise LocalError(f"{format_bytes(size_bytes)} are too much to be kept for later")
        blob = await self._keep(file, size_bytes, owner, None)
        unallowed = [each for each in self._kept if each.of is None]
        of_owner = [each for each in unallowed if each.owner == owner]
        self._drop(_first_past(of_owner, MAX_UNALLOWED_OF_OWNER_BYTES))
        left = [each for each in unallowed if each in self._kept]
        self._drop(_first_past(left, MAX_UNALLOWED_BYTES))
        return blob

    async def _keep(
        self, file: int, size_bytes: int, owner: PeerId, of: tuple[str, str] | None
    ) -> PrivateBlob:
        if self._blobs.memory.is_full(size_bytes):  # it goes to the disk
            with trio.CancelScope(shield=True):  # else the file may stay open
                name = await trio.to_thread.run_sync(self._blobs.adopt, file, size_bytes, owner)
        else:
            name = self._blobs.adopt(file, size_bytes, owner)
        until_s = time.monotonic() + self._kept_s
        self._kept.append(_Kept(name, size_bytes, owner, of, until_s))
        return PrivateBlob(name, size_bytes, self._contact())

    def free(self, lease_id: str, attempt_ids: Iterable[str]) -> None:
        """Their owner has them."""
        fetched = {(lease_id, attempt_id) for attempt_id in attempt_ids}
        self._drop([each for each in self._kept if each.of in fetched])

    def lease_ended(self, lease_id: str) -> None:
        self._drop([x for x in self._kept if x.of is not None and x.of[0] == lease_id])

    def close(self) -> None:
        """The leases are gone, with the network stack."""
        self._drop(list(self._kept))

    def trim(self) -> None:
        """Those that were not fetched in time."""
        now_s = time.monotonic()
        self._drop([each for each in self._kept if each.until_s <= now_s])

    def _drop(self, gone: Iterable[_Kept]) -> None:
        for each in gone:
            self._kept.remove(each)
            self._blobs.release(each.name)


def _first_past(kept: list[_Kept], most_bytes: int) -> list[_Kept]:
    """The first of these, as many as are to go for the others to be within a bound."""
    left = sum(each.size_bytes for each in kept)
    gone: list[_Kept] = []
    for each in kept:
        if left <= most_bytes:
            break
        gone.append(each)
        left -= each.size_bytes
    return gone
