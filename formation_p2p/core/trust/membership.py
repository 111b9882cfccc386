"""Membership of this node's network, and the circles within it, by the grants that peers show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

from formation_p2p.core.effects import Moment
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId
from formation_p2p.core.records.profile import Profile
from formation_p2p.core.refusals import Denied
from formation_p2p.core.resources.requirements import Requirements
from formation_p2p.core.trust.grants import Right, check, read_grant
from formation_p2p.core.trust.network import Network
from formation_p2p.core.workload.scope import NOWHERE, Place, Scope, scope_between


@dataclass(frozen=True, slots=True)
class Membership:
    """Deny by default: everything here is None only where a grant of this root says so."""

    root_public_key: bytes

    def may_work(self, profile: Profile, now: Moment) -> Denied | None:
        """Whether the author of a profile may work here. The profile's signature is checked."""
        key = self.root_public_key
        return check(profile.grant, key, profile.peer_id, Right.WORK, now.unix_s)

    def may_submit(
        self, grant: bytes, peer_id: PeerId, needs: Requirements, priority: int, now: Moment
    ) -> Denied | None:
        """Whether a peer, which showed `grant`, may have such a task run."""
        key, right, driver = self.root_public_key, Right.SUBMIT, needs.driver
        return check(grant, key, peer_id, right, now.unix_s, driver=driver, priority=priority)

    def belongs(self, grant: bytes, peer_id: PeerId, now: Moment) -> Denied | None:
        """Whether a peer, which showed `grant`, may do anything here at all."""
        # Once: to read a foreign grant costs a millisecond, and any stranger can ask.
        return check(grant, self.root_public_key, peer_id, None, now.unix_s)


@dataclass(frozen=True, slots=True)
class Circles:
    """Those that others share with this node."""

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
        return read_grant(grant, root_public_key).rights.place
    except InvalidInput:
        return NOWHERE
