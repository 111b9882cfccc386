"""Multiaddrs of strangers, and which of their addresses are public."""

import contextlib
from ipaddress import ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st
from multiaddr import Multiaddr

from formation_p2p.core.errors import (
    BadRecord,
    ForgedRecord,
    MalformedRecord,
    OversizedRecord,
    ReplayedRecord,
)
from formation_p2p.core.identity import Identity, parse_peer_id, peer_id_of
from formation_p2p.machine.core.capability import Capability, Capacity
from formation_p2p.records.core.addresses import (
    MAX_ADDRESS_BYTES,
    address_bytes,
    address_text,
    is_of_private_network,
    is_public,
    read_addresses,
)
from formation_p2p.records.core.envelope import open_envelope, seal
from formation_p2p.records.core.envelope_pb2 import RSA, Ed25519, Envelope, PublicKey
from formation_p2p.records.core.profile import (
    MAX_TTL_S,
    Newest,
    Profile,
    SignedProfile,
    open_profile,
    seal_profile,
)
from formation_p2p.records.core.signed_fields import MAX_CLOCK_SKEW_S

GOOD = (
    "/ip4/192.0.2.1/tcp/4001",
    "/ip6/2001:db8::1/udp/9/quic-v1",
    "/dns4/gate.example/tcp/443/wss",
    "/ip4/192.0.2.1/tcp/1/p2p/12D3KooWK99VoVxNE7XzyBwXEzW7xhK7Gpv85r9F3V3fyKSUKPH5/p2p-circuit",
)


@pytest.mark.parametrize("text", GOOD)
def test_an_address_is_the_same_as_text_and_as_bytes(text: str) -> None:
    assert address_text(address_bytes(text)) == text
    assert address_bytes(text) == Multiaddr(text).to_bytes()


VALUES = {
    "ip4": st.ip_addresses(v=4).map(str),
    "ip6": st.ip_addresses(v=6).map(str),
    "dns": st.from_regex(r"[a-z0-9]{1,20}(\.[a-z0-9]{1,20})?", fullmatch=True),
    "tcp": st.integers(0, 65_535).map(str),
    "p2p": st.binary(min_size=32, max_size=32).map(peer_id_of),
    "p2p-circuit": st.none(),
}
VALUES |= dict.fromkeys(("dns4", "dns6", "dnsaddr", "sni"), VALUES["dns"]) | {"udp": VALUES["tcp"]}
VALUES |= dict.fromkeys(("tls", "noise", "quic", "quic-v1", "webtransport", "ws", "wss"), st.none())
PART = st.sampled_from(sorted(VALUES)).flatmap(
    lambda name: VALUES[name].map(lambda value: f"/{name}" if value is None else f"/{name}/{value}")
)


@given(st.lists(PART, min_size=1, max_size=5).map("".join))
def test_the_bytes_of_an_address_are_those_of_multiaddrs_own_package(text: str) -> None:
    assert address_bytes(text) == Multiaddr(text).to_bytes()
    assert address_bytes(str(Multiaddr(address_bytes(text)))) == address_bytes(text)


def test_a_peer_written_as_a_cid_is_the_same_peer() -> None:
    cid = "bafzbeie5745rpv2m6tjyuugywy4d5ewrqgqqhfnf445he3omzpjbx5xqxe"
    assert address_text(address_bytes(f"/p2p/{cid}")) == f"/p2p/{parse_peer_id(cid)}"


@pytest.mark.parametrize(
    "text",
    [
        "", "/", "//", "alice", "ip4/192.0.2.1", "/ip4/999.0.0.1/tcp/1", "/tcp", "/ip4/\x00",
        "/dns4/" + "a" * 300, "/ip4/192.0.2.1/tcp/65536", "/ip4/192.0.2.1/tcp/-1", "/dns4//tcp/1",
        "/ip6/fe80::1%eth0/tcp/1", "/unix/run/a", "/p2p/alice", "/ip4/192.0.2.1//tcp/1",
        "/dns/a b", "/tcp/٣",
    ],
)  # fmt: skip
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
    for trick in (raw, slash):
        text = address_text(trick)
        assert text is None or address_bytes(text)


