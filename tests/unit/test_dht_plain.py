"""The specification's own records: plain contacts, and values that a validator knows."""

import hashlib
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import peer_id_from_bytes, peer_id_to_bytes
from formation_p2p.dht.core.messages import (
    AddProvider,
    GetProviders,
    Provider,
    Providers,
    PutValue,
    ShardCount,
    Value,
)
from tests.interop.plain_records import (
    ADDRESSES_TTL_S,
    MAX_PROVIDERS_PER_NAME,
    MAX_RECORDS,
    MAX_RECORDS_PER_PEER,
    RECORD_TTL_S,
    PlainRecords,
    PublicKeys,
    ValueRecord,
)
from tests.support import dht_world as world

ALICE, BOB, CAROL = (world.contact(name) for name in ("alice", "bob", "carol"))
NOW = Moment(1000.0, 1_700_000_000.0)
# js-libp2p and go-libp2p provide under the multihash of what they have.
FILE = b"\x12\x20" + hashlib.sha256(b"a file").digest()


def later(seconds: float) -> Moment:
    return Moment(NOW.mono_s + seconds, NOW.unix_s + seconds)


def provides(contact: Contact, *names: bytes) -> AddProvider:
    first, *more = names or (FILE,)
    return AddProvider(first, Provider(contact), tuple(more))


def found(records: PlainRecords, now: Moment = NOW, name: bytes = FILE) -> list[Contact]:
    return [each.contact for each in records.providers(GetProviders(name), now).providers]


class Numbers:
    """`/number/…`: a number in digits, of which the greatest is the best."""

    def validate(self, name: bytes, value: bytes) -> bool:
        return value.isdigit()

    def select(self, name: bytes, values: Sequence[bytes]) -> int:
        return max(range(len(values)), key=lambda index: int(values[index]))


def with_numbers() -> PlainRecords:
    return PlainRecords({b"number": Numbers()})


ED25519 = bytes.fromhex("08011220") + world.person("dave").public_key
ED25519_NAME = b"/pk/" + peer_id_to_bytes(world.person("dave").peer_id)
# A key of 300 bytes, as RSA's are: two bytes of length.
RSA = bytes.fromhex("080012ac02") + bytes(300)
RSA_NAME = b"/pk/\x12\x20" + hashlib.sha256(RSA).digest()


# -- providers -------------------------------------------------------------------------------------


def test_who_provides_is_found_the_latest_first_until_48_hours_later() -> None:
    records = PlainRecords()
    assert records.keep(ALICE, provides(ALICE), NOW)
    assert records.keep(BOB, provides(BOB), later(1))
    assert found(records) == [BOB, ALICE]
    assert [each.peer_id for each in found(records, later(RECORD_TTL_S))] == [BOB.peer_id]
    records.expire(later(RECORD_TTL_S))
    assert len(records) == 1
    records.expire(later(RECORD_TTL_S + 1))
    assert len(records) == 0
    assert found(records) == []


def test_a_providers_addresses_are_told_for_a_day() -> None:
    records = PlainRecords()
    records.keep(ALICE, provides(ALICE), NOW)
    assert found(records, later(ADDRESSES_TTL_S - 1)) == [ALICE]
    assert found(records, later(ADDRESSES_TTL_S)) == [Contact(ALICE.peer_id)]


def test_who_provides_again_is_kept_for_longer() -> None:
    records = PlainRecords()
    records.keep(ALICE, provides(ALICE), NOW)
    records.keep(BOB, provides(BOB), later(1))
    moved = Contact(ALICE.peer_id, ("/ip4/10.9.9.9/tcp/4001",))
    assert records.keep(moved, provides(moved), later(RECORD_TTL_S - 1))
    records.expire(later(RECORD_TTL_S + 1))
    assert found(records, later(RECORD_TTL_S + 1)) == [moved]


def test_nobody_provides_for_another() -> None:
    records = PlainRecords()
    assert not records.keep(BOB, provides(ALICE), NOW)
    assert found(records) == []


