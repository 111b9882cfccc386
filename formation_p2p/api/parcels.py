"""Large pickles of this node: put where those who are to have them get them, and given back."""

from __future__ import annotations

import mmap
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from formation_p2p.assembly import UserEffect
from formation_p2p.content.job_data import JobData
from formation_p2p.content.memory import PrivateBlobs
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import InvalidInput
from formation_p2p.jobs.core.job_events import EmitJobEvent, JobEnded, TaskEnd
from formation_p2p.peer.core.effects import RejectRequest
from formation_p2p.workload.core.parcel import LARGE_BYTES, Parcel
from formation_p2p.workload.core.private_blob import PrivateBlob

NO_PARCELS: Final[Mapping[str, Parcel]] = {}

_RELEASED: Final = "it was released; put the object again"


class Packer:
    """Makes parcels of pickles, in the private blobs of the node that `owner` says how to reach."""

    def __init__(self, blobs: PrivateBlobs, owner: Callable[[], Contact]) -> None:
        self.blobs: Final = blobs
        self._owner = owner

    @property
    def node(self) -> Packer:
        """The node's own, which its references are for."""
        return self

    def pack(
        self,
        pickled: bytes | memoryview,
        buffers: Iterable[pickle.PickleBuffer] = (),
        references: Iterable[Parcel] = (),
        *,
        inside: bool = False,
    ) -> Parcel:
        """The parcel, which is to be released once. The pickle goes into its blob where it is large
        or `inside` says so. `references` are held for it. Raises LocalError, and InvalidInput
        where one of them was released."""
        pieces = [buffer.raw() for buffer in buffers]
        sizes = tuple(piece.nbytes for piece in pieces)
        inside = inside or len(pickled) > LARGE_BYTES
        held: list[Parcel] = []
        try:
            for each in references:
                held.append(self._held(each))
            blob = None
            if inside or pieces:
                name, size = self._put([memoryview(pickled if inside else b""), *pieces])
                blob = PrivateBlob(name, size, self._owner())
        except BaseException:
            self.release_all(held)
            raise
        if inside:
            return Parcel(b"", len(pickled), sizes, blob, tuple(held))
        return Parcel(bytes(pickled), 0, sizes, blob, tuple(held))

    def _put(self, pieces: Sequence[memoryview]) -> tuple[bytes, int]:
        return self.blobs.put(pieces)

    def _held(self, reference: Parcel) -> Parcel:
        self.hold(reference)
        return reference

    def hold(self, parcel: Parcel) -> None:
        """It is to be released once more. Raises InvalidInput where it was released for the last
        time."""
        held: list[PrivateBlob] = []
        for blob in parcel.blobs:
            if not self.blobs.hold(blob.name):
                for each in held:
                    self.blobs.release(each.name)
                raise InvalidInput("reference", _RELEASED)
            held.append(blob)

    def release_soon(self, parcel: Parcel) -> None:
        """As `release`, from a finalizer, which may interrupt anything."""
        for blob in parcel.blobs:
            self.blobs.release_soon(blob.name)

    def release_all(self, arguments: Iterable[bytes | Parcel]) -> None:
        """The parcels among these."""
        for each in arguments:
            if isinstance(each, Parcel):
                self.release(each)

    @contextmanager
    def releasing(self, parcels: Mapping[str, Parcel]) -> Iterator[None]:
        """They are released where the block raises."""
        try:
            yield
        except BaseException:
            self.release_all(parcels.values())
            raise

    def release(self, parcel: Parcel) -> None:
        for blob in parcel.blobs:
            self.blobs.release(blob.name)


class JobPacker(Packer):
    """For one job that a state keeps: all of it lies in files until the job is over, and nothing is
    released before."""

    def __init__(self, packer: Packer, data: JobData, job_id: str) -> None:
        super().__init__(packer.blobs, packer._owner)
        self._node = packer
        self._data = data
        self._job_id = job_id
        self._copies: dict[bytes, Parcel] = {}  # of references, by the names of their blobs

    @property
    def node(self) -> Packer:
        return self._node

    def release(self, parcel: Parcel) -> None:
        pass

    def _put(self, pieces: Sequence[memoryview]) -> tuple[bytes, int]:
        return self._data.put(self._job_id, pieces)

    def _held(self, reference: Parcel) -> Parcel:
        """A copy that outlives it."""
        blob = reference.blob
        assert blob is not None, "all of an object lies in its blob"
        if blob.name not in self._copies:
            lent = self.blobs.lend(blob.name)
            if lent is None:
                raise InvalidInput("reference", _RELEASED)
            try:
                content = mmap.mmap(lent.file, blob.size_bytes, prot=mmap.PROT_READ)
                with content, memoryview(content) as view:
                    name, size = self._put([view])
            finally:
                lent.done(clean=True)
            copy = PrivateBlob(name, size, self._owner())
            self._copies[blob.name] = replace(reference, blob=copy)
        return self._copies[blob.name]


class HeldParcels:
    """What the tasks of jobs under way have in parcels: each is released when its task has ended.
    From any thread."""

    def __init__(self, packer: Packer) -> None:
        self._packer = packer
        self._held: dict[str, dict[str, Parcel]] = {}  # by job, then by task

    def __bool__(self) -> bool:
        return bool(self._held)

    def hold(self, job_id: str, parcels: Mapping[str, Parcel]) -> None:
        if parcels:
            self._held[job_id] = dict(parcels)

    def told(self, effect: UserEffect) -> None:
        """An event of a job, of any."""
        if type(effect) is EmitJobEvent:
            job_id, event = effect.job_id, effect.event
            if isinstance(event, TaskEnd):
                parcel = self._held.get(job_id, {}).pop(event.task_id, None)
                if parcel is not None:
                    self._packer.release(parcel)
            elif type(event) is JobEnded:
                self.job_ended(job_id)
        elif type(effect) is RejectRequest:
            self.job_ended(effect.what)

    def job_ended(self, job_id: str) -> None:
        for parcel in self._held.pop(job_id, {}).values():
            self._packer.release(parcel)
