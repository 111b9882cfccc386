"""What alice keeps for others, what she refuses to, and what she tells of it."""

import itertools
import random
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.errors import (
    BadRecord,
    ExpiredRecord,
    ForgedRecord,
    MalformedRecord,
    MisKeyedRecord,
    OversizedRecord,
    ReplayedRecord,
)
from formation_p2p.core.identity import key_of_peer
from formation_p2p.core.keyspace import Key, Span, key_of
from formation_p2p.core.refusals import Denied
from formation_p2p.dht.core.messages import (
    MAX_PROVIDERS,
    AddProvider,
    GetProviders,
    Provider,
    ProviderQuery,
    Providers,
    PutValue,
    ShardCount,
    Value,
)
from formation_p2p.dht.core.parameters import DhtParameters
from formation_p2p.dht.core.store import NamesOf, RecordStore, value_name
from formation_p2p.discovery.core.finder import suits
from formation_p2p.machine.core.capability import Capability, idle
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.records.core.buckets import bucket_key, depths_of, shard_key
from formation_p2p.records.core.profile import MAX_PROFILE_BYTES, Profile, SignedProfile
from formation_p2p.records.core.resources import encode_requirements
from tests.support import dht_world as world

NOW = Moment(1000.0, world.EPOCH_UNIX_S)
ANY = bucket_key(world.NETWORK, "any")
PROCESS = bucket_key(world.NETWORK, "driver/process")
BOB = value_name(world.person("bob").peer_id)
SENDER = world.contact("mallory")  # whoever it is: what counts is whose signature it is


def after(seconds: float) -> Moment:
    return Moment(NOW.mono_s + seconds, NOW.unix_s + seconds)


@pytest.fixture
def store() -> RecordStore:
    return store_of(DhtParameters())


def store_of(parameters: DhtParameters) -> RecordStore:
    return RecordStore(world.admit_all, world.names_in_network, suits, parameters)


def keep(store: RecordStore, name: bytes, raw: bytes, now: Moment = NOW) -> bool:
    return store.keep(SENDER, AddProvider(name, Provider(SENDER, raw)), now)


def put(store: RecordStore, name: bytes, raw: bytes, now: Moment = NOW) -> bool:
    return store.keep(SENDER, PutValue(name, raw), now)


def providers(store: RecordStore, name: bytes, now: Moment = NOW) -> list[bytes]:
    return [each.profile for each in store.providers(GetProviders(name), now).providers]


# -- what is kept -------------------------------------------------------------------------------


def test_what_bob_signed_is_kept_under_his_buckets_and_under_his_own_name(
    store: RecordStore,
) -> None:
    bob = world.signed("bob", NOW)
    assert keep(store, ANY, bob.raw)
    assert providers(store, ANY) == [bob.raw]
    assert providers(store, PROCESS) == []
    assert store.value(BOB, NOW) is None
    assert put(store, BOB, bob.raw)
    assert keep(store, PROCESS, bob.raw)
    assert providers(store, PROCESS) == [bob.raw]
    assert store.value(BOB, NOW) == bob.raw
    assert (len(store), store.load) == (1, 3)


def test_one_write_may_name_many_and_all_of_them_hold_the_profile(store: RecordStore) -> None:
    bob = world.signed("bob", NOW)
    assert store.keep(SENDER, world.added(bob, ANY, PROCESS, BOB), NOW)
    for name in (ANY, PROCESS, BOB):
        assert providers(store, name) == [bob.raw]
    assert (len(store), store.load) == (1, 3)


def test_a_write_with_one_name_that_is_not_its_authors_is_kept_under_none(
    store: RecordStore,
) -> None:
    bob = world.signed("bob", NOW)
    carols = value_name(world.person("carol").peer_id)
    assert not store.keep(SENDER, world.added(bob, ANY, PROCESS, carols), NOW)
    assert (len(store), store.load) == (0, 0)


