"""Services that keep themselves running: workers die, reads fail, the network is cut in two.

    python -m simulations.services --seeds 0..9 --json

Each seed is a village of 200 workers with 14 services of 3 replicas, every node the shipped peer; a
replica takes 20 s to start. Half of the seeds have their dead refuse connections at once, as after
a kill; in the others they are silent, as after a power failure.

    extra_starts             replicas started beyond those lost, after 1, 5 and 20 % of workers died
    filled_p95_s             from their death until as many are ready again
    moves_quiet              replicas started or stopped in ten minutes in which nothing happens
    false_gap_starts         replicas started while all reads fail for 40 s and 120 s, and after
    duplicates_after_heal_s  after 120 s in two parts: until no service has more than it wants
    pinned_twice             times that a pinned service ran twice
    messages_per_s           requests and replies for services, of a worker that has none;
                             messages_per_s_10000 among as many (`--only crowd`)
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from heapq import nsmallest
from typing import Any, Final

from formation_p2p.core.dht import rpc
from formation_p2p.core.discovery.parameters import DiscoveryParameters
from formation_p2p.core.keyspace import Key
from formation_p2p.core.peer.effects import PeerEffect
from formation_p2p.core.peer.events import PeerEvent
from formation_p2p.core.peer.parameters import PeerParameters
from formation_p2p.core.services.claim import slot_key
from formation_p2p.core.services.events import (
    PublishSpec,
    ReplicaReported,
    ReplicaState,
    ServeServices,
    StartReplica,
    StopReplica,
)
from formation_p2p.core.services.serving import labels_of
from formation_p2p.core.services.signed_spec import seal_spec
from formation_p2p.core.services.spec import (
    ONE,
    Pinned,
    Program,
    Replicas,
    ServiceSpec,
    WorkerType,
)
from formation_p2p.sim.node import SimNode
from formation_p2p.sim.performer import Requests
from formation_p2p.sim.world import EPOCH_UNIX_S, World
from simulations.figures import percentile
from simulations.placed import Placed
from simulations.residents import Residents

WORKERS: Final = 200
SERVICES: Final = 14
REPLICAS: Final = Replicas(3, 3, 4)
SHARES: Final = (0.01, 0.05, 0.20)
KIND: Final = WorkerType.CPU
# A network in which most workers are too far from any slot to be of use.
CROWD: Final = 10_000
CROWD_SAMPLE: Final = 60
CROWD_S: Final = 300.0
# Until all slots are filled, from nothing, and what was filled too much has gone.
SETTLE_S: Final = 100.0
QUIET_S: Final = 600.0
AFTER_DEATH_S: Final = 120.0
# Announcements are not what is measured: they are as rare as they may be.
DISCOVERY: Final = DiscoveryParameters(ttl_s=600.0)


@dataclass(frozen=True, slots=True)
class Happened:
    """A replica of a service was started, or stopped, or became ready, on a node."""

    at_s: float
    what: str
    node: str
    service: str
    slot: int


@dataclass(slots=True)
class Seen:
    """What happened in a village, in order."""

    happened: list[Happened] = field(default_factory=list)

    def witness(self, node: SimNode, event: PeerEvent, effects: list[PeerEffect]) -> None:
        if isinstance(event, ReplicaReported) and event.state is ReplicaState.READY:
            self._note(node, "ready", event.service, event.slot)
        for effect in effects:
            if isinstance(effect, StartReplica):
                self._note(node, "start", effect.signed.spec.name, effect.slot)
            elif isinstance(effect, StopReplica):
                self._note(node, "stop", effect.service, effect.slot)

    def _note(self, node: SimNode, what: str, service: str, slot: int) -> None:
        self.happened.append(Happened(node.world.now_s, what, node.name, service, slot))

    def since(self, at_s: float, what: str) -> list[Happened]:
        return [each for each in self.happened if each.at_s >= at_s and each.what == what]


class Deaf(Requests):
    """While it `fails`, requests for services are not answered: what is written is lost as well
    where `writes_fail`."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.fails: Callable[[rpc.SendRequest], bool] = lambda ask: False

    def send(self, node: SimNode, ask: rpc.SendRequest) -> None:
        if self.fails(ask):
            failed = rpc.RequestFailed(ask.request_id, "no answer in time")
            self._world.later(ask.timeout_s, node, failed)
        else:
            super().send(node, ask)


