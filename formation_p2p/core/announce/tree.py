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
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.keyspace import KEY_BITS, Key, distance


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
