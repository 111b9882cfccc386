"""The policies published with the trace, with all machines seen.

They are told here as their authors ran them, since it is their results that a run is held
against. Two things of theirs decide, and are in neither paper nor policy: scores are whole
numbers of 0 to 100, and of machines that score alike the first is taken, in an order that is
drawn once for a run. So the gradient, which a step of 0.04 GPUs does not tell from none, fills
one machine after the other. With ties broken at random instead, or with scores not rounded, it
allocates five per cent and one per cent of the GPUs less.
"""

from __future__ import annotations

import random
from typing import Protocol

import numpy as np
import numpy.typing as npt

from formation_p2p.machine.core.gpu import WHOLE_GPU_MILLI
from simulations.openb.cluster import NONE, Cluster, Ints
from simulations.openb.trace import Pod, Shape
from simulations.openb.wasted import Expected

Choice = tuple[int, int]
"""A machine and, for a part of a device, the device."""


class Policy(Protocol):
    def choose(self, pod: Pod) -> Choice | None:
        """Where there is room; None where there is none."""

    def placed(self, machine: int) -> None:
        """Called when a machine has taken the pod."""


class Stateless:
    def placed(self, machine: int) -> None:
        pass


class Random(Stateless):
    def __init__(self, cluster: Cluster, rng: random.Random) -> None:
        self._cluster, self._rng = cluster, rng

    def choose(self, pod: Pod) -> Choice | None:
        feasible = np.flatnonzero(self._cluster.room(pod))
        if not feasible.size:
            return None
        machine = int(self._rng.choice(feasible))
        if not pod.is_part:
            return machine, NONE
        devices = np.flatnonzero(self._cluster.free[machine] >= pod.share_milli)
        return machine, int(self._rng.choice(devices))


class BestFit(Stateless):
    """The machine with the least left, cores and GPUs together; of it the fullest device."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def choose(self, pod: Pod) -> Choice | None:
        cluster = self._cluster
        room = cluster.room(pod)
        if not room.any():
            return None
        # The largest machine's, by which both are normalised.
        cores = (cluster.cpu - pod.cpu_milli) / 128_000
        gpus = (cluster.free.sum(axis=1) - pod.gpu_milli) / 8_000
        score = np.floor((1 - (0.5 * cores + 0.5 * gpus)) * 100)
        machine = int(np.where(room, score, -np.inf).argmax())
        if not pod.is_part:
            return machine, NONE
        free = cluster.free[machine]
        return machine, int(np.where(free >= pod.share_milli, free, 2 * WHOLE_GPU_MILLI).argmin())


class Gradient:
    """Fragmentation gradient descent (FGD), by the distribution that pods are drawn from.

    Scores are kept for each shape, and looked at again where a machine has changed since.
    """

    def __init__(self, cluster: Cluster, typical: list[tuple[Shape, float]]) -> None:
        self._cluster = cluster
        self._expected = Expected.of([shape for shape, _ in typical], cluster)
        self._weights = np.array([weight for _, weight in typical])
        everyone = np.arange(len(cluster.machines))
        self._wasted = self._waste(everyone, cluster.free, cluster.cpu)
        self._changed = np.zeros(len(everyone), dtype=np.int64)
        self._now = 0
        self._known: dict[Shape, tuple[Ints, Ints, Ints]] = {}

    def choose(self, pod: Pod) -> Choice | None:
        room = self._cluster.room(pod)
        if not room.any():
            return None
        scores, devices, looked = self._known.setdefault(Shape.of(pod), self._unknown())
        stale = np.flatnonzero(room & (looked < self._changed))
        if stale.size:
            scores[stale], devices[stale] = self._scores(stale, pod)
            looked[stale] = self._changed[stale]
        machine = int(np.where(room, scores, -1).argmax())
        return machine, int(devices[machine])

    def placed(self, machine: int) -> None:
        one = np.array([machine])
        cluster = self._cluster
        self._now += 1
        self._changed[machine] = self._now
        self._wasted[machine] = self._waste(one, cluster.free[one], cluster.cpu[one])[0]

    def _unknown(self) -> tuple[Ints, Ints, Ints]:
        size = len(self._changed)
        return (
            np.zeros(size, dtype=np.int64),
            np.full(size, NONE, dtype=np.int64),
            np.full(size, -1, dtype=np.int64),
        )

    def _scores(self, machines: Ints, pod: Pod) -> tuple[Ints, Ints]:
        place, device, free = self._cluster.options(machines, pod)
        where = machines[place]
        after = self._waste(where, free, self._cluster.cpu[where] - pod.cpu_milli)
        less = (self._wasted[where] - after) / WHOLE_GPU_MILLI
        scores = (100 / (1 + np.exp(-less))).astype(np.int64)
        # Of each machine its first best device: of equal ones the first in a stable order.
        order = np.lexsort((device, -scores, place))
        firsts = order[np.unique(place[order], return_index=True)[1]]
        return scores[firsts], device[firsts]

    def _waste(self, machines: Ints, free: Ints, cpu: Ints) -> npt.NDArray[np.float64]:
        usable = self._expected.once(free, cpu, self._cluster.kind[machines])
        wasted: npt.NDArray[np.float64] = free.sum(axis=1) - usable @ self._weights
        return wasted
