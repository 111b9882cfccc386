"""A bucket that grows and shrinks while its workers announce themselves, and a reader elsewhere.

Whatever the shards are doing, the reader finds the nearest workers, all of them and in one go.
"""

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import key_of_peer
from formation_p2p.core.keyspace import MAX_DEPTH, WHOLE, Key, Span, key_of
from formation_p2p.dht.core import messages as kad
from formation_p2p.dht.core.operations import Published, Searched
from formation_p2p.discovery.core.announcer import Announcer
from formation_p2p.discovery.core.finder import Finder, Found
from formation_p2p.discovery.core.parameters import DiscoveryParameters
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.records.core.buckets import shard_key
from formation_p2p.records.core.profile import SignedProfile
from simulations.simulator.world import World
from tests.support import dht_world as world
from tests.support.dht_world import Completed, DhtNode, DhtWorld, sealed

DISCOVERY = DiscoveryParameters()

pytestmark = pytest.mark.at_length

ANYONE = Requirements(cpu_milli=1, memory_bytes=1)
TERMS = DiscoveryParameters(ttl_s=60.0)
# From its start until a worker has found its home and written there.
ANNOUNCED_S = 6.0


class Settler:
    """A node of the world that announces itself in the bucket of all, and can look for others."""

    def __init__(self, town: DhtWorld, node: DhtNode) -> None:
        self.town = town
        self.node = node
        self.since_s = town.now_s
        self.sequence = 0
        self.found: list[Found] = []
        self.finder = Finder(node.dht, world.NETWORK)
        rng = random.Random(node.name)
        self.announcer = Announcer(
            node.contact, node.dht, world.NETWORK, ("any",), world.MACHINE, self.issue, rng, TERMS
        )
        node.upper = self

    def issue(self, now: Moment, spans: tuple[Span, ...], withdrawn: bool) -> SignedProfile:
        self.sequence += 1
        ttl_s = int(TERMS.ttl_s)
        unsigned = world.profile(self.node.name, now, sequence=self.sequence, ttl_s=ttl_s)
        return sealed(replace(unsigned, spans=spans, withdrawn=withdrawn), self.node.identity)

    def completed(self, completed: Completed, now: Moment) -> None:
        if isinstance(completed, Published):
            self.announcer.published(completed, now)
        elif isinstance(completed, Searched) and not self.announcer.searched(completed, now):
            self.finder.searched(completed, now)
            self.found += self.finder.take()

    def tick(self, now: Moment) -> None:
        self.announcer.tick(now)

    def next_timeout(self) -> float:
        return self.announcer.next_timeout()

    def find(self, target: Key) -> Found:
        """Takes a virtual second."""
        self.finder.find(ANYONE, target, self.town.now, "a test", fresh=True)
        self.town.perform(self.node)
        self.town.elapse(1)
        return self.found.pop()

    @property
    def span(self) -> Span:
        publications = self.announcer.publications.values()
        return next((each.membership.span for each in publications if each.membership), WHOLE)


class Colony(DhtWorld):
    def __init__(self, seed: int, size: int) -> None:
        super().__init__(seed)
        self.rng = random.Random(seed)
        self.settlers: dict[str, Settler] = {}
        self.grow(size)

    def grow(self, size: int) -> None:
        for number in range(len(self.nodes), len(self.nodes) + size):
            [node] = self.join(f"settler {number}", every_s=0.1)
            settler = self.settlers[node.name] = Settler(self, node)
            settler.announcer.start(self.now)
            self.perform(node)

    def perish(self, names: Iterable[str]) -> None:
        """Without a word."""
        for name in names:
            self.nodes[name].alive = False
            del self.settlers[name]

    def anybody(self) -> Settler:
        return self.rng.choice(list(self.settlers.values()))

    def missed(self, target: Key) -> int:
        """How many of the nearest workers a reader does not find."""
        there = [
            settler.node
            for settler in self.settlers.values()
            if settler.since_s + ANNOUNCED_S <= self.now_s
        ]
        found = self.anybody().find(target)
        by_id = {profile.peer_id for profile in found.profiles}
        truth = self.nearest(target, DISCOVERY.wanted, among=there)
        farthest = max((key_of_peer(each) ^ target for each in truth), default=0)
        newer = [each for each in by_id - set(truth) if key_of_peer(each) ^ target < farthest]
        return len(set(truth[: max(0, DISCOVERY.wanted - len(newer))]) - by_id)

    def spans(self) -> set[Span]:
        return {settler.span for settler in self.settlers.values()}

    def target(self) -> Key:
        return Key(self.rng.getrandbits(256))


