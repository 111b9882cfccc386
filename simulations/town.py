"""A town of thousands: who lives there, who comes and goes, and what is true of it at any time."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from formation_p2p.assembly import PeerParameters
from formation_p2p.core.identity import PeerId
from formation_p2p.core.keyspace import Key
from formation_p2p.discovery.core.parameters import DiscoveryParameters
from simulations.churn import Churn
from simulations.geometry import RARE, buckets, levels, machine
from simulations.homes import NO_NAT, Homes, Nat
from simulations.latency import Latencies
from simulations.liars import lying
from simulations.placed import Placed
from simulations.register import Register
from simulations.residents import Residents
from simulations.simulator.connections import DIAL_ROUND_TRIPS, Connections
from simulations.simulator.node import SimNode
from simulations.simulator.routers import Routers
from simulations.simulator.world import World
from simulations.trace import TraceDigest

DISCOVERY = DiscoveryParameters()

# Whom newcomers join through. They are there all the time.
GATES: Final = 8
# A newcomer knows this many of them.
GATES_KNOWN: Final = 3
# So many join in a second while the town is founded...
JOINS_S: Final = 100.0
# ...and in a laid-out one all begin to serve within this time, before which nobody republishes.
SPREAD_S: Final = 60.0
# Where everybody is announced already, there is nothing to wait for.
PLACED_S: Final = 1.0
# Three times a worker that starts announces itself anew within this time, jitter included. After
# that it does so at its full period.
STEADY_S: Final = DISCOVERY.first_republish_s * (1 + 2 + 4) * 1.1 + 5.0
# A worker counts as announced, and a node as having joined, this long after it came: it takes
# seconds, with a few requests that are given up after 3 s each.
SETTLED_AFTER_S: Final = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a town is made from: the same plan makes the same town. Shares are of all nodes."""

    nodes: int
    seed: int = 1
    buckets: int = 12
    geometry: str = "nested"
    churn_speed: float = 1.0
    laid_out: bool = False
    placed: bool = False
    announcing: int = 0  # of the placed workers, so many start to announce themselves...
    resumed: bool = False  # ...or all go on doing so
    loss: float = 0.0
    liars: float = 0.0
    clients: float = 0.0
    nat: Nat = NO_NAT
    dial_round_trips: float = DIAL_ROUND_TRIPS
    ttl_s: float = DiscoveryParameters().ttl_s
    replicas: int = DiscoveryParameters().replicas


@dataclass(slots=True, eq=False)
class Resident:
    """`in_buckets` are the nested buckets that it is in as a worker, 0 for none of them."""

    node: SimNode
    key: Key
    in_buckets: int
    rare: bool
    settled: bool = False
    place: int = 0  # in the list of those who have settled


