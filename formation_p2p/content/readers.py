"""Who may read what is in a node's store: members, as far as rules, the charter and leases say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from formation_p2p.content.core.messages import Open
from formation_p2p.content.places import UNKNOWN
from formation_p2p.content.rules import rule_of
from formation_p2p.content.store import BlobStore
from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.core.latest import Latest
from formation_p2p.machine.clock import moment
from formation_p2p.trust.core.grants import Right
from formation_p2p.trust.core.membership import Membership
from formation_p2p.trust.core.network import place_of
from formation_p2p.workload.core.blob import Blob, Cid
from formation_p2p.workload.core.data_rule import DataRule
from formation_p2p.workload.core.scope import Place

# The owners for whom content was fetched or made here are in circles. Content without a rule of its
# own is read within these circles, also after the leases of its owners have ended.
# Contents whose owners are known, the latest; more than a cache has, as a rule. Others are read
# around this node.
MAX_CONTENTS: Final = 16_384
# Of one content, the latest.
MAX_PLACES: Final = 16


class OwnersPlaces:
    def __init__(self, now: Callable[[PeerId], Place | None]) -> None:
        """`now` is where one is for whom content comes here."""
        self._now = now
        self._known = Latest[Cid, tuple[Place, ...]](MAX_CONTENTS)

    def came_for(self, cid: Cid, owner: PeerId) -> None:
        """The owner had it fetched from his own sources, or made. One who only names content that
        is here already does not add his circle."""
        if (place := self._now(owner)) is None:
            return
        self._known[cid] = tuple(dict.fromkeys((*self.of(cid), place)))[-MAX_PLACES:]

    def of(self, cid: Cid) -> tuple[Place, ...]:
        return self._known.get(cid, ())


# Of those without a lease here, whose grant is known: who asks that content be held, and who
# publishes services that run here. Of others it is not known what they may read.
MAX_SHOWN: Final = 1024


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
        # Whether this node has a lease of a peer; the grant of one that has a lease here.
        self.leases_of: Callable[[PeerId], bool] = lambda peer_id: False
        # Whether one runs what several workers are to agree on.
        self.is_checked: Callable[[PeerId], bool] = lambda peer_id: False
        self.grant_of_owner: Callable[[PeerId], bytes | None] = lambda peer_id: None
        self._shown = Latest[PeerId, bytes](MAX_SHOWN)
        self.owners_places = OwnersPlaces(self._place_of)

    def admit(self, peer: Contact, grant: bytes, right: Right | None = None) -> str | None:
        """Why a peer, which showed `grant`, is not served; None where it is a member, and has the
        right."""
        denied = self._membership.denies(grant, peer.peer_id, right, moment())
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
            if banned := self._membership.bans(delegation.owner):
                return str(banned)
            # The owner asks: what the peer itself may read does not let him read it.
            if delegation.owner not in self._store.parties(opening.cid):
                return "keeps it for the parties of its job, and the one that you read for is none"
            party = True
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

    def shows(self, owner: PeerId, grant: bytes) -> None:
        """One that has no lease here, and for whom content is to come."""
        self._shown[owner] = grant

    def _grant_of(self, owner: PeerId) -> bytes | None:
        return self.grant_of_owner(owner) or self._shown.get(owner)

    def _place_of(self, owner: PeerId) -> Place | None:
        grant = self._grant_of(owner)
        return None if grant is None else place_of(grant, self._membership.root_public_key)

    def is_for_others(self, blob: Blob, owner: PeerId) -> bool:
        """Whether what is here is not for this owner of a lease. See `BlobStore.is_for_others`."""
        is_party = self._is_party(blob.cid, owner)
        if self._store.is_for_others(blob, is_party=is_party):
            return True
        if is_party or not self._store.holds(blob.cid):
            return False
        return self._leave_out(self._store.rules(blob.cid) or self._common_rules(blob.cid), owner)

    def leaves_out(self, blob: Blob, owner: PeerId) -> bool:
        """Whether a rule, by which this node may read content itself, leaves out the owner of a
        lease for whom it is to come: it comes as far as he may read it, then."""
        if blob.rule is not None:
            return blob.rule.is_for_parties or self._leave_out((blob.rule,), owner)
        own = place_of(self._grant(), self._membership.root_public_key)
        return self._leave_out(self._membership.common_rule(own), owner)

    def _leave_out(self, rules: tuple[DataRule, ...], owner: PeerId) -> bool:
        if not rules or owner in (UNKNOWN, self._me):
            return False
        if (grant := self._grant_of(owner)) is None:
            return True
        why = self._membership.denies_read(rules, grant, owner, moment(), party=False)
        return why is not None

    def admit_nearby(self, peer: Contact, grant: bytes, cid: Cid) -> str | None:
        """As `admit`; content with rules goes over the network alone."""
        if self._store.rules(cid) or self._common_rules(cid):
            return "has rules for it, and serves it over the network alone"
        return self.admit(peer, grant)