def test_one_write_may_have_several_names_and_counts_them() -> None:
    records = PlainRecords()
    write = provides(ALICE, FILE, b"other")
    assert records.keep(ALICE, write, NOW)
    records.keep(BOB, provides(BOB, b"other"), NOW)
    assert found(records, name=b"other") == [BOB, ALICE]
    assert records.counts(write, NOW) == (ShardCount(1, 1), ShardCount(2, 2))
    assert records.counts(write, later(RECORD_TTL_S)) == (ShardCount(), ShardCount())


def test_a_name_has_so_many_providers_and_no_more() -> None:
    records = PlainRecords()
    crowd = [world.contact(f"peer {number}") for number in range(MAX_PROVIDERS_PER_NAME + 1)]
    *first, last = crowd
    assert all(records.keep(each, provides(each), NOW) for each in first)
    assert records.keep(first[0], provides(first[0]), NOW)
    assert records.keep(last, provides(last), NOW)
    assert found(records) == [last, first[0], *reversed(first[2:])]  # who came first has gone


def test_a_peer_has_so_many_records_and_no_more() -> None:
    records = PlainRecords()
    names = [number.to_bytes(2, "big") for number in range(MAX_RECORDS_PER_PEER)]
    assert all(records.keep(ALICE, provides(ALICE, name), NOW) for name in names)
    assert not records.keep(ALICE, provides(ALICE), NOW)
    assert not records.keep(ALICE, PutValue(ED25519_NAME, ED25519), NOW)
    assert records.keep(ALICE, provides(ALICE, names[0]), later(1))
    assert records.keep(BOB, provides(BOB), NOW)
    records.expire(later(RECORD_TTL_S))
    assert records.keep(ALICE, provides(ALICE), later(RECORD_TTL_S))


def test_of_too_many_records_in_all_the_oldest_goes() -> None:
    records = PlainRecords()
    for number in range(MAX_RECORDS):
        peer = world.contact(f"peer {number // MAX_RECORDS_PER_PEER}")
        assert records.keep(peer, provides(peer, number.to_bytes(2, "big")), NOW)
    assert records.keep(ALICE, provides(ALICE), NOW)
    assert len(records) == MAX_RECORDS
    assert found(records, name=bytes(2)) == []
    assert found(records) == [ALICE]


def test_a_contact_that_says_where_supersedes_one_that_does_not() -> None:
    records = PlainRecords()
    assert records.supersedes(ALICE, Contact(ALICE.peer_id))
    assert not records.supersedes(Contact(ALICE.peer_id), ALICE)
    assert not records.supersedes(ALICE, ALICE)
    assert not records.supersedes(ALICE, ValueRecord(b"/pk/", b""))
    assert records.is_live(ALICE)


def test_of_a_reply_every_provider_is_taken_for_what_it_is() -> None:
    reply = Providers((Provider(ALICE), Provider(BOB)), (CAROL,))
    assert list(PlainRecords().verified(FILE, reply, NOW)) == [
        (ALICE.peer_id, ALICE),
        (BOB.peer_id, BOB),
    ]


# -- values ----------------------------------------------------------------------------------------


def test_a_public_key_is_kept_under_its_peer_id_for_48_hours() -> None:
    records = PlainRecords()
    for name, value in [(ED25519_NAME, ED25519), (RSA_NAME, RSA)]:
        assert records.keep(ALICE, PutValue(name, value), NOW)
        assert records.keep(BOB, PutValue(name, value), NOW)  # the same once more
        assert records.value(name, later(RECORD_TTL_S - 1)) == value
        assert records.value(name, later(RECORD_TTL_S)) is None
    assert records.value(b"/pk/nobody", NOW) is None
    assert len(records) == 2


