"""One node's part in the DHT: stories among alice, bob and carol, told in their messages."""

import itertools
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.capability.buckets import bucket_key
from formation_p2p.dht.kademlia import (
    FIRST_RETRY_S,
    LAST_RETRY_S,
    MAX_OPERATIONS,
    MAX_PINGS,
    REFRESH_S,
    REQUEST_TIMEOUT_S,
    SWEEP_S,
    Kademlia,
)
from formation_p2p.dht.lookup import MAX_ASKED
from formation_p2p.dht.messages import (
    MAX_PROVIDERS,
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
    Reply,
    Request,
    Stored,
    Value,
)
from formation_p2p.dht.operations import Published, Searched
from formation_p2p.dht.routing import DOUBT_AFTER_S
from formation_p2p.dht.rpc import Answer, Answered, Ask, Asked, AskFailed
from formation_p2p.dht.store import RecordStore, value_name
from formation_p2p.discovery.finder import suits
from formation_p2p.effects import Contact, Moment
from formation_p2p.identity import key_of_peer, peer_id_to_bytes
from formation_p2p.keyspace import Key, key_of
from formation_p2p.records.codec import encode
from formation_p2p.records.resources import encode_requirements
from formation_p2p.resources.requirements import Requirements
from tests.unit import dht_world as world
from tests.unit.dht_world import DhtWorld

NOW = Moment(1000.0, world.EPOCH_UNIX_S)
ANY = bucket_key(world.NETWORK, "any")
ALICE, BOB, CAROL, DAVE = map(world.contact, ("alice", "bob", "carol", "dave"))
EVERYONE = ProviderQuery(Key(0), b"", MAX_PROVIDERS)


def after(seconds: float) -> Moment:
    return Moment(NOW.mono_s + seconds, NOW.unix_s + seconds)


class Alone:
    """Alice's node, whose peers are played by the test."""

    def __init__(self, *, k: int = 20, knows: tuple[Contact, ...] = ()) -> None:
        store = RecordStore(world.admit_all, world.names_in_network)
        self.dht = Kademlia(ALICE.peer_id, store, suits, random.Random(1), k=k)
        for contact in knows:
            self.dht.table.saw(contact, NOW.mono_s)

    def asks(self) -> list[Ask]:
        effects, completed = self.dht.take()
        assert completed == []
        assert all(isinstance(effect, Ask) for effect in effects)
        return [effect for effect in effects if isinstance(effect, Ask)]

    def answer(self, ask: Ask, reply: Reply | None, now: Moment = NOW) -> None:
        self.dht.handle(Answered(ask.ask_id, ask.to, reply), now)

    def asked(self, request: Request, sender: Contact = BOB, now: Moment = NOW) -> Reply | None:
        """What alice answers, whatever else she does about it."""
        self.dht.handle(Asked(7, sender, request), now)
        effects, _ = self.dht.take()
        [answer] = [effect for effect in effects if isinstance(effect, Answer)]
        assert answer.ask_id == 7
        return answer.message


def nearest_first(name: bytes, *contacts: Contact) -> list[Contact]:
    return sorted(contacts, key=lambda contact: key_of_peer(contact.peer_id) ^ key_of(name))


# -- joining ------------------------------------------------------------------------------------


def test_who_joins_through_one_gate_soon_knows_and_is_known() -> None:
    town = DhtWorld(seed=1)
    town.join("gate", "alice", "bob", "carol")
    town.elapse(5)
    for node in town.nodes.values():
        others = {other.peer_id for other in town.nodes.values() if other is not node}
        assert {contact.peer_id for contact in node.dht.table} == others


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
            assert isinstance(effect, Ask)
            tries.append(town.now_s - start_s)
            alice.dht.handle(AskFailed(effect.ask_id, "refused"), town.now)
        town.now_s += 0.01
        if town.now_s >= alice.dht.next_timeout():
            alice.dht.tick(town.now)
    gaps = [round(b - a) for a, b in itertools.pairwise(tries)]
    assert gaps[:6] == [1, 2, 4, 8, 16, 30]
    assert set(gaps[5:]) == {int(LAST_RETRY_S)}
    assert FIRST_RETRY_S == 1


