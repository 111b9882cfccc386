"""A broadcast along the Kademlia tree: who passes on to whom, so that each peer hears it once.

A peer that is to cover all keys which share `depth` bits with its own passes on to one peer of each
of its buckets within: that one shares some bits more, and covers all keys that share those with it.
`reach` bounds how many peers hear it: each counts itself, and divides the rest among its branches
by how many peers it believes there to be. So one message leads to fewer than `reach` others,
wherever it comes from, and a network of any size is sampled evenly.

Source: El-Ansary et al., "Efficient Broadcast in Structured P2P Networks", IPTPS 2003, here on the
buckets of Kademlia; the division of `reach` is this project's own.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.keyspace import KEY_BITS, Key, distance
from formation_p2p.wants.core.want import AnnounceParameters


@dataclass(frozen=True, slots=True)
class Branch:
    """`to` covers the keys that share `depth` bits with its own, and has `reach` peers hear it,
    itself included."""

    to: Contact
    depth: int
    reach: int


@dataclass(frozen=True, slots=True)
class _Bucket:
    """The peers that share exactly so many bits with us, and about how many there are of them."""

    shared: int
    peers: Sequence[Contact]
    size: int


def size_of(own: Key, contacts: Iterable[Contact], k: int) -> int:
    """About how many peers there are, this one included."""
    return 1 + sum(bucket.size for bucket in _buckets(own, contacts, 0, k))


def branches(
    own: Key,
    contacts: Iterable[Contact],
    depth: int,
    reach: int,
    k: int,
    rng: random.Random,
    gone: Collection[PeerId] = (),
) -> list[Branch]:
    """Where to pass it on, which covers `depth` of our own key with `reach` peers, us included.
    Those `gone` are taken only where a bucket has no others."""
    buckets = _buckets(own, contacts, depth, k)
    left, size = reach - 1, sum(bucket.size for bucket in buckets)
    found = []
    for bucket in buckets:
        if left <= 0:
            break
        share = min(left, max(1, round(left * bucket.size / size)))
        here = [peer for peer in bucket.peers if peer.peer_id not in gone] or bucket.peers
        found.append(Branch(rng.choice(here), bucket.shared + 1, share))
        left -= share
        size -= bucket.size
    return found


def _buckets(own: Key, contacts: Iterable[Contact], depth: int, k: int) -> list[_Bucket]:
    """The farthest, and so the largest, first. Of a bucket that is not full all peers are known; a
    full one is the other half of a subtree, and so about as large as what is nearer to us."""
    by_shared: dict[int, list[Contact]] = {}
    for contact in contacts:
        shared = KEY_BITS - distance(own, key_of_peer(contact.peer_id)).bit_length()
        if depth <= shared < KEY_BITS:
            by_shared.setdefault(shared, []).append(contact)
    nearer, buckets = 1, []
    for shared in sorted(by_shared, reverse=True):
        peers = by_shared[shared]
        size = len(peers) if len(peers) < k else max(len(peers), nearer)
        nearer += size
        buckets.append(_Bucket(shared, peers, size))
    return buckets[::-1]


# Passing on the wants that are spread: to one peer of each bucket, and to another where one is
# gone.
@dataclass(slots=True)
class _Sent:
    """A branch of a want; `tried` are the peers that it was sent to."""

    raw: bytes
    branch: Branch
    until_s: float
    tried: set[PeerId] = field(default_factory=set)


class Relay:
    """`contacts` are the peers of this node's buckets, which hold at most `k` each. Call `spread`
    for a want, one's own or one that was taken, and `undelivered` for each peer that was not
    reached."""

    def __init__(
        self,
        own: PeerId,
        contacts: Callable[[], Iterable[Contact]],
        k: int,
        rng: random.Random,
        parameters: AnnounceParameters,
    ) -> None:
        self._key = key_of_peer(own)
        self._contacts = contacts
        self._k = k
        self._rng = rng
        self._parameters = parameters
        self._sent: list[_Sent] = []  # the one sent longest ago first

    def spread(self, raw: bytes, depth: int, reach: int, now: Moment) -> Sequence[Branch]:
        """Whom to pass a want on to, of those that share `depth` bits of their keys with ours."""
        found = branches(self._key, self._contacts(), depth, reach, self._k, self._rng)
        until_s = now.mono_s + self._parameters.branch_s
        for branch in found:
            self._sent.append(_Sent(raw, branch, until_s, {branch.to.peer_id}))
        del self._sent[: -self._parameters.max_branches]
        return found

    def undelivered(self, to: PeerId, now: Moment) -> list[tuple[bytes, Branch]]:
        """What was on its way to a peer goes to another of its bucket. One that has room for no
        other try is left."""
        self._sent = [each for each in self._sent if each.until_s > now.mono_s]
        again = []
        for sent in [each for each in self._sent if each.branch.to.peer_id == to]:
            self._sent.remove(sent)
            depth = sent.branch.depth - 1
            near = branches(
                self._key, self._contacts(), depth, 2, self._k, self._rng, gone=sent.tried
            )
            for branch in near:
                if branch.depth == sent.branch.depth and branch.to.peer_id not in sent.tried:
                    other = Branch(branch.to, branch.depth, sent.branch.reach)
                    tried = sent.tried | {branch.to.peer_id}
                    self._sent.append(_Sent(sent.raw, other, sent.until_s, tried))
                    again.append((sent.raw, other))
        return again