class Village:
    """`workers` that have known each other for long, and a catalog that has just been published."""

    def __init__(
        self,
        seed: int,
        workers: int = WORKERS,
        services: int = SERVICES,
        pinned: int = 0,
        sample: int | None = None,
    ) -> None:
        self.rng = random.Random(f"services/{seed}")
        self.sampled: list[SimNode] = []
        parameters = PeerParameters(discovery=DISCOVERY, renews=False)
        world = self.world = World(seed, lean=True, parameters=parameters)
        world.max_steps = 10**9
        world.performer.requests = self.requests = Deaf(world)
        self.seen = Seen()
        world.witness = self.seen.witness
        delays = {a: self.rng.uniform(0.002, 0.03) for a in range(workers)}
        world.latency = lambda a, b: delays[a.number] + delays[b.number]
        serve = world.machine(cpu=8).serving(labels_of({KIND}))
        self.nodes = [
            world.add(f"n{n}", public=True, asleep=True, gates=()) for n in range(workers)
        ]
        residents = Residents(world, [node.contact for node in self.nodes], seed)
        world.residents = residents
        placed = Placed(
            [(node, serve) for node in self.nodes], self.nodes, DISCOVERY, seed, resumed=True
        )
        self.specs = [self._spec(n, pinned) for n in range(services)]
        serving = self.nodes if sample is None else self._nearest(sample)
        residents.refreshes = sample is None
        for node in serving:
            world.wake(node, serve)
            placed.resume(node)
        for node in serving:
            placed.furnish(node)
        residents.woken = placed.furnish
        for node in serving:
            world.after(self.rng.random(), world.deliver, node, ServeServices(frozenset({KIND})))
        publisher = serving[0]
        for spec in self.specs:
            issued = int(EPOCH_UNIX_S)
            grant = publisher.network().grant
            signed = seal_spec(publisher.identity, spec, grant, issued, issued + 10**6)
            world.after(0.0, world.deliver, publisher, PublishSpec(signed))

    def _spec(self, number: int, pinned: int) -> ServiceSpec:
        home = self.nodes[number].identity.peer_id if number < pinned else None
        return ServiceSpec(
            name=f"service-{number}",
            tier=2,
            port=8000 + number,
            program=Program(argv=("serve",)),
            replicas=REPLICAS if home is None else ONE,
            pinned=None if home is None else Pinned("data", home),
        )

    def _nearest(self, sample: int) -> list[SimNode]:
        """Those that are to have the replicas, or watch them, and so many others, who are
        `sampled`."""
        chosen: dict[str, SimNode] = {}
        for spec in self.specs:
            for slot in range(spec.replicas.target):
                by_far = partial(_far, slot_key(spec.name, slot))
                chosen |= {each.name: each for each in nsmallest(5, self.nodes, by_far)}
        others = [node for node in self.nodes if node.name not in chosen]
        self.sampled = self.rng.sample(others, sample)
        return [*chosen.values(), *self.sampled]

    @property
    def now_s(self) -> float:
        return self.world.now_s

    def wanted(self, service: str) -> int:
        return next(s.replicas.target for s in self.specs if s.name == service)

    def alive(self) -> list[SimNode]:
        return [node for node in self.nodes if node.alive]

    def holders(self) -> list[SimNode]:
        return [node for node in self.alive() if node.replicas.running]

    def running(self) -> Counter[str]:
        """How many replicas of each service there are."""
        counts = Counter({spec.name: 0 for spec in self.specs})
        for node in self.alive():
            counts.update(node.replicas.running.keys())
        return counts

    def surplus(self) -> int:
        counts = self.running()
        return sum(max(0, counts[spec.name] - spec.replicas.target) for spec in self.specs)

    def lacking(self) -> int:
        counts = self.running()
        return sum(max(0, spec.replicas.target - counts[spec.name]) for spec in self.specs)

    def end(self, node: SimNode, *, silent: bool) -> None:
        if silent:
            self.world.vanish(node)
        else:
            self.world.kill(node)


