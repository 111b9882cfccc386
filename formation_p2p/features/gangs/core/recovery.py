"""What becomes of the parts of a member that is lost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

from formation_p2p.core.errors import InvalidInput, Unplaceable
from formation_p2p.features.gangs.core.part import MemberCapacity
from formation_p2p.features.gangs.core.partition import Move, Partition, repartition
from formation_p2p.machine.core.bounds import shown


@dataclass(frozen=True, slots=True)
class Loss:
    """The member of `rank` is gone, of those that have the parts; `living` are the others.
    `checkpoints` are the newest that are held of its parts, by part: a number that grows. Parts
    without one have saved nothing."""

    rank: int
    partition: Partition
    living: tuple[MemberCapacity, ...]
    checkpoints: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Replace:
    """Another worker takes the rank. The parts that `checkpoints` names go on from these; others
    begin anew."""

    rank: int
    checkpoints: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Recompute:
    """Another worker takes the rank and does its parts from their beginning."""

    rank: int


@dataclass(frozen=True, slots=True)
class TakeOver:
    """The members that are left take its parts: none is waited for. Parts go on from these
    `checkpoints`; others begin anew."""

    partition: Partition
    moves: tuple[Move, ...]
    checkpoints: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GiveUp:
    """The gang ends. `reason` is for people."""

    reason: str


Remedy = Replace | Recompute | TakeOver | GiveUp


class Recovery(Protocol):
    """Decides at each loss. Pure, and at once."""

    def remedy(self, loss: Loss) -> Remedy: ...


@dataclass(frozen=True, slots=True)
class FromCheckpoint:
    """Replace the member, and go on from what it saved last."""

    def remedy(self, loss: Loss) -> Remedy:
        return Replace(loss.rank, loss.checkpoints)


@dataclass(frozen=True, slots=True)
class FromBeginning:
    """Replace the member, and do its parts again."""

    def remedy(self, loss: Loss) -> Remedy:
        return Recompute(loss.rank)


@dataclass(frozen=True, slots=True)
class AmongTheRest:
    """Divide its parts among those that are left, which go on from what it saved last; where they
    have no room, replace it."""

    def remedy(self, loss: Loss) -> Remedy:
        if not loss.living:
            return Replace(loss.rank, loss.checkpoints)
        try:
            new = repartition(loss.partition, loss.living)
        except Unplaceable:
            return Replace(loss.rank, loss.checkpoints)
        return TakeOver(new.partition, new.moves, loss.checkpoints)


@dataclass(frozen=True, slots=True)
class AtOnce:
    """End the gang."""

    def remedy(self, loss: Loss) -> Remedy:
        return GiveUp(f"the member of rank {loss.rank} is lost")


Recoveries = Mapping[str, Callable[[], Recovery]]

RECOVERIES: Final[Recoveries] = {
    "checkpoint": FromCheckpoint,
    "recompute": FromBeginning,
    "repartition": AmongTheRest,
    "end": AtOnce,
}


def parse_recovery(text: str | Recovery, recoveries: Recoveries = RECOVERIES) -> Recovery:
    """Raises InvalidInput."""
    found = text
    if isinstance(text, str):
        if text not in recoveries:
            known = ", ".join(recoveries)
            raise InvalidInput("recovery", f"{shown(text)} is not one of {known}")
        found = recoveries[text]()
    if isinstance(found, str) or not callable(getattr(found, "remedy", None)):
        raise InvalidInput("recovery", f"{shown(text)} has no method remedy(loss)")
    return found


def remedy_of(recovery: Recovery, loss: Loss) -> Remedy:
    """What a strategy says, which may be anybody's, once it is checked. Raises InvalidInput."""
    said: object = recovery.remedy(loss)
    if not isinstance(said, Replace | Recompute | TakeOver | GiveUp):
        raise InvalidInput("recovery", f"{shown(said)} is not a remedy; return one of these")
    if isinstance(said, TakeOver):
        assigned, living = said.partition.assigned, {member.rank for member in loss.living}
        if assigned.keys() != loss.partition.assigned.keys() or not living.issuperset(
            assigned.values()
        ):
            wrong = "does not give each part to one of those that are left"
            raise InvalidInput("recovery", f"{type(recovery).__name__} {wrong}; mend it")
    return said
