"""Peer ids and signatures."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.identity import (
    Identity,
    PeerId,
    from_base58,
    is_signed_by,
    key_of_peer,
    parse_peer_id,
    peer_id_from_bytes,
    peer_id_of,
    peer_id_to_bytes,
    shown_peer,
    to_base58,
    verify,
)
from formation_p2p.core.keyspace import key_of

# The Ed25519 key of the libp2p peer-ids specification, "Test vectors": private key, then public.
SPEC_SEED = bytes.fromhex("7e0830617c4a7de83925dfb2694556b12936c477a0e1feb2e148ec9da60fee7d")
SPEC_PUBLIC = bytes.fromhex("1ed1e8fae2c4a144b8be8fd4b47bf3d3b34b871c3cacf6010f0e42d474fce27e")
# RFC 8032, section 7.1, test 2.
RFC_SEED = bytes.fromhex("4ccd089b28ff96da9db6c346ec114e0f5b8a319f35aba624da8cf6ed4fb8a6fb")
RFC_PUBLIC = bytes.fromhex("3d4017c3e843895a92b70aa74d1b7ebc9c982ccf2ec4968cc0cd55f12af4660c")
RFC_SIGNATURE = bytes.fromhex(
    "92a009a9f0d4cab8720e820b5f642540a2b27b5416503f8fb3762223ebdb69da"
    "085ac1e43e15996e458f3613d0f11d8c387b2eaeb4302aeeb00d291612bb0c00"
)

seeds = st.binary(min_size=32, max_size=32)


def test_the_specifications_key_gives_its_public_key() -> None:
    theirs = Identity.from_seed(SPEC_SEED)
    assert theirs.public_key == SPEC_PUBLIC
    assert theirs.libp2p_public_key == bytes.fromhex("08011220") + SPEC_PUBLIC


def test_a_known_peer_id_holds_its_key() -> None:
    # As other implementations write it; every Ed25519 peer id has this shape.
    peer_id = parse_peer_id("12D3KooWK99VoVxNE7XzyBwXEzW7xhK7Gpv85r9F3V3fyKSUKPH5")
    raw = peer_id_to_bytes(peer_id)
    assert raw[:6] == bytes.fromhex("002408011220")
    assert peer_id_of(raw[6:]) == peer_id


def test_rfc_8032_signs_as_we_do() -> None:
    alice = Identity.from_seed(RFC_SEED)
    assert alice.public_key == RFC_PUBLIC
    assert alice.sign(b"\x72") == RFC_SIGNATURE


@given(seeds)
def test_an_identity_and_its_peer_id_say_the_same(seed: bytes) -> None:
    alice = Identity.from_seed(seed)
    assert alice.seed == seed
    assert alice.peer_id.startswith("12D3KooW")
    assert peer_id_of(alice.public_key) == alice.peer_id
    assert parse_peer_id(alice.peer_id) == alice.peer_id
    assert peer_id_from_bytes(peer_id_to_bytes(alice.peer_id)) == alice.peer_id
    assert alice.key == key_of_peer(alice.peer_id) == key_of(peer_id_to_bytes(alice.peer_id))


@given(seeds, st.binary(max_size=64), st.binary(max_size=64))
def test_a_signature_is_of_one_message(seed: bytes, message: bytes, other: bytes) -> None:
    alice = Identity.from_seed(seed)
    signature = alice.sign(message)
    assert verify(alice.public_key, signature, message)
    assert verify(alice.public_key, signature, other) == (message == other)


@given(st.binary(max_size=40), st.binary(max_size=70), st.binary(max_size=10))
def test_no_bytes_break_the_verification(key: bytes, signature: bytes, message: bytes) -> None:
    assert verify(key, signature, message) in (False, True)


def test_the_secret_is_not_shown() -> None:
    alice = Identity.from_seed(SPEC_SEED)
    assert repr(alice) == f"Identity({alice.peer_id})"
    assert SPEC_SEED.hex() not in f"{alice!r} {alice}"


def test_a_seed_has_32_bytes() -> None:
    with pytest.raises(ValueError, match="32"):
        Identity.from_seed(b"short")


def test_the_peer_id_of_an_rsa_key_is_one_too() -> None:
    peer_id = parse_peer_id("QmYyQSo1c1Ym7orWxLYvCrM2EmxFTANf8wXmmE7DWjhx5N")
    # The specification's own example of the other form.
    cid = "bafzbeie5745rpv2m6tjyuugywy4d5ewrqgqqhfnf445he3omzpjbx5xqxe"
    assert parse_peer_id(cid) == peer_id
    assert peer_id_to_bytes(peer_id)[:2] == b"\x12\x20"


@pytest.mark.parametrize("raw", [b"", b"\x00\x24" + bytes(35), b"\x12\x20" + bytes(33), b"abc"])
def test_other_bytes_are_no_peer_id(raw: bytes) -> None:
    with pytest.raises(ValueError, match="not a peer id"):
        peer_id_from_bytes(raw)


@pytest.mark.parametrize("text", ["", "alice", "0OIl", "é", "1" * 65, "1" * 73, "12D3KooW"])
def test_other_texts_are_no_peer_id(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 — three sources, three texts
        parse_peer_id(text)


@given(st.text(max_size=80))
def test_no_text_breaks_the_parser(text: str) -> None:
    try:
        peer_id: PeerId = parse_peer_id(text)
    except ValueError:
        return
    assert parse_peer_id(peer_id) == peer_id


def test_a_signature_is_checked_against_a_peer_id() -> None:
    alice, bob = Identity.from_seed(bytes(32)), Identity.from_seed(RFC_SEED)
    signature = alice.sign(b"a message")
    assert is_signed_by(alice.peer_id, signature, b"a message")
    assert not is_signed_by(alice.peer_id, signature, b"another")
    assert not is_signed_by(bob.peer_id, signature, b"a message")
    # That of an RSA key does not hold the key.
    hashed = peer_id_from_bytes(b"\x12\x20" + bytes(32))
    assert not is_signed_by(hashed, signature, b"a message")


# draft-msporny-base58-03, section 5 "Test Vectors".
@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"Hello World!", "2NEpo7TZRRrLZSi2U"),
        (
            b"The quick brown fox jumps over the lazy dog.",
            "USm3fpXnKG5EUBx2ndxBDMPVciP5hGey2Jh4NDv6gmeo1LkMeiKrLJUUBk6Z",
        ),
        (bytes.fromhex("0000287fb4cd"), "11233QC4"),
        (b"", ""),
    ],
)
def test_base58_is_that_of_the_draft(raw: bytes, text: str) -> None:
    assert to_base58(raw) == text
    assert from_base58(text) == raw


@given(st.binary(max_size=64))
def test_what_is_written_in_base58_is_read_again(raw: bytes) -> None:
    assert from_base58(to_base58(raw)) == raw


@pytest.mark.parametrize("text", ["0", "O", "I", "l", " 1", "1\n", "é"])
def test_other_characters_are_no_base58(text: str) -> None:
    with pytest.raises(ValueError, match="no digit"):
        from_base58(text)


@pytest.mark.parametrize("seed", range(3))
def test_a_peer_id_is_read_from_a_cid_in_any_of_its_bases(seed: int) -> None:
    peer_id = Identity.from_seed(bytes([seed]) * 32).peer_id
    cid = b"\x01\x72" + peer_id_to_bytes(peer_id)
    number, base36 = int.from_bytes(cid, "big"), ""
    while number:
        number, digit = divmod(number, 36)
        base36 = "0123456789abcdefghijklmnopqrstuvwxyz"[digit] + base36
    base32 = base64.b32encode(cid).decode().lower().rstrip("=")
    for text in (f"b{base32}", f"k{base36}", "z" + to_base58(cid)):
        assert parse_peer_id(text) == peer_id


@pytest.mark.parametrize("text", ["", "b", "k", "k-1", "bafz", "bafkqaaa", "m12", "z1", "k٣"])
def test_what_is_no_cid_of_a_peer_is_no_peer_id(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 — as above
        parse_peer_id(text)


def test_a_name_never_stands_without_the_end_of_the_id() -> None:
    assert shown_peer("12D3KooWZk3nVq7w", "anna-desktop") == "anna-desktop …Zk3nVq7w"
    assert shown_peer("12D3KooWZk3nVq7w") == shown_peer("12D3KooWZk3nVq7w", "") == "…Zk3nVq7w"
