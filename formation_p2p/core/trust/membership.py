"""Membership of this node's network, by the grants that peers show."""

from __future__ import annotations

from dataclasses import dataclass

from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.core.records.profile import Profile
from formation_p2p.core.refusals import Denied
from formation_p2p.core.resources.requirements import Requirements
from formation_p2p.core.trust.grants import Right, check


@dataclass(frozen=True, slots=True)
class Membership:
    """Deny by default: everything here is None only where a grant of this root says so."""

    root_public_key: bytes

    def may_work(self, profile: Profile, now: Moment) -> Denied | None:
        """Whether the author of a profile may work here. The profile's signature is checked."""
        return self._denied(
            check(profile.grant, self.root_public_key, profile.peer_id, Right.WORK, now.unix_s)
        )

    def may_submit(
        self, grant: bytes, peer_id: PeerId, needs: Requirements, priority: int, now: Moment
    ) -> Denied | None:
        """Whether a peer, which showed `grant`, may have such a task run."""
        return self._denied(
            check(
                grant,
                self.root_public_key,
                peer_id,
                Right.SUBMIT,
                now.unix_s,
                driver=needs.driver,
                priority=priority,
            )
        )

    def belongs(self, grant: bytes, peer_id: PeerId, now: Moment) -> Denied | None:
        """Whether a peer, which showed `grant`, may do anything here at all."""
        # Once: to read a foreign grant costs a millisecond, and any stranger can ask.
        return self._denied(check(grant, self.root_public_key, peer_id, None, now.unix_s))

    @staticmethod
    def _denied(verdict: object) -> Denied | None:
        return verdict if isinstance(verdict, Denied) else None