def test_who_tells_of_a_provider_gives_its_own_word_for_its_addresses(store: RecordStore) -> None:
    """Not those that the sender claims: these nobody signed."""
    bob = world.signed("bob", NOW)
    lie = Provider(Contact(bob.profile.peer_id, ("/ip4/192.0.2.66/tcp/1",)), bob.raw)
    store.keep(SENDER, AddProvider(ANY, lie), NOW)
    [reported] = store.providers(GetProviders(ANY), NOW).providers
    assert reported.contact == world.contact("bob")


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
        (value_name(world.person("carol").peer_id), world.signed("bob", NOW).raw, MisKeyedRecord),
    ],
)
def test_what_is_not_as_it_claims_is_refused_and_never_returned(
    store: RecordStore, name: bytes, raw: bytes, error: type[BadRecord]
) -> None:
    assert not keep(store, name, raw)
    assert not put(store, name, raw)
    assert providers(store, name) == []
    assert store.value(name, NOW) is None
    assert (len(store), store.load) == (0, 0)
    with pytest.raises(error):
        store.check(raw, [name], NOW)
    reported = Providers((Provider(SENDER, raw),)), Value(raw, ())
    assert store.verified(name, reported[0], NOW) == []
    assert store.verified(name, reported[1], NOW) == []


def test_who_is_not_admitted_to_the_network_is_not_kept() -> None:
    def admit(profile: Profile, now: Moment) -> Denied | None:
        stranger = profile.peer_id != world.person("bob").peer_id
        return Denied("work", "no grant of this network") if stranger else None

    store = RecordStore(admit, world.names_in_network, suits)
    carol = world.signed("carol", NOW).raw
    assert not keep(store, ANY, carol)
    with pytest.raises(BadRecord, match="is not of this network: not allowed to work"):
        store.check(carol, [ANY], NOW)
    assert keep(store, ANY, world.signed("bob", NOW).raw)
    assert len(store) == 1


def test_who_is_no_longer_admitted_is_refused_though_the_same_bytes_were_kept() -> None:
    """A grant may run out between two sendings of one profile."""
    denied: list[Denied] = []
    store = RecordStore(
        lambda profile, now: denied[0] if denied else None, world.names_in_network, suits
    )
    bob = world.signed("bob", NOW)
    assert keep(store, ANY, bob.raw)
    denied.append(Denied("work", "the grant has expired"))
    assert not keep(store, PROCESS, bob.raw, after(1))
    with pytest.raises(BadRecord, match="the grant has expired"):
        store.check(bob.raw, [ANY], after(1))


def test_a_newer_profile_takes_the_place_of_the_older_under_every_name(store: RecordStore) -> None:
    old, new = world.signed("bob", NOW, sequence=1), world.signed("bob", NOW, sequence=2)
    keep(store, ANY, old.raw)
    put(store, BOB, old.raw)
    keep(store, ANY, new.raw)
    assert providers(store, ANY) == [new.raw]
    assert store.value(BOB, NOW) == new.raw
    assert store.load == 2


def test_a_replayed_profile_is_refused_even_after_what_replaced_it_was_dropped(
    store: RecordStore,
) -> None:
    old = world.sealed(world.profile("bob", NOW, sequence=1, ttl_s=600), world.person("bob"))
    keep(store, ANY, old.raw)
    keep(store, ANY, world.signed("bob", NOW, sequence=2).raw)
    assert not keep(store, ANY, old.raw)
    store.expire(after(130))
    assert len(store) == 0
    assert not keep(store, ANY, old.raw, after(130))
    with pytest.raises(ReplayedRecord):
        store.check(old.raw, [ANY], after(130))
    assert providers(store, ANY, after(130)) == []


def test_two_profiles_with_one_number_are_not_both_believed(store: RecordStore) -> None:
    first = world.signed("bob", NOW, sequence=1)
    keep(store, ANY, first.raw)
    other = replace(world.profile("bob", NOW, sequence=1), price_micro=9)
    assert not keep(store, ANY, world.sealed(other, world.person("bob")).raw)
    assert providers(store, ANY) == [first.raw]


def test_a_profile_that_belongs_under_fewer_names_leaves_the_others(store: RecordStore) -> None:
    store.keep(SENDER, world.added(world.signed("bob", NOW, sequence=1), ANY, PROCESS), NOW)
    idle_bob = replace(world.profile("bob", NOW, sequence=2), drivers=())
    keep(store, ANY, world.sealed(idle_bob, world.person("bob")).raw)
    assert providers(store, PROCESS) == []
    assert len(providers(store, ANY)) == 1
    assert store.load == 1


