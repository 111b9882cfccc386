"""What becomes of a replica that runs: it yields, is moved or is updated, as its service wants.

Nothing that runs is stopped before another serves, but for what runs twice in one slot.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.dht.core.operations import Asked
from formation_p2p.features.services.core.claim import Claim, ClaimState, wins
from formation_p2p.features.services.core.holding import Holding
from formation_p2p.features.services.core.means import Means, has_own
from formation_p2p.features.services.core.replica import Own, Replica
from formation_p2p.features.services.core.shelf import asking
from formation_p2p.features.services.core.signed_spec import SignedSpec
from formation_p2p.features.services.core.spec import ServiceSpec

# From one version of a service to the next: one replica after the other, the new one first. A
# worker starts the newer version beside the one that serves, and has it serve once it has been
# ready for a while. Where it does not become ready, the old one goes on, and its claim says so; the
# others then leave that version alone. Where no machine has room for both, a worker without a
# replica takes one on, and where there is none, one after the other stops the old one first.
# So many times as late where another worker might still take it on.
_LAST_RESORT = 3


class Updating:
    """Of the replicas of one worker. Call `judge` after each look at the claims of a service."""

    def __init__(self, means: Means, holding: Holding) -> None:
        self._means = means
        self._holding = holding

    def judge(self, replica: Replica, signed: SignedSpec, now: Moment) -> None:
        fresh, spec = replica.fresh, signed.spec
        if fresh is not None and fresh.signed.digest != signed.digest:
            self._holding.renewing.drop(replica)  # yet another version counts
        if replica.signed.digest == signed.digest:
            replica.old_since_s = None
            return
        if differs_in_number_alone(replica.signed.spec, spec):
            self._holding.adopt(replica, signed, now)
            return
        ours = self._means.parameters
        replica.look_s = min(replica.look_s, now.mono_s + ours.update_look_s)
        if replica.fresh is not None or spec.worker_type is not replica.signed.spec.worker_type:
            return
        version = spec.version
        if replica.failed_version == version:
            return
        live = self._means.sight(replica.service).live(now.unix_s)
        if is_under_way(live.values(), version):
            replica.old_since_s = None
            return
        if replica.old_since_s is None:
            replica.old_since_s = now.mono_s
        old = sorted(slot for slot, claim in live.items() if claim.version < version)
        place = old.index(replica.slot) if replica.slot in old else 0
        waited_s = now.mono_s - replica.old_since_s
        if waited_s < place * ours.turn_s:
            return
        if not self._holding.renewing.renew(replica, signed, now):
            self._make_room(replica, live, place, waited_s, now)

    def _make_room(
        self,
        replica: Replica,
        live: Mapping[int, Claim],
        place: int,
        waited_s: float,
        now: Moment,
    ) -> None:
        """Where all workers of the type run it, none has room for the newer version before it has
        stopped the old one; else another worker begins, if it can. The last replica stays until
        one is ready elsewhere."""
        kind, ours = replica.signed.spec.worker_type, self._means.parameters
        others = len(live) < self._means.workers(kind)
        if others and len(live) < 2:
            return
        if waited_s >= ours.update_s * ((_LAST_RESORT if others else 1) + place):
            self._holding.drain(replica.service, now, "it makes room for a newer version")


def differs_in_number_alone(spec: ServiceSpec, newer: ServiceSpec) -> bool:
    """Another number of replicas starts none of them again; a version that changes nothing
    does."""
    same = replace(spec, version=newer.version, replicas=newer.replicas)
    return spec.replicas != newer.replicas and same == newer


def is_under_way(live: Collection[Claim], version: int) -> bool:
    """Whether a replica of the version is being started somewhere."""
    return any(
        claim.next_version >= version
        or (claim.version >= version and claim.state is ClaimState.JOINING)
        for claim in live
    )


@dataclass(slots=True)
class _Seen:
    current: int
    since_s: float


class Surge:
    """When a worker without a replica of a service may start a newer version beside the old ones:
    where those who have these have not begun to for a while."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._seen: dict[str, _Seen] = {}  # of each service that is being updated

    def may(self, signed: SignedSpec, wanted: int, now: Moment) -> bool:
        """Also where replicas are missing: these are to be filled at once."""
        spec = signed.spec
        live = self._means.sight(spec.name).live(now.unix_s).values()
        current = sum(max(c.version, c.next_version) >= spec.version for c in live)
        if len(live) < wanted or current == len(live):
            self._seen.pop(spec.name, None)
            return True
        seen = self._seen.get(spec.name)
        if seen is None or seen.current != current or is_under_way(live, spec.version):
            seen = self._seen[spec.name] = _Seen(current, now.mono_s)
        return now.mono_s - seen.since_s >= self._means.parameters.surge_s


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
