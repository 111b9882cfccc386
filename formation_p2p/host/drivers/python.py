"""The `python` driver: calls of Python functions, in a process of the lease's own, kept warm.

The first execution of a lease starts an interpreter with the lease's limits; the next ones find
it running, with what they imported and their functions read. Calls of one lease run one after
the other, in the order they come. The node never reads a pickle: that is the interpreter's to do.

A call runs in its own scratch folder; HOME and TMPDIR are a folder of the lease. Modules are
found where the node finds its own; what is defined in the caller's `__main__` travels inside the
pickle. What a thread that outlives its call prints is passed on with the next one.
"""

from __future__ import annotations

import math
import socket
import sys
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import trio

from formation_p2p.errors import InvalidInput
from formation_p2p.host.drivers import interpreter
from formation_p2p.host.drivers.driver import Execution, Report
from formation_p2p.host.drivers.output import Output
from formation_p2p.host.drivers.process import failure
from formation_p2p.host.drivers.scratch import remove_folder
from formation_p2p.host.drivers.supervised import (
    Launch,
    Machine,
    Supervised,
    base_environment,
    device_environment,
    interpreter_environment,
)
from formation_p2p.units import KIB
from formation_p2p.workload.outcome import Failed, FailureKind, Outcome, Succeeded
from formation_p2p.workload.payload import MAX_RESULT_BYTES
from formation_p2p.workload.python_call import PythonCall

_INTERPRETER: Final = Path(interpreter.__file__)
# It takes 60 ms; a machine busy with everything else, reading the imports from a cold disk, must
# not be taken for a broken one.
_START_S: Final = 60.0
# The kernel takes more in one go only from a larger buffer.
_READ_BYTES: Final = 256 * KIB

_FAILURES: Final = {
    interpreter.RAISED: FailureKind.EXCEPTION,
    interpreter.OUT_OF_MEMORY: FailureKind.MEMORY,
    interpreter.TOO_LARGE: FailureKind.OUTPUT,
}


_LEASE_ENDED: Final = Failed(FailureKind.CANCELLED, "its lease ended")


class _Interpreter:
    """A started interpreter, seen from the node. `close` it, whatever happens."""

    def __init__(self, task: Supervised, calls: socket.socket) -> None:
        self.task = task
        self._calls = trio.SocketStream(trio.socket.from_stdlib_socket(calls))
        self._ready = False
        self.idle = False

    @classmethod
    async def start(cls, machine: Machine, execution: Execution, home: Path) -> Self:
        """Raises OSError where this machine cannot start a process."""
        calls, its_calls = socket.socketpair()
        with its_calls:
            try:
                task = await Supervised.start(
                    machine,
                    Launch(
                        argv=(
                            *(sys.executable, "-I", "-u", str(_INTERPRETER)),
                            *(str(its_calls.fileno()), str(MAX_RESULT_BYTES)),
                            *(path for path in sys.path if path),
                        ),
                        environment={
                            **base_environment(home),
                            **interpreter_environment(),
                            **device_environment(execution.device_ids),
                        },
                        folder=home,
                        limits=execution.limits,
                        passed_fd=its_calls.fileno(),
                    ),
                )
            except BaseException:
                calls.close()
                raise
        return cls(task, calls)

    async def ready(self) -> bool:
        """Whether it takes calls, once it does or has failed to."""
        if not self._ready:
            with trio.move_on_after(_START_S):
                self._ready = await self._read(len(interpreter.READY)) == interpreter.READY
        return self._ready

    async def call(self, call: PythonCall, folder: Path) -> Outcome | None:
        """None where it ended without a reply. Leaves it idle where it can take another call."""
        self.idle = False
        where = str(folder).encode()
        lengths = interpreter.CALL.pack(len(where), len(call.function), len(call.arguments))
        try:
            await self._calls.send_all(lengths + where + call.function + call.arguments)
        except trio.BrokenResourceError:
            return None
        header = await self._read(interpreter.REPLY.size)
        if header is None:
            return None
        # What it runs can find this socket too, so its word is checked like a stranger's.
        kind, message_bytes, value_bytes = interpreter.REPLY.unpack(header)
        known = kind == interpreter.RETURNED or kind in _FAILURES
        if (
            not known
            or message_bytes > interpreter.MAX_MESSAGE_BYTES
            or value_bytes > MAX_RESULT_BYTES
        ):
            return Failed(FailureKind.EXIT, "wrote to the socket that the driver calls it over")
        body = await self._read(message_bytes + value_bytes)
        if body is None:
            return None
        self.idle = True
        message, value = body[:message_bytes], body[message_bytes:]
        if kind == interpreter.RETURNED:
            return Succeeded(value)
        return Failed(_FAILURES[kind], message.decode(errors="replace"), value)

    async def _read(self, size: int) -> bytes | None:
        """None where it ended first."""
        data = bytearray()
        while len(data) < size:
            try:
                more = await self._calls.receive_some(min(size - len(data), _READ_BYTES))
            except trio.BrokenResourceError:
                return None
            if not more:
                return None
            data += more
        return bytes(data)

    def hang_up(self) -> None:
        """Ends the wait for a reply, also where a fork of the node holds the other end."""
        with suppress(OSError):
            self._calls.socket.shutdown(socket.SHUT_RDWR)

    async def close(self) -> None:
        self._calls.socket.close()
        await self.task.close()


