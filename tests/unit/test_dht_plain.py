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
    write = provides(ALICE, FILE, b"other")
    assert records.keep(ALICE, write, NOW)
    assert records.keep(BOB, provides(BOB), later(1))
    assert not records.keep(BOB, provides(CAROL), NOW), "nobody provides for another"
    assert found(records) == [BOB, ALICE]
    assert records.counts(write, later(1)) == (ShardCount(2, 2), ShardCount(1, 1))
    assert found(records, later(RECORD_TTL_S)) == [BOB]
    for seconds, left in ((RECORD_TTL_S, 1), (RECORD_TTL_S + 1, 0)):
        records.expire(later(seconds))
        assert len(records) == left
    assert found(records) == []
    told = Providers((Provider(ALICE), Provider(BOB)), (CAROL,))
    assert [each for _, each in records.verified(FILE, told, NOW)] == [ALICE, BOB]
    assert records.supersedes(ALICE, Contact(ALICE.peer_id))
    assert not records.supersedes(Contact(ALICE.peer_id), ALICE)


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
