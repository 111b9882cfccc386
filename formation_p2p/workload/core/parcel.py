"""A pickle that is too large for a message: it, or its buffers, lie in a private blob.

What travels in its place is a record, which no pickle begins like. The blob has the pickle, unless
the record has it, and after it the buffers that were pickled out of band (PEP 574), each at the
next multiple of ALIGNMENT_BYTES: arrays are used where they lie. Values that other calls take too
are parcels of their own, to which the pickle refers by their number.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final, Self

import cbor2

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import KIB
from formation_p2p.workload.core.private_blob import PrivateBlob
from formation_p2p.workload.core.work import decode_plain

# A pickle, or one of its buffers, of more goes into a blob: from here on that costs less than to
# send it in a message.
LARGE_BYTES: Final = 256 * KIB
# What the processor loads at once (AVX-512), and numpy aligns to at the most.
ALIGNMENT_BYTES: Final = 64
# Those of a pickle, at 9 bytes each in the record.
MAX_BUFFERS: Final = 16_384
# Of a pickle. The interpreter gets a descriptor for each, and so many in one message.
MAX_REFERENCES: Final = 128
# As a payload: a pickle, the sizes of its buffers, and the references with theirs.
MAX_RECORD_BYTES: Final = 1024 * KIB

_FIRST: Final = b"\x85"  # an array of five (RFC 8949, section 3)


def is_parcel(payload: bytes) -> bool:
    """Whether these are a parcel's record, where a pickle is expected. Those begin with 0x80 from
    protocol 2 on, and with printable characters before."""
    return payload[:1] == _FIRST


def places_of(sizes: Iterable[int]) -> list[int]:
    """Where in a blob pieces of these sizes lie, one after the other, and where they end."""
    ends = itertools.accumulate(-(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES for size in sizes)
    return [0, *ends]


@dataclass(frozen=True, slots=True)
class Parcel:
    """`pickled` is the pickle where it is not in the blob; `pickle_bytes` is its size in the blob,
    else 0. `buffers` are the sizes of those in the blob. There is none where the record has all of
    it. Raises InvalidInput."""

    pickled: bytes
    pickle_bytes: int = 0
    buffers: tuple[int, ...] = ()
    blob: PrivateBlob | None = None
    references: tuple[Parcel, ...] = ()

    def __post_init__(self) -> None:
        if type(self.pickled) is not bytes or len(self.pickled) > LARGE_BYTES:
            raise InvalidInput("parcel", f"its pickle is not bytes of at most {LARGE_BYTES}")
        if any(type(x) is not int or x < 0 for x in self.sizes) or len(self.buffers) > MAX_BUFFERS:
            raise InvalidInput("parcel", f"does not have up to {MAX_BUFFERS} sizes")
        if bool(self.pickled) == bool(self.pickle_bytes):
            raise InvalidInput("parcel", "has no pickle, or two")
        if sum(self.sizes) > 0 and self.blob is None:
            raise InvalidInput("parcel", "has no blob")
        if self.blob is not None and places_of(self.sizes)[-1] > self.blob.size_bytes:
            raise InvalidInput("parcel", "its blob is shorter than what lies in it")
        if len(self.references) > MAX_REFERENCES or any(x.references for x in self.references):
            problem = f"does not have up to {MAX_REFERENCES} references without their own"
            raise InvalidInput("parcel", problem)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of what lies in the blob: see `places_of`."""
        return (self.pickle_bytes, *self.buffers)

    @property
    def blobs(self) -> tuple[PrivateBlob, ...]:
        """Its own, and those of the references."""
        found = (self.blob, *(each.blob for each in self.references))
        return tuple(blob for blob in found if blob is not None)

    def encode(self) -> bytes:
        """The record. Raises InvalidInput where it is too long."""
        record = cbor2.dumps(self._pack())
        if len(record) > MAX_RECORD_BYTES:
            problem = "too many buffers and references in one call; pass fewer, larger objects"
            raise InvalidInput("arguments", problem)
        return record

    def _pack(self) -> list[Any]:
        references = [each._pack() for each in self.references]
        blob = None if self.blob is None else self.blob.pack()
        return [self.pickled, self.pickle_bytes, list(self.buffers), blob, references]

    @classmethod
    def decode(cls, record: bytes) -> Self:
        """Raises InvalidInput, whatever the bytes are."""
        if len(record) > MAX_RECORD_BYTES:
            raise InvalidInput("parcel", f"has {len(record)} bytes, of at most {MAX_RECORD_BYTES}")
        return cls._unpack(decode_plain("parcel", record))

    @classmethod
    def _unpack(cls, value: Any, *, of_another: bool = False) -> Self:
        match value:
            case [pickled, pickle_bytes, [*sizes], blob, [*others]] if not (of_another and others):
                return cls(
                    pickled,
                    pickle_bytes,
                    tuple(sizes),
                    None if blob is None else PrivateBlob.unpack(blob),
                    tuple(cls._unpack(each, of_another=True) for each in others),
                )
            case _:
                raise InvalidInput("parcel", "is not [pickle, size, sizes, blob, references]")