def test_a_value_that_is_put_again_may_be_at_the_bound_of_who_put_it_first() -> None:
    records = with_numbers()
    names = [b"/number/%d" % number for number in range(MAX_RECORDS_PER_PEER)]
    assert all(records.keep(ALICE, PutValue(name, b"1"), NOW) for name in names)
    assert records.keep(BOB, PutValue(b"/number/x", b"1"), NOW)
    # Alice has no room for Bob's: his stays as it is.
    assert not records.keep(ALICE, PutValue(b"/number/x", b"2"), NOW)
    assert records.value(b"/number/x", NOW) == b"1"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (ED25519_NAME, RSA),
        (RSA_NAME, ED25519),
        (ED25519_NAME + b"x", ED25519),
        (b"/pl/" + ED25519_NAME[4:], ED25519),
        (b"pk/" + ED25519_NAME[4:], ED25519),
        (b"/pk", ED25519),
        (b"", ED25519),
    ],
)
def test_a_value_under_another_name_is_neither_kept_nor_believed(name: bytes, value: bytes) -> None:
    records = PlainRecords()
    assert not records.keep(ALICE, PutValue(name, value), NOW)
    assert records.value(name, NOW) is None
    assert list(records.verified(name, Value(value, ()), NOW)) == []


def named(value: bytes) -> bytes:
    """The name that the bytes would have if they were a key."""
    if len(value) <= 42:
        return b"/pk/" + bytes([0, len(value)]) + value
    return b"/pk/\x12\x20" + hashlib.sha256(value).digest()


@pytest.mark.parametrize(
    "value",
    [
        b"",
        b"\x08\x01\x12",
        b"\x09\x01\x12\x00",
        b"\x08\x04\x12\x00",
        b"\x08\x01\x13\x00",
        b"\x08\x01\x12\x02x",
        b"\x08\x01\x12\x02xxx",
        b"\x08\x01\x12\x82",
        RSA + b"x",
    ],
)
def test_bytes_that_are_no_public_key_are_not_kept_under_their_own_hash(value: bytes) -> None:
    assert not PublicKeys().validate(named(value), value)


@given(st.integers(0, 3), st.binary(max_size=400))
def test_every_public_key_is_valid_under_the_peer_id_made_from_it(kind: int, data: bytes) -> None:
    size = bytes([len(data)])
    if len(data) > 127:
        size = bytes([len(data) & 0x7F | 0x80, len(data) >> 7])
    value = bytes([8, kind, 0x12]) + size + data
    assert PublicKeys().validate(named(value), value)
    assert PublicKeys().select(named(value), [value, value]) == 0


@given(st.binary(max_size=64), st.binary(max_size=64))
def test_no_bytes_raise(name: bytes, value: bytes) -> None:
    assert not PlainRecords().keep(ALICE, PutValue(b"/pk/" + name, value), NOW)
    assert not PlainRecords().keep(ALICE, PutValue(name, value), NOW)


def test_the_peer_id_of_our_own_key_is_the_one_that_libp2p_makes() -> None:
    assert peer_id_from_bytes(named(ED25519)[4:]) == world.person("dave").peer_id


def test_a_value_gives_way_to_a_better_one_alone() -> None:
    records = with_numbers()
    name = b"/number/x"
    assert records.keep(ALICE, PutValue(name, b"2"), NOW)
    assert not records.keep(BOB, PutValue(name, b"1"), later(1))
    assert records.value(name, NOW) == b"2"
    assert records.keep(BOB, PutValue(name, b"3"), later(1))
    assert records.value(name, NOW) == b"3"
    # When it has expired, any will do.
    assert records.keep(BOB, PutValue(name, b"1"), later(1 + RECORD_TTL_S))
    assert not records.keep(BOB, PutValue(name, b"no number"), NOW)


def test_of_several_replies_the_best_value_counts() -> None:
    records = with_numbers()
    name = b"/number/x"
    replies = [Value(b"7", ()), Value(None, ()), Value(b"no number", ()), Value(b"8", ())]
    verified = [list(records.verified(name, reply, NOW)) for reply in replies]
    seven, eight = ValueRecord(name, b"7"), ValueRecord(name, b"8")
    assert verified == [[(name, seven)], [], [], [(name, eight)]]
    assert records.supersedes(eight, seven)
    assert not records.supersedes(seven, eight)
    assert records.is_live(seven)
