"""The `container` driver: a command in an image, by Docker or Podman. Payload:
workload/core/process.py; what holds the container: engine.py.

The client that starts a container runs under a supervisor, so that its output, its time and its
folder are watched as those of any process. The container itself is the engine's and outlives its
client; so it is removed by its name when its execution is over or cancelled, and at the next
start where the node was killed. Until then it can run on: an engine knows nothing of leases.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import trio

from formation_p2p.core.errors import FormationError, InvalidInput
from formation_p2p.drivers.driver import BlobAccess, DriverMaker, Execution, Output, Report
from formation_p2p.drivers.ending import Ending
from formation_p2p.drivers.launch import Launch
from formation_p2p.drivers.machine import Machine
from formation_p2p.drivers.program import Program, cannot_start
from formation_p2p.drivers.supervised import Supervised
from formation_p2p.features.containers.engine import CLIENT_LIMITS, Engine, task_user
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome
from formation_p2p.workload.core.process import ContainerSpec


def set_up(machine: Machine) -> DriverMaker:
    """Raises LocalError where no engine answers."""
    engine = Engine.found(machine.home)
    return lambda: ContainerDriver(machine, engine)


class ContainerDriver:
    """Keeps nothing between executions; the engine keeps the images."""

    name = "container"

    def __init__(self, machine: Machine, engine: Engine) -> None:
        # The client is the node's own, and reads its user's credentials.
        self._machine = replace(machine, sandbox=None, filters=False)
        self._engine = engine
        self.blobs: BlobAccess | None = None

    async def run(self, execution: Execution, report: Report) -> Outcome:
        try:
            spec = ContainerSpec.decode(execution.payload)
        except InvalidInput as problem:
            return Failed(FailureKind.INVALID, str(problem))
        name = container_name(execution)
        output = Output(report.output, reader=execution.reader)
        program = Program(spec.process, execution, output, self.blobs, execution.scratch)
        launch = Launch(
            self._engine.command(name, execution, spec),
            self._engine.environment(),
            execution.scratch,
            replace(CLIENT_LIMITS, storage_bytes=execution.limits.storage_bytes),
            spec.process.stdin or b"",
        )
        try:
            await program.put_inputs()
            await trio.to_thread.run_sync(_give, execution.scratch)
            task = await Supervised.start(self._machine, launch)
        except (OSError, FormationError) as problem:
            return cannot_start(problem)
        async with AsyncExitStack() as held:
            held.push_async_callback(self._engine.remove, name)
            held.push_async_callback(task.close)
            ending = await task.run_to_end(output, execution.timeout_s)
            state = await self._engine.state(name)
        if ending.how != "exit" or ending.late:
            return program.failed(ending)
        if state is None or not state.ran:
            # The client's last words say why: no such image, no such program in it.
            why = output.tail("stderr").decode(errors="replace").strip()
            why = (state and state.problem) or why or f"code {ending.number}"
            return Failed(FailureKind.DRIVER, f"the container could not be started: {why[-2048:]}")
        if state.out_of_memory:
            return program.failed(Ending("memory"), ending)
        return await program.exited(state.exit_code)

    async def end_lease(self, lease_id: str) -> None:
        """Nothing is kept: the caller cancels executions that still run."""


def container_name(execution: Execution) -> str:
    """That of an attempt, under the names that engines take."""
    attempt = f"{execution.lease_id} {execution.execution_id}".encode()
    return f"formation-{hashlib.sha256(attempt).hexdigest()[:24]}"


def _give(folder: Path) -> None:
    """What is in the folder becomes the task's, where that is another user."""
    uid, gid = task_user()
    if uid != os.getuid():
        for place in (folder, *folder.rglob("*")):
            os.chown(place, uid, gid)