def test_when_the_gate_comes_up_who_waited_joins() -> None:
    town = DhtWorld(seed=1)
    [gate] = town.join("gate")
    gate.silent = True
    [alice] = town.join("alice")
    town.elapse(20)
    assert len(alice.dht.table) == 0
    gate.silent = False
    town.elapse(LAST_RETRY_S + REQUEST_TIMEOUT_S)
    assert gate.peer_id in alice.dht.table
    assert alice.peer_id in gate.dht.table


def test_the_first_of_a_network_is_content_alone() -> None:
    town = DhtWorld(seed=1)
    [alice] = town.join("alice")
    town.elapse(100)
    assert town.carried == []
    [_, joined] = alice.completed[0]
    assert joined == Searched(joined.operation, (), (), 0)


def test_a_gate_that_was_restarted_is_found_again_though_it_knows_nobody() -> None:
    town = DhtWorld(seed=1)
    gate, alice, bob = town.join("gate", "alice", "bob")
    town.elapse(5)
    town.nodes["gate"].alive = False
    for node in (alice, bob):  # they notice
        node.dht.find_node(gate.peer_id, town.now, "a test")
        town.perform(node)
    town.elapse(REQUEST_TIMEOUT_S)
    assert gate.peer_id not in alice.dht.table
    gate = town.add("gate")
    gate.dht.bootstrap([], town.now, "join")
    town.perform(gate)
    town.elapse(REFRESH_S + LAST_RETRY_S)
    assert {contact.peer_id for contact in gate.dht.table} == {alice.peer_id, bob.peer_id}


def test_who_loses_the_last_peer_goes_back_to_the_gates_at_once() -> None:
    town = DhtWorld(seed=1)
    gate, alice = town.join("gate", "alice")
    town.elapse(5)
    gate.silent = True
    alice.dht.find_node(gate.peer_id, town.now, "a test")
    town.perform(alice)
    town.elapse(REQUEST_TIMEOUT_S + 0.1)
    assert len(alice.dht.table) == 0
    gate.silent = False
    town.elapse(2 * FIRST_RETRY_S)
    assert gate.peer_id in alice.dht.table


# -- the table ----------------------------------------------------------------------------------


def test_a_stranger_is_pinged_before_anyone_is_sent_to_it() -> None:
    alice = Alone()
    alice.dht.handle(Asked(1, BOB, FindNode(b"name")), NOW)
    effects, _ = alice.dht.take()
    assert effects == [
        Answer(1, Nodes(()), cause=""),
        Ask(1, BOB, Ping(), REQUEST_TIMEOUT_S, cause=""),
    ]
    assert alice.asked(FindNode(b"name"), CAROL) == Nodes(())
    alice.dht.handle(Answered(1, Contact(BOB.peer_id), Pong()), NOW)
    assert alice.asked(FindNode(b"name"), CAROL) == Nodes((BOB,))


def test_a_stranger_who_does_not_answer_never_enters() -> None:
    alice = Alone()
    alice.asked(Ping(), BOB)
    alice.dht.handle(AskFailed(1, "no answer"), NOW)
    assert alice.asked(FindNode(b"name"), CAROL) == Nodes(())


def test_a_stranger_without_addresses_is_answered_and_left_alone() -> None:
    alice = Alone()
    alice.dht.handle(Asked(1, Contact(BOB.peer_id), Ping()), NOW)
    assert alice.dht.take() == ([Answer(1, Pong(), cause="")], [])


def test_a_crowd_of_strangers_gets_a_bounded_number_of_pings() -> None:
    alice = Alone(k=1000)
    for number in range(3 * MAX_PINGS):
        for _ in range(2):
            alice.dht.handle(Asked(1, world.contact(f"stranger {number}"), Ping()), NOW)
    effects, _ = alice.dht.take()
    pings = [effect for effect in effects if isinstance(effect, Ask)]
    assert len(pings) == MAX_PINGS
    assert len({ping.to for ping in pings}) == MAX_PINGS
    alice.answer(pings[0], Pong())
    alice.asked(Ping(), world.contact("one more"))
    alice.dht.handle(Asked(1, world.contact("and another"), Ping()), NOW)
    assert len(alice.dht.take()[0]) == 1  # the answer: all places are taken again


