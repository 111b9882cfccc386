"""What hints make of a candidate: out of the question, or more or less welcome."""

from __future__ import annotations

from formation_p2p.placement.candidate import Asked, Candidate
from formation_p2p.placement.policy import Term
from formation_p2p.refusals import Refusal


def unwanted(task: Asked, candidate: Candidate) -> Refusal | None:
    """Which required hint the candidate does not meet; None where there is none such."""
    return None


def welcome(task: Asked, candidate: Candidate) -> tuple[Term, ...]:
    """How far it meets each soft hint."""
    return ()
