"""The built-in policies that need few lines: `scored` and `xor` have files of their own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.keyspace import KEY_BITS, Key
from formation_p2p.core.refusals import Distrusted, Infeasible
from formation_p2p.core.units import GIB, format_milli, parse_milli
from formation_p2p.machine.core.bounds import shown
from formation_p2p.machine.core.capability import idle
from formation_p2p.machine.core.fits import GpuClaim, claims_on
from formation_p2p.machine.core.gpu import WHOLE_GPU_MILLI
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.placement.core.candidate import Candidate, TaskView, free_part, task_part
from formation_p2p.placement.core.fragmentation import SCARCITY_MILLI, best_fit, by_scarcity
from formation_p2p.placement.core.policy import NO_SCORE, Peers, Policy, Score, Term, scored
from formation_p2p.workload.core.mix import Mix, merged

# As in trust/core/reputation.py: the trust of an unknown worker, and the least to be given work.
STRANGER_MILLI: Final = 500
EXECUTE_MILLI: Final = 300


@dataclass(frozen=True, slots=True)
class Trusted(Policy):
    """The gate of trust: workers that this node trusts less get none of its work. It ranks none.
    Raises InvalidInput."""

    least_milli: int = EXECUTE_MILLI

    def __post_init__(self) -> None:
        if type(self.least_milli) is not int:
            why = f"{shown(self.least_milli)} is not a whole number of thousandths"
            raise InvalidInput("policy", f"{why}; write Trusted(300), or trust>=0.3")
        if not 0 <= self.least_milli <= 1000:
            raise InvalidInput("policy", "trust is from 0 to 1; write it like trust>=0.3")

    def admit(self, task: TaskView, candidate: Candidate) -> Distrusted | None:
        trust_milli = trust_in(candidate)
        enough = trust_milli >= self.least_milli
        return None if enough else Distrusted(trust_milli, self.least_milli)

    def __str__(self) -> str:
        return f"trust>={format_milli(self.least_milli)}"


def trust_in(candidate: Candidate) -> int:
    """In thousandths; that of a stranger where trust is not asked for."""
    return STRANGER_MILLI if candidate.trust_milli is None else candidate.trust_milli


def trusted_from(least: str) -> Trusted:
    """Of `trust>=0.3`, the policy for the text after the sign. Raises InvalidInput."""
    try:
        least_milli = parse_milli(least)
    except ValueError as problem:
        raise InvalidInput("policy", f"trust: {problem}") from None
    return Trusted(least_milli)


# As many as one answer of discovery has (MAX_PROVIDERS). Among the nearest 16 the worst of 400
# networks of 50 workers has 1.7 times the mean at the busiest, among 32 it has 1.47.
NEAREST: Final = 32
# Of a lot's 256 bits those that a float holds exactly.
_BITS: Final = 52
_ALL_BITS: Final = (1 << KEY_BITS) - 1


def lot(task: Key, worker: Key) -> int:
    """The lot of a worker for a task, of 256 bits: the highest wins. A product of two odd hashes
    is as even as a third hash would be, at a tenth of its cost."""
    return (task | 1) * (worker | 1) & _ALL_BITS


def rendezvous(task: Key, workers: Iterable[PeerId]) -> PeerId | None:
    """The worker with the highest lot; None where there are no workers.

    Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998.
    """
    drawn = {lot(task, key_of_peer(worker)): worker for worker in workers}
    return drawn[max(drawn)] if drawn else None


@dataclass(frozen=True, slots=True)
class Balanced(Policy):
    """Even shares: by lot among the 32 nearest, then the others by distance.

    By XOR alone a worker's share follows the gap around its key. Here each of the nearest draws a
    lot for each task, and the highest gets it: as deterministic, and a worker that joins or leaves
    moves its own tasks and hardly any others. The busiest of 50 workers has 1.24 times the mean,
    where it has 3.3 times by XOR; docs/explanation/performance.md has the figures of larger
    networks.
    """

    def scores(self, task: TaskView, candidates: Sequence[Candidate]) -> Sequence[Score]:
        near = sorted(candidates, key=lambda each: each.distance(task))[:NEAREST]
        scores = {each.peer_id: _drawn(task, each) for each in near}
        return [scores.get(each.peer_id, NO_SCORE) for each in candidates]

    def home(self, key: Key, workers: Peers) -> PeerId | None:
        return rendezvous(key, workers.nearest_few(key, NEAREST))

    def __str__(self) -> str:
        return "balanced"


def _drawn(task: TaskView, candidate: Candidate) -> Score:
    """Above 0, the score of the workers beyond the nearest."""
    drawn = lot(task.key, key_of_peer(candidate.peer_id))
    return scored([Term("lot", ((drawn >> KEY_BITS - _BITS) + 1) / (1 << _BITS))])


# Of units of work a core has 1, a GiB of GPU memory 25, of memory 0.1 and of storage 0.01. Source:
# Hypha, its evaluator, where they are floats. Here each is in thousandths, so that a weight is an
# integer: of a core (which has 1000 itself) and of a byte.
_CPU_MILLI: Final = GIB
_GPU_BYTE: Final = 25_000
_MEMORY_BYTE: Final = 100
_STORAGE_BYTE: Final = 10
ONE_UNIT: Final = 1000 * GIB
"""The weight of one core."""


def weight(
    *, cpu_milli: int = 0, gpu_bytes: int = 0, memory_bytes: int = 0, storage_bytes: int = 0
) -> int:
    """Exact; divide by ONE_UNIT for units."""
    return (
        cpu_milli * _CPU_MILLI
        + gpu_bytes * _GPU_BYTE
        + memory_bytes * _MEMORY_BYTE
        + storage_bytes * _STORAGE_BYTE
    )


def weight_of(needs: Requirements, gpus: Sequence[GpuClaim]) -> int:
    """The weight of what a task takes of a worker, with these parts of its GPUs."""
    return weight(
        cpu_milli=needs.cpu_milli,
        gpu_bytes=sum(claim.memory_bytes for claim in gpus),
        memory_bytes=needs.memory_bytes,
        storage_bytes=needs.storage_bytes,
    )


@dataclass(frozen=True, slots=True)
class Cheapest(Policy):
    """By the cost of an hour of the task: the worker's price, times the weight of what it takes.
    A price is in millionths, for an hour of one unit.

    A task that asks for a GPU with 10 GiB takes all of it: a device with 80 GiB, at the same price
    for a unit, costs eight times as much. Twice the lowest cost is half the score, so that a very
    dear worker changes nothing for the others. Prices above the job's `max_price_micro`, which is
    never sent to workers, are left out before.
    """

    def scores(self, task: TaskView, candidates: Sequence[Candidate]) -> Sequence[Score]:
        costs = [_cost(task, each) for each in candidates]
        lowest = min(costs, default=0)
        # As if everything cost a millionth more: prices differ in their scores also beside a worker
        # that asks nothing.
        more = weight_of(task.needs, ())
        return [
            scored([Term("price", (lowest + more) / (cost + more), shown=_an_hour(cost))])
            for cost in costs
        ]

    def __str__(self) -> str:
        return "cheapest"


def _an_hour(cost: int) -> str:
    """For people, to three digits."""
    return f"{Decimal(f'{cost / ONE_UNIT / 1e6:.3g}'):f} an hour"


def _cost(task: TaskView, candidate: Candidate) -> int:
    """In millionths, times ONE_UNIT. Exact: small tasks differ by less than a millionth."""
    profile = candidate.profile
    gpus = claims_on(task.needs, profile.capability, profile.capacity)
    if isinstance(gpus, Infeasible):  # what it would take of a worker that is idle
        gpus = claims_on(task.needs, profile.capability, idle(profile.capability))
    return profile.price_micro * weight_of(task.needs, () if isinstance(gpus, Infeasible) else gpus)


# The nearest of those with room; docs/explanation/performance.md says what more would bring.
CANDIDATES: Final = 16


@dataclass(frozen=True, slots=True)
class Packed(Policy):
    """The worker whose GPUs a task would fragment least, for the tasks that the network has seen:
    its own profile and their mix decide, where what only some of the candidates' devices may run
    counts for more, so that a handful of candidates is enough.

    0.5 where a task would leave fragments as they are and nothing free; 0.25 with a whole GPU
    more in fragments, 0.75 with one less; 0 for a worker without room.
    """

    def scores(self, task: TaskView, candidates: Sequence[Candidate]) -> Sequence[Score]:
        roomy = (each for each in candidates if each.lacks(task) is None)
        nearest = sorted(roomy, key=lambda each: each.distance(task))[:CANDIDATES]
        seen = merged(each.profile.mix for each in nearest)
        mix = by_scarcity(seen, (each.profile.capability for each in nearest))
        weight = SCARCITY_MILLI * seen.weight
        scores = {each.peer_id: _fitting(task, each, mix, weight) for each in nearest}
        return [scores.get(each.peer_id, NO_SCORE) for each in candidates]

    @property
    def seeks_room(self) -> bool:
        return True

    def __str__(self) -> str:
        return "packed"


def _fitting(task: TaskView, candidate: Candidate, mix: Mix, weight: int) -> Score:
    profile = candidate.profile
    fit = best_fit(task.needs, profile.capability, profile.capacity, mix)
    assert not isinstance(fit, Infeasible), "only those with room are scored"
    above, below = fit.cost(weight)
    # A division of integers is the same on any machine, as no exponential is.
    value = 0.5 - 0.5 * (above / (WHOLE_GPU_MILLI * below + abs(above)))
    return scored([Term("fragments", value)])


@dataclass(frozen=True, slots=True)
class Spread(Policy):
    """The emptiest worker first: the one with the fewest of our attempts for its size.

    Its load is what it announced, which includes the work of others and may be a minute old, or
    what this node has in flight there, the larger of the two: a full machine has half the score.
    """

    def scores(self, task: TaskView, candidates: Sequence[Candidate]) -> Sequence[Score]:
        scores = []
        for each in candidates:
            able, free = each.profile.capability, each.profile.capacity
            ours = each.queue * task_part(task.needs, able)
            full = max(ours, 1 - free_part(task.needs, able, free))
            scores.append(scored([Term("room", 1 / (1 + full))]))
        return scores

    def __str__(self) -> str:
        return "spread"
