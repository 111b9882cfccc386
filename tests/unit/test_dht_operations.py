"""Searching and publishing: stories among alice, bob and carol, told in their messages."""

import hashlib
from collections.abc import Callable

import pytest

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.core.identity import key_of_peer, peer_id_to_bytes
from formation_p2p.core.keyspace import MAX_DEPTH, Key, key_of
from formation_p2p.dht.core import kad_pb2, messages
from formation_p2p.dht.core import messages as kad
from formation_p2p.dht.core.messages import (
    MAX_PROVIDERS,
    Added,
    AddProvider,
    GetProviders,
    GetValue,
    Nodes,
    Provider,
    ProviderQuery,
    Providers,
    PutValue,
    Reply,
    Request,
    ShardCount,
    Stored,
    Value,
    Write,
)
from formation_p2p.dht.core.operations import Asked, Delivery, OperationId, Published, Searched
from formation_p2p.dht.core.parameters import DhtParameters
from formation_p2p.dht.core.reachability import crowding, subnets
from formation_p2p.dht.core.rpc import RequestFailed
from formation_p2p.dht.core.store import value_name
from formation_p2p.discovery.core.parameters import DiscoveryParameters
from formation_p2p.records.core.addresses import address_text
from formation_p2p.records.core.buckets import bucket_key, shard_key
from formation_p2p.records.core.profile import open_profile
from tests.support import dht_world as world
from tests.support.dht_messages import parse_request
from tests.support.dht_world import NOW, Alone, DhtWorld, Lie, find_closest, nearest_first, village
from tests.unit.test_discovery_announcer import TTL_S, Worker, people, settled

ANY = bucket_key(world.NETWORK, "any")
ALICE, BOB, CAROL, DAVE = map(world.contact, ("alice", "bob", "carol", "dave"))
EVERYONE = ProviderQuery(Key(0), b"", MAX_PROVIDERS)


# -- publishing and searching -------------------------------------------------------------------


@pytest.mark.at_length
def test_a_record_is_written_to_the_k_nearest_of_whom_its_author_may_be_one() -> None:
    town = village(0, 16, k=4)
    nodes = list(town.nodes.values())
    wrote_to_itself = 0
    for node in nodes:
        signed = world.signed(node.name, town.now)
        name = value_name(node.peer_id)
        for write in (PutValue(name, signed.raw), world.added(signed, ANY)):
            searched, published = town.publish(node, write)
            stored_at = {contact.peer_id for contact in published.stored_at}
            assert stored_at == set(town.nearest(key_of(write.name), 4))
            assert searched.asked >= 3
        for other in nodes:
            has_it = other.records.value(name, town.now) == signed.raw
            assert has_it == (other.peer_id in town.nearest(key_of(name), 4))
        wrote_to_itself += node.records.value(name, town.now) is not None
    assert 0 < wrote_to_itself < len(nodes)


@pytest.mark.at_length
def test_a_lookup_finds_the_k_nearest_though_nobody_knows_everybody() -> None:
    town = village(0, 60, k=6)
    nodes = list(town.nodes.values())
    assert max(len(node.dht.table) for node in nodes) < 40
    sought = world.person("nobody here").peer_id
    for node in nodes[::12]:
        operation = find_closest(node.dht, peer_id_to_bytes(sought), town.now)
        town.perform(node)
        town.elapse(1)
        found = [contact.peer_id for contact in node.searched(operation).closest]
        others = [each for each in nodes if each is not node]
        assert found == town.nearest(key_of_peer(sought), 6, among=others)


def test_a_search_merges_what_it_hears_and_keeps_the_newest_of_each() -> None:
    town = DhtWorld(seed=1)
    alice, bob, carol, dave = town.join("alice", "bob", "carol", "dave")
    town.elapse(5)
    old, new = (world.signed("eve", town.now, sequence=number) for number in (1, 2))
    frank = world.signed("frank", town.now)
    bob.keep(ANY, old, town.now)
    carol.keep(ANY, new, town.now)
    dave.keep(ANY, frank, town.now)
    for node in (alice, bob):  # bob has the old one himself
        operation = node.dht.search(GetProviders(ANY, EVERYONE), town.now, "a test")
        town.perform(node)
        town.elapse(1)
        assert set(node.searched(operation).found) == {new, frank}


