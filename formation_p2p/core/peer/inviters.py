"""Which peers may renew a grant by the charter, and where they are.

A node that has just joined knows neither the charter nor any peer but its gates. A search reads the
charter at the peers nearest to its name, and then looks up each inviter that is not in the routing
table.
"""

from __future__ import annotations

from formation_p2p.core.dht import messages as kad
from formation_p2p.core.dht.kademlia import Kademlia
from formation_p2p.core.dht.operations import Asked, OperationId, Published, Searched
from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import PeerId, peer_id_to_bytes
from formation_p2p.core.records.profile import SignedProfile
from formation_p2p.core.trust.charter import Charter
from formation_p2p.core.trust.charter_shelf import charter_name
from formation_p2p.core.trust.membership import Membership


class Inviters:
    """`search` for them; hand in every operation that ends."""

    def __init__(
        self, dht: Kademlia[SignedProfile], membership: Membership, network_id: bytes
    ) -> None:
        self._dht = dht
        self._membership = membership
        self._charter_name = charter_name(network_id)
        self._reading: OperationId | None = None
        # By the search for each: at most MAX_INVITERS of the charter.
        self._finding: dict[OperationId, PeerId] = {}
        self._found: list[Contact] = []

    @property
    def charter(self) -> Charter | None:
        return self._membership.charter

    def known(self) -> list[Contact]:
        """All peers of the routing table, the inviters first."""
        named = self._named()
        return sorted(self._dht.table, key=lambda each: each.peer_id not in named)

    def search(self, now: Moment) -> None:
        """Ends with the inviters that answered."""
        self._finding, self._found = {}, []
        request = kad.GetValue(self._charter_name)
        self._reading = self._dht.search(request, now, "the charter names inviters")

    def ended(
        self, completed: Searched[SignedProfile] | Published | Asked, now: Moment
    ) -> list[Contact] | None:
        """The inviters that were found, once the last operation of a search has ended."""
        operation = completed.operation
        if operation == self._reading:
            self._reading = None
            for peer_id in sorted(self._named()):
                request = kad.FindNode(peer_id_to_bytes(peer_id))
                self._finding[self._dht.search(request, now, "find an inviter")] = peer_id
        elif operation in self._finding and isinstance(completed, Searched):
            peer_id = self._finding.pop(operation)
            self._found += (each for each in completed.closest if each.peer_id == peer_id)
        else:
            return None
        return None if self._finding else self._found

    def _named(self) -> frozenset[PeerId]:
        charter = self.charter
        return frozenset() if charter is None else charter.inviters
