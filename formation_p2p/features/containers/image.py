"""The `image` driver: builds an image from a Containerfile, by Docker or Podman. Payload: ImageSpec
(workload/core/process.py).

The engine's client runs under a supervisor, and is given the context as a tar on its stdin. The
image has a name of its own on this machine, under which nothing else can be, and is removed once it
is saved: no build can change an image that others use here. What a RUN does it does as root in the
engine's own container, so that a worker offers this driver only where its owner names it.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Final

from formation_p2p.core.errors import FormationError, InvalidInput
from formation_p2p.drivers.driver import BlobAccess, DriverMaker, Execution, Output, Report
from formation_p2p.drivers.launch import Launch
from formation_p2p.drivers.machine import Machine
from formation_p2p.drivers.program import Program, cannot_start
from formation_p2p.drivers.supervised import Supervised
from formation_p2p.features.containers.container import CLIENT_LIMITS, Engine, container_name
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome
from formation_p2p.workload.core.process import ImageSpec

# $1 is the client, $2 the context, $3 the name of the image, $4 where it goes; the rest is for the
# build. What the engine says goes to stderr, where a failure takes its last words from.
_BUILD: Final = """client=$1 context=$2 image=$3 result=$4
shift 4
"$client" build "$@" --tag "$image" - < "$context" >&2 || exit
rm -f "$context"
exec "$client" save --output "$result" "$image"
"""


def set_up(machine: Machine) -> DriverMaker:
    """Raises LocalError where no engine answers."""
    engine = Engine.found(machine.home)
    return lambda: ImageDriver(machine, engine)


class ImageDriver:
    """Keeps nothing between executions but what the engine keeps: images that were pulled, and
    the layers of its cache."""

    name = "image"

    def __init__(self, machine: Machine, engine: Engine) -> None:
        # The client is the node's own, and reads its user's credentials.
        self._machine = replace(machine, sandbox=None, filters=False)
        self._engine = engine
        self.blobs: BlobAccess | None = None

    async def run(self, execution: Execution, report: Report) -> Outcome:
        try:
            spec = ImageSpec.decode(execution.payload)
        except InvalidInput as problem:
            return Failed(FailureKind.INVALID, str(problem))
        image = f"{container_name(execution)}/{spec.image}"
        output = Output(report.output)
        program = Program(spec, execution, output, self.blobs, execution.scratch)
        options = self._engine.build_options(execution, spec.containerfile)
        launch = Launch(
            (
                "sh",
                "-c",
                _BUILD,
                "sh",
                self._engine.client,
                spec.context,
                image,
                spec.result,
                *options,
            ),
            # Docker's other builder does not hold a build to its limits.
            {**self._engine.environment(), "DOCKER_BUILDKIT": "0"},
            execution.scratch,
            replace(CLIENT_LIMITS, storage_bytes=execution.limits.storage_bytes),
        )
        try:
            await program.put_inputs()
            task = await Supervised.start(self._machine, launch)
        except (OSError, FormationError) as problem:
            return cannot_start(problem)
        async with AsyncExitStack() as held:
            held.push_async_callback(self._engine.remove_image, image)
            held.push_async_callback(task.close)
            ending = await task.run_to_end(output, execution.timeout_s)
        if ending.how != "exit" or ending.late:
            return program.failed(ending)
        return await program.exited(ending.number)

    async def end_lease(self, lease_id: str) -> None:
        """Nothing is kept: the caller cancels executions that still run."""
