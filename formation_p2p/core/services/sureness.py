"""Whether those who claim to be ready are there: for people, who look between two claims."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

from formation_p2p.core.dht.operations import Asked
from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.core.services.claim import Claim, ClaimState
from formation_p2p.core.services.means import Means, has_own
from formation_p2p.core.services.names import asking

# Asked for one question: those that were not heard of for the longest time.
MAX_ASKED = 64


class Sureness:
    """Of one node. Who was asked lately is not asked again."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._asked_s: dict[PeerId, float] = {}  # of those that had a claim lately
        self._silent: dict[tuple[str, PeerId], int] = {}  # and the sequence of the claim

    def is_silent(self, claim: Claim) -> bool:
        return self._silent.get((claim.service, claim.peer_id), -1) >= claim.sequence

    def check(self, services: Iterable[str], now: Moment, then: Callable[[Moment], None]) -> None:
        """`then` is called when all have answered, or will not."""
        means, ours = self._means, self._means.parameters
        claims: dict[PeerId, Claim] = {}
        for service in services:
            for signed in means.sight(service).listed(now.unix_s):
                if signed.claim.state is ClaimState.READY:
                    claims[signed.claim.peer_id] = signed.claim
        claims.pop(means.peer_id, None)
        self._asked_s = {
            peer_id: asked_s
            for peer_id, asked_s in self._asked_s.items()
            if peer_id in claims and now.mono_s - asked_s < ours.sure_s
        }
        due = [claim for peer_id, claim in claims.items() if peer_id not in self._asked_s]
        chosen = {claim.peer_id: claim for claim in due[:MAX_ASKED]}
        if not chosen:
            then(now)
            return
        self._asked_s |= dict.fromkeys(chosen, now.mono_s)
        asked = [
            (
                Contact(claim.peer_id, claim.addresses),
                asking(means.name(claim.service), ours.max_claims),
            )
            for claim in chosen.values()
        ]
        answered = partial(self._answered, chosen, then)
        means.inquiries.ask(asked, now, "sure", answered, len(asked))

    def _answered(
        self,
        asked: Mapping[PeerId, Claim],
        then: Callable[[Moment], None],
        ended: Asked,
        now: Moment,
    ) -> None:
        for answer in ended.answers:
            claim = asked[answer.to.peer_id]
            if answer.reply is None or not has_own(answer):
                self._mark(claim.peer_id)
            else:
                self._means.take(claim.service, [answer], now)
        then(now)

    def _mark(self, peer_id: PeerId) -> None:
        """All that it claims is in doubt, until it claims it again."""
        known = self._means.sights.items()
        silent = {
            (service, peer_id): sight.claims[peer_id].claim.sequence
            for service, sight in known
            if peer_id in sight.claims
        }
        there = {
            key: sequence
            for key, sequence in self._silent.items()
            if key[1] in self._means.sight(key[0]).claims
        }
        self._silent = there | silent
