"""What tasks save on real workers, and how they go on from there: tried again, and elsewhere."""

import sys
import time
from contextlib import ExitStack
from pathlib import Path

import cloudpickle

from formation_p2p import (
    Limits,
    Node,
    ProcessResult,
    ProcessSpec,
    TaskPlaced,
    TaskSaved,
    checkpoint,
    python_call,
    restored,
    value_of,
)
from formation_p2p.core.units import MIB
from tests.support.loopback import LISTEN
from tests.support.network import gate_at, sees, small_network
from tests.support.nodes import OpenNode
from tests.support.worker_processes import working

# As a script's own functions: interpreters need not import this module, and all that it imports.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

NEEDS = "cpu=0.5,memory=128MiB"
MACHINE = Limits(cpu_milli=1000, memory_bytes=1024 * MIB)
SAVES = """
if [ -f "$FORMATION_CHECKPOINT.restored" ]; then cat "$FORMATION_CHECKPOINT.restored"; exit; fi
printf half > "$FORMATION_CHECKPOINT.new"
mv "$FORMATION_CHECKPOINT.new" "$FORMATION_CHECKPOINT"
exit 1
"""


def counting(upto: int, fails_at: int = -1) -> tuple[int, int]:
    """Where it began, and where it ended."""
    first = int(restored() or b"0")
    for number in range(first, upto):
        checkpoint(b"%d" % (number + 1))
        if number == fails_at:
            raise ValueError("once")
    return first, upto


def counting_on(upto: int) -> tuple[int, int]:
    """Likewise, by one that comes to an end only where it goes on from what it has saved."""
    found = counting(1 if restored() is None else upto)
    while found[1] < upto:
        time.sleep(0.1)
    return found


async def test_what_failed_goes_on_from_what_it_had_saved(tmp_path: Path) -> None:
    async with small_network(tmp_path) as network:
        bob = network.bob
        job = await bob.submit(ProcessSpec(("sh", "-c", SAVES)), needs=NEEDS, attempts=2)
        (result,) = await job
        assert ProcessResult.decode(result.result).stdout_tail == b"half"
        job = await bob.submit(python_call(counting, 4, 2), needs=NEEDS, attempts=2)
        (result,) = await job
        assert value_of(result) == (3, 4)


async def test_a_call_goes_on_elsewhere_when_its_worker_is_killed(tmp_path: Path) -> None:
    async with gate_at(tmp_path) as invitation:
        with ExitStack() as workers:
            running = await working(tmp_path, invitation, ("alice", "carol"), workers)
            async with OpenNode.join(invitation(), home=tmp_path / "bob", listen=()) as bob:
                await sees(bob, 2)
                job = await bob.submit(python_call(counting_on, 40), needs=NEEDS)
                at = killed = ""
                async for event in job.events():
                    if isinstance(event, TaskPlaced):
                        at = event.worker
                    elif isinstance(event, TaskSaved) and not killed:
                        killed = at
                        running[killed].process.kill()
                (result,) = await job
                assert killed not in ("", result.worker)
                assert value_of(result) == (1, 40)


async def test_a_restarted_submitter_goes_on_from_what_it_held(tmp_path: Path) -> None:
    home, state = tmp_path / "bob", tmp_path / "jobs.db"
    async with gate_at(tmp_path) as invitation:
        async with Node.join(invitation(), home=tmp_path / "alice", listen=LISTEN) as alice:
            await alice.worker(limits=MACHINE)
            async with Node.join(invitation(), home=home, listen=(), state=state) as bob:
                job = await bob.submit(python_call(counting_on, 12), needs=NEEDS)
                await anext(x async for x in job.events() if isinstance(x, TaskSaved))
                job_id = job.job_id
        # What its worker had is gone with that, and so is the submitter's process.
        async with Node.join(invitation(), home=tmp_path / "carol", listen=LISTEN) as carol:
            await carol.worker(limits=MACHINE)
            async with Node.join(invitation(), home=home, listen=(), state=state) as bob:
                (result,) = await (await bob.job(job_id))
                assert value_of(result) == (1, 12)
