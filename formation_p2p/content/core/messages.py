"""The data protocol, `/formation/data/1.0.0`: its messages, each declared once.

A stream is for one blob. The peer that opens it says `Open`, or `OpenPrivate`, with its grant, and
is answered `Opened` or `BlobRefused`. Then it says `Want` for chunks, several ahead if it likes,
and they come in that order: a `Chunk`, and after that frame its bytes. `Have` at the end: we hold
all of it now. A frame is a CBOR array: the message's number, then its fields in order.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated, Final, Self

from formation_p2p.content.core.fetch import MAX_CHUNKS, MAX_MANIFEST_BYTES
from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import Identity, PeerId, is_signed_by, peer_id_to_bytes
from formation_p2p.records.core import schema
from formation_p2p.records.core.codec import take_bytes, take_int
from formation_p2p.records.core.profile import MAX_GRANT_BYTES
from formation_p2p.records.core.resources import take_peer_id, take_row
from formation_p2p.records.core.schema import Schema
from formation_p2p.workload.core import blob
from formation_p2p.workload.core.blob import NAME_BYTES, Cid
from formation_p2p.workload.core.data_rule import DataRule

# A worker reads content for the owner of its lease. Another worker holds it, for the same owner,
# and does not know the first one. So the owner signs a delegation, the first worker shows it, and
# the holder lets that worker read what the owner may read.

# To fetch the inputs of a task. A worker that has them could have passed them on for as long.
DELEGATED_S: Final = 600
# Clocks of members differ by less. One that is behind shortens a delegation, and does not end it.
MAX_SKEW_S: Final = 300
_DOMAIN: Final = b"formation delegation\x00"
MAX_UNIX_S: Final = 2**40
_SIGNATURE_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class Delegation:
    """`owner` has signed that a worker reads for it, in one network, until then."""

    owner: PeerId
    until_unix_s: int
    signature: bytes

    @classmethod
    def signed(cls, owner: Identity, worker: PeerId, network: bytes, now_unix_s: float) -> Self:
        """`network` is its root key."""
        until = int(now_unix_s) + DELEGATED_S
        return cls(owner.peer_id, until, owner.sign(_message(worker, network, until)))

    def refuses(self, worker: PeerId, network: bytes, now_unix_s: float) -> str | None:
        """Why it does not hold for the one that shows it."""
        if not 0 < self.until_unix_s - now_unix_s < DELEGATED_S + MAX_SKEW_S:
            return "is shown that you read for another, which is over; ask that one again"
        if not is_signed_by(
            self.owner, self.signature, _message(worker, network, self.until_unix_s)
        ):
            return "is shown that you read for another, who has not signed it"
        return None

    def pack(self) -> list[object]:
        """For CBOR."""
        return [peer_id_to_bytes(self.owner), self.until_unix_s, self.signature]

    @classmethod
    def unpack(cls, value: object) -> Self:
        """Raises Malformed for anything else that a stranger sent."""
        problem = "is not an owner, a time and a signature"
        owner, until, signature = take_row(value, 3, "delegation", problem)
        return cls(
            take_peer_id(owner, "owner"),
            take_int(until, "until", 0, MAX_UNIX_S),
            take_bytes(signature, "signature", _SIGNATURE_BYTES),
        )


def _message(worker: PeerId, network: bytes, until_unix_s: int) -> bytes:
    """The parts before the peer id have fixed lengths."""
    return _DOMAIN + network + until_unix_s.to_bytes(8, "big") + peer_id_to_bytes(worker)


# The largest is an Open with its grant: what a stranger can make us hold.
MAX_REQUEST_BYTES: Final = 4096
# The largest is an Opened, with a manifest and the sources.
MAX_REPLY_BYTES: Final = MAX_MANIFEST_BYTES + 32 * 1024
MAX_WHY_CHARS: Final = 256

Index = Annotated[int, schema.integer(0, MAX_CHUNKS - 1)]
_ADDRESSES: Final = schema.items(
    schema.text(blob.MAX_SOURCE_ADDRESS_CHARS), blob.MAX_SOURCE_ADDRESSES
)
_CONTACTS: Final = schema.items(
    schema.custom(blob.unpack_contact, blob.pack_contact), blob.MAX_SOURCES
)
# With them, and the grant, a Keep is within the largest request.
MAX_KEPT_FROM: Final = 2
MAX_KEPT_FROM_ADDRESSES: Final = 2


def _pack_source(source: Contact) -> list[object]:
    known = blob.addresses_of(source)[:MAX_KEPT_FROM_ADDRESSES]
    return blob.pack_contact(Contact(source.peer_id, known))


_KEPT_FROM: Final = schema.items(schema.custom(blob.unpack_contact, _pack_source), MAX_KEPT_FROM)
_RULE: Final = schema.optional(schema.custom(DataRule.unpack, DataRule.pack))
_DELEGATION: Final = schema.custom(Delegation.unpack, Delegation.pack)
_IF_DELEGATED: Final = replace(schema.optional(_DELEGATION), trailing=True)
_WHY: Final = schema.custom(
    schema.text(MAX_WHY_CHARS).reader("why"), lambda why: why[:MAX_WHY_CHARS]
)
_REQUESTS: Final[Schema[Request]] = Schema("data protocol", MAX_REQUEST_BYTES)
_REPLIES: Final[Schema[Reply]] = Schema("data protocol", MAX_REPLY_BYTES)


@_REQUESTS.message(1)
@dataclass(frozen=True, slots=True)
class Open:
    """I belong to your network, by this grant: do you have it? `manifest`: and tell its chunks.
    `rule` is that of the reference, by which I hold it then. `delegation`: I read it for the owner
    of a lease of mine, and may what he may."""

    grant: Annotated[bytes, schema.octets(MAX_GRANT_BYTES)]
    cid: Annotated[Cid, schema.custom(Cid.from_bytes, Cid.to_bytes)]
    manifest: Annotated[bool, schema.boolean()] = True
    rule: Annotated[DataRule | None, replace(_RULE, trailing=True)] = None
    delegation: Annotated[Delegation | None, _IF_DELEGATED] = None


@_REQUESTS.message(2)
@dataclass(frozen=True, slots=True)
class Want:
    index: Index


@_REQUESTS.message(3)
@dataclass(frozen=True, slots=True)
class Have:
    """I hold all of it now, and serve it to others at these addresses, if any."""

    addresses: Annotated[tuple[str, ...], _ADDRESSES] = ()


@_REPLIES.message(4)
@dataclass(frozen=True, slots=True)
class Opened:
    """I have it. `manifest` is empty where it was not asked for, or there is one chunk. `holders`
    fetched it from me, the latest first."""

    manifest: Annotated[bytes, schema.octets(MAX_MANIFEST_BYTES)] = b""
    holders: Annotated[tuple[Contact, ...], _CONTACTS] = ()


@_REPLIES.message(5)
@dataclass(frozen=True, slots=True)
class Chunk:
    """So many bytes of chunk `index` follow this frame."""

    index: Index
    size_bytes: Annotated[int, schema.integer(0, blob.CHUNK_BYTES)]


@_REPLIES.message(6)
@dataclass(frozen=True, slots=True)
class BlobRefused:
    """I do not serve it to you, or no longer. Nothing follows."""

    why: Annotated[str, _WHY]


@_REQUESTS.message(7)
@dataclass(frozen=True, slots=True)
class OpenPrivate:
    """As Open, of content that you told me the name of. Its manifest is not told."""

    grant: Annotated[bytes, schema.octets(MAX_GRANT_BYTES)]
    name: Annotated[bytes, schema.octets(NAME_BYTES)]


@_REQUESTS.message(8)
@dataclass(frozen=True, slots=True)
class Keep:
    """Fetch this content from these sources, or else from me, and hold it for a while for those
    that the rule allows, in place of what I had you hold under the same name: answered Opened once
    that is done, or BlobRefused."""

    grant: Annotated[bytes, schema.octets(MAX_GRANT_BYTES)]
    cid: Annotated[Cid, schema.custom(Cid.from_bytes, Cid.to_bytes)]
    size_bytes: Annotated[int, schema.integer(0, blob.MAX_BLOB_BYTES)]
    name: Annotated[bytes, schema.octets(NAME_BYTES)]
    sources: Annotated[tuple[Contact, ...], _KEPT_FROM] = ()
    rule: Annotated[DataRule | None, _RULE] = None


@_REQUESTS.message(9)
@dataclass(frozen=True, slots=True)
class AskDelegation:
    """You have a lease of mine: sign that I read for you. Answered Delegated, or BlobRefused."""

    grant: Annotated[bytes, schema.octets(MAX_GRANT_BYTES)]


@_REPLIES.message(10)
@dataclass(frozen=True, slots=True)
class Delegated:
    """For a while. Nothing follows."""

    delegation: Annotated[Delegation, _DELEGATION]


Request = Open | OpenPrivate | Want | Have | Keep | AskDelegation
Reply = Opened | Chunk | BlobRefused | Delegated

pack_request = _REQUESTS.pack
parse_request = _REQUESTS.parse
pack_reply = _REPLIES.pack
parse_reply = _REPLIES.parse
