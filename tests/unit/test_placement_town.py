"""Placement between whole peers: what a job says of policy, hints and scope decides who runs it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from formation_p2p.core.refusals import Unwanted
from formation_p2p.jobs.core.job_events import TaskSucceeded, TaskUnplaceable
from formation_p2p.leases.core.messages import Commit
from formation_p2p.machine.core.gpu import Gpu
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.peer.core.effects import Explained
from formation_p2p.peer.core.events import Explain, Submit
from formation_p2p.placement.core.candidate import Candidate, TaskView
from formation_p2p.placement.core.policy import Policy, Score
from formation_p2p.placement.core.task_options import SchedulingKey
from formation_p2p.workload.core.blob import RAW, Blob, Cid, digest_of
from formation_p2p.workload.core.hints import Hints
from formation_p2p.workload.core.mix import Shape
from formation_p2p.workload.core.outcome import Outcome, Succeeded
from simulations.simulator.executor import Running
from simulations.simulator.world import World
from tests.support.stories import NEEDS, at_work, job, name_of, only, passed, worker_of, workers_of


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


def test_the_cheapest_worker_is_asked_first_whatever_the_distance() -> None:
    for number in range(5):
        world = shop(**PRICES)
        bob = world.nodes["bob"]
        bob.submit(job(1, job_id=f"job{number}", policy="cheapest"))
        world.elapse(5)
        assert workers_of(bob) == ["carol"]


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


@dataclass(frozen=True, slots=True)
class BreaksLater(Dearest):
    """Works until there is a queue at somebody's: when it is asked a second time."""

    seen: list[int]

    def __hash__(self) -> int:
        return id(self)

    def scores(self, task: TaskView, candidates: Sequence[Candidate]) -> Sequence[Score]:
        self.seen.append(len(candidates))
        if len(self.seen) > 1:
            raise LookupError("gone")
        return Dearest.scores(self, task, candidates)


def test_a_policy_that_fails_later_has_its_tasks_end_with_the_reason() -> None:
    world, bob = at_work(shop(**PRICES))
    world.deliver(bob, Submit(job(1, policy=BreaksLater([]))))
    world.elapse(60)
    (unplaceable,) = only(bob.reported, TaskUnplaceable)
    assert {why for _, why in unplaceable.reasons} == {
        Unwanted("policy", "it failed: LookupError('gone')")
    }


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
