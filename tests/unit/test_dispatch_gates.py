"""A policy's gate, while tasks run: whom it shuts out gets nothing more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest

from formation_p2p.core.discovery.finder import FindId, Found
from formation_p2p.core.discovery.trace import Trace
from formation_p2p.core.dispatch.job_events import TaskUnplaceable
from formation_p2p.core.dispatch.parameters import DISPATCH_DEFAULTS
from formation_p2p.core.peer.events import Submit
from formation_p2p.core.placement.candidate import Candidate, TaskView
from formation_p2p.core.placement.policy import Policy, Score
from formation_p2p.core.refusals import Distrusted, Refusal, Unwanted
from formation_p2p.core.trust.experience import Experience
from formation_p2p.core.workload.outcome import Outcome, Succeeded
from formation_p2p.sim.executor import Running
from formation_p2p.sim.world import World
from tests.support.stories import (
    at,
    at_work,
    ends,
    is_idle,
    job,
    named,
    only,
    peer_of,
    town,
    workers_of,
)


def a_second(running: Running) -> tuple[float, Outcome]:
    return 1.0, Succeeded(b"")


def shame(world: World, name: str) -> None:
    """bob finds out that results of a worker are false."""
    worker = world.nodes[name].identity.peer_id
    for _ in range(10):
        peer_of(world.nodes["bob"]).reputation.note(worker, Experience.WRONG, at(world.now_s))


@pytest.mark.parametrize("ranking", ["balanced", "spread"])
@pytest.mark.at_length
def test_whoever_falls_below_the_gate_in_the_middle_of_a_job_gets_nothing_more(
    ranking: str,
) -> None:
    world = town(7, a_second, alice=2, carol=2)
    bob = world.nodes["bob"]
    bob.submit(job(200, policy=f"trust>=0.3 & {ranking}"))
    world.elapse(20)
    shame(world, "alice")
    world.elapse(DISPATCH_DEFAULTS.review_every_s + 1)
    placed = workers_of(bob).count("alice")
    world.elapse(60)
    assert workers_of(bob).count("alice") == placed > 0
    assert is_idle(world.nodes["alice"])
    world.elapse(60)
    assert len(ends(bob)) == 200
    assert len(workers_of(bob)) == 200


@pytest.mark.at_length
def test_whoever_has_fallen_below_the_gate_when_it_is_found_again_gets_nothing_more() -> None:
    world = town(7, a_second, alice=2, carol=2)
    bob = world.nodes["bob"]
    bob.submit(job(200, policy="trust>=0.3 & balanced"))
    world.elapse(20)
    shame(world, "alice")
    scheduler = peer_of(bob).scheduler
    (group,) = scheduler.groups.values()
    group.candidates.reviewed(at(world.now_s))  # just before all that
    group.acquisition.search_began(FindId(99), world.now_s, stranded=False)
    found = Found(FindId(99), tuple(group.candidates.pool.values()), Trace(()), True, True)
    scheduler.found(found, at(world.now_s))
    placed = workers_of(bob).count("alice")
    world.elapse(60)
    assert workers_of(bob).count("alice") == placed > 0
    assert is_idle(world.nodes["alice"])


def test_whoever_falls_below_the_gate_gets_no_second_attempt() -> None:
    def one_slow(running: Running) -> tuple[float, Outcome]:
        return (1000.0 if running.work.attempt_id == "job/19#1" else 1.0), Succeeded(b"")

    world = town(7, one_slow, alice=1, carol=1)
    bob = world.nodes["bob"]
    bob.submit(job(20, policy="trust>=0.3 & balanced", speculate=True))
    while len(ends(bob)) < 19:
        world.elapse(0.1)
    assert workers_of(bob)[-1] == "alice"
    shame(world, "carol")
    placed = workers_of(bob).count("carol")
    world.elapse(100)
    assert workers_of(bob).count("carol") == placed > 0


def test_where_nobody_is_admitted_any_more_the_job_ends_and_says_why() -> None:
    world, bob = at_work(town(7, a_second, alice=2), job(200, policy="trust>=0.3 & balanced"))
    world.elapse(5)
    shame(world, "alice")
    world.elapse(60)
    assert len(ends(bob)) == 200
    reasons = {named(world, end.reasons)["alice"] for end in only(bob.reported, TaskUnplaceable)}
    assert {type(reason) for reason in reasons} == {Distrusted}


@dataclass(frozen=True)
class Asking(Policy):
    """Notes of which tasks it is asked."""

    names: tuple[list[str]]

    def __hash__(self) -> int:
        return 0

    def admit(self, task: TaskView, candidate: Candidate) -> Refusal | None:
        self.names[0].append(task.name)
        return None


def test_a_policy_is_asked_about_tasks_that_there_are() -> None:
    asked: list[str] = []
    world, bob = at_work(town(7, a_second, alice=1))
    world.deliver(bob, Submit(job(6, policy=Asking((asked,)))))
    world.elapse(20)
    assert len(ends(bob)) == 6
    assert set(asked) <= set(ends(bob))
    assert len(asked) > 3  # found, and judged each second


@dataclass(frozen=True)
class Failing(Policy):
    """Fails once it has given so many scores."""

    left: list[int]

    def __hash__(self) -> int:
        return 0

    def scores(self, task: TaskView, candidates: Sequence[Candidate]) -> Sequence[Score]:
        self.left[0] -= 1
        if self.left[0] < 0:
            raise OSError("the table of prices is gone")
        return super().scores(task, candidates)


def test_a_policy_that_fails_when_workers_are_asked_ends_its_job() -> None:
    world, bob = at_work(town(7, a_second, alice=1))
    world.deliver(bob, Submit(job(6, policy=Failing([1]))))
    world.elapse(60)
    (why,) = {reason for end in only(bob.reported, TaskUnplaceable) for _, reason in end.reasons}
    assert isinstance(why, Unwanted)
    assert "the table of prices is gone" in why.why


def test_what_discovery_brings_when_all_is_done_is_left() -> None:
    world, bob = at_work(town(7, a_second, alice=1), job(1))
    while not ends(bob):
        world.elapse(0.05)
    scheduler = peer_of(bob).scheduler
    (group,) = scheduler.groups.values()  # its lease is kept warm for a moment
    group.acquisition.search_began(FindId(99), world.now_s, stranded=False)
    known = dict(group.candidates.pool)
    assert scheduler.found(Found(FindId(99), (), Trace(()), True, True), at(world.now_s)) == []
    assert group.candidates.pool == known
