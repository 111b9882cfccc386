"""The law of the whole: whatever dies, is cut off, heals, joins or leaves, each task ends once.

Each seed is a story. To tell one again:

    pytest "tests/unit/test_dispatch_chaos.py::test_each_task_ends_once_and_no_capacity_leaks[17]"
"""

from __future__ import annotations

import random

import pytest

from formation_p2p.core.dispatch.job_events import (
    JobEnded,
    JobEvent,
    TaskCancelled,
    TaskGaveUp,
    TaskSucceeded,
)
from formation_p2p.core.negotiation.lease import LeaseState
from formation_p2p.core.negotiation.session import Disconnected
from formation_p2p.core.peer.events import PeerEvent
from formation_p2p.core.workload.outcome import Failed, FailureKind, Outcome, Succeeded
from formation_p2p.sim.executor import Running
from formation_p2p.sim.node import SimNode
from formation_p2p.sim.world import World
from tests.support.stories import ends, is_idle, job, mend, only, peer_of

pytestmark = pytest.mark.at_length

SEEDS = range(30)


class Watched(World):
    """A world that looks, after everything that happens to a worker, whether all is in order."""

    def deliver(self, node: SimNode, event: PeerEvent) -> None:
        super().deliver(node, event)
        worker = peer_of(node).worker
        if worker is None or not node.alive:
            return
        leases, ledger = {x.lease_id: x for x in worker.lessor}, worker.lessor.ledger
        for lease_id, attempt_id in node.running:
            lease = leases.get(lease_id)
            in_force = lease is not None and lease.state is LeaseState.LEASED
            assert in_force, f"{node.name} runs {attempt_id} after its lease ended"
        leased_milli = sum(lease.needs.cpu_milli for lease in leases.values())
        whole_milli = worker.lessor.capability.cpu_milli
        assert leased_milli <= whole_milli, f"{node.name} leased more than it has"
        assert ledger.free.cpu_milli == whole_milli - leased_milli


class Story:
    """Up to five workers, one or two schedulers with a job or more, and what befalls them."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.chance = random.Random(seed)
        self.world = Watched(seed, self.run)
        self.world.add("gate")
        self.workers: list[SimNode] = []
        for _ in range(self.chance.randint(1, 4)):
            self.join()
        names = ("bob", "eve")[: self.chance.randint(1, 2)]
        self.schedulers = [self.world.add(name) for name in names]
        self.submitted: list[tuple[SimNode, str, int]] = []
        self.cuts: list[tuple[SimNode, SimNode]] = []

    def run(self, running: Running) -> tuple[float, Outcome]:
        chance = random.Random(f"{self.seed}/{running.work.attempt_id}")
        duration_s = chance.choice([0.05, 0.3, 1, 3, 8])
        if chance.random() < 0.3:
            return duration_s, Failed(FailureKind.EXIT, "no luck")
        return duration_s, Succeeded(running.work.payload)

    def join(self) -> None:
        machine = self.world.machine(cpu=self.chance.randint(1, 3))
        self.workers.append(self.world.add(f"worker {len(self.workers)}", serve=machine))

    def submit(self) -> None:
        scheduler, job_id = self.chance.choice(self.schedulers), f"job {len(self.submitted)}"
        count = self.chance.randint(1, 15)
        self.submitted.append((scheduler, job_id, count))
        deadline_s = self.chance.choice([None, None, None, 6.0])
        speculate = self.chance.random() < 0.3
        given = job(count, job_id=job_id, deadline_s=deadline_s, speculate=speculate)
        scheduler.submit(given)

    def cut(self, scheduler: SimNode, worker: SimNode) -> None:
        self.world.cut(scheduler, worker)
        self.cuts.append((scheduler, worker))

    def break_connection(self, scheduler: SimNode, worker: SimNode) -> None:
        self.world.deliver(scheduler, Disconnected(worker.identity.peer_id))
        mend(self.world, scheduler, worker)

    def happen(self) -> None:
        scheduler = self.chance.choice(self.schedulers)
        alive = [worker for worker in self.workers if worker.alive]
        worker = self.chance.choice(alive or self.workers)
        match self.chance.choice(
            ["kill", "cut", "cut", "heal", "heal", "break", "join", "leave", "submit", "cancel"]
        ):
            case "kill":
                self.world.kill(worker)
            case "cut":
                self.cut(scheduler, worker)
            case "heal" if self.cuts:
                mend(self.world, *self.cuts.pop(self.chance.randrange(len(self.cuts))))
            case "break":
                self.break_connection(scheduler, worker)
            case "join":
                self.join()
            case "leave":
                worker.leave()
            case "submit":
                self.submit()
            case "cancel":
                owner, job_id, _ = self.chance.choice(self.submitted)
                owner.cancel(job_id)

    def deliver(self) -> None:
        self.world.elapse(self.chance.choice([0, 1, 5]))
        self.submit()
        for _ in range(self.chance.randint(3, 16)):
            self.world.elapse(self.chance.choice([0.02, 0.3, 1, 2, 6, 12]))
            self.happen()
        for cut in self.cuts:
            mend(self.world, *cut)
        self.join()
        self.world.elapse(200)


@pytest.mark.parametrize("seed", SEEDS)
def test_each_task_ends_once_and_no_capacity_leaks(seed: int) -> None:
    story = Story(seed)
    story.deliver()
    for scheduler in story.schedulers:
        jobs = [(job_id, n) for owner, job_id, n in story.submitted if owner is scheduler]
        assert set(ends(scheduler)) == {f"{job_id}/{i}" for job_id, n in jobs for i in range(n)}
        assert len(only(scheduler.reported, JobEnded)) == len(jobs)
        assert peer_of(scheduler).scheduler.is_idle
        assert peer_of(scheduler).lessee.held == {}
    for worker in story.workers:
        assert not worker.alive or is_idle(worker)


def test_the_stories_are_worth_telling() -> None:
    ended: set[type[JobEvent]] = set()
    for seed in SEEDS:
        story = Story(seed)
        story.deliver()
        ended |= {type(event) for node in story.schedulers for event in ends(node).values()}
        if ended >= {TaskSucceeded, TaskGaveUp, TaskCancelled}:
            return
    raise AssertionError(f"of the ways to end there are only {ended}")
