"""A sum of reasons, each of which can be read; and the same draw for whoever repeats it."""

import random
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from examples.tariffs import (
    offered_price_micro,
    price_behind_queue_micro,
    price_under_load_micro,
    starts_in_ms,
    unit_price_micro,
)
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.keyspace import key_of
from formation_p2p.core.refusals import Distrusted, TooDear
from formation_p2p.core.units import GIB
from formation_p2p.jobs.core.job_events import TaskSucceeded
from formation_p2p.machine.core.capability import Capability, Capacity, GpuFree, idle
from formation_p2p.machine.core.fits import GpuClaim
from formation_p2p.machine.core.gpu import Gpu
from formation_p2p.machine.core.requirements import Requirements, parse_requirements
from formation_p2p.placement.core import policies as module
from formation_p2p.placement.core.candidate import Candidate, TaskView, free_part, task_part
from formation_p2p.placement.core.guarded import seeks_room
from formation_p2p.placement.core.learnt import AGAIN, LEAST, MAX_KINDS, Learner, Learnt
from formation_p2p.placement.core.names import parse_policy
from formation_p2p.placement.core.policies import (
    CANDIDATES,
    ONE_UNIT,
    Cheapest,
    Packed,
    Spread,
    Trusted,
    weight,
    weight_of,
)
from formation_p2p.placement.core.policy import Policy
from formation_p2p.placement.core.scored import PRESETS, Scored
from formation_p2p.placement.core.task_options import SchedulingKey, options_of
from formation_p2p.placement.core.xor import Xor
from formation_p2p.records.core.profile import Profile
from formation_p2p.trust.core.reputation import Reputation
from formation_p2p.workload.core.hints import Hints
from formation_p2p.workload.core.mix import MAX_SHAPES, Mix, Shape
from formation_p2p.workload.core.scope import Scope
from tests.support.placement_world import (
    SMALL,
    nearest_first,
    order,
    peer,
    placed,
    profile,
    task,
    worker,
)
from tests.support.resources_world import GB, a100, h100, machine
from tests.support.stories import NEEDS, at, ends, identity, job, peer_of, town


def terms(candidate: Candidate, policy: Scored, asked: TaskView | None = None) -> dict[str, float]:
    """What each term adds, rounded to what a person would read."""
    [score] = policy.scores(asked or task(), [candidate])
    return {term.name: round(term.value * term.weight, 9) for term in score.terms}


def alone(**weights: float) -> Scored:
    return Scored(**weights)


def test_each_term_says_what_it_adds() -> None:
    half_free = Capacity(4000, 16 * GIB, 100 * GIB)
    candidate = replace(
        worker(profile("alice", capacity=half_free), trust=0.8, queue=2, rtt_ms=100),
        local_bytes=3,
        data_bytes=4,
        scope=Scope.CELL,
    )
    added = terms(candidate, PRESETS["newest"])
    jitter = added.pop("jitter")
    assert added == {
        "trust": 0.16,
        "capacity": 0.075,
        "queue": 0.08,
        "rtt": 0.08,
        "data": 0.075,
        "scope": 0.12,
        "hints": 0.0,
    }
    assert 0 <= jitter < 0.1
    [score] = PRESETS["newest"].scores(task(), [candidate])
    assert score.value == pytest.approx(0.59 + jitter)


def test_what_is_not_known_adds_nothing_and_a_stranger_is_half_trusted() -> None:
    stranger = worker("alice")
    weights = alone(trust=0.4, rtt=0.3, data=0.3)
    assert terms(stranger, weights) == {"trust": 0.2, "rtt": 0.0, "data": 0.0}


def test_from_ten_attempts_and_from_half_a_second_on_it_makes_no_difference() -> None:
    weights = alone(queue=0.5, rtt=0.5)
    assert terms(worker("alice", queue=10, rtt_ms=500), weights) == {"queue": 0.0, "rtt": 0.0}
    assert terms(worker("alice", queue=99, rtt_ms=900), weights) == {"queue": 0.0, "rtt": 0.0}