def test_who_has_withdrawn_is_not_found_though_one_peer_still_offers_the_old_profile() -> None:
    town = DhtWorld(seed=1)
    alice, bob, carol = town.join("alice", "bob", "carol")
    town.elapse(5)
    old, gone = (
        world.signed("eve", town.now, sequence=1),
        world.tombstone("eve", town.now, sequence=2),
    )
    bob.keep(ANY, old, town.now)
    carol.lie = lambda request, reply: (
        Providers((Provider(CAROL, gone.raw),), ()) if isinstance(request, GetProviders) else reply
    )
    operation = alice.dht.search(GetProviders(ANY, EVERYONE), town.now, "a test")
    town.perform(alice)
    town.elapse(1)
    assert alice.searched(operation).found == ()


def lies(*raws: bytes) -> Callable[[Request, Reply | None], Reply | None]:
    """Answer with these records, and name nobody."""

    def lie(request: Request, reply: Reply | None) -> Reply | None:
        match request:
            case GetProviders():
                return Providers(tuple(Provider(BOB, raw) for raw in raws), ())
            case GetValue():
                return Value(raws[0] if raws else None, ())
            case _:
                return reply

    return lie


def test_storing_peers_who_lie_are_outvoted_by_one_who_does_not() -> None:
    town = DhtWorld(seed=1)
    alice, bob, carol, dave = town.join("alice", "bob", "carol", "dave")
    town.elapse(5)
    eve = world.signed("eve", town.now)
    name = value_name(eve.profile.peer_id)
    for under in (ANY, name):
        bob.keep(under, eve, town.now)
    forged = eve.raw[:-1] + bytes([eve.raw[-1] ^ 1])
    elsewhere = world.sealed(
        world.profile("frank", town.now), world.person("frank")
    )  # rightly signed, but it belongs under no name asked for below
    other = bucket_key(world.NETWORK, "driver/wasm")
    for liar, lie in ((carol, lies(forged, b"", elsewhere.raw)), (dave, lies())):
        liar.lie = lie
    value = alice.dht.search(GetValue(name), town.now, "a test")
    found = alice.dht.search(GetProviders(ANY, EVERYONE), town.now, "a test")
    misplaced = alice.dht.search(GetProviders(other, EVERYONE), town.now, "a test")
    town.perform(alice)
    town.elapse(1)
    assert alice.searched(value).found == (eve,)
    assert set(alice.searched(found).found) == {eve, elsewhere}
    assert alice.searched(misplaced).found == ()


def test_only_who_echoes_a_value_has_stored_it() -> None:
    town = DhtWorld(seed=1)
    alice, bob, carol = town.join("alice", "bob", "carol")
    town.elapse(5)
    bob.lie = lambda request, reply: (
        Stored(request.name, b"") if isinstance(request, PutValue) else reply
    )
    name = value_name(alice.peer_id)
    signed = world.signed("alice", town.now)
    _, published = town.publish(alice, PutValue(name, signed.raw))
    stored_at = [contact.peer_id for contact in published.stored_at]
    assert stored_at == [alice.peer_id, carol.peer_id]


def write_near(alice: Alone, write: Write) -> OperationId:
    """To the nearest that a search which has just ended found."""
    [searched] = alice.dht.take()[1]
    assert isinstance(searched, Searched)
    nearest = alice.dht.nearest(write.name, searched.closest, alice.dht.parameters.k)
    return alice.dht.operations.deliver([(to, write) for to in nearest], NOW, "a test")


@pytest.mark.parametrize("fails", [False, True])
def test_a_late_end_of_a_lookup_that_is_done_does_not_disturb_the_writing(fails: bool) -> None:
    name = value_name(ALICE.peer_id)
    nearest, near, far = nearest_first(name, BOB, CAROL, DAVE)
    alice = Alone(parameters=DhtParameters(k=2), knows=(near, far))
    value = world.signed("alice", NOW).raw
    find_closest(alice.dht, name, NOW)
    to_near, to_far = sorted(alice.requests(), key=lambda sent: sent.to != near)
    alice.respond(to_near, Nodes((nearest,)))
    [to_nearest] = alice.requests()
    alice.respond(to_nearest, Nodes(()))
    operation = write_near(alice, PutValue(name, value))
    writes = alice.requests()
    assert all(isinstance(write.message, PutValue) for write in writes)
    assert far not in [write.to for write in writes]
    if fails:
        alice.dht.handle(RequestFailed(to_far.request_id, "no answer"), NOW)
    else:
        alice.respond(to_far, Nodes((world.contact("eve"),)))
    assert alice.requests() == []
    for write in writes:
        if fails:
            alice.dht.handle(RequestFailed(write.request_id, "no answer"), NOW)
        else:
            alice.respond(write, Stored(name, value))
    [published] = alice.dht.take()[1]
    assert isinstance(published, Published)
    assert published.operation == operation


