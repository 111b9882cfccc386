"""What tasks may have in common when they look for a worker. Those of equal terms share leases."""

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
    """All of it hashes, a policy of one's own too: two are the same policy where they are equal.

    What a worker may ask at the most, whom we prefer and how we rank is kept from the workers.
    """

    needs: Requirements
    priority: int = 0
    max_price_micro: int | None = None
    policy: PlacementPolicy = NEAREST
    hints: Hints = NO_HINTS
    scope: Scope = Scope.COMMONS

    def asked(self, name: str, key: Key) -> TaskView:
        """A task of these terms."""
        return TaskView(
            name=name,
            key=key,
            needs=self.needs,
            hints=self.hints,
            scope=self.scope,
            max_price_micro=self.max_price_micro,
        )
