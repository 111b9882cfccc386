"""A replica that this worker has: what its worker knows of it, and how far it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from formation_p2p.core.effects import Contact
from formation_p2p.features.services.core.claim import SignedClaim
from formation_p2p.features.services.core.means import Machine
from formation_p2p.features.services.core.scaling import Load
from formation_p2p.features.services.core.signed_spec import SignedSpec


class Own(StrEnum):
    """How far a replica of this worker is."""

    CLAIMED = "claimed"
    STARTING = "starting"
    READY = "ready"
    DRAINING = "draining"


TRANSITIONS: Final[Mapping[Own, Mapping[str, Own]]] = {
    Own.CLAIMED: {"start": Own.STARTING},
    Own.STARTING: {"ready": Own.READY, "drain": Own.DRAINING},
    Own.READY: {"unready": Own.STARTING, "drain": Own.DRAINING},
    Own.DRAINING: {},
}


@dataclass(slots=True)
class Fresh:
    """A replica of a newer version, which is being started beside the one that serves. It has been
    ready `since_s`."""

    signed: SignedSpec
    epoch: int
    due_s: float
    since_s: float | None = None
    stumbles: int = 0


@dataclass(slots=True)
class Replica:
    """`guardians` watch it. Its claim is published again at `due_s`, and what others claim of its
    service looked at at `look_s`. `machine` runs it, also once the grant lets it work no more."""

    machine: Machine = field(repr=False)
    signed: SignedSpec
    slot: int
    epoch: int
    state: Own = Own.CLAIMED
    sequence: int = 0
    outstanding: int = 0
    load: Load = field(default_factory=Load)
    wanted: int = 0
    guardians: tuple[Contact, ...] = ()
    due_s: float = float("inf")
    look_s: float = float("inf")
    guardians_s: float = float("inf")
    surplus_since_s: float | None = None
    old_since_s: float | None = None
    claim: SignedClaim | None = field(default=None, repr=False)
    device_ids: tuple[str, ...] = ()
    fresh: Fresh | None = None
    tried_epoch: int = 0
    failed_version: int = 0
    failed_until_s: float = float("-inf")

    @property
    def service(self) -> str:
        return self.signed.spec.name

    def move(self, event: str) -> bool:
        """Whether the event means anything in this state."""
        state = TRANSITIONS[self.state].get(event)
        if state is not None:
            self.state = state
        return state is not None


def reserved(service: str, epoch: int) -> str:
    """The name of what a replica has reserved: two of one service may run."""
    return f"{service} {epoch}"
