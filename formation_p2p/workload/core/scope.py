"""How far a task may go: the circles that two peers share, and a machine's share for each. And how
the workers for a task are looked for.

A peer's grant names its cell, organisation and federation. The smallest circle that two peers share
is the scope between them:

| scope | peers |
| --- | --- |
| local | the node itself |
| cell | of the same cell, in the same organisation and federation |
| org | of the same organisation, in the same federation |
| federation | of the same federation |
| commons | all others of the network |

A name counts inside the next larger circle alone: two organisations may each have a `kitchen`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Final, Self

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import format_milli, parse_milli
from formation_p2p.machine.core.bounds import LABEL, check_amount, shown

# All of a machine, in thousandths.
WHOLE_MILLI: Final = 1000


class Scope(IntEnum):
    """From the smallest circle to the widest."""

    LOCAL = 0
    CELL = 1
    ORG = 2
    FEDERATION = 3
    COMMONS = 4

    def __str__(self) -> str:
        return self.name.lower()


def parse_scope(text: str) -> Scope:
    """Raises InvalidInput."""
    for scope in Scope:
        if text == str(scope):
            return scope
    raise InvalidInput("scope", f"{shown(text)} is none of {', '.join(map(str, Scope))}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The circles of a peer; an empty name is an unknown one. Raises InvalidInput."""

    cell: str = ""
    org: str = ""
    federation: str = ""

    def __post_init__(self) -> None:
        for field in ("cell", "org", "federation"):
            name = getattr(self, field)
            # As the values of labels are, which people mix with them.
            if name != "" and (not isinstance(name, str) or LABEL.fullmatch(name) is None):
                problem = "is not a name; use up to 63 letters, digits, dots, _ and -"
                raise InvalidInput(field, f"{shown(name)} {problem}")


NOWHERE: Final = Place()


def scope_between(mine: Place, theirs: Place) -> Scope:
    """The smallest circle that two different peers share. (Of a peer with itself it is LOCAL.)"""
    if mine.federation != theirs.federation:
        return Scope.COMMONS
    if mine.org == theirs.org:
        if mine.cell and mine.cell == theirs.cell:
            return Scope.CELL
        if mine.org:
            return Scope.ORG
    return Scope.FEDERATION if mine.federation else Scope.COMMONS


@dataclass(frozen=True, slots=True)
class ScopeShares:
    """How much of a machine's cores the leases of each scope may have together, in thousandths; 0
    closes it to that scope. Raises InvalidInput.

    They are limits, not reservations, and may add up to more than the whole: each scope is counted
    by itself.
    """

    milli: tuple[int, ...] = (WHOLE_MILLI,) * len(Scope)

    def __post_init__(self) -> None:
        if len(self.milli) != len(Scope):
            raise InvalidInput("share", f"there is one for each of {', '.join(map(str, Scope))}")
        for share in self.milli:
            check_amount("share", share, 0, WHOLE_MILLI)

    @classmethod
    def parse(cls, items: Iterable[str]) -> Self:
        """Reads `commons=0.25`, `cell=1`, …; scopes that are not named have the whole machine."""
        named: dict[Scope, int] = {}
        for item in items:
            name, _, amount = item.partition("=")
            try:
                scope, share = parse_scope(name), parse_milli(amount)
            except InvalidInput as unknown:
                raise InvalidInput("share", unknown.problem) from None
            except ValueError:
                why = f"{shown(item)} is not a share; write it like commons=0.25, or 1 for all"
                raise InvalidInput("share", why) from None
            if scope in named:
                raise InvalidInput("share", f"{scope} is given twice; give it once")
            if share > WHOLE_MILLI:
                raise InvalidInput("share", f"{shown(item)} is more than all; write 1 or less")
            named[scope] = share
        return cls(tuple(named.get(scope, WHOLE_MILLI) for scope in Scope))

    def allows(self, scope: Scope) -> bool:
        """Whether the machine works for it at all."""
        return self.milli[scope] > 0

    def left_milli(self, scope: Scope, cpu_milli: int, used_milli: int) -> int:
        """The cores left for a scope whose leases have `used_milli` of a machine's `cpu_milli`."""
        return max(cpu_milli * self.milli[scope] // WHOLE_MILLI - used_milli, 0)

    def has_room(self, scope: Scope, cpu_milli: int, used_milli: int, needed_milli: int) -> bool:
        """Whether one more lease fits. A share of the whole machine is not a limit: free capacity
        and preemption decide elsewhere. The first lease of an open scope always fits: a small
        share must not mean that none ever does."""
        if used_milli == 0 or self.milli[scope] == WHOLE_MILLI:
            return self.allows(scope)
        return needed_milli <= self.left_milli(scope, cpu_milli, used_milli)

    def __str__(self) -> str:
        limited = [scope for scope in Scope if self.milli[scope] < WHOLE_MILLI]
        return ", ".join(f"{scope}={format_milli(self.milli[scope])}" for scope in limited)


EVERYTHING: Final = ScopeShares()


class Find(StrEnum):
    """How workers are looked for, as a person asks for it.

    | find | what is done |
    | --- | --- |
    | dht | the shards of the DHT are read, and the workers found are asked |
    | notice | a want is left with the peers that hold the shard; what they know is asked later |
    | dht+notice | both at once |
    | announce | a want is spread over some hundred peers; the DHT is read where none offers |
    """

    DHT = "dht"
    NOTICE = "notice"
    DHT_NOTICE = "dht+notice"
    ANNOUNCE = "announce"

    @property
    def leaves_notice(self) -> bool:
        return self in (Find.NOTICE, Find.DHT_NOTICE)


def parse_find(text: str) -> Find:
    """Raises InvalidInput."""
    for find in Find:
        if text == find.value:
            return find
    raise InvalidInput("find", f"{shown(text)} is none of {', '.join(Find)}")
