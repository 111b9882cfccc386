"""What tasks save on real workers, and how they go on from there: tried again, and elsewhere."""

import sys
from pathlib import Path

import cloudpickle

from formation_p2p import (
    Limits,
    ProcessResult,
    ProcessSpec,
    checkpoint,
    python_call,
    restored,
    value_of,
)
from formation_p2p.core.units import MIB
from tests.support.network import small_network

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


async def test_what_failed_goes_on_from_what_it_had_saved(tmp_path: Path) -> None:
    async with small_network(tmp_path) as network:
        bob = network.bob
        job = await bob.submit(ProcessSpec(("sh", "-c", SAVES)), needs=NEEDS, attempts=2)
        (result,) = await job
        assert ProcessResult.decode(result.result).stdout_tail == b"half"
        job = await bob.submit(python_call(counting, 4, 2), needs=NEEDS, attempts=2)
        (result,) = await job
        assert value_of(result) == (3, 4)
