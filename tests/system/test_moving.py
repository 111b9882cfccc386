"""Tasks that move on real nodes: as their submitter asks, and as their worker leaves."""

import sys
import time
from collections.abc import Generator
from pathlib import Path

import cloudpickle
import pytest

from formation_p2p import (
    InvalidInput,
    Limits,
    Node,
    ProcessResult,
    ProcessSpec,
    RetryReason,
    TaskPlaced,
    TaskPrinted,
    TaskRetried,
    TaskSaved,
    value_of,
)
from formation_p2p.core.units import MIB
from tests.support.loopback import LISTEN
from tests.support.network import gate_at, sees
from tests.support.nodes import OpenNode

# As a script's own functions: interpreters need not import this module, and all that it imports.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

NEEDS = "cpu=0.5,memory=128MiB"
MACHINE = Limits(cpu_milli=1000, memory_bytes=1024 * MIB)
# It saves when it is asked to end, and once more by itself.
SAVES = """
case $(cat state 2> /dev/null) in
    half) echo most > state; exit 85;;
    most) printf done; exit;;
esac
trap 'echo half > state; exit 85' TERM
echo ready
while :; do sleep 0.1; done
"""


def counting(last: int | None, upto: int) -> Generator[int, None, tuple[int, int]]:
    """Where it began, and where it ended. It comes to an end only where it goes on."""
    first = last or 0
    for number in range(first, upto):
        yield number + 1
        while not first:
            time.sleep(0.1)
            yield 1
    return first, upto


def not_a_generator(last: None) -> None:
    pass


async def test_tasks_go_on_elsewhere_as_they_are_asked_to(tmp_path: Path) -> None:
    async with (
        gate_at(tmp_path) as invitation,
        Node.join(invitation(), home=tmp_path / "alice", listen=LISTEN) as alice,
        Node.join(invitation(), home=tmp_path / "carol", listen=LISTEN) as carol,
        OpenNode.join(invitation(), home=tmp_path / "bob", listen=()) as bob,
    ):
        workers = {each.peer_id: each for each in (alice, carol)}
        for each in workers.values():
            await each.worker(limits=MACHINE)
        await sees(bob, 2)
        with pytest.raises(InvalidInput, match="yields nothing"):
            await bob.submit_steps(not_a_generator)  # type: ignore[arg-type]
        job = await bob.submit_steps(counting, 30, needs=NEEDS)
        moved = second = None
        async for event in job.events():
            if isinstance(event, TaskSaved) and moved is None:
                job.move()
            elif isinstance(event, TaskRetried) and event.reason is RetryReason.MOVED:
                moved = event
            elif isinstance(event, TaskPlaced) and second is None and moved is not None:
                second = event
        assert moved is not None
        assert not moved.counts
        assert second is not None
        assert second.worker != moved.attempt.worker
        (result,) = await job
        assert value_of(result) == (1, 30)

        # A process is asked to end by SIGTERM. Its worker leaves.
        process = ProcessSpec(("sh", "-c", SAVES), checkpoint_files=("state",))
        job = await bob.submit(process, needs=NEEDS)
        events = job.events()
        ready = await anext(each async for each in events if isinstance(each, TaskPrinted))
        await workers[ready.worker].vacate()
        (result,) = await job
        assert result.worker != ready.worker
        assert ProcessResult.decode(result.result).stdout_tail == b"done"
