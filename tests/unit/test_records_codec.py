"""What a message's parser is made of: a value of the plain kinds, or Malformed."""

import re
from collections.abc import Callable
from typing import Any

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.cbor import MAX_DEPTH
from formation_p2p.records.core.codec import (
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


def test_what_is_no_plain_cbor_is_malformed() -> None:
    with pytest.raises(Malformed, match=r"^cbor: .*tag 35 is not used here") as caught:
        decode(cbor2.dumps(cbor2.CBORTag(35, "(a+)+$")), 64)
    assert caught.value.field == "cbor"


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
