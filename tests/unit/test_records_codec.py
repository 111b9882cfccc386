"""CBOR from strangers: whatever the bytes, a value of the plain kinds, or Malformed."""

import contextlib
import re
import time
from collections.abc import Callable
from typing import Any

import cbor2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formation_p2p.records.codec import (
    MAX_DEPTH,
    Malformed,
    decode,
    encode,
    take_bytes,
    take_int,
    take_list,
    take_text,
)

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**64), 2**64 - 1)
    | st.text(max_size=20)
    | st.binary(max_size=20),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=12,
)


def depth(value: object) -> int:
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(plain.filter(lambda value: depth(value) <= MAX_DEPTH))
def test_what_we_encode_decodes_to_the_same(value: object) -> None:
    raw = encode(value)
    assert decode(raw, len(raw)) == value
    assert encode(decode(raw, len(raw))) == raw


@settings(max_examples=500)
@given(st.binary(max_size=64))
def test_no_bytes_break_the_decoder(raw: bytes) -> None:
    with contextlib.suppress(Malformed):
        decode(raw, 64)


@given(plain, st.data())
def test_no_damage_to_a_message_breaks_the_decoder(value: object, data: st.DataObject) -> None:
    raw = bytearray(encode(value))
    place = data.draw(st.integers(0, len(raw) - 1))
    raw[place] = data.draw(st.integers(0, 255))
    with contextlib.suppress(Malformed):
        decode(bytes(raw), 4096)


HOSTILE = {
    "nothing": b"",
    "a list said to be endless": b"\x9b\xff\xff\xff\xff\xff\xff\xff\xff",
    "a list said to hold 2**40 items": b"\x9b\x00\x00\x01\x00\x00\x00\x00\x00\x01",
    "bytes said to take 1 GiB": b"\x5a\x40\x00\x00\x00",
    "a map said to be endless": b"\xbb\x7f\xff\xff\xff\xff\xff\xff\xff",
    "a list without an end": b"\x9f\x00\xff",
    "text in pieces": b"\x7f\x61a\xff",
    "lists in lists": b"\x81" * 2000 + b"\x00",
    "tags on tags": b"\xd9\xd9\xf7" * 1000 + b"\x00",
    "a repeated key": b"\xa2\x00\x01\x00\x02",
    "text that is no UTF-8": b"\x61\xff",
    "a surrogate": b"\x63\xed\xa0\x80",
    "a stray break": b"\xff",
    "a reserved length": b"\x1c",
    "a second value": b"\x00\x00",
    "a big integer": b"\xc2\x49\x01\x00\x00\x00\x00\x00\x00\x00\x00",
    "a date": cbor2.dumps(cbor2.CBORTag(0, "2024-01-01T00:00:00Z")),
    "a time": cbor2.dumps(cbor2.CBORTag(1, 0)),
    "a decimal of two billion digits": cbor2.dumps(cbor2.CBORTag(4, [2**31 - 1, 1])),
    "a bigfloat that takes minutes": cbor2.dumps(cbor2.CBORTag(5, [2**24, 1])),
    "a fraction over zero": cbor2.dumps(cbor2.CBORTag(30, [1, 0])),
    "a regular expression": cbor2.dumps(cbor2.CBORTag(35, "(a+)+$")),
    "a mail message": cbor2.dumps(cbor2.CBORTag(36, "a")),
    "a UUID": cbor2.dumps(cbor2.CBORTag(37, bytes(16))),
    "a list that holds itself": b"\xd8\x1c\x81\xd8\x1d\x00",
    "a shared value": b"\xd8\x1c\x80",
    "a set": cbor2.dumps(cbor2.CBORTag(258, [1])),
    "a network": cbor2.dumps(cbor2.CBORTag(52, [8, b"\x01"])),
    "shared text": b"\xd9\x01\x00\x82\x64aaaa\xd8\x19\x00",
    "CBOR that says it is CBOR": b"\xd9\xd9\xf7\x00",
    "a tag that nobody knows": cbor2.dumps(cbor2.CBORTag(39321, 0)),
}


@pytest.mark.parametrize("raw", HOSTILE.values(), ids=HOSTILE.keys())
def test_a_trick_is_refused_at_once(raw: bytes) -> None:
    began = time.monotonic()
    with pytest.raises(Malformed):
        decode(raw, 8192)
    assert time.monotonic() - began < 1.0


@pytest.mark.parametrize("tag", range(300))
def test_no_tag_is_understood(tag: int) -> None:
    contents: tuple[object, ...] = (0, "a", b"a", [], [1, 2], {})
    for content in contents:
        with pytest.raises(Malformed):
            decode(cbor2.dumps(cbor2.CBORTag(tag, content)), 64)


def test_the_size_is_looked_at_first() -> None:
    raw = encode("x" * 100)
    with pytest.raises(Malformed, match="at most 100 are allowed"):
        decode(raw, 100)
    assert decode(raw, 102) == "x" * 100


ODD: tuple[object, ...] = (True, 1.0, float("nan"), "1", b"1", [1], {}, {1: 2}, cbor2.undefined)


@pytest.mark.parametrize("value", ODD)
def test_each_reader_takes_its_own_kind_only(value: object) -> None:
    kinds: dict[type, Callable[[], object]] = {
        str: lambda: take_text(value, "thing", 5),
        bytes: lambda: take_bytes(value, "thing", 5),
        list: lambda: take_list(value, "thing", 5),
        int: lambda: take_int(value, "thing", 0, 5),
    }
    for kind, read in kinds.items():
        if type(value) is kind:
            assert read() == value
        else:
            with pytest.raises(Malformed, match=r"^thing: is a"):
                read()


def test_an_integer_stays_in_its_range() -> None:
    assert [take_int(n, "n", 3, 5) for n in (3, 5)] == [3, 5]
    for n in (2, 6, -(2**63), 2**64):
        with pytest.raises(Malformed, match="not from 3 to 5"):
            take_int(n, "n", 3, 5)


def test_text_bytes_and_lists_stay_in_their_length() -> None:
    readers: tuple[tuple[Any, Any], ...] = (
        (take_text, "abc"),
        (take_bytes, b"abc"),
        (take_list, [1, 2, 3]),
    )
    for take, value in readers:
        assert take(value, "thing", 3) == value
        with pytest.raises(Malformed, match=r"has 3 .* at most 2"):
            take(value, "thing", 2)


@pytest.mark.parametrize(
    "text", ["\x1b[31m", "a\x00", "\x7f", "\x9b", "a\u202eb", "\u2028", "\ud800", "a\nb", "\t"]
)
def test_what_could_move_a_cursor_is_refused(text: str) -> None:
    with pytest.raises(Malformed, match="do not print"):
        take_text(text, "name", 10)


def test_lines_pass_where_lines_are_expected() -> None:
    text = "Traceback:\n\tÜber 9000 ☃"
    assert take_text(text, "message", 100, multiline=True) == text
    with pytest.raises(Malformed):
        take_text(text + "\x1b", "message", 100, multiline=True)
    with pytest.raises(Malformed):
        take_text(text + "\r", "message", 100, multiline=True)


def test_an_error_names_the_field_and_what_is_wrong_with_it() -> None:
    with pytest.raises(Malformed, match=re.escape("sequence: is a str, not an integer")) as caught:
        take_int("7", "sequence", 0, 10)
    assert (caught.value.field, caught.value.problem) == ("sequence", "is a str, not an integer")
    assert isinstance(caught.value, ValueError)
