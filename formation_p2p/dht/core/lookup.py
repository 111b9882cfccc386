"""The iterative lookup: find the peers nearest to a key by asking ever nearer ones.

A pure iterator in the manner of rust-libp2p's `ClosestPeersIter`: it names the peers to ask and
hears how that went. It knows nothing of messages, of clocks or of what is requested.

Source: Kademlia, section 2.3; libp2p kad-dht specification, "Peer routing". How it treats liars
was measured (docs/decisions, 6); S/Kademlia's disjoint paths were, and are not here.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache
from itertools import compress, takewhile
from operator import not_

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.keyspace import Key, distance
from formation_p2p.dht.core.parameters import DhtParameters
from formation_p2p.dht.core.reachability import Subnet, crowding, subnets


class PeerState(Enum):
    """What a lookup knows of a peer.

    CANDIDATE -> WAITING     it is asked
    CANDIDATE -> FAILED      it was asked before, and too many nearer ones are named
    CANDIDATE -> ANSWERED    it is there, and need not be asked...
    ANSWERED  -> CANDIDATE   ...until a nearer one has failed
    WAITING   -> ANSWERED    for good
    WAITING   -> FAILED
    FAILED    -> CANDIDATE   it is named at a place where it was not asked
    """

    CANDIDATE = "candidate"
    WAITING = "waiting"
    ANSWERED = "answered"
    FAILED = "failed"


@dataclass(slots=True, eq=False)
class _Namer:
    """A peer that answered and named others, and how those fared that were asked since."""

    credit: float  # one more for each that answered, one less for each that failed
    waiting: int = 0


@dataclass(slots=True)
class _Known:
    """A peer that was named. One that fails at one place may be asked at another."""

    contact: Contact  # as it was asked last, or will be asked next
    subnets: frozenset[Subnet]  # of that
    state: PeerState = PeerState.CANDIDATE
    namers: list[_Namer] = field(default_factory=list)
    places: dict[tuple[str, ...], int] = field(default_factory=dict)  # how many named each
    tried: set[str] = field(default_factory=set)  # addresses

    def move_to_best(self) -> bool:
        """To the place that most have named, of those with an address that was not tried."""
        untried = [place for place in self.places if not self.tried.issuperset(place)]
        if not untried:
            return False
        best = max(untried, key=self.places.__getitem__)
        if best != self.contact.addresses:
            self.contact = Contact(self.contact.peer_id, best)
        self.subnets = subnets(best)
        return True


@lru_cache(maxsize=16_384)  # as for a single address: a node meets the same few thousand peers
def _places(addresses: tuple[str, ...]) -> tuple[tuple[str, ...], ...]:
    """Addresses by where they lie, and with the first those that lie nowhere, such as private
    ones. A peer is asked at one place: it could else seem to be wherever it says, and crowd out
    those who are there."""
    by_subnet: dict[frozenset[Subnet], list[str]] = {}
    for address in addresses:
        by_subnet.setdefault(subnets((address,)), []).append(address)
    first, *others = [where for where in by_subnet if where] or [frozenset()]
    here = tuple(a for a in addresses if subnets((a,)) in (first, frozenset()))
    return (here, *(tuple(by_subnet[where]) for where in others))


class Lookup:
    """Call `next_peers` for the peers to ask, and exactly once `answered` or `failed` for each.

    `width` nearest peers must have answered before it ends; `alpha` are asked at once, more only
    where our own table is out of date. With an alpha below the width it is narrow on its way and
    wide at its end. It may end while `spare` nearer ones still keep it waiting: then one peer
    that is slow, or dead, costs no timeout. Seeds that are surely `there` need not answer, but for
    the nearest: a search for peers, and not for what they hold, takes them as they are.

    It terminates. Every call of `next_peers` that names a peer adds to `asked`, which never
    passes `max_asked`, and for each one named the caller reports exactly once; so the number of
    those WAITING falls to zero. Then every `_Namer.waiting` is 0, hence all in `_left` may be
    asked, and `next_peers` names the first of them. Where there is none, it is finished.

    It is finished once the `width` nearest that have not failed have answered, but for the spare
    ones, and no nearer candidate is left. Two kinds of candidates do not count: those named only
    by peers whose word was no good, and those with as many nearer ones in their subnet as a
    bucket would take. They do where there are too few others. Hence among honest peers who stay,
    in subnets not crowded, and with none to spare, `closest` are the closest.
    """

    def __init__(
        self,
        target: Key,
        seeds: Iterable[Contact],
        *,
        own: PeerId,
        width: int,
        alpha: int,
        spare: int = 0,
        parameters: DhtParameters = DhtParameters(),
        key_of: Callable[[PeerId], Key] = key_of_peer,
        there: Set[PeerId] = frozenset(),
    ) -> None:
        self.target = target
        self.asked = 0
        self._own = own
        self._width = width
        self._alpha = alpha
        self._spare = spare
        self._parameters = parameters
        self._key_of = key_of
        self._known: dict[PeerId, _Known] = {}
        # By distance from the target, the nearest first: those that are CANDIDATE, and those that
        # are WAITING or have ANSWERED.
        self._candidates: list[tuple[int, PeerId]] = []
        self._nearest: list[tuple[int, PeerId]] = []
        self._waiting = 0  # how many are
        self._apart_now: list[tuple[int, PeerId]] | None = None  # what `_apart` found
        self._table = _Namer(credit=float("inf"))  # it named the seeds, and does not lie
        self._stale = 0  # of the seeds have failed
        self._hear_of(seeds, self._table)
        # Not asked, the farthest first: whom they would name, the nearer ones know better. As many
        # are asked as a search for records believes, and not those alone who crowd around the key.
        far = self._not_crowded(self._candidates)[parameters.beta :] if there else []
        self._taken = [place for place in reversed(far) if place[1] in there]
        for place in self._taken:
            self._candidates.remove(place)
            self._known[place[1]].state = PeerState.ANSWERED
            insort(self._nearest, place)

    def through(self, seeds: Iterable[Contact]) -> Lookup:
        """The same, begun anew with other peers."""
        return Lookup(
            self.target,
            seeds,
            own=self._own,
            width=self._width,
            alpha=self._alpha,
            spare=self._spare,
            parameters=self._parameters,
            key_of=self._key_of,
        )

    def __iter__(self) -> Iterator[PeerId]:
        """Those asked that have answered, or may."""
        return (peer_id for _, peer_id in self._nearest)

    def next_peers(self) -> tuple[Contact, ...]:
        """The peers to ask now; none while all there are to ask are waiting, or at the end."""
        peers: list[Contact] = []
        if self.finished:
            return ()
        # For each seed that failed, one more at once: see `_next`.
        at_once = min(self._alpha + self._stale, max(self._alpha, self._parameters.alpha))
        while self._waiting < at_once and (place := self._next()) is not None:
            self._candidates.remove(place)
            insort(self._nearest, place)
            self._apart_now = None
            self._waiting += 1
            self.asked += 1
            peers.append(self._ask(self._known[place[1]]))
        return tuple(peers)

    def answered(self, peer_id: PeerId, closer: Iterable[Contact] = ()) -> None:
        """A peer answered, and named `closer` ones."""
        self._settle(peer_id, PeerState.ANSWERED, 1)
        self._hear_of(closer, _Namer(self._parameters.credit))

    def failed(self, peer_id: PeerId) -> None:
        known = self._settle(peer_id, PeerState.FAILED, -1)
        self._nearest.remove(self._place(peer_id))
        self._apart_now = None
        self._stale += self._table in known.namers
        if self._taken:  # as many are asked as if it had not been there
            place = self._taken.pop()
            self._nearest.remove(place)
            self._known[place[1]].state = PeerState.CANDIDATE
            insort(self._candidates, place)
        self._revive(known)

    @property
    def finished(self) -> bool:
        """Whether the result is final. Requests to farther peers may still be in flight."""
        waiting = answered = 0
        apart = self._apart()
        for _, peer_id in apart if len(apart) >= self._width else self._nearest:
            if self._known[peer_id].state is PeerState.WAITING:
                waiting += 1
            else:
                answered += 1
            if answered == self._width:
                break
        if waiting > (self._spare if answered == self._width else 0):
            return False
        return self.asked >= self._parameters.max_asked or not any(
            self._left(self._width + self._spare)
        )

    def closest(self) -> tuple[Contact, ...]:
        """The nearest peers that answered, at most `width`, nearest first. Those of a crowded
        subnet are among them only where there are too few others."""
        apart = self._apart()
        crowded = [place for place in self._nearest if place not in apart]
        answered = [
            place for place in apart + crowded if self._known[place[1]].state is PeerState.ANSWERED
        ]
        nearest = sorted(answered[: self._width])
        return tuple(self._known[peer_id].contact for _, peer_id in nearest)

    def _next(self) -> tuple[int, PeerId] | None:
        """The nearest one to ask now, as far as its namers are believed."""
        if self.asked >= self._parameters.max_asked:
            return None
        # For each seed that failed, one more is asked ahead of its turn: where all have died their
        # timeouts must not follow one another.
        left = self._left(self._width + self._spare + self._stale)
        return next((place for place in left if self._may_ask(place[1])), None)

    def _left(self, width: int) -> Iterator[tuple[int, PeerId]]:
        """The candidates that could change the answer: they would be among the `width` nearest.
        Those of a crowded subnet, or on the word of liars, only where there is no other."""
        apart = self._apart()
        anyone = False
        for place in self._within(apart, width):
            if self._is_believed(place[1]) and not self._is_crowded(place):
                anyone = True
                yield place
        if not anyone and len(apart) < self._width:
            for place in self._within(self._nearest, width):
                if self._is_believed(place[1]):
                    anyone = True
                    yield place
        if not anyone and len(self._nearest) < self._width:
            yield from self._candidates[:1]

    def _within(
        self, nearest: list[tuple[int, PeerId]], width: int
    ) -> Iterator[tuple[int, PeerId]]:
        if len(nearest) < width:
            return iter(self._candidates)
        farthest = nearest[width - 1]
        return takewhile(lambda place: place < farthest, self._candidates)

    def _apart(self) -> list[tuple[int, PeerId]]:
        """Those asked and not failed, less those of crowded subnets."""
        if self._apart_now is None:
            self._apart_now = self._not_crowded(self._nearest)
        return self._apart_now

    def _not_crowded(self, places: list[tuple[int, PeerId]]) -> list[tuple[int, PeerId]]:
        crowded = crowding(self._known[peer_id].subnets for _, peer_id in places)
        return list(compress(places, map(not_, crowded)))

    def _is_crowded(self, place: tuple[int, PeerId]) -> bool:
        """Whether as many nearer ones of one of its subnets were asked as a bucket would take."""
        where = self._known[place[1]].subnets
        nearer = [peer_id for other, peer_id in self._nearest if other < place[0]]
        return any(
            sum(subnet in self._known[peer_id].subnets for peer_id in nearer)
            >= subnet.width.in_bucket
            for subnet in where
        )

    def _may_ask(self, peer_id: PeerId) -> bool:
        namers = self._known[peer_id].namers
        return any(n.credit > n.waiting for n in namers) or not self._is_believed(peer_id)

    def _is_believed(self, peer_id: PeerId) -> bool:
        return any(namer.credit > 0 for namer in self._known[peer_id].namers)

    def _ask(self, known: _Known) -> Contact:
        known.state = PeerState.WAITING
        if len(known.places) > 1:
            known.move_to_best()
        known.tried.update(known.contact.addresses)
        for namer in known.namers:
            namer.waiting += 1
        return known.contact

    def _settle(self, peer_id: PeerId, state: PeerState, credit: int) -> _Known:
        known = self._known[peer_id]
        assert known.state is PeerState.WAITING, f"{peer_id} was not asked, or is reported twice"
        known.state = state
        self._waiting -= 1
        for namer in known.namers:
            namer.waiting -= 1
            namer.credit += credit
        return known

    def _hear_of(self, contacts: Iterable[Contact], namer: _Namer) -> None:
        for contact in contacts:
            peer_id = contact.peer_id
            if peer_id == self._own or not (contact.addresses or namer is self._table):
                continue  # a seed without addresses may be connected
            known, places = self._known.get(peer_id), _places(contact.addresses)
            if known is None:
                here = contact if len(places) == 1 else Contact(peer_id, places[0])
                known = _Known(here, subnets(here.addresses))
                self._known[peer_id] = known
                insort(self._candidates, self._place(peer_id))
            elif known.state is PeerState.ANSWERED or namer in known.namers:
                continue  # nothing more to learn of it; or named twice in one answer
            known.namers.append(namer)
            if known.state is PeerState.WAITING:
                namer.waiting += 1
            for place in places:
                if place in known.places or len(known.places) < self._parameters.max_places:
                    known.places[place] = known.places.get(place, 0) + 1
            if known.state is PeerState.FAILED:
                self._revive(known)
        self._forget()

    def _revive(self, known: _Known) -> None:
        if known.state is PeerState.FAILED and known.move_to_best():
            known.state = PeerState.CANDIDATE
            insort(self._candidates, self._place(known.contact.peer_id))

    def _forget(self) -> None:
        """Of too many candidates, those that would be asked last."""
        most = self._parameters.max_candidates
        if len(self._candidates) <= most:
            return
        places = sorted(
            self._candidates, key=lambda place: (not self._is_believed(place[1]), place)
        )
        for _, peer_id in places[most:]:
            if self._known[peer_id].tried:
                self._known[peer_id].state = PeerState.FAILED
            else:
                del self._known[peer_id]
        self._candidates = sorted(places[:most])

    def _place(self, peer_id: PeerId) -> tuple[int, PeerId]:
        return distance(self._key_of(peer_id), self.target), peer_id
