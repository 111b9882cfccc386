"""What alice keeps for others, and what she refuses to."""

import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.capability.buckets import bucket_key
from formation_p2p.dht import store as store_module
from formation_p2p.dht.messages import MAX_PROVIDERS, ProviderQuery
from formation_p2p.dht.store import RecordStore, value_name
from formation_p2p.effects import Moment
from formation_p2p.errors import (
    BadRecord,
    ExpiredRecord,
    ForgedRecord,
    MalformedRecord,
    MisKeyedRecord,
    OversizedRecord,
    ReplayedRecord,
)
from formation_p2p.identity import key_of_peer
from formation_p2p.keyspace import Key
from formation_p2p.records.profile import MAX_PROFILE_BYTES, Profile, SignedProfile, open_profile
from formation_p2p.refusals import Denied
from formation_p2p.resources.capability import Capability, idle
from tests.unit import dht_world as world

NOW = Moment(1000.0, world.EPOCH_UNIX_S)
ANY = bucket_key(world.NETWORK, "any")
PROCESS = bucket_key(world.NETWORK, "driver/process")
BOB = value_name(world.person("bob").peer_id)
EVERYONE = ProviderQuery(Key(0), b"", MAX_PROVIDERS)


def after(seconds: float) -> Moment:
    return Moment(NOW.mono_s + seconds, NOW.unix_s + seconds)


@pytest.fixture
def store() -> RecordStore:
    return RecordStore(world.admit_all, world.names_in_network)


def providers(store: RecordStore, name: bytes, now: Moment = NOW) -> list[bytes]:
    return [each.raw for each in store.providers(name, EVERYONE, lambda profile: True, now)]


def test_what_bob_signed_is_kept_under_his_buckets_and_under_his_own_name(
    store: RecordStore,
) -> None:
    bob = world.signed("bob", NOW)
    store.keep(ANY, bob.raw, NOW)
    assert providers(store, ANY) == [bob.raw]
    assert providers(store, PROCESS) == []
    assert store.value(BOB, NOW) is None
    store.keep(BOB, bob.raw, NOW)
    store.keep(PROCESS, bob.raw, NOW)
    assert providers(store, PROCESS) == [bob.raw]
    assert store.value(BOB, NOW) == bob
    assert len(store) == 1


def forged() -> bytes:
    raw = bytearray(world.signed("bob", NOW).raw)
    raw[-1] ^= 1
    return bytes(raw)


def expired() -> bytes:
    return world.signed("bob", after(-121)).raw


def from_the_future() -> bytes:
    return world.signed("bob", after(61)).raw


@pytest.mark.parametrize(
    ("name", "raw", "error"),
    [
        (ANY, forged(), ForgedRecord),
        (ANY, expired(), ExpiredRecord),
        (ANY, from_the_future(), ExpiredRecord),
        (ANY, b"", MalformedRecord),
        (ANY, b"a plain provider of another implementation", MalformedRecord),
        (ANY, bytes(MAX_PROFILE_BYTES + 1), OversizedRecord),
        (bucket_key(world.NETWORK, "gpu/8"), world.signed("bob", NOW).raw, MisKeyedRecord),
        (bucket_key(b"other", "any"), world.signed("bob", NOW).raw, MisKeyedRecord),
        (
            value_name(world.person("carol").peer_id),
            world.signed("bob", NOW).raw,
            MisKeyedRecord,
        ),
    ],
)
def test_what_is_not_as_it_claims_is_refused_and_never_returned(
    store: RecordStore, name: bytes, raw: bytes, error: type[BadRecord]
) -> None:
    with pytest.raises(error):
        store.keep(name, raw, NOW)
    assert providers(store, name) == []
    assert store.value(name, NOW) is None
    assert len(store) == 0


def test_who_is_not_admitted_to_the_network_is_not_kept() -> None:
    def admit(profile: Profile, now: Moment) -> Denied | None:
        stranger = profile.peer_id != world.person("bob").peer_id
        return Denied("work", "no grant of this network") if stranger else None

    store = RecordStore(admit, world.names_in_network)
    with pytest.raises(BadRecord, match="is not of this network: not allowed to work"):
        store.keep(ANY, world.signed("carol", NOW).raw, NOW)
    store.keep(ANY, world.signed("bob", NOW).raw, NOW)
    assert len(store) == 1


