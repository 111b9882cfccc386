"""The iterative lookup: find the peers nearest to a key by asking ever nearer ones.

A pure iterator in the manner of rust-libp2p's `ClosestPeersIter`: it says whom to ask and is
told how that went. It knows nothing of messages, of clocks or of what is asked.

Source: Kademlia, section 2.3; libp2p kad-dht specification, "Peer routing".
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Iterable
from enum import Enum, auto
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


class _State(Enum):
    HEARD_OF = auto()
    ASKED = auto()
    ANSWERED = auto()
    FAILED = auto()


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
        self._own = own
        self._width = width
        self._alpha = alpha
        self._key_of = key_of
        self._states: dict[PeerId, _State] = {}
        self._contacts: dict[PeerId, Contact] = {}
        self._nearest: list[tuple[int, PeerId]] = []  # sorted by distance; failed ones leave it
        self._under_way = 0
        self._asked = 0
        self._stopped = False
        self._hear_of(seeds)

    def next_peers(self) -> tuple[Contact, ...]:
        """Whom to ask now; empty while all there is to ask is under way, or at the end."""
        peers: list[Contact] = []
        if self._stopped:
            return ()
        for _, peer_id in self._nearest[: self._width]:
            if self._under_way >= self._alpha or self._asked >= MAX_ASKED:
                break
            if self._states[peer_id] is _State.HEARD_OF:
                self._states[peer_id] = _State.ASKED
                self._under_way += 1
                self._asked += 1
                peers.append(self._contacts[peer_id])
        return tuple(peers)

    def answered(self, peer_id: PeerId, closer: Iterable[Contact] = ()) -> None:
        """A peer answered, and named `closer` ones."""
        self._under_way -= 1
        self._states[peer_id] = _State.ANSWERED
        self._hear_of(closer)

    def failed(self, peer_id: PeerId) -> None:
        self._under_way -= 1
        self._states[peer_id] = _State.FAILED
        self._nearest.remove((distance(self._key_of(peer_id), self.target), peer_id))

    def stop(self) -> None:
        """Ask nobody else: the caller has what it looked for."""
        self._stopped = True

    @property
    def finished(self) -> bool:
        """Whether the answer is final. Requests may still be under way after `stop`."""
        if self._stopped:
            return True
        nearest = [self._states[peer_id] for _, peer_id in self._nearest[: self._width]]
        if all(state is _State.ANSWERED for state in nearest):
            return True
        return self._under_way == 0 and self._asked >= MAX_ASKED

    def closest(self) -> tuple[Contact, ...]:
        """The nearest peers that answered, at most `width`, nearest first."""
        answered = [
            self._contacts[peer_id]
            for _, peer_id in self._nearest
            if self._states[peer_id] is _State.ANSWERED
        ]
        return tuple(answered[: self._width])

    @property
    def asked(self) -> int:
        """How many peers were asked."""
        return self._asked

    def _hear_of(self, contacts: Iterable[Contact]) -> None:
        for contact in contacts:
            peer_id = contact.peer_id
            if peer_id in self._states or peer_id == self._own:
                continue
            self._states[peer_id] = _State.HEARD_OF
            self._contacts[peer_id] = contact
            insort(self._nearest, (distance(self._key_of(peer_id), self.target), peer_id))
