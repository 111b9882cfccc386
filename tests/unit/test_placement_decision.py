"""Who could run a task, best first, and the first reason why each other one could not."""

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
from formation_p2p.jobs.core.job_events import TaskSucceeded, TaskUnplaceable
from formation_p2p.leases.core.messages import Commit
from formation_p2p.machine.core.capability import Capability, Capacity, idle
from formation_p2p.machine.core.gpu import Gpu
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.peer.core.effects import Explained
from formation_p2p.peer.core.events import Explain, Submit
from formation_p2p.placement.core.candidate import Candidate, TaskView
from formation_p2p.placement.core.decision import Decision, decide
from formation_p2p.placement.core.guarded import home_of, seeks_room, sound
from formation_p2p.placement.core.names import parse_policy
from formation_p2p.placement.core.policies import Balanced, Cheapest, Packed, Spread, Trusted
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
from formation_p2p.placement.core.round_trips import (
    FAR_US,
    FORGET_S,
    MAX_PEERS,
    MAX_RTT_US,
    RoundTrips,
    nearness,
    step_ms,
)
from formation_p2p.placement.core.scored import PRESETS, Scored
from formation_p2p.placement.core.task_options import NEAREST, SchedulingKey
from formation_p2p.placement.core.xor import HASHES, Xor
from formation_p2p.records.core.profile import MAX_GATE_RTT_MS, Profile
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.code_bundle import Code
from formation_p2p.workload.core.hints import Hints
from formation_p2p.workload.core.mix import Shape
from formation_p2p.workload.core.outcome import Outcome, Succeeded
from formation_p2p.workload.core.scope import Scope
from simulations.simulator.executor import Running
from simulations.simulator.world import World
from tests.support.stories import (
    ALICE,
    BOB,
    CAROL,
    DAVE,
    MALLORY,
    NEEDS,
    at,
    at_work,
    job,
    name_of,
    only,
    passed,
    worker_of,
    workers_of,
)

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


# Policies as text: what is written is what is meant, and is read back as it was.

own_weights = st.dictionaries(
    st.sampled_from(["trust", "capacity", "queue", "rtt", "data", "scope", "hints", "jitter"]),
    st.floats(0, 1, exclude_min=True),
    min_size=1,
)
single: st.SearchStrategy[PlacementPolicy] = st.one_of(
    st.sampled_from([Balanced(), Cheapest(), Packed(), Spread(), *PRESETS.values()]),
    st.builds(Xor, st.sampled_from(["", *HASHES])),
    st.builds(Trusted, st.integers(0, 1000)),
    own_weights.map(lambda weights: Scored(**weights)),
)
policies = st.recursive(
    single,
    lambda inner: (
        st.builds(Gated, inner, inner)
        | st.builds(
            Sum,
            st.lists(
                st.tuples(st.just(1.0) | st.floats(1e-12, 1e12), inner), min_size=1, max_size=4
            ).map(tuple),
        )
    ),
    max_leaves=8,
)


