"""How a worker makes sure that nothing runs under a lease that has ended.

Every `Fence` ends in exactly one `Fenced`, within a bounded time, since it kills. Until then
the lease's capacity is not offered to anybody.
"""

from __future__ import annotations

from dataclasses import dataclass

from formation_p2p.core.effects import Effect


@dataclass(frozen=True, slots=True)
class Fence(Effect):
    """End everything that runs under a lease, what is kept warm for it too."""

    lease_id: str


@dataclass(frozen=True, slots=True)
class Fenced:
    """Nothing runs under the lease any more."""

    lease_id: str
