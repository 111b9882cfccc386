"""What performs the start and the stop of replicas on a machine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, assert_never

from formation_p2p.assembly import PeerEvent
from formation_p2p.features.services.core.events import (
    ReplicaEffect,
    ReplicaReported,
    ReplicaState,
    StartReplica,
    StopReplica,
)


class ReplicaHost(Protocol):
    def perform(self, effect: ReplicaEffect) -> None:
        """Begin it, and return at once; what comes of it is told as ReplicaReported. On the trio
        thread."""


class NoReplicas:
    """Of a node that runs no services."""

    def __init__(self, feed: Callable[[PeerEvent], None]) -> None:
        self._feed = feed

    def perform(self, effect: ReplicaEffect) -> None:
        match effect:
            case StartReplica(signed, slot, epoch):
                why = "this node runs no services"
                name, failed = signed.spec.name, ReplicaState.FAILED
                self._feed(ReplicaReported(name, slot, epoch, failed, why=why))
            case StopReplica(service, slot, epoch):
                self._feed(ReplicaReported(service, slot, epoch, ReplicaState.STOPPED))
            case _:
                assert_never(effect)
