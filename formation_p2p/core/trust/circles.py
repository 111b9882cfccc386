"""The circles that others share with this node, by the grants that they show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId
from formation_p2p.core.trust.grants import rights_of
from formation_p2p.core.trust.network import Network
from formation_p2p.core.workload.scope import NOWHERE, Place, Scope, scope_between


@dataclass(frozen=True, slots=True)
class Circles:
    own: PeerId
    place: Place
    root_public_key: bytes

    @classmethod
    def of(cls, own: PeerId, network: Network) -> Self:
        """Those of a node that is in this network."""
        root_public_key = network.root_public_key
        return cls(own, _place_of(network.grant, root_public_key), root_public_key)

    def scope_of(self, grant: bytes, peer_id: PeerId) -> Scope:
        """The smallest circle that a peer shares with this one, or the commons without a grant of
        this network. Whether it may show the grant is checked elsewhere."""
        if peer_id == self.own:
            return Scope.LOCAL
        return scope_between(self.place, _place_of(grant, self.root_public_key))


def _place_of(grant: bytes, root_public_key: bytes) -> Place:
    try:
        return rights_of(grant, root_public_key).place
    except InvalidInput:
        return NOWHERE