def test_who_is_no_longer_admitted_is_refused_though_the_same_bytes_were_kept() -> None:
    """A grant may run out between two sendings of one profile."""
    denied: list[Denied] = []
    store = RecordStore(lambda profile, now: denied[0] if denied else None, world.names_in_network)
    bob = world.signed("bob", NOW)
    store.keep(ANY, bob.raw, NOW)
    denied.append(Denied("work", "the grant has expired"))
    with pytest.raises(BadRecord, match="the grant has expired"):
        store.keep(PROCESS, bob.raw, after(1))


def test_a_newer_profile_takes_the_place_of_the_older_under_every_name(store: RecordStore) -> None:
    old, new = world.signed("bob", NOW, sequence=1), world.signed("bob", NOW, sequence=2)
    store.keep(ANY, old.raw, NOW)
    store.keep(BOB, old.raw, NOW)
    store.keep(ANY, new.raw, NOW)
    assert providers(store, ANY) == [new.raw]
    assert store.value(BOB, NOW) == new


def test_a_replayed_profile_is_refused_even_after_what_replaced_it_was_dropped(
    store: RecordStore,
) -> None:
    old = world.sealed(world.profile("bob", NOW, sequence=1, ttl_s=600), world.person("bob"))
    store.keep(ANY, old.raw, NOW)
    store.keep(ANY, world.signed("bob", NOW, sequence=2).raw, NOW)
    with pytest.raises(ReplayedRecord):
        store.keep(ANY, old.raw, NOW)
    store.expire(after(130))
    assert len(store) == 0
    with pytest.raises(ReplayedRecord):
        store.keep(ANY, old.raw, after(130))
    assert providers(store, ANY, after(130)) == []


def test_two_profiles_with_one_number_are_not_both_believed(store: RecordStore) -> None:
    store.keep(ANY, world.signed("bob", NOW, sequence=1).raw, NOW)
    other = replace(world.profile("bob", NOW, sequence=1), price_micro=9)
    with pytest.raises(ReplayedRecord):
        store.keep(ANY, world.sealed(other, world.person("bob")).raw, NOW)


def test_a_profile_that_belongs_under_fewer_names_leaves_the_others(store: RecordStore) -> None:
    store.keep(ANY, world.signed("bob", NOW, sequence=1).raw, NOW)
    store.keep(PROCESS, world.signed("bob", NOW, sequence=1).raw, NOW)
    idle_bob = replace(world.profile("bob", NOW, sequence=2), drivers=())
    store.keep(ANY, world.sealed(idle_bob, world.person("bob")).raw, NOW)
    assert providers(store, PROCESS) == []
    assert len(providers(store, ANY)) == 1


def test_nothing_expired_is_returned_and_in_time_it_is_dropped(store: RecordStore) -> None:
    bob, carol = world.signed("bob", NOW), world.signed("carol", after(60))
    for name in (ANY, BOB):
        store.keep(name, bob.raw, NOW)
    store.keep(ANY, carol.raw, after(60))
    assert providers(store, ANY, after(120)) == [carol.raw]
    assert store.value(BOB, after(119)) == bob
    assert store.value(BOB, after(120)) is None
    with pytest.raises(ExpiredRecord):
        store.keep(ANY, bob.raw, after(120))
    assert len(store) == 2
    store.expire(after(120))
    assert len(store) == 1
    assert providers(store, ANY, after(120)) == [carol.raw]


def test_a_tombstone_ends_the_profile_under_every_name_and_bars_its_return(
    store: RecordStore,
) -> None:
    bob = world.signed("bob", NOW, sequence=1)
    for name in (ANY, PROCESS, BOB):
        store.keep(name, bob.raw, NOW)
    store.keep(BOB, world.tombstone("bob", NOW, sequence=2).raw, NOW)
    assert providers(store, ANY) == providers(store, PROCESS) == []
    assert store.value(BOB, NOW) is None
    for name in (ANY, BOB):
        with pytest.raises(ReplayedRecord):
            store.keep(name, bob.raw, NOW)
    store.keep(ANY, world.signed("bob", after(1), sequence=3).raw, after(1))  # he came back
    assert len(providers(store, ANY, after(1))) == 1