def test_an_answer_to_something_else_does_not_end_a_ping() -> None:
    """Or there could be any number of pings under way to one peer."""
    alice = Alone(knows=(CAROL,))
    alice.asked(Ping(), BOB)
    alice.dht.find_node(DAVE.peer_id, NOW, "a test")
    [ask] = alice.asks()
    alice.answer(ask, Nodes((BOB,)))
    [ask] = alice.asks()
    alice.dht.handle(AskFailed(ask.ask_id, "no answer"), NOW)
    alice.dht.take()
    alice.dht.handle(Asked(1, BOB, Ping()), NOW)
    assert alice.dht.take()[0] == [Answer(1, Pong(), cause="")]  # and no second ping


def test_where_tables_are_full_silence_reigns() -> None:
    """Two nodes that have no room for each other must not ping each other for ever."""
    town = DhtWorld(seed=1, k=2)
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
    alice = Alone(k=2)
    newcomer, oldest, younger = crowded(alice)
    later = after(DOUBT_AFTER_S)
    alice.dht.find_node(newcomer.peer_id, later, "a test")
    for ask in alice.asks():
        alice.answer(ask, Nodes((newcomer,)), later)
    # Both were just seen, so neither is doubted when the newcomer answers.
    [ask] = alice.asks()
    assert ask.to == newcomer
    alice.dht.handle(Answered(ask.ask_id, newcomer, Nodes(())), later)
    alice.dht.take()
    assert newcomer.peer_id not in alice.dht.table
    # Five minutes on, they are.
    much_later = after(2 * DOUBT_AFTER_S)
    alice.dht.find_node(newcomer.peer_id, much_later, "a test")
    by_peer = {ask.to: ask for ask in alice.asks()}
    alice.answer(by_peer[younger], Nodes((newcomer,)), much_later)
    [ask] = alice.asks()
    alice.dht.handle(Answered(ask.ask_id, newcomer, Nodes(())), much_later)
    effects, _ = alice.dht.take()
    [ping] = [effect for effect in effects if isinstance(effect, Ask)]
    assert (ping.to, ping.message) == (oldest, Ping())
    alice.dht.handle(AskFailed(ping.ask_id, "no answer"), much_later)
    assert {contact.peer_id for contact in alice.dht.table} == {newcomer.peer_id, younger.peer_id}


def test_the_table_is_refreshed_by_looking_up_oneself_and_someone_else() -> None:
    town = DhtWorld(seed=1)
    town.join("gate", "alice", "bob")
    town.elapse(10)
    town.carried.clear()
    town.elapse(REFRESH_S)
    for node in town.nodes.values():
        looked_up = {
            each.message.name
            for each in town.carried
            if isinstance(each.message, FindNode) and each.sender == node.name
        }
        assert peer_id_to_bytes(node.peer_id) in looked_up
        assert len(looked_up) == 2


def test_answered_from_the_table_nobody_is_sent_to_himself() -> None:
    alice = Alone(k=2, knows=(BOB, CAROL, DAVE))
    first, second, third = nearest_first(b"name", BOB, CAROL, DAVE)
    assert alice.asked(FindNode(b"name"), world.contact("eve")) == Nodes((first, second))
    assert alice.asked(FindNode(b"name"), first) == Nodes((second, third))


# -- serving ------------------------------------------------------------------------------------


def test_what_is_kept_is_given_to_those_who_ask() -> None:
    alice = Alone(knows=(CAROL,))
    bob = world.signed("bob", NOW)
    name = value_name(BOB.peer_id)
    kept = Provider(BOB, bob.raw)
    assert alice.asked(AddProvider(ANY, Provider(BOB, bob.raw))) is None
    assert alice.asked(GetProviders(ANY)) == Providers((kept,), (CAROL,))
    assert alice.asked(GetProviders(ANY, EVERYONE)) == Providers((kept,), (CAROL,))
    assert alice.asked(GetValue(name)) == Value(None, (CAROL,))
    assert alice.asked(PutValue(name, bob.raw)) == Stored(name, bob.raw)
    assert alice.asked(GetValue(name)) == Value(bob.raw, (CAROL,))


