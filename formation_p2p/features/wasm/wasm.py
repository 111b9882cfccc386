"""The `wasm` driver: WebAssembly, for untrusted code. Payload: workload/core/process.py.

Modules run in a process of the lease's own (`wasm_runner.py`) and not in the node's: a module
that found a hole in the engine would be in a sandbox with nothing to take, and what an engine
cannot interrupt, such as a compilation or a sleep, can be killed. The process is kept for the
lease, with what it has compiled; each call has memory and a folder of its own.

Two things hold a call: the engine (time by epochs, fuel, memory) and, should the engine fail, all
that holds a process (`supervised.py`).
"""

from __future__ import annotations

import importlib.util
import marshal
import math
import socket
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import trio

from formation_p2p.core.errors import FormationError, InvalidInput, LocalError
from formation_p2p.core.units import MIB, format_bytes
from formation_p2p.drivers.called import Called
from formation_p2p.drivers.driver import BlobAccess, DriverMaker, Execution, Output, Report
from formation_p2p.drivers.machine import Machine
from formation_p2p.drivers.program import Program, cannot_start, write_files
from formation_p2p.drivers.supervised import Supervised
from formation_p2p.features.wasm import wasm_runner
from formation_p2p.machine.folders import remove_folder
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome
from formation_p2p.workload.core.process import WasmSpec

_RUNNER: Final = Path(wasm_runner.__file__)
# How long it takes to start on a machine busy with everything else, as for an interpreter.
_START_S: Final = 60.0
# Past the time of a call: the engine has interrupted it by then, or cannot.
_PATIENCE_S: Final = 1.0
# What the runner itself takes of the lease's memory, and what a module gets at the least.
_RUNNER_BYTES: Final = 48 * MIB
_LEAST_BYTES: Final = 16 * MIB
# As wasmtime's own program exits after a trap: 128 and SIGABRT.
_TRAPPED_CODE: Final = 134


@dataclass(frozen=True, slots=True)
class _Reply:
    kind: bytes
    code: int
    message: str


class _Runner(Called):
    """A started runner, seen from the node. `close` it, whatever happens."""

    def __init__(self, task: Supervised, calls: socket.socket, folder: Path) -> None:
        super().__init__(task, calls)
        self.folder = folder
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(calls))
        self._ready = False
        self.idle = False

    @classmethod
    async def start(cls, machine: Machine, execution: Execution) -> Self:
        """Raises OSError where this machine cannot start a process."""
        folder = Path(tempfile.mkdtemp(prefix="wasm-", dir=execution.scratch.parent))
        memory = (str(memory_of_module(execution)),)
        try:
            started = await cls.started(
                machine, _RUNNER, memory, folder, execution.limits, {}, lease_id=execution.lease_id
            )
        except BaseException:
            await remove_folder(folder)
            raise
        return cls(*started, folder)

    async def call(self, spec: WasmSpec, folder: Path, timeout_s: float | None) -> _Reply | None:
        """None where it ended without a reply. Leaves it idle where it can take another call."""
        self.idle = False
        stdin = self.folder / "stdin"
        await trio.to_thread.run_sync(_write_anew, stdin, spec.process.stdin or b"")
        order = marshal.dumps(
            {
                "module": spec.module,
                "argv": list(spec.process.argv),
                "env": list(spec.process.env.items()),
                "stdin": str(stdin),
                "folder": str(folder),
                "fuel": spec.fuel,
                "timeout_s": timeout_s,
            }
        )
        try:
            if not self._ready:
                with trio.fail_after(_START_S):
                    await self._read(len(wasm_runner.READY))
                self._ready = True
            await self._stream.send_all(len(order).to_bytes(4, "big") + order)
            # What it runs may have got out of the engine, so its word is checked like a stranger's.
            kind, code, size = wasm_runner.REPLY.unpack(await self._read(wasm_runner.REPLY.size))
            if size > wasm_runner.MAX_MESSAGE_BYTES:
                return None
            message = (await self._read(size)).decode(errors="replace")
        except (trio.BrokenResourceError, trio.TooSlowError):
            return None
        self.idle = True
        return _Reply(kind, code, message)

    async def _read(self, size: int) -> bytes:
        """Raises BrokenResourceError where it ended first."""
        data = bytearray()
        while len(data) < size:
            more = await self._stream.receive_some(size - len(data))
            if not more:
                raise trio.BrokenResourceError
            data += more
        return bytes(data)

    async def close(self) -> None:
        await super().close()
        await remove_folder(self.folder)


