"""The input of placement: a task, what is known of a worker that might run it, and its load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.keyspace import Key, distance
from formation_p2p.core.refusals import Denied, Infeasible
from formation_p2p.machine.core.capability import Capability, Capacity, amounts
from formation_p2p.machine.core.fits import lacks_room
from formation_p2p.machine.core.gpu import WHOLE_GPU_MILLI
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.workload.core.hints import NO_HINTS, Hints
from formation_p2p.workload.core.scope import Scope

if TYPE_CHECKING:
    from formation_p2p.records.core.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskView:
    """A task to place. `name` seeds what is drawn for it, `key` is its place in the key space,
    `scope` the widest circle that it may go to."""

    name: str
    key: Key
    needs: Requirements
    hints: Hints = NO_HINTS
    scope: Scope = Scope.COMMONS
    max_price_micro: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A worker: what it has signed, and what this node itself knows of it.

    `trust_milli` is 0 to 1000, None where trust is not asked for; `rtt_us` is None where it was
    not measured. `queue` counts our attempts in flight there, and `tasks` names our tasks that run
    there. `local_bytes` of the task's `data_bytes` are there already. `scope` is the smallest
    circle that the worker and this node share. `forbidden` is why our grant is not valid there now.
    `region` is where the charter has the worker, empty for nowhere; None where it has no regions.
    """

    profile: Profile
    trust_milli: int | None = None
    rtt_us: int | None = None
    queue: int = 0
    tasks: frozenset[str] = frozenset()
    local_bytes: int = 0
    data_bytes: int = 0
    scope: Scope = Scope.COMMONS
    forbidden: Denied | None = None
    region: str | None = None

    @property
    def peer_id(self) -> PeerId:
        return self.profile.peer_id

    def distance(self, task: TaskView) -> int:
        """XOR distance from the task."""
        return distance(key_of_peer(self.profile.peer_id), task.key)

    def lacks(self, task: TaskView) -> Denied | Infeasible | None:
        """Why the task could not begin there now: our grant, or what the worker has announced."""
        profile = self.profile
        return self.forbidden or lacks_room(task.needs, profile.capability, profile.capacity)


def free_part(needs: Requirements, capability: Capability, capacity: Capacity) -> float:
    """What is free, as a part of 1, of the resource that is scarcest: of cores and memory, and of
    GPUs where the task needs any."""
    parts = [*map(_part, amounts(capacity)[:2], amounts(capability)[:2])]
    if needs.gpu_count:
        free_milli = capacity.gpu_share_milli
        parts.append(_part(free_milli, len(capability.gpus) * WHOLE_GPU_MILLI))
    return min(parts)


def task_part(needs: Requirements, capability: Capability) -> float:
    """What one such task takes, as a part of 1, of the resource that it takes most of, when the
    worker is idle."""
    gpus = _part(needs.gpu_count * needs.gpu_share_milli, len(capability.gpus) * WHOLE_GPU_MILLI)
    return max(gpus, *map(_part, amounts(needs), amounts(capability)))


def _part(amount: int, of: int) -> float:
    return amount / of if of else 0.0