def test_a_profile_whose_shards_have_moved_leaves_those_where_it_was(store: RecordStore) -> None:
    """Or it would be found where its author has long stopped to announce itself."""
    deep = spanning("bob", Span(2, 2), Span(5, 5), sequence=1)
    key = world.person("bob").key
    membership = shard_key(world.NETWORK, "any", key, 2)
    assert store.keep(SENDER, world.added(deep, membership, BOB), NOW)
    deeper = spanning("bob", Span(3, 3), Span(5, 5), sequence=2)
    below = shard_key(world.NETWORK, "any", key, 3)
    assert store.keep(SENDER, world.added(deeper, below), NOW)
    stays = 2 in depths_of("any", world.person("bob").peer_id, Span(3, 3))
    assert providers(store, membership) == ([deeper.raw] if stays else [])
    assert providers(store, below) == [deeper.raw]
    assert store.value(BOB, NOW) == deeper.raw


def test_nothing_expired_is_returned_and_in_time_it_is_dropped(store: RecordStore) -> None:
    bob, carol = world.signed("bob", NOW), world.signed("carol", after(60))
    for name in (ANY, BOB):
        keep(store, name, bob.raw)
    keep(store, ANY, carol.raw, after(60))
    assert providers(store, ANY, after(120)) == [carol.raw]
    assert count(store, ANY, after(119)).members == 2
    assert count(store, ANY, after(120)).members == 1
    assert store.value(BOB, after(119)) == bob.raw
    assert store.value(BOB, after(120)) is None
    assert not keep(store, ANY, bob.raw, after(120))
    assert len(store) == 2
    store.expire(after(120))
    assert len(store) == 1
    assert providers(store, ANY, after(120)) == [carol.raw]


def test_a_tombstone_ends_the_profile_under_every_name_and_bars_its_return(
    store: RecordStore,
) -> None:
    bob = world.signed("bob", NOW, sequence=1)
    store.keep(SENDER, world.added(bob, ANY, PROCESS, BOB), NOW)
    assert put(store, BOB, world.tombstone("bob", NOW, sequence=2).raw)
    assert providers(store, ANY) == providers(store, PROCESS) == []
    assert count(store, ANY) == ShardCount()
    assert store.value(BOB, NOW) is None
    assert (len(store), store.load) == (1, 0)
    for name in (ANY, BOB):
        assert not keep(store, name, bob.raw)
    assert keep(store, ANY, world.signed("bob", after(1), sequence=3).raw, after(1))  # is back
    assert len(providers(store, ANY, after(1))) == 1


def test_a_tombstone_of_one_who_was_not_known_is_kept_against_replays(store: RecordStore) -> None:
    gone = world.tombstone("bob", NOW, sequence=2)
    assert put(store, BOB, gone.raw)
    assert store.check(gone.raw, [BOB], NOW).signed == gone
    assert not store.is_live(gone)
    assert store.value(BOB, NOW) is None
    assert not put(store, BOB, world.signed("bob", NOW, sequence=1).raw)
    store.expire(after(121))
    assert len(store) == 0


def test_the_names_of_a_profile_are_worked_out_once() -> None:
    named: list[str] = []

    def counted(profile: Profile) -> dict[bytes, tuple[int, Span]]:
        named.append(profile.addresses[0])
        return dict(world.names_in_network(profile))

    names_of: NamesOf = counted
    few = DhtParameters(max_checked=2)
    store = RecordStore(world.admit_all, names_of, suits, few)
    bob, carol, dave = (world.signed(name, NOW).raw for name in ("bob", "carol", "dave"))
    first, second, third = (world.contact(n).addresses[0] for n in ("bob", "carol", "dave"))
    for name in (ANY, PROCESS, ANY):
        store.check(bob, [name], NOW)
    assert named == [first]
    for each in (carol, dave, dave, carol):
        store.check(each, [ANY], NOW)
    assert named == [first, second, third]
    store.check(bob, [ANY], NOW)  # it was the oldest of three, and two are remembered
    assert named == [first, second, third, first]


def test_what_is_not_admitted_is_not_remembered_as_checked() -> None:
    named: list[Profile] = []

    def counted(profile: Profile) -> dict[bytes, tuple[int, Span]]:
        named.append(profile)
        return {}

    store = RecordStore(lambda profile, now: Denied("work", "no grant"), counted, suits)
    for name in ("bob", "carol"):
        with pytest.raises(BadRecord):
            store.check(world.signed(name, NOW).raw, [ANY], NOW)
    assert named == []


