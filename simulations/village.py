"""A village whose workers keep a catalog of services running, every node the shipped peer."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import nsmallest
from typing import Final

from formation_p2p.assembly import Peer, PeerEffect, PeerEvent, PeerParameters
from formation_p2p.core.keyspace import Key
from formation_p2p.dht.core import rpc
from formation_p2p.discovery.core.parameters import DiscoveryParameters
from formation_p2p.features.services.core.claim import slot_key
from formation_p2p.features.services.core.events import (
    PublishSpec,
    ReplicaReported,
    ReplicaState,
    ServeServices,
    StartReplica,
    StopReplica,
)
from formation_p2p.features.services.core.signed_spec import seal_spec
from formation_p2p.features.services.core.spec import (
    ONE,
    Pinned,
    Program,
    Replicas,
    ServiceSpec,
    WorkerType,
    labels_of,
)
from formation_p2p.leases.core.session import Disconnected
from simulations.placed import Placed
from simulations.residents import Residents
from simulations.simulator.node import SimNode
from simulations.simulator.performer import Requests
from simulations.simulator.world import EPOCH_UNIX_S, LATENCY_S, World

WORKERS: Final = 200
SERVICES: Final = 14
REPLICAS: Final = Replicas(3, 3, 4)
KIND: Final = WorkerType.CPU
# Until all slots are filled, from nothing, and what was filled too much has gone.
SETTLE_S: Final = 100.0
# What all do again and again is at another point of it in each story.
PHASE_S: Final = 30.0
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
        replicas: Replicas = REPLICAS,
    ) -> None:
        self._replicas = replicas
        self.rng = random.Random(f"services/{seed}")
        self.sampled: list[SimNode] = []
        parameters = PeerParameters(discovery=DISCOVERY, renews=False)
        world = self.world = World(seed, lean=True, parameters=parameters)
        world.max_steps = 10**9
        world.performer.requests = self.requests = Deaf(world)
        self.seen = Seen()
        world.witness = self.seen.witness
        self._delays = delays = {a: self.rng.uniform(0.002, 0.03) for a in range(workers)}
        world.latency = lambda a, b: delays[a.number] + delays[b.number]
        self._serve = serve = world.machine(cpu=8).serving(labels_of({KIND}))
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
            # It says from the first what it serves. Once it knows the others, it begins to read.
            world.wake(node, ServeServices(frozenset({KIND})), serve)
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
            replicas=self._replicas if home is None else ONE,
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

    def arrive(self) -> SimNode:
        """A worker that comes later, and knows three of those that are there."""
        gates = tuple(self.rng.sample(self.alive(), 3))
        node = self.world.add(f"n{len(self.nodes)}", public=True, asleep=True, gates=gates)
        self._delays[node.number] = self.rng.uniform(0.002, 0.03)
        self.nodes.append(node)
        self.world.wake(node)
        self.world.deliver(node, self._serve)
        self.world.deliver(node, ServeServices(frozenset({KIND})))
        return node

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

    def go_on_as(self, seed: int) -> None:
        """From now on chance comes from another seed, for each peer too: many stories have one
        beginning."""
        self.rng.seed(f"services/{seed}/later")
        self.world.rng.seed(f"services/{seed}/world")
        for node in self.alive():
            if node.awake:
                assert isinstance(node.peer, Peer)
                node.peer.rng.seed(f"services/{seed}/{node.name}")
        self.world.elapse(self.rng.uniform(0.0, PHASE_S))

    def leave_tables(self) -> None:
        """From now on none looks others up to keep its table fresh, which is a fifth of what all
        say: where none comes or goes nothing is learnt by it."""
        for node in self.alive():
            node.peer.dht._refresh.at_s = float("inf")

    def end(self, node: SimNode, *, silent: bool) -> None:
        if silent:
            self.world.vanish(node)
        else:
            self.world.kill(node)
            broken = Disconnected(node.identity.peer_id)
            for other in self.alive():
                if other.name in node.asked or node.name in other.asked:
                    self.world.later(LATENCY_S, other, broken)


def _far(key: Key, node: SimNode) -> int:
    return node.identity.key ^ key
