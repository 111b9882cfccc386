"""Large results in a simulated world: records of blobs that workers keep."""

from collections.abc import Callable
from typing import Unpack

from formation_p2p.assembly import DEFAULT_PARAMETERS, PeerParameters
from formation_p2p.core.effects import Contact
from formation_p2p.core.units import GIB, MIB
from formation_p2p.jobs.core.job import Job
from formation_p2p.machine.core.requirements import Requirements
from formation_p2p.placement.core.task_options import PlacementKwargs
from formation_p2p.workload.core.blob import PrivateBlob
from formation_p2p.workload.core.call_context import CallContext
from formation_p2p.workload.core.outcome import Outcome, Succeeded
from formation_p2p.workload.core.parcel import Parcel
from simulations.simulator.executor import Run, Running
from simulations.simulator.world import World
from tests.support.stories import job, where

CALL = Requirements(driver="python", memory_bytes=GIB)
LIMIT = 100 * MIB


def record_at(owner: Contact, size_bytes: int = MIB) -> bytes:
    """Of a result with one buffer."""
    return Parcel(b"\x80", 0, (size_bytes,), PrivateBlob(bytes(16), size_bytes, owner)).encode()


def calls(
    count: int = 1,
    *,
    job_id: str = "job",
    attempts: int = 3,
    deadline_s: float | None = None,
    speculate: bool = False,
    **options: Unpack[PlacementKwargs],
) -> Job:
    """Each may return LIMIT."""
    context = CallContext("cpython-3.11", b"\x80", max_result_bytes=LIMIT)
    return job(
        count,
        job_id=job_id,
        needs=CALL,
        shared=context.encode(),
        attempts=attempts,
        deadline_s=deadline_s,
        speculate=speculate,
        **options,
    )


def town_of_calls(
    returns: Callable[[World, Running], Outcome] | None = None,
    *,
    takes_s: Callable[[World, Running], float] = lambda world, running: 0.1,
    parameters: PeerParameters = DEFAULT_PARAMETERS,
    seed: int = 7,
    **cores: int,
) -> World:
    """As `town`, of workers that run calls, whose results are large unless `returns` says else."""

    def run(running: Running) -> tuple[float, Outcome]:
        outcome: Outcome = Succeeded(record_at(where(world, running).contact))
        if returns is not None:
            outcome = returns(world, running)
        return takes_s(world, running), outcome

    of_world: Run = run
    world = World(seed, of_world, parameters=parameters)
    world.add("gate")
    for name, count in cores.items():
        world.add(name, serve=world.machine(cpu=count, drivers=("python",)))
    world.add("bob")
    world.elapse(3)
    return world
