"""How often what a running task saves is taken: by what it costs the node."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import cast

import cloudpickle
import pytest
import trio

from formation_p2p.core.identity import PeerId
from formation_p2p.core.workload.blob import Blob
from formation_p2p.core.workload.checkpoint import MAX_INLINE_BYTES, inline
from formation_p2p.core.workload.outcome import Succeeded
from formation_p2p.core.workload.process import ProcessSpec
from formation_p2p.host.blobs.places import UNKNOWN
from formation_p2p.host.drivers.driver import BlobAccess
from formation_p2p.host.drivers.process import ProcessDriver
from formation_p2p.host.drivers.python import PythonDriver
from formation_p2p.host.drivers.saves import FILE, PAUSE_S, PAUSE_TIMES, POLL_S, Saves
from tests.support.calls import pickled_function
from tests.support.drivers_world import ALease, Recorder, an_execution, bare_machine, within
from tests.support.waiting import HANGS_S

cloudpickle.register_pickle_by_value(sys.modules[__name__])

TAKES_S = 0.15
LARGE = MAX_INLINE_BYTES + 1


class SlowBlobs:
    """A node's, on a machine where to keep one takes so long. `kept_s` is when each was kept."""

    def __init__(self) -> None:
        self.kept_s: list[float] = []

    async def release(self, holder: str) -> None:
        pass

    async def add_file(
        self, file: int, size_bytes: int, holder: str, owner: PeerId = UNKNOWN
    ) -> Blob:
        await trio.sleep(TAKES_S)
        self.kept_s.append(trio.current_time())
        return inline(b"")

    async def add(self, content: bytes, holder: str, owner: PeerId = UNKNOWN) -> Blob:
        return await self.add_file(0, len(content), holder, owner)

    @property
    def access(self) -> BlobAccess:
        return cast("BlobAccess", self)  # drivers take nothing else here

    @property
    def pauses(self) -> list[float]:
        """Between the end of each and the beginning of the next."""
        pairs = zip(self.kept_s, self.kept_s[1:], strict=False)
        return [second - first - TAKES_S for first, second in pairs]


@pytest.mark.parametrize(
    ("size", "pause_s"), [(1, PAUSE_S), (LARGE, PAUSE_TIMES * TAKES_S)], ids=["small", "large"]
)
def test_the_pause_is_as_long_as_what_it_follows(tmp_path: Path, size: int, pause_s: float) -> None:
    async def story() -> None:
        saves = Saves(SlowBlobs().access, "holder", lambda *_: None, lambda *_: None)
        assert await saves.take(tmp_path) == POLL_S
        (tmp_path / FILE).write_bytes(bytes(size))
        assert pause_s <= await saves.take(tmp_path) < 10 * pause_s

    within(HANGS_S, story)


def test_a_process_that_saves_all_the_time_costs_a_part_of_it(tmp_path: Path) -> None:
    script = f"while :; do truncate -s {LARGE} new; mv new $FORMATION_CHECKPOINT; sleep .01; done"
    blobs = SlowBlobs()

    async def story() -> None:
        payload = ProcessSpec(("sh", "-c", script)).encode()
        async with an_execution(tmp_path, payload, timeout_s=4) as execution:
            driver = ProcessDriver(bare_machine())
            driver.blobs = blobs.access
            await driver.run(execution, Recorder())
            await driver.end_lease("lease")

    within(HANGS_S, story)
    *pauses, _ = blobs.pauses  # the last is taken once it is over
    assert pauses
    assert min(pauses) >= PAUSE_TIMES * TAKES_S


def test_a_process_that_saves_by_ending_costs_a_part_of_it(tmp_path: Path) -> None:
    spec = ProcessSpec(("sh", "-c", "truncate -s 1M state; exit 85"), checkpoint_files=("state",))
    blobs = SlowBlobs()

    async def story() -> None:
        async with an_execution(tmp_path, spec.encode(), timeout_s=4) as execution:
            driver = ProcessDriver(bare_machine())
            driver.blobs = blobs.access
            await driver.run(execution, Recorder())
            await driver.end_lease("lease")

    within(HANGS_S, story)
    assert blobs.pauses
    assert min(blobs.pauses) >= PAUSE_TIMES * TAKES_S


def test_a_call_that_saves_all_the_time_costs_a_part_of_it(tmp_path: Path) -> None:
    def saving(seconds: float, size: int) -> None:
        import os
        import time

        place = os.environ["FORMATION_CHECKPOINT"]
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            with open("new", "wb") as file:  # noqa: PTH123
                file.truncate(size)
            os.rename("new", place)  # noqa: PTH104
            time.sleep(0.01)

    blobs = SlowBlobs()

    async def story() -> None:
        driver = PythonDriver(bare_machine())
        driver.blobs = blobs.access
        lease = ALease(driver, tmp_path)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lease.serve)
            arguments = cloudpickle.dumps(((4, LARGE), {}))
            outcome = await lease.outcome(pickled_function(saving), arguments)
            assert isinstance(outcome, Succeeded), outcome
            nursery.cancel_scope.cancel()

    within(HANGS_S, story)
    assert blobs.pauses
    assert min(blobs.pauses) >= PAUSE_TIMES * TAKES_S