def quiet(seed: int, workers: int = WORKERS) -> dict[str, Any]:
    """Nothing happens for ten minutes, but what workers that have nothing say to each other."""
    village = Village(seed, workers)
    village.world.elapse(3 * SETTLE_S)
    began_s, seen = village.now_s, village.seen
    idle = [node for node in village.alive() if not node.replicas.running]
    before = {node.name: _for_services(node) for node in idle}
    village.world.elapse(QUIET_S)
    moves = len(seen.since(began_s, "start")) + len(seen.since(began_s, "stop"))
    rates = [(_for_services(node) - before[node.name]) / QUIET_S for node in idle]
    return {"moves_quiet": moves, "messages": rates}


def crowd(seed: int, workers: int = CROWD) -> list[float]:
    """Messages a second of workers of a large network that have nothing, and watch nothing. Only
    those that may have replicas, and a sample, run services; the others answer."""
    village = Village(seed, workers, sample=CROWD_SAMPLE)
    village.world.elapse(SETTLE_S)
    before = [_for_services(node) for node in village.sampled]
    village.world.elapse(CROWD_S)
    after = [_for_services(node) for node in village.sampled]
    print(f"crowd: {village.lacking()} replicas are missing", file=sys.stderr)
    return [(b - a) / CROWD_S for a, b in zip(before, after, strict=True)]


def deaths(seed: int, workers: int = WORKERS) -> dict[str, Any]:
    """1, 5 and 20 % of the workers die, one after the other."""
    village = Village(seed, workers)
    village.world.elapse(SETTLE_S)
    unfilled, seen = village.lacking(), village.seen
    extra, filled = 0, list[float]()
    for share in SHARES:
        at_s = village.now_s
        lost = _die(village, share, silent=seed % 2 == 1)
        village.world.elapse(AFTER_DEATH_S)
        extra += len(seen.since(at_s, "start")) - lost.total()
        filled += _filled_s(village, lost, at_s)
    return {
        "unfilled_at_first": unfilled,
        "extra_starts": extra,
        "filled": filled,
        "missing": village.lacking(),
    }


def _die(village: Village, share: float, *, silent: bool) -> Counter[str]:
    """How many replicas of each service are lost by it."""
    alive = village.alive()
    dying = village.rng.sample(alive, max(1, round(share * len(village.nodes))))
    holders = village.holders()
    if holders and not any(node.replicas.running for node in dying):
        dying[0] = village.rng.choice(holders)
    lost: Counter[str] = Counter()
    for node in dying:
        lost.update(node.replicas.running.keys())
        village.end(node, silent=silent)
    return lost


def _filled_s(village: Village, lost: Counter[str], at_s: float) -> list[float]:
    """For each replica that was lost, until another one was ready; infinity where none was."""
    ready = village.seen.since(at_s, "ready")
    took = []
    for service, count in lost.items():
        times = sorted(each.at_s - at_s for each in ready if each.service == service)[:count]
        took += times + [float("inf")] * (count - len(times))
    return took


def _far(key: Key, node: SimNode) -> int:
    return node.identity.key ^ key


def _for_services(node: SimNode) -> int:
    return sum(count for cause, count in node.messages.items() if cause.startswith("services: "))


def false_gap(seed: int, lasts_s: float, *, writes_fail: bool, workers: int = WORKERS) -> int:
    """How many replicas are started where nobody dies, and what is asked is not answered."""
    village = Village(seed, workers)
    village.world.elapse(SETTLE_S)
    began_s = village.now_s

    def fails(ask: rpc.SendRequest) -> bool:
        is_write = type(ask.message).__name__ == "PutValue"
        return ask.cause.startswith("services: ") and (writes_fail or not is_write)

    village.requests.fails = fails
    village.world.elapse(lasts_s)
    village.requests.fails = lambda ask: False
    village.world.elapse(180.0)
    return len(village.seen.since(began_s, "start"))