def set_up(machine: Machine) -> DriverMaker:
    """Raises LocalError where wasmtime is not installed."""
    if importlib.util.find_spec("wasmtime") is None:
        raise LocalError(
            "the driver wasm needs wasmtime; install it: pip install 'formation_p2p[wasm]'"
        )
    return lambda: WasmDriver(machine)


class WasmDriver:
    """Keeps one runner for each lease that has used it, until `end_lease`. The shell runs those
    of one lease one after the other."""

    name = "wasm"

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.blobs: BlobAccess | None = None
        # As many as the worker has leases.
        self.runners: dict[str, _Runner] = {}

    async def run(self, execution: Execution, report: Report) -> Outcome:
        try:
            spec = WasmSpec.decode(execution.shared, execution.payload)
        except InvalidInput as problem:
            return Failed(FailureKind.INVALID, str(problem))
        runner = self.runners.pop(execution.lease_id, None)
        try:
            if runner is not None and runner.task.over:
                await runner.close()
                runner = None
            if runner is None:
                runner = await _Runner.start(self._machine, execution)
        except OSError as problem:
            return cannot_start(problem)
        try:
            output = Output(report.output, reader=execution.reader)
            return await _run(runner, spec, execution, output, self.blobs)
        finally:
            if runner.idle:
                self.runners[execution.lease_id] = runner
            else:
                await runner.close()

    async def end_lease(self, lease_id: str) -> None:
        if runner := self.runners.pop(lease_id, None):
            await runner.close()


def _write_anew(path: Path, content: bytes) -> None:
    """Raises OSError. What the last call left there is not written to: what has got out of the
    engine could have made it a link, to a file that the node alone may write to."""
    path.unlink(missing_ok=True)
    write_files(path.parent, {path.name: content})


def memory_of_module(execution: Execution) -> int:
    """What the engine lets a module have of the lease's memory, in bytes."""
    return max(_LEAST_BYTES, execution.limits.enforced_memory_bytes - _RUNNER_BYTES)


async def _run(
    runner: _Runner, spec: WasmSpec, execution: Execution, output: Output, blobs: BlobAccess | None
) -> Outcome:
    folder = Path(tempfile.mkdtemp(prefix="call-", dir=runner.folder))
    program = Program(spec.process, execution, output, blobs, folder)
    try:
        await program.put_inputs()
        patience_s = math.inf if execution.timeout_s is None else execution.timeout_s + _PATIENCE_S
        async with runner.task.passing_on(output, when_over=runner.hang_up):
            with trio.move_on_after(patience_s) as time:
                reply = await runner.call(spec, folder, execution.timeout_s)
            if time.cancelled_caught:
                await runner.task.stop()
                reply = _Reply(wasm_runner.TIMED_OUT, 0, "")
            elif reply is None:
                ending = await runner.task.settled()
        if reply is None:
            return program.failed(ending)
        if reply.kind == wasm_runner.EXITED and 0 <= reply.code <= 255:
            return await program.exited(reply.code)
        return _failed(reply, spec, execution, program)
    except (OSError, FormationError) as problem:
        return cannot_start(problem, "keep its files")
    finally:
        await remove_folder(folder)


def _failed(reply: _Reply, spec: WasmSpec, execution: Execution, program: Program) -> Failed:
    memory = format_bytes(memory_of_module(execution))
    kind, message = {
        wasm_runner.TRAPPED: (
            FailureKind.EXIT,
            f"{reply.message}; where that is for want of memory, ask for more than {memory}",
        ),
        wasm_runner.TIMED_OUT: (FailureKind.TIMEOUT, f"ran past its {execution.timeout_s} s"),
        wasm_runner.NO_FUEL: (
            FailureKind.TIMEOUT,
            f"used up its fuel of {spec.fuel} instructions; give it more",
        ),
        wasm_runner.NO_MEMORY: (
            FailureKind.MEMORY,
            f"needs more than its memory of {memory}; ask for more: {reply.message}",
        ),
        wasm_runner.INVALID: (FailureKind.INVALID, reply.message),
    }.get(reply.kind, (FailureKind.EXIT, "wrote to the socket that the driver calls it over"))
    return Failed(kind, message, program.result(_TRAPPED_CODE))
