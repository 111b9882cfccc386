"""How far this node trusts each peer: by its own experience, and a little gossip.

The score of a peer is its expected share of good results, in thousandths, with a prior by which it
may as well be good as bad (a beta distribution). A stranger has 500.

Others are heard by as much as they have themselves done for this node. A peer that has done nothing
has no voice, and vouching gives none: however many identities vouch for each other, they change
no score. All voices together count for no more than a few experiences of one's own, as many as one
fully trusted voice has alone, so that a thousand voices can do no more than one. A stranger
with none but the worst opinions has 300, and so is given a try. docs/explanation/trust.md has the
arithmetic.

Source: Jøsang and Ismail, "The beta reputation system", 2002, sections 3.1 (rating) and 3.3
(discounting).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from formation_p2p.core.effects import Moment
from formation_p2p.core.errors import BadRecord
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.trust.core.attestation import (
    MAX_SUBJECTS,
    Attestation,
    Opinion,
    open_attestation,
    seal_attestation,
)
from formation_p2p.trust.core.experience import MEMORY, Age, Experience, PeerHistory, age_of
from formation_p2p.trust.core.parameters import TrustParameters

# Source: Anderson, "BOINC: a platform for volunteer computing", 2019, section 3.4 (adaptive
# replication): trusted after ten results in a row that others confirm, then checked one time in as
# many. Here after eight, and one in six for longer: a worker that turns bad after fifty tasks is to
# be found within three or four results.
PROVED: Final = 8
DOUBT: Final = 0.17
# Of one with more than so many confirmed in a row fewer are checked, in proportion.
PROVED_LONG: Final = 200


def attenuated_milli(voice_milli: int, said_milli: int, factor_milli: int) -> int:
    """What is left of a statement by a peer that is trusted so far. All in thousandths."""
    voice, said = (min(max(each, 0), 1000) for each in (voice_milli, said_milli))
    return voice * said * factor_milli // 1_000_000


@dataclass(frozen=True, slots=True)
class Heard:
    """What one voice says of a peer, and by how much it counts: in thousandths of an experience,
    before all voices together are held to `gossip_weight`."""

    author: PeerId
    voice_milli: int
    rate_milli: int
    counts_milli: int


@dataclass(frozen=True, slots=True)
class Standing:
    """A peer's score, and all that went into it, in thousandths of an experience:

        (prior + good + heard_good) / (2 * prior + good + bad + heard_good + heard_bad)

    The counts are of all experience, whether or not it is remembered still. `voice_milli` is how
    far the peer is heard on others. `seen_unix_s` is None where there was no experience.
    """

    peer_id: PeerId
    score_milli: int
    good_milli: int
    bad_milli: int
    heard_good_milli: int
    heard_bad_milli: int
    successes: int
    errors: int
    lost: int
    wrong: int
    voice_milli: int
    heard: tuple[Heard, ...]
    seen_unix_s: int | None


@dataclass(frozen=True, slots=True)
class Changes:
    """What is to be kept since it was last asked; None: to be forgotten."""

    accounts: tuple[tuple[PeerId, PeerHistory | None], ...]
    attestations: tuple[tuple[PeerId, bytes | None], ...]


class Voices:
    """What others say of peers, as far as they are heard: `voice_milli` says how far that is."""

    def __init__(
        self,
        attestations: Iterable[Attestation],
        voice_milli: Callable[[PeerId, Moment], int],
        parameters: TrustParameters,
    ) -> None:
        self.said = {each.author: each for each in attestations}
        self._voice_milli = voice_milli
        self._parameters = parameters
        # So much of what a voice has seen is listened to. At full trust it alone makes up the
        # whole weight of gossip.
        self._listened_milli = parameters.gossip_weight * 1_000_000 // parameters.attenuation_milli
        # Those who are heard in the second that they were last asked for, with their voices.
        self._heard: tuple[int, tuple[tuple[Attestation, int], ...]] | None = None
        self._changed: set[PeerId] = set()

    def expire(self, now: Moment) -> None:
        for author in [each for each in self.said if self._has_expired(each, now)]:
            self.silence(author)

    def hear(self, new: Attestation, now: Moment) -> None:
        """Where its author has a voice, and has not spoken since."""
        voice_milli = self._voice_milli(new.author, now)
        known = self.said.get(new.author)
        is_old = known is not None and known.issued_unix_ms >= new.issued_unix_ms
        if voice_milli == 0 or is_old:
            return
        if known is None and len(self.said) >= self._parameters.max_voices:
            least = min(self.said, key=lambda each: (self._voice_now(each, now), each))
            if self._voice_now(least, now) >= voice_milli:
                return
            self.silence(least)
        self.said[new.author] = new
        self._changed.add(new.author)
        self._heard = None

    def silence(self, author: PeerId) -> None:
        if self.said.pop(author, None) is not None:
            self._changed.add(author)
            self._heard = None

    def latest(self, most: int, now: Moment) -> tuple[bytes, ...]:
        """At most so many, as their authors signed them."""
        holding = (x for author, x in self.said.items() if not self._has_expired(author, now))
        latest = sorted(holding, key=lambda each: (-each.issued_unix_ms, each.author))
        return tuple(each.raw for each in latest[:most])

    def of(self, peer_id: PeerId, now: Moment) -> list[Heard]:
        attenuation_milli = self._parameters.attenuation_milli
        heard: list[Heard] = []
        for attestation, voice_milli in self._speaking(now):
            opinion = attestation.opinions.get(peer_id)
            if opinion is not None and attestation.author != peer_id:
                listened = min(opinion.weight_milli, self._listened_milli)
                counts = listened * attenuated_milli(voice_milli, 1000, attenuation_milli) // 1000
                heard.append(Heard(attestation.author, voice_milli, opinion.rate_milli, counts))
        return heard

    def take(self) -> tuple[tuple[PeerId, bytes | None], ...]:
        """Whose words have changed since the last time."""
        changed, self._changed = self._changed, set()
        said = ((each, self.said.get(each)) for each in sorted(changed))
        return tuple((peer_id, x.raw if x else None) for peer_id, x in said)

    def _speaking(self, now: Moment) -> tuple[tuple[Attestation, int], ...]:
        """Cached for a second: one decision weighs hundreds of workers by the same voices."""
        second = int(now.unix_s)
        if self._heard is None or self._heard[0] != second:
            voices = ((each, self._voice_now(author, now)) for author, each in self.said.items())
            self._heard = second, tuple(each for each in voices if each[1])
        return self._heard[1]

    def _voice_now(self, author: PeerId, now: Moment) -> int:
        """0 as well for a word that has expired."""
        return 0 if self._has_expired(author, now) else self._voice_milli(author, now)

    def _has_expired(self, author: PeerId, now: Moment) -> bool:
        return self.said[author].expires_unix_s <= now.unix_s


class Reputation:
    """`accounts` and `attestations` are those of an earlier incarnation."""

    def __init__(
        self,
        own: PeerId,
        accounts: Iterable[tuple[PeerId, PeerHistory]] = (),
        attestations: Iterable[Attestation] = (),
        parameters: TrustParameters = TrustParameters(),
    ) -> None:
        self.parameters = parameters
        self._prior = parameters.prior
        self._own = own
        self._accounts = dict(accounts)
        self._voices = Voices(attestations, self.voice_milli, parameters)
        self._age = age_of(0)
        self._aged_s = (0.0, 0.0)  # from when and until when that holds
        self._changed: set[PeerId] = set()
        self._attested: tuple[float, bytes | None] = (float("-inf"), None)

    # -- own experience ---------------------------------------------------------------------

    def note(self, peer_id: PeerId, experience: Experience, now: Moment) -> None:
        """Called for each result: takes a microsecond."""
        account = self._accounts.get(peer_id)
        if account is None:
            self._make_room(now)
            account = self._accounts[peer_id] = PeerHistory()
        account.add(experience, self._age_at(now.unix_s), now.unix_s)
        self._changed.add(peer_id)

    def forget(self, peer_id: PeerId) -> None:
        """All that it did, and all that it said."""
        if self._accounts.pop(peer_id, None) is not None:
            self._changed.add(peer_id)
        self._voices.silence(peer_id)

    def _make_room(self, now: Moment) -> None:
        most, known = self.parameters.max_peers, self._accounts
        if len(known) >= most:
            age = self._age_at(now.unix_s)
            seen = {peer_id: sum(history.aged(age)) for peer_id, history in known.items()}
            for each in heapq.nsmallest(max(1, most // 10), seen, key=lambda x: (seen[x], x)):
                self.forget(each)

    # -- gossip --------------------------------------------------------------------------

    def heard(self, attestations: Iterable[bytes], now: Moment) -> None:
        """Take the attestations that are valid, by peers with a voice."""
        self._voices.expire(now)
        for raw in attestations:
            try:
                attestation = open_attestation(raw, now.unix_s)
            except BadRecord:
                continue  # the peer that passed it on has gained nothing by it
            if attestation.author != self._own:
                self._voices.hear(attestation, now)

    def voice_milli(self, peer_id: PeerId, now: Moment) -> int:
        """How far a peer is heard: its good experiences less the bad, of all that can be
        remembered. So work spread over many identities gives them no more voice together than
        one."""
        account = self._accounts.get(peer_id)
        if account is None:
            return 0
        age = self._age_at(now.unix_s)
        good, bad = account.aged(age)
        return 1000 * max(good - bad, 0) // (MEMORY * age.unit)

    def passed_on(self, most: int, now: Moment) -> tuple[bytes, ...]:
        """The latest attestations of others, at most so many."""
        return self._voices.latest(most, now)

    # -- attestations ----------------------------------------------------------------------

    def attest(self, identity: Identity, now: Moment) -> bytes | None:
        """This node's signed opinions: of the peers it has most bad experience with, and of those
        it knows best. None where it knows no peer."""
        since_s, raw = self._attested
        if not since_s <= now.unix_s < since_s + self.parameters.attest_every_s:
            opinions, now_ms = self._opinions(now), int(now.unix_s * 1000)
            raw = seal_attestation(identity, opinions, now_ms) if opinions else None
            self._attested = now.unix_s, raw
        return raw

    def _opinions(self, now: Moment) -> Mapping[PeerId, Opinion]:
        age = self._age_at(now.unix_s)
        aged = {who: known.aged(age) for who, known in self._accounts.items() if who != self._own}
        worst = heapq.nsmallest(MAX_SUBJECTS // 2, aged, key=lambda each: (-aged[each][1], each))
        best = heapq.nsmallest(MAX_SUBJECTS, aged, key=lambda each: (-aged[each][0], each))
        chosen = list(dict.fromkeys((*worst, *best)))[:MAX_SUBJECTS]
        opinions: dict[PeerId, Opinion] = {}
        for peer_id in chosen:
            good, bad = aged[peer_id]
            # Less than a thousandth of an experience is none.
            if weight_milli := 1000 * (good + bad) // age.unit:
                opinions[peer_id] = Opinion(1000 * good // (good + bad), weight_milli)
        return opinions

    # -- scores -------------------------------------------------------------------------

    def score_milli(self, peer_id: PeerId, now: Moment) -> int:
        """0 to 1000; 500 for a stranger."""
        age = self._age_at(now.unix_s)
        account = self._accounts.get(peer_id)
        good, bad = (0, 0) if account is None else account.aged(age)
        heard_good, heard_bad = self._held(self._voices.of(peer_id, now))
        good += self._prior * age.unit + heard_good * age.unit // 1000
        bad += self._prior * age.unit + heard_bad * age.unit // 1000
        return 1000 * good // (good + bad)

    def doubt(self, peer_id: PeerId, now: Moment) -> float:
        """What share of a peer's results is to be compared with another's: all of a stranger's, few
        of one of which many were the same as another's, in a row. That fades as experience does."""
        account = self._accounts.get(peer_id)
        if account is None:
            return 1.0
        remembered = account.aged(age := self._age_at(now.unix_s))[0] // age.unit
        if min(account.agreed, remembered) < PROVED:
            return 1.0
        return DOUBT * min(1.0, PROVED_LONG / account.agreed)

    def explain(self, peer_id: PeerId, now: Moment) -> Standing:
        age = self._age_at(now.unix_s)
        account = self._accounts.get(peer_id, PeerHistory())
        good, bad = account.aged(age)
        heard = self._voices.of(peer_id, now)
        heard_good, heard_bad = self._held(heard)
        return Standing(
            peer_id,
            self.score_milli(peer_id, now),
            1000 * good // age.unit,
            1000 * bad // age.unit,
            heard_good,
            heard_bad,
            account.successes,
            account.errors,
            account.lost,
            account.wrong,
            self.voice_milli(peer_id, now),
            tuple(heard),
            account.seen_unix_s if peer_id in self._accounts else None,
        )

    def standings(self, now: Moment) -> tuple[Standing, ...]:
        """Of all peers that this node has worked with or heard of, the most trusted first."""
        everyone = {
            *self._accounts,
            *(each for x in self._voices.said.values() for each in x.opinions),
        }
        found = (self.explain(each, now) for each in everyone - {self._own})
        return tuple(sorted(found, key=lambda each: (-each.score_milli, each.peer_id)))

    def _held(self, heard: Iterable[Heard]) -> tuple[int, int]:
        """Good and bad, in thousandths of an experience, of all voices together."""
        good = total = 0
        for each in heard:
            good += each.counts_milli * each.rate_milli
            total += each.counts_milli
        most = min(total, self.parameters.gossip_weight * 1000)
        held = good * most // (total * 1000) if total else 0
        return held, most - held

    # -- storage -------------------------------------------------------------------------------

    def take(self) -> Changes:
        """What has changed since the last time."""
        changed, self._changed = self._changed, set()
        accounts = ((each, self._accounts.get(each)) for each in sorted(changed))
        known = tuple((peer_id, replace(x) if x else None) for peer_id, x in accounts)
        return Changes(known, self._voices.take())

    def _age_at(self, unix_s: float) -> Age:
        from_s, until_s = self._aged_s
        if not from_s <= unix_s < until_s:
            self._age = age_of(unix_s)
            self._aged_s = float(int(unix_s)), float(int(unix_s) + 1)
        return self._age
