"""Multiaddrs of strangers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multiaddr import Multiaddr

from formation_p2p.core.records.addresses import (
    MAX_ADDRESS_BYTES,
    address_bytes,
    address_text,
    read_addresses,
)

GOOD = (
    "/ip4/192.0.2.1/tcp/4001",
    "/ip6/2001:db8::1/udp/9/quic-v1",
    "/dns4/gate.example/tcp/443/wss",
    "/ip4/192.0.2.1/tcp/1/p2p/12D3KooWK99VoVxNE7XzyBwXEzW7xhK7Gpv85r9F3V3fyKSUKPH5/p2p-circuit",
)


@pytest.mark.parametrize("text", GOOD)
def test_an_address_is_the_same_as_text_and_as_bytes(text: str) -> None:
    assert address_text(address_bytes(text)) == text


@pytest.mark.parametrize(
    "text", ["", "/", "alice", "/ip4/999.0.0.1/tcp/1", "/tcp", "/ip4/\x00", "/dns4/" + "a" * 300]
)
def test_other_text_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="multiaddr"):
        address_bytes(text)


def test_an_address_that_cannot_be_read_leaves_the_others_good() -> None:
    good = address_bytes(GOOD[0])
    unknown_protocol = b"\xff\x7f\x01"
    assert read_addresses([unknown_protocol, b"", good]) == (GOOD[0],)


def test_an_address_that_could_not_be_written_again_is_left_out() -> None:
    zone = b"a/tcp/1"  # as text it reads /ip6zone/a/tcp/1/…, which is something else
    raw = b"\x2a" + bytes([len(zone)]) + zone + address_bytes("/ip6/fe80::1/tcp/1")
    slash = b"\x2a\x02//" + address_bytes("/ip6/fe80::1/tcp/1")
    assert "/a/tcp/1" in str(Multiaddr(raw))
    for trick in (raw, slash):
        text = address_text(trick)
        assert text is None or address_bytes(text)


def test_an_address_with_an_escape_sequence_is_left_out() -> None:
    zone = b"\x1b[2Jx"
    raw = b"\x2a" + bytes([len(zone)]) + zone + address_bytes("/ip6/fe80::1/tcp/1")
    assert "\x1b" in str(Multiaddr(raw))
    assert address_text(raw) is None


def test_an_address_past_its_bound_is_not_looked_at() -> None:
    hop = address_bytes("/ip4/192.0.2.1")
    assert MAX_ADDRESS_BYTES // len(hop) == 51
    assert address_text(hop * 51) == "/ip4/192.0.2.1" * 51
    assert address_text(hop * 52) is None
    with pytest.raises(ValueError, match="256"):
        address_bytes("/ip4/192.0.2.1" * 52)


@given(st.binary(max_size=40))
def test_no_bytes_break_the_reader(raw: bytes) -> None:
    text = address_text(raw)
    if text is not None:
        assert text.isprintable()
        assert address_text(address_bytes(text)) == text


@given(st.sampled_from(GOOD), st.data())
def test_no_damage_breaks_the_reader(text: str, data: st.DataObject) -> None:
    raw = bytearray(address_bytes(text))
    raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    read = address_text(bytes(raw))
    assert read is None or address_bytes(read)
