"""A small cluster drawn from a seed: machines, schedulers with disks, and the jobs they are given.

What a task does is drawn from its attempt's id, so that it is the same whichever worker runs it
and whenever.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from formation_p2p.assembly import PeerEvent
from formation_p2p.core.units import GIB, MIB
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.saved import SavedJob, SavedLease
from formation_p2p.machine.core.capability import Capability
from formation_p2p.machine.core.gpu import Gpu
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.peer.core.events import CancelJob, Resume, Serve
from formation_p2p.placement.core.task_options import TaskOptions
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome, Succeeded
from formation_p2p.workload.core.work import Task, task_id
from simulations.homes import NO_NAT, Homes, Nat
from simulations.simulator.disk import Disk
from simulations.simulator.executor import Running
from simulations.simulator.node import Clock, SimNode
from simulations.simulator.routers import Routers
from simulations.simulator.streams import Streams
from simulations.simulator.world import World

# Quartz is off by some 50 parts in a million, and twice that between two; calendars by seconds.
MAX_DRIFT: Final = 1e-4
MAX_CALENDAR_OFF_S: Final = 10.0
# Of one attempt: nothing, a moment, a while, longer than a lease lives.
DURATIONS_S: Final = (0.0, 0.0, 0.001, 0.02, 0.1, 0.3, 1.0, 3.0)
LONG_S: Final = (11.0, 25.0)
LONG_SHARE: Final = 0.02
# What a cluster is given in all, so that a seed takes no longer than its faults.
MAX_TASKS: Final = 200
# Some small jobs have results of which a worker keeps but two: it begins nothing more until they
# are acknowledged.
LARGE: Final = b": much"
LARGE_BYTES: Final = 7 * MIB
LARGE_SHARE: Final = 0.02
MOST_LARGE: Final = 20
# Jobs some of whose tasks wait for others, and jobs whose memory was learnt.
ORDERED_SHARE: Final = 0.3
LEARNT_SHARE: Final = 0.2
LEARNT_MORE_BYTES: Final = 512 * MIB
# To learn that others cannot dial it, reserve, and announce itself by that.
MEET_S: Final = 20.0
# The longest that ending what runs under a lease takes.
MAX_FENCE_S: Final = 2.0


@dataclass(slots=True)
class Given:
    """A job that a scheduler has on its disk."""

    scheduler: SimNode
    job: Job
    cancelled: bool = False


@dataclass(slots=True)
class Cluster:
    """`leaving` are workers that were asked to go, and stay away; `given` every job."""

    seed: int
    chance: random.Random
    world: World
    gates: list[SimNode]
    homes: Homes | None = None
    workers: list[SimNode] = field(default_factory=list)
    schedulers: list[SimNode] = field(default_factory=list)
    serves: dict[str, Serve] = field(default_factory=dict)
    given: list[Given] = field(default_factory=list)
    refused: int = 0

    @property
    def members(self) -> list[SimNode]:
        return list(dict.fromkeys([*self.workers, *self.schedulers]))

    # -- who is there ---------------------------------------------------------------------------

    def add(self, name: str, serve: Serve | None) -> SimNode:
        router = None if self.homes is None else self.homes.router()
        return self.world.add(name, serve=serve, router=router, gates=self.gates)

    def add_worker(self) -> SimNode:
        name = f"worker {len(self.workers)}"
        node = self.add(name, self._machine(name))
        self.workers.append(node)
        return node

    def restart(self, node: SimNode) -> None:
        """Its next incarnation, with what is on its disk."""
        events: list[PeerEvent] = []
        if node.disk is not None:
            jobs, leases = node.disk.saved()
            events.append(Resume(*_in_order(jobs, leases)))
        if node.name in self.serves:
            events.append(self.serves[node.name])
        self.world.restart(node, *events)

    def _machine(self, name: str) -> Serve:
        chance = self.chance
        gpus = tuple(
            Gpu(f"GPU-{name}-{n}".replace(" ", "-"), "nvidia", "h100", 16 * GIB, 90)
            for n in range(chance.choice((0, 0, 1, 2)))
        )
        cores, memory = chance.choice((1, 2, 4)), chance.choice((2, 4, 16)) * GIB
        capability = Capability(cores * 1000, memory, gpus=gpus)
        price_micro = chance.choice((0, 0, 50))
        self.serves[name] = Serve(capability, ("process",), price_micro=price_micro)
        return self.serves[name]

    # -- what it is given -----------------------------------------------------------------------

    def submit(self, scheduler: SimNode, tasks: int) -> bool:
        """Whether the scheduler took the job. It does not while it is down, or its disk full."""
        disk = scheduler.disk
        assert disk is not None
        job = self._job(tasks)
        if not scheduler.alive or not disk.submit(job):
            return False
        refused = len(scheduler.refused)
        scheduler.submit(job)
        if len(scheduler.refused) > refused:
            disk.forget(job.job_id)
            self.refused += 1
            return False
        self.given.append(Given(scheduler, job))
        return True

    def cancel(self) -> None:
        if self.given:
            given = self.chance.choice(self.given)
            if given.scheduler.alive:
                given.cancelled = True
                self.world.deliver(given.scheduler, CancelJob(given.job.job_id))

    def _job(self, tasks: int) -> Job:
        chance = self.chance
        job_id = f"job {len(self.given) + self.refused}"
        kinds = [self._needs() for _ in range(chance.choice((1, 1, 2)))]
        shared = chance.choice((b"", b"a function"))
        attempts = chance.randint(1, 3)
        timeout_s = chance.choice((None, None, None, 2.0))
        large = tasks <= MOST_LARGE and chance.random() < LARGE_SHARE
        order = random.Random(f"{self.seed}/{job_id}/order")
        ordered, learnt = order.random() < ORDERED_SHARE, order.random() < LEARNT_SHARE
        return Job(
            job_id,
            tuple(
                Task(
                    task_id(job_id, number),
                    chance.choice(kinds),
                    task_id(job_id, number).encode() + (LARGE if large and number % 2 else b""),
                    shared=shared,
                    after=_before(order, job_id, number) if ordered else (),
                    more_memory_bytes=LEARNT_MORE_BYTES if learnt else 0,
                )
                for number in range(tasks)
            ),
            options=TaskOptions(
                attempts=attempts,
                timeout_s=timeout_s,
                priority=chance.choice((0, 0, 5, 50)),
                deadline_s=chance.choice((None, None, None, 20.0, 90.0)),
                speculate=chance.random() < 0.3,
                max_price_micro=chance.choice((None, None, None, 60)),
            ),
        )

    def _needs(self) -> Requirements:
        chance = self.chance
        cpu_milli = chance.choice((100, 500, 1000, 1000, 2000))
        memory_bytes = chance.choice((64 * MIB, 512 * MIB, 2 * GIB))
        has_gpu = any(serve.capability.gpus for serve in self.serves.values())
        if not has_gpu or chance.random() < 0.7:
            return Requirements(cpu_milli=cpu_milli, memory_bytes=memory_bytes, driver="process")
        return Requirements(
            cpu_milli=cpu_milli,
            memory_bytes=memory_bytes,
            gpu_count=1,
            gpu_share_milli=chance.choice((250, 500, 1000)),
            driver="process",
        )

    def run(self, running: Running) -> tuple[float, Outcome]:
        """What an attempt does: how long it takes, and what it brings."""
        chance = random.Random(f"{self.seed}/{running.work.attempt_id}")
        is_long = chance.random() < LONG_SHARE
        duration_s = chance.choice(LONG_S if is_long else DURATIONS_S)
        draw = chance.random()
        if draw < 0.06:
            return duration_s, Failed(FailureKind.EXIT, "no luck")
        if draw < 0.07:
            return duration_s, Failed(FailureKind.DRIVER, "no such program")
        if draw < 0.12 and running.under.needs.memory_bytes < LEARNT_MORE_BYTES:
            return duration_s, Failed(FailureKind.MEMORY, "stopped at its memory limit")
        return duration_s, Succeeded(result_of(running.work.payload))


def _before(chance: random.Random, job_id: str, number: int) -> tuple[str, ...]:
    """Some of the tasks before this one."""
    some = {chance.randrange(number) for _ in range(chance.choice((0, 1, 1, 2)))} if number else ()
    return tuple(task_id(job_id, each) for each in sorted(some))


def result_of(payload: bytes) -> bytes:
    """What a task brings, wherever and whenever it runs."""
    return payload.replace(LARGE, bytes(LARGE_BYTES))


def draw_cluster(seed: int, world: World, nat: Nat = NO_NAT) -> Cluster:
    """All have met, and nothing has been submitted. With `nat` there are two gates, as a network
    has that is not to stop with one."""
    chance = random.Random(f"{seed}/cluster")
    world.streams = Streams(world, random.Random(f"{seed}/streams"))
    wires = random.Random(f"{seed}/wires")
    slow_s = chance.choice((0.001, 0.01, 0.05))
    lags: dict[tuple[int, int], float] = {}

    def latency(a: SimNode, b: SimNode) -> float:
        pair = (min(a.number, b.number), max(a.number, b.number))
        if pair not in lags:
            lags[pair] = wires.uniform(0.0002, slow_s)
        return lags[pair]

    world.latency = latency
    fences = random.Random(f"{seed}/fences")
    world.fence_s = lambda: fences.choice((0.001, 0.05, MAX_FENCE_S))
    homes: Homes | None = None
    gates = ["gate", "gate 2"] if nat.share else ["gate"]
    if nat.share:
        world.routers = Routers(world, frozenset(gates))
        homes = Homes(nat, world.routers, random.Random(f"{seed}/homes"))
    cluster = Cluster(seed, chance, world, [world.add(name) for name in gates], homes)
    world.run = cluster.run
    world.clock_of = lambda name: _clock(random.Random(f"{seed}/{name}/clock"))
    for _ in range(chance.randint(2, 8)):
        cluster.add_worker()
    for number in range(chance.randint(1, 3)):
        name = f"scheduler {number}"
        serve = cluster._machine(name) if chance.random() < 0.2 else None
        node = cluster.add(name, serve)
        writes = random.Random(f"{seed}/{name}/disk")
        node.disk = Disk(world, partial(writes.choice, (0.0005, 0.005, 0.03)))
        cluster.schedulers.append(node)
        if serve is not None:
            cluster.workers.append(node)
    world.elapse(3.0 if homes is None else MEET_S)
    return cluster


def _clock(chance: random.Random) -> Clock:
    return Clock(
        1 + chance.uniform(-MAX_DRIFT, MAX_DRIFT),
        chance.uniform(0, 1e6),
        chance.uniform(-MAX_CALENDAR_OFF_S, MAX_CALENDAR_OFF_S),
    )


def _in_order(
    jobs: tuple[SavedJob, ...], leases: tuple[SavedLease, ...]
) -> tuple[tuple[SavedJob, ...], tuple[SavedLease, ...]]:
    """A database gives rows back in its own order."""
    return jobs, tuple(sorted(leases, key=lambda lease: lease.lease_id))