class Town:
    """Call `found`, then let time pass with `world.elapse`."""

    def __init__(self, plan: Plan, latencies: Latencies, trace: TraceDigest | None = None) -> None:
        self.plan = plan
        self._discovery = DiscoveryParameters(ttl_s=plan.ttl_s, replicas=plan.replicas)
        self.world = World(
            plan.seed,
            lean=True,
            loss=plan.loss,
            connections=None if plan.nat.share else Connections(plan.dial_round_trips),
            trace=None if trace is None else trace.delivered,
            parameters=PeerParameters(discovery=self._discovery),
        )
        self.homes: Homes | None = None
        if plan.nat.share:
            gates = frozenset(f"gate{number}" for number in range(GATES))
            self.world.routers = routers = Routers(self.world, gates)
            self.homes = Homes(plan.nat, routers, random.Random(f"{plan.seed}/homes"))
        self.placed: Placed | None = None
        self.announcing: list[SimNode] = []  # of the placed, those who do
        one_way_s = latencies.one_way_s()
        self.world.latency = lambda a, b: one_way_s[a.site][b.site]
        self.buckets = buckets(plan.buckets)
        self.registers = {bucket.name: Register() for bucket in self.buckets}
        self.residents: dict[PeerId, Resident] = {}
        self.settled: list[Resident] = []
        self.came = self.crashed = self.left = 0  # since the churn began
        self._sites = latencies.sites
        self._gates: list[SimNode] = []
        self._long_there: Residents | None = None
        self._rng = random.Random(f"{plan.seed}/town")
        self._churn = Churn(random.Random(f"{plan.seed}/churn"), plan.nodes, plan.churn_speed)

    # -- in the beginning -------------------------------------------------------------------------

    def found(self) -> float:
        """Have everybody come. Returns after how many virtual seconds all have settled."""
        plan, rng = self.plan, self._rng
        names = [f"node{number}" for number in range(plan.nodes - GATES)]
        clients = set(rng.sample(names, round(plan.clients * len(names))))
        others = [name for name in names if name not in clients]
        liars = set(rng.sample(others, round(plan.liars * len(names))))
        ranks = {name: rank for rank, name in enumerate(rng.sample(others, len(others)))}
        for number in range(GATES):
            self._gates.append(self._node(f"gate{number}", self._gates))
        nodes = [self._node(name, self._some_gates(), liar=name in liars) for name in names]
        self.world.undialable |= clients
        if plan.laid_out:
            known = [node.contact for node in (*self._gates, *nodes) if node.name not in clients]
            self.world.residents = self._long_there = Residents(self.world, known, plan.seed)
        residents = [self._resident(node, ranks.get(node.name), len(others)) for node in nodes]
        if plan.placed:
            return self._place(residents)
        for gate in self._gates:
            self.world.wake(gate)
        spread_s = SPREAD_S if plan.laid_out else len(names) / JOINS_S
        for number, resident in enumerate(residents):
            self.world.after(spread_s * number / len(nodes), self._come, resident)
        return spread_s + SETTLED_AFTER_S

    def _resident(self, node: SimNode, rank: int | None, workers: int) -> Resident:
        in_buckets = 0
        if rank is not None:
            in_buckets = levels(rank, workers, self.plan.buckets, self.plan.geometry)
        return Resident(node, node.identity.key, in_buckets, rank == workers - 1)

    def _place(self, residents: Sequence[Resident]) -> float:
        """Everybody has been there for long. Returns after how long what is measured is steady."""
        plan, world = self.plan, self.world
        assert self._long_there is not None, "a town that is placed is laid out"
        self._long_there.refreshes = plan.resumed
        workers = [
            (resident.node, machine(resident.in_buckets, rare=resident.rare))
            for resident in residents
            if resident.in_buckets
        ]
        peers = [node for node in world.nodes.values() if node.name not in world.undialable]
        placed = self.placed = Placed(
            workers, peers, self._discovery, plan.seed, resumed=plan.resumed
        )
        keys: dict[str, list[Key]] = {name: [] for name in self.registers}
        for resident in residents:
            self.residents[resident.node.identity.peer_id] = resident
            self._enters(resident)
            for name in self.members(resident):
                keys[name].append(resident.key)
        self.registers.update({name: Register(each) for name, each in keys.items()})
        if plan.resumed:
            for node, serve in workers:
                world.wake(node, serve)
                placed.resume(node)
            for node in world.nodes.values():
                world.wake(node)
                placed.furnish(node)
        self._long_there.woken = placed.furnish
        if not plan.announcing:
            return PLACED_S
        # Over one period, so that as many are at each point of it.
        every_s = self._discovery.republish_s / plan.announcing
        for number, (node, serve) in enumerate(self._rng.sample(workers, plan.announcing)):
            self.announcing.append(node)
            world.after(number * every_s, world.deliver, node, serve)
        return self._discovery.republish_s + STEADY_S

    # -- as time passes ---------------------------------------------------------------------------

    def churn(self, duration_s: float) -> None:
        """From now on people come and go as they do on Golem, for so long."""
        for resident in self.residents.values():
            self._goes_after(resident, self._churn.remaining_s())
        for number, at_s in enumerate(self._churn.arrivals_s(duration_s)):
            self.world.after(at_s, self._newcomer, f"newcomer{number}")

    def partition(self, share: float) -> None:
        """Cut a random part of the town off from the rest."""
        for node in self.world.nodes.values():
            node.side = int(self._rng.random() < share)

    def heal(self) -> None:
        for node in self.world.nodes.values():
            node.side = 0

    @property
    def workers(self) -> int:
        return sum(resident.in_buckets > 0 for resident in self.residents.values())

    def members(self, resident: Resident) -> list[str]:
        """The names of the buckets that a worker is in."""
        names = [bucket.name for bucket in self.buckets[: resident.in_buckets]]
        return [*names, RARE] if resident.rare else names

    def _newcomer(self, name: str) -> None:
        natted = self._rng.random() < self.plan.clients
        liar = not natted and self._rng.random() < self.plan.liars
        in_buckets = 0 if natted else self.plan.buckets
        if self.plan.geometry == "nested" and not natted:
            in_buckets = 1
            while in_buckets < self.plan.buckets and self._rng.random() < 0.5:
                in_buckets += 1
        node = self._node(name, self._some_gates(), liar=liar)
        if natted:
            self.world.undialable.add(name)
        self.came += 1
        resident = Resident(node, node.identity.key, in_buckets, rare=False)
        self._come(resident)
        self._goes_after(resident, self._churn.session_s())

    def _come(self, resident: Resident) -> None:
        self.residents[resident.node.identity.peer_id] = resident
        self.world.wake(resident.node)
        if resident.in_buckets:
            self.world.deliver(resident.node, machine(resident.in_buckets, rare=resident.rare))
        self.world.after(SETTLED_AFTER_S, self._settles, resident)

    def _settles(self, resident: Resident) -> None:
        if not resident.node.alive:
            return
        self._enters(resident)
        for name in self.members(resident):
            self.registers[name].add(resident.key)

    def _enters(self, resident: Resident) -> None:
        resident.settled = True
        resident.place = len(self.settled)
        self.settled.append(resident)

    def _goes_after(self, resident: Resident, delay_s: float) -> None:
        if delay_s != float("inf"):
            self.world.after(delay_s, self._goes, resident, self._churn.crashes())

    def _goes(self, resident: Resident, crashes: bool) -> None:
        del self.residents[resident.node.identity.peer_id]
        if resident.settled:
            last = self.settled.pop()
            if last is not resident:
                self.settled[resident.place] = last
                last.place = resident.place
            for name in self.members(resident):
                self.registers[name].remove(resident.key)
        if crashes:
            self.crashed += 1
            self.world.vanish(resident.node)
        else:
            self.left += 1
            resident.node.leave()

    def _some_gates(self) -> list[SimNode]:
        return self._rng.sample(self._gates, GATES_KNOWN)

    def _node(self, name: str, gates: list[SimNode], *, liar: bool = False) -> SimNode:
        site = self._rng.randrange(self._sites)
        # Gates, and those who answer with lies, are dialled.
        at_home = None if liar or gates is self._gates else self.homes
        return self.world.add(
            name,
            gates=tuple(gates),
            site=site,
            public=True,
            router=None if at_home is None else at_home.router(),
            disguise=lying(self.plan.seed, name) if liar else None,
            asleep=True,
        )