def test_an_address_with_an_escape_sequence_is_left_out() -> None:
    zone = b"\x1b[2Jx"
    raw = b"\x2a" + bytes([len(zone)]) + zone + address_bytes("/ip6/fe80::1/tcp/1")
    assert address_text(raw) is None


@pytest.mark.parametrize("text", GOOD)
def test_an_address_that_is_cut_short_is_left_out(text: str) -> None:
    raw = address_bytes(text)
    for size in range(len(raw)):
        assert address_text(raw[:size]) != text


def test_a_port_of_which_a_byte_is_missing_is_none() -> None:
    assert address_text(address_bytes("/ip4/192.0.2.1/tcp/4001")[:-1]) is None


def test_an_address_past_its_bound_is_not_looked_at() -> None:
    hop = address_bytes("/ip4/192.0.2.1")
    assert MAX_ADDRESS_BYTES // len(hop) == 51
    assert address_text(hop * 51) == "/ip4/192.0.2.1" * 51
    assert address_text(hop * 52) is None
    with pytest.raises(ValueError, match="256"):
        address_bytes("/ip4/192.0.2.1" * 52)
    longest = address_bytes("/ip4/192.0.2.1" * 50 + "/tcp/1" * 2)
    assert len(longest) == MAX_ADDRESS_BYTES
    assert read_addresses([hop * 52, longest]) == (address_text(longest),)


def test_an_address_past_its_bound_is_not_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parses = "formation_p2p.records.core.addresses.varint_at"
    monkeypatch.setattr(parses, lambda raw, at: pytest.fail("it was parsed"))
    assert address_text(b"\x01" * (MAX_ADDRESS_BYTES + 1)) is None


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


# `is_global` of ipaddress in Python 3.13.0, for the first address of each network and the last. It
# goes by IANA's registries of special addresses, as of 2024.
IN_3_13 = {
    "0.0.0.0/8": False, "10.0.0.0/8": False, "100.64.0.0/10": False, "127.0.0.0/8": False,
    "169.254.0.0/16": False, "172.16.0.0/12": False, "192.0.0.0/29": False,
    "192.0.0.170/31": False, "192.0.2.0/24": False, "192.168.0.0/16": False,
    "198.18.0.0/15": False, "198.51.100.0/24": False, "203.0.113.0/24": False,
    "240.0.0.0/4": False, "255.255.255.255/32": False, "::/128": False, "::1/128": False,
    "64:ff9b:1::/48": False, "100::/64": False, "2001::/32": False, "2001:2::/48": False,
    "2001:10::/28": False, "2001:db8::/32": False, "2002::/16": False, "fc00::/7": False,
    "fe80::/10": False, "::ffff:10.0.0.0/104": False, "::ffff:127.0.0.0/104": False,
    "::ffff:192.168.0.0/112": False, "::ffff:169.254.0.0/112": False,
    "1.0.0.0/8": True, "8.8.8.8/32": True, "100.63.0.0/16": True, "100.128.0.0/9": True,
    "172.15.0.0/16": True, "172.32.0.0/11": True, "192.0.1.0/24": True, "192.0.3.0/24": True,
    "198.17.0.0/16": True, "198.20.0.0/14": True, "223.0.0.0/8": True, "::ffff:8.8.8.8/128": True,
    "2001:200::/23": True, "2003::/16": True, "2606:4700::/32": True, "2620:4f:8000::/48": True,
    "2a00::/12": True, "3ffe::/16": True,
}  # fmt: skip
# That has these for global, of which some lead into private networks, and the others to no host
# that offers a tunnel.
STRICTER = (
    "192.0.0.9/32", "192.0.0.10/32", "192.88.99.0/24", "224.0.0.0/4", "::2/127", "::7f00:1/128",
    "::10.0.0.1/128", "::ffff:0:10.0.0.1/128", "64:ff9b::10.0.0.0/104", "64:ff9b::7f00:0/104",
    "64:ff9b::a9fe:a9fe/128", "64:ff9b::c0a8:0/112", "2001:1::1/128", "2001:3::/32",
    "2001:20::/28", "3fff::/20", "4000::/3", "5f00::/16", "fec0::/10", "ff00::/8",
)  # fmt: skip


