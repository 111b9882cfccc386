"""What this node knows of workers beside what they have signed."""

from __future__ import annotations

from formation_p2p.effects import Moment
from formation_p2p.placement.candidate import Candidate
from formation_p2p.placement.round_trips import RoundTrips
from formation_p2p.placement.terms import AskedTerms
from formation_p2p.records.profile import Profile
from formation_p2p.trust.circles import Circles
from formation_p2p.trust.reputation import Reputation


class Surroundings:
    def __init__(self, reputation: Reputation, circles: Circles, round_trips: RoundTrips) -> None:
        self._reputation = reputation
        self._circles = circles
        self._round_trips = round_trips

    def candidate(self, profile: Profile, terms: AskedTerms, now: Moment) -> Candidate:
        """A worker, as a task of these terms sees it."""
        worker, hints = profile.peer_id, terms.hints
        return Candidate(
            profile=profile,
            trust_milli=self._reputation.score_milli(worker, now),
            rtt_us=self._round_trips.rtt_us(worker, now),
            local_bytes=hints.bytes_at(worker),
            data_bytes=hints.data_bytes,
            scope=self._circles.scope_of(profile.grant, worker),
        )
