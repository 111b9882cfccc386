"""One node's part in the DHT: how it joins, whom it knows, and what bounds it."""

import itertools
from dataclasses import replace

import pytest

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import key_of_peer, peer_id_to_bytes
from formation_p2p.core.keyspace import Key, key_of
from formation_p2p.dht.core.messages import (
    MAX_PROVIDERS,
    Added,
    AddProvider,
    FindNode,
    GetProviders,
    GetValue,
    Nodes,
    Ping,
    Pong,
    Provider,
    ProviderQuery,
    Providers,
    PutValue,
    Query,
    Request,
    ShardCount,
    Stored,
    Value,
)
from formation_p2p.dht.core.messages import encode as encode_message
from formation_p2p.dht.core.operations import Searched
from formation_p2p.dht.core.parameters import DhtParameters
from formation_p2p.dht.core.rpc import (
    RequestFailed,
    RequestReceived,
    ResponseReceived,
    SendRequest,
    SendResponse,
)
from formation_p2p.dht.core.store import value_name
from formation_p2p.records.core.buckets import bucket_key
from tests.support import dht_world as world
from tests.support.dht_messages import parse_reply
from tests.support.dht_world import NOW, Alone, DhtWorld, find_closest, nearest_first
from tests.unit.test_dht_messages import REQUESTS

DHT = DhtParameters()

ANY = bucket_key(world.NETWORK, "any")
ALICE, BOB, CAROL, DAVE = map(world.contact, ("alice", "bob", "carol", "dave"))
EVERYONE = ProviderQuery(Key(0), b"", MAX_PROVIDERS)


def after(seconds: float) -> Moment:
    return Moment(NOW.mono_s + seconds, NOW.unix_s + seconds)


# What alice asks strangers, and those that she doubts.
PROBE = FindNode(peer_id_to_bytes(ALICE.peer_id))


# -- searching ----------------------------------------------------------------------------------


def took_s(
    town: DhtWorld, asker: world.DhtNode, request: Query, width: int | None, dead: int = 0
) -> float:
    """How long a search takes that finds the nearest of all."""
    began_s = town.now_s
    operation = asker.dht.search(request, town.now, "a test", width=width)
    town.perform(asker)
    town.elapse(10)
    [ended_s] = [at_s for at_s, ended in asker.completed if ended.operation == operation]
    closest = [each.peer_id for each in asker.searched(operation).closest]
    others = [node for node in town.nodes.values() if node is not asker]
    nearest = town.nearest(key_of(request.name), len(closest) + DHT.search_spare, others)
    assert set(closest) <= set(nearest)
    assert len(closest) == (width or DHT.beta)
    assert asker.searched(operation).asked <= DHT.beta + DHT.search_spare + 3 * dead
    return ended_s - began_s


@pytest.mark.at_length
def test_who_knows_all_near_a_name_searches_in_one_step_and_writes_without_a_search() -> None:
    town = DhtWorld(seed=3)
    nodes = town.join(*(f"node {number}" for number in range(60)))
    town.elapse(60)
    asker, step_s = nodes[40], 2 * world.LATENCY_S
    for node in nodes:  # it has met them all, though its buckets hold half of them
        asker.dht.table.saw(node.contact, town.now_s)
    assert len(asker.dht.table) < len(nodes) - 1
    for number in range(10):
        name = b"name %d" % number
        assert took_s(town, asker, FindNode(name), DHT.k) == pytest.approx(step_s)
        assert took_s(town, asker, GetProviders(name, EVERYONE), None) == pytest.approx(step_s)
        sure = asker.dht.surely_nearest(name, 8, town.now)
        others = [node for node in nodes if node is not asker]
        assert [each.peer_id for each in sure] == town.nearest(key_of(name), 8, others)


@pytest.mark.parametrize(
    ("asked", "width"), [(FindNode(b"a name"), 8), (GetProviders(b"a name", EVERYONE), None)]
)
def test_where_some_have_died_a_search_in_a_known_network_takes_another_step(
    asked: Query, width: int | None
) -> None:
    town = DhtWorld(seed=3)
    nodes = town.join(*(f"node {number}" for number in range(60)))
    town.elapse(60)
    asker, step_s = nodes[40], 2 * world.LATENCY_S
    for node in nodes:
        asker.dht.table.saw(node.contact, town.now_s)
    name = asked.name
    for gone in nearest_first(name, *(node.contact for node in nodes if node is not asker))[:3]:
        [node] = [node for node in nodes if node.contact == gone]
        node.alive = False
        asker.dht.disconnected(gone.peer_id, town.now)
    assert asker.dht.surely_nearest(name, 8, town.now) == ()
    assert took_s(town, asker, asked, width, dead=3) == pytest.approx(2 * step_s)


