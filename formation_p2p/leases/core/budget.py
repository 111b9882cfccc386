"""How much of a worker each scope holds: its leases, counted scope by scope."""

from __future__ import annotations

from collections.abc import Callable, Collection

from formation_p2p.core.errors import ensure
from formation_p2p.core.identity import PeerId
from formation_p2p.core.refusals import Denied, Infeasible
from formation_p2p.workload.core.scope import Scope, ScopeShares


class Budget:
    """Of a machine with `cpu_milli`. `scope_of` says how near the bearer of a grant belongs."""

    def __init__(
        self, shares: ScopeShares, cpu_milli: int, scope_of: Callable[[bytes, PeerId], Scope]
    ) -> None:
        self._shares = shares
        self._cpu_milli = cpu_milli
        self._scope_of = scope_of
        self._used_milli = [0] * len(Scope)
        self._leases: dict[str, tuple[Scope, int]] = {}

    def refusal(
        self, grant: bytes, peer_id: PeerId, needed_milli: int
    ) -> Denied | Infeasible | None:
        """Why a peer may have no lease of so many milli-cores, none at all or none more. Its grant
        has been checked."""
        scope = self._scope_of(grant, peer_id)
        used_milli = self._used_milli[scope]
        if not self._shares.allows(scope):
            return Denied("submit", f"this machine takes no tasks of scope {scope}")
        if self._shares.has_room(scope, self._cpu_milli, used_milli, needed_milli):
            return None
        left_milli = self._shares.left_milli(scope, self._cpu_milli, used_milli)
        return Infeasible(f"share.{scope}", needed_milli, left_milli)

    def opened(self, lease_id: str, grant: bytes, peer_id: PeerId, cpu_milli: int) -> None:
        """A lease holds so much, until it is closed."""
        scope = self._scope_of(grant, peer_id)
        self._leases[lease_id] = (scope, cpu_milli)
        self._used_milli[scope] += cpu_milli

    def closed(self, lease_id: str) -> None:
        scope, cpu_milli = self._leases.pop(lease_id, (Scope.COMMONS, 0))
        self._used_milli[scope] -= cpu_milli

    def validate(self, held: Collection[str]) -> None:
        """Raises InvariantBroken where what a scope uses is not the sum of its leases, or where
        these are not those `held`."""
        ensure(self._leases.keys() == set(held), "the budget counts other leases")
        used_milli = [0] * len(Scope)
        for scope, cpu_milli in self._leases.values():
            used_milli[scope] += cpu_milli
        ensure(used_milli == self._used_milli, "a scope uses another sum")
