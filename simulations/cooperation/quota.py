"""A quota of 100 hours over 50 workers, while its account's holders die and messages are lost.

`used_hours` is what all workers together charged to the grant, of `limit_hours`; `ran_on_s` how
long after the quota was used up the last task ran. `messages` are those about slices. With deaths
a smaller farm loses workers too: `killed` in all, of which `gone` never came back, nor what was
left of their slices.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from formation_p2p.assembly import Peer, PeerEffect, PeerEvent
from formation_p2p.features.quotas.core.messages import (
    AccountRows,
    AskAccount,
    AskSlice,
    SliceAnswer,
)
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import JobEnded
from formation_p2p.leases.core.messages import WorkMessage
from formation_p2p.leases.core.session import Received
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.trust.core.grants import Rights, read_grant
from formation_p2p.trust.core.quota import Quota
from formation_p2p.workload.core.outcome import Succeeded
from formation_p2p.workload.core.work import Task, task_id
from simulations.simulator.executor import Running
from simulations.simulator.node import SimNode
from simulations.simulator.world import EPOCH_UNIX_S, World

NEEDS: Final = Requirements(driver="process")
HOURS: Final = 100
WORKERS: Final = 50
CORES: Final = 4
# Nodes that only keep what they are given to keep, and come and go.
OTHERS: Final = 40
LOSS: Final = 0.05
# One of them dies so often, for so long.
DIES_S: Final = 20.0
DEAD_S: Final = 120.0
TASK_S: Final = 300.0
# With deaths: a worker dies so often, and one in three for ever while most are alive.
WORKER_DIES_S: Final = 60.0
GONE: Final = 3
STEP_S: Final = 5.0
_SLICES: Final = (AskSlice, SliceAnswer, AskAccount, AccountRows)


class Farm:
    """Workers, nodes that come and go, and bob, whose grant has the quota."""

    def __init__(self, seed: int, *, hours: int, workers: int, others: int, cores: int) -> None:
        self.rng = random.Random(f"quota/{seed}")
        self.world = World(seed, self._run, lean=True, loss=LOSS)
        self.world.max_steps = 100_000_000
        self.world.witness = self._saw
        self.messages: Counter[str] = Counter()
        self.killed = self.gone = 0
        gate = self.world.add("gate")
        self.world.elapse(1.0)
        self.others = [self._add(f"other {n}", gate) for n in range(others)]
        serve = self.serve = self.world.machine(cpu=cores)
        self.workers = [self._add(f"worker {n}", gate) for n in range(workers)]
        for worker in self.workers:
            self.world.deliver(worker, serve)
        quota = Quota(cpu_milli_hours=hours * 1000)
        self.bob = self.world.add("bob", rights=Rights(int(EPOCH_UNIX_S) + 10**7, quota=quota))
        self.world.elapse(60.0)

    def _add(self, name: str, gate: SimNode) -> SimNode:
        node = self.world.add(name, gates=[gate])
        self.world.elapse(0.1)
        return node

    def _run(self, running: Running) -> tuple[float, Succeeded]:
        return self.rng.uniform(0.5, 1.5) * TASK_S, Succeeded(b"")

    def _saw(self, node: SimNode, event: PeerEvent, effects: list[PeerEffect]) -> None:
        if isinstance(event, Received) and isinstance(event.message, _SLICES):
            message: WorkMessage = event.message
            self.messages[type(message).__name__] += 1

    def submit(self, count: int) -> None:
        self.bob.submit(
            Job("job", tuple(Task(task_id("job", n), NEEDS, b"") for n in range(count)))
        )

    @property
    def used_s(self) -> float:
        """Core-seconds that all workers charged to the grant."""
        assert isinstance(self.bob.peer, Peer)
        network = self.bob.peer.network
        account = read_grant(network.grant, network.root_public_key).invitation
        milli_s = sum(
            used.cpu_milli_s
            for worker in self.workers
            for (_, name), used in worker.used.items()
            if name == account
        )
        return milli_s / 1000

    @property
    def running(self) -> int:
        return sum(len(worker.running) for worker in self.workers)

    def churn(self) -> None:
        """One of the others dies, and is back in a while."""
        alive = [node for node in self.others if node.alive]
        if len(alive) > len(self.others) // 2:
            node = self.rng.choice(alive)
            self.world.kill(node)
            self.world.after(DEAD_S, self.world.restart, node)

    def lose_worker(self) -> None:
        alive = [node for node in self.workers if node.alive]
        if len(alive) <= len(self.workers) // 2:
            return
        node = self.rng.choice(alive)
        self.world.kill(node)
        self.killed += 1
        if self.killed % GONE == 0 and self.gone < len(self.workers) // 3:
            self.gone += 1
        else:
            self.world.after(DEAD_S, self._back, node)

    def _back(self, node: SimNode) -> None:
        """With what it has on its disk."""
        self.world.restart(node, replace(self.serve, used=node.usage))


def run(
    seed: int,
    hours: int = HOURS,
    workers: int = WORKERS,
    others: int = OTHERS,
    cores: int = CORES,
    *,
    deaths: bool = False,
) -> Mapping[str, object]:
    farm = Farm(seed, hours=hours, workers=workers, others=others, cores=cores)
    farm.submit(round(2 * hours * 3600 / TASK_S))
    world, began_s = farm.world, farm.world.now_s
    within_s, dies_s, full_s = 3 * hours * 3600 / (workers * cores), began_s, None
    worker_dies_s = began_s + WORKER_DIES_S if deaths else float("inf")
    while world.now_s < began_s + within_s and not _is_over(farm):
        world.elapse(STEP_S)
        if world.now_s >= dies_s:
            farm.churn()
            dies_s += DIES_S
        if world.now_s >= worker_dies_s:
            farm.lose_worker()
            worker_dies_s += WORKER_DIES_S
        if full_s is None and farm.used_s >= hours * 3600:
            full_s = world.now_s
    over_s = world.now_s
    return {
        "limit_hours": hours,
        "workers": workers,
        "used_hours": round(farm.used_s / 3600, 3),
        "took_s": round(over_s - began_s),
        "ran_on_s": None if full_s is None else round(over_s - full_s),
        "messages": dict(sorted(farm.messages.items())),
    } | ({"killed": farm.killed, "gone": farm.gone} if deaths else {})


def with_deaths(seed: int) -> Mapping[str, object]:
    return run(seed, hours=8, workers=8, others=12, cores=2, deaths=True)


def _is_over(farm: Farm) -> bool:
    return any(isinstance(each, JobEnded) for each in farm.bob.reported) and not farm.running
