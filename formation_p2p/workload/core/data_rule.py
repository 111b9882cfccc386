"""Who may read data, and where its bytes may be: a rule that a reference carries.

A reader is inside where the charter attests that he is in the rule's region, and where he shares
the rule's scope with the place of the owner. Each node that holds such data enforces it; what a
task makes of it has the same rule. A node that hands data to peers outside breaks its word, as one
that published it would.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Self

from formation_p2p.core.errors import InvalidInput
from formation_p2p.machine.core.bounds import LABEL, shown
from formation_p2p.workload.core.scope import NOWHERE, Place, Scope, scope_between

# What holds of several rules: a circle first, for the parties of a job may be in none.
_NARROWEST: Final = (Scope.CELL, Scope.ORG, Scope.FEDERATION, Scope.LOCAL, Scope.COMMONS)


@dataclass(frozen=True, slots=True)
class DataRule:
    """`scope` is the widest circle that reads it, around `place`, which is the owner's; LOCAL is
    for the parties of its job alone: the workers that its owner leases, and at each of them those
    for whose leases it is there. `parties`: of that circle, too, the parties alone. `region` empty
    is anywhere. Raises InvalidInput."""

    scope: Scope = Scope.COMMONS
    place: Place = NOWHERE
    region: str = ""
    parties: bool = False

    def __post_init__(self) -> None:
        if self.region != "" and (
            not isinstance(self.region, str) or LABEL.fullmatch(self.region) is None
        ):
            problem = "is not a name; use up to 63 letters, digits, dots, _ and -"
            raise InvalidInput("region", f"{shown(self.region)} {problem}")

    def refuses(self, place: Place, region: str, *, is_party: bool) -> str | None:
        """Why a reader at this place, and in this region as the charter has it, is outside."""
        if self.region and region != self.region:
            where = f"in {region}" if region else "in no region"
            return f"keeps it in the region {self.region}, and the charter has you {where}"
        if self.is_for_parties and not is_party:
            return "keeps it for the parties of its job"
        if self.scope != Scope.LOCAL and scope_between(self.place, place) > self.scope:
            return f"keeps it within the {self.scope} of its owner"
        return None

    @property
    def is_for_parties(self) -> bool:
        """For the parties of its job alone, whatever else holds."""
        return self.parties or self.scope == Scope.LOCAL

    @property
    def has_circle(self) -> bool:
        return self.scope not in (Scope.LOCAL, Scope.COMMONS)

    def pack(self) -> list[Any]:
        """For CBOR."""
        place = self.place
        packed = [int(self.scope), [place.cell, place.org, place.federation], self.region]
        return [*packed, True] if self.parties else packed

    @classmethod
    def unpack(cls, value: object) -> Self:
        """Raises InvalidInput for anything else that a stranger sent."""
        match value:
            case [int(scope), [str(cell), str(org), str(federation)], str(region), *parties] if (
                type(scope) is int
                and 0 <= scope <= max(Scope)
                and len(parties) <= 1
                and all(each is True for each in parties)
            ):
                place = Place(cell=cell, org=org, federation=federation)
                return cls(Scope(scope), place, region, bool(parties))
            case _:
                raise InvalidInput("rule", "is not [scope, place, region]")


# For all members, whatever the charter says of data without a rule.
OPEN: Final = DataRule()


def combined(rules: Iterable[DataRule]) -> DataRule | None:
    """What holds for what is made of data with these rules; None without any, or where all members
    may read all of it: that says nothing of what is made of it. Raises InvalidInput where no reader
    could be inside all of them."""
    whole: DataRule | None = None
    for rule in rules:
        if rule == OPEN:
            continue
        if whole is None:
            whole = rule
            continue
        if whole.region and rule.region and whole.region != rule.region:
            problem = f"some are kept in {whole.region} and others in {rule.region}"
            raise InvalidInput("inputs", f"{problem}: no worker may read both; make two jobs")
        widest = max(whole.scope, rule.scope)
        apart = scope_between(whole.place, rule.place)
        if whole.has_circle and rule.has_circle and apart > widest:
            problem = "some are kept within the circle of one owner and others within another's"
            raise InvalidInput("inputs", f"{problem}: no worker may read both; make two jobs")
        narrow = min(whole, rule, key=lambda each: _NARROWEST.index(each.scope))
        parties = whole.is_for_parties or rule.is_for_parties
        parties = parties and narrow.scope != Scope.LOCAL
        whole = DataRule(narrow.scope, narrow.place, whole.region or rule.region, parties)
    return whole
