"""Who could run a task, nearest first, and the first reason why each other one could not."""

from __future__ import annotations

import random

from formation_p2p.effects import Contact
from formation_p2p.identity import key_of_peer
from formation_p2p.keyspace import distance, key_of
from formation_p2p.placement.candidate import Candidate
from formation_p2p.placement.decision import Decision, decide
from formation_p2p.placement.terms import NEAREST, AskedTerms
from formation_p2p.records.profile import Profile
from formation_p2p.refusals import Denied, Gone, Infeasible
from formation_p2p.resources.capability import Capability, idle
from tests.unit.stories import ALICE, BOB, CAROL, DAVE, NEEDS, at

TARGET = key_of(b"job/0")
NOW = at(0)


def profile(of: Contact, *, cpu_milli: int = 4000, lives_s: int = 60) -> Profile:
    capability = Capability(cpu_milli, 2**34)
    return Profile(
        peer_id=of.peer_id,
        sequence=1,
        issued_unix_s=int(NOW.unix_s) - 60,
        expires_unix_s=int(NOW.unix_s) + lives_s,
        capability=capability,
        capacity=idle(capability),
        drivers=("process",),
        addresses=of.addresses,
    )


def only_without_carol(candidate: Profile) -> Denied | None:
    return Denied("work", "she is not one of us") if candidate.peer_id == CAROL.peer_id else None


def decided(*candidates: Profile) -> Decision:
    return decide(
        AskedTerms(NEEDS).asked("job/0", TARGET),
        [Candidate(profile=each) for each in candidates],
        NEAREST,
        authorised=only_without_carol,
        now_unix_s=NOW.unix_s,
    )


def test_each_is_ranked_or_rejected_with_its_first_reason() -> None:
    decision = decided(
        profile(ALICE),
        profile(BOB, cpu_milli=500, lives_s=0),  # too small, and stale: too small comes first
        profile(CAROL, cpu_milli=500),  # not ours, and too small: not ours comes first
        profile(DAVE, lives_s=0),
    )
    assert [each.contact for each in decision.ranked] == [ALICE]
    assert dict(decision.rejected) == {
        BOB.peer_id: Infeasible("cpu", 1000, 500),
        CAROL.peer_id: Denied("work", "she is not one of us"),
        DAVE.peer_id: Gone("its profile", "it expired and was not published again"),
    }


def test_the_same_candidates_rank_the_same_in_any_order_they_are_heard_of() -> None:
    candidates = [profile(each) for each in (ALICE, BOB, DAVE)]
    first = decided(*candidates)
    assert [each.distance for each in first.ranked] == sorted(
        distance(key_of_peer(each.peer_id), TARGET) for each in candidates
    )
    for seed in range(5):
        random.Random(seed).shuffle(candidates)
        assert decided(*candidates).ranked == first.ranked


def test_the_target_goes_with_the_decision() -> None:
    assert decided() == Decision(TARGET, "xor", (), ())
