"""Manifests: what a long blob's CID is the hash of."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formation_p2p.content.core.manifest import MAX_CHUNKS, MAX_MANIFEST_BYTES, Manifest
from formation_p2p.records.core.codec import Malformed, encode
from formation_p2p.workload.core.blob import CHUNK_BYTES, DAG_CBOR, RAW, Blob, Cid, digest_of

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