def test_the_storing_peer_filters_by_what_is_needed() -> None:
    alice = Alone()
    alice.asked(AddProvider(ANY, Provider(BOB, world.signed("bob", NOW).raw)))
    for needs, found in [
        (encode_requirements(Requirements(cpu_milli=8000, memory_bytes=1)), 1),
        (encode_requirements(Requirements(cpu_milli=8001, memory_bytes=1)), 0),
        (encode("no requirements"), 0),
        (b"\xff", 0),
    ]:
        reply = alice.asked(GetProviders(ANY, ProviderQuery(Key(0), needs, 5)))
        assert isinstance(reply, Providers)
        assert len(reply.providers) == found


def test_a_bad_record_is_not_kept_and_a_value_is_then_not_echoed() -> None:
    alice = Alone()
    bob = world.signed("bob", NOW).raw
    forged = bob[:-1] + bytes([bob[-1] ^ 1])
    name = value_name(BOB.peer_id)
    assert alice.asked(PutValue(name, forged)) == Stored(name, b"")
    assert alice.asked(PutValue(value_name(CAROL.peer_id), bob)) == Stored(
        value_name(CAROL.peer_id), b""
    )
    assert alice.asked(AddProvider(ANY, Provider(BOB, forged))) is None
    assert alice.asked(AddProvider(ANY, Provider(BOB))) is None
    assert len(alice.dht.store) == 0


def test_expired_records_are_swept_out() -> None:
    town = DhtWorld(seed=1)
    [alice] = town.join("alice")
    alice.dht.store.keep(ANY, world.signed("bob", town.now).raw, town.now)
    town.elapse(120 - SWEEP_S)
    assert len(alice.dht.store) == 1
    town.elapse(2 * SWEEP_S)
    assert len(alice.dht.store) == 0


anything = st.binary(min_size=1, max_size=40) | st.just(ANY) | st.just(value_name(BOB.peer_id))
records = st.sampled_from(
    [b"", b"junk", world.signed("bob", NOW).raw, world.tombstone("bob", NOW, sequence=9).raw]
)
requests: st.SearchStrategy[Request] = st.one_of(
    st.just(Ping()),
    st.builds(FindNode, anything),
    st.builds(
        GetProviders,
        anything,
        st.none()
        | st.builds(
            ProviderQuery,
            st.integers(0, 2**256 - 1).map(Key),
            st.binary(max_size=30),
            st.integers(1, MAX_PROVIDERS),
        ),
    ),
    st.builds(AddProvider, anything, st.builds(Provider, st.just(BOB), records)),
    st.builds(GetValue, anything),
    st.builds(PutValue, anything, records),
)


@given(st.lists(requests, max_size=10))
def test_no_request_is_left_without_its_answer(asked: list[Request]) -> None:
    alice = Alone(knows=(CAROL,))
    for request in asked:
        reply = alice.asked(request)
        assert (reply is None) == isinstance(request, AddProvider)


# -- publishing and searching -------------------------------------------------------------------


def village(seed: int, size: int, *, k: int) -> DhtWorld:
    town = DhtWorld(seed, k=k)
    town.join(*(f"node {number}" for number in range(size)))
    town.elapse(5)
    return town


@pytest.mark.parametrize("seed", range(3))
def test_a_record_is_written_to_the_k_nearest_of_whom_its_author_may_be_one(seed: int) -> None:
    town = village(seed, 16, k=4)
    nodes = list(town.nodes.values())
    wrote_to_itself = 0
    for node in nodes:
        signed = world.signed(node.name, town.now)
        name = value_name(node.peer_id)
        value = node.dht.put_value(name, signed.raw, town.now, "a test")
        bucket = node.dht.provide(ANY, Provider(node.contact, signed.raw), town.now, "a test")
        town.perform(node)
        town.elapse(1)
        for operation, under in ((value, name), (bucket, ANY)):
            published = node.published(operation)
            stored_at = {contact.peer_id for contact in published.stored_at}
            assert stored_at == set(town.nearest(key_of(under), 4))
            assert published.asked >= 3
        for other in nodes:
            has_it = other.dht.store.value(name, town.now) == signed
            assert has_it == (other.peer_id in town.nearest(key_of(name), 4))
        wrote_to_itself += node.dht.store.value(name, town.now) is not None
    assert 0 < wrote_to_itself < len(nodes)