def test_the_smaller_the_circle_the_better() -> None:
    added = [
        terms(replace(worker("alice"), scope=scope), alone(scope=0.15))["scope"] for scope in Scope
    ]
    assert added == [0.15, 0.12, 0.08, 0.04, 0.0]


def test_a_hint_that_is_met_adds_to_the_score() -> None:
    eu = worker(profile("alice", labels=(("region", "eu-west"), ("cell", "kitchen"))))

    def added(hints: Hints) -> float:
        return terms(eu, alone(hints=0.05), task(hints=hints))["hints"]

    assert added(Hints(region="eu-west")) == 0.03
    assert added(Hints(region="us-east")) == 0.0
    assert added(Hints(prefer=(peer("alice"),))) == 0.05
    assert added(Hints(prefer=(peer("alice"),), region="eu-west")) == 0.05
    assert added(Hints(labels=(("cell", "kitchen"),))) == 0.05
    assert added(Hints()) == 0.0


def test_who_is_trusted_less_than_three_tenths_is_left_out() -> None:
    decision = placed(
        task(), [worker("alice", trust=0.3), worker("bob", trust=0.299)], PRESETS["16a"]
    )
    assert [each.profile.peer_id for each in decision.ranked] == [peer("alice")]
    assert decision.rejected == ((peer("bob"), Distrusted(299, 300)),)


def test_the_draw_is_the_same_again_and_another_for_each_task_and_worker() -> None:
    names = ["alice", "bob", "carol", "dave"]
    candidates = [worker(name) for name in names]
    policy = alone(jitter=0.1)
    draws = [
        tuple(score.value for score in policy.scores(task(f"job/{n}"), candidates))
        for n in range(50)
    ]
    assert [policy.scores(task("job/7"), [each])[0].value for each in candidates] == list(draws[7])
    assert len({value for each in draws for value in each}) == 200
    assert all(0 <= value < 0.1 for each in draws for value in each)
    first = {order(task(f"job/{n}"), candidates, policy)[0] for n in range(50)}
    assert first == set(map(peer, names))


def test_a_score_is_cut_at_one() -> None:
    best = replace(worker("alice", trust=1, rtt_ms=0), local_bytes=9, data_bytes=1)
    hints = Hints(prefer=(peer("alice"),))
    [score] = PRESETS["16c"].scores(task(hints=hints), [best])
    assert score.value == 1.0


weights = st.fixed_dictionaries(
    {},
    optional={
        name: st.floats(0, 1)
        for name in ("trust", "capacity", "queue", "rtt", "data", "scope", "hints", "jitter")
    },
).filter(lambda each: any(each.values()))
candidates = st.builds(
    lambda known, here, there, scope: replace(
        known, local_bytes=here, data_bytes=there, scope=scope
    ),
    known=st.builds(
        worker,
        st.sampled_from(["alice", "bob"]),
        trust=st.none() | st.floats(0, 1),
        queue=st.integers(0, 1000),
        rtt_ms=st.none() | st.integers(0, 60_000),
    ),
    here=st.integers(0, 2**60),
    there=st.integers(0, 2**60),
    scope=st.sampled_from(Scope),
)


@given(weights, candidates)
def test_every_score_is_in_bounds(given_weights: dict[str, float], candidate: Candidate) -> None:
    [score] = Scored(**given_weights).scores(task(), [candidate])
    assert 0 <= score.value <= 1
    assert all(0 <= term.value <= 1 for term in score.terms)


@pytest.mark.parametrize(
    "weight", [-0.1, 1.1, float("nan"), float("inf"), 10**400, "0.5", None, 1j]
)
def test_a_weight_is_from_nought_to_one(weight: Any) -> None:
    with pytest.raises(InvalidInput, match="the weight of queue is"):
        Scored(queue=weight)


