"""Quantities: what people write, and the integers that are kept."""

from decimal import Decimal

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from formation_p2p.core.units import (
    GIB,
    MAX_BYTES,
    MAX_MILLI,
    MIB,
    format_bytes,
    format_micro,
    format_milli,
    format_span,
    parse_bytes,
    parse_micro,
    parse_milli,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("1024", 1024),
        ("8GiB", 8 * GIB),
        (" 8 gib ", 8 * GIB),
        ("4G", 4 * GIB),
        ("24GB", 24 * 10**9),
        ("1.5MiB", 3 * MIB // 2),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    "text", ["", "-1024", "abc", "8 bananas", "1e9", "nan", "0x10", "٣GiB", "2000000TiB"]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"size|past"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("text", "milli"), [("2", 2000), ("1.5", 1500), ("1500m", 1500), (" 0.001 ", 1), ("0", 0)]
)
def test_cores_are_read_as_people_write_them(text: str, milli: int) -> None:
    assert parse_milli(text) == milli


@pytest.mark.parametrize(
    "text",
    [
        *("", "m", "-5", "-0.001", "nan", "inf", "-inf", "sNaN", "abc", "0.0001", "1.5mm"),
        "1000001",
        # Decimal overflows with an error of its own, underflows to 0, and rounds at 28 digits.
        *("1e999999999", "1e-999999999", "1e999999999m", "0.99999999999999999999999999999999"),
    ],
)
def test_what_is_no_number_of_cores_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"number|past|finer"):
        parse_milli(text)


@given(st.text() | st.from_regex(r"\A-?\d{0,3}\.?\d{0,5}(e-?\d{1,12})?m?\Z"))
@example("1e999999999")
def test_a_text_is_a_number_or_a_value_error(text: str) -> None:
    for parse, most in ((parse_milli, MAX_MILLI), (parse_bytes, MAX_BYTES)):
        try:
            value = parse(text)
        except ValueError:
            continue
        assert type(value) is int
        assert 0 <= value <= most


@given(st.integers(0, MAX_MILLI))
def test_cores_survive_being_written_and_read(milli: int) -> None:
    assert parse_milli(format_milli(milli)) == milli
    assert Decimal(format_milli(milli)) * 1000 == milli


@given(st.integers(0, 1023), st.sampled_from(["B", "KiB", "MiB", "GiB", "TiB"]))
def test_whole_sizes_survive_being_written_and_read(count: int, unit: str) -> None:
    size = parse_bytes(f"{count}{unit}")
    assert parse_bytes(format_bytes(size)) == size


def test_sizes_are_shown_in_their_largest_unit() -> None:
    assert [format_bytes(size) for size in (0, 1023, 1536, 8 * GIB)] == [
        "0B",
        "1023B",
        "1.5KiB",
        "8GiB",
    ]


def test_a_third_of_a_core_in_two_parts_is_a_third() -> None:
    """In floats 0.1 + 0.2 is more than 0.3."""
    assert parse_milli("0.1") + parse_milli("0.2") == parse_milli("0.3")


@pytest.mark.parametrize(
    ("text", "micro"), [("2", 2_000_000), ("0.05", 50_000), (" 0.000001 ", 1), ("0", 0)]
)
def test_prices_are_read_as_people_write_them(text: str, micro: int) -> None:
    assert parse_micro(text) == micro


@pytest.mark.parametrize("text", ["", "-1", "1e3", "nan", "0.0000001", "1.", "٣", "9" * 13])
def test_what_is_no_price_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="price"):
        parse_micro(text)


@given(st.integers(0, 10**18 - 1))
def test_a_price_comes_back_as_it_was_written(micro: int) -> None:
    assert parse_micro(format_micro(micro)) == micro


def test_a_span_is_told_in_the_largest_unit_of_which_there_are_two() -> None:
    spans_s = (3, 119, 120, 59.9 * 60, 119.9 * 60, 7200, 49 * 3600)
    told = ["3 s", "119 s", "2 min", "59 min", "119 min", "2 h", "2 d"]
    assert [format_span(each) for each in spans_s] == told
