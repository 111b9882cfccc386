"""The result of a call that is too large for a message: what travels in its place is the record of
a parcel (parcel.py), whose blob the worker keeps for the owner of the lease alone.

The scheduler takes the record for a result once it has the content. The worker forgets that with
the acknowledgement.
"""

from __future__ import annotations

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import format_bytes
from formation_p2p.workload.core.outcome import FailureKind, Outcome, Succeeded
from formation_p2p.workload.core.parcel import Parcel, is_parcel
from formation_p2p.workload.core.private_blob import PrivateBlob
from formation_p2p.workload.core.work import PythonCall


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