# -- joining ------------------------------------------------------------------------------------


def test_joining_ends_as_searched_with_the_nearest_who_answered() -> None:
    town = DhtWorld(seed=1)
    [gate, bob] = town.join("gate", "bob")
    alice = town.add("alice")
    operation = alice.dht.bootstrap([gate.contact, alice.contact], town.now, "join")
    town.perform(alice)
    town.elapse(1)
    joined = alice.searched(operation)
    assert {contact.peer_id for contact in joined.closest} == {gate.peer_id, bob.peer_id}
    assert joined.asked == 2


def test_while_the_gate_is_down_it_is_tried_again_ever_more_rarely() -> None:
    town = DhtWorld(seed=1)
    [gate] = town.join("gate")
    gate.alive = False
    tries: list[float] = []
    alice = town.add("alice")
    alice.dht.bootstrap([gate.contact], town.now, "join")
    start_s = town.now_s
    for _ in range(40_000):
        for effect in alice.dht.take()[0]:
            assert isinstance(effect, SendRequest)
            tries.append(town.now_s - start_s)
            alice.dht.handle(RequestFailed(effect.request_id, "refused"), town.now)
        town.now_s += 0.01
        if town.now_s >= alice.dht.next_timeout():
            alice.dht.tick(town.now)
    gaps = [b - a for a, b in itertools.pairwise(tries)]
    whole = [1.0, 2.0, 4.0, 8.0, *[DHT.last_retry_s] * (len(gaps) - 4)]
    shares = [gap / most for gap, most in zip(gaps, whole, strict=True)]
    assert DHT.first_retry_s == 1
    assert len(gaps) > 30
    assert shares[0] == pytest.approx(1, abs=0.02)
    # Nodes that lose a gate at the same moment do not all come back at the same moment.
    assert 0.74 < min(shares[1:]) <= max(shares[1:]) < 1.0


def test_the_first_of_a_network_is_content_alone() -> None:
    town = DhtWorld(seed=1)
    [alice] = town.join("alice")
    town.elapse(100)
    assert town.carried == []
    [_, joined] = alice.completed[0]
    assert joined == Searched(joined.operation, (), (), (), 0)


def test_a_gate_that_was_restarted_is_found_again_though_it_knows_nobody() -> None:
    town = DhtWorld(seed=1)
    gate, alice, bob = town.join("gate", "alice", "bob")
    town.elapse(5)
    town.nodes["gate"].alive = False
    for node in (alice, bob):  # they notice
        find_closest(node.dht, peer_id_to_bytes(gate.peer_id), town.now)
        town.perform(node)
    town.elapse(DHT.request_timeout_s)
    assert gate.peer_id not in alice.dht.table
    gate = town.add("gate")
    gate.dht.bootstrap([], town.now, "join")
    town.perform(gate)
    town.elapse(2 * DHT.last_retry_s)
    assert {contact.peer_id for contact in gate.dht.table} == {alice.peer_id, bob.peer_id}


# -- the table ----------------------------------------------------------------------------------


def test_a_stranger_is_pinged_before_anyone_is_sent_to_it() -> None:
    alice = Alone()
    alice.dht.handle(RequestReceived(1, BOB, FindNode(b"name")), NOW)
    effects, _ = alice.dht.take()
    assert effects == [
        SendResponse(1, Nodes(()), cause=""),
        SendRequest(1, BOB, PROBE, DHT.request_timeout_s, cause=""),
    ]
    assert alice.reply_to(FindNode(b"name"), CAROL) == Nodes(())
    alice.dht.handle(ResponseReceived(1, BOB, Nodes(())), NOW)
    assert alice.reply_to(FindNode(b"name"), CAROL) == Nodes((BOB,))


def test_a_stranger_who_does_not_answer_or_has_no_address_never_enters() -> None:
    alice = Alone()
    assert alice.dht.next_timeout() == float("inf")
    alice.dht.tick(NOW)  # which it does not need before it joins
    alice.dht.handle(RequestReceived(1, Contact(BOB.peer_id), Ping()), NOW)
    assert alice.dht.take() == ([SendResponse(1, Pong(), cause="")], [])
    alice.reply_to(Ping(), BOB)
    alice.dht.handle(RequestFailed(1, "no answer"), NOW)
    assert alice.reply_to(FindNode(b"name"), CAROL) == Nodes(())


