"""What this node knows of workers beside what they have signed."""

from __future__ import annotations

from formation_p2p.effects import Moment
from formation_p2p.placement.candidate import Candidate
from formation_p2p.placement.terms import AskedTerms
from formation_p2p.records.profile import Profile


class Surroundings:
    def candidate(self, profile: Profile, terms: AskedTerms, now: Moment) -> Candidate:
        """A worker, as a task of these terms sees it."""
        return Candidate(profile=profile)
