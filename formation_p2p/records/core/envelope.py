"""libp2p's signed envelope: bytes, who signed them, and what for.

The signature is over the domain, the payload's type and the payload, each prefixed with its
length, so that what was signed for one purpose never passes for another.

Source: libp2p RFC 0002, "Signed envelopes".
"""

from __future__ import annotations

from typing import Final

from google.protobuf.message import DecodeError

from formation_p2p.core.errors import ForgedRecord, MalformedRecord, OversizedRecord
from formation_p2p.core.identity import Identity, PeerId, peer_id_of, verify
from formation_p2p.records.core import envelope_pb2
from formation_p2p.records.core.protobuf import varint

_ED25519_KEY_BYTES: Final = 32


def seal(identity: Identity, domain: str, payload_type: bytes, payload: bytes) -> bytes:
    """The envelope of `payload`, signed by `identity`."""
    signature = identity.sign(_signed_bytes(domain, payload_type, payload))
    return _wire(identity.public_key, payload_type, payload, signature)


def open_envelope(
    raw: bytes, domain: str, payload_type: bytes, max_bytes: int
) -> tuple[PeerId, bytes]:
    """Who signed, and the payload. Whether that signer may say so is for the caller to judge.

    Raises OversizedRecord; MalformedRecord for anything but an envelope of this type by an Ed25519
    key; ForgedRecord where the signature does not match.
    """
    if len(raw) > max_bytes:
        raise OversizedRecord(f"an envelope of {len(raw)} bytes; at most {max_bytes} are allowed")
    try:
        wire = envelope_pb2.Envelope.FromString(raw)
    except DecodeError as error:
        raise MalformedRecord(f"{len(raw)} bytes that are no signed envelope") from error
    public_key = wire.public_key.Data
    if wire.public_key.Type != envelope_pb2.Ed25519 or len(public_key) != _ED25519_KEY_BYTES:
        raise MalformedRecord("an envelope that no Ed25519 key signed")
    if wire.payload_type != payload_type:
        raise MalformedRecord(f"an envelope of another type than {payload_type!r}")
    # One envelope, one encoding. Else anyone could add a field to another's envelope, and two
    # peers would hold different bytes for the same sequence number.
    if _wire(public_key, payload_type, wire.payload, wire.signature) != raw:
        raise MalformedRecord("an envelope with fields unknown, repeated or out of order")
    if not verify(public_key, wire.signature, _signed_bytes(domain, payload_type, wire.payload)):
        raise ForgedRecord("the signature does not match the content")
    return peer_id_of(public_key), wire.payload


def _signed_bytes(domain: str, payload_type: bytes, payload: bytes) -> bytes:
    return b"".join(varint(len(part)) + part for part in (domain.encode(), payload_type, payload))


def _wire(public_key: bytes, payload_type: bytes, payload: bytes, signature: bytes) -> bytes:
    return envelope_pb2.Envelope(
        public_key=envelope_pb2.PublicKey(Type=envelope_pb2.Ed25519, Data=public_key),
        payload_type=payload_type,
        payload=payload,
        signature=signature,
    ).SerializeToString(deterministic=True)
