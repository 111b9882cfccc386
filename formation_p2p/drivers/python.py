"""The `python` driver: calls of Python functions, in a process of the lease's own, kept warm.

The first execution of a lease starts an interpreter with the lease's limits; the next ones find
it running, with what they imported and their functions read. Calls of one lease run one after
the other, in the order they come; small ones are on their way to it while others run, so that it
never waits for the node. The node never reads a pickle: that is the interpreter's to do.

A call runs in its own scratch folder; HOME and TMPDIR are a folder of the lease. Modules are found
in the code that came along (code_cache.py), and then where the node finds its own; what is defined
in the caller's `__main__` travels inside the pickle. What a thread that outlives its call prints is
passed on with the next one.
"""

from __future__ import annotations

import stat
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import trio

from formation_p2p.core.errors import FormationError, InvalidInput, LocalError, RemoteError
from formation_p2p.drivers.call_data import Contexts
from formation_p2p.drivers.code_cache import CodeCache
from formation_p2p.drivers.driver import BlobAccess, DriverMaker, Execution, Turns, refuse
from formation_p2p.drivers.environment_build import environment_for
from formation_p2p.drivers.machine import Machine
from formation_p2p.drivers.python_process import INTERPRETER, CallSetup, WarmInterpreter, setup_for
from formation_p2p.drivers.python_session import CANCELLED, CallSession
from formation_p2p.drivers.saves import holder_of
from formation_p2p.environments.cache import EnvironmentCache
from formation_p2p.environments.uv import EnvironmentFailed
from formation_p2p.machine.folders import remove_folder
from formation_p2p.workload.core.call_context import CallContext
from formation_p2p.workload.core.environment import Environment
from formation_p2p.workload.core.outcome import Failed, FailureKind

T = TypeVar("T")


async def unless_killed(turns: Turns, prepare: Callable[[], Awaitable[T]]) -> T | None:
    """What `prepare` returns or raises; None where the call that it is for is killed meanwhile."""
    done, results, problems = trio.Event(), list[T](), list[Exception]()

    async def run() -> None:
        try:
            results.append(await prepare())
        except Exception as problem:  # noqa: BLE001 - raised below, for a nursery puts it in a group
            problems.append(problem)
        finally:
            done.set()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(run)
            while not done.is_set() and not turns.is_killed:
                with trio.CancelScope() as scope:
                    turns.watch(scope)
                    await done.wait()
            nursery.cancel_scope.cancel()
    finally:
        turns.watch(None)
    if problems:
        raise problems[0]
    return results[0] if results else None


def set_up(machine: Machine) -> DriverMaker:
    return lambda: PythonDriver(machine)


class PythonDriver:
    """Keeps one interpreter for each lease that has used it, for as long as the lease lasts."""

    name = "python"

    def __init__(self, machine: Machine, program: Path = INTERPRETER) -> None:
        self._machine = machine
        self._program = program
        self._code = CodeCache(machine.home / "code")
        self.blobs: BlobAccess | None = None

    @property
    def environments(self) -> EnvironmentCache | None:
        return self._machine.environments

    async def serve(self, turns: Turns) -> None:
        home: Path | None = None
        contexts = Contexts()
        try:
            while True:
                await turns.wait()
                execution = turns.take()
                try:
                    context = contexts.of(execution)
                except InvalidInput as problem:
                    refuse(turns, execution, Failed(FailureKind.INVALID, str(problem)))
                    continue
                if home is None:
                    home = Path(tempfile.mkdtemp(prefix="lease-", dir=execution.scratch))
                async with AsyncExitStack() as held:
                    # It counts as the first call's: the owner of that hears that it has begun, and
                    # may kill it.
                    turns.begin(execution.execution_id)
                    try:
                        prepare = partial(self._prepared, turns, execution, context, held)
                        setup = await unless_killed(turns, prepare)
                        if setup is None:
                            refuse(turns, execution, CANCELLED)
                            continue
                        home.chmod(stat.S_IRWXU)  # a call of the last one may have locked it up
                        warm = await WarmInterpreter.start(
                            self._machine, self._program, execution, setup, home
                        )
                    except InvalidInput as problem:
                        refuse(turns, execution, Failed(FailureKind.INVALID, str(problem)))
                        continue
                    except EnvironmentFailed as problem:
                        refuse(turns, execution, Failed(FailureKind.ENVIRONMENT, str(problem)))
                        continue
                    except RemoteError as problem:
                        why = f"the caller did not hand over what it needs: {problem}"
                        refuse(turns, execution, Failed(FailureKind.CALLER, why))
                        continue
                    except (FormationError, OSError) as problem:
                        cannot = f"cannot start an interpreter: {problem}"
                        refuse(turns, execution, Failed(FailureKind.DRIVER, cannot))
                        continue
                    held.push_async_callback(_close, warm)
                    turns.put_back(execution)
                    turns.flush()
                    if turns.next_bytes is not None:  # else it was taken back meanwhile
                        async with trio.open_nursery() as nursery:
                            calls = CallSession(turns, warm, contexts, self.blobs, nursery, home)
                            await calls.run()
                            nursery.cancel_scope.cancel()
        finally:
            if home is not None:
                await remove_folder(home)
                await self._release(turns.lease_id)

    async def _release(self, lease_id: str) -> None:
        """What calls of the lease have saved."""
        if self.blobs is not None:
            with trio.CancelScope(shield=True):
                await self.blobs.release(holder_of(lease_id))

    async def _prepared(
        self, turns: Turns, execution: Execution, context: CallContext, held: AsyncExitStack
    ) -> CallSetup:
        """What an interpreter for calls with this context is started with. What it uses is kept
        until `held` is left. Raises InvalidInput, LocalError, RemoteError, OSError."""
        built, owner = None, execution.owner
        if context.environment:
            environment = Environment.decode(context.environment)
            log = partial(turns.output, execution.execution_id)
            built = await held.enter_async_context(
                environment_for(
                    self._machine, environment, execution.python, self.blobs, log, owner
                )
            )
        setup = setup_for(self._machine, execution, context, built)
        if context.code is None:
            return setup
        if self.blobs is None:
            raise LocalError("this driver was given no blobs to fetch code with")
        folder = await held.enter_async_context(self._code.held(context.code, self.blobs, owner))
        return replace(setup, first=(str(folder), *setup.first), shown=(folder, *setup.shown))


async def _close(warm: WarmInterpreter) -> None:
    with trio.CancelScope(shield=True):
        await warm.close()
