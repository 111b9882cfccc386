"""What becomes of a replica that runs: it yields, is moved or is updated, as its service wants.

Nothing that runs is stopped before another serves, but for what runs twice in one slot.
"""

from __future__ import annotations

from functools import partial

from formation_p2p.core.dht.operations import Asked
from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.services.claim import Claim, ClaimState, wins
from formation_p2p.core.services.holding import Holding
from formation_p2p.core.services.means import Means, has_own
from formation_p2p.core.services.replica import Own, Replica
from formation_p2p.core.services.shelf import asking
from formation_p2p.core.services.signed_spec import SignedSpec
from formation_p2p.core.services.updating import Updating


class Keeping:
    """Call `judge` after each look."""

    def __init__(self, means: Means, holding: Holding) -> None:
        self._means = means
        self._holding = holding
        self._updating = Updating(means, holding)

    def judge(self, service: str, now: Moment) -> None:
        """After a look at what others claim of a service of ours."""
        replica, signed = self._holding.get(service), self._means.spec(service)
        if replica is None or replica.state not in (Own.STARTING, Own.READY):
            return
        if signed is None or signed.spec.withdrawn:
            self._holding.drain(service, now, "the service is withdrawn")
            return
        pinned = signed.spec.pinned
        if pinned is not None:
            self._judge_pinned(replica, signed, now)
            return
        assert replica.claim is not None, "it was claimed"
        other = self._rival(replica, replica.claim.claim, now)
        if other is not None:
            self._ask_rival(replica, other, now)
            return
        self._updating.judge(replica, signed, now)
        self._shed(replica, signed, now)

    def _judge_pinned(self, replica: Replica, signed: SignedSpec, now: Moment) -> None:
        """One that is pinned to this peer is updated in its place; there is no other one."""
        if replica.signed.digest != signed.digest:
            self._holding.drain(replica.service, now, "another version is published")

    # -- two in one slot ------------------------------------------------------------------------

    def _rival(self, replica: Replica, ours: Claim, now: Moment) -> Claim | None:
        for signed in self._means.sight(replica.service).claims.values():
            claim = signed.claim
            if (
                claim.peer_id != self._means.peer_id
                and claim.slot == replica.slot
                and claim.is_fresh(now.unix_s)
                and claim.state is ClaimState.READY
                and wins(claim, ours)
            ):
                return claim
        return None

    def _ask_rival(self, replica: Replica, other: Claim, now: Moment) -> None:
        """Its claim may be all that is left of it."""
        means = self._means
        request = asking(means.name(replica.service), means.parameters.max_claims)
        contact = Contact(other.peer_id, other.addresses)
        then = partial(self._rival_answered, replica, other)
        means.inquiries.ask([(contact, request)], now, "rival", then, 1)

    def _rival_answered(self, replica: Replica, other: Claim, ended: Asked, now: Moment) -> None:
        self._means.take(replica.service, ended.answers, now)
        # A rival that has begun anew answers, and has no claim any more.
        is_there = any(map(has_own, ended.good))
        if not is_there or self._holding.get(replica.service) is not replica:
            return
        claim = self._means.sight(replica.service).claims[other.peer_id].claim
        assert replica.claim is not None, "it was claimed"
        if claim.slot != replica.slot or claim.state is not ClaimState.READY:
            return
        if wins(claim, replica.claim.claim):
            at_once = replica.state is Own.STARTING
            why = f"{other.peer_id} has the slot as well"
            self._holding.drain(replica.service, now, why, at_once=at_once)

    # -- too many ---------------------------------------------------------------------------

    def _shed(self, replica: Replica, signed: SignedSpec, now: Moment) -> None:
        """Of more than are wanted, for a while, the oldest version goes, then who has the most."""
        live = self._means.sight(replica.service).live(now.unix_s)
        ready = [claim for claim in live.values() if claim.state is ClaimState.READY]
        if len(ready) <= self._means.wanted(signed, now) or replica.state is not Own.READY:
            replica.surplus_since_s = None
            return
        if replica.surplus_since_s is None:
            replica.surplus_since_s = now.mono_s
        version = signed.spec.version
        first = max(ready, key=lambda each: (each.version < version, each.services_held, each.slot))
        if first.peer_id != self._means.peer_id:
            return
        lasts_s = now.mono_s - replica.surplus_since_s
        if first.version < version:
            self._holding.drain(replica.service, now, "a newer version serves")
        elif lasts_s >= self._means.parameters.surplus_s:
            self._holding.drain(replica.service, now, "there are more than wanted")
