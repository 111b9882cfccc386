"""The services part of a peer: its catalog, the gaps that it fills, the replicas that it holds."""

from __future__ import annotations

from formation_p2p.core.dht.operations import Asked, Searched
from formation_p2p.core.discovery.finder import Found
from formation_p2p.core.effects import Moment
from formation_p2p.core.records.profile import SignedProfile
from formation_p2p.core.services import events
from formation_p2p.core.services.shelf import Shelf


class Services:
    """Call `take` after each of the others."""

    def __init__(self, shelf: Shelf) -> None:
        self.shelf = shelf
        self._effects: list[events.ServiceEffect] = []

    def take(self) -> list[events.ServiceEffect]:
        effects, self._effects = self._effects, []
        return effects

    def handle(self, event: events.ServiceRequestEvent, now: Moment) -> None:
        pass

    def ended(self, ended: Searched[SignedProfile] | Asked, now: Moment) -> bool:
        """Whether it was asked for here."""
        return False

    def found(self, found: Found, now: Moment) -> bool:
        return False

    def tick(self, now: Moment) -> None:
        pass

    def next_timeout(self) -> float:
        return float("inf")