@pytest.mark.parametrize("seed", range(3))
def test_a_lookup_finds_the_k_nearest_though_nobody_knows_everybody(seed: int) -> None:
    town = village(seed, 60, k=6)
    nodes = list(town.nodes.values())
    assert max(len(node.dht.table) for node in nodes) < 40
    sought = world.person("nobody here").peer_id
    for node in nodes[::12]:
        operation = node.dht.find_node(sought, town.now, "a test")
        town.perform(node)
        town.elapse(1)
        found = [contact.peer_id for contact in node.searched(operation).closest]
        others = [each for each in nodes if each is not node]
        assert found == town.nearest(key_of_peer(sought), 6, among=others)


def test_what_one_published_everyone_finds() -> None:
    town = village(1, 12, k=4)
    author = town.nodes["node 3"]
    signed = world.signed("node 3", town.now)
    name = value_name(author.peer_id)
    author.dht.put_value(name, signed.raw, town.now, "a test")
    author.dht.provide(ANY, Provider(author.contact, signed.raw), town.now, "a test")
    town.perform(author)
    town.elapse(1)
    for node in town.nodes.values():
        value = node.dht.get_value(name, town.now, "a test")
        found = node.dht.find_providers(ANY, EVERYONE, town.now, "a test")
        town.perform(node)
        town.elapse(1)
        assert node.searched(value).profiles == (signed,)
        assert node.searched(found).profiles == (signed,)


def test_a_search_merges_what_it_hears_and_keeps_the_newest_of_each() -> None:
    town = DhtWorld(seed=1)
    alice, bob, carol, dave = town.join("alice", "bob", "carol", "dave")
    town.elapse(5)
    old, new = (world.signed("eve", town.now, sequence=number) for number in (1, 2))
    frank = world.signed("frank", town.now)
    bob.dht.store.keep(ANY, old.raw, town.now)
    carol.dht.store.keep(ANY, new.raw, town.now)
    dave.dht.store.keep(ANY, frank.raw, town.now)
    for node in (alice, bob):  # bob has the old one himself
        operation = node.dht.find_providers(ANY, EVERYONE, town.now, "a test")
        town.perform(node)
        town.elapse(1)
        assert set(node.searched(operation).profiles) == {new, frank}


def test_who_has_withdrawn_is_not_found_though_one_peer_still_offers_the_old_profile() -> None:
    town = DhtWorld(seed=1)
    alice, bob, carol = town.join("alice", "bob", "carol")
    town.elapse(5)
    old, gone = (
        world.signed("eve", town.now, sequence=1),
        world.tombstone("eve", town.now, sequence=2),
    )
    bob.dht.store.keep(ANY, old.raw, town.now)
    carol.lie = lambda request, reply: (
        Providers((Provider(CAROL, gone.raw),), ()) if isinstance(request, GetProviders) else reply
    )
    operation = alice.dht.find_providers(ANY, EVERYONE, town.now, "a test")
    town.perform(alice)
    town.elapse(1)
    assert alice.searched(operation).profiles == ()


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
        bob.dht.store.keep(under, eve.raw, town.now)
    forged = eve.raw[:-1] + bytes([eve.raw[-1] ^ 1])
    elsewhere = world.sealed(
        world.profile("frank", town.now), world.person("frank")
    )  # rightly signed, but it belongs under no name asked for below
    other = bucket_key(world.NETWORK, "driver/wasm")
    for liar, lie in (
        (carol, lies(forged, b"", elsewhere.raw)),
        (dave, lies()),
    ):
        liar.lie = lie
    value = alice.dht.get_value(name, town.now, "a test")
    found = alice.dht.find_providers(ANY, EVERYONE, town.now, "a test")
    misplaced = alice.dht.find_providers(other, EVERYONE, town.now, "a test")
    town.perform(alice)
    town.elapse(1)
    assert alice.searched(value).profiles == (eve,)
    assert set(alice.searched(found).profiles) == {eve, elsewhere}
    assert alice.searched(misplaced).profiles == ()


