"""The peers through which a node joins, and finds back: its gates, and peers that it knew before.

The gates are asked by a node that knows no other peer, so that they stay cool. Where none of them
answers, the peers of before are asked: those that were remembered from an earlier incarnation, and
those that were lost. Nothing is believed of these but where to dial. Those that were found on the
same LAN are asked along with the gates, and so are members: those behind routers serve no DHT, but
over a connection that is there they tell of themselves.

A gate that does not answer, or whose connection broke, is `gone`: it is dialled ever more rarely.
After a restart it knows no peer until it has met this node again.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from typing import Final

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.keyspace import KEY_BITS
from formation_p2p.dht.core.parameters import DhtParameters
from formation_p2p.dht.core.routing import RoutingTable

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
        self._nearby: dict[PeerId, Contact] = {}  # likewise, of those found
        self._members: dict[PeerId, Contact] = {}  # likewise, of those met
        self._unanswered = False
        self._wait_s = parameters.first_retry_s
        self.at_s = float("inf")
        self.back: list[Contact] = []
        self.missing: set[PeerId] = set()
        """The gates that have answered, and are gone."""

    def begin(self, gates: Iterable[Contact], remembered: Iterable[Contact]) -> None:
        self._gates = {gate.peer_id: gate for gate in gates if gate.peer_id != self._own}
        self._gone = dict(self._gates)
        self._unanswered = False
        self._wait_s = self._parameters.first_retry_s
        for contact in remembered:
            self._remember(contact)

    @property
    def known(self) -> Set[PeerId]:
        """The gates, whether they answer or not."""
        return self._gates.keys()

    @property
    def seeds(self) -> tuple[Contact, ...]:
        """The peers to ask while no other is known."""
        before = self._before.values() if self._unanswered or not self._gates else ()
        seeds = (*self.members, *before, *self._nearby.values(), *self._gates.values())
        return tuple({seed.peer_id: seed for seed in seeds}.values())

    @property
    def members(self) -> tuple[Contact, ...]:
        """Without addresses: only those that are connected can be asked."""
        return tuple(self._members.values())

    def met(self, member: PeerId) -> None:
        """It has shown a grant of this network."""
        if member != self._own:
            _put(self._members, Contact(member), self._parameters.max_members)

    def found(self, nearby: Iterable[Contact]) -> None:
        """These are on the same LAN, or so it was told there."""
        for contact in nearby:
            _put(self._nearby, contact, self._parameters.max_before)

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
        self.missing.discard(contact.peer_id)
        if self._gone.pop(contact.peer_id, None) is not None:
            self.back.append(contact)
            self._wait_s = self._parameters.first_retry_s

    def is_gone(self, peer_id: PeerId) -> bool:
        return peer_id in self._gone

    def lost(self, contact: Contact, now_s: float, *, last: bool) -> None:
        """A peer that was known does not answer. `last`: none is left."""
        if contact.peer_id in self._gates:
            self.missing.add(contact.peer_id)
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
        _put(self._before, contact, self._parameters.max_before)


def _put(contacts: dict[PeerId, Contact], contact: Contact, most: int) -> None:
    contacts.pop(contact.peer_id, None)
    if len(contacts) >= most:
        del contacts[next(iter(contacts))]
    contacts[contact.peer_id] = contact
