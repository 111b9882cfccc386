"""The iterative lookup: find the peers nearest to a key by asking ever nearer ones.

A pure iterator in the manner of rust-libp2p's `ClosestPeersIter`: it says whom to ask and is
told how that went. It knows nothing of messages, of clocks or of what is asked.

Source: Kademlia, section 2.3; libp2p kad-dht specification, "Peer routing". What it does about
peers who lie was measured (docs/decisions, 6); S/Kademlia's disjoint paths were, and are not here.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Final

from formation_p2p.dht.routing import K
from formation_p2p.effects import Contact
from formation_p2p.identity import PeerId, key_of_peer
from formation_p2p.keyspace import Key, distance

# Requests under way at once (specification: alpha = 10).
ALPHA: Final = 10
# A lookup in a network of a million nodes asks about 60 peers; one that is still going at this
# many is being led along by liars who exist, each of whom names another one nearer.
MAX_ASKED: Final = 200
# Peers heard of and not asked. A lookup among honest peers hears of some 150; this leaves room
# for the inventions of a dozen liars, at 20 an answer.
MAX_HEARD_OF: Final = 400
# How many of those that one peer named may fail, beyond those that answered, before its word
# counts for nothing; also how many may be under way on its word alone. One too few and peers
# that have just died discredit who named them; each more costs one request for each liar met.
CREDIT: Final = 3
# Different addresses at which a peer is asked. All who know it name the same; liars may not.
MAX_PLACES: Final = 4


@dataclass(slots=True, eq=False)
class _Namer:
    """A peer that answered and named others, and how those fared that were asked since."""

    credit: float = CREDIT  # one more for each that answered, one less for each that failed
    under_way: int = 0


@dataclass(slots=True)
class _Known:
    """A peer that was heard of, or asked. Who fails at one place may be asked at another."""

    contact: Contact  # as it was asked last
    namers: list[_Namer] = field(default_factory=list)
    places: dict[tuple[str, ...], int] = field(default_factory=dict)  # how many named each
    tried: set[str] = field(default_factory=set)  # addresses
    has_failed: bool = False  # and is not heard of at a place that was not tried

    def best_place(self) -> tuple[str, ...] | None:
        """The one that most have named, of those with an address that was not tried."""
        untried = [place for place in self.places if not self.tried.issuperset(place)]
        return max(untried, key=self.places.__getitem__, default=None)


class Lookup:
    """Call `next_peers` for whom to ask, and exactly once `answered` or `failed` for each.

    `width` nearest peers must have answered before it ends; `alpha` are asked at once. With an
    alpha below the width it is narrow on its way and wide at its end. It may end while `spare`
    nearer ones still keep it waiting: then one peer that is slow, or dead, costs no timeout.

    It terminates. Every call of `next_peers` that names somebody adds to `asked`, which never
    passes `MAX_ASKED`, and for each one named the caller reports exactly once; so the number
    under way falls to zero. Then nobody's word is waited for (`_Namer.under_way` is 0), hence
    who is believed may be asked, and `next_peers` names one unless the lookup is finished: a
    peer that may still be asked is all that keeps it from being so.

    It is finished once the `width` nearest that have not failed have answered, but for the spare
    ones, and nobody has named a nearer one that was not asked, but for those whose word was no
    good. Where fewer than `width` have answered, all that were named were asked. Hence among
    honest peers who stay, and with none to spare, `closest` are the closest.
    """

    def __init__(
        self,
        target: Key,
        seeds: Iterable[Contact],
        *,
        own: PeerId,
        width: int = K,
        alpha: int = ALPHA,
        spare: int = 0,
        key_of: Callable[[PeerId], Key] = key_of_peer,
    ) -> None:
        self.target = target
        self.asked = 0
        self._own = own
        self._width = width
        self._alpha = alpha
        self._spare = spare
        self._key_of = key_of
        self._known: dict[PeerId, _Known] = {}
        # Both by distance from the target, the nearest first. Who fails leaves the second.
        self._heard_of: list[tuple[int, PeerId]] = []
        self._nearest: list[tuple[int, PeerId]] = []
        self._under_way: set[PeerId] = set()
        self._table = _Namer(credit=float("inf"))  # who named the seeds; it does not lie
        self._stale = 0  # of the seeds have failed
        self._hear_of(seeds, self._table)

    def next_peers(self) -> tuple[Contact, ...]:
        """Whom to ask now; empty while all there is to ask is under way, or at the end."""
        peers: list[Contact] = []
        if self.finished:
            return ()
        while len(self._under_way) < self._alpha and (place := self._next()) is not None:
            self._heard_of.remove(place)
            insort(self._nearest, place)
            self._under_way.add(place[1])
            self.asked += 1
            peers.append(self._ask(self._known[place[1]]))
        return tuple(peers)

    def answered(self, peer_id: PeerId, closer: Iterable[Contact] = ()) -> None:
        """A peer answered, and named `closer` ones."""
        self._settle(peer_id, 1)
        self._hear_of(closer, _Namer())

    def failed(self, peer_id: PeerId) -> None:
        self._settle(peer_id, -1)
        self._nearest.remove(self._place(peer_id))
        known = self._known[peer_id]
        self._stale += self._table in known.namers
        known.has_failed = True
        self._hear_again_of(peer_id)

    @property
    def finished(self) -> bool:
        """Whether the answer is final. Requests to farther peers may still be under way."""
        waiting = answered = 0
        for _, peer_id in self._nearest:
            if peer_id in self._under_way:
                waiting += 1
            else:
                answered += 1
            if answered == self._width:
                break
        if waiting > (self._spare if answered == self._width else 0):
            return False
        return self.asked >= MAX_ASKED or not self._anyone_left()

    def closest(self) -> tuple[Contact, ...]:
        """The nearest peers that answered, at most `width`, nearest first."""
        answered = [peer_id for _, peer_id in self._nearest if peer_id not in self._under_way]
        return tuple(self._known[peer_id].contact for peer_id in answered[: self._width])

    def _anyone_left(self) -> bool:
        """Whether the answer could still change if others were asked."""
        asked_ahead = self._within(self._width + self._spare)
        if any(self._is_believed(peer_id) for _, peer_id in asked_ahead):
            return True
        return len(self._nearest) < self._width and bool(self._heard_of)

    def _next(self) -> tuple[int, PeerId] | None:
        """The nearest one to ask now, by who named it; with nobody better, a doubtful one."""
        if self.asked >= MAX_ASKED:
            return None
        believed = False
        # For each one out of our own table that failed, one more is asked ahead of its turn: where
        # all have died their timeouts must not follow one another.
        for place in self._within(self._width + self._spare + self._stale):
            namers = self._known[place[1]].namers
            if any(namer.credit > namer.under_way for namer in namers):
                return place
            believed = believed or self._is_believed(place[1])
        if believed or len(self._nearest) >= self._width or not self._heard_of:
            return None
        return self._heard_of[0]

    def _within(self, width: int) -> Iterator[tuple[int, PeerId]]:
        """Who was not asked and would be among the `width` nearest, the nearest first."""
        if len(self._nearest) < width:
            return iter(self._heard_of)
        farthest = self._nearest[width - 1]
        return takewhile(lambda place: place < farthest, self._heard_of)

    def _is_believed(self, peer_id: PeerId) -> bool:
        return any(namer.credit > 0 for namer in self._known[peer_id].namers)

    def _ask(self, known: _Known) -> Contact:
        place = known.best_place()
        assert place is not None  # or it would not be among those heard of
        known.tried.update(place)
        known.contact = Contact(known.contact.peer_id, place)
        for namer in known.namers:
            namer.under_way += 1
        return known.contact

    def _settle(self, peer_id: PeerId, credit: int) -> None:
        self._under_way.remove(peer_id)
        for namer in self._known[peer_id].namers:
            namer.under_way -= 1
            namer.credit += credit

    def _hear_of(self, contacts: Iterable[Contact], namer: _Namer) -> None:
        for contact in contacts:
            peer_id = contact.peer_id
            if peer_id == self._own or not contact.addresses:
                continue
            known = self._known.get(peer_id)
            if known is None:
                known = self._known[peer_id] = _Known(contact)
                insort(self._heard_of, self._place(peer_id))
            if namer in known.namers:
                continue  # named twice in one answer
            known.namers.append(namer)
            if peer_id in self._under_way:
                namer.under_way += 1
            if contact.addresses in known.places:
                known.places[contact.addresses] += 1
            elif len(known.places) < MAX_PLACES:
                known.places[contact.addresses] = 1
                self._hear_again_of(peer_id)
        self._forget()

    def _hear_again_of(self, peer_id: PeerId) -> None:
        known = self._known[peer_id]
        if known.has_failed and known.best_place() is not None:
            known.has_failed = False
            insort(self._heard_of, self._place(peer_id))

    def _forget(self) -> None:
        """Of too many that were heard of, those that would be asked last."""
        if len(self._heard_of) <= MAX_HEARD_OF:
            return
        places = sorted(self._heard_of, key=lambda place: (not self._is_believed(place[1]), place))
        for _, peer_id in places[MAX_HEARD_OF:]:
            if self._known[peer_id].tried:
                self._known[peer_id].has_failed = True
            else:
                del self._known[peer_id]
        self._heard_of = sorted(places[:MAX_HEARD_OF])

    def _place(self, peer_id: PeerId) -> tuple[int, PeerId]:
        return distance(self._key_of(peer_id), self.target), peer_id
