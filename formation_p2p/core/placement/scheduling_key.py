"""The key by which tasks are grouped when they look for a worker: equal ones share leases."""

from __future__ import annotations

from typing import Final, NamedTuple

from formation_p2p.core.keyspace import Key
from formation_p2p.core.placement.candidate import TaskView
from formation_p2p.core.placement.policy import PlacementPolicy
from formation_p2p.core.placement.xor import Xor
from formation_p2p.core.resources.requirements import Requirements
from formation_p2p.core.workload.hints import NO_HINTS, Hints
from formation_p2p.core.workload.scope import Scope

NEAREST: Final = Xor()


class SchedulingKey(NamedTuple):
    """Hashable, with custom policies too: two policies are the same where they are equal.

    The maximum price, the hints that prefer workers and the policy are not sent to workers.
    """

    needs: Requirements
    priority: int = 0
    max_price_micro: int | None = None
    policy: PlacementPolicy = NEAREST
    hints: Hints = NO_HINTS
    scope: Scope = Scope.COMMONS

    def view(self, name: str, key: Key) -> TaskView:
        """A task with this scheduling key."""
        return TaskView(
            name=name,
            key=key,
            needs=self.needs,
            hints=self.hints,
            scope=self.scope,
            max_price_micro=self.max_price_micro,
        )
