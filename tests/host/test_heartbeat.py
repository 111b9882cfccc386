"""A worker that is stopped cannot end its tasks: their supervisors do, once no lease can live."""

import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import trio

from formation_p2p.drivers.heartbeat import BEAT_S, SILENCE_S, Heartbeat
from formation_p2p.leases.core.parameters import LEASE_DEFAULTS
from tests.support.drivers_world import alive
from tests.support.waiting import in_trio, until, wait_until

# A node of one task, that may be silent for so many seconds.
NODE = """
import sys, time
from pathlib import Path
import trio
import formation_p2p.drivers.launch as launch
from formation_p2p.drivers.heartbeat import Heartbeat
from formation_p2p.drivers.process import ProcessDriver
from formation_p2p.drivers.machine import Machine
from formation_p2p.workload.core.process import ProcessSpec
from tests.support.drivers_world import Recorder, an_execution, bare_machine

launch.SILENCE_S = float(sys.argv[2])
beats = sys.argv[4] == "beats"
machine = Machine.found(Path(sys.argv[1]), "required") if sys.argv[3] == "bwrap" else bare_machine()
show = lambda data: print(data.decode(), end="", flush=True)

async def main():
    async with trio.open_nursery() as nursery:
        if beats:
            nursery.start_soon(Heartbeat.of_this_process().run)
        argv = ("sh", "-c", "echo begun; exec sleep 987")
        payload = ProcessSpec(argv).encode()
        async with an_execution(Path(sys.argv[1]), payload, timeout_s=None) as execution:
            print(await ProcessDriver(machine).run(execution, Recorder(show)))

trio.run(main)
"""


class Node:
    def __init__(self, root: Path, silence_s: float, *, beats: bool, around: str = "") -> None:
        how = (str(silence_s), around, "beats" if beats else "does not")
        self.process = subprocess.Popen(
            [sys.executable, "-c", NODE, str(root), *how],
            stdout=subprocess.PIPE,
            cwd=Path.cwd(),
            start_new_session=True,
        )
        try:
            self.task = self._task()
        except BaseException:
            self.close()
            raise

    def _task(self) -> int:
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == b"begun\n"
        wait_until(self._sleepers)  # sh has still to become it
        return self._sleepers()[0]

    def _sleepers(self) -> list[int]:
        found = []
        for each in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.Error):  # it may have ended meanwhile
                found += [each.pid] if each.cmdline() == ["sleep", "987"] else []
        return found

    def last_beat_at(self, beat_ns: int) -> None:
        """It is stopped, and writes no other."""
        (memory,) = (
            fd
            for fd in Path(f"/proc/{self.process.pid}/fd").iterdir()
            if str(fd.readlink()).startswith("/memfd:heartbeat")
        )
        with memory.open("r+b") as file:
            file.write(beat_ns.to_bytes(8, "little"))

    def send_signal(self, number: signal.Signals) -> None:
        os.kill(self.process.pid, number)

    def close(self) -> None:
        self.send_signal(signal.SIGKILL)
        self.process.communicate()


def dead_within(pid: int, seconds: float) -> bool:
    with suppress(AssertionError):
        wait_until(lambda: not alive(pid), seconds)
    return not alive(pid)


# With bubblewrap where it is installed, and without in any case.
@pytest.mark.parametrize("around", ["", "bwrap"] if shutil.which("bwrap") else [""])
def test_the_tasks_of_a_node_that_is_stopped_end_once_its_leases_have(
    tmp_path: Path, around: str
) -> None:
    node = Node(tmp_path, 60, beats=True, around=around)
    try:
        node.send_signal(signal.SIGSTOP)
        node.last_beat_at(time.clock_gettime_ns(time.CLOCK_BOOTTIME))
        assert not dead_within(node.task, 1.5)
        node.last_beat_at(1)  # which the machine began a minute ago, or longer
        wait_until(lambda: not alive(node.task))
        node.send_signal(signal.SIGCONT)
        assert node.process.stdout is not None
        assert b"stood still" in node.process.stdout.readline()
    finally:
        node.close()


def test_a_node_that_never_promised_to_beat_is_not_missed(tmp_path: Path) -> None:
    node = Node(tmp_path, 0.5, beats=False)
    try:
        node.send_signal(signal.SIGSTOP)
        assert not dead_within(node.task, 2.0)
    finally:
        node.close()
    wait_until(lambda: not alive(node.task))


def test_silence_is_longer_than_any_lease_lives() -> None:
    assert LEASE_DEFAULTS.lease_s + BEAT_S <= SILENCE_S


@in_trio
async def test_the_beat_is_read_and_not_written_and_ends_with_the_last_who_beats() -> None:
    heartbeat = Heartbeat()
    reader = heartbeat.open()

    def beat_ns() -> int:
        return int.from_bytes(os.pread(reader, 8, 0), "little")

    assert beat_ns() == 0
    began_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(heartbeat.run)
        with trio.CancelScope() as second:
            async with trio.open_nursery() as inner:
                inner.start_soon(heartbeat.run)
                await until(beat_ns)
                first_ns = beat_ns()
                assert began_ns <= first_ns <= time.clock_gettime_ns(time.CLOCK_BOOTTIME)
                second.cancel()
        await until(lambda: beat_ns() > first_ns)
        nursery.cancel_scope.cancel()
    assert beat_ns() == 0
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.pwrite(reader, b"\xff" * 8, 0)
    os.close(reader)
