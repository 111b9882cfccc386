"""A network and its invite."""

import base64
import hashlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import Identity
from formation_p2p.records.core.codec import encode
from formation_p2p.trust.core.grants import Right, Rights, check, issue
from formation_p2p.trust.core.network import MAX_GATES, Network, parse_invite

ROOT, OTHER_ROOT = Identity.from_seed(b"r" * 32), Identity.from_seed(b"o" * 32)
ALICE, BOB = (Identity.from_seed(name * 32).peer_id for name in (b"a", b"b"))
NOW = 1_700_000_000
GRANT = issue(ROOT, Rights(NOW + 60))
GATE = f"/ip4/192.0.2.1/tcp/4001/p2p/{ALICE}"
NETWORK = Network(ROOT.public_key, (GATE, f"/dns4/gate.example/tcp/443/wss/p2p/{BOB}"), GRANT)


def test_a_network_survives_as_an_invite() -> None:
    assert parse_invite(NETWORK.invite()) == NETWORK
    assert NETWORK.invite().startswith("formation1:")
    assert NETWORK.invite().isascii()


def test_the_largest_network_fits() -> None:
    name = ".".join(["a" * 60] * 3)
    gates = tuple(f"/dns4/{n}.{name}/tcp/4001/p2p/{ALICE}" for n in range(MAX_GATES))
    network = Network(ROOT.public_key, gates, GRANT)
    assert parse_invite(network.invite()) == network


def test_a_paste_that_was_broken_into_lines_is_good() -> None:
    text = NETWORK.invite()
    broken = "  " + "\r\n  ".join(text[n : n + 60] for n in range(0, len(text), 60)) + "\n"
    assert parse_invite(broken) == NETWORK


@pytest.mark.parametrize(
    "pasted",
    [
        "\ufeff{}",
        "\u201c{}\u201d",
        "\u00ab{}\u00bb",
        "'{}'",
        "`{}`",
        "<{}>",
        "> {}",
        ">> \u201e{}\u201c\r\n",
        "{}\u200b",
    ],
)
def test_what_mail_adds_to_an_invite_is_no_part_of_it(pasted: str) -> None:
    text = NETWORK.invite()
    assert parse_invite(pasted.format(text)) == NETWORK
    quoted = "\n> ".join(text[n : n + 60] for n in range(0, len(text), 60))
    assert parse_invite(pasted.format(quoted)) == NETWORK
    for hyphen in ("\u2010", "\u2011"):
        assert parse_invite(text.replace("-", hyphen)) == NETWORK
    for dash in ("\u2013", "\u2014"):
        assert parse_invite(text.replace("--", dash)) == NETWORK


@given(st.data())
def test_a_bad_paste_is_told(data: st.DataObject) -> None:
    text = NETWORK.invite()
    place = data.draw(st.integers(0, len(text) - 2))  # the last digit has unused bits
    other = data.draw(st.sampled_from("Aa0_-=é").filter(lambda letter: letter != text[place]))
    with pytest.raises(InvalidInput, match="invite"):
        parse_invite(text[:place] + other + text[place + 1 :])
    with pytest.raises(InvalidInput, match="invite"):
        parse_invite(text[:place])


@pytest.mark.parametrize(
    "text", ["", "formation1:", "formation1:Ä", "formation2:AAAA", "formation1:" + "A" * 9000]
)
def test_what_is_no_invite_is_told(text: str) -> None:
    with pytest.raises(InvalidInput, match="invite"):
        parse_invite(text)


def string_of(fields: object) -> str:
    body = encode(fields)
    raw = body + hashlib.sha256(body).digest()[:4]
    return "formation1:" + base64.urlsafe_b64encode(raw).decode().rstrip("=")


@pytest.mark.parametrize(
    "fields",
    [
        [],
        {},
        [ROOT.public_key, []],
        [ROOT.public_key, GATE, GRANT],
        [ROOT.public_key, [GATE], GRANT],
        [bytes(33), [], GRANT],
        [ROOT.public_key, [b"\x04\xc0\x00\x02\x01"] * 9, GRANT],
        [ROOT.public_key, [], bytes(2049)],
    ],
)
def test_an_invite_of_another_shape_is_told(fields: object) -> None:
    with pytest.raises(InvalidInput, match="this version cannot read it"):
        parse_invite(string_of(fields))