def test_something_has_to_count() -> None:
    with pytest.raises(InvalidInput, match="write one at least"):
        Scored()


@pytest.mark.parametrize("weight", [True, 1, Fraction(1, 3), np.float64(0.5)])
def test_a_weight_of_any_kind_of_number_is_a_float_and_comes_back_as_text(weight: Any) -> None:
    policy = Scored(trust=weight)
    assert type(policy.trust) is float
    assert parse_policy(str(policy)) == policy == Scored(trust=float(weight))


def test_the_draw_is_the_same_in_every_release() -> None:
    """Else nodes of two releases would rank the same workers differently."""
    candidates = [worker(name) for name in ("alice", "bob", "carol", "dave", "erin")]
    scores = alone(jitter=1.0).scores(task("job/0"), candidates)
    drawn = [3448411771, 1471263166, 4198215598, 3388353171, 2674502654]
    assert [score.value for score in scores] == [each / 2**32 for each in drawn]


# -- the gate of trust, as a policy ---------------------------------------------------------


TASK = TaskView(name="task", key=key_of(b"task"), needs=NEEDS)
MACHINE = Capability(1000, 2**30)


def candidate(trust_milli: int | None) -> Candidate:
    profile = Profile(
        peer_id=identity("alice").peer_id,
        sequence=1,
        issued_unix_s=1,
        expires_unix_s=2,
        capability=MACHINE,
        capacity=idle(MACHINE),
    )
    return Candidate(profile=profile, trust_milli=trust_milli)


def test_whoever_is_trusted_enough_is_admitted_and_others_are_refused_with_the_figures() -> None:
    gate = Trusted(300)
    assert gate.admit(TASK, candidate(300)) is None
    assert gate.admit(TASK, candidate(299)) == Distrusted(299, 300)


def test_where_nothing_is_known_a_worker_is_a_stranger() -> None:
    assert Trusted(500).admit(TASK, candidate(None)) is None
    assert Trusted(501).admit(TASK, candidate(None)) == Distrusted(500, 501)
    stranger = Reputation(identity("bob").peer_id).score_milli(identity("alice").peer_id, at(0))
    assert stranger == module.STRANGER_MILLI
    assert stranger > module.EXECUTE_MILLI


@pytest.mark.parametrize("text", ["trust>=0.3", "trust>=0", "trust>=1", "trust>=0.125"])
def test_its_text_comes_back(text: str) -> None:
    assert str(parse_policy(text)) == text


def test_people_may_leave_spaces() -> None:
    assert parse_policy(" trust >= 0.3 ") == Trusted(300) == Trusted()


def test_what_is_no_such_gate_is_refused() -> None:
    for text in ("trust>=1.1", "trust>=much", "trust>=-1", "trust>=0.0001"):
        with pytest.raises(InvalidInput, match="policy: trust"):
            parse_policy(text)
    with pytest.raises(InvalidInput, match="0 to 1"):
        Trusted(-1)


@pytest.mark.parametrize("least", [0.3, True, "0.3", None])
def test_trust_is_in_whole_thousandths(least: Any) -> None:
    with pytest.raises(InvalidInput, match=r"write Trusted\(300\), or trust>=0.3"):
        Trusted(least)


# -- what work weighs and costs, and who does it for the least ------------------------------


def with_gpu(memory_gib: int) -> Capability:
    card = Gpu("G0", "nvidia", "h100", memory_gib * GIB, 90)
    return Capability(8000, 16 * GIB, gpus=(card,))


def test_a_core_weighs_one_and_all_else_its_part_of_that() -> None:
    assert weight(cpu_milli=1000) == ONE_UNIT
    assert weight(gpu_bytes=GIB) == 25 * ONE_UNIT
    assert weight(memory_bytes=10 * GIB) == ONE_UNIT
    assert weight(storage_bytes=100 * GIB) == ONE_UNIT
    needs = Requirements(cpu_milli=500, memory_bytes=5 * GIB, storage_bytes=10 * GIB, gpu_count=1)
    claims = (GpuClaim("G0", 1000, 2 * GIB),)
    assert weight_of(needs, claims) == 51.1 * ONE_UNIT


