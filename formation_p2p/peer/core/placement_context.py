"""What this node knows of workers beside what they have signed."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import Final

from formation_p2p.core.effects import Moment
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId
from formation_p2p.core.refusals import Denied
from formation_p2p.leases.core.held_lease import HeldLease
from formation_p2p.placement.core.candidate import Candidate
from formation_p2p.placement.core.policies import EXECUTE_MILLI
from formation_p2p.placement.core.round_trips import RoundTrips
from formation_p2p.placement.core.task_options import SchedulingKey
from formation_p2p.records.core.profile import Profile
from formation_p2p.trust.core.admission import not_valid_at
from formation_p2p.trust.core.grants import Right, Rights
from formation_p2p.trust.core.marks import marks_of
from formation_p2p.trust.core.membership import Membership
from formation_p2p.trust.core.network import Circles, Network, narrowed
from formation_p2p.trust.core.reputation import Reputation
from formation_p2p.workload.core.hints import Kind

# At 1 KiB each, 4 MiB: more workers than a scheduler has leases of. One that is forgotten is in no
# region when the charter changes.
MAX_GRANTS: Final = 4096


@dataclass(slots=True)
class PlacementContext:
    """Of the node whose `network` and `circles` these are."""

    network: Network
    membership: Membership
    reputation: Reputation
    circles: Circles
    round_trips: RoundTrips
    max_grants: int = MAX_GRANTS
    _rights: Rights | None = field(default=None, init=False)
    # Of workers that tasks which are bound to a region may have gone to.
    _grants: dict[PeerId, bytes] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        self.renewed(self.network)

    def renewed(self, network: Network) -> None:
        """This node has a new grant of its network."""
        self.network, self._rights = network, None
        with suppress(InvalidInput):  # what a grant that is none here is worth, workers say
            self._rights = network.rights

    @property
    def labels(self) -> frozenset[tuple[str, str]]:
        """Those of the workers that our grant is for."""
        rights = self._rights
        return frozenset() if rights is None else rights.labels

    def marks(self, profile: Profile) -> frozenset[str]:
        """What a worker has in common with others."""
        return marks_of(profile, self.network.root_public_key)

    def is_trusted(self, worker: PeerId, now: Moment) -> bool:
        """Whether its results count where several workers are to agree."""
        return self.reputation.score_milli(worker, now) >= EXECUTE_MILLI

    def authorised(
        self, profile: Profile, terms: SchedulingKey | None, now: Moment
    ) -> Denied | None:
        """Whether a worker's grant lets it work, and ours lets us have tasks of these terms run:
        what every worker would refuse, it would refuse for the same reason."""
        denied = self.membership.denies_work(profile, now)
        if denied is not None or terms is None or self._rights is None:
            return denied
        key = self.network.root_public_key
        return self.membership.denies(
            narrowed(self.network.grant, key, terms.on_behalf),
            self.circles.own,
            Right.SUBMIT,
            now,
            driver=terms.needs.driver or None,  # not chosen yet
            priority=terms.priority,
        )

    def refuses(self, lease: HeldLease, now: Moment) -> Denied | None:
        """Why a lease is not to be used any more, under a new charter."""
        worker, hints = lease.lessor.peer_id, lease.scheduling_key.hints
        denied = self.membership.bans(worker)
        if denied is not None or Kind.REGION not in hints.required:
            return denied
        region = self.membership.region_of(self._grants.get(worker, b""), worker, now)
        if region is None or region == hints.region:
            return None
        return Denied("work", f"the charter does not have it in {hints.region} any more")

    def candidate(self, profile: Profile, terms: SchedulingKey, now: Moment) -> Candidate:
        """A worker, as a task of these terms sees it."""
        worker, hints, rights = profile.peer_id, terms.hints, self._rights
        if Kind.REGION in hints.required:
            self._grants.pop(worker, None)
            if len(self._grants) >= self.max_grants:
                del self._grants[next(iter(self._grants))]
            self._grants[worker] = profile.grant
        return Candidate(
            profile=profile,
            trust_milli=self.reputation.score_milli(worker, now),
            rtt_us=self.round_trips.rtt_us(worker, now),
            local_bytes=hints.bytes_at(worker),
            data_bytes=hints.data_bytes,
            scope=self.circles.scope_of(profile.grant, worker),
            region=self.membership.region_of(profile.grant, worker, now),
            forbidden=None if rights is None else not_valid_at(rights, dict(profile.labels), now),
        )
