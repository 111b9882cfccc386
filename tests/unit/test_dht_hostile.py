"""What a worker does about peers that lie to it about its own announcement: nothing without end,
and nothing that hides it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest

from formation_p2p.core.capability.shards import shard_key
from formation_p2p.core.dht import codec, kad_pb2
from formation_p2p.core.dht import messages as kad
from formation_p2p.core.dht.messages import (
    Added,
    AddProvider,
    Providers,
    PutValue,
    Reply,
    Request,
    ShardCount,
    Stored,
)
from formation_p2p.core.dht.subnets import crowding, subnets
from formation_p2p.core.discovery.parameters import DiscoveryParameters
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.core.identity import key_of_peer
from formation_p2p.core.keyspace import MAX_DEPTH, Key, key_of
from formation_p2p.core.records.addresses import address_text
from formation_p2p.core.records.profile import open_profile
from tests.support import dht_world as world
from tests.support.dht_world import DhtWorld, Lie
from tests.unit.test_discovery_announcer import TTL_S, Worker, people, settled

DISCOVERY = DiscoveryParameters()

MUCH = 2**32 - 1
HONEST_MESSAGES = 200  # of alice in five minutes, in a town of twelve


def asked_by(town: DhtWorld, name: str) -> int:
    requests = kad.Request.__args__
    return sum(each.sender == name and isinstance(each.message, requests) for each in town.carried)


def saying(count: Callable[[], ShardCount]) -> Lie:
    """Whoever lies so says this of every shard."""

    def lie(request: Request, reply: Reply | None) -> Reply | None:
        if isinstance(reply, Providers):
            return Providers(reply.providers, reply.closer, count())
        if isinstance(reply, Added):
            return Added(tuple(count() for _ in reply.counts), reply.closer)
        return reply

    return lie


def test_one_that_answers_who_looks_for_it_and_takes_nothing_is_given_up_for_this_round() -> None:
    """It was looked for, found, written to and looked for again, as fast as the network went."""
    town, alice = settled(*people(12))
    town.nodes["node 3"].lie = lambda request, reply: (
        Stored(request.name, b"") if isinstance(request, PutValue) else reply
    )
    town.carried.clear()
    alice.start()
    town.elapse(20)
    assert asked_by(town, "alice") < HONEST_MESSAGES


@pytest.mark.at_length
def test_siblings_that_a_holder_names_on_its_own_machine_hold_no_more_than_a_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """All eight holders were of one machine as soon as one of them was asked for closer peers."""

    def somewhere(name: str) -> Contact:
        a, b, c, *_ = hashlib.sha256(name.encode()).digest()
        address = f"/ip4/{60 + a % 100}.{b}.{c}.1/tcp/4001"
        if name.startswith("sybil"):
            address = f"/ip4/45.9.9.9/tcp/{1024 + b * 200 + c}"
        return Contact(world.person(name).peer_id, (address,))

    monkeypatch.setattr(world, "contact", somewhere)
    town, alice = settled(*people(40))
    name = shard_key(world.NETWORK, "any", Key(0), 0)
    ids = [f"sybil {number}" for number in range(1000)]
    ids.sort(key=lambda each: key_of_peer(world.person(each).peer_id) ^ key_of(name))
    sybils = town.join(*ids[:16])
    for sybil in sybils:
        sybil.lie = lambda request, reply: (
            Added(reply.counts, tuple(each.contact for each in sybils))
            if isinstance(reply, Added)
            else reply
        )
    alice.start()
    for _ in range(3):
        town.elapse(100)
        held = alice.announcer.publications[name].replicas
        assert len(held) == 8
        assert sum(each in [sybil.contact for sybil in sybils] for each in held) <= 2


def test_where_too_few_others_are_known_those_of_a_crowded_subnet_do() -> None:
    campus = [world.contact(f"student {number}") for number in range(3)]
    campus = [Contact(each.peer_id, ("/ip4/129.132.1.1/tcp/4001",)) for each in campus]
    assert crowding(subnets(each.addresses) for each in campus) == [False, False, True]
    alone = world.Alone()
    assert set(alone.dht.nearest(b"a name", campus, 4)) == {Contact(alone.own.peer_id), *campus}


def test_peers_that_call_a_shard_full_and_empty_in_turn_move_nobody_without_end() -> None:
    """A worker followed them every five seconds, with all that it announces."""
    town, alice = settled(*people(12))
    left, empty = ShardCount(1, 0, 0, 2**31, MAX_DEPTH, 2**31), ShardCount(1, 1)
    for number in range(11):
        town.nodes[f"node {number}"].lie = saying(lambda: empty if is_settled(alice) else left)
    town.carried.clear()
    alice.start()
    town.elapse(300)
    moves = len({each.profile.spans for each in alice.issued})
    assert moves > 1, "nobody was fooled, and nothing is tested"
    # Every TTL some moves, and between them what is announced in any case.
    assert len(alice.issued) < 10 + (300 / TTL_S + 1) * DISCOVERY.max_moves
    assert asked_by(town, "alice") < 10 * HONEST_MESSAGES


def is_settled(worker: Worker) -> bool:
    """As its newest profile says to everybody."""
    spans = worker.issued[-1].profile.spans if worker.issued else ()
    return bool(spans) and all(low == high for low, high in spans)


@pytest.mark.parametrize(
    "lie",
    [
        pytest.param(ShardCount(MUCH, MUCH, MUCH, MUCH, MAX_DEPTH, MUCH), id="everything"),
        # The ways of these are covered by the first.
        *(
            pytest.param(lie, id=id, marks=pytest.mark.at_length)
            for id, lie in {
                "all deeper": ShardCount(0, 0, 0, 2**31, MAX_DEPTH, 0),
                "all here": ShardCount(2**31, 2**31, 0, 0, 0, 0),
                "everywhere": ShardCount(9, 0, 2**31, 2**31, 1, 0),
            }.items()
        ),
    ],
)
def test_counts_without_measure_end_the_walk_at_the_deepest_shard_at_last(lie: ShardCount) -> None:
    town, alice = settled(*people(12))
    for number in range(11):
        town.nodes[f"node {number}"].lie = saying(lambda: lie)
    town.carried.clear()
    alice.start()
    town.elapse(300)
    # At most every depth of its thirteen buckets once, and then the one above its home in some
    # rounds, of the eleven peers each time.
    assert asked_by(town, "alice") < 13 * (MAX_DEPTH + 2 + len(DISCOVERY.look_above_rounds)) * 11
    for each in alice.issued:
        assert open_profile(each.raw, each.profile.issued_unix_s).profile == each.profile
        assert all(low <= high <= MAX_DEPTH for low, high in each.profile.spans)


@pytest.mark.at_length
def test_added_closer_peers_that_do_not_exist_cost_one_round_of_writes_each_time() -> None:
    town, alice = settled(*people(12))

    def inventing(request: Request, reply: Reply | None) -> Reply | None:
        if not isinstance(request, AddProvider) or not isinstance(reply, Added):
            return reply
        invented = [world.contact(f"nobody {number}") for number in range(300)]
        target = key_of(request.name)
        invented.sort(key=lambda each: key_of_peer(each.peer_id) ^ target)
        return Added(reply.counts, tuple(invented[:20]))

    for number in range(11):
        town.nodes[f"node {number}"].lie = inventing
    town.carried.clear()
    alice.start()
    town.elapse(300)
    assert asked_by(town, "alice") < 5 * HONEST_MESSAGES
    for name, publication in alice.announcer.publications.items():
        assert sum(node.held(name, town.now) != [] for node in town.nodes.values()) >= 4
        assert publication.replicas


def test_a_name_given_twice_would_be_counted_twice_and_is_refused() -> None:
    alice = world.signed("alice", world.NOW)
    with pytest.raises(ProtocolViolation, match="twice"):
        codec.parse_request(codec.encode(world.added(alice, b"a name", b"another", b"a name")))


def test_of_many_providers_where_one_is_meant_nothing_is_read() -> None:
    wire = kad_pb2.Message(type=kad_pb2.Message.ADD_PROVIDER, key=b"a name")
    for number in range(32):
        wire.providerPeers.add(
            id=b"\x00\x24" + bytes(36), addrs=[b"\x04\x0a\x09\x08" + bytes([number])]
        )
    before = address_text.cache_info().misses
    with pytest.raises(ProtocolViolation, match="names 32 providers"):
        codec.parse_request(wire.SerializeToString(), world.contact("bob").peer_id)
    assert address_text.cache_info().misses == before
