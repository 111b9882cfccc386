"""References to blobs by their content: any peer may hold one, and none can forge it.

The name is a CIDv1. Content of one chunk is its own block (`raw`); longer content is named by its
manifest (content/core/fetch.py), a `dag-cbor` block that lists the digests of its chunks. The hash
is BLAKE3, which takes a quarter of the time of SHA-256.

Source: multiformats CID specification, version 1; multicodec table; RFC 4648, section 6.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, Protocol, Self

from blake3 import blake3

from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import peer_id_from_bytes, peer_id_to_bytes
from formation_p2p.core.units import GIB, MIB
from formation_p2p.workload.core.data_rule import DataRule

# The content of a large result (large_result.py), once it is on the submitter's machine.


class Content(Protocol):
    """What the blob of a large result has, on the submitter's machine."""

    def take(self) -> memoryview:
        """Its bytes, for its reader: nothing else changes them. From then on it counts as read.
        Raises LocalError where it is gone."""
        ...


# Verified, sent and asked for at once. Each transfer holds a few of them in memory.
CHUNK_BYTES: Final = MIB
# The manifest, 32 bytes for each chunk, has 2 MiB: it travels, and is checked, as one piece.
MAX_BLOB_BYTES: Final = 64 * GIB
DIGEST_BYTES: Final = 32
# The first peer that had it, which knows of more, and a few that fetched it since.
MAX_SOURCES: Final = 8
# Of one peer, in a reference: the best ones come first.
MAX_SOURCE_ADDRESSES: Final = 8
MAX_SOURCE_ADDRESS_CHARS: Final = 256

RAW: Final = 0x55
DAG_CBOR: Final = 0x71
_VERSION: Final = 1
_BLAKE3: Final = 0x1E
_CID_BYTES: Final = 4 + DIGEST_BYTES


Buffer = bytes | bytearray | memoryview


def digest_of(content: Buffer) -> bytes:
    return blake3(content).digest()


@dataclass(frozen=True, slots=True, order=True)
class Cid:
    """`codec` is RAW or DAG_CBOR. Printed in base32, as `bafk…` or `bafy…`."""

    codec: int
    digest: bytes

    @classmethod
    def parse(cls, text: str) -> Self:
        """Raises InvalidInput for anything but a CIDv1 of ours in base32."""
        padded = text[1:].upper() + "=" * (-(len(text) - 1) % 8)
        try:
            raw = base64.b32decode(padded) if text[:1] == "b" and len(text) < 128 else b""
        except (binascii.Error, ValueError):
            raw = b""
        cid = cls.from_bytes(raw)
        if str(cid) != text:  # an upper-case one, or one with bits left over
            raise InvalidInput("cid", "is not written as it is printed here")
        return cid

    @classmethod
    def from_bytes(cls, raw: object) -> Self:
        """Raises InvalidInput."""
        if type(raw) is bytes and len(raw) == _CID_BYTES:
            cid = cls(raw[1], raw[4:])
            if cid.codec in (RAW, DAG_CBOR) and cid.to_bytes() == raw:
                return cid
        raise InvalidInput("cid", "is not a CIDv1 of a raw or dag-cbor block under BLAKE3")

    def to_bytes(self) -> bytes:
        return bytes((_VERSION, self.codec, _BLAKE3, DIGEST_BYTES)) + self.digest

    def __str__(self) -> str:
        return "b" + base64.b32encode(self.to_bytes()).decode().rstrip("=").lower()


