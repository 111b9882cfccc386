"""The assembly of a node: the features of this package beside the peer that assembly.py has."""

from __future__ import annotations

from formation_p2p.features.gangs.host.hosted import HostedGangs
from formation_p2p.features.services.host.routing import HostedServices
from formation_p2p.peer.node_part import Means


class Features:
    """Those of one node. Make them before its stack runs."""

    def __init__(self, means: Means) -> None:
        self.gangs = HostedGangs(means)
        self.services = HostedServices(means)
        self.parts = (self.gangs.part, self.services.part)
