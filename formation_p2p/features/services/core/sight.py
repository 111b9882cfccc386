"""What a node has heard of the claims of one service, and which slots that leaves free."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from formation_p2p.core.identity import PeerId
from formation_p2p.features.services.core.claim import Claim, ClaimState, SignedClaim, wins

NONE_DOUBTED: Mapping[PeerId, int] = {}


class Sight:
    """Of each author the newest claim, also one that has expired: that is history.

    Where authors are `doubted`, with the sequence of the claim of theirs that is, that claim counts
    for nothing: its author does not answer.
    """

    def __init__(self) -> None:
        self.claims: dict[PeerId, SignedClaim] = {}

    def take(self, signed: SignedClaim) -> bool:
        """Whether it is news."""
        known = self.claims.get(signed.claim.peer_id)
        if known is not None and known.claim.sequence >= signed.claim.sequence:
            return False
        self.claims[signed.claim.peer_id] = signed
        return True

    def expire(self, before_unix_s: float) -> None:
        """Drop history of before then."""
        for author, signed in list(self.claims.items()):
            if signed.claim.expires_unix_s < before_unix_s:
                del self.claims[author]

    def live(
        self, now_unix_s: float, doubted: Mapping[PeerId, int] = NONE_DOUBTED
    ) -> dict[int, Claim]:
        """By slot: of several claims the one that wins."""
        slots: dict[int, Claim] = {}
        for signed in self.claims.values():
            claim = signed.claim
            if not claim.is_live or not claim.is_fresh(now_unix_s):
                continue
            if doubted.get(claim.peer_id, -1) >= claim.sequence:
                continue
            other = slots.get(claim.slot)
            if other is None or wins(claim, other):
                slots[claim.slot] = claim
        return slots

    def free(
        self,
        wanted: int,
        now_unix_s: float,
        version: int,
        doubted: Mapping[PeerId, int] = NONE_DOUBTED,
    ) -> tuple[int, ...]:
        """The slots that are to be filled so that `wanted` run this version, lowest first. While
        another version runs, one slot more at a time, so that the old ones serve on."""
        slots = self.live(now_unix_s, doubted)
        current = sum(max(claim.version, claim.next_version) >= version for claim in slots.values())
        lacking = wanted - current
        if current < len(slots):  # old ones are there: surge by one
            lacking = min(lacking, max(wanted + 1 - len(slots), 0))
        free: list[int] = []
        slot = 0
        while len(free) < lacking:
            if slot not in slots:
                free.append(slot)
            slot += 1
        return tuple(free)

    def to_probe(
        self, slot: int, now_unix_s: float, doubted: Mapping[PeerId, int] = NONE_DOUBTED
    ) -> list[Claim]:
        """Claims of a slot that have expired without a word: their authors may run it still."""
        return [
            signed.claim
            for signed in self.claims.values()
            if signed.claim.slot == slot
            and signed.claim.state is not ClaimState.GONE
            and not signed.claim.is_fresh(now_unix_s)
            and doubted.get(signed.claim.peer_id, -1) < signed.claim.sequence
        ]

    def overdue(self, before_unix_s: float) -> dict[PeerId, int]:
        """Who is in doubt, since their claims were to be renewed and are of before then."""
        doubted: dict[PeerId, int] = {}
        for signed in self.claims.values():
            claim = signed.claim
            if claim.is_live and claim.issued_unix_s < before_unix_s:
                doubted |= self.doubts(claim)
        return doubted

    def doubts(self, claim: Claim) -> dict[PeerId, int]:
        """Who is in doubt with the holder of a claim: those that had the slot before, too. It has
        claimed the slot since they did not answer."""
        before = (
            signed.claim
            for signed in self.claims.values()
            if signed.claim.slot == claim.slot and signed.claim.epoch < claim.epoch
        )
        return {each.peer_id: each.sequence for each in (claim, *before)}

    def epoch(self, slot: int) -> int:
        """The highest that is known of a slot."""
        epochs = (each.claim.epoch for each in self.claims.values() if each.claim.slot == slot)
        return max(epochs, default=0)

    def listed(self, now_unix_s: float) -> Iterable[SignedClaim]:
        """Those of replicas that are there now."""
        return (
            signed
            for signed in self.claims.values()
            if signed.claim.state is not ClaimState.GONE and signed.claim.is_fresh(now_unix_s)
        )