@dataclass(frozen=True, slots=True)
class Blob:
    """A reference to content. `sources`, the peers that had it when this was written, help to
    find it and prove nothing; `rule` is who may read it, None for all members. Raises
    InvalidInput."""

    cid: Cid
    size_bytes: int
    sources: tuple[Contact, ...] = ()
    rule: DataRule | None = None

    def __post_init__(self) -> None:
        raw = self.cid.codec == RAW
        smallest, largest = (0, CHUNK_BYTES) if raw else (CHUNK_BYTES + 1, MAX_BLOB_BYTES)
        if type(self.size_bytes) is not int or not smallest <= self.size_bytes <= largest:
            raise InvalidInput("blob", f"a size that {self.cid} cannot have")
        if len(self.sources) > MAX_SOURCES:
            raise InvalidInput("blob", f"{len(self.sources)} sources, of at most {MAX_SOURCES}")

    @property
    def chunks(self) -> int:
        """The number of chunks; empty content is one empty chunk."""
        return max(1, -(-self.size_bytes // CHUNK_BYTES))

    def chunk_bytes(self, index: int) -> int:
        return min(CHUNK_BYTES, self.size_bytes - index * CHUNK_BYTES)

    def pack(self) -> list[Any]:
        """For CBOR."""
        sources = [pack_contact(each) for each in self.sources]
        packed = [self.cid.to_bytes(), self.size_bytes, sources]
        return packed if self.rule is None else [*packed, self.rule.pack()]

    @classmethod
    def unpack(cls, value: object) -> Self:
        """Raises InvalidInput for anything else that a stranger sent."""
        match value:
            case [cid, int(size_bytes), [*sources], *rule] if (
                len(sources) <= MAX_SOURCES and len(rule) <= 1
            ):
                contacts = tuple(map(unpack_contact, sources))
                read = DataRule.unpack(rule[0]) if rule else None
                return cls(Cid.from_bytes(cid), size_bytes, contacts, read)
            case _:
                raise InvalidInput("blob", "is not [cid, size, sources]")


def pack_contact(contact: Contact) -> list[Any]:
    return [peer_id_to_bytes(contact.peer_id), list(addresses_of(contact))]


def addresses_of(contact: Contact) -> tuple[str, ...]:
    """Those that a reference carries."""
    short = (a for a in contact.addresses if len(a) <= MAX_SOURCE_ADDRESS_CHARS)
    return tuple(islice(short, MAX_SOURCE_ADDRESSES))


def unpack_contact(value: object) -> Contact:
    """Raises InvalidInput. An address is parsed when it is dialled."""
    match value:
        case [bytes(peer_id), [*addresses]] if len(addresses) <= MAX_SOURCE_ADDRESSES:
            try:
                return Contact(peer_id_from_bytes(peer_id), tuple(map(_address, addresses)))
            except ValueError as error:
                raise InvalidInput("source", str(error)) from None
        case _:
            raise InvalidInput("source", "is not [peer id, addresses]")


def _address(value: object) -> str:
    if type(value) is not str or len(value) > MAX_SOURCE_ADDRESS_CHARS or not value.isprintable():
        raise InvalidInput("source", "has an address that is not a short text")
    return value


# Content that its owner serves to the peers that it has told the name: the arguments of a call or
# its result, where they are too large for a message.
#
# The name is random, and tells nothing of the content: to know it is the right to read it. So
# nothing is hashed, and the owner alone has it. A `Blob` (blob.py) is content that any peer may
# serve.

# As a random UUID: it is not guessed.
NAME_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class PrivateBlob:
    """A reference to content of `size_bytes`, from 1 to 64 GiB, that `owner` has. Raises
    InvalidInput."""

    name: bytes
    size_bytes: int
    owner: Contact

    def __post_init__(self) -> None:
        if type(self.name) is not bytes or len(self.name) != NAME_BYTES:
            raise InvalidInput("private blob", f"its name does not have {NAME_BYTES} bytes")
        if type(self.size_bytes) is not int or not 1 <= self.size_bytes <= MAX_BLOB_BYTES:
            raise InvalidInput("private blob", "has a size that content cannot have")

    @property
    def chunks(self) -> int:
        return -(-self.size_bytes // CHUNK_BYTES)

    def chunk_bytes(self, index: int) -> int:
        return min(CHUNK_BYTES, self.size_bytes - index * CHUNK_BYTES)

    def pack(self) -> list[Any]:
        """For CBOR."""
        return [self.name, self.size_bytes, pack_contact(self.owner)]

    @classmethod
    def unpack(cls, value: Any) -> Self:
        """Raises InvalidInput for anything else that a stranger sent."""
        match value:
            case [name, size_bytes, owner]:
                return cls(name, size_bytes, unpack_contact(owner))
            case _:
                raise InvalidInput("private blob", "is not [name, size, owner]")
