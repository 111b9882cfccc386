"""`packed` as the library has it, on a handful of candidates found by XOR, in columns.

What is compared here are the very numbers of `placement/core/fragmentation.py`; a test holds both
against each other. Each machine remembers the tasks that it was asked about, and the sum of what
the candidates remember is the mix.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from formation_p2p.core.keyspace import key_of
from formation_p2p.placement.core.fragmentation import (
    IDLE_PER_FRAGMENT,
    MAX_SCARCITY,
    SCARCITY_MILLI,
)
from formation_p2p.workload.core.mix import EMPTY_MIX, MAX_SHAPES, REMEMBERED
from formation_p2p.workload.core.mix import Shape as SeenShape
from simulations.openb.cluster import Cluster, Ints
from simulations.openb.network import Found, Network, requirements
from simulations.openb.policies import Choice, Stateless
from simulations.openb.trace import Pod, Shape
from simulations.openb.wasted import Expected


class Shapes:
    """All shapes of tasks that may be seen in a run, in the library's order."""

    def __init__(self, pods: Sequence[Pod], cluster: Cluster) -> None:
        seen = {SeenShape.of(requirements(pod)) for pod in set(pods) if pod.gpus}
        self.all = sorted(seen | {shape for shape, _ in EMPTY_MIX.shapes})
        self.place = {shape: place for place, shape in enumerate(self.all)}
        self.expected = Expected.of([_shape(shape) for shape in self.all], cluster)


class Packed(Stateless):
    """`oracle`: the mix is that of all pods, instead of what candidates have seen."""

    def __init__(
        self,
        cluster: Cluster,
        network: Network,
        pods: Sequence[Pod],
        seed: int,
        candidates: int,
        *,
        oracle: bool = False,
    ) -> None:
        self._cluster, self._network = cluster, network
        self._seed, self._candidates = seed, candidates
        self.shapes = Shapes(pods, cluster)
        newcomer = np.repeat(
            [self.shapes.place[shape] for shape, _ in EMPTY_MIX.shapes],
            [count for _, count in EMPTY_MIX.shapes],
        )
        machines = len(cluster.machines)
        self._seen = np.tile(newcomer, (machines, 1))
        self._next = np.zeros(machines, np.int64)
        self._oracle = self._counted(pods) if oracle else None
        self.found = Found(np.empty(0, np.int64), 0)
        self.tasks = self.shards = 0

    def choose(self, pod: Pod) -> Choice | None:
        key = key_of(f"{self._seed}/task/{self.tasks}".encode())
        self.tasks += 1
        room = self._cluster.room(pod)
        self.found = self._network.find(pod, key, room, self._candidates)
        self.shards += self.found.shards
        machines = self.found.machines
        if not machines.size:
            return None
        machine, device = self._best(pod, machines)
        if pod.is_part:  # the machine itself says which device, by what it has seen
            device = self._best(pod, np.array([machine]))[1]
        if pod.gpus:
            self._see(pod, machines)
        return machine, device

    def _best(self, pod: Pod, machines: Ints) -> Choice:
        place, device, cost = self._costs(pod, machines, self._mix(machines))
        best = int(cost.argmin())  # of equals the nearest, as candidates are
        return int(machines[place[best]]), int(device[best])

    def _mix(self, machines: Ints) -> Ints:
        """What these have seen, as `mix.merged` has it: how often, by shape."""
        if self._oracle is not None:
            return self._oracle
        seen = self._seen[machines].ravel()
        weights = np.bincount(seen, minlength=len(self.shapes.all)).astype(np.int64)
        weights[np.argsort(-weights, kind="stable")[MAX_SHAPES:]] = 0
        return weights

    def _costs(self, pod: Pod, machines: Ints, weights: Ints) -> tuple[Ints, Ints, Ints]:
        """Every way to take it: the place in `machines`, the device, and the cost, of which less
        is better (`Fit.cost`, but for what all have below the line). Of a machine's devices that
        cost the same the fullest comes first."""
        cluster = self._cluster
        seen = np.flatnonzero(weights)
        expected, weight = self.shapes.expected.only(seen), SCARCITY_MILLI * weights.sum()
        weights = self._by_scarcity(machines, expected, weights[seen])
        place, device, after = cluster.options(machines, pod)
        free = np.concatenate([cluster.free[machines], after])
        where = np.concatenate([machines, machines[place]])
        cpu = cluster.cpu[where]
        cpu[len(machines) :] -= pod.cpu_milli
        kind = cluster.kind[where]
        used = expected.once(free, cpu, kind) + expected.full(free, cpu, kind)
        wasted = 2 * weights.sum() * free.sum(axis=1) - used @ weights
        added = wasted[len(machines) :] - wasted[: len(machines)][place]
        cost = IDLE_PER_FRAGMENT // 2 * added + weight * after.sum(axis=1)
        fullness = np.where(device < 0, 0, cluster.free[machines[place], device])
        order = np.lexsort((fullness, cost, place))
        return place[order], device[order], cost[order]

    def _by_scarcity(self, machines: Ints, expected: Expected, weights: Ints) -> Ints:
        """`fragmentation.by_scarcity`: what none of the machines may run weighs nothing."""
        devices = self._cluster.devices[machines]
        able = devices @ expected.able(self._cluster.kind[machines])
        most = SCARCITY_MILLI * MAX_SCARCITY
        times_milli = np.minimum(SCARCITY_MILLI * devices.sum() // np.maximum(able, 1), most)
        return np.where(able > 0, weights * times_milli, 0)

    def _see(self, pod: Pod, machines: Ints) -> None:
        shape = self.shapes.place[SeenShape.of(requirements(pod))]
        self._seen[machines, self._next[machines]] = shape
        self._next[machines] = (self._next[machines] + 1) % REMEMBERED

    def _counted(self, pods: Sequence[Pod]) -> Ints:
        asked = [self.shapes.place[SeenShape.of(requirements(pod))] for pod in pods if pod.gpus]
        return np.bincount(asked, minlength=len(self.shapes.all)).astype(np.int64)


def _shape(shape: SeenShape) -> Shape:
    return Shape(shape.cpu_milli, shape.gpu_share_milli, shape.gpu_count, shape.gpu_models)
