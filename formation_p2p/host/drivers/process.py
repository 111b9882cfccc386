"""The `process` driver: one program, in a folder of its own. Payload and result:
core/workload/process.py. What tasks have in common are the packages that they need
(core/workload/environment.py), if any.

What the program is held to, and what is not guaranteed, stands in `supervised.py`. What it left
running when it ended is killed.
"""

from __future__ import annotations

from formation_p2p.core.errors import FormationError, InvalidInput
from formation_p2p.core.workload.environment import Environment
from formation_p2p.core.workload.outcome import Failed, FailureKind, Outcome
from formation_p2p.core.workload.process import ProcessSpec
from formation_p2p.host.drivers.driver import BlobAccess, DriverMaker, Execution, Output, Report
from formation_p2p.host.drivers.machine import Machine, base_environment, device_environment
from formation_p2p.host.drivers.program import Program, cannot_start
from formation_p2p.host.drivers.supervised import Launch, Supervised
from formation_p2p.host.environments.build import BuiltEnvironment, environment_for
from formation_p2p.host.environments.cache import EnvironmentCache
from formation_p2p.host.environments.uv import EnvironmentFailed


def set_up(machine: Machine) -> DriverMaker:
    return lambda: ProcessDriver(machine)


class ProcessDriver:
    """Keeps nothing between executions. `blobs` is for inputs and outputs by content."""

    name = "process"

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self.blobs: BlobAccess | None = None

    @property
    def environments(self) -> EnvironmentCache | None:
        return self._machine.environments

    async def run(self, execution: Execution, report: Report) -> Outcome:
        try:
            spec = ProcessSpec.decode(execution.payload)
            environment = Environment.decode(execution.shared) if execution.shared else None
        except InvalidInput as problem:
            return Failed(FailureKind.INVALID, str(problem))
        if environment is None:
            return await self._run(spec, execution, report, None)
        try:
            async with environment_for(
                self._machine, environment, execution.python, self.blobs, report.output
            ) as built:
                return await self._run(spec, execution, report, built)
        except EnvironmentFailed as problem:
            return Failed(FailureKind.ENVIRONMENT, str(problem))

    async def _run(
        self,
        spec: ProcessSpec,
        execution: Execution,
        report: Report,
        built: BuiltEnvironment | None,
    ) -> Outcome:
        program = Program(spec, execution, Output(report.output), self.blobs, execution.scratch)
        # The devices come last: they are the lease's to give.
        environment = {
            **base_environment(execution.scratch),
            **({} if built is None else built.variables),
            **spec.env,
            **device_environment(execution.device_ids),
        }
        stdin = spec.stdin or b""
        shown = () if built is None else (built.folder,)
        launch = Launch(
            spec.argv, environment, execution.scratch, execution.limits, stdin, shown=shown
        )
        try:
            await program.put_inputs()
            task = await Supervised.start(self._machine, launch)
        except (OSError, FormationError) as problem:
            return cannot_start(problem)
        try:
            ending = await task.run_to_end(program.output, execution.timeout_s)
        finally:
            await task.close()
        report.used(ending.used)
        if ending.how == "exit" and not ending.late:
            return await program.exited(ending.number)
        return program.failed(ending)

    async def end_lease(self, lease_id: str) -> None:
        """Nothing is kept: the caller cancels executions that still run."""
