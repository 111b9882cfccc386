"""Which preset of `scored` is taken for which kind of task, by what each has brought."""

from __future__ import annotations

import random

import pytest

from formation_p2p.core.dispatch.job_events import TaskSucceeded
from formation_p2p.core.placement.learnt import LEAST, MAX_KINDS, Learner, Learnt
from formation_p2p.core.placement.names import parse_policy
from formation_p2p.core.placement.scored import PRESETS
from formation_p2p.core.placement.task_options import SchedulingKey, options_of
from formation_p2p.core.refusals import Distrusted
from tests.support.placement_world import task, worker
from tests.support.stories import NEEDS, at, ends, job, peer_of, town

TAKES_S = {"16a": 4.0, "16c": 1.0, "newest": 2.0}


def lived(learner: Learner, kind: str, tasks: int, **takes_s: float) -> list[str]:
    """The presets that were chosen, one task after the other."""
    rng, chosen = random.Random(1), []
    for _ in range(tasks):
        preset = learner.choose(kind).preset
        chosen.append(preset)
        learner.took(kind, preset, takes_s[preset] * rng.lognormvariate(0, 0.5))
    return chosen


def test_presets_take_turns_until_enough_is_known_and_then_the_best_is_taken() -> None:
    learner = Learner()
    chosen = lived(learner, "k", 1_000, **TAKES_S)
    first, later = chosen[:LEAST], chosen[LEAST:]
    assert max(map(first.count, PRESETS)) - min(map(first.count, PRESETS)) <= 1
    assert later.count("16c") > 0.95 * len(later)


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
