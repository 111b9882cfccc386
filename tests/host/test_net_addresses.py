"""Which addresses are used, and which are believed."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multiaddr import Multiaddr

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import Identity
from formation_p2p.net.transport.addresses import (
    TcpAddress,
    dialable,
    expand,
    parse_all,
    told_by,
)
from formation_p2p.records.core.addresses import MAX_ADDRESSES

BOB = Identity.from_seed(os.urandom(32)).peer_id
EVE = Identity.from_seed(os.urandom(32)).peer_id


@pytest.mark.parametrize(
    "text",
    [
        "/ip4/192.0.2.1/tcp/4001",
        "/ip6/2001:db8::1/tcp/4001",
        "/dns/gate.example/tcp/65535",
        "/dns4/a-b.cd.example/tcp/0",
        "/dns6/localhost/tcp/1",
    ],
)
def test_an_address_is_read_and_written_back(text: str) -> None:
    address = TcpAddress.parse(text)
    assert str(address) == text == str(Multiaddr(str(address)))
    assert str(TcpAddress.parse(f"{text}/p2p/{BOB}")) == text
    assert TcpAddress.parse(f"{text}/p2p/{BOB}").peer_id == BOB


@pytest.mark.parametrize(
    "text",
    [
        "",
        "/",
        "ip4/192.0.2.1/tcp/4001",
        "/ip4/192.0.2.1/tcp",
        "/ip4/192.0.2.1/udp/4001",
        "/ip4/192.0.2.1/tcp/4001/ws",
        "/ip4/192.0.2.1/tcp/4001/ws/p2p",
        "/ip4/192.0.2.256/tcp/4001",
        "/ip4/::1/tcp/4001",
        "/ip6/::ffff:127.0.0.1/tcp/4001",
        "/ip6/fe80::1%eth0/tcp/4001",
        "/ip4/192.0.2.1/tcp/65536",
        "/ip4/192.0.2.1/tcp/00655360",
        "/ip4/192.0.2.1/tcp/-1",
        "/ip4/192.0.2.1/tcp/٤",
        "/dns/-a.example/tcp/1",
        "/dns/" + "a" * 300 + "/tcp/1",
        "/dns/a b/tcp/1",
        f"/ip4/192.0.2.1/tcp/4001/p2p/{BOB}/p2p-circuit/p2p/{EVE}",
    ],
)
def test_what_tcp_cannot_dial_is_refused(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011  # the lowest level raises no other
        TcpAddress.parse(text)


@given(st.text(alphabet="/ip46tcdns2p:.0189%\x00a", max_size=60) | st.text(max_size=60))
def test_no_text_does_anything_but_an_address_or_a_value_error(text: str) -> None:
    try:
        address = TcpAddress.parse(text)
    except ValueError:
        return
    assert TcpAddress.parse(str(address)) == TcpAddress(address.family, address.host, address.port)


def test_only_addresses_that_lead_to_the_peer_are_dialled_each_once_and_few() -> None:
    assert list(
        map(
            str,
            dialable(
                [
                    "nonsense",
                    "/ip4/192.0.2.1/tcp/0",
                    "/ip4/0.0.0.0/tcp/4001",
                    f"/ip4/192.0.2.1/tcp/1/p2p/{EVE}",
                    f"/ip4/192.0.2.1/tcp/2/p2p/{BOB}",
                    "/ip4/192.0.2.1/tcp/2",
                ],
                BOB,
            ),
        )
    ) == ["/ip4/192.0.2.1/tcp/2"]
    assert len(dialable([f"/ip4/192.0.2.1/tcp/{i}" for i in range(1, 100)], BOB)) == MAX_ADDRESSES


def test_a_peer_elsewhere_cannot_send_us_to_ourselves() -> None:
    reported = ("/ip4/127.0.0.1/tcp/22", "/ip6/::1/tcp/22", "/dns/localhost/tcp/22")
    assert told_by(BOB, reported, "192.0.2.1") == ()
    assert told_by(BOB, reported, "127.0.0.1") == ("/ip4/127.0.0.1/tcp/22", "/ip6/::1/tcp/22")


def test_the_host_that_we_see_a_peer_come_from_goes_first() -> None:
    reported = ("/ip4/10.0.0.1/tcp/1", "/ip4/192.0.2.1/tcp/1", "/ip6/2001:db8::1/tcp/1")
    assert told_by(BOB, reported, "192.0.2.1") == (reported[1], reported[0], reported[2])
    assert told_by(BOB, reported, None) == reported


def test_an_unspecified_address_stands_for_those_of_the_interfaces() -> None:
    expanded = expand([TcpAddress.parse("/ip4/0.0.0.0/tcp/4001")])
    assert expanded
    assert all(a.startswith("/ip4/") and a.endswith("/tcp/4001") for a in expanded)
    assert not any("0.0.0.0" in a for a in expanded)
    assert expand([TcpAddress.parse("/ip4/192.0.2.1/tcp/1")]) == ("/ip4/192.0.2.1/tcp/1",)


def test_an_address_to_listen_on_is_an_ip_address_of_this_node() -> None:
    for text, why in (
        ("/ip4/127.0.0.1/tcp/0/p2p/xx", "names a peer; write /ip4/127.0.0.1/tcp/0: this node"),
        ("/dns4/a.org/tcp/0", "has a name; listen on an IP address"),
    ):
        with pytest.raises(InvalidInput, match=why):
            parse_all("listen", [text])
        if "dns" in text:
            assert list(map(str, parse_all("announce", [text]))) == [text]
