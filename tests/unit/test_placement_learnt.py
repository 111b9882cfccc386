"""Which preset of `scored` is taken for which kind of task, by what each has brought."""

from __future__ import annotations

import random

import pytest

from formation_p2p.core.refusals import Distrusted
from formation_p2p.jobs.core.job_events import TaskSucceeded
from formation_p2p.placement.core.learnt import AGAIN, LEAST, MAX_KINDS, Learner, Learnt
from formation_p2p.placement.core.names import parse_policy
from formation_p2p.placement.core.scored import PRESETS
from formation_p2p.placement.core.task_options import SchedulingKey, options_of
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
