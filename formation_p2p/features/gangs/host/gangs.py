"""What a node has of gangs: streams, and on top of them the stores and the networks."""

from __future__ import annotations

from formation_p2p.features.gangs.core.events import EmitGangEvent, GangEnded, OwnRoster
from formation_p2p.features.gangs.core.roster import OWNER
from formation_p2p.features.gangs.host.network import GangNetworks
from formation_p2p.features.gangs.host.store_host import Do, GangStores
from formation_p2p.features.gangs.host.store_socket import GangLinks
from formation_p2p.features.gangs.host.tunnels import Tunnels


class NodeGangs:
    """`spawn` runs a task of the node's own."""

    def __init__(self, tunnels: Tunnels, spawn: Do) -> None:
        self.tunnels = tunnels
        self.stores = GangStores(self.tunnels, spawn)
        self.links = GangLinks(self.tunnels, spawn)
        self.networks = GangNetworks(self.tunnels, spawn)

    def own(self, effect: OwnRoster | EmitGangEvent) -> None:
        """Of a gang that this node owns: its seat lasts from the first roster to the last event."""
        match effect:
            case OwnRoster(roster):
                self.tunnels.join(OWNER, roster)
            case EmitGangEvent(gang_id, GangEnded()):
                self.tunnels.leave(gang_id, OWNER, "the gang has ended")
