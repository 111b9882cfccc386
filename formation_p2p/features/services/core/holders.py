"""The peers that keep what is under the names of services, and how many of them are a majority."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.keyspace import distance, key_of
from formation_p2p.dht.core.kademlia import Kademlia
from formation_p2p.dht.core.operations import Answer
from formation_p2p.features.services.core.parameters import ServiceParameters
from formation_p2p.records.core.profile import SignedProfile

# Peers that did not answer: half of a network of 2,000 that is cut in two.
MAX_FAILED: Final = 1024


class Holders:
    """Of each name the nearest peers that are known, and those of them that did not answer lately.

    What answers name is taken in, so that reading keeps this right without lookups.
    """

    def __init__(
        self, own: PeerId, dht: Kademlia[SignedProfile], parameters: ServiceParameters
    ) -> None:
        self._own = own
        self._dht = dht
        self._parameters = parameters
        self._known: dict[bytes, dict[PeerId, Contact]] = {}  # at most twice the holders each
        # First when, and when last; forgotten as they answer.
        self._failed: dict[PeerId, tuple[float, float]] = {}
        # The most peers that were known, in this period and the one before it.
        self._peaks = [0, 0]
        self._period_ends_s = float("-inf")

    def found(self, name: bytes, contacts: Iterable[Contact]) -> None:
        """A lookup has found the nearest that answer."""
        known = self._known.setdefault(name, {})
        for contact in contacts:
            known[contact.peer_id] = contact
            self._failed.pop(contact.peer_id, None)
        self._trim(name)

    def knows(self, name: bytes) -> bool:
        """Whether those of a name were ever found."""
        return name in self._known

    def answered(self, name: bytes, answers: Iterable[Answer], now: Moment) -> None:
        """Take in who answered, who did not, and whom they named as nearer ones."""
        if name not in self._known:  # who answered first is not all of them
            self._known[name] = self._of_table(name)
        known = self._known[name]
        for answer in answers:
            peer_id = answer.to.peer_id
            if answer.reply is None:
                self._fail(name, peer_id, now)
                continue
            self._failed.pop(peer_id, None)
            known.setdefault(peer_id, answer.to)
            for contact in getattr(answer.reply, "closer", ()):
                if contact.addresses:
                    known.setdefault(contact.peer_id, contact)
        self._trim(name)

    def nearest(self, name: bytes, now: Moment) -> tuple[Contact, ...]:
        """Those to ask, nearest first, this node among them where it is one. Of a name that was
        never asked for, those that the routing table has."""
        known = self._known.get(name)
        if known is None:
            known = self._of_table(name)
        alive = {each: contact for each, contact in known.items() if not self.is_lost(each, now)}
        if not self._dht.is_client:
            alive[self._own] = Contact(self._own)
        return tuple(_ranked(name, alive.values())[: self._parameters.holders])

    def knowing(self, name: bytes, answers: Iterable[Answer]) -> int:
        """How many of these answers are of the nearest of all, lost ones included. A node that was
        cut off has lost them all, and asks peers that were never told anything."""
        among = self._of_all(name)
        return sum(answer.to.peer_id in among for answer in answers)

    def unheard(self, name: bytes, answers: Iterable[Answer], now: Moment) -> tuple[Contact, ...]:
        """Those of the nearest of all that are not lost, and are not among these answers."""
        among = self._of_all(name) - {answer.to.peer_id for answer in answers}
        return tuple(each for each in self.nearest(name, now) if each.peer_id in among)

    def lost(self, name: bytes, now: Moment) -> tuple[Contact, ...]:
        """Those that did not answer: after a partition they have what its other side said."""
        known = self._known.get(name, {})
        gone = [contact for each, contact in known.items() if each in self._failed]
        return tuple(_ranked(name, gone)[: self._parameters.holders])

    def is_lost(self, peer_id: PeerId, now: Moment) -> bool:
        """Whether a peer did not answer lately."""
        failed = self._failed.get(peer_id)
        return failed is not None and now.mono_s - failed[1] < self._parameters.lost_s

    def quorum(self, now: Moment) -> int:
        """How many of the holders have to answer. In a network of fewer peers than a name has
        holders, half of those that were known lately."""
        size = len(self._dht.table) + 1
        if now.mono_s >= self._period_ends_s:
            self._period_ends_s = now.mono_s + self._parameters.remembered_s / 2
            self._peaks = [size, self._peaks[0]]
        self._peaks[0] = max(self._peaks[0], size)
        holders = self._parameters.holders
        most = min(max(self._peaks), holders)
        return holders // 2 + 1 if most == holders else (most + 1) // 2

    def _of_all(self, name: bytes) -> set[PeerId]:
        everyone = [*self._known.get(name, {}).values(), Contact(self._own)]
        nearest = _ranked(name, everyone)[: self._parameters.holders]
        return {contact.peer_id for contact in nearest}

    def _of_table(self, name: bytes) -> dict[PeerId, Contact]:
        table = self._dht.table.closest(key_of(name), self._parameters.holders)
        return {contact.peer_id: contact for contact in table}

    def _fail(self, name: bytes, peer_id: PeerId, now: Moment) -> None:
        if peer_id == self._own:
            return
        first_s, _ = self._failed.pop(peer_id, (now.mono_s, 0.0))
        if now.mono_s - first_s > self._parameters.remembered_s:
            self._known[name].pop(peer_id, None)
            return
        self._failed[peer_id] = (first_s, now.mono_s)
        if len(self._failed) > MAX_FAILED:
            del self._failed[next(iter(self._failed))]

    def _trim(self, name: bytes) -> None:
        known = self._known[name]
        most = 2 * self._parameters.holders
        if len(known) > most:
            kept = _ranked(name, known.values())[:most]
            self._known[name] = {contact.peer_id: contact for contact in kept}


def _ranked(name: bytes, contacts: Iterable[Contact]) -> list[Contact]:
    key = key_of(name)
    return sorted(contacts, key=lambda each: distance(key_of_peer(each.peer_id), key))