def test_a_crowd_of_strangers_gets_a_bounded_number_of_pings() -> None:
    alice = Alone(parameters=DhtParameters(k=1000))
    for number in range(3 * DHT.max_pings):
        for _ in range(2):
            alice.dht.handle(RequestReceived(1, world.contact(f"stranger {number}"), Ping()), NOW)
    effects, _ = alice.dht.take()
    pings = [effect for effect in effects if isinstance(effect, SendRequest)]
    assert len(pings) == DHT.max_pings
    assert len({ping.to for ping in pings}) == DHT.max_pings
    alice.respond(pings[0], Nodes(()))
    alice.reply_to(Ping(), world.contact("one more"))
    alice.dht.handle(RequestReceived(1, world.contact("and another"), Ping()), NOW)
    assert len(alice.dht.take()[0]) == 1  # the answer: all places are taken again


def test_an_answer_to_something_else_does_not_end_a_ping() -> None:
    """Or there could be any number of pings under way to one peer."""
    alice = Alone(knows=(CAROL,))
    alice.reply_to(Ping(), BOB)
    find_closest(alice.dht, peer_id_to_bytes(DAVE.peer_id), NOW)
    [sent] = alice.requests()
    alice.respond(sent, Nodes((BOB,)))
    [sent] = alice.requests()
    alice.dht.handle(RequestFailed(sent.request_id, "no answer"), NOW)
    alice.dht.take()
    alice.dht.handle(RequestReceived(1, BOB, Ping()), NOW)
    assert alice.dht.take()[0] == [SendResponse(1, Pong(), cause="")]  # and no second ping


def test_where_tables_are_full_silence_reigns() -> None:
    """Two nodes that have no room for each other must not ping each other for ever."""
    town = DhtWorld(seed=1, parameters=DhtParameters(k=2))
    town.join(*(f"node {number}" for number in range(20)))
    town.elapse(10)
    town.carried.clear()
    town.elapse(100)
    assert town.carried == []


def crowded(alice: Alone) -> list[Contact]:
    """A newcomer, and two peers known for long who fill its bucket."""
    far = [contact for n in range(20) if is_far(contact := world.contact(f"peer {n}"))][:3]
    for contact in far[1:]:
        alice.dht.table.saw(contact, NOW.mono_s)
    return far


def is_far(contact: Contact) -> bool:
    """Whether its first bit differs from alice's: all such are in one bucket."""
    return (key_of_peer(contact.peer_id) ^ key_of_peer(ALICE.peer_id)) >> 255 == 1


def test_a_newcomer_to_a_full_bucket_waits_until_the_oldest_fails_its_ping() -> None:
    alice = Alone(parameters=DhtParameters(k=2))
    newcomer, oldest, younger = crowded(alice)
    later = after(DHT.suspect_after_s)
    find_closest(alice.dht, peer_id_to_bytes(newcomer.peer_id), later)
    for sent in alice.requests():
        alice.respond(sent, Nodes((newcomer,)), later)
    # Both were just seen, so neither is doubted when the newcomer answers.
    [sent] = alice.requests()
    assert sent.to == newcomer
    alice.dht.handle(ResponseReceived(sent.request_id, newcomer, Nodes(())), later)
    alice.dht.take()
    assert newcomer.peer_id not in alice.dht.table
    # Five minutes on, they are.
    much_later = after(2 * DHT.suspect_after_s)
    find_closest(alice.dht, peer_id_to_bytes(newcomer.peer_id), much_later)
    alice.dht.table.saw(younger, much_later.mono_s)  # it answered meanwhile
    # One that waits is asked as those in the buckets are.
    [sent] = [sent for sent in alice.requests() if sent.to == newcomer]
    alice.dht.handle(ResponseReceived(sent.request_id, newcomer, Nodes(())), much_later)
    effects, _ = alice.dht.take()
    [ping] = [effect for effect in effects if isinstance(effect, SendRequest)]
    assert (ping.to, ping.message) == (oldest, PROBE)
    alice.dht.handle(RequestFailed(ping.request_id, "no answer"), much_later)
    assert {contact.peer_id for contact in alice.dht.table} == {newcomer.peer_id, younger.peer_id}


