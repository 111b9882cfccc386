"""Where one simulated node is reached: the machines of `reach/core` that the shell in production
performs, on the world's clock. A gate relays; every other node reserves at gates while it is none
that others dial.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, assert_never

from formation_p2p.core.effects import Contact
from formation_p2p.dht.core.reachability import Reach
from formation_p2p.peer.core.events import AddressesChanged
from formation_p2p.reach.core.circuit_messages import Reserve, Reserved
from formation_p2p.reach.core.own_addresses import OwnAddresses
from formation_p2p.reach.core.relay import Refusal, Relay, RelayFor
from formation_p2p.reach.core.reservations import (
    CircuitsChanged,
    ReservationEffect,
    Reservations,
    ReserveAt,
)
from formation_p2p.trust.core.membership import Membership

if TYPE_CHECKING:
    from collections.abc import Sequence

    from simulations.simulator.node import SimNode
    from simulations.simulator.routers import Link, Routers

# Until a request to a gate that is not there ends.
NO_ANSWER_S = 5.0


class Whereabouts:
    """Of one incarnation. `address` is that of its interface."""

    def __init__(self, routers: Routers, node: SimNode, address: str, *, relays: bool) -> None:
        self._routers = routers
        self._world = node.world
        self._node = node
        self._incarnation = node.incarnation
        self.own = OwnAddresses(gates=[gate.peer_id for gate in node.gates])
        self.own.listening((address,))
        self._told = (self.own.direct, self.own.announced)
        self._reservations = Reservations(node.identity.peer_id)
        self._timer_s = float("inf")
        self.relay: Relay | None = None
        if relays:
            membership = Membership(node.network().root_public_key)
            self.relay = Relay(
                node.identity,
                RelayFor.MEMBERS,
                lambda *shown: membership.denies_membership(*shown) is None,
            )

    def began(self) -> tuple[str, ...]:
        """It listens. Returns where it is dialled, as far as it knows."""
        if self.relay is None:
            gates = [gate for gate in self._node.gates if gate.peer_id in self._world.peers]
            self._perform(self._reservations.began(gates, self._world.moment(self._node)))
        return self.own.direct

    def reached(self, reach: Reach) -> None:
        """Whether others dial it, as its peer has found."""
        self.own.reach(reach)
        if self.relay is None:
            self._perform(self._reservations.reached(reach, self._world.moment(self._node)))
        self._tell()

    def seen_at(self, gate: SimNode, address: str) -> None:
        """A gate says where a connection of this node comes from."""
        host = gate.contact.addresses[0].split("/")[2]
        self.own.observed(gate.identity.peer_id, host, address, is_exact=True)
        self._tell()

    def disconnected(self, gate: SimNode) -> None:
        if self._is_there:
            peer_id, now = gate.identity.peer_id, self._world.moment(self._node)
            self._perform(self._reservations.disconnected(peer_id, now))

    def holds(self, gate: SimNode) -> bool:
        now = self._world.moment(self._node)
        return self._reservations.holds(gate.identity.peer_id, now)

    @property
    def _is_there(self) -> bool:
        node = self._node
        return node.alive and node.incarnation == self._incarnation

    def _tell(self) -> None:
        told = (self.own.direct, self.own.announced)
        if told != self._told and self._is_there:
            self._told = told
            self._node.contact = self._routers.contact_of(self._node, self.own)
            self._world.later(0.0, self._node, AddressesChanged(*told))

    def _perform(self, effects: Sequence[ReservationEffect]) -> None:
        for effect in effects:
            match effect:
                case ReserveAt(gate=gate):
                    self._ask(gate)
                case CircuitsChanged(addresses=addresses):
                    self.own.circuits(addresses)
                    self._tell()
                case _:
                    assert_never(effect)
        due_s = self._node.clock.world_s(self._reservations.at_s)
        if due_s not in (self._timer_s, float("inf")):
            self._timer_s = due_s
            self._world.at(due_s, self._tick, due_s)

    def _tick(self, due_s: float) -> None:
        if self._timer_s == due_s and self._is_there:
            self._timer_s = float("inf")
            self._perform(self._reservations.tick(self._world.moment(self._node)))

    def _ask(self, contact: Contact) -> None:
        world, node = self._world, self._node
        gate = world.peers[contact.peer_id]
        link = self._routers.way(node, contact)
        if link is None or link.is_stalled or gate.suspended:
            world.after(NO_ANSWER_S, self._unreachable, gate)
        else:
            world.after(self._routers.delay_s(link), self._arrived, link, gate)

    def _arrived(self, link: Link, gate: SimNode) -> None:
        """The request is with the gate, which answers at once."""
        world, node = self._world, self._node
        relay = self._routers.relay_of(gate)
        if relay is None or not self._routers.is_there(link):
            self._unreachable(gate)
            return
        request = Reserve(node.network().grant)
        peer_id, addresses = node.identity.peer_id, gate.contact.addresses
        said = relay.reserve(peer_id, request, addresses, world.moment(gate), relayed=False)
        world.after(self._routers.delay_s(link), self._answered, gate, said)

    def _answered(self, gate: SimNode, said: Reserved | Refusal) -> None:
        if not self._is_there:
            return
        peer_id, now = gate.identity.peer_id, self._world.moment(self._node)
        if isinstance(said, Refusal):
            self._perform(self._reservations.refused(peer_id, now))
        else:
            self._perform(self._reservations.reserved(peer_id, said, now))

    def _unreachable(self, gate: SimNode) -> None:
        if self._is_there:
            now = self._world.moment(self._node)
            self._perform(self._reservations.unreachable(gate.identity.peer_id, now))
