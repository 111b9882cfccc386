"""Looking for a free worker: by the DHT, by notices left with its holders, or by announcing.

    python -m simulations.announce --nodes 50 1000 10000 --free 0.5 0.1 0.01 --json

Every node is a worker of one core, and the shipped peer; all but a share of them are busy, and have
announced so. Submitters who know nothing yet look for one worker each, one after the other, over
measured latencies and dials. What is counted is the time from the submission to the lease, and all
messages until a second after it, but for those of the task itself. The same arguments give the same
figures.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from formation_p2p.assembly import Peer, PeerEffect, PeerEvent, PeerParameters
from formation_p2p.dht.core import messages as kad
from formation_p2p.discovery.core.parameters import DiscoveryParameters
from formation_p2p.jobs.core.job import Job
from formation_p2p.leases.core import messages as work
from formation_p2p.leases.core.session import Received
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.placement.core.task_options import TaskOptions, options_of
from formation_p2p.workload.core.outcome import Outcome, Succeeded
from formation_p2p.workload.core.scope import Find
from formation_p2p.workload.core.work import Task
from simulations.arguments import LATENCY_FILE, latencies_of
from simulations.latency import Latencies
from simulations.placed import LIFE_S, Placed
from simulations.residents import Residents
from simulations.simulator.connections import Connections
from simulations.simulator.executor import Running
from simulations.simulator.node import SimNode
from simulations.simulator.world import World

NEEDS: Final = Requirements(cpu_milli=1000, driver="process")
# A submitter that has no worker by then gives up, and counts with that time.
PATIENCE_S: Final = 30.0
# Losers hear that they are within a second, and a lease that is kept warm is given back.
AFTER_S: Final = 1.0
BETWEEN_S: Final = 5.0
# None announces itself anew, so that no message but those that are counted passes.
DISCOVERY: Final = DiscoveryParameters(ttl_s=LIFE_S)
# Reading the catalog of services is another matter.
_OTHERS: Final = (kad.GetValue, kad.Value)
# Of the task itself, and of its lease once there is one.
_LATER: Final = (
    work.Dispatch,
    work.TaskStarted,
    work.TaskOutput,
    work.TasksEnded,
    work.ResultAck,
    work.Renew,
    work.Renewed,
)


@dataclass(slots=True)
class Looks:
    """What a world's submitters saw."""

    lease_s: list[float] = field(default_factory=list)
    messages: list[int] = field(default_factory=list)
    given_up: int = 0
    double_runs: int = 0
    by_kind: Counter[str] = field(default_factory=Counter)

    def figures(self) -> dict[str, Any]:
        looks = len(self.lease_s)
        return {
            "looks": looks,
            "lease_s_p50": round(_percentile(self.lease_s, 50), 3),
            "lease_s_p95": round(_percentile(self.lease_s, 95), 3),
            "lease_s_mean": round(sum(self.lease_s) / looks, 3),
            "messages_mean": round(sum(self.messages) / looks, 1),
            "messages_max": max(self.messages),
            "given_up": self.given_up,
            "double_runs": self.double_runs,
        }


