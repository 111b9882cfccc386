"""A broadcast along the Kademlia tree: it reaches all, each once, and never more than it may."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.keyspace import distance
from formation_p2p.wants.core.tree import Relay, branches, size_of
from formation_p2p.wants.core.want import AnnounceParameters
from tests.support.stories import at, identity

K = 20
PARAMETERS = AnnounceParameters()


class Net:
    """Peers with as many others in each bucket as Kademlia would have them know."""

    def __init__(self, count: int, seed: int = 7) -> None:
        self.rng = random.Random(seed)
        self.peers = [identity(f"{seed}/{n}").peer_id for n in range(count)]
        self.root = self.peers[0]
        self.gone: set[PeerId] = set()

    def known(self, peer_id: PeerId) -> list[Contact]:
        buckets: dict[int, list[Contact]] = {}
        for other in self.rng.sample(self.peers, len(self.peers)):
            far = distance(key_of_peer(peer_id), key_of_peer(other)).bit_length()
            if far and len(bucket := buckets.setdefault(far, [])) < K:
                bucket.append(Contact(other))
        known = [contact for bucket in buckets.values() for contact in bucket]
        return [each for each in known if each.peer_id not in self.gone]

    def heard(self, root: PeerId, reach: int) -> list[PeerId]:
        """Everyone that is told, each as often as it is; the root first."""
        heard, sent = [], [(root, 0, reach)]
        while sent:
            peer_id, depth, share = sent.pop()
            heard.append(peer_id)
            own, table = key_of_peer(peer_id), self.known(peer_id)
            for branch in branches(own, table, depth, share, K, self.rng):
                sent.append((branch.to.peer_id, branch.depth, branch.reach))
        return heard


@settings(max_examples=12, deadline=None)
@given(st.integers(1, 70), st.integers(1, 300), st.integers(0, 5))
def test_nobody_hears_it_twice_and_no_more_than_may(count: int, reach: int, seed: int) -> None:
    net = Net(count, seed)
    heard = net.heard(net.root, reach)
    assert len(heard) == len(set(heard)) <= min(reach, count)


@pytest.mark.parametrize("count", [2, 50, 150])
def test_all_hear_it_where_it_may_reach_so_many(count: int) -> None:
    net = Net(count)
    assert len(net.heard(net.root, 300)) >= 0.99 * count


def test_a_large_network_is_sampled_up_to_the_bound() -> None:
    net = Net(400)
    heard = net.heard(net.root, 100)
    assert 95 <= len(heard) <= 100
    assert 0.3 < sum(key_of_peer(p) >> 255 for p in heard) / len(heard) < 0.7


def test_how_many_there_are_is_guessed_from_the_table() -> None:
    net = Net(400)
    sizes = [size_of(key_of_peer(p), net.known(p), K) for p in net.peers[:40]]
    assert 250 < sorted(sizes)[20] < 640
    alone = identity("alone").peer_id
    assert size_of(key_of_peer(alone), (), K) == 1


# -- peers that are gone --------------------------------------------------------------------


def relay_of(net: Net, parameters: AnnounceParameters = PARAMETERS) -> Relay:
    own = net.root
    return Relay(own, lambda: net.known(own), K, random.Random(3), parameters)


def test_another_peer_of_the_bucket_takes_the_place_of_one_that_is_gone() -> None:
    relay = relay_of(Net(40))
    first, *_ = relay.spread(b"want", 0, 40, at(0))
    [(raw, other)] = relay.undelivered(first.to.peer_id, at(1))
    assert (raw, other.depth, other.reach) == (b"want", first.depth, first.reach)
    assert other.to.peer_id != first.to.peer_id
    assert relay.undelivered(first.to.peer_id, at(1)) == []
    # Each is tried once, until none is left.
    tried = {first.to.peer_id}
    while again := relay.undelivered(other.to.peer_id, at(1)):
        tried.add(other.to.peer_id)
        [(_, other)] = again
        assert other.to.peer_id not in tried
    assert 10 < len(tried) <= K


def test_of_a_branch_that_is_forgotten_old_or_empty_nothing_is_sent_again() -> None:
    relay = relay_of(Net(40), AnnounceParameters(max_branches=1))
    *others, last = relay.spread(b"want", 0, 40, at(0))
    assert others
    assert all(relay.undelivered(each.to.peer_id, at(0)) == [] for each in others)
    assert len(relay.undelivered(last.to.peer_id, at(0))) <= 1
    for after_s, empty in ((5, False), (1, True)):
        net = Net(40)
        relay = relay_of(net)
        first, *_ = relay.spread(b"want", 0, 40, at(0))
        net.gone |= set(net.peers) if empty else set()
        assert relay.undelivered(first.to.peer_id, at(after_s)) == []