def test_the_price_of_a_unit_is_rounded_up_and_of_nothing_there_is_none() -> None:
    assert unit_price_micro(100_000_000, weight(cpu_milli=8000)) == 12_500_000
    assert unit_price_micro(1, weight(cpu_milli=8000)) == 1
    with pytest.raises(InvalidInput, match="nothing is offered"):
        unit_price_micro(100, weight())


def test_the_lowest_price_comes_first_and_twice_of_it_scores_half() -> None:
    candidates = [
        worker(profile("dear", price_micro=399)),
        worker(profile("cheap", price_micro=99)),
        worker(profile("middling", price_micro=199)),
    ]
    ranked = placed(task(), candidates, Cheapest()).ranked
    assert [each.profile.price_micro for each in ranked] == [99, 199, 399]
    assert [each.score.value for each in ranked] == [1.0, 0.5, 0.25]


def test_beside_a_worker_that_is_free_the_cheaper_one_is_still_told_from_the_dearer() -> None:
    candidates = [
        worker(profile("dear", price_micro=2000)),
        worker(profile("free")),
        worker(profile("cheap", price_micro=1000)),
    ]
    assert order(task(), candidates, Cheapest()) == [peer("free"), peer("cheap"), peer("dear")]


def test_a_price_like_the_moon_changes_nothing_for_the_others() -> None:
    asked = task()
    two = [worker(profile("a", price_micro=100)), worker(profile("b", price_micro=101))]
    moon = worker(profile("moon", price_micro=2**63 - 1))
    both = placed(asked, two, Cheapest()).ranked
    assert placed(asked, [*two, moon], Cheapest()).ranked[:2] == both


def test_what_a_task_takes_of_a_worker_is_what_it_costs() -> None:
    """A whole card of 80 GiB, for a task that asks for 10."""
    needs = Requirements(cpu_milli=1000, memory_bytes=GIB, gpu_count=1, gpu_memory_bytes=10 * GIB)
    large = worker(profile("large", with_gpu(80), price_micro=100))
    small = worker(profile("small", with_gpu(10), price_micro=300))
    assert order(task(needs=needs), [large, small], Cheapest()) == [peer("small"), peer("large")]
    # Where it has no room it is asked last, and would cost what it costs when it has.
    taken = Capacity(8000, 16 * GIB)
    busy = worker(profile("small", with_gpu(10), taken, price_micro=300))
    [first, last] = placed(task(needs=needs), [large, busy], Cheapest()).ranked
    assert first.profile.peer_id == peer("large")
    assert last.score.value > first.score.value
    both_busy = [worker(profile("large", with_gpu(80), taken, price_micro=100)), busy]
    assert order(task(needs=needs), both_busy, Cheapest()) == [peer("small"), peer("large")]
    # Asked about one that could never run it, it reckons without the card.
    assert Cheapest().scores(task(needs=needs), [worker("none")])[0].value == 1.0


def test_what_is_above_the_private_maximum_is_left_out() -> None:
    candidates = [worker(profile(f"asks-{p}", price_micro=p)) for p in (150, 160, 161)]
    decision = placed(task(max_price_micro=160), candidates, Cheapest())
    assert [each.profile.price_micro for each in decision.ranked] == [150, 160]
    assert decision.rejected == ((peer("asks-161"), TooDear(161, 160)),)


@given(st.lists(st.integers(0, 2**28), min_size=1, max_size=8, unique=True))
def test_the_order_is_that_of_the_prices_and_every_score_is_in_bounds(prices: list[int]) -> None:
    candidates = [worker(profile(f"w{n}", price_micro=p)) for n, p in enumerate(prices)]
    ranked = placed(task(needs=SMALL), candidates, Cheapest()).ranked
    assert [each.profile.price_micro for each in ranked] == sorted(prices)
    assert all(0 < each.score.value <= 1 for each in ranked)


