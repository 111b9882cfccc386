"""How far from home a task may go: the circles that two peers share, and what a machine gives each.

A peer's grant says of which cell, organisation and federation it is. The smallest circle that two
of them share is the scope between them:

| scope | who |
| --- | --- |
| local | the node itself |
| cell | those of the same cell, in the same organisation and federation |
| org | those of the same organisation, in the same federation |
| federation | those of the same federation |
| commons | everybody else in the network |

A name counts inside the next larger circle alone: the `kitchen` of one organisation is not that of
another.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final, Self

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.resources.bounds import check_amount, shown
from formation_p2p.core.units import format_milli, parse_milli

# All of a machine, in thousandths.
WHOLE_MILLI: Final = 1000

# As the values of labels are (core/resources/bounds.py), which people mix with them.
_CIRCLE: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)


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
    """Where a peer belongs; what is empty is not said. Raises InvalidInput."""

    cell: str = ""
    org: str = ""
    federation: str = ""

    def __post_init__(self) -> None:
        for field in ("cell", "org", "federation"):
            name = getattr(self, field)
            if name != "" and (not isinstance(name, str) or _CIRCLE.fullmatch(name) is None):
                problem = "is no name; use up to 63 letters, digits, dots, _ and -"
                raise InvalidInput(field, f"{shown(name)} {problem}")


NOWHERE: Final = Place()


def scope_between(mine: Place, theirs: Place) -> Scope:
    """The smallest circle that two peers share. Of one peer with itself it is LOCAL, which its
    place cannot tell."""
    if mine.federation != theirs.federation:
        return Scope.COMMONS
    if mine.org == theirs.org:
        if mine.cell and mine.cell == theirs.cell:
            return Scope.CELL
        if mine.org:
            return Scope.ORG
    return Scope.FEDERATION if mine.federation else Scope.COMMONS


@dataclass(frozen=True, slots=True)
class Shares:
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
        """Of `commons=0.25`, `cell=1`, …; a scope that is not named has the whole machine."""
        named: dict[Scope, int] = {}
        for item in items:
            name, _, amount = item.partition("=")
            try:
                scope, share = parse_scope(name), parse_milli(amount)
            except InvalidInput as unknown:
                raise InvalidInput("share", unknown.problem) from None
            except ValueError:
                why = f"{shown(item)} is no share; write it like commons=0.25, or 1 for all"
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
        """What is left of a machine's `cpu_milli` for one scope, whose leases have `used_milli`."""
        return max(cpu_milli * self.milli[scope] // WHOLE_MILLI - used_milli, 0)

    def has_room(self, scope: Scope, cpu_milli: int, used_milli: int, needed_milli: int) -> bool:
        """Whether one more lease fits. The whole is no limit: what is free, and who gives way to
        whom, is for others to say. The first lease of a scope that is open always fits: a small
        share is no way to say that nothing ever does."""
        if used_milli == 0 or self.milli[scope] == WHOLE_MILLI:
            return self.allows(scope)
        return needed_milli <= self.left_milli(scope, cpu_milli, used_milli)

    def __str__(self) -> str:
        limited = [scope for scope in Scope if self.milli[scope] < WHOLE_MILLI]
        return ", ".join(f"{scope}={format_milli(self.milli[scope])}" for scope in limited)


EVERYTHING: Final = Shares()
