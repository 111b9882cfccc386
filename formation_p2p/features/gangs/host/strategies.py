"""Strategies by the names that people write: those built in, and those of installed packages, in
the entry point groups `formation_p2p.partitioners` and `formation_p2p.recoveries`
(docs/explanation/clusters.md)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from formation_p2p.features.gangs.core import recovery
from formation_p2p.features.gangs.core.part import Links, MemberCapacity, Part, Strategy
from formation_p2p.features.gangs.core.partition import BUILT_IN, Partition
from formation_p2p.features.gangs.core.partition import partition as partition_by
from formation_p2p.features.gangs.core.recovery import Recovery
from formation_p2p.machine.entry_points import Offered

PARTITIONERS: Final = Offered("formation_p2p.partitioners", BUILT_IN)
RECOVERIES: Final = Offered("formation_p2p.recoveries", recovery.RECOVERIES)


def partition(
    parts: Iterable[Part],
    members: Sequence[MemberCapacity],
    strategy: str | Strategy = "proportional",
    *,
    links: Links | None = None,
) -> Partition:
    """Which member has which part: by `proportional`, `pipeline`, `hashed`, `local`, one of an
    installed package, or an object with `assign`. Raises InvalidInput; Unplaceable where the parts
    do not fit into the members' memory."""
    return partition_by(parts, members, strategy, links=links, strategies=PARTITIONERS)


def parse_recovery(text: str | Recovery) -> Recovery:
    """What follows the loss of a member. Raises InvalidInput."""
    return recovery.parse_recovery(text, RECOVERIES)
