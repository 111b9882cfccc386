"""Who of a simulated world is behind a router, and behind which kind."""

from __future__ import annotations

import argparse
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from simulations.simulator.routers import Kind, Router, Routers

# With these two of three pairs behind routers become direct, as measured in IPFS (70 %,
# arXiv 2510.27500).
DEFAULT_KINDS: Final[Mapping[Kind, float]] = {Kind.CONE: 0.7, Kind.FULL: 0.1, Kind.SYMMETRIC: 0.2}
# Of the nodes behind routers, so many are behind one that another node has.
SHARED: Final = 0.25


@dataclass(frozen=True, slots=True)
class Nat:
    """`share` of the nodes are behind routers, whose kinds have these weights."""

    share: float = 0.0
    kinds: Mapping[Kind, float] = field(default_factory=lambda: DEFAULT_KINDS)


NO_NAT: Final = Nat()


class Homes:
    """Draws a router for each node that comes."""

    def __init__(self, nat: Nat, routers: Routers, chance: random.Random) -> None:
        self._nat = nat
        self._routers = routers
        self._chance = chance
        self.routers: list[Router] = []

    def router(self) -> Router | None:
        if self._chance.random() >= self._nat.share:
            return None
        if self.routers and self._chance.random() < SHARED:
            return self._chance.choice(self.routers)
        kinds = self._nat.kinds
        (kind,) = self._chance.choices(list(kinds), list(kinds.values()))
        self.routers.append(self._routers.add(kind))
        return self.routers[-1]


def nat_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nat", type=_share, default=0.0, help="share of nodes behind routers")
    parser.add_argument(
        "--nat-kinds",
        type=_kinds,
        default=DEFAULT_KINDS,
        metavar="KIND=WEIGHT,...",
        help="of cone, full and symmetric (default: cone=0.7,full=0.1,symmetric=0.2)",
    )


def nat_of(arguments: argparse.Namespace) -> Nat:
    return Nat(arguments.nat, arguments.nat_kinds)


def _share(text: str) -> float:
    number = float(text)
    if not 0 <= number <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no share from 0 to 1")
    return number


def _kinds(text: str) -> dict[Kind, float]:
    try:
        pairs = (each.split("=") for each in text.split(","))
        kinds = {Kind(name): float(weight) for name, weight in pairs}
    except ValueError as error:
        problem = f"{text} is not KIND=WEIGHT,..., as in cone=0.7,symmetric=0.3"
        raise argparse.ArgumentTypeError(problem) from error
    if min(kinds.values()) < 0 or sum(kinds.values()) <= 0:
        raise argparse.ArgumentTypeError(f"{text} has no weights that can be drawn from")
    return kinds
