"""The data protocol's messages."""

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.content.core.fetch import MAX_CHUNKS, MAX_MANIFEST_BYTES, Manifest
from formation_p2p.content.core.messages import (
    MAX_KEPT_FROM,
    MAX_KEPT_FROM_ADDRESSES,
    MAX_REPLY_BYTES,
    MAX_REQUEST_BYTES,
    MAX_UNIX_S,
    AskDelegation,
    BlobRefused,
    Chunk,
    Delegated,
    Delegation,
    Have,
    Keep,
    Open,
    Opened,
    OpenPrivate,
    Reply,
    Request,
    Want,
    pack_reply,
    pack_request,
    parse_reply,
    parse_request,
)
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.core.identity import Identity
from formation_p2p.records.core.codec import Malformed, encode
from formation_p2p.records.core.profile import MAX_GRANT_BYTES
from formation_p2p.workload.core.blob import (
    CHUNK_BYTES,
    DAG_CBOR,
    MAX_SOURCE_ADDRESS_CHARS,
    MAX_SOURCES,
    RAW,
    Blob,
    Cid,
    digest_of,
)
from formation_p2p.workload.core.checkpoint import MAX_CHECKPOINT_BYTES
from formation_p2p.workload.core.data_rule import DataRule
from formation_p2p.workload.core.scope import Place, Scope

CID = Cid(RAW, digest_of(b"hello"))
BOB = Contact(Identity.from_seed(bytes([2]) * 32).peer_id, ("/ip4/127.0.0.1/tcp/4001",))
RULE = DataRule(
    Scope.ORG, Place(cell="c" * 63, org="o" * 63, federation="f" * 63), "r" * 63, parties=True
)
DELEGATION = Delegation(BOB.peer_id, MAX_UNIX_S, bytes(64))


@pytest.mark.parametrize(
    "message",
    [
        Open(b"grant", CID),
        OpenPrivate(b"grant", b"n" * 16),
        Open(bytes(MAX_GRANT_BYTES), CID, manifest=False),
        Open(b"grant", CID, rule=RULE),
        Open(b"grant", CID, delegation=DELEGATION),
        Open(bytes(MAX_GRANT_BYTES), CID, rule=RULE, delegation=DELEGATION),
        AskDelegation(bytes(MAX_GRANT_BYTES)),
        Want(0),
        Want(MAX_CHUNKS - 1),
        Have(),
        Have(("/ip4/127.0.0.1/tcp/1",) * 8),
        Keep(bytes(MAX_GRANT_BYTES), CID, MAX_CHECKPOINT_BYTES, b"n" * 16),
        Keep(
            bytes(MAX_GRANT_BYTES),
            CID,
            MAX_CHECKPOINT_BYTES,
            b"n" * 16,
            (Contact(BOB.peer_id, ("a" * MAX_SOURCE_ADDRESS_CHARS,) * MAX_KEPT_FROM_ADDRESSES),)
            * MAX_KEPT_FROM,
            RULE,
        ),
    ],
)
def test_a_request_survives_the_wire(message: Request) -> None:
    assert parse_request(pack_request(message)) == message
    assert len(pack_request(message)) <= MAX_REQUEST_BYTES


@pytest.mark.parametrize(
    "message",
    [
        Opened(),
        Opened(bytes(MAX_MANIFEST_BYTES), (BOB,) * MAX_SOURCES),
        Chunk(3, CHUNK_BYTES),
        Chunk(0, 0),
        BlobRefused("not for you"),
        Delegated(DELEGATION),
    ],
)
def test_a_reply_survives_the_wire(message: Reply) -> None:
    assert parse_reply(pack_reply(message)) == message
    assert len(pack_reply(message)) <= MAX_REPLY_BYTES