def test_a_full_store_forgets_whose_profile_ends_first() -> None:
    store = store_of(DhtParameters(max_authors=2))
    for second, name in enumerate(("bob", "carol", "dave")):
        assert keep(store, ANY, world.signed(name, after(second)).raw, after(second))
    carol = world.signed("carol", after(3)).raw
    assert keep(store, ANY, carol, after(3))  # is known: pushes nobody out
    assert len(store) == 2
    dave = world.signed("dave", after(2)).raw
    assert sorted(providers(store, ANY, after(3))) == sorted([carol, dave])


def test_a_full_name_takes_no_more_authors_and_other_names_still_do() -> None:
    store = store_of(DhtParameters(max_authors_per_name=2))
    bob, carol, dave = (world.signed(name, NOW) for name in ("bob", "carol", "dave"))
    assert keep(store, ANY, bob.raw)
    assert keep(store, ANY, carol.raw)
    assert not store.keep(SENDER, world.added(dave, ANY, PROCESS), NOW)
    assert sorted(providers(store, ANY)) == sorted([bob.raw, carol.raw])
    assert providers(store, PROCESS) == [dave.raw]
    newer = world.signed("bob", after(1))
    assert keep(store, ANY, newer.raw, after(1))  # is there already
    assert newer.raw in providers(store, ANY, after(1))


def test_the_name_of_a_bucket_has_no_value(store: RecordStore) -> None:
    keep(store, ANY, world.signed("bob", NOW).raw)
    assert store.value(ANY, NOW) is None


# -- what is told -------------------------------------------------------------------------------


def spanning(name: str, *spans: Span, sequence: int | None = None) -> SignedProfile:
    unsigned = replace(world.profile(name, NOW, sequence=sequence), spans=spans)
    return world.sealed(unsigned, world.person(name))


def count(store: RecordStore, name: bytes, now: Moment = NOW, target: int = 0) -> ShardCount:
    query = GetProviders(name, ProviderQuery(Key(target), b"", 0))
    reported = store.providers(query, now)
    assert reported.providers == ()
    assert reported.count is not None
    return reported.count


def on_side(bit: int, number: int) -> list[str]:
    """People whose keys begin with this bit."""
    everybody = (f"person {n}" for n in itertools.count())
    return list(
        itertools.islice((n for n in everybody if world.person(n).key >> 255 == bit), number)
    )


def test_a_count_says_who_is_where_on_the_side_of_the_key_that_asks(store: RecordStore) -> None:
    left = on_side(0, 6)
    right = on_side(1, 2)
    sampled = [n for n in on_side(0, 200) if n not in left if is_sample(n, Span(1, 1))][:3]
    for name in left[:3]:
        assert keep(store, ANY, spanning(name).raw)
    for name in left[3:5]:  # split under way
        assert keep(store, ANY, spanning(name, Span(0, 2)).raw)
    for name in right:
        assert keep(store, ANY, spanning(name).raw)
    for name in sampled:
        assert keep(store, ANY, spanning(name, Span(1, 1)).raw)
    gone = world.sealed(replace(world.profile(left[5], NOW), withdrawn=True), world.person(left[5]))
    assert keep(store, ANY, gone.raw)
    # Three samples are at depth 1, two who split will be at 2: the median is 1.
    assert count(store, ANY, target=0) == ShardCount(7, 3, 0, 5, 1)
    assert count(store, ANY, target=1 << 255) == ShardCount(7, 2, 0, 0, 1, beyond=5)


def is_sample(name: str, span: Span) -> bool:
    return 0 in depths_of("any", world.person(name).peer_id, span)


def test_who_merges_is_counted_below_as_one_that_is_in_a_shallower_shard(
    store: RecordStore,
) -> None:
    going_up, *_ = on_side(0, 1)
    key = world.person(going_up).key
    below = shard_key(world.NETWORK, "any", key, 3)
    assert keep(store, below, spanning(going_up, Span(2, 3)).raw)
    assert count(store, below, target=key) == ShardCount(1, 0, 1, 0, 0)
    across = key ^ (1 << (255 - 3))  # shares the three bits of the shard, and not the next
    assert count(store, below, target=across) == ShardCount(members=1)
    above = shard_key(world.NETWORK, "any", key, 2)
    assert keep(store, above, spanning(going_up, Span(2, 3)).raw)
    across = key ^ (1 << (255 - 2))
    assert count(store, above, target=across) == ShardCount(1, depth=3, beyond=1)


