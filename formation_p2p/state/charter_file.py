"""The charter that a home's nodes go by, on disk: kept across restarts, and never an older one."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Final

import trio

from formation_p2p.core.errors import BadRecord, LocalError
from formation_p2p.machine.folders import write_durably
from formation_p2p.trust.core.network import Network
from formation_p2p.trust.core.signed_charter import MAX_CHARTER_BYTES, SignedCharter, kept_charter

if TYPE_CHECKING:
    from formation_p2p.assembly import Peer
    from formation_p2p.peer.core.events import OfferCharter

log = logging.getLogger(__name__)

# In a node's home.
FILE: Final = "charter"
# To look takes one call of the system.
LOOK_EVERY_S: Final = 2.0


class CharterFile:
    """Of the network that a home is in."""

    def __init__(self, home: Path, network: Network) -> None:
        self._path = home / FILE
        self._network = network
        self._stamp = self._look()

    def load(self) -> SignedCharter | None:
        """None where there is none, or none that can be read: then others have it."""
        try:
            with self._path.open("rb") as file:
                raw = file.read(MAX_CHARTER_BYTES + 1)
        except FileNotFoundError:
            return None
        except OSError as error:
            log.warning("%s cannot be read (%s): the charter is asked of others", self._path, error)
            return None
        try:
            return kept_charter(raw, self._network.root_public_key, self._network.network_id)
        except BadRecord as error:
            log.warning("%s is damaged (%s): the charter is asked of others", self._path, error)
            return None

    def write(self, charter: SignedCharter) -> None:
        """Keep it, unless there is a newer one, which another node of this home has adopted. Raises
        LocalError."""
        known = self.load()
        if known is not None and known.version > charter.version:
            return
        try:
            write_durably(self._path, charter.raw, f"{FILE}.{os.getpid()}.unfinished")
        except OSError as error:
            problem = f"{self._path}: {error.strerror}"
            raise LocalError(f"{problem}; see that this user may write there") from error

    async def keep(self, charter: SignedCharter) -> None:
        """As `write`, beside a node that goes on."""
        try:
            await trio.to_thread.run_sync(self.write, charter)
        except LocalError as error:
            log.warning("the charter cannot be kept: %s", error)

    async def watch(self, peer: Peer, feed: Callable[[OfferCharter], None]) -> None:
        """Have a node go by what is put there while it runs. Until cancelled."""
        from formation_p2p.peer.core.events import OfferCharter

        while True:
            await trio.sleep(LOOK_EVERY_S)
            stamp = self._look()
            if stamp == self._stamp:
                continue
            self._stamp = stamp
            charter = await trio.to_thread.run_sync(self.load)
            if charter is not None and charter.version > peer.membership.version:
                feed(OfferCharter(charter.raw))

    def _look(self) -> tuple[int, int]:
        try:
            status = self._path.stat()
        except OSError:
            return 0, 0
        return status.st_mtime_ns, status.st_ino