def test_of_nobody_there_is_no_price() -> None:
    assert Cheapest().scores(task(), []) == []


def test_an_idle_machine_is_cheaper_and_a_full_one_dearer() -> None:
    asked = [price_under_load_micro(1000, used) for used in (0, 299, 300, 699, 700, 899, 900, 1000)]
    assert asked == [800, 800, 1000, 1000, 1500, 1500, 2000, 2000]


def test_behind_a_long_queue_it_is_dearer_and_later() -> None:
    assert [price_behind_queue_micro(10, queue) for queue in (0, 5, 6)] == [10, 10, 15]
    assert starts_in_ms(5) == 50_000
    assert starts_in_ms(5, task_ms=100) == 500


def test_a_part_of_a_worker_goes_for_the_bid_and_all_of_it_for_its_price() -> None:
    def offered(bid_micro: int, *, whole: bool) -> int | None:
        return offered_price_micro(
            price_micro=150, floor_micro=100, bid_micro=bid_micro, whole=whole
        )

    assert offered(110, whole=False) == 110
    assert offered(110, whole=True) == 150
    assert offered(99, whole=False) is offered(99, whole=True) is None


# How full a worker is, and who is the emptiest.

BIG = Capability(32_000, 64 * GIB, 100 * GIB)
WITH_GPUS = Capability(8000, 16 * GIB, gpus=(a100("G0"), a100("G1")))


def test_a_worker_is_as_free_as_what_is_scarcest_on_it() -> None:
    assert free_part(SMALL, BIG, idle(BIG)) == 1
    assert free_part(SMALL, BIG, Capacity(8000, 64 * GIB)) == 0.25
    assert free_part(SMALL, BIG, Capacity(32_000, 16 * GIB)) == 0.25


def test_gpus_count_for_who_needs_them() -> None:
    half_taken = replace(idle(WITH_GPUS), gpus=(GpuFree("G0", 1000, 40 * GB),))
    assert free_part(SMALL, WITH_GPUS, half_taken) == 1
    assert free_part(replace(SMALL, gpu_count=1), WITH_GPUS, half_taken) == 0.5


def test_a_task_takes_as_much_as_of_what_it_takes_most() -> None:
    assert task_part(SMALL, BIG) == 1 / 32
    assert task_part(replace(SMALL, memory_bytes=32 * GIB), BIG) == 0.5
    assert task_part(replace(SMALL, storage_bytes=25 * GIB), BIG) == 0.25
    assert task_part(replace(SMALL, gpu_count=1, gpu_share_milli=500), WITH_GPUS) == 0.25
    assert task_part(replace(SMALL, gpu_count=2, gpu_share_milli=500), WITH_GPUS) == 0.5
    # Of a network that nobody measured.
    assert task_part(replace(SMALL, network_mbps=1), BIG) == 1 / 32


def test_the_fewest_attempts_for_its_size_come_first() -> None:
    asked = task()
    small = worker(profile("small"), queue=1)
    big = worker(profile("big", BIG), queue=2)
    assert order(asked, [small, big], Spread()) == [peer("big"), peer("small")]
    assert order(asked, [small, replace(big, queue=5)], Spread()) == [peer("small"), peer("big")]


def test_a_machine_s_worth_of_attempts_halves_the_score() -> None:
    asked = task(needs=Requirements(cpu_milli=1000, memory_bytes=1))
    ranked = placed(asked, [worker("idle"), worker("full", queue=8)], Spread()).ranked
    assert [each.score.value for each in ranked] == [1.0, 0.5]