def test_answered_from_the_table_nobody_is_sent_to_himself() -> None:
    alice = Alone(parameters=DhtParameters(k=2), knows=(BOB, CAROL, DAVE))
    first, second, third = nearest_first(b"name", BOB, CAROL, DAVE)
    assert alice.reply_to(FindNode(b"name"), world.contact("eve")) == Nodes((first, second))
    assert alice.reply_to(FindNode(b"name"), first) == Nodes((second, third))


# -- bounds -------------------------------------------------------------------------------------


def test_too_many_operations_end_the_oldest_with_what_it_has() -> None:
    alice = Alone(knows=(BOB,))
    started = [
        alice.dht.search(GetProviders(ANY, EVERYONE), NOW, "a test")
        for _ in range(DHT.max_operations + 2)
    ]
    _, completed = alice.dht.take()
    assert [each.operation for each in completed] == started[:2]


# -- serving ------------------------------------------------------------------------------------


def test_what_is_kept_is_given_to_those_who_ask() -> None:
    alice = Alone(knows=(CAROL,))
    bob = world.signed("bob", NOW)
    name = value_name(BOB.peer_id)
    kept = Provider(BOB, bob.raw)
    assert alice.reply_to(AddProvider(ANY, Provider(BOB, bob.raw))) is None
    # The keys of bob and of `any` begin with 1, and that of dave with 0.
    reported = Providers((kept,), (CAROL,), ShardCount(1, settled=1))
    assert alice.reply_to(GetProviders(ANY)) == reported
    from_afar = replace(EVERYONE, target=key_of_peer(DAVE.peer_id))
    assert alice.reply_to(GetProviders(ANY, from_afar)) == Providers(
        (kept,), (CAROL,), ShardCount(1)
    )
    assert alice.reply_to(GetValue(name)) == Value(None, (CAROL,))
    assert alice.reply_to(PutValue(name, bob.raw)) == Stored(name, bob.raw)
    assert alice.reply_to(GetValue(name)) == Value(bob.raw, (CAROL,))


def test_an_author_who_waits_for_it_is_told_how_full_its_names_are_and_who_is_nearer() -> None:
    alice = Alone(knows=(CAROL, DAVE, BOB))
    signed = world.signed("bob", NOW)
    write = world.added(signed, ANY, value_name(BOB.peer_id), acknowledged=True)
    nearest = tuple(nearest_first(ANY, CAROL, DAVE))
    added = Added((ShardCount(1, settled=1),) * 2, nearest)
    assert alice.reply_to(write) == added
    assert alice.reply_to(replace(write, acknowledged=False)) is None
    assert alice.reply_to(GetValue(value_name(BOB.peer_id)), CAROL) == Value(
        signed.raw, (BOB, DAVE)
    )


def test_one_whose_record_is_bad_is_told_the_counts_all_the_same_and_is_not_in_them() -> None:
    alice = Alone()
    bob = world.signed("bob", NOW)
    forged = replace(bob, raw=bob.raw[:-1] + bytes([bob.raw[-1] ^ 1]))
    assert alice.reply_to(world.added(forged, ANY, acknowledged=True)) == Added((ShardCount(),))
    assert len(alice.records) == 0


def test_a_bad_record_is_not_kept_and_a_value_is_then_not_echoed() -> None:
    alice = Alone()
    bob = world.signed("bob", NOW).raw
    forged = bob[:-1] + bytes([bob[-1] ^ 1])
    name = value_name(BOB.peer_id)
    assert alice.reply_to(PutValue(name, forged)) == Stored(name, b"")
    assert alice.reply_to(PutValue(value_name(CAROL.peer_id), bob)) == Stored(
        value_name(CAROL.peer_id), b""
    )
    assert alice.reply_to(AddProvider(ANY, Provider(BOB, forged))) is None
    assert alice.reply_to(AddProvider(ANY, Provider(BOB))) is None
    assert len(alice.records) == 0


def test_expired_records_are_swept_out() -> None:
    town = DhtWorld(seed=1)
    [alice] = town.join("alice")
    alice.keep(ANY, world.signed("bob", town.now), town.now)
    town.elapse(120 - DHT.sweep_s)
    assert len(alice.records) == 1
    town.elapse(2 * DHT.sweep_s)
    assert len(alice.records) == 0


@pytest.mark.parametrize("request_", [request for request, _ in REQUESTS])
def test_no_request_is_left_without_its_answer(request_: Request) -> None:
    reply = Alone(knows=(CAROL,)).reply_to(request_)
    plain = isinstance(request_, AddProvider) and not request_.acknowledged
    assert (reply is None) == plain
    if reply is not None:
        assert parse_reply(encode_message(reply), request_) == reply
