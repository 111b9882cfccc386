"""Who may read what is in a node's store: members, as far as rules, the charter and leases say."""

from __future__ import annotations

from collections.abc import Callable

from formation_p2p.core.data.messages import Open
from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.core.trust.membership import Membership
from formation_p2p.core.trust.network import place_of
from formation_p2p.core.workload.blob import Blob, Cid
from formation_p2p.core.workload.data_rule import DataRule
from formation_p2p.host.blobs.owners_places import OwnersPlaces
from formation_p2p.host.blobs.rules import rule_of
from formation_p2p.host.blobs.store import BlobStore
from formation_p2p.host.clock import moment


class Readers:
    """For the trio thread."""

    def __init__(
        self, store: BlobStore, me: PeerId, membership: Membership, grant: Callable[[], bytes]
    ) -> None:
        """`grant` is that of this node."""
        self._store = store
        self._me = me
        self._membership = membership
        self._grant = grant
        # Whether this node has a lease of a peer.
        self.leases_of: Callable[[PeerId], bool] = lambda peer_id: False
        self.owners_places = OwnersPlaces()

    def admit(self, peer: Contact, grant: bytes) -> str | None:
        """Why a peer, which showed `grant`, is not served; None where it is a member."""
        denied = self._membership.denies_membership(grant, peer.peer_id, moment())
        return None if denied is None else str(denied)

    def admit_to(self, peer: Contact, opening: Open) -> str | None:
        """Why a member may not read this; None where it may."""
        of_owner = self._store.rules(opening.cid)
        rules = of_owner or self._common_rules(opening.cid)
        if not rules or peer.peer_id == self._me:
            return None
        if (delegation := opening.delegation) is None:
            party = self._is_party(opening.cid, peer.peer_id)
        else:
            network = self._membership.root_public_key
            if why := delegation.refuses(peer.peer_id, network, moment().unix_s):
                return why
            # The owner asks: what the peer itself may read does not matter.
            party = delegation.owner in self._store.parties(opening.cid)
        if party and not of_owner:
            return None  # a worker of another circle reads what its task is to have
        denied = self._membership.denies_read(
            rules, opening.grant, peer.peer_id, moment(), party=party
        )
        if denied is None and of_owner and rule_of(opening) not in of_owner:
            # It would hold it by another rule, or for all: somebody outside had it asked.
            return "has it by the rule of its owner; pass on the reference that the owner made"
        return denied

    def _is_party(self, cid: Cid, peer_id: PeerId) -> bool:
        """Whether it is here for a peer's leases, or is of this node, whose workers read it."""
        is_ours = peer_id == self._me or self.leases_of(peer_id)
        return peer_id in self._store.parties(cid) or (is_ours and self._is_own(cid))

    def _common_rules(self, cid: Cid) -> tuple[DataRule, ...]:
        """What the charter says of content without a rule: around those whose it is."""
        around = list(self.owners_places.of(cid))
        if self._is_own(cid) or not around:
            around.append(place_of(self._grant(), self._membership.root_public_key))
        return tuple(rule for each in around for rule in self._membership.common_rule(each))

    def _is_own(self, cid: Cid) -> bool:
        return self._me in self._store.parties(cid) or self._store.is_own(cid)

    def is_for_others(self, blob: Blob, owner: PeerId) -> bool:
        """See `BlobStore.is_for_others`. Without a rule, where its circle leaves this owner out."""
        is_party = self._is_party(blob.cid, owner)
        if self._store.is_for_others(blob, is_party=is_party):
            return True
        is_plain = self._store.holds(blob.cid) and not self._store.rules(blob.cid)
        if is_party or not is_plain or (place := self.owners_places.now(owner)) is None:
            return False
        rules = self._common_rules(blob.cid)
        return bool(rules) and all(each.refuses(place, "", is_party=False) for each in rules)

    def admit_nearby(self, peer: Contact, grant: bytes, cid: Cid) -> str | None:
        """As `admit`; content with rules goes over the network alone."""
        if self._store.rules(cid) or self._common_rules(cid):
            return "has rules for it, and serves it over the network alone"
        return self.admit(peer, grant)