def test_a_value_that_is_rightly_signed_but_anothers_is_not_taken_for_the_one_asked_for() -> None:
    town = DhtWorld(seed=1)
    alice, bob = town.join("alice", "bob")
    town.elapse(5)
    bob.lie = lies(world.signed("frank", town.now).raw)
    operation = alice.dht.get_value(value_name(DAVE.peer_id), town.now, "a test")
    town.perform(alice)
    town.elapse(1)
    assert alice.searched(operation).profiles == ()


def test_only_who_echoes_a_value_has_stored_it() -> None:
    town = DhtWorld(seed=1)
    alice, bob, carol = town.join("alice", "bob", "carol")
    town.elapse(5)
    bob.lie = lambda request, reply: (
        Stored(request.name, b"") if isinstance(request, PutValue) else reply
    )
    name = value_name(alice.peer_id)
    signed = world.signed("alice", town.now)
    operation = alice.dht.put_value(name, signed.raw, town.now, "a test")
    town.perform(alice)
    town.elapse(1)
    stored_at = [contact.peer_id for contact in alice.published(operation).stored_at]
    assert stored_at == [alice.peer_id, carol.peer_id]


def test_what_its_author_may_not_announce_is_stored_nowhere() -> None:
    town = DhtWorld(seed=1)
    alice, *_ = town.join("alice", "bob")
    town.elapse(5)
    expired = world.signed("alice", Moment(0, town.now.unix_s - 500))
    name = value_name(alice.peer_id)
    operation = alice.dht.put_value(name, expired.raw, town.now, "a test")
    town.perform(alice)
    town.elapse(1)
    assert alice.published(operation).stored_at == ()


def test_a_late_answer_to_a_lookup_that_is_done_does_not_disturb_the_writing() -> None:
    name = value_name(ALICE.peer_id)
    nearest, near, far = nearest_first(name, BOB, CAROL, DAVE)
    alice = Alone(k=2, knows=(near, far))
    value = world.signed("alice", NOW).raw
    operation = alice.dht.put_value(name, value, NOW, "a test")
    to_near, to_far = sorted(alice.asks(), key=lambda ask: ask.to != near)
    alice.answer(to_near, Nodes((nearest,)))
    [to_nearest] = alice.asks()
    alice.answer(to_nearest, Nodes(()))
    writes = alice.asks()
    assert all(isinstance(write.message, PutValue) for write in writes)
    assert far not in [write.to for write in writes]
    alice.answer(to_far, Nodes((world.contact("eve"),)))
    assert alice.asks() == []
    for write in writes:
        alice.answer(write, Stored(name, value))
    [published] = alice.dht.take()[1]
    assert published.operation == operation


def test_a_late_failure_of_a_lookup_that_is_done_does_not_disturb_the_writing() -> None:
    name = value_name(ALICE.peer_id)
    nearest, near, far = nearest_first(name, BOB, CAROL, DAVE)
    alice = Alone(k=2, knows=(near, far))
    alice.dht.put_value(name, world.signed("alice", NOW).raw, NOW, "a test")
    to_near, to_far = sorted(alice.asks(), key=lambda ask: ask.to != near)
    alice.answer(to_near, Nodes((nearest,)))
    [to_nearest] = alice.asks()
    alice.answer(to_nearest, Nodes(()))
    writes = alice.asks()
    alice.dht.handle(AskFailed(to_far.ask_id, "no answer"), NOW)
    assert alice.asks() == []
    for write in writes:
        alice.dht.handle(AskFailed(write.ask_id, "no answer"), NOW)
    [published] = alice.dht.take()[1]
    assert isinstance(published, Published)


def test_an_answer_after_the_search_has_ended_is_only_used_for_the_table() -> None:
    alice = Alone(knows=(BOB, CAROL))
    alice.dht.find_providers(ANY, EVERYONE, NOW, "a test")
    first, second = alice.asks()
    alice.dht.abandon(alice.dht.find_providers(ANY, EVERYONE, NOW, "another"))
    third, fourth = alice.asks()
    for ask in (third, fourth):
        alice.answer(ask, Providers((), (DAVE,)))
    assert alice.asks() == []
    for ask in (first, second):
        alice.answer(ask, Providers((), ()))
    [searched] = alice.dht.take()[1]
    assert isinstance(searched, Searched)
    assert searched.asked == 2


