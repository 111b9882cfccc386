"""An object that a node keeps for its calls: made once, named by any number of them."""

from __future__ import annotations

import mmap
import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Final, Generic, NoReturn, TypeVar

from formation_p2p.assembly import UserEffect
from formation_p2p.content.job_data import JobData
from formation_p2p.content.memory import PrivateBlobs
from formation_p2p.core.effects import Contact
from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import format_bytes
from formation_p2p.jobs.core.job_events import EmitJobEvent, JobEnded, TaskEnd
from formation_p2p.peer.core.effects import RejectRequest
from formation_p2p.workload.core.blob import PrivateBlob
from formation_p2p.workload.core.code_bundle import NO_MODULES, ModuleNames
from formation_p2p.workload.core.parcel import LARGE_BYTES, MAX_REFERENCES, Parcel

# Large pickles of this node: put where those who are to have them get them, and given back.

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


T_co = TypeVar("T_co", covariant=True)


class OnlyInCalls(InvalidInput):
    """A reference is in a pickle that does not go along with a call."""

    def __init__(self) -> None:
        problem = "it is good for calls of its node alone; pass it to one, or pickle the object"
        super().__init__("reference", problem)


class Reference(Generic[T_co]):
    """An object that `Node.put` has made a copy of, for calls of that node.

    Pass it as an argument, within one (in lists, dicts, …), or let the function enclose it: the
    function receives the object itself, and each worker fetches it once. It is kept until
    `release`, until this is collected, or until the node is closed; calls that were handed over
    before have it to their end.
    """

    def __init__(self, parcel: Parcel, modules: ModuleNames, packer: Packer, kind: str) -> None:
        """For `Node.put`. The parcel is released once."""
        self.parcel: Final = parcel
        self.modules: Final = modules
        self._packer = packer
        self._kind = kind
        self._process = os.getpid()
        self._is_released = False

    @property
    def size_bytes(self) -> int:
        """How much memory its node has it in."""
        return sum(blob.size_bytes for blob in self.parcel.blobs)

    def release(self) -> None:
        """Calls that come later cannot use it. Does nothing the second time, and in a process that
        was forked from the node's."""
        if not self._is_released and self._process == os.getpid():
            self._is_released = True
            self._packer.release(self.parcel)

    def check(self, packer: Packer) -> None:
        """Raises InvalidInput where it is not for calls of the node with this packer."""
        if self._packer is not packer.node:
            problem = "it is another node's; put the object with the node that makes the call"
            raise InvalidInput("reference", problem)
        if self._is_released:
            raise InvalidInput("reference", "it was released; put the object again")

    def __del__(self) -> None:
        # From any thread, and in the middle of anything: a lock may be held.
        if not self._is_released and self._process == os.getpid():
            self._packer.release_soon(self.parcel)

    def __reduce__(self) -> NoReturn:
        raise OnlyInCalls

    def __repr__(self) -> str:
        state = ", released" if self._is_released else ""
        return f"<Reference to {self._kind}, {format_bytes(self.size_bytes)}{state}>"


class Referred:
    """The references in one pickle, by the numbers that stand for them there."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}  # by identity: the pickled value has them meanwhile
        self._found: list[Reference[object]] = []
        self.modules = NO_MODULES  # of all that were ever found

    def number_of(self, value: object) -> int | None:
        """What stands for it in the pickle, None for other objects. Raises InvalidInput."""
        if type(value) is not Reference:
            return None
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._found)
            if number == MAX_REFERENCES:
                problem = f"a call takes {MAX_REFERENCES} references; put a list of the objects"
                raise InvalidInput("arguments", problem)
            self._found.append(value)
            self.modules |= value.modules
        return number

    def take(self) -> tuple[Reference[object], ...]:
        """Those of the pickle that is complete now; the next begins."""
        found = tuple(self._found)
        self._found.clear()
        self._numbers.clear()
        return found


def good_for(packer: Packer, references: Iterable[object]) -> list[Parcel]:
    """Their parcels. Raises InvalidInput where one is not for calls of the node with this packer,
    or was released."""
    found = [each for each in references if isinstance(each, Reference)]
    for each in found:
        each.check(packer)
    return [each.parcel for each in found]
