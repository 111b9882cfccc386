"""The charter in the DHT: a value record under one name, which every node of the network keeps.

A node that is handed a charter judges it, and adopts it where it counts more than its own. What it
has adopted it hands to all who ask. So a new version is with everyone soon, and peers that withhold
it only withhold it from those who ask no others.
"""

from __future__ import annotations

from formation_p2p.core.dht import messages as kad
from formation_p2p.core.effects import Moment
from formation_p2p.core.errors import BadRecord
from formation_p2p.core.trust.membership import Membership
from formation_p2p.core.trust.signed_charter import MAX_CHARTER_BYTES, SignedCharter

assert kad.MAX_CHARTER_BYTES == MAX_CHARTER_BYTES


def charter_name(network_id: bytes) -> bytes:
    """The DHT name of a network's charter."""
    return kad.CHARTER_PREFIX + network_id.hex().encode()


class CharterShelf:
    """See `Shelf` of dht/store.py. `adopted` is what counts since the last look; `refused` says why
    the last one that came did not."""

    def __init__(self, membership: Membership) -> None:
        self.name = charter_name(membership.network_id)
        self.adopted: SignedCharter | None = None
        self.refused = ""
        self._membership = membership

    def holds(self, name: bytes) -> bool:
        return name.startswith(kad.CHARTER_PREFIX)

    def keep(self, name: bytes, raw: bytes, now: Moment) -> bool:
        """Whether it is the charter here by now, or was already."""
        if name != self.name:
            return False
        known = self._membership.signed
        if known is not None and known.raw == raw:
            return True
        try:
            self.adopted = self._membership.adopt(raw, now)
        except BadRecord as error:
            self.refused = str(error)
            return False
        return True

    def heard(self, name: bytes, raw: bytes, now: Moment) -> None:
        """A peer answered with it."""
        self.keep(name, raw, now)

    def providers(self, request: kad.GetProviders, now: Moment) -> kad.Providers:
        return kad.Providers(())

    def value(self, name: bytes, now: Moment) -> bytes | None:
        signed = self._membership.signed
        return signed.raw if signed is not None and name == self.name else None

    def expire(self, now: Moment) -> None:
        """Nothing: the bans of one that has expired go on."""
