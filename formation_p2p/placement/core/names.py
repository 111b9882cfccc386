"""Policies as text.

    trust>=0.3 & 0.7*scored(newest) + 0.3*spread

`str()` of a policy is read back as an equal one.

| written | is |
| --- | --- |
| `a & b` | both admit a worker, and b ranks it |
| `0.7*a + 0.3*b` | the mean of their scores, by weight; both admit |
| `(...)` | what is read first; else `*` is, then `+`, then `&` |
"""

from __future__ import annotations

import re
from collections.abc import Container, Mapping
from typing import Final

from formation_p2p.core.errors import InvalidInput
from formation_p2p.machine.core.bounds import shown
from formation_p2p.placement.core.guarded import made
from formation_p2p.placement.core.learnt import scored_or_learnt
from formation_p2p.placement.core.policies import Balanced, Cheapest, Packed, Spread, trusted_from
from formation_p2p.placement.core.policy import (
    MAX_TERMS,
    MAX_TEXT,
    NUMBER,
    Gated,
    PlacementPolicy,
    PolicyFactory,
    Sum,
)
from formation_p2p.placement.core.xor import Xor

# A policy with more brackets inside brackets cannot be explained.
MAX_DEPTH: Final = 8

BUILT_IN: Final[Mapping[str, PolicyFactory]] = {
    "xor": Xor,
    "balanced": Balanced,
    "scored": scored_or_learnt,
    "cheapest": Cheapest,
    "packed": Packed,
    "spread": Spread,
}
"""By name. What is written in brackets after the name, `name(a, b)`, are the arguments."""

_TOKEN: Final = re.compile(
    rf"\s*(?:(?P<number>{NUMBER.pattern})\s*\*|trust\s*>=\s*(?P<trust>[^\s&+*(),]{{1,20}})"
    r"|(?P<name>[a-z][a-z0-9_-]{0,31})(?:\s*\((?P<arguments>[^()]*)\))?|(?P<sign>[&+()]))\s*",
    re.ASCII,
)


def parse_policy(text: str, policies: Mapping[str, PolicyFactory] = BUILT_IN) -> PlacementPolicy:
    """`policies` are those that a text may name; placement/policies.py adds those of installed
    packages. Raises InvalidInput, which says what may be written."""
    if len(text) > MAX_TEXT:
        raise InvalidInput("policy", f"the text is longer than {MAX_TEXT} characters")
    reader = _Reader(text, policies)
    policy = reader.gated(0)
    if reader.rest:
        hint = "write & or + between two policies, and weights before them, like 0.7*xor"
        raise InvalidInput("policy", f"{shown(reader.rest)} is too much; {hint}")
    return policy


class _Reader:
    """Reads the text once, with a method for each kind of operator. `rest` is left to read."""

    def __init__(self, text: str, policies: Mapping[str, PolicyFactory]) -> None:
        self.rest = text
        self._policies = policies
        self._terms = 0

    def gated(self, depth: int) -> PlacementPolicy:
        if depth > MAX_DEPTH:
            raise InvalidInput("policy", f"there are more than {MAX_DEPTH} brackets in each other")
        policy = self._sum(depth)
        while self._took("sign", "&"):
            policy = Gated(policy, self._sum(depth))
        return policy

    def _sum(self, depth: int) -> PlacementPolicy:
        parts = [self._weighted(depth)]
        while self._took("sign", "+"):
            parts.append(self._weighted(depth))
        [(weight, policy), *others] = parts
        if weight is None and not others:
            return policy
        return Sum(tuple((1.0 if weight is None else weight, policy) for weight, policy in parts))

    def _weighted(self, depth: int) -> tuple[float | None, PlacementPolicy]:
        weight = self._took("number")
        return float(weight["number"]) if weight else None, self._single(depth)

    def _single(self, depth: int) -> PlacementPolicy:
        if self._took("sign", "("):
            policy = self.gated(depth + 1)
            if not self._took("sign", ")"):
                where = f"before {shown(self.rest)}" if self.rest else "at the end"
                raise InvalidInput("policy", f"a bracket is open; write &, + or ) {where}")
            return policy
        token = self._took("trust") or self._took("name", self._policies)
        if not token:
            rest = self.rest.strip()
            if rest.startswith("trust"):
                problem = f"{shown(rest)} is not a gate; write it like trust>=0.3"
                raise InvalidInput("policy", problem)
            where = f"{shown(rest)} is not a policy" if rest else "a policy is missing at the end"
            known = f"{', '.join(self._policies)} or trust>=0.3"
            hint = f"write {known}, or put them together with &, + and *"
            raise InvalidInput("policy", f"{where}; {hint}")
        self._terms += 1
        if self._terms > MAX_TERMS:
            raise InvalidInput("policy", f"there are more than {MAX_TERMS} terms; leave some out")
        if token["trust"]:
            return trusted_from(token["trust"])
        given = (token["arguments"] or "").strip()
        items = [item.strip() for item in given.split(",")] if given else []
        return made(token["name"], self._policies[token["name"]], items)

    def _took(self, kind: str, texts: Container[str] | None = None) -> re.Match[str] | None:
        """Reads the next token, if it is of this kind, and one of these texts."""
        token = _TOKEN.match(self.rest)
        if not token or not token[kind] or (texts is not None and token[kind] not in texts):
            return None
        self.rest = self.rest[token.end() :]
        return token
