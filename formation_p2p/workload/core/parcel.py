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
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import KIB, format_bytes
from formation_p2p.workload.core.blob import PrivateBlob
from formation_p2p.workload.core.outcome import FailureKind, Outcome, Succeeded
from formation_p2p.workload.core.work import PythonCall, decode_plain

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


# The result of a call that is too large for a message: what travels in its place is the record of
# a parcel (parcel.py), whose blob the worker keeps for the owner of the lease alone.
#
# The scheduler takes the record for a result once it has the content. The worker forgets that with
# the acknowledgement.


def is_large(driver: str, result: bytes) -> bool:
    """Whether a result of this driver is a record."""
    return driver == PythonCall.driver and is_parcel(result)


def size_at_worker(driver: str, outcome: Outcome) -> int:
    """How many bytes a worker keeps for the owner of a lease until it has acknowledged this."""
    if not isinstance(outcome, Succeeded) or not is_large(driver, outcome.result):
        return 0
    return _size_of(outcome.result) or 0


def kept_size(kind: FailureKind | None, result: bytes) -> int | None:
    """How many bytes the worker keeps of a result that is too large for its call; None where an
    attempt failed in another way."""
    return _size_of(result) if kind is FailureKind.OUTPUT and is_parcel(result) else None


def _size_of(record: bytes) -> int | None:
    """None where it is none: drivers may be anybody's."""
    try:
        parcel = Parcel.decode(record)
    except InvalidInput:
        return None
    return len(parcel.pickled) + sum(parcel.sizes)


def blob_of(record: bytes, worker: PeerId, max_bytes: int) -> PrivateBlob:
    """What is to be fetched for a result, of at most `max_bytes`, that `worker` has. Raises
    InvalidInput for any other record that it may send."""
    parcel = Parcel.decode(record)
    if parcel.blob is None or parcel.references or parcel.blob.owner.peer_id != worker:
        raise InvalidInput("result", "is not in one blob that its worker has")
    if sum(parcel.sizes) + len(parcel.pickled) > max_bytes:
        size, most = format_bytes(sum(parcel.sizes)), format_bytes(max_bytes)
        raise InvalidInput("result", f"has {size}, where the call allows {most}")
    return parcel.blob