@dataclass(slots=True)
class _Lease:
    """What is warm for one lease. The lock is held by the call that runs."""

    lock: trio.Lock = field(default_factory=trio.Lock)
    interpreter: _Interpreter | None = None
    home: Path | None = None
    ended: trio.Event = field(default_factory=trio.Event)


class PythonDriver:
    """Keeps one interpreter for each lease that has used it, until `end_lease`."""

    name = "python"

    def __init__(self, machine: Machine | None = None) -> None:
        self._machine = machine or Machine.found()
        # As many as the worker has leases.
        self._leases: dict[str, _Lease] = {}

    async def run(self, execution: Execution, report: Report) -> Outcome:
        try:
            call = PythonCall.decode(execution.payload)
        except InvalidInput as problem:
            return Failed(FailureKind.INVALID, str(problem))
        lease = self._leases.setdefault(execution.lease_id, _Lease())
        async with lease.lock:
            if lease.ended.is_set():
                return _LEASE_ENDED
            try:
                warm = await self._warm(lease, execution)
            except OSError as problem:
                return Failed(FailureKind.DRIVER, f"cannot start an interpreter: {problem}")
            try:
                outcome = await _run(warm, call, execution, Output(report))
            finally:
                if not warm.idle:
                    lease.interpreter = None
                    await warm.close()
            return _LEASE_ENDED if lease.ended.is_set() and not warm.idle else outcome

    async def end_lease(self, lease_id: str) -> None:
        lease = self._leases.pop(lease_id, None)
        if lease is None:
            return
        lease.ended.set()
        if lease.interpreter is not None:
            lease.interpreter.task.kill()
        # The call that runs ends at once, for its interpreter is dying; those behind it see that
        # the lease has ended.
        with trio.CancelScope(shield=True):
            async with lease.lock:
                if lease.interpreter is not None:
                    await lease.interpreter.close()
                if lease.home is not None:
                    await remove_folder(lease.home)

    async def _warm(self, lease: _Lease, execution: Execution) -> _Interpreter:
        if lease.interpreter is not None and lease.interpreter.task.over:
            await lease.interpreter.close()
            lease.interpreter = None
        if lease.interpreter is None:
            if lease.home is None:
                lease.home = Path(tempfile.mkdtemp(prefix="lease-", dir=execution.scratch.parent))
            lease.interpreter = await _Interpreter.start(self._machine, execution, lease.home)
            if lease.ended.is_set():
                lease.interpreter.task.kill()
        return lease.interpreter


async def _run(
    warm: _Interpreter, call: PythonCall, execution: Execution, output: Output
) -> Outcome:
    timeout_s = math.inf if execution.timeout_s is None else execution.timeout_s
    async with warm.task.passing_on(output, when_over=warm.hang_up):
        started = await warm.ready()
        if started:
            with trio.move_on_after(timeout_s) as time:
                outcome = await warm.call(call, execution.scratch)
                if outcome is not None:
                    return outcome
            if time.cancelled_caught:
                await warm.task.stop()
                return Failed(FailureKind.TIMEOUT, f"ran past its {timeout_s:g} s")
        ending = await warm.task.settled()
    failed = failure(ending, output, execution)
    if not started and failed.kind is FailureKind.EXIT:
        return Failed(FailureKind.DRIVER, f"the interpreter did not start: {failed.message}")
    return failed
