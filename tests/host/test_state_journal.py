"""What is told is stored first and done afterwards, in order; on a disk that fails, not at all."""

import contextlib
import operator
import os
import resource
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
import trio.lowlevel

from formation_p2p.assembly import PeerEffect
from formation_p2p.core.effects import Effect
from formation_p2p.core.errors import StateError
from formation_p2p.core.units import KIB
from formation_p2p.jobs.core.job import Job
from formation_p2p.jobs.core.job_events import (
    EmitJobEvent,
    JobEnded,
    TaskBegan,
    TaskPrinted,
    TaskSaved,
)
from formation_p2p.leases.core.messages import ResultAck
from formation_p2p.leases.core.session import Send
from formation_p2p.state.journal import Journal, JournalParameters
from formation_p2p.state.state import Retention, State
from formation_p2p.workload.core.checkpoint import Checkpoint, inline
from tests.support.state_world import (
    ALICE,
    BOB,
    BOBS,
    all_done,
    hold,
    job_of,
    let_go,
    placed,
    reported,
    succeeded,
)
from tests.support.waiting import AT_ONCE_S, in_trio, until

# No story here takes a second, unless a disk fails in it.
STORY_S = 60.0


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "jobs.db"


def ack(job: Job, *tasks: int) -> Send:
    ids = tuple(f"{job.tasks[n].task_id}#1" for n in tasks)
    return Send(BOBS, ResultAck("lease", ids), cause="test")


def printed(job: Job, n: int = 0) -> EmitJobEvent:
    return reported(job, TaskPrinted(job.tasks[n].task_id, False, b"x", ALICE))[0]


class Disk(State):
    """One that can be held up, and that fails as often as it is told to."""

    def __init__(self, path: Path, retention: Retention | None = None) -> None:
        super().__init__(path, retention)
        self.batches: list[list[Effect]] = []
        self.broken = False
        self.tries = 0
        self.free = threading.Event()
        self.free.set()

    def write(self, effects: Iterable[Effect]) -> None:
        self.tries += 1
        assert self.free.wait(STORY_S)
        if self.broken:
            raise StateError(f"{self.path}: the disk is full; make room")
        batch = list(effects)
        super().write(batch)
        self.batches.append(batch)


@dataclass
class Shell:
    """What of it a journal sees. `stored` is what the disk had when each effect was done,
    `rounds` how much was done by the end of each round."""

    state: State
    done: list[PeerEffect] = field(default_factory=list)
    stored: list[int] = field(default_factory=list)
    rounds: list[int] = field(default_factory=list)
    failures: list[StateError] = field(default_factory=list)
    parameters: JournalParameters | None = None

    def __post_init__(self) -> None:
        self.journal = Journal(self.state, self.failures.append, self.parameters)

    def put(self, *effects: PeerEffect) -> None:
        for effect in effects:
            self.journal.put(effect, self.perform, self.performed)

    def perform(self, effect: PeerEffect) -> None:
        self.done.append(effect)
        self.stored.append(sum(each.ended.succeeded for each in self.state.summaries()))

    def performed(self) -> None:
        self.rounds.append(len(self.done))

    async def until(self, true: Callable[[], bool]) -> None:
        await until(true, STORY_S)

    async def until_done(self, count: int) -> None:
        await self.until(lambda: len(self.done) >= count)


@contextlib.contextmanager
def shell_of(state: State, parameters: JournalParameters | None = None) -> Iterator[Shell]:
    shell = Shell(state, parameters=parameters)
    try:
        yield shell
    finally:
        shell.journal.close()
        state.close()


@pytest.fixture
def disk(path: Path) -> Disk:
    return Disk(path)


# -- in order, and stored first --------------------------------------------------------------------


@in_trio
async def test_all_is_done_in_its_order_and_stored_before(disk: Disk) -> None:
    job = job_of(3)
    disk.save_job(job)
    effects: list[PeerEffect] = [
        hold(),
        *reported(job, placed(job, 0), TaskBegan(job.tasks[0].task_id, BOB)),
        printed(job),
        *reported(job, succeeded(job, 0)),
        ack(job, 0),
        let_go(),
    ]
    with shell_of(disk) as shell:
        shell.put(*effects)
        await shell.until_done(len(effects))
        assert shell.done == effects
        # Whoever hears of the result, or forgets it, does so when it is on the disk.
        assert shell.stored[effects.index(ack(job, 0)) - 1] == 1
        assert shell.failures == []


