"""Even shares: rendezvous hashing among the workers nearest to a task.

By XOR alone a worker's share follows the gap around its key: of 50 workers and 10,000 tasks the
busiest has 3.3 times the mean, and 6.5 times in the worst of 200 networks. Here each of the
nearest few draws a lot for each task, and the highest has it. That is as deterministic, and who
comes or goes takes or leaves its own tasks and hardly any others.

The nearest few are 32, as many as one answer of discovery names. In the dense parts of the key
space a worker is among the nearest few of fewer tasks, so that fewer are less even. Of 50
workers the busiest then has 1.24 times the mean, 1.47 in the worst of 400 networks; among the
nearest 16 it is 1.7 in the worst. In larger networks, where no task sees more than its nearest
32, the busiest share is 1.5 times the mean of 1,000 workers, and 1.9 of 5,000; by XOR it is 5.4
and 6.1 times.

Source: Thaler and Ravishankar, "Using name-based mappings to increase hit rates", 1998.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.keyspace import KEY_BITS, Key
from formation_p2p.core.placement.candidate import Candidate, TaskView
from formation_p2p.core.placement.nearest import Peers
from formation_p2p.core.placement.policy import NO_SCORE, Policy, Score, Term, scored

# As many as one answer of discovery has (MAX_PROVIDERS); see above.
NEAREST: Final = 32
# Of a lot's 256 bits those that a float holds exactly.
_BITS: Final = 52
_ALL_BITS: Final = (1 << KEY_BITS) - 1


def lot(task: Key, worker: Key) -> int:
    """What a worker draws for a task, of 256 bits: the highest wins. A product of two hashes, of
    which each is odd, is as even as a third hash would be, for a tenth of its cost."""
    return (task | 1) * (worker | 1) & _ALL_BITS


def rendezvous(task: Key, workers: Iterable[PeerId]) -> PeerId | None:
    """Who of the workers draws the highest lot; None of none. A hash for each of them."""
    drawn = {lot(task, key_of_peer(worker)): worker for worker in workers}
    return drawn[max(drawn)] if drawn else None


@dataclass(frozen=True, slots=True)
class Balanced(Policy):
    """By lot among the 32 nearest, then the others by distance."""

    def scores(self, task: TaskView, candidates: Sequence[Candidate]) -> Sequence[Score]:
        near = sorted(candidates, key=lambda each: each.distance(task))[:NEAREST]
        scores = {each.peer_id: _score(task, each) for each in near}
        return [scores.get(each.peer_id, NO_SCORE) for each in candidates]

    def home(self, key: Key, workers: Peers) -> PeerId | None:
        return rendezvous(key, workers.nearest_few(key, NEAREST))

    def __str__(self) -> str:
        return "balanced"


def _score(task: TaskView, candidate: Candidate) -> Score:
    """Above 0, so that nobody who is farther comes before."""
    drawn = lot(task.key, key_of_peer(candidate.peer_id))
    return scored([Term("lot", ((drawn >> KEY_BITS - _BITS) + 1) / (1 << _BITS))])
