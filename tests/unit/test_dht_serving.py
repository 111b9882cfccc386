"""What a node answers to those who ask it."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from formation_p2p.core.capability.buckets import bucket_key
from formation_p2p.core.dht.codec import encode as encode_message
from formation_p2p.core.dht.codec import parse_reply
from formation_p2p.core.dht.messages import (
    MAX_PROVIDERS,
    Added,
    AddProvider,
    FindNode,
    GetProviders,
    GetValue,
    Ping,
    Provider,
    ProviderQuery,
    Providers,
    PutValue,
    Request,
    ShardCount,
    Stored,
    Value,
)
from formation_p2p.core.dht.parameters import DhtParameters
from formation_p2p.core.dht.store import value_name
from formation_p2p.core.identity import key_of_peer
from formation_p2p.core.keyspace import Key
from formation_p2p.core.records.codec import encode
from formation_p2p.core.records.resources import encode_requirements
from formation_p2p.core.resources.requirements import Requirements
from tests.support import dht_world as world
from tests.support.dht_world import NOW, Alone, DhtWorld, nearest_first

DHT = DhtParameters()

ANY = bucket_key(world.NETWORK, "any")
ALICE, BOB, CAROL, DAVE = map(world.contact, ("alice", "bob", "carol", "dave"))
EVERYONE = ProviderQuery(Key(0), b"", MAX_PROVIDERS)


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


def test_the_storing_peer_filters_by_what_is_needed() -> None:
    alice = Alone()
    alice.reply_to(AddProvider(ANY, Provider(BOB, world.signed("bob", NOW).raw)))
    for needs, found in [
        (encode_requirements(Requirements(cpu_milli=8000, memory_bytes=1)), 1),
        (encode_requirements(Requirements(cpu_milli=8001, memory_bytes=1)), 0),
        (encode("no requirements"), 0),
        (b"\xff", 0),
    ]:
        reply = alice.reply_to(GetProviders(ANY, ProviderQuery(Key(0), needs, 5)))
        assert isinstance(reply, Providers)
        assert len(reply.providers) == found


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
            st.integers(0, MAX_PROVIDERS),
        ),
    ),
    st.builds(
        AddProvider,
        anything,
        st.builds(Provider, st.just(BOB), records),
        st.lists(anything, max_size=3).map(tuple),
        st.booleans(),
    ),
    st.builds(GetValue, anything),
    st.builds(PutValue, anything, records),
)


@settings(deadline=None)
@given(st.lists(requests, max_size=10))
def test_no_request_is_left_without_its_answer(asked: list[Request]) -> None:
    alice = Alone(knows=(CAROL,))
    for request in asked:
        reply = alice.reply_to(request)
        plain = isinstance(request, AddProvider) and not request.acknowledged
        assert (reply is None) == plain
        if reply is not None:
            assert parse_reply(encode_message(reply), request) == reply