@in_trio
async def test_what_needs_no_disk_waits_only_behind_what_does(disk: Disk) -> None:
    kept, passing = job_of(2), job_of(2, "b" * 16)
    disk.save_job(kept)
    with shell_of(disk) as shell:
        at_once: list[PeerEffect] = [*all_done(passing), printed(kept), ack(passing, 0, 1)]
        shell.put(*at_once)
        assert shell.done == at_once  # without another thread
        disk.free.clear()
        shell.put(*reported(kept, succeeded(kept, 0)), ack(passing, 1), printed(kept))
        assert shell.done == at_once  # what comes behind something else waits for that
        disk.free.set()
        await shell.until_done(len(at_once) + 3)
        assert disk.batches[0][0] == reported(kept, succeeded(kept, 0))[0]


@in_trio
async def test_what_gathers_while_the_disk_is_busy_is_stored_at_once(disk: Disk) -> None:
    job = job_of(1000)
    disk.save_job(job)
    with shell_of(disk) as shell:
        disk.free.clear()
        shell.put(*reported(job, placed(job, 0)))
        await shell.until(lambda: disk.tries == 1)
        for n in range(1, 1000):
            shell.put(*reported(job, placed(job, n)))
        disk.free.set()
        await shell.until_done(1000)
        assert [len(batch) for batch in disk.batches] == [1, 999]
        # Whoever hands on what was done does so once for each of them.
        await shell.until(lambda: shell.rounds == [1, 1000])


