"""Nodes that have been in a world for long before it begins: they wake as they are needed."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

from formation_p2p.assembly import PeerEvent
from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import key_of_peer
from formation_p2p.core.keyspace import Key, distance
from formation_p2p.dht.core.rpc import InboundConnection
from formation_p2p.peer.core.events import Joined
from simulations.layout import Layout
from simulations.simulator.node import SimNode
from simulations.simulator.world import World


def host_of(contact: Contact) -> str:
    """The IP address that a contact is dialled at."""
    return contact.addresses[0].split("/")[2]


class Residents:
    """Those of a world who know each other as Kademlia would have it. Set as its `residents`."""

    def __init__(self, world: World, contacts: Iterable[Contact], seed: int) -> None:
        self.layout = Layout(contacts, seed)
        self.waking: SimNode | None = None
        # Whether they keep their tables fresh. Where none comes or goes that changes nothing, but
        # that all of them wake.
        self.refreshes = True
        # What else is to be done with one that wakes.
        self.woken: Callable[[SimNode], None] = lambda node: None
        self._world = world

    def __contains__(self, node: SimNode) -> bool:
        return node.identity.key in self.layout

    def wake(self, node: SimNode, events: Iterable[PeerEvent]) -> None:
        """Its table is full, and it has spoken to all those in it. It gets `events` before it
        knows any."""
        world = self._world
        self.waking = node
        for event in (Joined(node.contact.addresses, ()), *events):
            world.deliver(node, event)
        known = self.layout.known_to(node.identity.key)
        dht = node.peer.dht
        # That it can be dialled was found out before: it need not tell or ask any.
        for contact in known[: dht.parameters.voters]:
            world.deliver(node, InboundConnection(contact.peer_id, host_of(contact)))
        self.waking = None
        # Nor is it alone any more and has to try again to join, or new and looks itself up twice.
        dht._gates.at_s, dht._refresh._is_new = float("inf"), False
        rng = random.Random(f"{world.seed}/{node.name}/table")
        starts_s = world.now_s + rng.random() * dht.parameters.own_refresh_s / 8
        dht._refresh.at_s = starts_s if self.refreshes else float("inf")
        self.layout.fill(dht.table, node.identity.key)
        looked: dict[int, Key] = {0: node.identity.key}  # one in each bucket, and itself
        for contact in known:
            key = key_of_peer(contact.peer_id)
            looked[distance(node.identity.key, key).bit_length()] = key
            other = world.peers.get(contact.peer_id)
            if world.connections is not None and other is not None:
                world.connections.connect(node.number, other.number)
        for length, key in looked.items():
            every_s = dht.parameters.bucket_refresh_s if length else dht.parameters.own_refresh_s
            dht.table.looked_into(
                key, world.now_s - rng.random() * dht.parameters.refresh_early * every_s
            )
        self.woken(node)