def watch(colony: Colony, seconds: float, missed: dict[float, int]) -> None:
    """Somebody looks for the workers nearest to some key, every six seconds."""
    until_s = colony.now_s + seconds
    while colony.now_s < until_s:
        count = colony.missed(colony.target())
        if count:
            missed[colony.now_s] = count
        colony.elapse(5)


def test_the_nearest_are_found_at_any_time_while_a_bucket_grows_and_after_most_have_died() -> None:
    """First those who are dead must expire; nobody says that they are gone."""
    colony, missed = Colony(1, 10), dict[float, int]()
    colony.elapse(ANNOUNCED_S)
    watch(colony, 5, missed)
    assert colony.spans() == {Span(0, 0)}
    while len(colony.settlers) < 40:
        colony.grow(10)
        watch(colony, 4, missed)
    assert len(colony.spans()) > 1  # in the middle of its first split
    watch(colony, 3 * TERMS.ttl_s, missed)
    assert colony.spans() == {Span(1, 1)}
    colony.perish(colony.rng.sample(sorted(colony.settlers), 34))
    colony.elapse(TERMS.ttl_s)
    watch(colony, 4 * TERMS.ttl_s, missed)
    assert colony.spans() == {Span(0, 0)}
    assert missed == {}


def liar(request: kad.Request, reply: kad.Reply | None) -> kad.Reply | None:
    """Says that every shard is overfull, and that all have long left it."""
    lie = kad.ShardCount(500, 0, 0, 500, MAX_DEPTH)
    match reply:
        case kad.Providers():
            return replace(reply, count=lie)
        case kad.Added(counts):
            return replace(reply, counts=(lie,) * len(counts))
        case _:
            return reply


def test_a_liars_word_about_a_shard_moves_nobody_out_of_it() -> None:
    """It raises a doubt; but then all who hold the shard are asked, and it is outvoted."""
    colony = Colony(3, 16)
    nearest = colony.nearest(key_of(shard_key(world.NETWORK, "any", Key(0), 0)), 2)
    for node in colony.nodes.values():
        if node.peer_id in nearest:
            node.lie = liar
    before = len(colony.carried)
    colony.elapse(4 * TERMS.ttl_s)
    assert colony.spans() == {Span(0, 0)}
    polls = [e for e in colony.carried[before:] if isinstance(e.message, kad.GetProviders)]
    assert polls  # there were doubts


def test_who_start_together_and_split_by_different_numbers_of_levels_meet_again() -> None:
    """Seventy in seven seconds: some see 60 members and go a level deeper, others 66 and go two.
    Once they had left the bucket's own name, readers found the ones or the others."""
    colony, missed = Colony(2, 70), dict[float, int]()
    colony.elapse(2.1 * TERMS.ttl_s - colony.now_s)
    watch(colony, 0.6 * TERMS.ttl_s, missed)
    assert missed == {}


# -- in a network of few nodes -------------------------------------------------------------------


@pytest.mark.at_length
def test_a_worker_that_announced_when_there_were_few_is_found_after_more_have_come() -> None:
    world = World(1)
    world.add("gate")
    world.elapse(1)
    alice = world.add("alice", serve=world.machine())
    world.elapse(5)
    for n in range(10):
        world.add(f"newcomer-{n}")
        world.elapse(0.2)
    bob = world.add("bob")
    world.elapse(1)
    for n in range(8):
        bob.explain(Requirements(driver="process", labels=()), f"task {n}")
        bob.explain(None, f"task {n}")
    world.elapse(5)
    found = [[r.profile.peer_id for r in e.decision.ranked] for e in bob.explained]
    assert found == [[alice.identity.peer_id]] * 16
