"""The policy that is Kademlia's own: the worker nearest to the task by XOR."""

from __future__ import annotations

from dataclasses import dataclass

from formation_p2p.identity import PeerId
from formation_p2p.keyspace import Key
from formation_p2p.placement.nearest import Peers
from formation_p2p.placement.policy import Policy


@dataclass(frozen=True, slots=True)
class Xor(Policy):
    """All score alike, so that the distance decides."""

    def home(self, key: Key, workers: Peers) -> PeerId | None:
        return workers.nearest(key)

    def __str__(self) -> str:
        return "xor"
