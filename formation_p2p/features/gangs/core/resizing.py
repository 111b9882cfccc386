"""How a gang is kept at its size, and how that changes: phase by phase, each with its time; what
fails is rolled back.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.features.gangs.core.roster import MAX_MEMBERS
from formation_p2p.machine.core.bounds import check_amount
from formation_p2p.workload.core.scaling import ScalingPolicy


class Reconciler:
    """Keeps a gang at `target` members, and ends it where it has fewer than `least` for longer
    than `grace_s`. Raises InvalidInput."""

    def __init__(self, least: int, target: int, grace_s: float) -> None:
        check_amount("least", least, 1, MAX_MEMBERS)
        check_amount("target", target, least, MAX_MEMBERS)
        if not grace_s >= 0:
            raise InvalidInput("grace_s", "is less than zero; write 0 or more seconds")
        self.least = least
        self.target = target
        self.grace_s = grace_s
        self._short_since_s: float | None = None

    def reconcile(self, living: int, now_s: float) -> Reconciled:
        """What to do at so many living members."""
        if living >= self.least:
            self._short_since_s = None
        elif self._short_since_s is None:
            self._short_since_s = now_s
        short_s = 0.0 if self._short_since_s is None else now_s - self._short_since_s
        if living < self.least and short_s >= self.grace_s:
            return GraceExpired(living, self.least, self.grace_s)
        return Lacking(self.target - living) if living < self.target else Complete()


@dataclass(frozen=True, slots=True)
class Complete:
    """There are as many as there should be."""


@dataclass(frozen=True, slots=True)
class Lacking:
    """So many more are to be found; the gang goes on meanwhile."""

    members: int


@dataclass(frozen=True, slots=True)
class GraceExpired:
    """Too few for too long: the gang ends."""

    living: int
    least: int
    grace_s: float

    def __str__(self) -> str:
        few = f"it had {self.living} of at least {self.least} members for {self.grace_s:g} s"
        return f"{few}; ask for fewer, or start more workers"


Reconciled = Complete | Lacking | GraceExpired


class Phase(Enum):
    """In their order; the last three end it."""

    REQUESTED = "requested"
    VALIDATING = "validating"
    PLANNING = "planning"
    ALLOCATING = "allocating"
    PREPARING = "preparing"
    CONFIGURING = "configuring"
    VERIFYING = "verifying"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


# Of each that has a time. To prepare, a member may have to fetch an environment.
TIMEOUT_S: Final = {
    Phase.REQUESTED: 60.0,
    Phase.VALIDATING: 60.0,
    Phase.PLANNING: 120.0,
    Phase.ALLOCATING: 300.0,
    Phase.PREPARING: 600.0,
    Phase.CONFIGURING: 300.0,
    Phase.VERIFYING: 180.0,
    Phase.FINALIZING: 120.0,
}
_ORDER: Final = (*TIMEOUT_S, Phase.COMPLETED)


class ResizeFailure(Enum):
    TIMEOUT = "timeout"
    UNHEALTHY = "unhealthy"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class RolledBack:
    """The gang is to have `size` members again, and the `ranks` that came with the change are to be
    released."""

    size: int
    ranks: tuple[int, ...]
    failure: ResizeFailure
    reason: str


class Resize:
    """From one size to another, within a policy that may change meanwhile."""

    def __init__(self, size: int, target: int, now_s: float) -> None:
        self.size = size
        self.target = target
        self.phase = Phase.REQUESTED
        self.failure: RolledBack | None = None
        self._since_s = now_s
        self._joined: dict[int, None] = {}

    @property
    def is_over(self) -> bool:
        return self.phase not in TIMEOUT_S

    def advance(self, now_s: float) -> Phase:
        """The phase is done."""
        if not self.is_over:
            self.phase = _ORDER[_ORDER.index(self.phase) + 1]
            self._since_s = now_s
        return self.phase

    def joined(self, rank: int) -> None:
        """A member came for the change: it goes again where that fails."""
        self._joined[rank] = None

    def check(self, policy: ScalingPolicy, now_s: float) -> RolledBack | None:
        """What to undo, where the phase takes too long or the policy no longer allows the target.
        The change has failed then."""
        if self.is_over:
            return None
        if not policy.least <= self.target <= policy.most:
            allowed = f"{policy.least} to {policy.most} members are allowed by now"
            return self._fail(ResizeFailure.UNHEALTHY, f"{allowed}, and not {self.target}")
        timeout_s = TIMEOUT_S[self.phase]
        if now_s - self._since_s >= timeout_s:
            return self._fail(ResizeFailure.TIMEOUT, f"Timeout after {timeout_s:.0f} seconds")
        return None

    def cancel(self) -> RolledBack | None:
        """What to undo; None where it is over."""
        if self.is_over:
            return None
        return self._fail(ResizeFailure.CANCELLED, "it was cancelled", Phase.CANCELLED)

    def _fail(self, failure: ResizeFailure, reason: str, phase: Phase = Phase.FAILED) -> RolledBack:
        self.phase = phase
        self.failure = RolledBack(self.size, tuple(self._joined), failure, reason)
        return self.failure


class Resizing:
    """One change at a time."""

    def __init__(self) -> None:
        self.current: Resize | None = None

    def begin(self, size: int, target: int, now_s: float) -> Resize:
        """Raises InvalidInput while another is under way."""
        if self.current is not None and not self.current.is_over:
            under_way = f"from {self.current.size} to {self.current.target} members"
            raise InvalidInput("resize", f"one {under_way} is under way; wait for it, or cancel it")
        self.current = Resize(size, target, now_s)
        return self.current
