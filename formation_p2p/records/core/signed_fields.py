"""A record in a signed envelope, back from the bytes that travel: its fields, and who signed them.

Each record has one `unpack`, which checks the fields; here is what is the same for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from formation_p2p.core.errors import ExpiredRecord, ForgedRecord, MalformedRecord
from formation_p2p.core.identity import PeerId
from formation_p2p.records.core import codec
from formation_p2p.records.core.addresses import MAX_ADDRESS_BYTES, MAX_ADDRESSES, read_addresses
from formation_p2p.records.core.codec import Malformed
from formation_p2p.records.core.envelope import open_envelope
from formation_p2p.records.core.resources import take_peer_id

# The life of a signed record: from when it was issued until it expires, by the wall clock.

# Clocks of machines without NTP are off by seconds. What is issued further in the future comes
# from a clock, ours or theirs, that makes every expiry meaningless.
MAX_CLOCK_SKEW_S: Final = 60


def check_life(
    what: str,
    issued_unix_s: int,
    expires_unix_s: int,
    max_ttl_s: int,
    now_unix_s: float,
    *,
    late_s: float = 0.0,
    cure: str = "see that the clocks agree",
) -> None:
    """Raises ExpiredRecord for a record that expired more than `late_s` ago, would live longer than
    `max_ttl_s`, or is from the future. `what` names it, and `cure` is for one that has expired."""
    if expires_unix_s + late_s <= now_unix_s:
        ago_s = int(now_unix_s - expires_unix_s)
        raise ExpiredRecord(f"the {what} expired {ago_s} s ago; {cure}")
    if expires_unix_s - issued_unix_s > max_ttl_s:
        raise ExpiredRecord(f"the {what} would live longer than {max_ttl_s} s")
    if issued_unix_s > now_unix_s + MAX_CLOCK_SKEW_S:
        early_s = int(issued_unix_s - now_unix_s)
        raise ExpiredRecord(f"the {what} is from {early_s} s ahead; see that the clocks agree")


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