def test_an_address_is_public_as_the_newest_python_has_it_or_stricter() -> None:
    expected = IN_3_13 | dict.fromkeys(STRICTER, False) | {"64:ff9b::8.8.8.8/128": True}
    for text, is_one in expected.items():
        network = ip_network(text)
        for ip in (network[0], network[-1]):
            assert is_public(ip) is is_one, ip


def test_this_python_has_no_address_for_private_that_is_taken_for_public() -> None:
    for text in (*IN_3_13, *STRICTER):
        for ip in (ip_network(text)[0], ip_network(text)[-1]):
            is_mapped = ip.version == 6 and ip.ipv4_mapped is not None
            assert is_mapped or ip.is_global or not is_public(ip), ip


def test_an_address_of_a_private_network_leads_to_no_service_of_this_machine() -> None:
    private = {"10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "::ffff:10.0.0.0/104"}
    private |= {"::ffff:192.168.0.0/112", "64:ff9b::10.0.0.0/104", "64:ff9b::c0a8:0/112"}
    for text in (*IN_3_13, *STRICTER):
        for ip in (ip_network(text)[0], ip_network(text)[-1]):
            assert is_of_private_network(ip) is (text in private), ip


# libp2p's signed envelope.

ALICE, BOB, CAROL = (Identity.from_seed(name * 32) for name in (b"a", b"b", b"c"))

TYPE = b"/test/1"


@given(st.binary(max_size=600), st.text(max_size=200), st.binary(max_size=200))
def test_what_alice_seals_opens_as_hers(payload: bytes, domain: str, payload_type: bytes) -> None:
    raw = seal(ALICE, domain, payload_type, payload)
    assert open_envelope(raw, domain, payload_type, len(raw)) == (ALICE.peer_id, payload)


def test_the_signature_is_over_lengths_and_parts_as_rfc_0002_has_it() -> None:
    raw = seal(ALICE, "domain", b"/t", b"x" * 300)
    signed = b"\x06domain" + b"\x02/t" + b"\xac\x02" + b"x" * 300
    assert Envelope.FromString(raw).signature == ALICE.sign(signed)


def test_what_was_signed_for_one_purpose_does_not_pass_for_another() -> None:
    raw = seal(ALICE, "domain", TYPE, b"payload")
    with pytest.raises(ForgedRecord):
        open_envelope(raw, "other", TYPE, 1000)
    with pytest.raises(MalformedRecord, match="another type"):
        open_envelope(raw, "domain", b"/test/2", 1000)


def test_moving_a_byte_between_the_parts_breaks_the_signature() -> None:
    wire = Envelope.FromString(seal(ALICE, "domain", b"/test/1", b"payload"))
    wire.payload_type, wire.payload = b"/test/1p", b"ayload"
    with pytest.raises(ForgedRecord):
        open_envelope(wire.SerializeToString(), "domain", b"/test/1p", 1000)


def test_nobody_signs_in_anothers_name() -> None:
    wire = Envelope.FromString(seal(BOB, "domain", TYPE, b"payload"))
    wire.public_key.Data = ALICE.public_key
    with pytest.raises(ForgedRecord, match="signature does not match"):
        open_envelope(wire.SerializeToString(), "domain", TYPE, 1000)


def test_the_size_is_looked_at_before_all_else() -> None:
    raw = seal(ALICE, "domain", TYPE, b"payload")
    with pytest.raises(OversizedRecord):
        open_envelope(raw, "domain", TYPE, len(raw) - 1)


@pytest.mark.parametrize(
    "key",
    [
        PublicKey(Type=RSA, Data=ALICE.public_key),
        PublicKey(Type=Ed25519, Data=ALICE.public_key[:31]),
        PublicKey(Type=Ed25519, Data=b""),
        None,
    ],
)
def test_only_ed25519_keys_sign(key: PublicKey | None) -> None:
    wire = Envelope.FromString(seal(ALICE, "domain", TYPE, b"payload"))
    wire.ClearField("public_key")
    if key is not None:
        wire.public_key.CopyFrom(key)
    with pytest.raises(MalformedRecord, match="no Ed25519 key"):
        open_envelope(wire.SerializeToString(), "domain", TYPE, 1000)


def test_an_envelope_that_a_third_party_rewrote_is_refused() -> None:
    # Each of these still verifies: the signature covers the fields, not their encoding.
    raw = seal(ALICE, "domain", TYPE, b"payload")
    wire = Envelope.FromString(raw)
    for rewritten in (
        raw + b"\x78\x01",  # an unknown field, 15
        raw + b"\x1a\x07payload",  # the payload once more
        Envelope(payload=b"payload").SerializeToString() + raw,
    ):
        assert Envelope.FromString(rewritten).signature == wire.signature
        with pytest.raises(MalformedRecord, match="unknown, repeated or out of order"):
            open_envelope(rewritten, "domain", TYPE, 1000)


@pytest.mark.parametrize("raw", [b"", b"\x00", b"\xff" * 50, b"\x0a\x02\x08\x01", b"\x0b" * 200])
def test_garbage_is_malformed(raw: bytes) -> None:
    with pytest.raises(MalformedRecord):
        open_envelope(raw, "domain", TYPE, 1000)


@given(st.data())
def test_no_damage_goes_unnoticed(data: st.DataObject) -> None:
    raw = bytearray(seal(ALICE, "domain", TYPE, b"payload"))
    place = data.draw(st.integers(0, len(raw) - 1))
    value = data.draw(st.integers(0, 255).filter(lambda value: value != raw[place]))
    raw[place] = value
    with pytest.raises(BadRecord):
        open_envelope(bytes(raw), "domain", TYPE, 1000)


@given(st.binary(max_size=200))
def test_no_bytes_break_it(raw: bytes) -> None:
    with contextlib.suppress(BadRecord):
        open_envelope(raw, "domain", TYPE, 1000)


# Of two records of one author, the newer counts, and the older never comes back.

NOW = 1_700_000_000


def signed(author: Identity, sequence: int, *, price: int = 0) -> SignedProfile:
    profile = Profile(
        peer_id=author.peer_id,
        sequence=sequence,
        issued_unix_s=NOW,
        expires_unix_s=NOW + 120,
        capability=Capability(1000, 0),
        capacity=Capacity(1000, 0),
        price_micro=price,
    )
    return open_profile(seal_profile(author, profile), NOW)


def test_an_older_profile_is_a_replay() -> None:
    newest = Newest()
    newest.admit(signed(ALICE, 1), NOW)
    newest.admit(signed(ALICE, 2), NOW)
    with pytest.raises(ReplayedRecord, match=f"a newer profile of {ALICE.peer_id} is known"):
        newest.admit(signed(ALICE, 1), NOW)


def test_the_same_profile_may_come_again() -> None:
    newest = Newest()
    for _ in range(3):
        newest.admit(signed(ALICE, 1), NOW)
    assert len(newest) == 1


def test_two_profiles_with_one_number_are_refused() -> None:
    newest = Newest()
    newest.admit(signed(ALICE, 1), NOW)
    with pytest.raises(ReplayedRecord, match="two profiles with one sequence number"):
        newest.admit(signed(ALICE, 1, price=5), NOW)
    newest.admit(signed(ALICE, 1), NOW)


def test_one_authors_number_is_nothing_to_another() -> None:
    newest = Newest()
    newest.admit(signed(ALICE, 9), NOW)
    newest.admit(signed(BOB, 1), NOW)
    assert len(newest) == 2


def test_an_author_is_remembered_for_as_long_as_an_old_record_could_live() -> None:
    newest = Newest()
    newest.admit(signed(ALICE, 2), NOW)
    life_s = MAX_TTL_S + MAX_CLOCK_SKEW_S
    with pytest.raises(ReplayedRecord):
        newest.admit(signed(ALICE, 1), NOW + life_s - 1)
    newest.admit(signed(BOB, 1), NOW + life_s)
    assert len(newest) == 1


def test_a_full_table_forgets_whom_it_has_not_heard_from() -> None:
    newest = Newest(limit=2)
    newest.admit(signed(ALICE, 2), NOW)
    newest.admit(signed(BOB, 2), NOW)
    newest.admit(signed(ALICE, 3), NOW)
    newest.admit(signed(CAROL, 2), NOW)
    assert len(newest) == 2
    with pytest.raises(ReplayedRecord):
        newest.admit(signed(ALICE, 2), NOW)
    newest.admit(signed(BOB, 1), NOW)  # forgotten, and so admitted