def test_an_answer_after_the_search_has_ended_is_only_used_for_the_table() -> None:
    alice = Alone(knows=(BOB, CAROL))
    alice.dht.search(GetProviders(ANY, EVERYONE), NOW, "a test")
    first, second = alice.requests()
    alice.dht.operations.abandon(alice.dht.search(GetProviders(ANY, EVERYONE), NOW, "another"))
    third, fourth = alice.requests()
    for sent in (third, fourth):
        alice.respond(sent, Providers((), (DAVE,)))
    assert alice.requests() == []
    for sent in (first, second):
        alice.respond(sent, Providers((), ()))
    [searched] = alice.dht.take()[1]
    assert isinstance(searched, Searched)
    assert searched.asked == 2


def test_an_abandoned_publish_tells_who_may_have_taken_it_and_then_nothing() -> None:
    name = value_name(ALICE.peer_id)
    value = world.signed("alice", NOW).raw
    alice = Alone(knows=(BOB, CAROL))
    find_closest(alice.dht, name, NOW)
    for sent in alice.requests():
        alice.respond(sent, Nodes(()))
    operation = write_near(alice, PutValue(name, value))
    first, second = alice.requests()
    alice.respond(first, Stored(name, value))
    others = {contact.peer_id for contact in alice.dht.operations.abandon(operation)}
    assert others == {ALICE.peer_id, BOB.peer_id, CAROL.peer_id}
    alice.respond(second, Stored(name, value))
    assert alice.dht.take() == ([], [])
    assert alice.dht.operations.abandon(operation) == ()


def test_abandoned_while_it_still_looks_nobody_has_taken_it() -> None:
    alice = Alone(knows=(BOB,))
    for operation in (
        find_closest(alice.dht, value_name(ALICE.peer_id), NOW),
        alice.dht.search(GetProviders(ANY, EVERYONE), NOW, "a test"),
    ):
        assert alice.dht.operations.abandon(operation) == ()
    alice.dht.take()
    nothing = alice.dht.operations.deliver([], NOW, "leave")
    assert alice.dht.take() == ([], [Published(nothing, ())])


def test_writes_to_certain_peers_go_to_them_alone_and_one_to_itself_is_kept_at_once() -> None:
    alice = Alone(knows=(DAVE,))
    gone = world.tombstone("alice", NOW)
    name = value_name(ALICE.peer_id)
    write = PutValue(name, gone.raw)
    operation = alice.dht.operations.deliver(
        [(ALICE, write), (BOB, write), (CAROL, write)], NOW, "leave"
    )
    to_bob, to_carol = alice.requests()
    assert (to_bob.to, to_bob.message) == (BOB, write)
    assert (to_carol.to, to_carol.message) == (CAROL, write)
    assert len(alice.records) == 1
    alice.respond(to_bob, Stored(name, gone.raw))
    alice.time_out(to_carol)
    [published] = alice.dht.take()[1]
    assert published == Published(
        operation,
        (
            Delivery(Contact(ALICE.peer_id), write, taken=True),
            Delivery(BOB, write, taken=True),
            Delivery(CAROL, write, taken=False),
        ),
    )
    assert published.stored_at == (Contact(ALICE.peer_id), BOB)


def test_an_acknowledged_write_brings_back_what_its_holder_said() -> None:
    """Another of the two gave no acknowledgement that could be read: it has the record."""
    alice = Alone()
    write = world.added(world.signed("alice", NOW), ANY, acknowledged=True)
    alice.dht.operations.deliver([(BOB, write), (CAROL, write)], NOW, "announce")
    to_bob, to_carol = alice.requests()
    reported = Added((ShardCount(3, 2),), (DAVE,))
    alice.respond(to_bob, reported)
    alice.respond(to_carol, None)
    [published] = alice.dht.take()[1]
    assert isinstance(published, Published)
    assert published.deliveries == (
        Delivery(BOB, write, taken=True, added=reported),
        Delivery(CAROL, write, taken=True),
    )


