"""The gate of trust: workers that this node trusts too little get none of its work."""

from __future__ import annotations

import re
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

_TEXT: Final = re.compile(r"trust\s*>=\s*(\S+)")


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
        known = candidate.trust_milli
        trust_milli = STRANGER_MILLI if known is None else known
        if trust_milli >= self.least_milli:
            return None
        return Distrusted(trust_milli, self.least_milli)

    def __str__(self) -> str:
        return f"trust>={format_milli(self.least_milli)}"


def parse_trusted(text: str) -> Trusted | None:
    """The policy of `trust>=0.3`; None for another text. Raises InvalidInput."""
    match = _TEXT.fullmatch(text.strip())
    if match is None:
        return None
    try:
        least_milli = parse_milli(match[1])
    except ValueError as problem:
        raise InvalidInput("policy", f"trust: {problem}") from None
    return Trusted(least_milli)