def test_the_work_of_others_counts_as_much_as_ours() -> None:
    """What it announced has both in it: of the two the larger counts, not the sum."""
    half_free = Capacity(4000, 16 * GIB, 100 * GIB)
    asked = task(needs=Requirements(cpu_milli=1000, memory_bytes=1))
    others = worker(profile("others", capacity=half_free))
    both = worker(profile("both", capacity=half_free), queue=4)
    ours = worker("ours", queue=4)
    ranked = placed(asked, [others, both, ours], Spread()).ranked
    assert {each.score.value for each in ranked} == {1 / 1.5}


def test_where_all_are_idle_the_nearest_comes_first() -> None:
    asked, names = task(), ["alice", "bob", "carol"]
    nearest = [peer(name) for name in nearest_first(asked, names)]
    assert order(asked, map(worker, names), Spread()) == nearest


# Which preset of `scored` is taken for which kind of task, by what each has brought.

TAKES_S = {"16a": 4.0, "16c": 1.0, "newest": 2.0}


def lived(learner: Learner, kind: str, tasks: int, **takes_s: float) -> list[str]:
    """The presets that were chosen, one task after the other."""
    rng, chosen = random.Random(1), []
    for _ in range(tasks):
        preset = learner.choose(kind).preset
        chosen.append(preset)
        learner.took(kind, preset, takes_s[preset] * rng.lognormvariate(0, 0.5))
    return chosen


def test_presets_take_turns_until_it_is_clear_that_another_is_faster() -> None:
    learner = Learner()
    chosen = lived(learner, "k", 1_000, **TAKES_S)
    first, later = chosen[: 3 * LEAST], chosen[3 * LEAST :]
    assert [first.count(preset) for preset in PRESETS] == [LEAST] * 3
    assert later.count("16a") == 0
    assert later.count("16c") > 0.95 * len(later)
    assert "16c, learnt of k" in learner.told("k")


def test_those_that_cannot_be_told_apart_go_on_taking_turns() -> None:
    learner = Learner()
    chosen = lived(learner, "k", 600, **{"16a": 1.01, "16c": 1.0, "newest": 9.0})
    assert [chosen[-100:].count(preset) for preset in PRESETS] == [50, 50, 0]
    assert "learning of k" in learner.told("k")


def test_one_whose_results_do_not_come_waits_for_them() -> None:
    learner = Learner()
    for _ in range(300):
        preset = learner.choose("k").preset
        if preset != "16a":
            learner.took("k", preset, 1.0)
    assert learner.best("k") != "16a"
    assert "16a unknown" in learner.told("k")
    for _ in range(LEAST):
        learner.took("k", "16a", 1.0)
    assert learner.best("k") == "16a"


def test_tasks_of_one_job_tell_as_much_as_one_task() -> None:
    """They have met the same load."""
    learner = Learner()
    for took_s in (9.0, 1.0, 1.0) * LEAST:
        assert "learning" in learner.told("k")
        preset = learner.choose("k", 100).preset
        for _ in range(100):
            learner.took("k", preset, took_s)
    assert learner.best("k") != "16a"


def test_after_many_results_all_presets_take_turns_again() -> None:
    """What was best may be so no more."""
    learner = Learner()
    lived(learner, "k", AGAIN, **TAKES_S)
    assert "16c unknown" in learner.told("k")
    lived(learner, "k", 300, **{"16a": 1.0, "16c": 4.0, "newest": 4.0})
    assert learner.best("k") == "16a"


def test_each_kind_has_its_own_best() -> None:
    learner = Learner()
    lived(learner, "a", 400, **TAKES_S)
    lived(learner, "b", 400, **{"16a": 1.0, "16c": 2.0, "newest": 0.0})
    assert learner.best("a") == "16c"
    assert learner.best("b") == "newest"
    assert learner.best("unknown") == "newest"
    assert "a: 16a" in learner.explained().told


def test_of_too_many_kinds_the_one_that_came_longest_ago_is_forgotten() -> None:
    learner = Learner()
    for number in range(MAX_KINDS + 1):
        learner.choose(f"k{number}")
    assert "unknown" in learner.told("k0")
    learner.took("k0", "16a", 1.0)  # of a job that went on meanwhile
    assert learner.told("k0").count("unknown") == 3