@given(policies)
def test_what_a_policy_says_of_itself_is_read_back_as_equal(policy: PlacementPolicy) -> None:
    assert parse_policy(str(policy)) == policy


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("xor", Xor()),
        (" xor ", Xor()),
        ("xor(default-hasher)", Xor("default-hasher")),
        ("balanced", Balanced()),
        ("cheapest", Cheapest()),
        ("packed", Packed()),
        ("spread", Spread()),
        ("scored", PRESETS["newest"]),
        ("scored(16a)", PRESETS["16a"]),
        ("scored( trust = 0.5,capacity=0.3 )", Scored(trust=0.5, capacity=0.3)),
        ("trust >= 0.5", Trusted(500)),
        ("2*spread", 2 * Spread()),
        ("xor+spread", Xor() + Spread()),
        (
            "trust>=0.3 & 0.7*scored(16c) + 0.3*spread",
            Trusted() & 0.7 * PRESETS["16c"] + 0.3 * Spread(),
        ),
        ("trust>=0.3 & trust>=0.4 & xor", Trusted(300) & Trusted(400) & Xor()),
        ("0.5*(xor + spread) + balanced", 0.5 * (Xor() + Spread()) + Balanced()),
        ("((xor))", Xor()),
        ("scored()", PRESETS["newest"]),
        ("xor()", Xor()),
        ("spread( )", Spread()),
    ],
)
def test_it_reads_as_python_does(text: str, policy: PlacementPolicy) -> None:
    """`*` before `+` before `&`, and `&` from the left."""
    assert parse_policy(text) == policy


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("fastest", "'fastest' is not a policy; write xor, balanced, "),
        ("trust", "'trust' is not a gate; write it like trust>=0.3"),
        ("xor & trust>0.3", "'trust>0.3' is not a gate; write it like trust>=0.3"),
        ("trust>=1e-1", "trust: '1e-1' is not a number"),
        ("xor, spread", "', spread' is too much; write & or [+] between two policies"),
        ("0.5*xor*2", "'[*]2' is too much; .* weights before them, like 0.7[*]xor"),
        ("", "a policy is missing at the end"),
        ("xor &", "a policy is missing at the end"),
        ("0.5*", "a policy is missing at the end"),
        ("(xor", r"a bracket is open; write &, [+] or \) at the end"),
        ("(xor spread)", r"a bracket is open; write &, [+] or \) before 'spread\)'"),
        ("xor spread", "'spread' is too much; write & or [+] between two policies"),
        ("spread)", r"'\)' is too much"),
        ("0*xor", "a weight is a number above 0"),
        ("1e999*xor", "a weight is a number above 0"),
        ("-1*xor", "'-1[*]xor' is not a policy"),
        ("trust>=2", "trust is from 0 to 1"),
        ("trust>=0.3.3", "'0.3.3' is no"),
        ("xor(md5)", "'md5' is not a hash of names"),
        ("spread(1)", "spread takes nothing in brackets"),
        ("scored(,)", "'' is not a weight; write one of 16a, 16c, newest, or weights of trust, "),
        ("scored(16a, 16c)", "'16a' is not a weight"),
        ("scored(speed=1)", "'speed=1' is not a weight"),
        ("scored(trust=much)", "'trust=much' is not a weight"),
        ("scored(trust=0.5, trust=0.5)", "trust is given twice"),
        ("scored(trust=2)", "the weight of trust is 2.0; write 0 to 1"),
        ("scored(trust=0)", "write one at least"),
        ("x" * 100, "'x*'… is not a policy"),
        (" " * (MAX_TEXT + 1), "longer than 4096"),
        (" + ".join(["xor"] * 33), "more than 32 terms"),
        ("(" * 9 + "xor" + ")" * 9, "more than 8 brackets in each other"),
    ],
)
def test_what_is_wrong_is_said_with_what_to_write(text: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem) as raised:
        parse_policy(text)
    assert raised.value.field == "policy"


@given(st.text(alphabet="xor spead(),.&+*>=0123456789", max_size=40))
def test_any_other_text_is_refused_and_nothing_worse(text: str) -> None:
    try:
        policy = parse_policy(text)
    except InvalidInput:
        return
    assert parse_policy(str(policy)) == policy


def night() -> PlacementPolicy:
    raise OSError("no sun today")


OWN: dict[str, Any] = {"greenest": Trusted, "night": night, "bare-1": object}


def test_a_text_may_name_other_policies_that_are_given() -> None:
    assert parse_policy("0.5*greenest + trust>=0.4", OWN) == 0.5 * Trusted() + Trusted(400)
    with pytest.raises(InvalidInput, match="'xor' is not a policy; write greenest, night, bare-1 "):
        parse_policy("xor", OWN)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("night", r"night: it failed: OSError\('no sun today'\)"),
        ("greenest(1, 2)", "greenest takes least_milli in brackets"),
        ("greenest(much)", "'much' is not a whole number of thousandths"),
        ("bare-1", "an? object is not a policy; write it as a frozen dataclass below Policy"),
    ],
)
def test_a_policy_of_others_that_cannot_be_made_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InvalidInput, match=problem):
        parse_policy(text, OWN)


# How far others are, as measured on the connections with them.

ALICES, BOBS = ALICE.peer_id, BOB.peer_id


def known(*measured_us: int) -> int | None:
    round_trips = RoundTrips(CAROL.peer_id)
    for rtt_us in measured_us:
        round_trips.measured(ALICES, rtt_us, NOW)
    return round_trips.rtt_us(ALICES, NOW)


def test_a_shorter_round_trip_counts_at_once_and_a_longer_one_bit_by_bit() -> None:
    assert known() is None
    assert known(80_000) == 80_000
    assert known(80_000, 20_000) == 20_000
    assert known(80_000, 20_000, 100_000) == 30_000  # a queue, perhaps
    assert 90_000 < (known(20_000, *[100_000] * 20) or 0) < 100_000  # no: another route


def test_of_several_peers_the_median_is_told_in_coarse_steps() -> None:
    round_trips = RoundTrips(CAROL.peer_id)
    assert round_trips.median_ms([ALICES, BOBS, CAROL.peer_id], NOW) is None
    round_trips.measured(ALICES, 300, NOW)
    assert round_trips.median_ms([ALICES, BOBS, CAROL.peer_id], NOW) == 1
    round_trips.measured(BOBS, 30_000, NOW)
    assert round_trips.median_ms([ALICES, BOBS], NOW) == 1  # the lower one
    assert round_trips.median_ms([BOBS], NOW) == 50
    assert round_trips.median_ms([BOBS], at(FORGET_S + 1)) is None