@given(st.binary(max_size=80))
def test_no_content_breaks_the_parser(body: bytes) -> None:
    raw = body + hashlib.sha256(body).digest()[:4]
    with pytest.raises(InvalidInput):
        parse_invite("formation1:" + base64.urlsafe_b64encode(raw).decode())


@given(st.text(max_size=80))
def test_no_text_breaks_the_parser(text: str) -> None:
    with pytest.raises(InvalidInput):
        parse_invite("formation1:" + text)


def test_a_gate_that_this_version_cannot_read_is_left_out() -> None:
    known = b"\x04\xc0\x00\x02\x01\x06\x0f\xa1\xa5\x03\x26\x00\x24\x08\x01\x12\x20" + bytes(32)
    network = parse_invite(string_of([ROOT.public_key, [b"\xff\x7f\x01", known], GRANT]))
    assert len(network.gates) == 1


# -- what a network is ---------------------------------------------------------------------------


def test_a_grant_of_another_root_makes_no_network() -> None:
    with pytest.raises(InvalidInput, match="grant: it is of another network"):
        Network(OTHER_ROOT.public_key, (), GRANT)
    with pytest.raises(InvalidInput, match="root key"):
        Network(ROOT.public_key[:31], (), GRANT)


@pytest.mark.parametrize(
    "gate",
    ["", "/ip4/192.0.2.1/tcp/4001", f"/p2p/{ALICE}", "/ip4/192.0.2.1/tcp/1/p2p/alice", "gate:4001"],
)
def test_a_gate_has_an_address_and_a_peer_id(gate: str) -> None:
    with pytest.raises(InvalidInput, match=r"gate: .* is not a multiaddr like /ip4/"):
        Network(ROOT.public_key, (gate,), GRANT)


def test_gates_have_a_bound_and_one_form() -> None:
    gates = tuple(f"/ip4/192.0.2.{n}/tcp/1/p2p/{ALICE}" for n in range(MAX_GATES + 1))
    with pytest.raises(InvalidInput, match="gate"):
        Network(ROOT.public_key, gates, GRANT)
    twice = Network(
        ROOT.public_key, (f"/ip6/0:0::1/tcp/1/p2p/{ALICE}", f"/ip6/::1/tcp/1/p2p/{ALICE}"), GRANT
    )
    assert twice.gates == (f"/ip6/::1/tcp/1/p2p/{ALICE}",)


def test_a_new_gate_comes_first_and_the_last_goes() -> None:
    gates = tuple(f"/ip4/192.0.2.{n}/tcp/1/p2p/{ALICE}" for n in range(MAX_GATES))
    network = Network(ROOT.public_key, gates, GRANT)
    assert network.with_gate(GATE).gates == (GATE, *gates[:-1])
    assert network.with_gate(gates[3]).gates[:2] == (gates[3], gates[0])
    assert len(network.with_gate(gates[3]).gates) == MAX_GATES


def test_a_gate_with_two_addresses_is_one_contact() -> None:
    network = NETWORK.with_gate(f"/ip6/::1/tcp/4001/p2p/{ALICE}")
    assert network.contacts() == (
        Contact(ALICE, ("/ip6/::1/tcp/4001", "/ip4/192.0.2.1/tcp/4001")),
        Contact(BOB, ("/dns4/gate.example/tcp/443/wss",)),
    )


def test_the_network_id_follows_from_the_root_key_alone() -> None:
    assert len(NETWORK.network_id) == 32
    assert replace(NETWORK, gates=()).network_id == NETWORK.network_id
    other = Network(OTHER_ROOT.public_key, (), issue(OTHER_ROOT, Rights(NOW)))
    assert other.network_id != NETWORK.network_id


def test_as_joined_by_alice_the_grant_is_hers_alone() -> None:
    joined = NETWORK.bound_to(ALICE)
    assert check(joined.grant, ROOT.public_key, ALICE, Right.WORK, NOW) is None
    assert joined.bound_to(ALICE) == joined
    with pytest.raises(InvalidInput):
        joined.bound_to(BOB)


def test_the_grant_is_never_shown() -> None:
    shown = f"{NETWORK!r} {NETWORK}"
    assert "grant" not in shown
    assert repr(GRANT[:20])[2:-1] not in shown
    wrong = NETWORK.invite()[:-8]
    with pytest.raises(InvalidInput) as caught:
        parse_invite(wrong)
    assert wrong[11:31] not in str(caught.value)
