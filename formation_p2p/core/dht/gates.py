"""The peers through which a node joins, and finds back: its gates, and peers that it knew before.

The gates are asked by a node that knows no other peer, so that they stay cool. Where none of them
answers, the peers of before are asked: those that were remembered from an earlier incarnation, and
those that were lost. Nothing is believed of these but where to dial.

A gate that does not answer, or whose connection broke, is `gone`: it is dialled ever more rarely.
After a restart it knows no peer until it has met this node again.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from formation_p2p.core.dht.parameters import DhtParameters
from formation_p2p.core.dht.routing import RoutingTable
from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.keyspace import KEY_BITS

# Of each wait, the part by which nodes that lost a gate at the same moment differ.
_SPREAD: Final = 0.25


class Gates:
    """`at_s` is when to look at them again, on the monotonic clock. `back` are those that were gone
    and have answered; the owner takes them out."""

    def __init__(self, own: PeerId, parameters: DhtParameters) -> None:
        self._own = own
        self._parameters = parameters
        # The same for a node each time, and no two nodes alike.
        self._share = 1 - _SPREAD * (key_of_peer(own) >> (KEY_BITS - 16)) / 2**16
        self._gates: dict[PeerId, Contact] = {}
        self._gone: dict[PeerId, Contact] = {}
        self._before: dict[PeerId, Contact] = {}  # what was lost last comes last
        self._unanswered = False
        self._wait_s = parameters.first_retry_s
        self.at_s = float("inf")
        self.back: list[Contact] = []

    def begin(self, gates: Iterable[Contact], remembered: Iterable[Contact]) -> None:
        self._gates = {gate.peer_id: gate for gate in gates if gate.peer_id != self._own}
        self._gone = dict(self._gates)
        self._unanswered = False
        self._wait_s = self._parameters.first_retry_s
        for contact in remembered:
            self._remember(contact)

    @property
    def seeds(self) -> tuple[Contact, ...]:
        """The peers to ask while no other is known."""
        before = self._before.values() if self._unanswered or not self._gates else ()
        return (*self._gates.values(), *before)

    def unanswered(self) -> bool:
        """None of them answered a search. Returns whether there are others to ask now."""
        known, self._unanswered = self._unanswered or not self._gates, True
        return bool(self._before) and not known

    def asked(self, now_s: float) -> None:
        """A search through the `seeds` begins, or gates were dialled: the next time, if need be."""
        first_s, last_s = self._parameters.first_retry_s, self._parameters.last_retry_s
        share = 1.0 if self._wait_s == first_s else self._share
        self.at_s = now_s + self._wait_s * share
        self._wait_s = min(self._wait_s * 2, last_s)

    def due(self, table: RoutingTable, now_s: float) -> list[Contact]:
        """`at_s` has come, and peers are known: the gates to dial."""
        self._unanswered = False
        gone = [g for g in self._gone.values() if g.peer_id in table or table.has_room_for(g)]
        if gone:
            self.asked(now_s)
        else:
            self.at_s, self._wait_s = float("inf"), self._parameters.first_retry_s
        return gone

    def answered(self, contact: Contact) -> None:
        if self._gone.pop(contact.peer_id, None) is not None:
            self.back.append(contact)
            self._wait_s = self._parameters.first_retry_s

    def is_gone(self, peer_id: PeerId) -> bool:
        return peer_id in self._gone

    def lost(self, contact: Contact, now_s: float, *, last: bool) -> None:
        """A peer that was known does not answer. `last`: none is left."""
        if contact.peer_id in self._gates:
            self._gone[contact.peer_id] = self._gates[contact.peer_id]
            self._wait_s = self._parameters.first_retry_s
        else:
            self._remember(contact)
        if last or contact.peer_id in self._gates:
            self.at_s = min(self.at_s, now_s + self._parameters.first_retry_s)

    def disconnected(self, contact: Contact, now_s: float) -> None:
        """The last connection with a peer that is known broke."""
        if contact.peer_id in self._gates:
            self.lost(contact, now_s, last=False)

    def _remember(self, contact: Contact) -> None:
        if contact.peer_id == self._own or contact.peer_id in self._gates:
            return
        self._before.pop(contact.peer_id, None)
        if len(self._before) >= self._parameters.max_before:
            del self._before[next(iter(self._before))]
        self._before[contact.peer_id] = contact
