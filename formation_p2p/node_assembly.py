"""The assembly of a node: the features of this package beside the peer that assembly.py has."""

from __future__ import annotations

from functools import partial
from typing import Final

from formation_p2p.core.identity import PeerId
from formation_p2p.features.gangs.host import gangs_json
from formation_p2p.features.gangs.host.device import network_labels
from formation_p2p.features.gangs.host.hosted import HostedGangs
from formation_p2p.features.quotas.host.held import HeldAccounts
from formation_p2p.features.services.host.held import HeldServices
from formation_p2p.features.services.host.routing import HostedServices
from formation_p2p.peer.node_part import Means
from formation_p2p.state.held import Held

# What features show of a node: methods of its socket, by their names, what its status has beside
# that of the kernel, and metrics.
METHODS: Final = {"gangs": gangs_json.gangs_shown}
SHOWN: Final = (partial(gangs_json.gangs_in_json, with_links=False),)
METRICS: Final = (gangs_json.metrics_of,)
# What a machine is labelled with that has a sandbox.
LABELS: Final = (network_labels,)
HELD_TABLES: Final = (*HeldServices.tables, *HeldAccounts.tables)


def held(network_id: bytes, own: PeerId) -> tuple[Held, ...]:
    """What the node `own` keeps for a network, in the file of state/held.py, in the order of the
    tables."""
    return HeldServices(network_id, own), HeldAccounts(network_id)


class Features:
    """Those of one node. Make them before its stack runs."""

    def __init__(self, means: Means) -> None:
        self.gangs = HostedGangs(means)
        self.services = HostedServices(means)
        self.parts = (self.gangs.part, self.services.part)
