"""The node's handle of a warm interpreter: calls are written to it, and replies read.

`python_child.py` is the other end, and says what the two send each other.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, NamedTuple, Self

import cloudpickle
import trio

from formation_p2p.content.segment import check_sealed, moved
from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.core.units import KIB, format_bytes
from formation_p2p.drivers import python_child, python_parcels
from formation_p2p.drivers.call_data import CallData, Handed
from formation_p2p.drivers.called import Called
from formation_p2p.drivers.driver import BlobAccess, Execution
from formation_p2p.drivers.environment_build import BuiltEnvironment
from formation_p2p.drivers.machine import Machine, device_environment
from formation_p2p.drivers.supervised import Supervised
from formation_p2p.leases.core.in_flight import SharedBlobs
from formation_p2p.machine.core.bounds import MAX_MEMORY_BYTES
from formation_p2p.machine.pythons import own_name
from formation_p2p.workload.core.call_context import CallContext
from formation_p2p.workload.core.outcome import (
    MAX_CPU_MS,
    Failed,
    FailureKind,
    Outcome,
    Succeeded,
    Usage,
)
from formation_p2p.workload.core.parcel import Parcel, places_of
from formation_p2p.workload.core.work import MAX_RESULT_BYTES

# Of stat(2), whatever the file system.
_BLOCK_BYTES: Final = 512


@dataclass(slots=True)
class GivenResult:
    """`file` is memory that has what the parcel has beside `pickled`. Call `kept` or `close`."""

    pickled: bytes
    pickle_bytes: int
    buffers: tuple[int, ...]
    file: int

    @classmethod
    def take(cls, body: bytes, data: socket.socket) -> Self | None:
        """The memory is the next on the data socket. None for what no interpreter of ours sends:
        the call may write too."""
        try:
            note, flags = len(python_parcels.NOTE), socket.MSG_CMSG_CLOEXEC
            _, files, _, _ = socket.recv_fds(data, note, 1, flags)
        except OSError:
            return None
        if not files:
            return None
        given = cls(b"", 0, (), files[0])
        size, head = len(body), python_parcels.PARCEL.size
        if size >= head:
            given.pickle_bytes, here, count = python_parcels.PARCEL.unpack_from(body)
            end = head + count * python_parcels.SIZE.size
            if end + here == size:
                sizes = python_parcels.SIZE.iter_unpack(body[head:end])
                given.buffers, given.pickled = tuple(each for (each,) in sizes), body[end:]
                return given
        given.close()
        return None

    async def kept(
        self, outcome: Outcome, execution: Execution, blobs: BlobAccess | None, *, counted: bool
    ) -> Outcome:
        """The outcome of the call, with the record of its parcel. `counted`: the kernel holds the
        memory against the interpreter for as long as there is any of it, with the owner too."""
        size = places_of((self.pickle_bytes, *self.buffers))[-1]
        allowed = isinstance(outcome, Succeeded)
        try:
            if blobs is None:
                self.close()
                raise LocalError("the driver has no access to private blobs")
            try:
                self._check_written(size)
            except LocalError:
                self.close()
                raise
            file = self.file
            if counted:
                with trio.CancelScope(shield=True):  # else the file may stay open
                    file = await trio.to_thread.run_sync(moved, file, size)
            of = (execution.lease_id, execution.execution_id) if allowed else None
            blob = await blobs.keep_result(file, size, execution.owner, of)
            record = Parcel(self.pickled, self.pickle_bytes, self.buffers, blob).encode()
        except (InvalidInput, LocalError) as problem:
            if isinstance(outcome, Failed):
                return replace(outcome, message=f"{outcome.message}; it is not kept: {problem}")
            why = f"its result of {format_bytes(size)} cannot be kept: {problem}"
            return Failed(FailureKind.OUTPUT, why)
        return replace(outcome, result=record)

    def _check_written(self, size: int) -> None:
        """That it is memory of this size, and all of it was paid for by the interpreter: a hole in
        it costs that nothing, and this process its size once it is copied. Raises LocalError."""
        status = os.fstat(self.file)
        if status.st_size != size or status.st_blocks * _BLOCK_BYTES < size:
            raise LocalError("the interpreter has written something else")
        check_sealed(self.file, size)

    def close(self) -> None:
        os.close(self.file)


INTERPRETER: Final = Path(python_child.__file__)
# The kernel takes more in one go only from a larger buffer.
_READ_BYTES: Final = 256 * KIB
# Pure Python, and the same for every version.
_CLOUDPICKLE: Final = str(Path(cloudpickle.__file__).parent)
_FAILURES: Final = {
    python_child.RAISED: FailureKind.EXCEPTION,
    python_child.MISSING: FailureKind.MODULE,
    python_child.OUT_OF_MEMORY: FailureKind.MEMORY,
    python_child.TOO_LARGE: FailureKind.OUTPUT,
}
_HANDED: Final = (python_child.PARCEL_RETURNED, python_child.PARCEL_TOO_LARGE)


@dataclass(frozen=True, slots=True)
class CallSetup:
    """What an interpreter is started with, for calls with these `needs`: `python`, the folder of
    its `cloudpickle` where it has none itself, the paths that modules are looked for in `first`
    and `last`, and the folders that are `shown` to it in a sandbox, and environment `variables`."""

    needs: tuple[object, ...]
    python: Path
    cloudpickle: str = ""
    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    shown: tuple[Path, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)


def setup_for(
    machine: Machine,
    execution: Execution,
    context: CallContext,
    built: BuiltEnvironment | None = None,
) -> CallSetup:
    """`built` is what has the packages of the calls; the node's own are not found then."""
    if built is not None:
        return CallSetup(
            context.needs,
            built.python,
            cloudpickle=_CLOUDPICKLE,
            shown=(built.folder,),
            variables=built.variables,
        )
    # The first may be any of them.
    interpreter = machine.interpreter(execution.python, context.python)
    if interpreter.python.name == own_name():
        return CallSetup(context.needs, interpreter.path, last=tuple(filter(None, sys.path)))
    # The packages of this process are compiled for its own version.
    return CallSetup(context.needs, interpreter.path, cloudpickle=_CLOUDPICKLE)


