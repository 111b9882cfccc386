"""Tasks that save, on machines that leave and die: what is lost, and what is never lost.

A task takes 100 s in steps of 5 s, and saves after each. Small steps go along with what is told of
them; large ones are fetched, and held by others.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Final

from formation_p2p.core.effects import Contact
from formation_p2p.drivers.core.effects import ExecutionSaved, Work
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import JobEnded, TaskRetried, TaskSaved, TaskSucceeded
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.peer.core.events import MoveTask, Resume, Vacate
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.checkpoint import inline
from formation_p2p.workload.core.outcome import Outcome, Succeeded
from formation_p2p.workload.core.work import Task, task_id
from simulations.simulator.disk import Disk
from simulations.simulator.executor import Running
from simulations.simulator.node import SimNode
from simulations.simulator.world import World

NEEDS: Final = Requirements(driver="process")
RUN_S: Final = 100.0
STEP_S: Final = 5.0
GRACE_S: Final = 30.0
WORKERS: Final = ("alice", "carol", "dave", "erin")
# What happens to a job of three tasks in its chaos, some seconds apart.
TROUBLES: Final = ("kill", "kill with a holder", "leave", "move", "scheduler", "nothing")
TASKS: Final = 3
# A task that loses five workers is given up (max_lost in jobs/core/parameters.py).
MAX_KILLED: Final = 4


class Steps:
    """Workers, and bob's tasks on them. `began` is the step at which each attempt did; `broken`
    those that began before the newest step that was told to be held."""

    def __init__(self, seed: int, *, large: bool = False) -> None:
        self.rng = random.Random(f"moving/{seed}")
        self.world = World(seed, self._run)
        self.world.noticed_s = self._noticed_s
        self.large = large
        self.began: list[float] = []
        self.broken = 0
        self.killed = 0
        self._held: dict[str, float] = {}
        self._done: dict[bytes, float] = {}
        self._began_s: dict[tuple[str, str], float] = {}
        self.world.add("gate")
        for name in WORKERS:
            self.world.add(name, serve=self.world.machine(cpu=1))
        self.bob = self.world.add("bob")
        self.world.elapse(3)
        self.disk = self.bob.disk = Disk(self.world, lambda: 0.002)

    def submit(self, count: int = 1) -> None:
        tasks = tuple(Task(task_id("job", n), NEEDS, b"%d" % n) for n in range(count))
        job = Job("job", tasks)
        self.disk.submit(job)
        self.bob.submit(job)

    @property
    def workers(self) -> list[SimNode]:
        return [self.world.nodes[name] for name in WORKERS]

    def running(self) -> list[SimNode]:
        return [node for node in self.workers if node.alive and node.running]

    def until_over(self, most_s: float) -> float:
        """When the job ended; `most_s` where it did not."""
        while self.world.now_s < most_s:
            if self.is_over:
                return self.world.now_s
            self.world.elapse(0.5)
        return most_s

    @property
    def is_over(self) -> bool:
        stored = self.disk.jobs["job"]
        return bool(stored.events) and isinstance(stored.events[-1], JobEnded)

    # -- what a task does -------------------------------------------------------------------------

    def _run(self, running: Running) -> tuple[float, Outcome]:
        done_s = self._found(running.work)
        task = running.work.attempt_id.partition("#")[0]
        self.began.append(done_s)
        self.broken += done_s < self._held.get(task, 0.0)
        self._began_s[running.key] = self.world.now_s
        self.world.after(STEP_S, self._save, running, done_s + STEP_S)
        return RUN_S - done_s, Succeeded(b"")

    def _found(self, work: Work) -> float:
        """Where it begins: anew where no peer that has the checkpoint lives."""
        if work.restored is None:
            return 0.0
        if work.content is None and not any(map(self._has, work.restored.sources)):
            return 0.0
        return self._done[work.restored.cid.digest]

    def _has(self, source: Contact) -> bool:
        return self.world.peers[source.peer_id].alive

    def _save(self, running: Running, done_s: float) -> None:
        nodes = (node for node in self.workers if node.alive)
        node = next((x for x in nodes if x.running.get(running.key) is running), None)
        if node is None or done_s >= RUN_S:
            return
        content = f"{running.work.attempt_id} {done_s}".encode()
        blob = inline(content)
        self._done[blob.cid.digest] = done_s
        saved = ExecutionSaved(*running.key, blob, content)
        if self.large:
            there = Blob(blob.cid, len(content), (node.contact,))
            saved = ExecutionSaved(*running.key, there)
        self.world.deliver(node, saved)
        self.world.after(STEP_S, self._save, running, done_s + STEP_S)

    def _noticed_s(self, running: Running) -> float:
        """To the end of its step."""
        ran_s = self.world.now_s - self._began_s[running.key]
        return STEP_S - ran_s % STEP_S + 0.01

    # -- what happens -----------------------------------------------------------------------------

    def note_held(self) -> None:
        """What bob has told that is held: by then no attempt may begin before it."""
        for event in self.disk.jobs["job"].events:
            if isinstance(event, TaskSaved):
                done_s = self._done[event.checkpoint.blob.cid.digest]
                self._held[event.task_id] = max(done_s, self._held.get(event.task_id, 0.0))

    def befall(self, trouble: str) -> None:
        self.note_held()
        victims = self.running()
        match trouble:
            case "kill" | "kill with a holder" if victims and self.killed < MAX_KILLED:
                self.killed += 1
                first = self.rng.choice(victims)
                self.world.kill(first)
                others = [x for x in self.workers if x.alive and not x.running]
                if trouble == "kill with a holder" and others:
                    self.world.kill(self.rng.choice(others))
            case "leave" if victims:
                self.world.deliver(self.rng.choice(victims), Vacate(GRACE_S))
            case "move":
                self.world.deliver(self.bob, MoveTask("job", "job/0", GRACE_S))
            case "scheduler":
                self.world.kill(self.bob)
                self.disk.crash(self.rng.random() < 0.5)
                self.world.elapse(self.rng.uniform(0.5, 8.0))
                self.world.restart(self.bob, Resume(*self.disk.saved()))

    def repair(self) -> None:
        """Machines that died are back, and those that left."""
        for node in self.workers:
            if node.vacated:
                self.world.kill(node)
            if not node.alive:
                self.world.restart(node, self.world.machine(cpu=1))


def leave(seed: int) -> Mapping[str, float]:
    """The worker leaves after 60 s, and is gone once it is vacant."""
    steps = Steps(seed)
    began_s = steps.world.now_s
    steps.submit()
    steps.world.elapse(60)
    left_s = steps.world.now_s
    (worker,) = steps.running()
    steps.world.deliver(worker, Vacate(GRACE_S))
    while not worker.vacated and steps.world.now_s < left_s + 60:
        steps.world.elapse(0.1)
    steps.world.kill(worker)
    ended_s = steps.until_over(began_s + 300)
    counted = sum(x.counts for x in steps.bob.reported if isinstance(x, TaskRetried))
    return {"ends_after_leave_s": round(ended_s - left_s, 1), "counted_as_failed": counted}


def kill(seed: int) -> Mapping[str, float]:
    """The worker dies at a random moment: what that takes beyond the run."""
    steps = Steps(seed, large=seed % 2 == 0)
    began_s = steps.world.now_s
    steps.submit()
    steps.world.elapse(steps.rng.uniform(6, 99))
    steps.world.kill(steps.running()[0])
    ended_s = steps.until_over(began_s + 300)
    return {"lost_s": round(ended_s - began_s - RUN_S, 1)}


def chains(seed: int) -> Mapping[str, float]:
    """Workers die, with one that holds what was saved, or leave; tasks are moved; bob's machine
    dies. A chain is broken where a task begins before what was held of it."""
    steps = Steps(seed, large=seed % 2 == 0)
    steps.submit(TASKS)
    for _ in range(6):
        steps.world.elapse(steps.rng.uniform(4, 40))
        if steps.is_over:
            break
        steps.befall(steps.rng.choice(TROUBLES))
        steps.world.elapse(steps.rng.uniform(12, 30))
        steps.repair()
    steps.until_over(steps.world.now_s + 1000)
    ended = [x for x in steps.disk.jobs["job"].events if isinstance(x, TaskSucceeded)]
    told = {x.task_id for x in ended}
    violations = (len(told) != TASKS) + (len(ended) != len(told)) + (not steps.is_over)
    return {"chains_broken": steps.broken, "violations": violations}
