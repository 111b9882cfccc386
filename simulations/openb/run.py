"""One run: pods arrive in the order that a seed gives, and are placed one by one, never moved."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from simulations.openb.cluster import Cluster
from simulations.openb.network import Network
from simulations.openb.packing import Packed
from simulations.openb.policies import BestFit, Gradient, Policy, Random
from simulations.openb.trace import ARRIVALS, Trace, arrivals, typical
from simulations.openb.wasted import Expected

RANDOM, BEST_FIT, FGD, PACKED = "random", "bestfit", "fgd", "packed"
POLICIES: Final = (RANDOM, BEST_FIT, FGD, PACKED)
# Fragments are measured when so many per cent of the GPUs have been asked for.
FRAGMENTED_AT: Final = 90


@dataclass(frozen=True, slots=True)
class Plan:
    """`candidates` are those of a decision of `packed`."""

    policy: str
    seed: int
    candidates: int = 16
    by_capacity: bool = False
    oracle: bool = False


@dataclass(slots=True)
class Outcome:
    """`allocation_pct` by whole per cents of GPUs asked for, each the mean over all pods that
    round to it, as the authors have it; where none does, as just before. `shards` were read to
    find candidates, and `left` are buckets of what is free that machines left."""

    allocation_pct: dict[int, float] = field(default_factory=dict)
    fragmented_pct: float = 0.0
    placed: int = 0
    tasks: int = 0
    shards: int = 0
    left: int = 0


def run(trace: Trace, plan: Plan) -> Outcome:
    rng = random.Random(plan.seed)
    pods = arrivals(trace, rng)
    machines = list(trace.machines)
    rng.shuffle(machines)
    cluster = Cluster(machines)
    network = Network(cluster, plan.seed, by_capacity=plan.by_capacity)
    policy = _policy(trace, cluster, network, plan, rng)
    fragments = Fragments(trace, cluster)
    outcome = Outcome(tasks=len(pods))
    allocations: dict[int, list[float]] = {}
    measured: list[float] = []
    asked = allocated = 0
    for pod in pods:
        asked += pod.gpu_milli
        choice = policy.choose(pod)
        if choice is not None:
            machine, device = choice
            before = network.levels(machine)
            cluster.take(machine, pod, device)
            outcome.left += before - network.levels(machine)
            policy.placed(machine)
            allocated += pod.gpu_milli
            outcome.placed += 1
        arrived = round(100 * asked / trace.gpu_milli)
        allocations.setdefault(arrived, []).append(100 * allocated / trace.gpu_milli)
        if arrived == FRAGMENTED_AT or (arrived > FRAGMENTED_AT and not measured):
            measured.append(100 * fragments.milli() / trace.gpu_milli)
    at_least = 0.0
    for arrived in range(round(100 * ARRIVALS) + 1):
        at_least = float(np.mean(allocations.get(arrived, at_least)))
        outcome.allocation_pct[arrived] = at_least
    outcome.fragmented_pct = float(np.mean(measured))
    outcome.shards = policy.shards if isinstance(policy, Packed) else 0
    return outcome


class Fragments:
    """Of the whole cluster, as the authors measure them: by the typical pods."""

    def __init__(self, trace: Trace, cluster: Cluster) -> None:
        self._cluster = cluster
        shapes = typical(trace.pods)
        self._expected = Expected.of([shape for shape, _ in shapes], cluster)
        self._weights = np.array([weight for _, weight in shapes])

    def milli(self) -> float:
        cluster = self._cluster
        usable = self._expected.once(cluster.free, cluster.cpu, cluster.kind) @ self._weights
        return float(cluster.free.sum() - usable.sum())


def _policy(
    trace: Trace, cluster: Cluster, network: Network, plan: Plan, rng: random.Random
) -> Policy:
    if plan.policy == RANDOM:
        return Random(cluster, rng)
    if plan.policy == BEST_FIT:
        return BestFit(cluster)
    if plan.policy == FGD:
        return Gradient(cluster, typical(trace.pods))
    return Packed(cluster, network, trace.pods, plan.seed, plan.candidates, oracle=plan.oracle)