def test_the_gate_of_trust_is_the_same_whatever_is_learnt() -> None:
    bad = worker("alice", trust=0.1)
    for preset in PRESETS:
        assert Learnt(preset).admit(task(), bad) == Distrusted(100, 300)
        assert Learnt(preset).scores(task(), [bad]) == PRESETS[preset].scores(task(), [bad])


def test_it_is_asked_for_by_name_and_told_by_explain() -> None:
    assert parse_policy("scored(learnt)") == Learnt()
    assert str(Learnt()) == "scored(learnt)"
    assert parse_policy("scored(16a)") == PRESETS["16a"]
    world = town(7, None, alice=2, carol=2)
    bob = world.nodes["bob"]
    options = options_of({"policy": "scored(learnt)", "needs": NEEDS})
    scheduler = peer_of(bob).scheduler
    key: SchedulingKey = options.scheduling_key(NEEDS)
    assert scheduler.explain(key, "x", (), at(5)).policy == "scored(learnt): nothing yet"
    for number in range(3):
        bob.submit(job(2, job_id=f"job{number}", policy="scored(learnt)"))
        world.elapse(10)
    assert all(isinstance(each, TaskSucceeded) for each in ends(bob).values())
    told = scheduler.explain(key, "x", (), at(5)).policy
    assert "learning of process" in told
    assert told.count(" in 2") == pytest.approx(3)


# The worker whose GPUs a task fragments least.


def node(name: str, *shares: int, cpu_milli: int = 64_000) -> Candidate:
    """A worker with so much free of each of its GPUs."""
    able = machine(*(a100(f"G{n}") for n in range(len(shares))), cpu_milli=64_000)
    free = tuple(GpuFree(f"G{n}", share, share * 40_000_000) for n, share in enumerate(shares))
    return worker(profile(name, able, replace(idle(able), cpu_milli=cpu_milli, gpus=free)))


def expecting(worker: Candidate, *expected: str) -> Candidate:
    """One that was asked for these lately."""
    mix = Mix(tuple((Shape.of(parse_requirements(each)), 1) for each in expected))
    return replace(worker, profile=replace(worker.profile, mix=mix))


def asked(text: str) -> TaskView:
    return task(needs=parse_requirements(text))


def best(needs: str, *workers: Candidate, expected: tuple[str, ...] = ()) -> str:
    names = {peer(name): name for name in ("alice", "bob", "carol")}
    if expected:
        workers = tuple(expecting(each, *expected) for each in workers)
    return names[order(asked(needs), workers, Packed())[0]]


def test_a_part_goes_to_the_device_whose_rest_it_fills() -> None:
    needs = "gpu=1,gpu.share=0.5"
    assert best(needs, node("alice", 1000, 1000), node("bob", 1000, 500)) == "bob"
    assert best(needs, node("alice", 1000, 500), node("bob", 1000, 1000)) == "alice"


def test_whole_devices_stay_together_for_those_who_need_many() -> None:
    four, five = node("alice", *[1000] * 4), node("bob", *[1000] * 5)
    assert best("gpu=1", four, five, expected=("gpu=1", "gpu=4")) == "bob"


def test_cores_are_left_where_gpus_need_them() -> None:
    needs = "cpu=32"
    assert best(needs, node("alice", *[1000] * 8), node("bob", 1000, 1000)) == "bob"
    assert best(needs, node("alice", *[1000] * 8), node("bob")) == "bob"


def test_of_two_where_fragments_grow_alike_the_fuller_is_taken() -> None:
    needs = "gpu=1,cpu=1"
    four, two = node("alice", *[1000] * 4), node("bob", 1000, 1000)
    assert best(needs, four, two, expected=(needs,)) == "bob"


