"""Who may read data, and where its bytes may be: a rule that a reference carries.

A reader is inside where the charter attests that he is in the rule's region, and where he shares
the rule's scope with the place of the owner. Each node that holds such data enforces it; what a
task makes of it has the same rule. A node that hands data to peers outside breaks its word, as one
that published it would.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.resources.bounds import LABEL, shown
from formation_p2p.core.workload.scope import NOWHERE, Place, Scope, scope_between


@dataclass(frozen=True, slots=True)
class DataRule:
    """`scope` is the widest circle that reads it, around `place`, which is the owner's; LOCAL is
    for the parties of its job alone: those that a node has a lease with, or of. `region` empty is
    anywhere. Raises InvalidInput."""

    scope: Scope = Scope.COMMONS
    place: Place = NOWHERE
    region: str = ""

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
        if self.scope == Scope.COMMONS:
            return None
        if self.scope == Scope.LOCAL:
            return None if is_party else "keeps it for the parties of its job"
        if scope_between(self.place, place) > self.scope:
            return f"keeps it within the {self.scope} of its owner"
        return None

    def pack(self) -> list[Any]:
        """For CBOR."""
        place = self.place
        return [int(self.scope), [place.cell, place.org, place.federation], self.region]

    @classmethod
    def unpack(cls, value: object) -> Self:
        """Raises InvalidInput for anything else that a stranger sent."""
        match value:
            case [int(scope), [str(cell), str(org), str(federation)], str(region)] if type(
                scope
            ) is int and 0 <= scope <= max(Scope):
                place = Place(cell=cell, org=org, federation=federation)
                return cls(Scope(scope), place, region)
            case _:
                raise InvalidInput("rule", "is not [scope, place, region]")


def combined(rules: Iterable[DataRule]) -> DataRule | None:
    """What holds for what is made of data with these rules; None without any. Raises InvalidInput
    where no reader could be inside all of them."""
    whole: DataRule | None = None
    for rule in rules:
        if whole is None:
            whole = rule
            continue
        if whole.region and rule.region and whole.region != rule.region:
            problem = f"some are kept in {whole.region} and others in {rule.region}"
            raise InvalidInput("inputs", f"{problem}: no worker may read both; make two jobs")
        narrow = min(whole, rule, key=lambda each: each.scope)
        whole = DataRule(narrow.scope, narrow.place, whole.region or rule.region)
    return whole
