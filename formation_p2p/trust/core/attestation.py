"""Attestations: what one node says of others to those who ask. Signed, dated, and short-lived.

`seal_attestation` makes the bytes that travel, `open_attestation` is the one way back. Of two by
one author the later counts. An author speaks of its own experience alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from formation_p2p.core.errors import ExpiredRecord
from formation_p2p.core.identity import Identity, PeerId, peer_id_to_bytes
from formation_p2p.records.core import codec
from formation_p2p.records.core.envelope import seal
from formation_p2p.records.core.resources import take_peer_id, take_row
from formation_p2p.records.core.signed_fields import MAX_CLOCK_SKEW_S, open_fields
from formation_p2p.trust.core.experience import MEMORY

# A node that has worked with more attests the peers to avoid first, then those it knows best.
MAX_SUBJECTS: Final = 64
# Signed and sealed; 64 subjects take 3.3 KiB.
MAX_ATTESTATION_BYTES: Final = 4096
# A day: a node that works now and then asks again when it does; older opinions are stale.
LIFE_S: Final = 24 * 3600

_DOMAIN: Final = "formation-attestation"
_PAYLOAD_TYPE: Final = b"/formation/attestation/1"


class Opinion(NamedTuple):
    """Of all experience, in thousandths of one, so many thousandths were good."""

    rate_milli: int
    weight_milli: int


@dataclass(frozen=True, slots=True)
class Attestation:
    """`raw` is what its author signed."""

    author: PeerId
    issued_unix_ms: int
    opinions: Mapping[PeerId, Opinion]
    raw: bytes

    @property
    def expires_unix_s(self) -> float:
        return self.issued_unix_ms / 1000 + LIFE_S


def seal_attestation(
    identity: Identity, opinions: Mapping[PeerId, Opinion], issued_unix_ms: int
) -> bytes:
    """Of at most MAX_SUBJECTS."""
    packed = [[peer_id_to_bytes(peer_id), *each] for peer_id, each in opinions.items()]
    return seal(identity, _DOMAIN, _PAYLOAD_TYPE, codec.encode([issued_unix_ms, packed]))


def open_attestation(raw: bytes, now_unix_s: float) -> Attestation:
    """Raises BadRecord."""
    kind = _DOMAIN, _PAYLOAD_TYPE, MAX_ATTESTATION_BYTES

    def attested(fields: object, author: PeerId) -> Attestation:
        return Attestation(author, *_read(fields), raw)

    attestation = open_fields("an attestation", raw, *kind, attested)
    if attestation.issued_unix_ms / 1000 > now_unix_s + MAX_CLOCK_SKEW_S:
        raise ExpiredRecord("the attestation is from the future; see that the clocks agree")
    if attestation.expires_unix_s <= now_unix_s:
        raise ExpiredRecord("the attestation has expired")
    return attestation


def _read(fields: object) -> tuple[int, dict[PeerId, Opinion]]:
    issued_unix_ms, packed = take_row(fields, 2, "attestation", "is not a date with opinions")
    each = [_opinion(item) for item in codec.take_list(packed, "subject", MAX_SUBJECTS)]
    if len(dict(each)) < len(each):
        raise codec.Malformed("subject", "is spoken of twice")
    return codec.take_int(issued_unix_ms, "issued", 0, codec.MAX_INT), dict(each)


def _opinion(fields: object) -> tuple[PeerId, Opinion]:
    problem = "is not a subject with its rate and weight"
    peer, rate_milli, weight_milli = take_row(fields, 3, "opinion", problem)
    return take_peer_id(peer, "subject"), Opinion(
        codec.take_int(rate_milli, "rate", 0, 1000),
        codec.take_int(weight_milli, "weight", 0, MEMORY * 1000),
    )
