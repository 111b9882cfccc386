"""libp2p's signed envelope."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.core.errors import BadRecord, ForgedRecord, MalformedRecord, OversizedRecord
from formation_p2p.core.identity import Identity
from formation_p2p.records.core.envelope import open_envelope, seal
from formation_p2p.records.core.envelope_pb2 import RSA, Ed25519, Envelope, PublicKey

ALICE = Identity.from_seed(b"a" * 32)
BOB = Identity.from_seed(b"b" * 32)

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
