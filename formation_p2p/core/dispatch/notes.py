"""How workers are looked for and asked, as a task's story tells it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import PeerId
from formation_p2p.core.negotiation.round import RoundId
from formation_p2p.core.placement.decision import Decision
from formation_p2p.core.placement.scheduling_key import SchedulingKey
from formation_p2p.core.refusals import Refusal

# Workers named of one search, of each kind: what a person reads, where a search names hundreds.
NAMED: Final = 8


@dataclass(frozen=True, slots=True)
class SearchEnded:
    """Discovery ended for tasks of a key. `candidates` are the best of `found` workers."""

    key: SchedulingKey
    candidates: tuple[PeerId, ...]
    found: int
    refusals: tuple[tuple[PeerId, Refusal], ...]


@dataclass(frozen=True, slots=True)
class RoundOpened:
    """Workers are asked for leases, for tasks of a key."""

    key: SchedulingKey
    round: RoundId
    asked: tuple[PeerId, ...]


Note = Callable[[SearchEnded | RoundOpened, Moment], None]


def search_of(key: SchedulingKey, decision: Decision) -> SearchEnded:
    best = tuple(each.profile.peer_id for each in decision.ranked[:NAMED])
    return SearchEnded(key, best, len(decision.ranked), decision.rejected[:NAMED])
