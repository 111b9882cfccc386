"""Policies by name."""

from __future__ import annotations

from formation_p2p.errors import InvalidInput
from formation_p2p.placement.policy import PlacementPolicy
from formation_p2p.placement.xor import Xor


def parse_policy(text: str) -> PlacementPolicy:
    """Raises InvalidInput."""
    if text == "xor":
        return Xor()
    raise InvalidInput("policy", f"{text!r} is none; write xor")
