"""The iterative lookup: find the peers nearest to a key by asking ever nearer ones.

A pure iterator in the manner of rust-libp2p's `ClosestPeersIter`: it says whom to ask and is
told how that went. It knows nothing of messages, of clocks or of what is asked.

Source: Kademlia, section 2.3; libp2p kad-dht specification, "Peer routing".
"""

from __future__ import annotations

from bisect import bisect, insort
from collections.abc import Callable, Iterable
from typing import Final

from formation_p2p.dht.routing import K
from formation_p2p.effects import Contact
from formation_p2p.identity import PeerId, key_of_peer
from formation_p2p.keyspace import Key, distance

# Requests under way at once (specification: alpha = 10).
ALPHA: Final = 10
# A lookup in a network of a million nodes asks about 60 peers; one that is still going at this
# many is being led along by liars who invent ever nearer peers.
MAX_ASKED: Final = 200


class Lookup:
    """Call `next_peers` for whom to ask, and exactly once `answered` or `failed` for each.

    It terminates. Each peer is asked at most once and at most `MAX_ASKED` are asked, and for
    each of them the caller reports exactly once; so the number of requests under way falls to
    zero, and then `next_peers` either names a new peer, of which there is a bounded number, or
    the lookup is finished. It is finished sooner once the `width` nearest peers that have not
    failed have all answered: none of them knows of a nearer one that was not asked.
    """

    def __init__(
        self,
        target: Key,
        seeds: Iterable[Contact],
        *,
        own: PeerId,
        width: int = K,
        alpha: int = ALPHA,
        key_of: Callable[[PeerId], Key] = key_of_peer,
    ) -> None:
        self.target = target
        self.asked = 0
        self._own = own
        self._width = width
        self._alpha = alpha
        self._key_of = key_of
        self._contacts: dict[PeerId, Contact] = {}  # of all that were asked, or may be
        # Both by distance from the target, the nearest first. Who fails leaves the second.
        self._heard_of: list[tuple[int, PeerId]] = []
        self._nearest: list[tuple[int, PeerId]] = []
        self._under_way: set[PeerId] = set()
        self._hear_of(seeds)

    def next_peers(self) -> tuple[Contact, ...]:
        """Whom to ask now; empty while all there is to ask is under way, or at the end."""
        peers: list[Contact] = []
        if self.finished:
            return ()
        # For each one that failed, one more is asked ahead of its turn: a liar may have named
        # many that do not exist, and their timeouts must not follow one another.
        failed = self.asked - len(self._nearest)
        while len(self._under_way) < self._alpha and self._may_ask(self._width + failed):
            place = self._heard_of.pop(0)
            insort(self._nearest, place)
            self._under_way.add(place[1])
            self.asked += 1
            peers.append(self._contacts[place[1]])
        return tuple(peers)

    def answered(self, peer_id: PeerId, closer: Iterable[Contact] = ()) -> None:
        """A peer answered, and named `closer` ones."""
        self._under_way.remove(peer_id)
        self._hear_of(closer)

    def failed(self, peer_id: PeerId) -> None:
        self._under_way.remove(peer_id)
        self._nearest.remove((distance(self._key_of(peer_id), self.target), peer_id))

    @property
    def finished(self) -> bool:
        """Whether the answer is final. Requests to farther peers may still be under way."""
        nearest = (peer_id for _, peer_id in self._nearest[: self._width])
        return self._under_way.isdisjoint(nearest) and not self._may_ask(self._width)

    def closest(self) -> tuple[Contact, ...]:
        """The nearest peers that answered, at most `width`, nearest first."""
        answered = [peer_id for _, peer_id in self._nearest if peer_id not in self._under_way]
        return tuple(self._contacts[peer_id] for peer_id in answered[: self._width])

    def _may_ask(self, width: int) -> bool:
        """Whether one of the `width` nearest peers was not asked yet, and still may be."""
        if not self._heard_of or self.asked >= MAX_ASKED:
            return False
        return bisect(self._nearest, self._heard_of[0]) < width

    def _hear_of(self, contacts: Iterable[Contact]) -> None:
        for contact in contacts:
            peer_id = contact.peer_id
            if peer_id in self._contacts or peer_id == self._own or not contact.addresses:
                continue
            self._contacts[peer_id] = contact
            insort(self._heard_of, (distance(self._key_of(peer_id), self.target), peer_id))
            if len(self._heard_of) > MAX_ASKED:
                # Its turn would come after that of `MAX_ASKED` nearer ones: never.
                _, farthest = self._heard_of.pop()
                del self._contacts[farthest]