def test_sources_are_named_with_their_first_addresses_and_a_long_reason_is_cut() -> None:
    known = BOB.addresses * (MAX_KEPT_FROM_ADDRESSES + 1)
    keep = Keep(b"", CID, 1, b"n" * 16, (Contact(BOB.peer_id, known),))
    cut = (Contact(BOB.peer_id, known[:MAX_KEPT_FROM_ADDRESSES]),)
    assert parse_request(pack_request(keep)) == replace(keep, sources=cut)
    assert parse_reply(pack_reply(BlobRefused("x" * 999))) == BlobRefused("x" * 256)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\xff",
        encode([]),
        encode([9]),
        encode([1, b"", b"", True]),
        encode([1, bytes(MAX_GRANT_BYTES + 1), CID.to_bytes(), True]),
        encode([1, b"", CID.to_bytes(), 1]),
        encode([1, b"", CID.to_bytes(), True, None, [b""]]),
        encode([1, b"", CID.to_bytes(), True, None, [b"no peer id", 1, bytes(64)]]),
        encode([1, b"", CID.to_bytes(), True, None, [*DELEGATION.pack(), 1]]),
        encode([1, b"", CID.to_bytes(), True, None, DELEGATION.pack(), 1]),
        encode([2, -1]),
        encode([2, MAX_CHUNKS]),
        encode([2, True]),
        encode([3, ["a\n"]]),
        encode([3, ["a"] * 9]),
        encode([4, b"", []]),
        bytes(MAX_REQUEST_BYTES + 1),
    ],
)
def test_what_is_no_request_is_a_violation(frame: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        parse_request(frame)


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        encode([2, 0]),
        encode([4, 0, []]),
        encode([4, b"", [0]]),
        encode([4, b"", [[b"", []]] * (MAX_SOURCES + 1)]),
        encode([5, 0, CHUNK_BYTES + 1]),
        encode([5, MAX_CHUNKS, 1]),
        encode([6, "\x1b[31m"]),
        encode([6, "x" * 257]),
    ],
)
def test_what_is_no_reply_is_a_violation(frame: bytes) -> None:
    with pytest.raises(ProtocolViolation):
        parse_reply(frame)


@given(st.binary(max_size=64))
def test_no_bytes_raise_anything_else(frame: bytes) -> None:
    with contextlib.suppress(ProtocolViolation):
        parse_request(frame)
    with contextlib.suppress(ProtocolViolation):
        parse_reply(frame)


# -- manifests: what a long blob's CID is the hash of --------------------------------------------


LONG = Manifest(CHUNK_BYTES + 5, digest_of(b"one") + digest_of(b"two"))
SHORT = Manifest(3, digest_of(b"one"))


def test_the_cid_of_one_chunk_is_its_own_digest_and_there_is_no_block() -> None:
    assert SHORT.blob == Blob(Cid(RAW, digest_of(b"one")), 3)
    assert SHORT.encode() == b""
    assert Manifest.read(SHORT.blob, b"") == SHORT


def test_the_cid_of_more_is_the_digest_of_the_block() -> None:
    assert LONG.blob == Blob(Cid(DAG_CBOR, digest_of(LONG.encode())), CHUNK_BYTES + 5)
    assert Manifest.read(LONG.blob, LONG.encode()) == LONG
    assert [LONG.digest(0), LONG.digest(1)] == [digest_of(b"one"), digest_of(b"two")]


def test_the_largest_fits_into_its_bound() -> None:
    largest = Manifest(MAX_CHUNKS * CHUNK_BYTES, bytes(32 * MAX_CHUNKS))
    assert len(largest.encode()) <= MAX_MANIFEST_BYTES
    assert Manifest.read(largest.blob, largest.encode()) == largest


def test_content_in_memory_is_named_chunk_by_chunk() -> None:
    content = bytes(range(256)) * (CHUNK_BYTES // 256) + b"five!"
    manifest = Manifest.of(content)
    assert manifest.size_bytes == CHUNK_BYTES + 5
    assert manifest.digest(0) == digest_of(content[:CHUNK_BYTES])
    assert manifest.digest(1) == digest_of(b"five!")
    assert Manifest.of(b"").blob == Blob(Cid(RAW, digest_of(b"")), 0)


def blob_of(block: bytes, size: int = CHUNK_BYTES + 5) -> Blob:
    return Blob(Cid(DAG_CBOR, digest_of(block)), size)


@pytest.mark.parametrize(
    ("blob", "block", "why"),
    [
        (SHORT.blob, b"x", "one chunk"),
        (LONG.blob, b"x", "not the one"),
        (blob_of(b"\xff"), b"\xff", "cbor"),
        (blob_of(encode([1])), encode([1]), "is no"),
        (blob_of(encode([5, bytes(64)])), encode([5, bytes(64)]), "size"),
        (blob_of(encode([CHUNK_BYTES + 5, 7])), encode([CHUNK_BYTES + 5, 7]), "digests"),
        (blob_of(LONG.encode(), CHUNK_BYTES + 6), LONG.encode(), "were told"),
        (
            blob_of(encode([CHUNK_BYTES + 5, bytes(96)])),
            encode([CHUNK_BYTES + 5, bytes(96)]),
            "too many or too few",
        ),
    ],
)
def test_a_manifest_that_lies_is_refused(blob: Blob, block: bytes, why: str) -> None:
    with pytest.raises(Malformed, match=why):
        Manifest.read(blob, block)


@given(st.binary(max_size=200))
def test_no_bytes_break_it_even_if_their_digest_is_the_one_asked_for(block: bytes) -> None:
    with pytest.raises(Malformed):
        Manifest.read(blob_of(block), block)