class Market:
    """A world in which `free` of the workers have room."""

    def __init__(self, nodes: int, free: float, latencies: Latencies, seed: int) -> None:
        self.rng = random.Random(f"{seed}/market")
        world = self.world = World(
            seed,
            run=self._run,
            lean=True,
            connections=Connections(),
            trace=self._trace,
            parameters=PeerParameters(discovery=DISCOVERY),
        )
        one_way_s = latencies.one_way_s()
        world.latency = lambda a, b: one_way_s[a.site][b.site]
        for number in range(nodes):
            site = self.rng.randrange(latencies.sites)
            world.add(f"node{number}", gates=(), site=site, public=True, asleep=True)
        everyone = list(world.nodes.values())
        self.idle = {each.name for each in self.rng.sample(everyone, max(1, round(nodes * free)))}
        self.busy = [each for each in everyone if each.name not in self.idle]
        residents = world.residents = Residents(world, [each.contact for each in everyone], seed)
        residents.refreshes = False
        residents.woken = self._woken
        self._serve = world.machine(cpu=1)
        workers = [(each, self._serve) for each in everyone]
        full = {each.name for each in self.busy}
        self._placed = Placed(workers, everyone, DISCOVERY, seed, full=full)
        world.witness = self._witness
        self._leased_s: dict[str, float] = {}
        self._runs: Counter[bytes] = Counter()
        self._said: Counter[str] = Counter()
        self.elapsed_s = 1.0
        world.elapse(1)

    def look(self, find: Find, submitters: Sequence[SimNode], policy: str) -> Looks:
        looks, world = Looks(), self.world
        for number, node in enumerate(submitters):
            job_id = f"{find}/{number}"
            began_s, self._said = world.now_s, Counter()
            options = options_of({"policy": policy}, TaskOptions(needs=NEEDS, find=find))
            task = Task(f"{job_id}/0", NEEDS, job_id.encode())
            node.submit(Job(job_id, (task,), options=options))
            while node.name not in self._leased_s and world.now_s < began_s + PATIENCE_S:
                world.elapse(0.05)
            leased_s = self._leased_s.pop(node.name, None)
            world.elapse(AFTER_S)
            looks.lease_s.append(PATIENCE_S if leased_s is None else leased_s - began_s)
            looks.messages.append(self._said.total())
            looks.by_kind += self._said
            if leased_s is None:
                looks.given_up += 1
                node.cancel(job_id)
            world.elapse(BETWEEN_S)
            self._leased_s.clear()
            looks.double_runs += self._runs[job_id.encode()] > 1
        return looks

    def _woken(self, node: SimNode) -> None:
        """It has worked for long: others hold its profile, and it need not announce itself."""
        self._placed.furnish(node)
        peer, now = node.peer, self.world.moment(node)
        assert isinstance(peer, Peer), "all are the shipped peer"
        peer.handle(self._serve, now)
        assert peer.worker is not None, "it has joined"
        peer.worker.announcer.pause(now)
        if node.name not in self.idle:
            peer.worker.set_aside("busy", NEEDS, now)

    def _run(self, running: Running) -> tuple[float, Outcome]:
        self._runs[running.work.payload] += 1
        return 0.5, Succeeded(b"")

    def _witness(self, node: SimNode, event: PeerEvent, effects: list[PeerEffect]) -> None:
        if isinstance(event, Received) and isinstance(event.message, work.Leased):
            self._leased_s.setdefault(node.name, self.world.now_s)

    def _trace(self, at_s: float, sender: str, receiver: str, message: object) -> None:
        if not isinstance(message, _LATER + _OTHERS):
            self._said[type(message).__name__] += 1


def compare(
    nodes: int,
    free: float,
    finds: Sequence[Find],
    looks: int,
    latencies: Latencies,
    seed: int,
    policy: str,
) -> dict[str, dict[str, Any]]:
    """Each way in a world of its own, with the same submitters: none has learnt of the others."""
    figures = {}
    for find in finds:
        began_s = time.process_time()
        market = Market(nodes, free, latencies, seed)
        busy = market.busy
        submitters = [busy[number % len(busy)] for number in range(looks)]
        seen = market.look(find, submitters, policy)
        figures[find.value] = {
            **seen.figures(),
            "cpu_s": round(time.process_time() - began_s, 1),
            "by_kind": dict(seen.by_kind.most_common()),
        }
    return figures


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    latencies, whose = latencies_of(arguments)
    report: dict[str, Any] = {
        "seed": arguments.seed,
        "latencies": whose,
        "policy": arguments.policy,
        "find": {},
    }
    for nodes in arguments.nodes:
        for free in arguments.free:
            finds = [Find(find) for find in arguments.find]
            ours = nodes, free, finds, arguments.looks, latencies, arguments.seed
            report["find"][f"{nodes} nodes, {free:.0%} free"] = compare(*ours, arguments.policy)
    if arguments.json:
        print(json.dumps(report))
    else:
        _print(report["find"])
    return int(_double_runs(report["find"]) > 0)


def _double_runs(found: dict[str, dict[str, dict[str, Any]]]) -> int:
    return sum(each["double_runs"] for case in found.values() for each in case.values())


def _print(found: dict[str, dict[str, dict[str, Any]]]) -> None:
    names = ("lease_s_p50", "lease_s_p95", "messages_mean", "messages_max", "given_up")
    table = Table("network", "find", *names, "double_runs")
    for case, finds in found.items():
        for find, figures in finds.items():
            cells = (str(figures[name]) for name in (*names, "double_runs"))
            table.add_row(case, find, *cells)
    Console().print(table)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m simulations.announce", description="How long it takes to find a worker."
    )
    parser.add_argument("--nodes", type=int, nargs="+", default=[50, 1000, 10_000])
    parser.add_argument("--free", type=float, nargs="+", default=[0.5, 0.1, 0.01])
    parser.add_argument("--find", nargs="+", choices=list(Find), default=list(Find))
    parser.add_argument("--looks", type=int, default=15, help="submitters, one after the other")
    parser.add_argument("--policy", default="xor", help="how they rank workers")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--latency", type=Path, default=None, help=f"a matrix of round trips: {LATENCY_FILE}"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _percentile(values: Sequence[float], percent: int) -> float:
    ranked = sorted(values)
    return ranked[min(len(ranked) - 1, len(ranked) * percent // 100)]


if __name__ == "__main__":
    sys.exit(main())
