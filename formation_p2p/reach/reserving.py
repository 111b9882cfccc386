"""What a node does with circuits of its own accord: it reserves at gates, and relays if it is one.

Beside `reach/core/reservations.py`, which decides when to ask which gate.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, assert_never

import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import RemoteError
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.dht.core.reachability import Reach
from formation_p2p.machine.clock import moment
from formation_p2p.net.transport.negotiation import NotSpoken
from formation_p2p.reach.circuit_settings import CircuitSettings
from formation_p2p.reach.circuits import Circuits
from formation_p2p.reach.core.circuit_messages import HOP_PROTOCOL, STOP_PROTOCOL, Reserve, Reserved
from formation_p2p.reach.core.own_addresses import OwnAddresses
from formation_p2p.reach.core.relay import Relay
from formation_p2p.reach.core.reservations import (
    CircuitsChanged,
    FairShares,
    ReservationEffect,
    Reservations,
    ReserveAt,
)
from formation_p2p.reach.relaying import Relaying, Turns

if TYPE_CHECKING:
    from formation_p2p.net.connection import Connection, StreamHandler
    from formation_p2p.net.swarm import Swarm

log = logging.getLogger(__name__)

# Of the connections that may come in, those that a gate of the network may bring, and one of
# strangers: the rest is left for the other gates and for direct ones.
OWN_GATES_PART: Final = 1 / 4
OTHER_GATES_PART: Final = 1 / 16


@dataclass(eq=False)
class Reserving:
    """`begin` it once the node listens, if it does. `own` is told of the circuits that lead here,
    and `changed` called then."""

    identity: Identity
    settings: CircuitSettings
    swarm: Swarm
    own: OwnAddresses
    changed: Callable[[], None]

    def __post_init__(self) -> None:
        self._reservations = Reservations(self.identity.peer_id)
        self._timer = trio.CancelScope()
        self._begun = False
        self.circuits = Circuits(self.swarm, self.settings.grant, self._most_from)
        self.relaying = self._relaying()
        self.swarm.dialler.dial_circuit = self.circuits.dial
        self.swarm.keeps = self._keeps

    def _relaying(self) -> Relaying | None:
        settings, relay = self.settings, self.settings.relay
        if relay is None:
            return None
        turns = None if relay.bytes_per_s is None else Turns(FairShares(relay.bytes_per_s))
        deciding = Relay(self.identity, relay.serves, settings.admits)
        return Relaying(deciding, self.swarm, self.own, self.circuits.widening, turns)

    def protocols(self) -> dict[str, StreamHandler]:
        """What is served of circuits."""
        served: dict[str, StreamHandler] = {STOP_PROTOCOL: self.circuits.serve}
        if self.relaying is not None:
            served[HOP_PROTOCOL] = self.relaying.serve
        return served

    def begin(self) -> None:
        """The node listens, and relays if it is a gate."""
        nursery = self.swarm.nursery
        if self.relaying is not None and self.relaying.turns is not None:
            nursery.start_soon(self.relaying.turns.run)
        if self.settings.reserves is False or self.relaying is not None:
            return  # a gate is to be dialled
        self._begun = True
        nursery.start_soon(self._keep_time)
        self._perform(self._reservations.began(self.settings.gates, moment()))
        if self.settings.reserves:
            self._perform(self._reservations.reached(Reach.CLIENT, moment()))

    def reached(self, reach: Reach) -> None:
        """Whether others can dial this node."""
        if self._begun and self.settings.reserves is None:
            self._perform(self._reservations.reached(reach, moment()))

    def met(self, connection: Connection) -> None:
        """A peer said what it is."""
        if self._begun and HOP_PROTOCOL in connection.protocols and connection.contact.addresses:
            self._perform(self._reservations.met(connection.contact, moment()))

    def disconnected(self, peer: PeerId) -> None:
        """The last connection with a peer is over."""
        if self.relaying is not None:
            self.relaying.relay.disconnected(peer)
        if self._begun:
            self._perform(self._reservations.disconnected(peer, moment()))

    def _holds(self, peer: PeerId) -> bool:
        return self._reservations.holds(peer, moment())

    def _most_from(self, peer: PeerId) -> int:
        if not self._holds(peer):
            return 0
        own = any(gate.peer_id == peer for gate in self.settings.gates)
        part = OWN_GATES_PART if own else OTHER_GATES_PART
        return max(int(self.swarm.parameters.max_inbound * part), 1)

    def _keeps(self, peer: PeerId) -> bool:
        relays = self.relaying is not None and self.relaying.relay.is_reserved(peer)
        return relays or self._holds(peer)

    async def _keep_time(self) -> None:
        while True:
            with trio.CancelScope() as self._timer:
                self._set_timer()
                await trio.sleep(float("inf"))
            self._perform(self._reservations.tick(moment()))

    def _set_timer(self) -> None:
        wait_s = self._reservations.at_s - moment().mono_s
        self._timer.deadline = trio.current_time() + max(wait_s, 0.0)

    def _perform(self, effects: Sequence[ReservationEffect]) -> None:
        for effect in effects:
            match effect:
                case ReserveAt(gate=gate):
                    self.swarm.nursery.start_soon(self._ask, gate)
                case CircuitsChanged(addresses=addresses):
                    log.info("reached through %s", ", ".join(addresses) or "no gate")
                    self.own.circuits(addresses)
                    self.changed()
                case _:
                    assert_never(effect)
        self._set_timer()

    async def _ask(self, gate: Contact) -> None:
        peer = gate.peer_id
        try:
            stream, said = await self.circuits.ask(gate, Reserve(self.settings.grant()))
            await stream.close()
        except NotSpoken as error:
            log.debug("%s does not relay: %s", peer, error)
            self._perform(self._reservations.refused(peer, moment()))
        except RemoteError as error:
            log.debug("no reservation at %s: %s", peer, error)
            self._perform(self._reservations.unreachable(peer, moment()))
        else:
            if not isinstance(said, Reserved):
                log.debug("%s has no place for this node: %s", peer, said.status.name)
                self._perform(self._reservations.refused(peer, moment()))
            elif self.swarm.direct_to(peer) is None:  # it is gone already, and the place with it
                self._perform(self._reservations.unreachable(peer, moment()))
            else:
                self._perform(self._reservations.reserved(peer, said, moment()))