@given(st.integers(1, MAX_RTT_US))
def test_a_step_is_the_next_of_one_two_five_and_fits_in_a_profile(rtt_us: int) -> None:
    step = step_ms(rtt_us)
    assert rtt_us <= step * 1000 <= max(2.5 * rtt_us, 1000)
    assert str(step).rstrip("0") in {"1", "2", "5"}
    assert step <= MAX_GATE_RTT_MS


def test_what_no_round_trip_can_take_is_brought_within_bounds() -> None:
    assert known(0) == 1
    assert known(-5) == 1
    assert known(10**12) == MAX_RTT_US


def test_a_peer_is_no_distance_from_itself() -> None:
    assert RoundTrips(ALICES).rtt_us(ALICES, NOW) == 0


def test_what_was_measured_long_ago_is_not_known_any_more() -> None:
    round_trips = RoundTrips(CAROL.peer_id)
    round_trips.measured(ALICES, 20_000, at(0))
    assert round_trips.rtt_us(ALICES, at(FORGET_S)) == 20_000
    assert round_trips.rtt_us(ALICES, at(FORGET_S + 1)) is None
    round_trips.measured(ALICES, 90_000, at(FORGET_S + 1))
    assert round_trips.rtt_us(ALICES, at(FORGET_S + 1)) == 90_000


def test_whoever_was_measured_longest_ago_makes_room() -> None:
    round_trips = RoundTrips(CAROL.peer_id)
    round_trips.measured(ALICES, 1000, NOW)
    round_trips.measured(BOBS, 1000, NOW)
    round_trips.measured(ALICES, 1000, NOW)
    for number in range(MAX_PEERS - 1):
        round_trips.measured(PeerId(f"peer {number}"), 1000, NOW)
    assert len(round_trips) == MAX_PEERS
    assert round_trips.rtt_us(BOBS, NOW) is None
    assert round_trips.rtt_us(ALICES, NOW) == 1000


def crowd(round_trips: RoundTrips, count: int, name: str = "stranger") -> None:
    for number in range(count):
        round_trips.measured(PeerId(f"{name} {number}"), 1000, NOW)


def test_strangers_who_connect_push_out_nobody_that_was_asked_for() -> None:
    round_trips = RoundTrips(CAROL.peer_id)
    round_trips.measured(ALICES, 20_000, NOW)
    assert round_trips.rtt_us(ALICES, NOW) == 20_000
    crowd(round_trips, 2 * MAX_PEERS)
    assert round_trips.rtt_us(ALICES, NOW) == 20_000
    round_trips.measured(ALICES, 10_000, NOW)
    crowd(round_trips, 2 * MAX_PEERS)
    assert round_trips.rtt_us(ALICES, NOW) == 10_000


def test_of_those_that_were_asked_for_only_so_many_are_kept() -> None:
    round_trips = RoundTrips(CAROL.peer_id)
    for name in ("worker", "another"):
        crowd(round_trips, MAX_PEERS, name)
        for number in range(MAX_PEERS):
            assert round_trips.rtt_us(PeerId(f"{name} {number}"), NOW) == 1000
    assert len(round_trips) == MAX_PEERS
    assert round_trips.rtt_us(PeerId("worker 0"), NOW) is None
    crowd(round_trips, MAX_PEERS)
    assert len(round_trips) == 2 * MAX_PEERS


@pytest.mark.parametrize(
    ("rtt_us", "near"),
    [(0, 1.0), (10_000, 0.98), (250_000, 0.5), (FAR_US, 0.0), (900_000, 0.0), (None, 0.0)],
)
def test_nearness_falls_in_proportion_to_half_a_second(rtt_us: int | None, near: float) -> None:
    assert nearness(rtt_us) == near


@given(st.lists(st.integers(1, MAX_RTT_US), min_size=1, max_size=30))
def test_what_is_known_is_never_less_than_the_shortest_nor_more_than_the_longest(
    measured_us: list[int],
) -> None:
    rtt_us = known(*measured_us)
    assert rtt_us is not None
    assert min(measured_us) <= rtt_us <= max(measured_us)
    assert rtt_us <= measured_us[-1]


# Placement between whole peers: what a job says of policy, hints and scope decides who runs it.


def shop(**prices: int) -> World:
    """Workers of one core each, at these prices; bob has tasks."""
    world = World(7)
    world.add("gate")
    for name, price in prices.items():
        world.add(name, serve=replace(world.machine(cpu=1), price_micro=price))
    world.add("bob")
    world.elapse(3)
    return world


PRICES = {"alice": 300, "carol": 100, "dave": 200}


def test_a_hint_comes_before_the_policy_and_is_soft() -> None:
    world, bob = at_work(shop(**PRICES))
    hints = Hints(prefer=(world.nodes["alice"].contact.peer_id,))
    bob.submit(job(1, job_id="one", policy="cheapest", hints=hints))
    world.elapse(5)
    assert workers_of(bob) == ["alice"]
    bob.submit(job(3, job_id="three", policy="cheapest", hints=hints))
    world.elapse(5)
    assert len(only(bob.reported, TaskSucceeded)) == 4


