"""How often what a running task saves is taken: by what it costs the node."""

import sys
from pathlib import Path
from typing import Any, cast

import cloudpickle
import pytest
import trio
from trio.testing import MockClock

from formation_p2p.content.places import UNKNOWN
from formation_p2p.core.identity import PeerId
from formation_p2p.drivers.driver import BlobAccess
from formation_p2p.drivers.process import ProcessDriver
from formation_p2p.drivers.python import PythonDriver
from formation_p2p.drivers.saves import FILE, PAUSE_S, PAUSE_TIMES, POLL_S, Saves
from formation_p2p.workload.core.blob import Blob
from formation_p2p.workload.core.checkpoint import MAX_INLINE_BYTES, inline
from formation_p2p.workload.core.outcome import Succeeded
from formation_p2p.workload.core.process import ProcessSpec
from tests.support.calls import pickled_function
from tests.support.drivers_world import (
    SPOKEN_S,
    ALease,
    Recorder,
    an_execution,
    bare_machine,
    spoken,
)
from tests.support.waiting import in_trio, run

cloudpickle.register_pickle_by_value(sys.modules[__name__])

TAKES_S = 0.15
LARGE = MAX_INLINE_BYTES + 1


class SlowBlobs:
    """A node's, on a machine where to keep one takes so long. `kept_s` is when each was kept. Once
    so many were, the time of the task is up."""

    def __init__(self, enough: int = 0) -> None:
        self.kept_s: list[float] = []
        self._enough = enough

    async def release(self, holder: str) -> None:
        pass

    async def secret(self, secret: Blob, *, owner: PeerId, service: str) -> bytes:
        raise AssertionError("these tasks have no secrets")

    async def add_file(
        self, file: int, size_bytes: int, holder: str, owner: PeerId = UNKNOWN
    ) -> Blob:
        await trio.sleep(TAKES_S)
        self.kept_s.append(trio.current_time())
        if len(self.kept_s) == self._enough:
            spoken(b"")
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
    clock = MockClock()

    class Slow(SlowBlobs):
        async def add_file(self, *_: Any) -> Blob:
            clock.jump(TAKES_S)
            return inline(b"")

    async def story() -> None:
        saves = Saves(Slow().access, "holder", lambda *_: None, lambda *_: None)
        assert await saves.take(tmp_path) == POLL_S
        (tmp_path / FILE).write_bytes(bytes(size))
        assert await saves.take(tmp_path) == pytest.approx(pause_s)

    run(story, clock=clock)


@in_trio
async def test_a_process_that_saves_all_the_time_costs_a_part_of_it(tmp_path: Path) -> None:
    script = f"while :; do truncate -s {LARGE} new; mv new $FORMATION_CHECKPOINT; sleep .01; done"
    blobs = SlowBlobs(enough=3)
    payload = ProcessSpec(("sh", "-c", script)).encode()
    async with an_execution(tmp_path, payload, timeout_s=SPOKEN_S) as execution:
        driver = ProcessDriver(bare_machine())
        driver.blobs = blobs.access
        await driver.run(execution, Recorder())
        await driver.end_lease("lease")
    *pauses, _ = blobs.pauses  # the last is taken once it is over
    assert pauses
    assert min(pauses) >= PAUSE_TIMES * TAKES_S


@in_trio
async def test_a_process_that_saves_by_ending_costs_a_part_of_it(tmp_path: Path) -> None:
    spec = ProcessSpec(("sh", "-c", "truncate -s 1M state; exit 85"), checkpoint_files=("state",))
    blobs = SlowBlobs(enough=2)
    async with an_execution(tmp_path, spec.encode(), timeout_s=SPOKEN_S) as execution:
        driver = ProcessDriver(bare_machine())
        driver.blobs = blobs.access
        await driver.run(execution, Recorder())
        await driver.end_lease("lease")
    assert blobs.pauses
    assert min(blobs.pauses) >= PAUSE_TIMES * TAKES_S


@in_trio
async def test_a_call_that_saves_all_the_time_costs_a_part_of_it(tmp_path: Path) -> None:
    def saving(times: int, size: int) -> None:
        import os
        import time

        place = os.environ["FORMATION_CHECKPOINT"]
        for _ in range(times):
            with open("new", "wb") as file:  # noqa: PTH123
                file.truncate(size)
            os.rename("new", place)  # noqa: PTH104
            time.sleep(0.01)

    blobs = SlowBlobs()
    driver = PythonDriver(bare_machine())
    driver.blobs = blobs.access
    lease = ALease(driver, tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lease.serve)
        arguments = cloudpickle.dumps(((350, LARGE), {}))
        outcome = await lease.outcome(pickled_function(saving), arguments)
        assert isinstance(outcome, Succeeded), outcome
        nursery.cancel_scope.cancel()
    assert blobs.pauses
    assert min(blobs.pauses) >= PAUSE_TIMES * TAKES_S
