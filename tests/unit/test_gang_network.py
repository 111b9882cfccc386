"""The network of a gang: its addresses, and which packets pass."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.features.gangs.core.network import (
    MTU_BYTES,
    PREFIX_BITS,
    Unframer,
    address_of,
    hostname_of,
    hosts_file,
    passes,
)
from formation_p2p.features.gangs.core.roster import MAX_MEMBERS


def framed(packet: bytes) -> bytes:
    return len(packet).to_bytes(2) + packet


def packet(source: str, target: str, body: bytes = b"hello", version: int = 4) -> bytes:
    size = 20 + len(body)
    ends = ipaddress.ip_address(source).packed + ipaddress.ip_address(target).packed
    return bytes((version << 4 | 5, 0)) + size.to_bytes(2) + bytes(8) + ends + body


def test_each_rank_has_an_address_and_a_name_in_the_same_network() -> None:
    network = ipaddress.ip_network(f"{address_of(0)}/{PREFIX_BITS}", strict=False)
    hosts = hosts_file().decode().splitlines()
    for rank in range(MAX_MEMBERS):
        address = ipaddress.ip_address(address_of(rank))
        assert address in network
        assert address not in (network.network_address, network.broadcast_address)
        assert hosts[1 + rank] == f"{address} {hostname_of(rank)}"
    assert hostname_of(0) == "m0"


def test_a_packet_between_two_members_passes() -> None:
    assert passes(packet(address_of(3), address_of(63))) == (3, 63)


@pytest.mark.parametrize(
    "foreign",
    [
        packet("10.77.0.65", address_of(0)),  # past the last member
        packet(address_of(0), "10.77.0.255"),  # to all
        packet(address_of(0), "224.0.0.1"),
        packet("127.0.0.1", address_of(0)),
        packet(address_of(0), "192.0.2.1"),
        packet(address_of(0), address_of(1), version=6),
        packet(address_of(0), address_of(1))[:-1],  # shorter than it says
        packet(address_of(0), address_of(1)) + b"x",
        packet(address_of(0), address_of(1))[:19],
        b"",
    ],
)
def test_what_is_foreign_does_not_pass(foreign: bytes) -> None:
    assert passes(foreign) is None


@given(st.lists(st.binary(min_size=20, max_size=200)), st.integers(1, 64))
def test_packets_come_out_of_the_stream_as_they_went_in(sent: list[bytes], piece: int) -> None:
    stream, unframer = b"".join(map(framed, sent)), Unframer()
    came: list[bytes] = []
    for at in range(0, len(stream), piece):
        came += map(bytes, unframer.packets(stream[at : at + piece]))
    assert came == sent


def test_two_packets_in_three_pieces() -> None:
    one, three = bytes(20), b"x" * 30
    unframer, stream = Unframer(), framed(one) + framed(three)
    pieces = (stream[:1], stream[1:25], stream[25:])
    assert [list(unframer.packets(each)) for each in pieces] == [[], [one], [three]]
    # One that is whole is not put together.
    assert list(unframer.packets(stream + stream[:30])) == [one, three, one]


@pytest.mark.parametrize("size", [0, 19, MTU_BYTES + 1])
def test_a_packet_has_a_size(size: int) -> None:
    with pytest.raises(ProtocolViolation, match=f"20 to {MTU_BYTES} are allowed"):
        list(Unframer().packets(size.to_bytes(2) + bytes(10)))
