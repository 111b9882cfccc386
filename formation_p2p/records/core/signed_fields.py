"""A record in a signed envelope, back from the bytes that travel: its fields, and who signed them.

Each record has one `unpack`, which checks the fields; here is what is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from formation_p2p.core.errors import ForgedRecord, MalformedRecord
from formation_p2p.core.identity import PeerId
from formation_p2p.records.core import codec
from formation_p2p.records.core.addresses import MAX_ADDRESS_BYTES, MAX_ADDRESSES, read_addresses
from formation_p2p.records.core.codec import Malformed
from formation_p2p.records.core.envelope import open_envelope
from formation_p2p.records.core.resources import take_peer_id

_T = TypeVar("_T")


def open_fields(
    what: str,
    raw: bytes,
    domain: str,
    payload_type: bytes,
    max_bytes: int,
    unpack: Callable[[object, PeerId], _T],
) -> _T:
    """What `unpack` makes of the fields and their signer. Raises BadRecord, which names `what` it
    is: OversizedRecord, MalformedRecord (also where `unpack` raises Malformed), ForgedRecord."""
    signer, payload = open_envelope(raw, domain, payload_type, max_bytes)
    try:
        return unpack(codec.decode(payload, max_bytes), signer)
    except Malformed as error:
        raise MalformedRecord(f"{what} by {signer}: {error}") from error


def check_author(what: str, author: object, signer: PeerId, field: str = "author") -> None:
    """Raises ForgedRecord where the fields name another author than the signer, or Malformed."""
    named = take_peer_id(author, field)
    if named != signer:
        raise ForgedRecord(f"{what} of {named}, signed by {signer}")


def take_addresses(value: object) -> tuple[str, ...]:
    """Those that can be read. Raises Malformed where there are too many, or one is too long."""
    raws = codec.take_list(value, "address", MAX_ADDRESSES)
    return read_addresses(codec.take_bytes(each, "address", MAX_ADDRESS_BYTES) for each in raws)