def test_the_author_of_a_write_is_told_the_counts_on_its_own_side_in_the_order_of_its_names(
    store: RecordStore,
) -> None:
    left, right = on_side(0, 3), on_side(1, 1)
    for name in (*left, *right):
        keep(store, ANY, spanning(name).raw)
    keep(store, PROCESS, spanning(left[0]).raw)
    write = world.added(spanning(left[0]), PROCESS, ANY, acknowledged=True)
    assert store.counts(write, NOW) == (ShardCount(1, 1), ShardCount(4, 3))
    write = world.added(spanning(right[0]), ANY)
    assert store.counts(write, NOW) == (ShardCount(4, 1),)
    assert store.counts(write, after(120)) == (ShardCount(),)


def test_spans_past_the_end_of_the_list_are_whole(store: RecordStore) -> None:
    """`driver/process` is the second bucket of bob's; only that of `any` is told to be deep."""
    bob = spanning("bob", Span(4, 4))
    assert keep(store, PROCESS, bob.raw)
    assert count(store, PROCESS, target=world.person("bob").key).members == 1
    at_four = shard_key(world.NETWORK, "any", world.person("bob").key, 4)
    assert keep(store, at_four, bob.raw)
    elsewhere = shard_key(world.NETWORK, "any", world.person("bob").key, 5)
    assert not keep(store, elsewhere, bob.raw)


def test_without_a_query_the_nearest_to_the_name_are_told(store: RecordStore) -> None:
    for name in PEOPLE:
        keep(store, ANY, small_machine(name, 1))
    reported = store.providers(GetProviders(ANY), NOW)
    assert len(reported.providers) == min(MAX_PROVIDERS, len(PEOPLE))
    target = key_of(ANY)
    distances = [key_of_peer(each.contact.peer_id) ^ target for each in reported.providers]
    assert distances == sorted(distances)
    assert reported.count is not None
    assert reported.count.members == len(PEOPLE)


def test_of_a_reply_only_what_is_good_is_believed(store: RecordStore) -> None:
    bob, carol = world.signed("bob", NOW), world.signed("carol", NOW)
    reply = Providers(tuple(Provider(SENDER, raw) for raw in (forged(), b"", carol.raw, bob.raw)))
    authors = [carol.profile.peer_id, bob.profile.peer_id]
    verified = store.verified(ANY, reply, NOW)
    assert verified == list(zip(authors, [carol, bob], strict=True))
    assert store.verified(BOB, Value(None, ()), NOW) == []
    assert store.verified(BOB, Value(bob.raw, ()), NOW) == [(authors[1], bob)]
    assert len(store) == 0  # it is known, and not kept


def test_what_is_newer_counts_and_the_last_word_is_no_presence(store: RecordStore) -> None:
    old, new = world.signed("bob", NOW, sequence=1), world.signed("bob", NOW, sequence=2)
    assert store.supersedes(new, old)
    assert not store.supersedes(old, new)
    assert not store.supersedes(new, new)
    assert store.is_live(new)
    assert not store.is_live(world.tombstone("bob", NOW))


PEOPLE = [f"worker {number}" for number in range(30)]


@given(st.integers(0, 2**256 - 1), st.integers(0, MAX_PROVIDERS), st.integers(1, 10))
def test_the_nearest_that_suit_are_returned_nearest_first(
    target: int, limit: int, cores: int
) -> None:
    store = RecordStore(world.admit_all, world.names_in_network, suits)
    rng = random.Random(1)
    raws = [small_machine(name, rng.randrange(1, 10)) for name in PEOPLE]
    for raw in raws:
        assert keep(store, ANY, raw)
    everyone = [store.check(raw, [ANY], NOW).signed.profile for raw in raws]
    by_distance = sorted(
        (profile for profile in everyone if profile.capability.cpu_milli >= cores * 1000),
        key=lambda profile: key_of_peer(profile.peer_id) ^ target,
    )
    needs = encode_requirements(Requirements(cpu_milli=cores * 1000, memory_bytes=1))
    reported = store.providers(GetProviders(ANY, ProviderQuery(Key(target), needs, limit)), NOW)
    found = [store.check(each.profile, [ANY], NOW).signed.profile for each in reported.providers]
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