def test_the_nearest_to_a_name_are_found_among_peers_and_oneself() -> None:
    alice = Alone()
    everybody = nearest_first(ANY, BOB, CAROL, DAVE, Contact(ALICE.peer_id))
    some = (DAVE, BOB, CAROL, BOB, ALICE)
    assert alice.dht.nearest(ANY, some, 9) == tuple(everybody)
    assert alice.dht.nearest(ANY, some, 2) == tuple(everybody[:2])
    assert alice.dht.nearest(ANY, (), 2) == (Contact(ALICE.peer_id),)


def test_the_counts_of_a_search_are_those_of_the_nearest_who_answered_nearest_first() -> None:
    """dave is a peer of another implementation: he tells no count."""
    alice = Alone(knows=(BOB, CAROL, DAVE))
    operation = alice.dht.search(GetProviders(ANY, EVERYONE), NOW, "a test", width=3)
    place = {contact: n for n, contact in enumerate(nearest_first(ANY, BOB, CAROL, DAVE))}
    for sent in alice.requests():
        count = None if sent.to == DAVE else ShardCount(members=place[sent.to])
        alice.respond(sent, Providers((), (), count))
    [searched] = alice.dht.take()[1]
    assert isinstance(searched, Searched)
    assert searched.operation == operation
    assert len(searched.closest) == 3
    reported = [ShardCount(members=n) for n in sorted(place.values()) if n != place[DAVE]]
    assert list(searched.counts) == reported


def test_a_search_gathers_no_more_than_so_many() -> None:
    """Those whom it has, it still takes newer records of."""
    alice = Alone(knows=(BOB, CAROL), parameters=DhtParameters(max_found=2))
    alice.dht.search(GetProviders(ANY, EVERYONE), NOW, "a test")
    for sequence, sent in enumerate(alice.requests(), 1):
        signed = [world.signed(name, NOW, sequence=sequence) for name in ("bob", "carol", "dave")]
        alice.respond(sent, Providers(tuple(Provider(sent.to, each.raw) for each in signed), ()))
    [searched] = alice.dht.take()[1]
    assert isinstance(searched, Searched)
    found = {each.profile.peer_id: each.profile.sequence for each in searched.found}
    assert found == {BOB.peer_id: 2, CAROL.peer_id: 2}


def test_who_asks_may_be_one_of_those_asked() -> None:
    town = village(3, 4, k=4)
    node, other, *_ = town.nodes.values()
    signed = world.signed(node.name, town.now)
    name = value_name(node.peer_id)
    town.publish(node, PutValue(name, signed.raw))
    requests = [(each.contact, GetValue(name)) for each in (node, other)]
    asking = node.dht.operations.ask(requests, town.now, "a test", 2)
    town.perform(node)
    town.elapse(1)
    asked = node.ended(asking)
    assert isinstance(asked, Asked)
    found = [each.reply.value for each in asked.good if isinstance(each.reply, Value)]
    assert found == [signed.raw] * 2


# What a worker does about peers that lie to it about its own announcement: nothing without end,
# and nothing that hides it.


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
    town, alice = settled(*people(25))
    name = shard_key(world.NETWORK, "any", Key(0), 0)
    ids = [f"sybil {number}" for number in range(300)]
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


@pytest.mark.at_length
@pytest.mark.parametrize(
    "lie",
    [
        ShardCount(MUCH, MUCH, MUCH, MUCH, MAX_DEPTH, MUCH),
        ShardCount(0, 0, 0, 2**31, MAX_DEPTH, 0),
        ShardCount(2**31, 2**31, 0, 0, 0, 0),
        ShardCount(9, 0, 2**31, 2**31, 1, 0),
    ],
    ids=["everything", "all deeper", "all here", "everywhere"],
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
        parse_request(messages.encode(world.added(alice, b"a name", b"another", b"a name")))


def test_of_many_providers_where_one_is_meant_nothing_is_read() -> None:
    wire = kad_pb2.Message(type=kad_pb2.Message.ADD_PROVIDER, key=b"a name")
    for number in range(32):
        wire.providerPeers.add(
            id=b"\x00\x24" + bytes(36), addrs=[b"\x04\x0a\x09\x08" + bytes([number])]
        )
    before = address_text.cache_info().misses
    with pytest.raises(ProtocolViolation, match="names 32 providers"):
        parse_request(wire.SerializeToString(), world.contact("bob").peer_id)
    assert address_text.cache_info().misses == before