def test_a_tombstone_of_one_who_was_not_known_is_kept_against_replays(store: RecordStore) -> None:
    gone = world.tombstone("bob", NOW, sequence=2)
    store.keep(BOB, gone.raw, NOW)
    assert store.check(BOB, gone.raw, NOW) == gone
    assert store.value(BOB, NOW) is None
    with pytest.raises(ReplayedRecord):
        store.keep(BOB, world.signed("bob", NOW, sequence=1).raw, NOW)
    store.expire(after(121))
    assert len(store) == 0


def test_the_bytes_of_one_profile_are_verified_once(
    store: RecordStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[bytes] = []

    def counted(raw: bytes, now_unix_s: float) -> SignedProfile:
        opened.append(raw)
        return open_profile(raw, now_unix_s)

    monkeypatch.setattr(store_module, "open_profile", counted)
    monkeypatch.setattr(store_module, "MAX_VERIFIED", 2)
    bob, carol, dave = (world.signed(name, NOW).raw for name in ("bob", "carol", "dave"))
    for name in (ANY, PROCESS, ANY):
        store.check(name, bob, NOW)
    assert opened == [bob]
    for each in (carol, dave, dave, carol):
        store.check(ANY, each, NOW)
    assert opened == [bob, carol, dave]
    store.check(ANY, bob, NOW)  # it was the oldest of three, and two are remembered
    assert opened == [bob, carol, dave, bob]


def test_what_is_not_admitted_is_not_remembered_as_verified() -> None:
    store = RecordStore(lambda profile, now: Denied("work", "no grant"), world.names_in_network)
    for name in ("bob", "carol"):
        with pytest.raises(BadRecord):
            store.check(ANY, world.signed(name, NOW).raw, NOW)
    assert store._verified == {}


def test_a_full_store_forgets_whose_profile_ends_first(
    store: RecordStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "MAX_AUTHORS", 2)
    for second, name in enumerate(("bob", "carol", "dave")):
        store.keep(ANY, world.signed(name, after(second)).raw, after(second))
    store.keep(ANY, world.signed("carol", after(3)).raw, after(3))  # is known: pushes nobody out
    assert len(store) == 2
    found = store.providers(ANY, EVERYONE, lambda profile: True, after(3))
    known = {signed.profile.peer_id for signed in found}
    assert known == {world.person(name).peer_id for name in ("carol", "dave")}


def test_the_name_of_a_bucket_has_no_value(store: RecordStore) -> None:
    store.keep(ANY, world.signed("bob", NOW).raw, NOW)
    assert store.value(ANY, NOW) is None


PEOPLE = [f"worker {number}" for number in range(30)]


@given(st.integers(0, 2**256 - 1), st.integers(1, MAX_PROVIDERS), st.integers(0, 10))
def test_the_nearest_that_suit_are_returned_nearest_first(
    target: int, limit: int, cores: int
) -> None:
    store = RecordStore(world.admit_all, world.names_in_network)
    rng = random.Random(1)
    for name in PEOPLE:
        store.keep(ANY, small_machine(name, rng.randrange(1, 10)), NOW)
    query = ProviderQuery(Key(target), b"", limit)

    def suits(profile: Profile) -> bool:
        return profile.capability.cpu_milli >= cores * 1000

    everyone = store.providers(ANY, replace(query, limit=100), lambda profile: True, NOW)
    assert len(everyone) == len(PEOPLE)
    by_distance = sorted(
        (signed.profile for signed in everyone if suits(signed.profile)),
        key=lambda profile: key_of_peer(profile.peer_id) ^ target,
    )
    found = [signed.profile for signed in store.providers(ANY, query, suits, NOW)]
    assert found == by_distance[:limit]


MACHINES: dict[tuple[str, int], bytes] = {}


def small_machine(name: str, cores: int) -> bytes:
    """Signing thirty profiles for every example would take most of the test."""
    if (name, cores) not in MACHINES:
        capability = Capability(cpu_milli=cores * 1000, memory_bytes=1)
        unsigned = replace(
            world.profile(name, NOW), capability=capability, capacity=idle(capability)
        )
        MACHINES[name, cores] = world.sealed(unsigned, world.person(name)).raw
    return MACHINES[name, cores]
