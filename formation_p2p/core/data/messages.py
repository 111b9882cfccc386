"""The data protocol, `/formation/data/1.0.0`: its messages, and their one parser.

A stream is for one blob. Whoever opens it says `Open`, with its grant, and is answered `Opened`
or `BlobRefused`. Then it says `Want` for chunks, several ahead if it likes, and they come in that
order: a `Chunk`, and after that frame its bytes. `Have` at the end tells the other that we hold
all of it now. A frame is a CBOR array: the message's number, then its fields in order.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, assert_never

from formation_p2p.core.data.manifest import MAX_CHUNKS, MAX_MANIFEST_BYTES
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import InvalidInput, ProtocolViolation
from formation_p2p.core.records.codec import (
    Malformed,
    decode,
    encode,
    take_bytes,
    take_int,
    take_list,
)
from formation_p2p.core.records.codec import take_text as text_of
from formation_p2p.core.records.profile import MAX_GRANT_BYTES
from formation_p2p.core.workload.blob import (
    CHUNK_BYTES,
    MAX_SOURCES,
    Cid,
    pack_contact,
    unpack_contact,
)

# The largest is an Open with its grant: what a stranger can make us hold.
MAX_REQUEST_BYTES: Final = 4096
# The largest is an Opened, with a manifest and the sources.
MAX_REPLY_BYTES: Final = MAX_MANIFEST_BYTES + 32 * 1024
MAX_WHY_CHARS: Final = 256


@dataclass(frozen=True, slots=True)
class Open:
    """I belong to your network, by this grant: do you have it? `manifest`: and tell its chunks."""

    grant: bytes
    cid: Cid
    manifest: bool = True


@dataclass(frozen=True, slots=True)
class Want:
    index: int


@dataclass(frozen=True, slots=True)
class Have:
    """I hold all of it now, and serve it to others at these addresses, if any."""

    addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Opened:
    """I have it. `manifest` is empty where it was not asked for, or there is one chunk. `holders`
    fetched it from me, the latest first."""

    manifest: bytes = b""
    holders: tuple[Contact, ...] = ()


@dataclass(frozen=True, slots=True)
class Chunk:
    """So many bytes of chunk `index` follow this frame."""

    index: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class BlobRefused:
    """I do not serve it to you, or no longer. Nothing follows."""

    why: str


Request = Open | Want | Have
Reply = Opened | Chunk | BlobRefused


def pack(message: Request | Reply) -> bytes:
    match message:
        case Open(grant, cid, manifest):
            return encode([1, grant, cid.to_bytes(), manifest])
        case Want(index):
            return encode([2, index])
        case Have(addresses):
            return encode([3, list(addresses)])
        case Opened(manifest, holders):
            return encode([4, manifest, [pack_contact(each) for each in holders]])
        case Chunk(index, size_bytes):
            return encode([5, index, size_bytes])
        case BlobRefused(why):
            return encode([6, why[:MAX_WHY_CHARS]])
        case _:
            assert_never(message)


def parse_request(frame: bytes) -> Request:
    """Raises ProtocolViolation, and nothing else, on any bytes."""
    try:
        match decode(frame, MAX_REQUEST_BYTES):
            case [1, grant, cid, bool(manifest)]:
                shown = take_bytes(grant, "grant", MAX_GRANT_BYTES)
                return Open(shown, Cid.from_bytes(cid), manifest)
            case [2, index]:
                return Want(take_int(index, "index", 0, MAX_CHUNKS - 1))
            case [3, [*addresses]]:
                return Have(unpack_contact([_NOBODY, addresses]).addresses)
            case _:
                raise Malformed("data", "is no request")
    except (Malformed, InvalidInput) as error:
        raise ProtocolViolation(str(error)) from error


def parse_reply(frame: bytes) -> Reply:
    """Raises ProtocolViolation, and nothing else, on any bytes."""
    try:
        match decode(frame, MAX_REPLY_BYTES):
            case [4, manifest, holders]:
                block = take_bytes(manifest, "manifest", MAX_MANIFEST_BYTES)
                told = take_list(holders, "holders", MAX_SOURCES)
                return Opened(block, tuple(unpack_contact(each) for each in told))
            case [5, index, size]:
                return Chunk(
                    take_int(index, "index", 0, MAX_CHUNKS - 1),
                    take_int(size, "size", 0, CHUNK_BYTES),
                )
            case [6, why]:
                return BlobRefused(text_of(why, "why", MAX_WHY_CHARS))
            case _:
                raise Malformed("data", "is no reply")
    except (Malformed, InvalidInput) as error:
        raise ProtocolViolation(str(error)) from error


# For `unpack_contact`, of one whose connection says who it is: any peer id.
_NOBODY: Final = bytes.fromhex("002408011220") + bytes(32)