def test_where_nobody_has_the_data_that_is_required_the_person_is_told() -> None:
    world, bob = at_work(shop(**PRICES))
    blob = Blob(Cid(RAW, digest_of(b"nobody has it")), 100)
    bob.submit(job(1, hints=Hints(near=(blob,), required=frozenset({"near"}))))
    world.elapse(10)
    (unplaceable,) = only(bob.reported, TaskUnplaceable)
    assert len(unplaceable.reasons) == 3
    assert all(isinstance(why, Unwanted) for _, why in unplaceable.reasons)


def test_jobs_of_different_policies_share_no_lease() -> None:
    world, bob = at_work(shop(alice=100))
    bob.submit(job(2, job_id="near", policy="xor"))
    bob.submit(job(2, job_id="cheap", policy="cheapest"))
    world.elapse(10)
    assert len(only(bob.reported, TaskSucceeded)) == 4
    assert sum(isinstance(each, Commit) for each in passed(world, "bob", "alice")) == 2


@dataclass(frozen=True, slots=True)
class Dearest(Policy):
    """Nobody would want it, and it has no name."""

    def scores(self, task: TaskView, candidates: Sequence[Candidate]) -> Sequence[Score]:
        most = max((each.profile.price_micro for each in candidates), default=1)
        return [Score(each.profile.price_micro / most) for each in candidates]


class Breaks(Dearest):
    def scores(self, task: TaskView, candidates: Sequence[Candidate]) -> Sequence[Score]:
        raise LookupError("no such column")


def test_a_policy_that_fails_costs_its_own_job_and_nothing_else() -> None:
    world, bob = at_work(shop(**PRICES))
    world.deliver(bob, Submit(job(1, job_id="bad", policy=Breaks())))
    bob.submit(job(1, job_id="good"))
    world.elapse(30)
    (unplaceable,) = only(bob.reported, TaskUnplaceable)
    why = Unwanted("policy", "it failed: LookupError('no such column')")
    assert {name_of(world, worker): reason for worker, reason in unplaceable.reasons} == {
        "alice": why,
        "carol": why,
        "dave": why,
    }
    assert [each.task_id for each in only(bob.reported, TaskSucceeded)] == ["good/0"]


def test_explain_shows_the_terms_of_the_policy_and_who_has_answered_what() -> None:
    world, bob = at_work(shop(**PRICES))
    terms = SchedulingKey(NEEDS, max_price_micro=250)
    world.deliver(bob, Explain(1, terms, "a task"))
    world.elapse(5)
    (explained,) = (each for each in bob.explained if isinstance(each, Explained))
    assert [name_of(world, worker) for worker, _ in explained.decision.rejected] == ["alice"]
    assert len(explained.decision.ranked) == 2
    assert all(each.profile.price_micro <= 250 for each in explained.decision.ranked)


# -- GPUs -----------------------------------------------------------------------------------


def lasting(running: Running) -> tuple[float, Outcome]:
    return 60.0, Succeeded(b"")


def half() -> Requirements:
    return replace(NEEDS, gpu_count=1, gpu_share_milli=500)


def test_packed_fills_what_is_begun_and_says_so_in_what_it_announces() -> None:
    """alice and carol have two GPUs each: four halves leave one of them untouched."""
    world = World(7, run=lasting)
    world.add("gate")
    gpus = tuple(Gpu(f"G{n}", "nvidia", "a100", 40 * 10**9) for n in range(2))
    for name in ("alice", "carol"):
        serve = world.machine(cpu=8)
        able = replace(serve.capability, gpus=gpus)
        world.add(name, serve=replace(serve, capability=able))
    world.add("bob")
    world.elapse(3)
    bob = world.nodes["bob"]
    for number in range(4):
        bob.submit(job(1, job_id=f"half{number}", needs=half(), policy="packed"))
        world.elapse(6)
    first, second, *_ = workers_of(bob)
    assert first == second
    taken = {
        name: sorted(
            gpu.share_milli for gpu in worker_of(world.nodes[name]).lessor.ledger.free.gpus
        )
        for name in ("alice", "carol")
    }
    assert sorted(taken.values()) == [[0, 0], [1000, 1000]]
    world.deliver(bob, Explain(1, SchedulingKey(half()), "a task"))
    world.elapse(5)
    (explained,) = (each for each in bob.explained if isinstance(each, Explained))
    announced = {
        name_of(world, each.profile.peer_id): each.profile.mix for each in explained.decision.ranked
    }
    [most_seen, *_] = announced[first].shapes
    assert most_seen[0] == Shape.of(half())
