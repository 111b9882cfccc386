"""What runs a task on this machine: the protocol that every driver implements.

A driver of one's own is a class with a name and two methods:

    class Sleep:
        name = "sleep"

        async def run(self, execution: Execution, report: Report) -> Outcome:
            if not execution.payload.isdigit():
                return Failed(FailureKind.INVALID, "the payload is not a number of seconds")
            report.output("stdout", b"good night\\n")
            await trio.sleep(int(execution.payload))
            return Succeeded(b"")

        async def end_lease(self, lease_id: str) -> None:
            pass
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, Protocol, runtime_checkable

import trio

from formation_p2p.content.lent_blob import Lent
from formation_p2p.content.places import UNKNOWN
from formation_p2p.core.identity import PeerId
from formation_p2p.core.units import KIB, MIB, format_bytes
from formation_p2p.drivers.core.limits import TaskLimits
from formation_p2p.drivers.place import Place, Resident
from formation_p2p.environments.cache import EnvironmentCache
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.workload.core.blob import Blob, Buffer, Cid, PrivateBlob
from formation_p2p.workload.core.data_rule import DataRule
from formation_p2p.workload.core.outcome import UNMEASURED, Failed, Outcome, Usage
from formation_p2p.workload.core.process import MAX_TAIL_BYTES

ENDING: Final = ".notice"


@dataclass(eq=False, slots=True)
class Notice:
    """What a task is told before it is ended, so that it goes on elsewhere from what it saves.
    Drivers wait for `given`, or look at it now and then.

    A file beside that of its checkpoint, with `.notice` behind the name, has the Unix time by which
    the task is ended. A process gets SIGTERM as well."""

    given: trio.Event = field(default_factory=trio.Event)
    until_unix_s: float = 0.0

    def give(self, grace_s: float) -> None:
        """It is ended so much later."""
        if not self.given.is_set():
            self.until_unix_s = time.time() + grace_s
            self.given.set()

    def leave(self, folder: Path, name: str) -> None:
        """Where the task looks for it, beside the file `name` of its checkpoint. A task that is in
        the way of that gets none."""
        with suppress(OSError):
            place = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                new = name + ENDING + ".new"
                file = os.open(new, flags, 0o600, dir_fd=place)
                try:
                    os.write(file, f"{self.until_unix_s:.3f}\n".encode())
                finally:
                    os.close(file)
                os.rename(new, name + ENDING, src_dir_fd=place, dst_dir_fd=place)
            finally:
                os.close(place)


# Printed before the owner is asked whether all was read: what waits there of one execution.
ASK_BYTES: Final = MIB
# What each piece counts besides, so that short ones wait in bounded numbers, too.
PIECE_BYTES: Final = 4 * KIB
# An owner without a reader, or of an older release, does not answer. Its program goes on then.
ANSWER_S: Final = 2.0
# The question or its answer may be lost with a stream, so it is asked again.
AGAIN_S: Final = 10.0
# Once it has not answered, it is not asked again.
_UNASKED: Final = -(1 << 62)


@dataclass(eq=False, slots=True)
class Reader:
    """Whether the owner of a lease reads what its execution prints: then the program waits for it.
    `is_there` once the owner has said that there is a reader."""

    is_there: bool = False
    _unread_bytes: int = 0
    _news: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)

    def answered(self, *, more: bool) -> None:
        """With `more` all was read."""
        self.is_there = True
        if more or self._unread_bytes < 0:
            self._unread_bytes = 0
        self._news.unpark_all()

    def sent(self, data: bytes) -> None:
        self._unread_bytes += len(data) + PIECE_BYTES

    async def wait(self, ask: Callable[[], None]) -> None:
        """Until there is room for more, or no reader. Call it before more is taken."""
        while self._unread_bytes >= ASK_BYTES:
            ask()
            with trio.move_on_after(AGAIN_S if self.is_there else ANSWER_S):
                while self._unread_bytes >= ASK_BYTES:
                    await self._news.park()
            if not self.is_there:
                self._unread_bytes = _UNASKED


Stream = Literal["stdout", "stderr"]

# What a pipe holds by default: one read empties it.
CHUNK_BYTES: Final = 64 * KIB
# Of one execution, both streams together. A long readable log fits; a flood, which has to travel
# and be kept, does not.
MAX_OUTPUT_BYTES: Final = 16 * MIB

_UNBOUNDED: Final = 1 << 62


@dataclass(frozen=True, slots=True)
class Execution:
    """One attempt at one task, as the worker hands it to a driver.

    `shared` and `payload` are a stranger's: the driver alone reads them, in one place, and answers
    `Failed(INVALID)` where they do not parse. `shared` is what the task has in common with others.
    Executions of one lease may share what a driver keeps warm. `cpu_milli`, `memory_bytes`,
    `storage_bytes` and `device_ids` are what the lease holds; a device id of a GPU says whose it
    is (machine/gpus.py). `network` is whether the task asked for one, `python` the version
    that its call is for (machine/core/python.py). `owner` has the lease; `place` is where what
    it is part of has it. `restored` is what an earlier attempt at the task has saved. `resident`
    says that it is no task, and how it is asked to end. `notice` is given where it is to go on
    elsewhere: whatever it ends in then, but success, is no failure. `reader` says whether its
    owner reads all that it prints.

    `scratch` is an empty folder of mode 0700. The caller of `Driver.run` makes it and removes it
    afterwards (`scratch.py` does both). What a driver keeps for a whole lease it keeps beside
    that folder and removes in `end_lease`.
    """

    execution_id: str
    lease_id: str
    payload: bytes
    cpu_milli: int
    memory_bytes: int
    device_ids: tuple[str, ...]
    timeout_s: float | None
    scratch: Path
    shared: bytes = b""
    storage_bytes: int = 0
    network: bool = False
    python: str = ""
    owner: PeerId = UNKNOWN
    place: Place | None = None
    restored: Blob | None = None
    content: bytes | None = None
    resident: Resident | None = None
    notice: Notice = field(default_factory=Notice)
    reader: Reader = field(default_factory=Reader)

    @property
    def limits(self) -> TaskLimits:
        return TaskLimits(self.cpu_milli, self.memory_bytes, self.storage_bytes, self.network)


class Report(Protocol):
    """Where a driver reports on an execution while it runs."""

    def output(self, stream: Stream, data: bytes) -> None:
        """What it prints, live, in pieces of at most 64 KiB (CHUNK_BYTES). Must not block,
        nor raise."""
        ...

    def saved(self, blob: Blob, content: bytes | None = None) -> None:
        """What it has saved, to go on from where it is started again: content that this node keeps,
        or that goes along.
        Must not block, nor raise."""
        ...

    def used(self, usage: Usage) -> None:
        """What it has used, once, before `run` returns; where that is not known, never."""
        ...


class Output:
    """One execution's output, passed on to `report`. `full` once the bound is passed; stderr
    has one notice of it. None is no bound, where `report` keeps one itself; nor is there one where
    a `reader` is there to be waited for."""

    def __init__(
        self,
        report: Callable[[Stream, bytes], None],
        max_bytes: int | None = MAX_OUTPUT_BYTES,
        reader: Reader | None = None,
    ) -> None:
        self._report = report
        self._reader = reader
        self._max_bytes = self._left_bytes = _UNBOUNDED if max_bytes is None else max_bytes
        self._tails: dict[Stream, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self._digest: hashlib._Hash | None = None  # once stdout is longer than its tail
        self.full = False

    def take(self, stream: Stream, data: bytes) -> None:
        """`data` of at most CHUNK_BYTES."""
        tail = self._tails[stream]
        tail += data
        if stream == "stdout":
            if self._digest is not None:
                self._digest.update(data)
            elif len(tail) > MAX_TAIL_BYTES:
                self._digest = hashlib.sha256(tail)
        # Cut at twice the bound, so that each byte is moved once at most.
        if len(tail) > 2 * MAX_TAIL_BYTES:
            del tail[:-MAX_TAIL_BYTES]
        if self.full:
            return
        if self._reader is not None:
            self._reader.sent(data)
            if self._reader.is_there:
                self._report(stream, data)
                return
        if passed := data[: self._left_bytes]:
            self._report(stream, passed)
        self._left_bytes -= len(passed)
        if len(passed) < len(data):
            self.full = True
            bound = format_bytes(self._max_bytes)
            notice = f"\n[output past {bound} is not passed on; write to a file instead]\n"
            self._report("stderr", notice.encode())

    async def room(self) -> None:
        """Until more may be taken: as long as the reader takes, where there is one."""
        if self._reader is not None and not self.full:
            await self._reader.wait(lambda: self._report("stdout", b""))

    def tail(self, stream: Stream) -> bytes:
        """The last MAX_TAIL_BYTES at most, whether passed on or not."""
        return bytes(self._tails[stream][-MAX_TAIL_BYTES:])

    @property
    def stdout_sha256(self) -> bytes:
        """See ProcessResult."""
        return b"" if self._digest is None else self._digest.digest()


class Turns(Protocol):
    """The executions of one lease, in order, for a driver that takes several at once.

    Their `scratch` is the folder that they and others share: whatever the driver makes in there
    for the lease, it removes before `serve` ends.
    """

    @property
    def lease_id(self) -> str: ...

    @property
    def next_bytes(self) -> int | None:
        """The size of the next payload; None while nothing is to begin."""
        ...

    @property
    def is_paused(self) -> bool:
        """Whether the owner takes no further results for now."""
        ...

    def take(self) -> Execution:
        """The next execution; there is one where `next_bytes` says so."""
        ...

    def put_back(self, execution: Execution) -> None:
        """One that was taken has not begun, and is the next again."""
        ...

    def begin(self, execution_id: str) -> None:
        """It runs from now on."""
        ...

    def is_unwanted(self, execution: Execution) -> bool:
        """Whether one that was taken and has not begun is to be put back: its owner wants it
        back. It is not the next again then."""
        ...

    @property
    def is_killed(self) -> bool:
        """Whether the one that runs is to be killed."""
        ...

    def watch(self, scope: trio.CancelScope | None) -> None:
        """What to cancel when more is to begin, or the one that runs is to be killed."""
        ...

    async def wait(self) -> None:
        """Until there is a next one."""
        ...

    def output(self, execution_id: str, stream: Stream, data: bytes) -> None: ...

    def saved(self, execution_id: str, blob: Blob, content: bytes | None = None) -> None:
        """See `Report.saved`."""
        ...

    def ended(self, execution_id: str, outcome: Outcome, used: Usage = UNMEASURED) -> None:
        """One that has begun is over. The owner hears of it with the next `flush`."""
        ...

    def flush(self) -> None: ...


def refuse(turns: Turns, execution: Execution, failed: Failed) -> None:
    """Of one that was taken, and cannot be run."""
    turns.begin(execution.execution_id)
    turns.ended(execution.execution_id, failed)
    turns.flush()


@runtime_checkable
class LeaseDriver(Protocol):
    """A driver that keeps something warm for a lease, and takes many executions at once."""

    @property
    def name(self) -> str: ...

    async def serve(self, turns: Turns) -> None:
        """Runs what comes under one lease until cancelled, and is over only when all that it
        started is dead. What it raises ends the executions that it has taken."""
        ...


class Driver(Protocol):
    """Runs in the trio thread of the node; see the module for an example."""

    @property
    def name(self) -> str: ...

    async def run(self, execution: Execution, report: Report) -> Outcome:
        """Runs one execution to its end, within its limits and its time.

        Every failure of the task is an outcome, not an exception. Cancelling kills whatever
        runs, and is over only when it is dead.
        """
        ...

    async def end_lease(self, lease_id: str) -> None:
        """Kills what is kept warm for a lease; an unknown lease is ignored."""
        ...


@runtime_checkable
class LooksAhead(Protocol):
    """A driver that runs one execution after the other, and makes ready for the next meanwhile."""

    async def look_ahead(self, execution: Execution) -> None:
        """Get here what it needs, and start nothing; its `scratch` is the folder below which its
        own will be made. It may come, or be taken back: then this is cancelled. What fails is for
        `run` to tell."""
        ...


class BlobCopies(Protocol):
    """Content that is fetched where it is not on this machine."""

    async def copies(self, inputs: Iterable[tuple[Path, Blob]], owner: PeerId = UNKNOWN) -> None:
        """Put copies at these paths, whose folders exist, readable and executable, fetching what
        is not on this machine, for that owner of a lease. Raises LocalError, RemoteError."""
        ...

    async def fetch_ahead(self, blobs: Iterable[Blob], owner: PeerId = UNKNOWN) -> None:
        """Have them on this machine, for `copies` that follow soon. Raises LocalError,
        RemoteError."""
        ...


class BlobAccess(BlobCopies, Protocol):
    """The node's blobs, as drivers use them: inputs are fetched, outputs kept."""

    async def keep(
        self, file: int, path: Path, rule: DataRule | None = None, owner: PeerId = UNKNOWN
    ) -> Blob:
        """Take over a plain file, open as `file` and with no writer left, so that others
        can fetch it for a while, as far as the rule allows; it was made for that owner of a lease.
        Raises LocalError."""
        ...

    async def secret(self, secret: Blob, owner: PeerId, service: str = "") -> bytes:
        """Of a task of that owner, or of a service. Raises LocalError, RemoteError."""
        ...

    async def lend(self, blob: PrivateBlob, /, *, again: bool = False) -> Lent:
        """A private blob, to be read; with `again` it is kept for a while for calls that come.
        Raises LocalError; RemoteError where its owner does not hand it over."""
        ...

    async def keep_result(
        self, file: int, size_bytes: int, owner: PeerId, of: tuple[str, str] | None
    ) -> PrivateBlob:
        """Memory that a call has filled, for the owner of its lease to fetch; `of` is the lease and
        the attempt, None for one that is kept for longer than the lease. It takes over `file`.
        Raises LocalError where it is not sealed, or there is no room."""
        ...

    def lend_kept(self, blob: PrivateBlob, /) -> Lent | None:
        """One that is here and was kept; None where it has to be asked for."""
        ...

    async def add(self, content: Buffer, holder: str, owner: PeerId = UNKNOWN) -> Blob:
        """Keep content of that owner of a lease so that others can fetch it until `holder` is
        released. Raises LocalError."""
        ...

    async def add_file(
        self, file: int, size_bytes: int, holder: str, owner: PeerId = UNKNOWN
    ) -> Blob:
        """As `add`, of an open file of this size, which is copied. Raises LocalError."""
        ...

    async def hold(self, holder: str, cids: Iterable[Cid]) -> None:
        """Content that is here, or comes, stays until `holder` is released. Raises LocalError."""
        ...

    async def release(self, holder: str) -> None:
        """Raises LocalError."""
        ...


@runtime_checkable
class HasNetworks(Protocol):
    """A driver that gives what it runs a network of its own, as long as it asks for no other."""

    def has_own_network(self, needs: Requirements) -> bool: ...


@runtime_checkable
class UsesBlobs(Protocol):
    """A driver that is given the node's blobs before it runs anything."""

    blobs: BlobAccess | None


@runtime_checkable
class KeepsEnvironments(Protocol):
    """A driver that builds environments, which the node announces; None where it cannot."""

    @property
    def environments(self) -> EnvironmentCache | None: ...


# What a driver's `set_up(machine)` returns (installed.py). It is called on the node's thread, again
# after a crash of the network stack.
DriverMaker = Callable[[], Driver | LeaseDriver]