class Reply(NamedTuple):
    """To the call `which`: whether it `waits` to go on, and `keeps` memory that it was handed. Of a
    large result, the outcome is without what it `gave`."""

    which: int
    outcome: Outcome
    used: Usage
    waits: bool
    keeps: bool
    gave: GivenResult | None


class WarmInterpreter(Called):
    """A started interpreter, seen from the node. `close` it, whatever happens."""

    def __init__(
        self, task: Supervised, calls: socket.socket, data: socket.socket, setup: CallSetup
    ) -> None:
        super().__init__(task, calls)
        self._data = data  # on which descriptors are handed over
        self.setup = setup
        self._functions = SharedBlobs()
        self._received = bytearray()
        self._missed = False  # whether it was to be handed something, and does not have it
        self.is_ready = False  # whether it takes calls; `receive` finds out
        self.broken = False

    @classmethod
    async def start(
        cls, machine: Machine, program: Path, execution: Execution, setup: CallSetup, home: Path
    ) -> Self:
        """Raises OSError where this machine cannot start a process."""
        data, its_data = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        data.setblocking(False)
        fds = (its_data.fileno(),)
        arguments = (
            *(str(fds[0]), str(execution.limits.enforced_memory_bytes), setup.cloudpickle),
            *(*setup.first, "", *setup.last),
        )
        with its_data:
            try:
                task, calls = await cls.started(
                    machine,
                    program,
                    arguments,
                    home,
                    execution.limits,
                    {
                        **setup.variables,
                        **device_environment(execution.device_ids),
                        **({} if execution.place is None else execution.place.variables),
                    },
                    str(setup.python),
                    setup.shown,
                    fds,
                    execution.place,
                    execution.lease_id,
                )
            except BaseException:
                data.close()
                raise
        return cls(task, calls, data, setup)

    async def close(self) -> None:
        self._data.close()
        await super().close()

    def needs_function(self, execution: Execution) -> bool:
        """Whether a call brings its function along."""
        return execution.shared not in self._functions

    def suits(self, context: CallContext) -> bool:
        """Whether it is set up for calls with this context, and takes more at all."""
        return context.needs == self.setup.needs and not self._missed

    def weight(self, execution: Execution) -> int:
        """How many bytes have it run a call."""
        known = execution.shared in self._functions
        return len(execution.payload) + (0 if known else len(execution.shared))

    def written(self, execution: Execution, context: CallContext, data: CallData) -> bytes:
        """What has it run a call, whose data it is handed now. Raises LocalError where that is
        not possible; then it takes no more calls."""
        number, new = self._functions.number(execution.shared)
        function = b""
        if new:  # its descriptors go first, as it is read first
            how = " member" if context.as_member else ""
            python = f"{context.python} {context.max_result_bytes}{how}\n".encode()
            function = self._piece(
                python_child.FUNCTION, number, context.function, data.function, python
            )
        call = self._piece(python_child.CALL, number, execution.payload, data.arguments)
        return function + call

    def _piece(
        self, kind: bytes, number: int, pickled: bytes, handed: Handed | None, first: bytes = b""
    ) -> bytes:
        if handed is not None:
            kind, pickled = kind.lower(), handed.body
            with suppress(BrokenPipeError, ConnectionResetError):  # it is dead
                self._hand_over(handed.files)
        header = python_child.HEADER.pack(kind, number, len(first) + len(pickled))
        return b"".join((header, first, pickled))

    def _hand_over(self, files: list[int]) -> None:
        """Raises LocalError where the kernel has no room for what is on its way. It counts that of
        all processes of a user together: other tasks may have filled it."""
        try:
            socket.send_fds(self._data, [python_parcels.NOTE], files)
        except (BrokenPipeError, ConnectionResetError):
            raise
        except OSError as problem:
            self._missed = True
            why = f"the data of the call cannot be handed over: {problem.strerror or problem}"
            raise LocalError(why) from problem

    def send(self, data: memoryview) -> memoryview:
        """As much as it takes now. Returns the rest; all is taken where it is dead."""
        try:
            return data[self._calls.send(data) :]
        except BlockingIOError:
            return data
        except (BrokenPipeError, ConnectionResetError):
            return data[len(data) :]

    async def wait_for_room(self) -> None:
        """Until it takes some more."""
        await trio.lowlevel.wait_writable(self._calls.fileno())

    async def wait(self) -> None:
        """Until there is something to receive."""
        await trio.lowlevel.wait_readable(self._calls.fileno())

    def receive(self) -> bool:
        """Take in what has come. False where it is dead."""
        try:
            data = self._calls.recv(_READ_BYTES)
        except BlockingIOError:
            return True
        except OSError:
            return False
        self._received += data
        if not self.is_ready and self._received:
            del self._received[: len(python_child.READY)]
            self.is_ready = True
        return bool(data)

    def go_on(self, unwanted: Iterable[int]) -> bytes:
        """What has it run what waits behind a call, but for these."""
        body = b"".join(map(python_child.WHICH.pack, unwanted))
        return python_child.HEADER.pack(python_child.GO_ON, 0, len(body)) + body

    def replies(self) -> list[Reply]:
        """The replies received since, in order. The memory of a call is the most that its
        interpreter had until its end.

        What it runs can find this socket too, so its word is checked like a stranger's: it is
        `broken` from the first that is not a reply.
        """
        replies: list[Reply] = []
        start, data = 0, self._received
        while len(data) - start >= python_child.REPLY.size and not self.broken:
            kind, which, waits, keeps, memory_bytes, cpu_us, message_bytes, value_bytes = (
                python_child.REPLY.unpack_from(data, start)
            )
            known = kind in (python_child.RETURNED, *_HANDED) or kind in _FAILURES
            too_large = (
                message_bytes > python_child.MAX_MESSAGE_BYTES or value_bytes > MAX_RESULT_BYTES
            )
            if not known or too_large:
                self.broken = True
                break
            middle = start + python_child.REPLY.size + message_bytes
            end = middle + value_bytes
            if len(data) < end:
                break
            message, value = bytes(data[middle - message_bytes : middle]), bytes(data[middle:end])
            start = end
            gave = None
            if kind in _HANDED:
                gave = GivenResult.take(value, self._data)
                if gave is None:
                    self.broken = True
                    break
                value = b""
            outcome: Outcome = Succeeded(value)
            if kind.upper() != python_child.RETURNED:
                text = message.decode(errors="replace")
                outcome = Failed(_FAILURES[kind.upper()], text, value)
            used = Usage(min(memory_bytes, MAX_MEMORY_BYTES), min(cpu_us // 1000, MAX_CPU_MS))
            replies.append(Reply(which, outcome, used, waits, keeps, gave))
        del data[:start]
        return replies