def test_a_model_that_few_have_is_kept_for_tasks_that_accept_no_other() -> None:
    """Alice and bob are of the common one; all have been asked for either as often."""
    common = [node(name, *[1000] * 8) for name in ("alice", "bob")]
    able = machine(h100("G0"), h100("G1"), cpu_milli=64_000)
    scarce = worker(profile("carol", able, idle(able)))
    each = ("gpu=1,gpu.model=a100", "gpu=1,gpu.model=h100")
    assert best("gpu=1", *common, scarce, expected=each) != "carol"
    assert best("gpu=1,gpu.model=h100", scarce, expected=each) == "carol"
    assert best("gpu=1", *common, scarce, expected=("gpu=1",)) == "carol"  # the smallest


def test_what_has_no_room_now_scores_nothing_but_is_kept() -> None:
    full = node("alice", 0, 0)
    policy = Packed()
    needs = asked("gpu=1")
    assert policy.admit(needs, full) is None
    full_score, score = policy.scores(needs, [full, node("bob", 1000)])
    assert full_score.value == 0.0 < score.value
    assert len(order(needs, [full, node("bob", 1000)], policy)) == 2


def test_scores_stand_in_the_middle_of_the_scale_and_go_up_as_fragments_shrink() -> None:
    needs = asked("gpu=1,gpu.share=0.5")
    shrinks, same, grows = (
        Packed().scores(needs, [expecting(node("alice", *shares), "gpu=1")])[0].value
        for shares in ([500], [500, 0, 0], [1000])
    )
    assert shrinks == same == 0.5 + 0.5 * 500 / 1500
    cost = 500 + 500 / 256  # half a GPU that is wasted, and as much that is free
    assert grows == 0.5 - 0.5 * cost / (1000 + cost)


def test_who_expects_the_same_scores_the_same_whoever_else_is_looked_at() -> None:
    needs = asked("gpu=1,gpu.share=0.3")
    one, other = node("alice", 500, 1000), node("bob", 1000, 1000)
    assert Packed().scores(needs, [one, other])[0] == Packed().scores(needs, [one])[0]


def test_what_each_of_the_candidates_was_asked_for_counts_for_all() -> None:
    whole, part = node("alice", 1000, 1000), node("bob", 1000, 500)
    needs = "gpu=1,gpu.share=0.5"
    quarters = expecting(part, *[needs] * 2)
    apart = Packed().scores(asked(needs), [whole])
    together = Packed().scores(asked(needs), [whole, quarters])
    assert apart[0] != together[0]


def test_only_the_nearest_with_room_are_scored() -> None:
    needs = asked("gpu=1")
    workers = [node(f"w{n}", 1000) for n in range(CANDIDATES + 2)] + [node("full", 0)]
    workers.sort(key=lambda each: each.distance(needs))
    scores = [score.value for score in Packed().scores(needs, workers)]
    roomy = [
        score for each, score in zip(workers, scores, strict=True) if each.peer_id != peer("full")
    ]
    assert all(roomy[:CANDIDATES])
    assert roomy[CANDIDATES:] == [0.0, 0.0]


def test_discovery_is_to_name_those_with_room_whatever_it_is_a_part_of() -> None:
    seeking: list[Policy] = [Packed(), Trusted() & Packed(), 0.5 * Packed() + Spread()]
    others: list[Policy] = [Xor(), Trusted() & Xor(), Spread() + Xor()]
    assert [seeks_room(each) for each in seeking + others] == [True] * 3 + [False] * 3


def test_every_score_is_the_sum_of_its_terms() -> None:
    (score,) = Packed().scores(asked("gpu=1"), [node("alice", 1000)])
    assert [(term.name, term.value) for term in score.terms] == [("fragments", score.value)]


def test_it_is_written_as_it_is_named() -> None:
    assert str(Packed()) == "packed"


def test_as_many_are_looked_at_as_were_measured() -> None:
    """docs/explanation/performance.md says what more candidates would bring, and what their shapes
    cost."""
    assert CANDIDATES == 16
    assert MAX_SHAPES == 2 * CANDIDATES
