"""A weighted sum of terms, with ICN's three sets of weights as presets.

| term | 1 is | 0 is |
| --- | --- | --- |
| trust | full trust; of a stranger 0.5 | none |
| capacity | all free | nothing free of the scarcest resource |
| queue | no attempt of ours in flight | ten attempts or more |
| rtt | no round trip time | half a second, or not known |
| data | all of the task's data is there | none of it, or there is none |
| scope | this very machine | a stranger of the network |
| hints | a preferred peer or label | no hint is met; for the region alone 0.6 |
| jitter | (drawn) | (drawn) |

The jitter keeps schedulers that see the same workers from all choosing the same one. It is drawn
from SHA-256 of the task and the worker, so that a decision can be repeated.

Source: InterCooperative Network, `icn-compute`, the placement policies of its phases 16A, 16C and
after. There the worker, which gains from it, computes the score; here the scheduler does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.refusals import Distrusted
from formation_p2p.machine.core.bounds import shown
from formation_p2p.placement.core.candidate import Candidate, TaskView, free_part
from formation_p2p.placement.core.policies import Trusted, trust_in
from formation_p2p.placement.core.policy import NUMBER, Policy, Score, Term, as_weight, scored
from formation_p2p.placement.core.round_trips import nearness

# Attempts; longer queues score the same.
_LONG_QUEUE: Final = 10
# By scope, from the machine itself to the whole network, in fifteenths.
_AFFINITY: Final = (15, 12, 8, 4, 0)
_REGION: Final = 0.6
# So few that no product of a weight and a part of 1 rounds up to the weight itself.
_JITTER_BYTES: Final = 4

_GATE: Final = Trusted()


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored(Policy):
    """The weights of the terms. Raises InvalidInput unless each is in [0, 1] and one is not 0.

    A score is cut at 1, so let the weights add up to no more. Workers trusted less than 0.3 are
    left out.
    """

    trust: float = 0.0
    capacity: float = 0.0
    queue: float = 0.0
    rtt: float = 0.0
    data: float = 0.0
    scope: float = 0.0
    hints: float = 0.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        for name, given in self.weights().items():
            weight = as_weight(given)
            if not 0 <= weight <= 1:
                problem = f"the weight of {name} is {shown(given)}; write 0 to 1"
                raise InvalidInput("policy", problem)
            object.__setattr__(self, name, weight)
        if not any(self.weights().values()):
            raise InvalidInput("policy", "all weights are 0; write one at least")

    def weights(self) -> dict[str, float]:
        return {name: getattr(self, name) for name in TERMS}

    def admit(self, task: TaskView, candidate: Candidate) -> Distrusted | None:
        return _GATE.admit(task, candidate)

    def scores(self, task: TaskView, candidates: Sequence[Candidate]) -> Sequence[Score]:
        weights = {name: weight for name, weight in self.weights().items() if weight}
        return [
            scored([Term(name, _VALUES[name](task, each), weights[name]) for name in weights])
            for each in candidates
        ]

    def __str__(self) -> str:
        for name, preset in PRESETS.items():
            if self == preset:
                return f"scored({name})"
        written = (f"{name}={weight!r}" for name, weight in self.weights().items() if weight)
        return f"scored({', '.join(written)})"


TERMS: Final = tuple(field.name for field in fields(Scored))
PRESETS: Final[Mapping[str, Scored]] = {
    "16a": Scored(trust=0.4, capacity=0.3, queue=0.2, jitter=0.1),
    "16c": Scored(trust=0.25, capacity=0.2, queue=0.15, rtt=0.15, data=0.15, hints=0.1, jitter=0.1),
    "newest": Scored(
        trust=0.2, capacity=0.15, queue=0.1, rtt=0.1, data=0.1, scope=0.15, hints=0.05, jitter=0.1
    ),
}


def _hints(task: TaskView, candidate: Candidate) -> float:
    hints, labels = task.hints, dict(candidate.profile.labels)
    wanted = any(labels.get(key) == value for key, value in hints.labels)
    if wanted or hints.prefers(candidate.peer_id):
        return 1.0
    return _REGION if hints.region and labels.get("region") == hints.region else 0.0


def _jitter(task: TaskView, candidate: Candidate) -> float:
    drawn = hashlib.sha256(f"{task.name}\0{candidate.peer_id}".encode()).digest()
    return int.from_bytes(drawn[:_JITTER_BYTES], "big") / (1 << 8 * _JITTER_BYTES)


_VALUES: Final[Mapping[str, Callable[[TaskView, Candidate], float]]] = {
    "trust": lambda _, each: trust_in(each) / 1000,
    "capacity": lambda task, each: free_part(
        task.needs, each.profile.capability, each.profile.capacity
    ),
    "queue": lambda _, each: max(_LONG_QUEUE - each.queue, 0) / _LONG_QUEUE,
    "rtt": lambda _, each: nearness(each.rtt_us),
    "data": lambda _, each: min(each.local_bytes, each.data_bytes) / max(each.data_bytes, 1),
    "scope": lambda _, each: _AFFINITY[each.scope] / _AFFINITY[0],
    "hints": _hints,
    "jitter": _jitter,
}


def scored_by(*items: str) -> Scored:
    """By the name of a preset, or by weights: `trust=0.5`. Raises InvalidInput."""
    if not items:
        return PRESETS["newest"]
    if len(items) == 1 and items[0] in PRESETS:
        return PRESETS[items[0]]
    weights: dict[str, float] = {}
    for item in items:
        name, _, number = (part.strip() for part in item.partition("="))
        if name not in TERMS or not NUMBER.fullmatch(number):
            known = f"one of {', '.join(PRESETS)}, or weights of {', '.join(TERMS)}"
            why = f"{shown(item)} is not a weight; write {known}, like scored(trust=0.5, queue=0.5)"
            raise InvalidInput("policy", why)
        if name in weights:
            raise InvalidInput("policy", f"{name} is given twice; give it once")
        weights[name] = float(number)
    return Scored(**weights)
