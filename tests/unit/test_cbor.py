"""CBOR from strangers: whatever the bytes, one plain value, or a ValueError that says why not."""

import contextlib
import time
from collections.abc import Callable

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.cbor import MAX_DEPTH, MAX_ITEMS, decode
from tests.support.working import calls_of

PLAIN = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=4) | st.binary(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)


def depth(value: object) -> int:
    match value:
        case list():
            return 1 + max(map(depth, value), default=0)
        case dict():
            return 1 + max(map(depth, value.values()), default=0)
        case _:
            return 0


@given(PLAIN.filter(lambda value: depth(value) <= MAX_DEPTH))
def test_a_plain_value_is_read_as_it_was_written(value: object) -> None:
    assert decode(cbor2.dumps(value)) == value


@given(st.binary(max_size=64))
def test_no_bytes_break_the_decoder(raw: bytes) -> None:
    with contextlib.suppress(ValueError):
        decode(raw)


@given(PLAIN, st.data())
def test_no_damage_to_a_message_breaks_the_decoder(value: object, data: st.DataObject) -> None:
    raw = bytearray(cbor2.dumps(value))
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ValueError):
        decode(bytes(raw))


HOSTILE = {
    "nothing": (b"", "premature end"),
    "a list said to be endless": (b"\x9b" + b"\xff" * 8, "premature end"),
    "a list said to hold 2**40 items": (b"\x9b\0\0\1\0\0\0\0\0\1", "premature end"),
    "bytes said to take 1 GiB": (b"\x5a\x40\0\0\0", "premature end"),
    "a map said to be endless": (b"\xbb\x7f" + b"\xff" * 7, "premature end"),
    "a list without an end": (b"\x9f\0\xff", "indefinite"),
    "text in pieces": (b"\x7f\x61a\xff", "indefinite"),
    "bytes in pieces": (b"\x5f\x41a\xff", "indefinite"),
    "a map without an end": (b"\xbf\x61a\0\xff", "indefinite"),
    "lists in lists": (b"\x81" * 2000 + b"\0", "depth"),
    "lists one too deep": (b"\x81" * (MAX_DEPTH + 1) + b"\0", "depth"),
    "maps one too deep": (b"\xa1\x61a" * (MAX_DEPTH + 1) + b"\0", "depth"),
    "tags on tags": (b"\xd9\xd9\xf7" * 1000 + b"\0", "tag 55799"),
    "a repeated key": (b"\xa2\x61a\0\x61a\1", "Duplicate"),
    "a repeated key of bytes": (b"\xa2\x41a\0\x41a\1", "Duplicate"),
    "a number as a key": (b"\xa1\0\0", "map key"),
    "a list as a key": (b"\xa1\x81\0\0", "map key"),
    "text that is no UTF-8": (b"\x61\xff", "text string"),
    "a surrogate": (b"\x63\xed\xa0\x80", "text string"),
    "a stray break": (b"\xff", "break"),
    "a break in a list": (b"\x81\xff", "break"),
    "a reserved length": (b"\x1c", "subtype"),
    "a second value": (b"\0\0", "1 bytes follow the value"),
    "a big integer": (cbor2.dumps(2**64), "tag 2 "),
    "a date": (cbor2.dumps(cbor2.CBORTag(0, "2024-01-01T00:00:00Z")), "tag 0 "),
    "a decimal of two billion digits": (cbor2.dumps(cbor2.CBORTag(4, [2**31 - 1, 1])), "tag 4 "),
    "a bigfloat that takes minutes": (cbor2.dumps(cbor2.CBORTag(5, [2**24, 1])), "tag 5 "),
    "a fraction over zero": (cbor2.dumps(cbor2.CBORTag(30, [1, 0])), "tag 30 "),
    "a regular expression that takes a second": (
        cbor2.dumps(cbor2.CBORTag(35, "(a|b)?" * 33_333)),
        "tag 35 ",
    ),
    "a mail message": (cbor2.dumps(cbor2.CBORTag(36, "a")), "tag 36 "),
    "a list that holds itself": (b"\xd8\x1c\x81\xd8\x1d\0", "tag 28 "),
    "shared text": (b"\xd9\1\0\x82\x64aaaa\xd8\x19\0", "tag 256 "),
    "CBOR that says it is CBOR": (b"\xd9\xd9\xf7\0", "tag 55799 "),
}


@pytest.mark.parametrize(("raw", "why"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_trick_is_refused_at_once(raw: bytes, why: str) -> None:
    began_s = time.thread_time()
    with pytest.raises(ValueError, match=why):
        decode(raw)
    assert time.thread_time() - began_s < 0.5  # of a second and more


CONTENT = b"\0"
PLACES: dict[str, Callable[[bytes], bytes]] = {
    "alone": lambda tagged: tagged,
    "in a list": lambda tagged: b"\x81" + tagged,
    "as a value": lambda tagged: b"\xa1\x61a" + tagged,
    "as a key": lambda tagged: b"\xa1" + tagged + b"\0",
    "in a key": lambda tagged: b"\xa1\x81" + tagged + b"\0",
    "before nothing": lambda tagged: tagged[: -len(CONTENT)],
}
# In every length that one may have (RFC 8949, section 3.4), and every one that cbor2 acts on.
LARGE_TAGS = (43_000, 55_799, 2**16 - 1, 2**16, 2**32 - 1, 2**32, 2**63 - 1, 2**63, 2**64 - 1)


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES.keys())
def test_no_tag_is_understood_wherever_it_stands(place: Callable[[bytes], bytes]) -> None:
    """Nor is read what it is put on: one before nothing is refused for itself."""
    for tag in (*range(2_000), *LARGE_TAGS):
        with pytest.raises(ValueError, match="tag") as caught:
            decode(place(tagged(tag)))
        assert f"tag {tag} is not used here" in str(caught.value)


def tagged(tag: int) -> bytes:
    """As a number is written, in major type 6."""
    number = cbor2.dumps(tag)
    return bytes([number[0] | 6 << 5]) + number[1:] + CONTENT


def test_what_is_said_of_a_message_is_short_however_much_it_holds() -> None:
    entry = cbor2.dumps("x" * 100_000) + b"\0"
    with pytest.raises(ValueError, match="Duplicate map key: 'xxx") as caught:
        decode(b"\xa2" + entry + entry)
    assert len(str(caught.value)) == 200


def short_lists(count: int) -> bytes:
    return b"\x9a" + count.to_bytes(4) + b"\x81\0" * count


def test_what_costs_more_than_its_bytes_is_not_made() -> None:
    """These lists would take a gigabyte, and four seconds."""
    raw = short_lists(8_000_000)

    def refused() -> None:
        with pytest.raises(ValueError, match="more than 131072 items"):
            decode(raw)

    assert calls_of(refused) < 3 * 131_072  # two of each item that is looked at
    assert decode(cbor2.dumps([0] * (MAX_ITEMS - 1))) == [0] * (MAX_ITEMS - 1)
    with pytest.raises(ValueError, match="more than 131072 items"):
        decode(cbor2.dumps([0] * MAX_ITEMS))


@pytest.mark.parametrize(
    "item",
    [b"\xff" * 200_000, "ü" * 100_000, 2**64 - 1, -(2**32), 1.5, b"x" * 23, b"x" * 200, "x" * 300],
    ids=["bytes", "text", "integer", "negative", "float", "within", "byte", "two"],
)
def test_long_values_of_few_items_are_read(item: object) -> None:
    value = [{"a": item, "b": [True, None]}, b"\xff" * MAX_ITEMS, item]
    assert decode(cbor2.dumps(value)) == value
