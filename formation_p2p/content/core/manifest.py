"""The list of a long blob's chunks: what its CID is the hash of.

    dag-cbor [size in bytes, the chunks' digests one after the other]

Each chunk is checked on its own, as it comes, from any peer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from formation_p2p.records.core.codec import Malformed, decode, encode, take_bytes, take_int
from formation_p2p.workload.core import blob as blobs
from formation_p2p.workload.core.blob import Blob, Cid

MAX_CHUNKS: Final = blobs.MAX_BLOB_BYTES // blobs.CHUNK_BYTES
# A list, an integer and a length before the digests.
MAX_MANIFEST_BYTES: Final = MAX_CHUNKS * blobs.DIGEST_BYTES + 16


@dataclass(frozen=True, slots=True)
class Manifest:
    """`digests` are 32 bytes for each chunk. Of one chunk, it is written nowhere: the CID says
    as much."""

    size_bytes: int
    digests: bytes

    def digest(self, index: int) -> bytes:
        return self.digests[index * blobs.DIGEST_BYTES : (index + 1) * blobs.DIGEST_BYTES]

    @property
    def blob(self) -> Blob:
        if len(self.digests) == blobs.DIGEST_BYTES:
            return Blob(Cid(blobs.RAW, self.digests), self.size_bytes)
        return Blob(Cid(blobs.DAG_CBOR, blobs.digest_of(self.encode())), self.size_bytes)

    def encode(self) -> bytes:
        """The block that a CID of DAG_CBOR names; empty for one chunk."""
        if len(self.digests) == blobs.DIGEST_BYTES:
            return b""
        return encode([self.size_bytes, self.digests])

    @classmethod
    def of(cls, content: blobs.Buffer) -> Self:
        """Of content in memory. Raises InvalidInput, with `blob`, for more than a blob may have."""
        view = memoryview(content).cast("B")
        starts = range(0, len(view), blobs.CHUNK_BYTES) or (0,)
        digests = (blobs.digest_of(view[at : at + blobs.CHUNK_BYTES]) for at in starts)
        return cls(len(view), b"".join(digests))

    @classmethod
    def read(cls, blob: Blob, block: bytes) -> Self:
        """The manifest of `blob`, from what a peer sent as such. Raises Malformed where it is
        another's, or says another size than the reference."""
        if blob.cid.codec == blobs.RAW:
            if block:
                raise Malformed("manifest", "is there, of a blob that has one chunk")
            return cls(blob.size_bytes, blob.cid.digest)
        if blobs.digest_of(block) != blob.cid.digest:
            raise Malformed("manifest", "is not the one that was asked for")
        match decode(block, MAX_MANIFEST_BYTES):
            case [size, digests]:
                size_bytes = take_int(size, "size", blobs.CHUNK_BYTES + 1, blobs.MAX_BLOB_BYTES)
                listed = take_bytes(digests, "digests", MAX_MANIFEST_BYTES)
            case _:
                raise Malformed("manifest", "is not [size, digests]")
        if size_bytes != blob.size_bytes:
            raise Malformed("manifest", f"has {size_bytes} bytes where {blob.size_bytes} were told")
        if len(listed) != blob.chunks * blobs.DIGEST_BYTES:
            raise Malformed("manifest", "has too many or too few digests for its size")
        return cls(size_bytes, listed)