def partition(seed: int, workers: int = WORKERS) -> dict[str, float]:
    """Two parts for 120 s, each of which fills what it lacks; then one again."""
    village = Village(seed, workers, pinned=2)
    village.world.elapse(SETTLE_S)
    began_s = village.now_s
    for node in village.rng.sample(village.nodes, workers // 2):
        node.side = 1
    twice = 0
    for _ in range(24):
        village.world.elapse(5.0)
        twice += _pinned_twice(village)
    duplicates = village.surplus()
    for node in village.nodes:
        node.side = 0
    healed_s, drained_s = village.now_s, float("inf")
    while village.now_s < healed_s + 600.0:
        village.world.elapse(1.0)
        twice += _pinned_twice(village)
        if village.surplus() == 0:
            drained_s = village.now_s - healed_s
            break
    starts = len(village.seen.since(began_s, "start"))
    return {
        "duplicates": duplicates,
        "drained_s": drained_s,
        "pinned_twice": twice,
        "starts": starts,
        "missing": village.lacking(),
    }


def _pinned_twice(village: Village) -> int:
    counts = village.running()
    return sum(counts[spec.name] > 1 for spec in village.specs if spec.pinned is not None)


def main(arguments: argparse.Namespace) -> int:
    figures: dict[str, Any] = {"seeds": len(arguments.seeds), "workers": arguments.workers}
    for name in arguments.only:
        figures |= SCENARIOS[name](arguments)
    if arguments.json:
        print(json.dumps(figures))
    else:
        print("\n".join(f"{name:24} {value}" for name, value in figures.items()))
    return 0


def _deaths(arguments: argparse.Namespace) -> dict[str, Any]:
    runs = [deaths(seed, arguments.workers) for seed in _told(arguments, "deaths")]
    filled = [each for run in runs for each in run["filled"]]
    return {
        "extra_starts": sum(run["extra_starts"] for run in runs),
        "filled_p50_s": _rounded(percentile(filled, 50)),
        "filled_p95_s": _rounded(percentile(filled, 95)),
        "filled_max_s": _rounded(max(filled)),
        "lost": len(filled),
        "unfilled_at_first": sum(run["unfilled_at_first"] for run in runs),
        "missing": sum(run["missing"] for run in runs),
    }


def _quiet(arguments: argparse.Namespace) -> dict[str, Any]:
    runs = [quiet(seed, arguments.workers) for seed in _told(arguments, "quiet")]
    rates = [each for run in runs for each in run["messages"]]
    return {
        "moves_quiet": sum(run["moves_quiet"] for run in runs),
        "messages_per_s": round(sum(rates) / len(rates), 3),
    }


def _crowd(arguments: argparse.Namespace) -> dict[str, Any]:
    rates = [rate for seed in _told(arguments, "crowd") for rate in crowd(seed)]
    return {"messages_per_s_10000": round(sum(rates) / len(rates), 3)}


def _false_gaps(arguments: argparse.Namespace) -> dict[str, Any]:
    starts = 0
    for seed in _told(arguments, "false gap"):
        for lasts_s in (40.0, 120.0):
            for writes_fail in (False, True):
                starts += false_gap(
                    seed, lasts_s, writes_fail=writes_fail, workers=arguments.workers
                )
    return {"false_gap_starts": starts}


def _partitions(arguments: argparse.Namespace) -> dict[str, Any]:
    runs = [partition(seed, arguments.workers) for seed in _told(arguments, "partition")]
    return {
        "duplicates": sum(run["duplicates"] for run in runs),
        "duplicates_after_heal_s": max(run["drained_s"] for run in runs),
        "pinned_twice": sum(run["pinned_twice"] for run in runs),
        "missing_after_heal": sum(run["missing"] for run in runs),
    }


SCENARIOS: Final[dict[str, Callable[[argparse.Namespace], dict[str, Any]]]] = {
    "quiet": _quiet,
    "crowd": _crowd,
    "deaths": _deaths,
    "false-gap": _false_gaps,
    "partition": _partitions,
}


# The crowd takes some minutes.
USUAL: Final = ["quiet", "deaths", "false-gap", "partition"]


def _told(arguments: argparse.Namespace, what: str) -> Iterator[int]:
    for seed in arguments.seeds:
        print(f"{what}: seed {seed}", file=sys.stderr)
        yield seed


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 1)


def _seeds(text: str) -> range:
    first, _, last = text.partition("..")
    return range(int(first), int(last or first) + 1)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=_seeds, default=range(10), help="FIRST..LAST")
    parser.add_argument("--workers", type=int, default=WORKERS)
    parser.add_argument("--only", nargs="+", choices=list(SCENARIOS), default=USUAL)
    parser.add_argument("--json", action="store_true", help="print one line of JSON")
    sys.exit(main(parser.parse_args()))
