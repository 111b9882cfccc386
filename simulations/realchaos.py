"""The same for real: processes that are killed, stopped and cut off while they work.

    python -m simulations.realchaos --seconds 60 --seed 1

A gate, some workers and a scheduler with a state on disk, each a process and, where this machine
allows it, in a network namespace of its own. For so many seconds they are ended with SIGKILL and
started again, stopped with SIGSTOP for longer than their leases live, and cut off. Then all is
mended, and it is checked that every task has ended exactly once in the scheduler's state, with its
own result, that nothing of any task still runs or lies around, and that the workers' capacity is
full again. The seed draws the faults; what comes of them is up to the machine.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import psutil

from formation_p2p.jobs.core.job_events import (
    TaskCancelled,
    TaskGaveUp,
    TaskSucceeded,
    TaskUnplaceable,
)
from formation_p2p.machine.home import Home
from formation_p2p.state.state import State
from formation_p2p.trust.core.grants import Rights
from formation_p2p.trust.core.network import parse_invite
from formation_p2p.workload.core.process import ProcessResult
from simulations import spaces
from simulations.arguments import positive, storm_parser
from simulations.namespaces import Forbidden, Namespaces
from simulations.node_process import NodeProcess, until_said
from simulations.realscheduler import SUBMIT_S

WORKERS: Final = 3
# Two cores each: all of them do some eight tasks a second, as many as are submitted.
CORES: Final = "2"
# A process imports for two seconds; on a busy machine for many.
START_S: Final = 300.0
# After the faults: the rest of the work, and leases that nobody renews. Past this it hangs.
DONE_S: Final = 600.0
# What a worker leaves for another to end is found in 20 s (drivers/heartbeat.py), in minutes
# on a busy machine.
TIDY_S: Final = 180.0
GRANT_S: Final = 24 * 3600
MAX_SHOWN: Final = 20

_TERMINAL: Final = (TaskSucceeded, TaskGaveUp, TaskUnplaceable, TaskCancelled)


@dataclass
class Cluster:
    """`spaces` is None where nodes cannot be cut off."""

    folder: Path
    spaces: Namespaces | None
    mark: str
    jobs: int
    gate: NodeProcess = field(init=False)
    workers: list[NodeProcess] = field(init=False, default_factory=list)
    scheduler: NodeProcess = field(init=False)

    @property
    def nodes(self) -> list[NodeProcess]:
        return [self.gate, *self.workers, self.scheduler]

    @property
    def state(self) -> Path:
        return self.folder / "state.db"

    def home(self, name: str) -> Path:
        return self.folder / name

    def start(self) -> None:
        """Raises TimeoutError where a node does not come up."""
        gate_home = Home(self.home("gate"))
        gate_home.create_network()
        self.gate = self._node("gate", *self._formation("gate"))
        self.gate.start()
        ready = until_said(self.gate, "ready", START_S)
        gates = ready["gates"]
        assert isinstance(gates, list)
        for address in gates:
            gate_home.add_gate(str(address))
        invitation = gate_home.invite(Rights(int(time.time()) + GRANT_S))
        for name in (*(f"worker{n}" for n in range(WORKERS)), "scheduler"):
            Home(self.home(name)).join(parse_invite(invitation))
        for number in range(WORKERS):
            limits = ("--cpu", CORES, "--memory", "1GiB", "--gpus", "0", "--sandbox", "off")
            name = f"worker{number}"
            worker = self._node(name, *self._formation("worker"), *limits)
            self.workers.append(worker)
            worker.start()
        for worker in self.workers:
            until_said(worker, "ready", START_S)
        run = (sys.executable, "-m", "simulations.realscheduler", str(self.home("scheduler")))
        rest = (str(self.state), self.mark, str(self.jobs), str(WORKERS))
        self.scheduler = self._node("scheduler", *run, *rest)
        self.scheduler.start()
        until_said(self.scheduler, "goes on", START_S)

    def _formation(self, role: str) -> tuple[str, ...]:
        return (sys.executable, "-m", "formation_p2p", role, "--json")

    def _node(self, name: str, *argv: str) -> NodeProcess:
        address = "127.0.0.1" if self.spaces is None else self.spaces.add(name)
        if name != "scheduler":
            listen = f"/ip4/{address}/tcp/{4001 if self.spaces is not None else 0}"
            argv = (*argv, "--home", str(self.home(name)), "--listen", listen)
        space = "" if self.spaces is None else spaces.name_of(name)
        return NodeProcess(name, [*argv], self.folder / f"{name}.out", space)


class Faults:
    """Happen one after the other, and are mended after a while."""

    def __init__(self, cluster: Cluster, seed: int, reported: Callable[[str], None]) -> None:
        self.happened: Counter[str] = Counter()
        self._cluster = cluster
        self._chance = random.Random(seed)
        self._told = reported
        self._order = itertools.count()
        self._due: list[tuple[float, int, Callable[[NodeProcess], None], NodeProcess]] = []

    def go_on(self, seconds: float) -> None:
        """For so long, and until one was killed: on a busy machine little happens in that time."""
        ends_s = time.monotonic() + seconds
        next_s = 0.0
        while (now_s := time.monotonic()) < ends_s or not self._has_killed:
            while self._due and self._due[0][0] <= now_s:
                _, _, mend, node = heapq.heappop(self._due)
                mend(node)
            if now_s >= next_s:
                self._one()
                next_s = now_s + self._chance.uniform(0.2, 1.5)
            time.sleep(0.02)

    @property
    def _has_killed(self) -> bool:
        return any(each.startswith("kill") for each in self.happened)

    def stop(self) -> None:
        for node in self._cluster.nodes:
            self._heal(node)
            self._wake(node)
            self._start(node)
        self._due.clear()

    def _one(self) -> None:
        well = [n for n in self._cluster.nodes[1:] if n.is_alive and not (n.stopped or n.cut)]
        if well:
            node = self._chance.choice(well)
            faults = [("kill", self._kill), ("kill", self._kill), ("stop", self._stop_for_a_while)]
            if self._cluster.spaces is not None:
                faults.append(("cut off", self._cut_off))
            what, happen = self._chance.choice(faults)
            self.happened[f"{what} {node.name.rstrip('0123456789')}"] += 1
            self._told(f"{what}: {node.name}")
            happen(node)

    def _later(self, mend: Callable[[NodeProcess], None], node: NodeProcess, most_s: float) -> None:
        due_s = time.monotonic() + self._chance.choice((0.1, 0.3, 0.3, 1.0)) * most_s
        heapq.heappush(self._due, (due_s, next(self._order), mend, node))

    def _kill(self, node: NodeProcess) -> None:
        node.kill()
        self._later(self._start, node, 3.0)

    def _start(self, node: NodeProcess) -> None:
        # A scheduler that has done its work ends by itself.
        if not node.is_alive and node.said("left") is None:
            self._told(f"start: {node.name}")
            node.start()

    def _stop_for_a_while(self, node: NodeProcess) -> None:
        node.signal(signal.SIGSTOP)
        node.stopped = True
        self._later(self._wake, node, 13.0)

    def _wake(self, node: NodeProcess) -> None:
        if node.stopped:
            node.signal(signal.SIGCONT)
            node.stopped = False

    def _cut_off(self, node: NodeProcess) -> None:
        assert self._cluster.spaces is not None
        self._cluster.spaces.cut(node.name)
        node.cut = True
        self._later(self._heal, node, 13.0)

    def _heal(self, node: NodeProcess) -> None:
        if node.cut:
            assert self._cluster.spaces is not None
            self._cluster.spaces.heal(node.name)
            node.cut = False


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    figures = story(arguments.seconds, arguments.seed, quiet=arguments.json)
    violations = figures["violations"]
    if arguments.json:
        print(json.dumps(figures))
    else:
        for name, value in figures.items():
            print(f"{name}: {value}")
    return 1 if violations else 0


def story(seconds: float, seed: int, *, quiet: bool) -> dict[str, object]:
    began_s = time.monotonic()

    def reported(what: str) -> None:
        if not quiet:
            print(f"{time.monotonic() - began_s:7.2f} {what}", flush=True)

    with ExitStack() as held:
        hub: Namespaces | None = None
        partitions = "network namespaces"
        try:
            hub = held.enter_context(Namespaces())
        except Forbidden as why:
            partitions = f"skipped: {why}"
            reported(f"nobody is cut off: {why}")
        folder = held.enter_context(
            tempfile.TemporaryDirectory(prefix="formation-", ignore_cleanup_errors=True)
        )
        mark = f"realchaos-{os.getpid()}-{seed}"
        cluster = Cluster(Path(folder), hub, mark, max(2, round(seconds / SUBMIT_S)))
        held.enter_context(_ended(cluster))
        cluster.start()
        reported("all have started")
        faults = Faults(cluster, seed, reported)
        faults.go_on(seconds)
        faults.stop()
        reported("faults have stopped")
        violations = _violations(cluster)
        ended = ends(cluster)
        if "TaskSucceeded" not in ended:
            violations.append("no task succeeded")
        return {
            "seconds": seconds,
            "seed": seed,
            "partitions": partitions,
            "tasks": sum(ended.values()),
            "ended": ended,
            "scheduler_incarnations": cluster.scheduler.incarnations,
            "worker_incarnations": sum(worker.incarnations for worker in cluster.workers),
            "faults": dict(faults.happened),
            "violations": violations[:MAX_SHOWN],
            "wall_s": round(time.monotonic() - began_s, 1),
        }


def _violations(cluster: Cluster) -> list[str]:
    found: list[str] = []
    scheduler = cluster.scheduler
    assert scheduler.process is not None
    try:
        scheduler.process.wait(DONE_S)
    except subprocess.TimeoutExpired:
        found.append(f"the scheduler is not done {DONE_S:.0f} s after the faults")
        scheduler.kill()
    left = scheduler.said("left")
    if left is None:
        last = scheduler.output.read_text(errors="replace")[-2000:]
        found.append(f"the scheduler ended with {scheduler.process.returncode}: {last}")
    elif left["busy"] or left["seen"] != WORKERS:
        found.append(f"capacity is not full when all is done: {left}")
    found += stored(cluster)
    found += left_over(cluster)
    return found


def ends(cluster: Cluster) -> dict[str, int]:
    """How many tasks ended how. A scheduler that is cut off may find nobody for them."""
    ends: Counter[str] = Counter()
    state = State(cluster.state)
    try:
        for job in state.summaries():
            for event in state.history(job.job_id):
                if isinstance(event, _TERMINAL):
                    ends[type(event).__name__] += 1
    finally:
        state.close()
    return dict(ends)


def stored(cluster: Cluster) -> list[str]:
    """Every task has ended once, and those that succeeded with their own results."""
    found: list[str] = []
    state = State(cluster.state)
    try:
        jobs = state.summaries()
        ends: Counter[str] = Counter()
        for job in jobs:
            for event in state.history(job.job_id):
                if not isinstance(event, _TERMINAL):
                    continue
                ends[event.task_id] += 1
                number = event.task_id.rpartition("/")[2]
                if not isinstance(event, TaskSucceeded):
                    continue  # that is reported, and an end as well
                if ProcessResult.decode(event.result).stdout_tail != f"{number}\n".encode():
                    found.append(f"{event.task_id} has the result of another: {event.result!r}")
        tasks = sum(job.tasks for job in jobs)
        if len(jobs) != cluster.jobs or len(ends) != tasks or set(ends.values()) != {1}:
            wrong = {task_id: count for task_id, count in ends.items() if count != 1}
            there = f"{len(jobs)} of {cluster.jobs} jobs, {len(ends)} of {tasks} tasks"
            found.append(f"{there}; ended otherwise than once: {wrong}")
    finally:
        state.close()
    return found


def left_over(cluster: Cluster) -> list[str]:
    """Of tasks: processes, and scratch folders of the workers."""
    until_s = time.monotonic() + TIDY_S
    while True:
        processes = [process.pid for process in _marked(cluster.mark, cluster)]
        homes = (cluster.home(worker.name) for worker in cluster.workers)
        folders = [path for home in homes for path in scratch_folders(home)]
        if not (processes or folders):
            return []
        if time.monotonic() > until_s:
            return [f"left over: processes {processes}, folders {folders}"]
        time.sleep(0.2)


def scratch_folders(home: Path) -> list[Path]:
    """Those of tasks, below the folders of their nodes, which remove them at any time."""
    found: list[Path] = []
    for of_node in (home / "scratch").glob("*"):
        with suppress(FileNotFoundError, NotADirectoryError):
            found += of_node.iterdir()
    return found


def _marked(mark: str, cluster: Cluster) -> Iterator[psutil.Process]:
    """What runs of this story's tasks; the nodes' own processes are none."""
    nodes = {node.process.pid for node in cluster.nodes if node.process is not None}
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            is_ours = process.pid not in nodes and process.status() != psutil.STATUS_ZOMBIE
            if is_ours and any(mark in word for word in process.cmdline()):
                yield process


@contextmanager
def _ended(cluster: Cluster) -> Iterator[None]:
    """Whatever happens, nothing that was started outlives the block; each is ended by its id."""
    try:
        yield
    finally:
        for node in [getattr(cluster, "gate", None), *cluster.workers]:
            if node is not None and node.process is not None:
                node.kill()
        scheduler = getattr(cluster, "scheduler", None)
        if scheduler is not None and scheduler.process is not None:
            scheduler.kill()
            for process in _marked(cluster.mark, cluster):
                with suppress(psutil.Error):
                    process.kill()


def _parser() -> argparse.ArgumentParser:
    what = "Processes that are killed, stopped and cut off: every task ends once."
    parser = storm_parser("simulations.realchaos", what)
    parser.add_argument("--seconds", type=positive, default=60.0, help="faults come for so long")
    return parser


if __name__ == "__main__":
    sys.exit(main())
