"""The assembly of a peer: its kernel, and the features of this package.

This file alone names features. What a feature brings to a peer is one row of the table of parts
(peer/core/part.py), beside the rows of the kernel (peer/core/peer.py). The unions of what a peer is
told, what it wants done and what it says to other peers are closed here.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from formation_p2p.core.identity import Identity
from formation_p2p.features.gangs.core.events import EmitGangEvent, GangEffect, ToGangs
from formation_p2p.features.gangs.core.gangs import Gangs
from formation_p2p.features.gangs.core.messages import GangMessage
from formation_p2p.features.gangs.core.parameters import GangParameters
from formation_p2p.features.quotas.core.messages import QuotaMessage
from formation_p2p.features.quotas.core.quota_parameters import EscrowParameters
from formation_p2p.features.quotas.core.quotas import AccountsRecalled, Quotas
from formation_p2p.features.services.core.events import ServiceEffect, ToServices
from formation_p2p.features.services.core.parameters import ServiceParameters
from formation_p2p.features.services.core.services import Services
from formation_p2p.leases.core.messages import KernelMessage
from formation_p2p.peer.core.effects import KernelEffect, KernelUserEffect
from formation_p2p.peer.core.events import KernelEvent
from formation_p2p.peer.core.parameters import KernelParameters
from formation_p2p.peer.core.part import Part
from formation_p2p.peer.core.peer import Kernel
from formation_p2p.trust.core.membership import Membership
from formation_p2p.trust.core.network import Network
from formation_p2p.trust.core.reputation import Reputation
from formation_p2p.workload.core.comparers import Read, read_plain

PeerEvent = KernelEvent | ToGangs | ToServices | AccountsRecalled
PeerEffect = KernelEffect | GangEffect | ServiceEffect
# Of these, what is for the person who uses the node.
UserEffect = KernelUserEffect | EmitGangEvent
PeerMessage = KernelMessage | GangMessage | QuotaMessage


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerParameters(KernelParameters):
    """With those of the features."""

    gang: GangParameters = field(default_factory=GangParameters)
    escrow: EscrowParameters = field(default_factory=EscrowParameters)
    services: ServiceParameters = field(default_factory=ServiceParameters)


DEFAULT_PARAMETERS: Final = PeerParameters()


class Peer(Kernel[PeerEvent, PeerEffect]):
    """The whole peer. See Kernel. `others` make the parts of features of other packages."""

    def __init__(
        self,
        identity: Identity,
        network: Network,
        rng: random.Random,
        reputation: Reputation | None = None,
        parameters: PeerParameters = DEFAULT_PARAMETERS,
        name: str = "",
        membership: Membership | None = None,
        read: Read = read_plain,
        others: Iterable[Callable[[Kernel[Any, Any]], Part]] = (),
    ) -> None:
        super().__init__(identity, network, rng, reputation, parameters, name, membership, read)
        self.gangs = Gangs(self, parameters.gang)
        self.services = Services.of(self, parameters.services)
        self.quotas = Quotas(self, parameters.escrow)
        parts = self.gangs.part, self.services.part, self.quotas.part
        self._assemble(*parts, *(part(self) for part in others))