# -- bounds -------------------------------------------------------------------------------------


def test_where_everyone_is_silent_a_search_ends_after_a_few_timeouts() -> None:
    town = village(1, 30, k=20)
    alice = town.nodes["node 0"]
    for node in town.nodes.values():
        node.silent = node is not alice
    operation = alice.dht.find_providers(ANY, EVERYONE, town.now, "a test")
    town.perform(alice)
    town.elapse(5 * REQUEST_TIMEOUT_S)
    assert alice.searched(operation).closest == ()
    assert alice.searched(operation).asked == 20


def test_liars_who_name_ever_more_peers_cost_a_bounded_number_of_requests() -> None:
    alice = Alone(knows=(BOB,))
    alice.dht.find_providers(ANY, EVERYONE, NOW, "a test")
    inventions = iter(range(10**9))
    asked = 0
    while True:
        effects, completed = alice.dht.take()
        asks = [ask for ask in effects if isinstance(ask, Ask) and ask.message != Ping()]
        asked += len(asks)
        for ask in asks:
            named = tuple(world.contact(f"nobody {next(inventions)}") for _ in range(20))
            alice.answer(ask, Providers((), named))
        if completed:
            break
    assert asked <= MAX_ASKED
    assert len(alice.dht._operations) == 0


def test_too_many_operations_end_the_oldest_with_what_it_has() -> None:
    alice = Alone(knows=(BOB,))
    started = [
        alice.dht.find_providers(ANY, EVERYONE, NOW, "a test") for _ in range(MAX_OPERATIONS + 2)
    ]
    _, completed = alice.dht.take()
    assert [each.operation for each in completed] == started[:2]


def test_an_abandoned_publish_tells_who_may_have_taken_it_and_then_nothing() -> None:
    name = value_name(ALICE.peer_id)
    value = world.signed("alice", NOW).raw
    alice = Alone(knows=(BOB, CAROL))
    operation = alice.dht.put_value(name, value, NOW, "a test")
    for ask in alice.asks():
        alice.answer(ask, Nodes(()))
    first, second = alice.asks()
    alice.answer(first, Stored(name, value))
    others = {contact.peer_id for contact in alice.dht.abandon(operation)}
    assert others == {ALICE.peer_id, BOB.peer_id, CAROL.peer_id}
    alice.answer(second, Stored(name, value))
    assert alice.dht.take() == ([], [])
    assert alice.dht.abandon(operation) == ()


def test_abandoned_while_it_still_looks_nobody_has_taken_it() -> None:
    alice = Alone(knows=(BOB,))
    value = world.signed("alice", NOW).raw
    operation = alice.dht.put_value(value_name(ALICE.peer_id), value, NOW, "a test")
    assert alice.dht.abandon(operation) == ()


def test_a_word_to_certain_peers_goes_to_them_alone_and_is_kept_at_home() -> None:
    alice = Alone(knows=(DAVE,))
    gone = world.tombstone("alice", NOW)
    name = value_name(ALICE.peer_id)
    write = PutValue(name, gone.raw)
    operation = alice.dht.tell((BOB, CAROL), write, NOW, "leave")
    to_bob, to_carol = alice.asks()
    assert (to_bob.to, to_bob.message) == (BOB, write)
    assert (to_carol.to, to_carol.message) == (CAROL, write)
    assert len(alice.dht.store) == 1
    alice.answer(to_bob, Stored(name, gone.raw))
    alice.dht.handle(AskFailed(to_carol.ask_id, "no answer"), NOW)
    assert alice.dht.take()[1] == [Published(operation, (BOB,), 0)]


def test_a_word_to_nobody_ends_at_once() -> None:
    alice = Alone()
    gone = PutValue(value_name(ALICE.peer_id), world.tombstone("alice", NOW).raw)
    operation = alice.dht.tell((), gone, NOW, "leave")
    assert alice.dht.take() == ([], [Published(operation, (), 0)])


def test_before_it_joins_a_node_needs_no_ticks() -> None:
    alice = Alone()
    assert alice.dht.next_timeout() == float("inf")
    alice.dht.tick(NOW)
    assert alice.dht.take() == ([], [])
