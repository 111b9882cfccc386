"""Who could run a task, best first, and the first reason why each other one could not."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.keyspace import Key, distance, key_of
from formation_p2p.core.refusals import (
    Denied,
    Distrusted,
    Gone,
    Infeasible,
    OutOfScope,
    Refusal,
    TooDear,
    Unwanted,
)
from formation_p2p.machine.core.capability import Capability, Capacity, idle
from formation_p2p.placement.core.candidate import Candidate, TaskView
from formation_p2p.placement.core.decision import Decision, decide
from formation_p2p.placement.core.guarded import home_of, seeks_room, sound
from formation_p2p.placement.core.names import parse_policy
from formation_p2p.placement.core.policies import Cheapest
from formation_p2p.placement.core.policy import (
    MAX_TERMS,
    MAX_TEXT,
    Gated,
    Peers,
    PlacementPolicy,
    Policy,
    Score,
    Sum,
    Term,
    scored,
)
from formation_p2p.placement.core.task_options import NEAREST, SchedulingKey
from formation_p2p.records.core.profile import Profile
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.code_bundle import Code
from formation_p2p.workload.core.hints import Hints
from formation_p2p.workload.core.scope import Scope
from tests.support.stories import ALICE, BOB, CAROL, DAVE, MALLORY, NEEDS, at

TARGET = key_of(b"job/0")
NOW = at(0)


def profile(
    of: Contact,
    *,
    cpu_milli: int = 4000,
    free_milli: int | None = None,
    lives_s: int = 60,
    price_micro: int = 0,
) -> Profile:
    capability = Capability(cpu_milli, 2**34)
    free = idle(capability)
    return Profile(
        peer_id=of.peer_id,
        sequence=1,
        issued_unix_s=int(NOW.unix_s) - 60,
        expires_unix_s=int(NOW.unix_s) + lives_s,
        capability=capability,
        capacity=free if free_milli is None else Capacity(free_milli, free.memory_bytes),
        drivers=("process",),
        addresses=of.addresses,
        price_micro=price_micro,
    )


@dataclass(frozen=True, slots=True)
class Likes(Policy):
    """Scores as told, and nothing for the rest; will not have one of them."""

    scores_of: tuple[tuple[PeerId, float], ...] = ()
    shunned: PeerId | None = None

    def admit(self, task: TaskView, candidate: Candidate) -> Refusal | None:
        return Distrusted(0, 300) if candidate.peer_id == self.shunned else None

    def scores(self, task: TaskView, candidates: Sequence[Candidate]) -> Sequence[Score]:
        liked = dict(self.scores_of)
        return [scored([Term("liking", liked.get(each.peer_id, 0.0), 0.5)]) for each in candidates]

    def __str__(self) -> str:
        return "likes"


def only_without_carol(candidate: Profile) -> Denied | None:
    return Denied("work", "she is not one of us") if candidate.peer_id == CAROL.peer_id else None


def decided(
    *candidates: Profile | Candidate,
    policy: PlacementPolicy = NEAREST,
    terms: SchedulingKey | None = None,
) -> Decision:
    return decide(
        (terms or SchedulingKey(NEEDS)).view("job/0", TARGET),
        [Candidate(profile=each) if isinstance(each, Profile) else each for each in candidates],
        policy,
        authorised=only_without_carol,
        now_unix_s=NOW.unix_s,
    )


def names(decision: Decision) -> list[PeerId]:
    return [each.contact.peer_id for each in decision.ranked]


# -- the stages -----------------------------------------------------------------------------


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


def test_every_stage_has_its_say_in_the_order_of_the_pipeline() -> None:
    terms = SchedulingKey(
        NEEDS,
        max_price_micro=10,
        hints=Hints(region="eu", required=frozenset({"region"})),
        scope=Scope.ORG,
    )
    shunning = Likes(shunned=ALICE.peer_id)
    mended = Candidate(profile=profile(ALICE, cpu_milli=500, price_micro=11, lives_s=0))
    reported: list[type[Refusal]] = []
    steps: list[tuple[PlacementPolicy, Callable[[Candidate], Candidate]]] = [
        (shunning, lambda each: each),
        (NEAREST, lambda each: replace(each, scope=Scope.CELL)),
        (NEAREST, lambda each: replace(each, profile=in_europe(each.profile))),
        (NEAREST, lambda each: replace(each, profile=bigger(each.profile))),
        (NEAREST, lambda each: replace(each, profile=replace(each.profile, price_micro=10))),
    ]
    for policy, mend in steps:
        ((_, why),) = decided(mended, policy=policy, terms=terms).rejected
        reported.append(type(why))
        mended = mend(mended)
    ((_, why),) = decided(mended, terms=terms).rejected
    reported.append(type(why))
    assert reported == [Distrusted, OutOfScope, Unwanted, Infeasible, TooDear, Gone]
    fresh = replace(mended.profile, expires_unix_s=int(NOW.unix_s) + 60)
    assert names(decided(replace(mended, profile=fresh), terms=terms)) == [ALICE.peer_id]


def in_europe(of: Profile) -> Profile:
    return replace(of, labels=(("region", "eu"),))


def bigger(of: Profile) -> Profile:
    return replace(of, capability=Capability(4000, 2**34), capacity=idle(Capability(4000, 2**34)))


def test_whoever_is_farther_from_home_than_the_job_may_go_is_left_out() -> None:
    far = Candidate(profile=profile(ALICE), scope=Scope.FEDERATION)
    near = Candidate(profile=profile(BOB), scope=Scope.CELL)
    decision = decided(far, near, terms=SchedulingKey(NEEDS, scope=Scope.ORG))
    assert names(decision) == [BOB.peer_id]
    assert decision.rejected == ((ALICE.peer_id, OutOfScope("federation", "org")),)


# -- the rank -------------------------------------------------------------------------------


def test_the_same_candidates_rank_the_same_in_any_order_they_are_heard_of() -> None:
    candidates = [profile(each) for each in (ALICE, BOB, DAVE)]
    first = decided(*candidates)
    assert [each.distance for each in first.ranked] == sorted(
        distance(key_of_peer(each.peer_id), TARGET) for each in candidates
    )
    for seed in range(5):
        random.Random(seed).shuffle(candidates)
        assert decided(*candidates).ranked == first.ranked


@pytest.mark.parametrize("score", [0.5, 1e-9])
def test_scores_that_rounding_tells_apart_are_equal(score: float) -> None:
    everyone = tuple(map(profile, (ALICE, BOB, DAVE)))
    *nearer, farthest = nearest = names(decided(*everyone))
    others = tuple((each, score) for each in nearer)
    by_a_hair = Likes(((farthest, score * (1 + 1e-10)), *others))
    assert names(decided(*everyone, policy=by_a_hair)) == nearest
    by_more = Likes(((farthest, score * (1 + 1e-8)), *others))
    assert names(decided(*everyone, policy=by_more)) == [farthest, *nearer]


def test_soft_hints_come_before_the_score() -> None:
    policy = Likes(((ALICE.peer_id, 1.0),))
    terms = SchedulingKey(NEEDS, hints=Hints(prefer=(BOB.peer_id,), avoid=(ALICE.peer_id,)))
    decision = decided(*map(profile, (ALICE, BOB, DAVE)), policy=policy, terms=terms)
    assert names(decision) == [BOB.peer_id, DAVE.peer_id, ALICE.peer_id]


def test_who_has_no_room_comes_last_with_the_reason_and_is_not_selected() -> None:
    policy = Likes(((ALICE.peer_id, 1.0),))
    decision = decided(profile(ALICE, free_milli=500), profile(BOB), policy=policy)
    assert names(decision) == [BOB.peer_id, ALICE.peer_id]
    assert [each.lacking for each in decision.ranked] == [None, Infeasible("cpu", 1000, 500)]
    assert [each.profile.peer_id for each in decision.select(5)] == [BOB.peer_id]


def test_room_comes_before_soft_hints() -> None:
    terms = SchedulingKey(NEEDS, hints=Hints(region="eu"))
    full = replace(profile(ALICE, free_milli=500), labels=(("region", "eu"),))
    decision = decided(full, replace(profile(BOB), labels=(("region", "us"),)), terms=terms)
    assert names(decision) == [BOB.peer_id, ALICE.peer_id]


def test_where_our_grant_is_not_good_comes_after_who_has_no_room() -> None:
    elsewhere = Denied("submit", "the grant is for workers with site=lab, and this one is without")
    policy = Likes(((ALICE.peer_id, 1.0),))
    forbidding = Candidate(profile=profile(ALICE, free_milli=500), forbidden=elsewhere)
    decision = decided(forbidding, profile(BOB, free_milli=500), profile(DAVE), policy=policy)
    assert names(decision) == [DAVE.peer_id, BOB.peer_id, ALICE.peer_id]
    assert decision.ranked[-1].lacking == elsewhere
    assert [each.profile.peer_id for each in decision.select(5)] == [DAVE.peer_id]
    assert str(decision).splitlines()[-2].endswith(f"  {elsewhere}")


def test_no_more_are_selected_than_wanted() -> None:
    decision = decided(*map(profile, (ALICE, BOB, DAVE)))
    assert decision.select(2) == decision.ranked[:2]


def test_the_target_and_the_policy_go_with_the_decision() -> None:
    assert decided() == Decision(TARGET, "xor", (), (), NEEDS)


def test_who_has_the_packages_of_a_task_comes_first_and_is_told() -> None:
    wanted, other = "4f1c0a9b7d2e", "0123456789ab"
    terms = SchedulingKey(replace(NEEDS, environment=f"{wanted}.09ab"))
    cold, without = (replace(profile(each), environments=(other,)) for each in (ALICE, BOB))
    unable = replace(profile(MALLORY), capability=replace(without.capability, installs=False))
    five = [replace(profile(DAVE), environments=(other, wanted))] * 5
    decision = decided(cold, without, five[0], unable, terms=terms)
    first, *others = decision.ranked
    assert first.profile.peer_id == DAVE.peer_id
    assert decision.is_warm(first)
    assert not any(map(decision.is_warm, others))
    dave, mallory = (f"…{each.peer_id[-8:]}" for each in (DAVE, MALLORY))
    assert str(decision).splitlines()[-2:] == [
        f"{mallory}  {Infeasible('packages', 'uv', 'none')}",
        f"packages {wanted}: installed on {dave}; 2 of 3 workers would install them",
    ]
    nowhere = decided(cold, without, terms=terms).packages
    assert nowhere == f"packages {wanted}: installed on none; 2 of 2 workers would install them"
    everywhere = decided(*five, terms=terms).packages
    assert everywhere.endswith(f"installed on {', '.join([dave] * 4)} and 1 more")
    assert decided(unable, terms=terms).packages == ""
    plain = decided(cold)
    assert plain.packages == ""
    assert plain.is_warm(plain.ranked[0])


def test_a_decision_prints_as_a_table_with_every_term_and_every_reason() -> None:
    policy = Likes(((DAVE.peer_id, 1.0),))
    decision = decided(
        profile(BOB, free_milli=500), profile(DAVE), profile(MALLORY, cpu_milli=100), policy=policy
    )
    head, columns, weights, first, second, why, other = str(decision).splitlines()
    assert why == f"…{DAVE.peer_id[-8:]} is first: the others have no room, or may refuse"
    assert head == "policy likes"
    assert columns.split() == ["rank", "worker", "score", "liking", "distance"]
    assert weights.split() == ["*", "0.5"]
    assert first.split()[:4] == ["1", f"…{DAVE.peer_id[-8:]}", "0.500", "1.000"]
    assert second.endswith("no room: cpu: needs 1, has 0.5")
    assert other == f"…{MALLORY.peer_id[-8:]}  cpu: needs 1, has 0.1"


@dataclass(frozen=True, slots=True)
class Picky(Policy):
    """Has a reason for one of them alone."""

    liked: PeerId

    def scores(self, task: TaskView, candidates: Sequence[Candidate]) -> Sequence[Score]:
        return [scored([Term("charm", 1.0)] * (c.peer_id == self.liked)) for c in candidates]


def test_a_term_that_one_of_two_has_is_a_dash_for_the_other() -> None:
    table = str(decided(profile(ALICE), profile(BOB), policy=Picky(ALICE.peer_id)))
    _, _, first, second, why = table.splitlines()
    assert why.endswith(" is first: the policy gives it the highest score")
    assert first.split()[2:4] == ["1.000", "1.000"]
    assert second.split()[2:4] == ["0.000", "-"]


def test_terms_of_one_name_are_shown_each() -> None:
    liked = Likes(((ALICE.peer_id, 1.0),))
    terms = SchedulingKey(NEEDS, hints=Hints(prefer=(ALICE.peer_id,)))
    table = str(decided(profile(ALICE), policy=3.0 * liked + liked, terms=terms))
    _, columns, weights, row = table.splitlines()
    shown = ["hint prefer", "score", "liking", "liking 2"]
    assert re.split(" {2,}", columns)[2:-1] == shown
    assert re.split(" {2,}", weights.strip()) == ["* 0.375", "* 0.125"]
    assert row.split()[2:-1] == ["yes", "0.500", "1.000", "1.000"]


def test_what_is_the_same_for_all_is_told_below_the_table() -> None:
    terms = SchedulingKey(NEEDS, hints=Hints(prefer=(DAVE.peer_id,)))
    table = str(decided(profile(ALICE), profile(BOB), policy=Likes(), terms=terms))
    _, columns, *_, alike, why = table.splitlines()
    assert why.endswith("is first: all else is equal, and it is nearest to the key of the task")
    assert columns.split() == ["rank", "worker", "score", "distance"]
    assert alike == "alike for all: hint prefer no, liking 0.000 * 0.5"


def test_terms_are_in_their_units_and_who_is_first_has_a_reason() -> None:
    dear = replace(profile(ALICE), price_micro=50_000, labels=(("region", "eu"),))
    cheap = replace(profile(BOB), price_micro=1)
    alice, bob = (f"…{each.peer_id[-8:]}" for each in (ALICE, BOB))
    decision = decided(dear, cheap, policy=Cheapest())
    assert names(decision) == [BOB.peer_id, ALICE.peer_id]
    assert decision.why_first == (
        f"{bob} is first: the policy gives it the highest score, most of all for price: "
        f"0.00000105 an hour, and 0.0525 an hour for {alice}"
    )
    terms = SchedulingKey(NEEDS, hints=Hints(region="eu", avoid=(BOB.peer_id,)))
    hinted = decided(dear, cheap, policy=Cheapest(), terms=terms)
    assert names(hinted) == [ALICE.peer_id, BOB.peer_id]
    assert hinted.why_first == (
        f"{alice} is first: hints come before the policy, and it meets avoid, region better"
    )
    _, heads, _, first, second, _ = str(hinted).splitlines()
    assert re.split(" {2,}", heads)[2:-1] == ["hint avoid", "hint region", "score", "price"]
    assert re.split(" {2,}", first)[2:-1] == ["yes", "yes", "4e-05", "0.0525 an hour"]
    assert re.split(" {2,}", second)[2:-1] == ["no", "no", "1.000", "0.00000105 an hour"]
    assert decided(dear).why_first == ""


def test_only_hints_need_no_score() -> None:
    terms = SchedulingKey(NEEDS, hints=Hints(prefer=(ALICE.peer_id,)))
    _, columns, *_ = str(decided(profile(ALICE), profile(BOB), terms=terms)).splitlines()
    assert re.split(" {2,}", columns) == ["rank", "worker", "hint prefer", "distance"]


@dataclass(frozen=True, slots=True)
class Uneven(Policy):
    """Weighs the same thing differently."""

    much: PeerId

    def scores(self, task: TaskView, candidates: Sequence[Candidate]) -> Sequence[Score]:
        weights = [0.5 if each.peer_id == self.much else 0.0001 for each in candidates]
        return [scored([Term("age", 1.0, weight)]) for weight in weights]


def test_a_weight_that_differs_is_beside_each_and_what_is_tiny_is_not_nothing() -> None:
    table = str(decided(profile(ALICE), profile(BOB), policy=Uneven(ALICE.peer_id)))
    _, _, first, second, _ = table.splitlines()
    assert first.split()[2:6] == ["0.500", "1.000", "*", "0.5"]
    assert second.split()[2:6] == ["1e-04", "1.000", "*", "0.0001"]


def test_a_decision_about_nobody_prints() -> None:
    assert str(decided()) == "policy xor"


def test_a_decision_says_which_code_goes_along() -> None:
    code = Code(Blob(Cid(RAW, digest_of(b"")), 0), ("shop",), 2, 100)
    assert str(replace(decided(), code=code)) == f"policy xor\ngoes along: {code}"


# -- policies put together ------------------------------------------------------------------


def test_a_gate_refuses_and_the_policy_behind_it_ranks() -> None:
    policy = Likes(shunned=ALICE.peer_id) & Likes(((DAVE.peer_id, 1.0),), shunned=BOB.peer_id)
    decision = decided(*map(profile, (ALICE, BOB, DAVE, MALLORY)), policy=policy)
    assert names(decision) == [DAVE.peer_id, MALLORY.peer_id]
    assert {worker for worker, _ in decision.rejected} == {ALICE.peer_id, BOB.peer_id}
    assert str(policy) == "likes & likes"


def test_of_two_that_refuse_a_worker_the_first_gives_the_reason() -> None:
    shunned, distrusted = Says(Gone("it", "I saw it leave")), Likes(shunned=ALICE.peer_id)
    for policy in (shunned & distrusted, shunned + distrusted):
        assert decided(profile(ALICE), policy=policy).rejected == (
            (ALICE.peer_id, Gone("it", "I saw it leave")),
        )


def test_a_task_waits_where_the_policy_behind_the_gate_says() -> None:
    near = Peers([ALICE.peer_id, BOB.peer_id])
    assert Gated(Likes(), NEAREST).home(TARGET, near) == NEAREST.home(TARGET, near)
    assert Likes().home(TARGET, near) is None
    assert (Likes() + Likes()).home(TARGET, near) is None


def test_a_sum_is_the_mean_by_weight_and_keeps_every_term() -> None:
    policy = 3.0 * Likes(((ALICE.peer_id, 1.0),)) + Likes(((BOB.peer_id, 1.0),))
    decision = decided(*map(profile, (ALICE, BOB)), policy=policy)
    assert [(each.contact.peer_id, each.score.value) for each in decision.ranked] == [
        (ALICE.peer_id, 0.375),
        (BOB.peer_id, 0.125),
    ]
    assert decision.ranked[0].score.terms == (
        Term("liking", 1.0, 0.375),
        Term("liking", 0.0, 0.125),
    )
    assert str(policy) == "3.0*likes + likes"


def test_sums_are_added_up_flat() -> None:
    a, b, c = (Likes(shunned=each.peer_id) for each in (ALICE, BOB, DAVE))
    assert (a + b) + c == a + (b + c) == Sum(((1.0, a), (1.0, b), (1.0, c)))


def test_all_parts_of_a_sum_have_to_admit_a_worker() -> None:
    policy = Likes() + Likes(shunned=ALICE.peer_id)
    assert names(decided(*map(profile, (ALICE, BOB)), policy=policy)) == [BOB.peer_id]


@dataclass(frozen=True, slots=True)
class Squared(Policy):
    """Its terms do not add up to its score."""

    def scores(self, task: TaskView, candidates: Sequence[Candidate]) -> Sequence[Score]:
        return [Score(0.25, (Term("half", 0.5),))] * len(candidates)

    def __str__(self) -> str:
        return "squared"


def test_in_a_sum_a_score_that_is_no_sum_of_terms_counts_as_a_whole() -> None:
    (only,) = decided(profile(ALICE), policy=Squared() + Likes()).ranked
    assert only.score.terms[0] == Term("squared", 0.25, 0.5)
    assert only.score.value == 0.125


@pytest.mark.parametrize(
    "weight", [0.0, -1.0, float("nan"), float("inf"), 10**400, Fraction(1, 10**400), "0.5", 1j]
)
def test_a_weight_is_a_number_above_zero_and_finite(weight: Any) -> None:
    with pytest.raises(InvalidInput, match="above 0"):
        Sum(((weight, Likes()),))


@pytest.mark.parametrize("weight", [True, 3, 10**22, Fraction(1, 3), np.float64(0.5)])
def test_a_weight_of_any_kind_of_number_is_a_float_and_comes_back_as_text(weight: Any) -> None:
    policy = weight * NEAREST
    assert type(policy.parts[0][0]) is float
    assert parse_policy(str(policy)) == policy == float(weight) * NEAREST


def test_weights_that_cannot_be_added_up_are_refused() -> None:
    with pytest.raises(InvalidInput, match="too large to add up"):
        1e308 * Likes() + 1e308 * Likes()


def test_a_sum_has_few_parts() -> None:
    with pytest.raises(InvalidInput, match="parts"):
        Sum(())
    Sum(((1.0, NEAREST),) * MAX_TERMS)
    with pytest.raises(InvalidInput, match="parts"):
        Sum(((1.0, NEAREST),) * (MAX_TERMS + 1))


def test_the_weights_of_a_sum_are_the_same_in_any_python() -> None:
    """Where floats are added up at once, some come to 1.0 here, and to a tenth each."""
    policy = Sum(((0.1, Likes(((ALICE.peer_id, 1.0),))),) * 10)
    (only,) = decided(profile(ALICE), policy=policy).ranked
    assert only.score.terms == (Term("liking", 1.0, 0.5 * 0.10000000000000002),) * 10
    assert only.score.value == 0.5


def test_a_weight_may_stand_on_either_side() -> None:
    assert Likes() * 0.3 == 0.3 * Likes()


def test_a_policy_without_a_say_ranks_by_distance() -> None:
    everyone = [profile(each) for each in (ALICE, BOB, DAVE)]
    assert names(decided(*everyone, policy=Policy())) == names(decided(*everyone))


@given(st.lists(st.tuples(st.floats(-2, 2), st.floats(0, 2)), max_size=6))
def test_a_score_is_in_zero_to_one_whatever_its_terms(terms: list[tuple[float, float]]) -> None:
    score = scored([Term(str(place), *each) for place, each in enumerate(terms)])
    assert 0 <= score.value <= 1
    assert len(score.terms) == len(terms)


# -- policies that fail ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Broken(Policy):
    """As a person may write one."""

    values: tuple[Any, ...] | None = None
    admits: bool = True

    def admit(self, task: TaskView, candidate: Candidate) -> Refusal | None:
        if not self.admits:
            raise KeyError("region")
        return None

    def scores(self, task: TaskView, candidates: Sequence[Candidate]) -> Sequence[Score]:
        if self.values is None:
            raise ZeroDivisionError("oh")
        return [Score(value) for value in self.values]

    def home(self, key: Key, workers: Peers) -> PeerId | None:
        raise ZeroDivisionError("oh")

    @property
    def seeks_room(self) -> bool:
        raise ZeroDivisionError("oh")


@dataclass(frozen=True)
class Gives(Policy):
    """Scores both workers as told."""

    score: Any

    def scores(self, task: TaskView, candidates: Sequence[Candidate]) -> Any:
        return (self.score for _ in candidates)

    def __str__(self) -> str:
        return "gives"


class Wordless(Exception):
    def __repr__(self) -> str:
        raise ZeroDivisionError("oh")


@dataclass(frozen=True)
class Silent(Policy):
    """Its failure fails as well, when it is told."""

    def admit(self, task: TaskView, candidate: Candidate) -> Refusal | None:
        raise Wordless


@dataclass(frozen=True)
class Exits(Policy):
    """As a script does that thinks it is a program."""

    def scores(self, task: TaskView, candidates: Sequence[Candidate]) -> Sequence[Score]:
        sys.exit("no price list")

    def home(self, key: Key, workers: Peers) -> PeerId | None:
        sys.exit(1)

    @property
    def seeks_room(self) -> bool:
        sys.exit(1)


@dataclass(frozen=True)
class Interrupted(Policy):
    def admit(self, task: TaskView, candidate: Candidate) -> Refusal | None:
        raise KeyboardInterrupt


@dataclass(frozen=True)
class Says(Policy):
    what: Any

    def admit(self, task: TaskView, candidate: Candidate) -> Any:
        return self.what

    def home(self, key: Key, workers: Peers) -> Any:
        return self.what


_SCORE = "gave a score of"
_NO_FLOAT = "which is not a float from 0 to 1"
_TERMS = (
    "Gives gave terms that are none; write a tuple of Term(name, value), which are finite floats:"
)


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (Broken(), "it failed: ZeroDivisionError('oh')"),
        (Broken(admits=False), "it failed: KeyError('region')"),
        (Broken((0.5,)), "Broken gave 1 scores for 2 workers"),
        (Broken((0.5, float("nan"))), f"Broken {_SCORE} nan, {_NO_FLOAT}"),
        (Broken((0.5, -0.1)), f"Broken {_SCORE} -0.1, {_NO_FLOAT}"),
        (Broken((0.5, float("inf"))), f"Broken {_SCORE} inf, {_NO_FLOAT}"),
        (Broken((0.5, Fraction(1, 3))), f"Broken {_SCORE} Fraction(1, 3), {_NO_FLOAT}"),
        (Broken((0.5, "1")), f"Broken {_SCORE} '1', {_NO_FLOAT}"),
        (Gives(0.5), "Gives gave 0.5, which is not a Score"),
        (Gives("much" * 100), "Gives gave 'muchmuch"),
        (Gives(Score(0.5, cast("Any", [Term("a", 1)]))), f"{_TERMS} [Term("),
        (Gives(Score(0.5, cast("Any", (("a", 0.5),)))), f"{_TERMS} (('a', 0.5),)"),
        (Gives(Score(0.5, (Term("a", cast("Any", "b")),))), f"{_TERMS} (Term("),
        (Gives(Score(0.5, (Term(cast("Any", 1), 0.5),))), f"{_TERMS} (Term("),
        (Gives(Score(0.5, (Term("a", 0.5, float("nan")),))), f"{_TERMS} (Term("),
        (0.1 * Gives(Score(2.0)) + NEAREST, f"Gives {_SCORE} 2.0, {_NO_FLOAT}"),
        (NEAREST + Gives(Score(-0.1)), f"Gives {_SCORE} -0.1, {_NO_FLOAT}"),
        (NEAREST + Broken((0.5,)), "Broken gave 1 scores for 2 workers"),
        (Silent(), "it failed: Wordless"),
        (Exits(), "it failed: SystemExit('no price list')"),
        (Says(False), "it neither admits nor refuses, but says False"),
        (Says("no"), "it neither admits nor refuses, but says 'no'"),
    ],
)
def test_a_policy_that_fails_costs_its_tasks_their_workers_and_says_why(
    policy: Policy, why: str
) -> None:
    decision = decided(profile(ALICE), profile(BOB), policy=policy)
    assert decision.ranked == ()
    reasons = dict(decision.rejected)
    assert reasons.keys() == {ALICE.peer_id, BOB.peer_id}
    for reason in reasons.values():
        assert str(reason).startswith(f"policy: {why}")
        assert len(str(reason)) <= len("policy: ") + 256


def test_a_policy_that_cannot_say_where_a_task_waits_has_it_wait_for_nobody() -> None:
    for policy in (Broken(), Exits()):
        assert home_of(policy, TARGET, Peers([ALICE.peer_id])) is None
        assert not seeks_room(policy)


def test_a_person_may_interrupt_a_policy() -> None:
    with pytest.raises(KeyboardInterrupt):
        decided(profile(ALICE), policy=Interrupted())


@pytest.mark.parametrize("home", [None, "nobody", BOB.peer_id, ["a", "list"]])
def test_no_task_waits_for_somebody_who_is_not_there(home: object) -> None:
    assert home_of(Says(home), TARGET, Peers([ALICE.peer_id])) is None
    assert home_of(Says(ALICE.peer_id), TARGET, Peers([ALICE.peer_id])) == ALICE.peer_id


@dataclass
class Unhashable(Policy):
    """As whoever forgets that a policy is frozen writes it."""


class Nameless(Policy):
    def __str__(self) -> str:
        raise ZeroDivisionError("oh")


class NoMethods:
    admit = scores = home = None


@pytest.mark.parametrize(
    ("policy", "why"),
    [
        (Unhashable(), "Unhashable: it failed: TypeError"),
        (0.5 * Unhashable() + Likes(), "Sum: it failed: TypeError"),
        (Nameless(), "Nameless: it failed: ZeroDivisionError"),
        (NoMethods(), "a NoMethods is not a policy; write it as a frozen dataclass below Policy"),
        (None, "a NoneType is not a policy"),
        ("spread", "'spread' is a text; write parse_policy[(]'spread'[)]"),
        (Likes, "Likes is a class; write Likes[(][)]"),
    ],
)
def test_what_cannot_serve_as_a_policy_is_refused_before_it_is_used(policy: Any, why: str) -> None:
    with pytest.raises(InvalidInput, match=why):
        sound(policy)
    assert sound(NEAREST) is NEAREST


@pytest.mark.parametrize("part", ["spread", Likes, NoMethods(), 0.5, None])
def test_what_is_no_policy_is_refused_where_it_is_put_together(part: Any) -> None:
    whole: list[Callable[[], Policy]] = [
        lambda: NEAREST & part,
        lambda: NEAREST + part,
        lambda: Gated(part, NEAREST),
        lambda: Sum(((1.0, part),)),
    ]
    for put_together in whole:
        with pytest.raises(InvalidInput, match="write") as raised:
            put_together()
        assert raised.value.field == "policy"


class Forgetful(Policy):
    """Knows its name no more, once it is under way."""

    def __str__(self) -> str:
        raise ZeroDivisionError("oh")


class Talkative(Policy):
    def __str__(self) -> str:
        return "two\nlines" * MAX_TEXT


def test_a_policy_that_cannot_say_its_name_is_called_by_its_type() -> None:
    decision = decided(profile(ALICE), policy=Forgetful())
    assert names(decision) == [ALICE.peer_id]
    assert decision.policy == "Forgetful"


def test_the_name_of_a_policy_is_one_line_and_no_book() -> None:
    name = decided(policy=Talkative()).policy
    assert name.startswith("two linestwo lines")
    assert len(name) <= MAX_TEXT
