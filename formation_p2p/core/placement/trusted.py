"""The gate of trust: workers that this node trusts too little get none of its work."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.placement.candidate import Candidate, TaskView
from formation_p2p.core.placement.policy import Policy
from formation_p2p.core.refusals import Distrusted
from formation_p2p.core.resources.bounds import shown
from formation_p2p.core.units import format_milli, parse_milli

# As in core/trust/reputation.py: the trust of an unknown worker, and the least to be given work.
STRANGER_MILLI: Final = 500
EXECUTE_MILLI: Final = 300


@dataclass(frozen=True, slots=True)
class Trusted(Policy):
    """Admits workers with this much trust, and ranks none. Raises InvalidInput."""

    least_milli: int = EXECUTE_MILLI

    def __post_init__(self) -> None:
        if type(self.least_milli) is not int:
            why = f"{shown(self.least_milli)} is not a whole number of thousandths"
            raise InvalidInput("policy", f"{why}; write Trusted(300), or trust>=0.3")
        if not 0 <= self.least_milli <= 1000:
            raise InvalidInput("policy", "trust is from 0 to 1; write it like trust>=0.3")

    def admit(self, task: TaskView, candidate: Candidate) -> Distrusted | None:
        trust_milli = trust_in(candidate)
        enough = trust_milli >= self.least_milli
        return None if enough else Distrusted(trust_milli, self.least_milli)

    def __str__(self) -> str:
        return f"trust>={format_milli(self.least_milli)}"


def trust_in(candidate: Candidate) -> int:
    """In thousandths; that of a stranger where trust is not asked for."""
    return STRANGER_MILLI if candidate.trust_milli is None else candidate.trust_milli


def trusted_from(least: str) -> Trusted:
    """Of `trust>=0.3`, the policy for the text after the sign. Raises InvalidInput."""
    try:
        least_milli = parse_milli(least)
    except ValueError as problem:
        raise InvalidInput("policy", f"trust: {problem}") from None
    return Trusted(least_milli)