@in_trio
async def test_a_fault_with_one_effect_keeps_no_other_from_being_done(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    job = job_of(2)
    disk.save_job(job)
    with shell_of(disk) as shell:

        def fail(effect: PeerEffect) -> None:
            raise RuntimeError("a fault of ours")

        disk.free.clear()
        shell.journal.put(reported(job, succeeded(job, 0))[0], fail, shell.performed)
        shell.put(*reported(job, succeeded(job, 1)))
        disk.free.set()
        await shell.until_done(1)
        assert "please report this" in caplog.text


@in_trio
async def test_what_is_old_is_deleted_when_a_job_has_ended(path: Path) -> None:
    disk = Disk(path, Retention(jobs=1))
    with shell_of(disk, JournalParameters(prune_every_s=0.05)) as shell:
        for n in range(4):
            job = job_of(1, f"{n:016d}")
            disk.save_job(job)
            shell.put(*all_done(job))
            await shell.until_done(3 * (n + 1))
        await shell.until(lambda: len(disk.summaries()) == 1)


def hang(disk: Disk) -> None:
    """The loop is told nothing meanwhile."""
    while not disk.batches:
        time.sleep(0.001)
    time.sleep(0.2)


@in_trio
async def test_what_nobody_was_told_of_yet_is_not_deleted(path: Path) -> None:
    disk = Disk(path, Retention(jobs=0))
    parameters = JournalParameters(prune_every_s=0.05, settle_s=0.02)
    with shell_of(disk, parameters) as shell:
        job = job_of(1)
        disk.save_job(job)
        shell.put(*all_done(job))
        hang(disk)
        assert shell.done == []
        assert [each.job_id for each in disk.summaries()] == [job.job_id]
        await shell.until_done(3)
        await shell.until(lambda: disk.summaries() == ())


# -- a disk that fails -----------------------------------------------------------------------------


@in_trio
async def test_while_the_disk_fails_nothing_is_done_and_then_all_of_it(
    disk: Disk, caplog: pytest.LogCaptureFixture
) -> None:
    job = job_of(4)
    disk.save_job(job)
    with shell_of(disk, JournalParameters(retry_s=0.02)) as shell:
        disk.broken = True
        effects: list[PeerEffect] = [*reported(job, succeeded(job, 0)), ack(job, 0), printed(job)]
        shell.put(*effects)
        await shell.until(lambda: bool(shell.failures))
        shell.put(*reported(job, succeeded(job, 1)), ack(job, 1))
        tries = disk.tries
        await shell.until(lambda: disk.tries > tries + 2)
        assert shell.done == []  # no worker forgets a result, and none is reported
        assert len(shell.failures) == 1  # told once, however often it is tried
        disk.broken = False
        await shell.until_done(5)
        assert shell.done[:3] == effects
        needed = (1, 1, 1, 2, 2)  # on the disk before each of them
        assert all(map(operator.ge, shell.stored, needed)), shell.stored
        disk.broken = True
        shell.put(*reported(job, succeeded(job, 2)))
        await shell.until(lambda: len(shell.failures) == 2)  # again, since it had gone well
        disk.broken = False
        await shell.until_done(6)
    assert "tried again until it can be written" in caplog.text
    assert "can be written again" in caplog.text


@in_trio
async def test_output_that_waits_is_bounded(disk: Disk) -> None:
    job = job_of(1)
    disk.save_job(job)
    with shell_of(disk, JournalParameters(max_output_bytes=11 * KIB)) as shell:
        disk.free.clear()
        last = reported(job, succeeded(job, 0))
        shell.put(*reported(job, placed(job, 0)), *(printed(job) for _ in range(50)), *last)
        disk.free.set()
        await shell.until(lambda: shell.done[-1:] == last)
        assert len(shell.done) == 12


def saved(job: Job, n: int, number: int) -> EmitJobEvent:
    checkpoint = Checkpoint(number, inline(b"x"), b"x")
    return reported(job, TaskSaved(job.tasks[n].task_id, checkpoint, ()))[0]


@in_trio
async def test_checkpoints_that_wait_are_bounded(disk: Disk) -> None:
    """A worker that lies may tell of one after the other, of 64 KiB each."""
    job = job_of(2)
    disk.save_job(job)
    with shell_of(disk, JournalParameters(max_saved=4)) as shell:
        for number in (0, 100):
            disk.free.clear()
            shell.put(*reported(job, placed(job, 0)))
            await until(lambda: disk.tries > len(disk.batches))
            shell.put(*(saved(job, 0, number + n) for n in range(1, 51)))
            shell.put(*(saved(job, 1, number + n) for n in range(1, 3)))
            disk.free.set()
            await shell.until_done(7)
            shell.put(*reported(job, placed(job, 1)))
            await shell.until_done(8)
            assert len(shell.done) == 8
            assert shell.done[4] == saved(
                job, 0, number + 50
            )  # the newest, and before what follows
            shell.done.clear()


@in_trio
async def test_more_than_can_wait_ends_this_life_and_acknowledges_nothing(disk: Disk) -> None:
    job = job_of(100)
    disk.save_job(job)
    with shell_of(disk, JournalParameters(max_waiting=20)) as shell:
        disk.free.clear()
        for n in range(100):
            shell.put(*reported(job, placed(job, n)))
        (error,) = shell.failures
        assert "formation resume" in str(error)
        shell.put(*reported(job, succeeded(job, 0)), ack(job, 0))
        disk.free.set()
        await trio.to_thread.run_sync(shell.journal.close)  # until its thread has ended
        await trio.lowlevel.checkpoint()
        assert ack(job, 0) not in shell.done


# -- how an incarnation ends ----------------------------------------------------------------------


@in_trio
async def test_leaving_stores_what_was_told_and_nothing_that_is_told_later(disk: Disk) -> None:
    job = job_of(3)
    disk.save_job(job)
    with shell_of(disk) as shell:
        disk.free.clear()
        shell.put(*reported(job, succeeded(job, 0)), ack(job, 0))
        closing = threading.Thread(target=shell.journal.close)
        closing.start()
        await shell.until(lambda: shell.journal.is_closed)
        late = reported(job, succeeded(job, 1), JobEnded(1, 0, 0, 2))
        shell.put(*late, ack(job, 1), hold(), let_go())
        assert shell.done == late  # heard by nobody any more, and acknowledged by nobody
        disk.free.set()
        await trio.to_thread.run_sync(closing.join)
        await shell.until_done(4)
        assert shell.done[2:] == [*reported(job, succeeded(job, 0)), ack(job, 0)]
        (summary,) = disk.summaries()
        assert (summary.ended.succeeded, summary.ended_unix_s) == (1, None)


@in_trio
async def test_leaving_does_not_wait_for_a_disk_that_fails(disk: Disk) -> None:
    job = job_of(1)
    disk.save_job(job)
    with shell_of(disk) as shell:
        disk.broken = True
        shell.put(*reported(job, succeeded(job, 0)), ack(job, 0))
        await shell.until(lambda: bool(shell.failures))
        with trio.fail_after(AT_ONCE_S):
            await trio.to_thread.run_sync(shell.journal.close)
        assert shell.done == []


async def incarnation(shell: Shell, disk: Disk, job: Job, first: bool) -> None:
    if first:
        disk.broken = True
        shell.put(*reported(job, succeeded(job, 0)))
        await shell.until(lambda: bool(shell.failures))
        shell.put(*reported(job, succeeded(job, 1)))
    else:
        shell.journal.begin_incarnation()
        disk.broken = False
        shell.put(printed(job))
        assert shell.done == [printed(job)]  # nothing is in its way
        shell.put(*reported(job, succeeded(job, 2)))
        await shell.until_done(2)


def test_a_new_shell_is_not_kept_waiting_by_what_the_last_one_left(disk: Disk) -> None:
    job = job_of(3)
    disk.save_job(job)
    with shell_of(disk) as shell:
        trio.run(incarnation, shell, disk, job, True)
        trio.run(incarnation, shell, disk, job, False)
        assert shell.done[1:] == reported(job, succeeded(job, 2))
        assert list(disk.history(job.job_id)) == [succeeded(job, 2)]


def test_what_is_being_stored_while_a_new_life_begins_is_there_when_it_reads(disk: Disk) -> None:
    """What came later would be unknown to it, and undo what it does."""
    job = job_of(1)
    disk.save_job(job)
    with shell_of(disk) as shell:
        disk.free.clear()
        trio.run(put_in, shell, reported(job, succeeded(job, 0)))
        while not disk.tries:
            time.sleep(0.001)
        beginning = threading.Thread(target=shell.journal.begin_incarnation)
        beginning.start()
        beginning.join(0.05)
        assert beginning.is_alive()
        disk.free.set()
        beginning.join(STORY_S)
        assert list(disk.history(job.job_id)) == [succeeded(job, 0)]


async def put_in(shell: Shell, effects: list[EmitJobEvent]) -> None:
    shell.put(*effects)


# -- for real --------------------------------------------------------------------------------------


@dataclass
class SmallDisk:
    folder: Path
    make_room: Callable[[], None]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[SmallDisk]:
    """A file system of 1 MiB, or where none can be mounted, a limit to the size of files."""
    mount = ("mount", "-t", "tmpfs", "-o", "size=1m", "formation-test", str(tmp_path))
    mounted = os.geteuid() == 0 and subprocess.run(mount, check=False, timeout=10).returncode == 0
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def make_room() -> None:
        if mounted:
            bigger = ("mount", "-o", "remount,size=64m", str(tmp_path))
            subprocess.run(bigger, check=True, timeout=10)
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    if not mounted:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1024 * 1024, hard))
    try:
        yield SmallDisk(tmp_path, make_room)
    finally:
        if mounted:
            subprocess.run(("umount", "-l", str(tmp_path)), check=True, timeout=10)
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_job_for_which_there_is_no_room_is_refused_and_others_stay(small_disk: SmallDisk) -> None:
    state = State(small_disk.folder / "jobs.db")
    kept = job_of(10)
    state.save_job(kept)
    large = job_of(100, "b" * 16, size=50_000)
    with pytest.raises(StateError, match=r"jobs\.db.*make room"):
        state.save_job(large)
    assert not state.is_in_flight(large.job_id)
    state.write(
        reported(kept, placed(kept, 0), succeeded(kept, 0))
    )  # there is room for little things
    small_disk.make_room()
    state.save_job(large)
    state.close()
    state = State(state.path)
    jobs, _ = state.load(ALICE)
    assert [saved.job for saved in jobs] == [kept, large]
    state.close()


@in_trio
async def test_a_disk_that_fills_up_holds_back_what_it_cannot_store(small_disk: SmallDisk) -> None:
    state = State(small_disk.folder / "jobs.db")
    job = job_of(200)
    state.save_job(job)
    with shell_of(state, JournalParameters(retry_s=0.05)) as shell:
        for n in range(200):
            shell.put(*reported(job, placed(job, n), succeeded(job, n, b"r" * 20_000)), ack(job, n))
            await trio.sleep(0.001)
            if shell.failures:
                break
        await shell.until(lambda: bool(shell.failures))
        assert "make room" in str(shell.failures[0])
        await trio.sleep(0.05)
        acknowledged = [effect for effect in shell.done if isinstance(effect, Send)]
        (summary,) = state.summaries()
        assert 0 < len(acknowledged) <= summary.ended.succeeded < n + 1
        small_disk.make_room()
        await shell.until_done(3 * (n + 1))
        (summary,) = state.summaries()
        assert summary.ended.succeeded == n + 1
