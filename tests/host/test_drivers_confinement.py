"""What holds a task: memory, cores, control groups, and the death of the node or of its
supervisor. Where both kinds of machine can do it, it is tried on both."""

import fcntl
import os
import re
import signal
import stat
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import cloudpickle
import psutil
import pytest
import trio

from formation_p2p.core.units import MIB
from formation_p2p.drivers import supervisor
from formation_p2p.drivers.core.limits import TaskLimits
from formation_p2p.drivers.driver import Driver, LeaseDriver
from formation_p2p.drivers.ending import Ending, read_ending
from formation_p2p.drivers.groups import Groups, ProcessGroup, _place
from formation_p2p.drivers.machine import MAX_COUNTED, Cores, Machine
from formation_p2p.drivers.process import ProcessDriver
from formation_p2p.drivers.python import PythonDriver
from formation_p2p.drivers.scratch import ScratchFolders, clear_scratch, scratch_folder
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome, Succeeded, Usage
from formation_p2p.workload.core.process import ProcessResult, ProcessSpec
from tests.support.calls import pickled_function
from tests.support.drivers_world import (
    DAEMON,
    ALease,
    Recorder,
    alive,
    an_execution,
    bare_machine,
    holds_nothing,
    open_descriptors,
    within,
)
from tests.support.waiting import HANGS_S, in_trio, until

PYTHON = (sys.executable, "-I", "-S", "-c")


@pytest.fixture(params=["bare", "as found"])
def machine(request: pytest.FixtureRequest) -> Machine:
    return bare_machine() if request.param == "bare" else Machine.found()


def run(machine: Machine, root: Path, *argv: str, memory_bytes: int = 256 * MIB) -> Outcome:
    outcomes: list[Outcome] = []

    async def story() -> None:
        payload = ProcessSpec(argv).encode()
        async with an_execution(root, payload, memory_bytes=memory_bytes) as execution:
            driver = ProcessDriver(machine)
            outcomes.append(await driver.run(execution, Recorder()))
            await driver.end_lease("lease")

    within(HANGS_S, story)
    return outcomes[0]


# -- memory ---------------------------------------------------------------------------------


def test_a_task_that_uses_more_memory_than_it_leased_is_stopped(
    machine: Machine, tmp_path: Path
) -> None:
    program = "import time; held = [b'x' * 2**20 for _ in range(200)]; time.sleep(60)"
    outcome = run(machine, tmp_path, *PYTHON, program, memory_bytes=128 * MIB)
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.MEMORY
    assert outcome.message == "stopped at its memory limit of 128MiB; ask for more memory"


def test_memory_counts_over_all_that_a_task_started(machine: Machine, tmp_path: Path) -> None:
    # Each holds 60 MiB, orphans all, in sessions of their own.
    child = "import os, time; os.setsid(); held = b'x' * (60 * 2**20); time.sleep(60)"
    program = f"import os\nfor _ in range(4):\n if os.fork() == 0:\n  {child}\nos.wait()"
    outcome = run(machine, tmp_path, *PYTHON, program, memory_bytes=160 * MIB)
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.MEMORY


def test_memory_that_processes_share_counts_once(machine: Machine, tmp_path: Path) -> None:
    program = (
        "import os, time\nheld = b'x' * (80 * 2**20)\n"
        "for _ in range(4):\n if os.fork() == 0:\n  time.sleep(1); os._exit(0)\n"
        "for _ in range(4): os.wait()"
    )
    outcome = run(machine, tmp_path, *PYTHON, program, memory_bytes=160 * MIB)
    assert isinstance(outcome, Succeeded), outcome


def test_a_process_that_ends_while_memory_is_counted_counts_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forks = {1001, 1002, 1003}  # which share the 80 MiB of their parent, and end meanwhile
    monkeypatch.setattr(
        supervisor, "processes", lambda: [(1000, os.getpid()), *((pid, 1000) for pid in forks)]
    )
    looked_into: list[str] = []

    def read_proc(path: str) -> bytes:
        pid, what = int(path.split("/")[2]), path.split("/")[3]
        if what == "smaps_rollup":
            looked_into.append(path)
            return b"" if pid in forks else b"Pss_Anon: %d kB\n" % (20 * 1024)
        return b"" if pid in forks and looked_into else b"RssAnon: %d kB\n" % (80 * 1024)

    monkeypatch.setattr(supervisor, "read_proc", read_proc)
    unnamed = supervisor.Unnamed(in_sandbox=False)
    assert supervisor.memory_in_use(400 * MIB, [], unnamed) == 320 * MIB  # for each, as it is less
    assert supervisor.memory_in_use(160 * MIB, [], unnamed) == 20 * MIB


def test_one_allocation_far_past_the_limit_is_refused_at_once(
    machine: Machine, tmp_path: Path
) -> None:
    outcome = run(machine, tmp_path, *PYTHON, "b'x' * 2**33", memory_bytes=64 * MIB)
    assert isinstance(outcome, Failed)
    assert outcome.message.endswith("MemoryError")


# -- cores ----------------------------------------------------------------------------------


def test_tasks_share_a_core_only_when_all_are_taken() -> None:
    cores = Cores([0, 1, 2, 3])
    assert cores.take(2) == (0, 1)
    assert cores.take(1) == (2,)
    assert cores.take(2) == (0, 3)
    cores.give_back((0, 1))
    assert cores.take(1) == (1,)
    assert cores.take(99) == (0, 1, 2, 3)


def test_workers_of_one_machine_take_different_cores() -> None:
    name = f"test-cores-{os.getpid()}"
    ours, others = Cores([0, 1, 2], name), Cores([0, 1, 2], name)
    assert ours.take(1) == (0,)
    assert others.take(1) == (1,)
    assert ours.take(2) == (0, 2)  # better with our own task than with that of others
    assert others.take(3) == (0, 1, 2)  # all it may have
    ours.give_back((0, 2))
    ours.give_back((0,))
    others.give_back((0, 1, 2))
    assert ours.take(2) == (0, 2)


def test_tasks_of_many_workers_are_spread_evenly_over_the_cores_of_a_machine() -> None:
    name = f"test-even-{os.getpid()}"
    workers = [Cores([0, 1], name) for _ in range(6)]
    assert [each.take(1) for each in workers] == 3 * [(0,), (1,)]
    workers[1].give_back((1,))
    workers[3].give_back((1,))
    assert [workers[5].take(1), workers[4].take(1), workers[3].take(1)] == [(1,), (1,), (0,)]


def test_past_the_number_that_is_counted_each_worker_goes_by_its_own_tasks() -> None:
    name = f"test-full-{os.getpid()}"
    others, ours = Cores([0, 1], name), Cores([0, 1], name)
    for _ in range(2 * MAX_COUNTED):
        others.take(1)
    assert [ours.take(1), ours.take(1), ours.take(2)] == [(0,), (1,), (0, 1)]
    ours.give_back((0, 1))
    others.give_back((1,))
    assert ours.take(1) == (1,)


def test_where_no_socket_can_say_so_tasks_have_cores_all_the_same() -> None:
    assert Cores([0, 1], "x" * 200).take(2) == (0, 1)


def test_a_task_runs_on_as_many_cores_as_it_leased_and_gives_them_back(
    machine: Machine, tmp_path: Path
) -> None:
    program = "import os; print(len(os.sched_getaffinity(0)), os.nice(0) > 0)"
    for _ in range(3):
        outcome = run(machine, tmp_path, *PYTHON, program)
        assert isinstance(outcome, Succeeded)
        assert ProcessResult.decode(outcome.result).stdout_tail == b"1 True\n"
    assert set(machine.cores.tasks.values()) == {0}


# -- whoever dies ---------------------------------------------------------------------------

NODE = """
import multiprocessing, sys, time, trio
from pathlib import Path
import cloudpickle
from tests.support.calls import pickled_function
from tests.support.drivers_world import DAEMON, ALease, Recorder, an_execution, bare_machine
from formation_p2p.drivers.process import ProcessDriver
from formation_p2p.drivers.python import PythonDriver
from formation_p2p.workload.core.process import ProcessSpec
from tests.support.waiting import HANGS_S, until

root = Path(sys.argv[1])

def call(daemon, program):
    import os, subprocess, sys, time
    subprocess.run([sys.executable, "-c", program, daemon])
    open(os.path.join(os.path.dirname(daemon), "python"), "w").write(str(os.getpid()))
    time.sleep(600)

async def main():
    script = f"echo $$ > {root}/process; {sys.executable} -c '{DAEMON}' {root}/daemon; sleep 600"
    spec = ProcessSpec(("sh", "-c", script)).encode()
    arguments = cloudpickle.dumps(((f"{root}/python-daemon", DAEMON), {}))
    lease = ALease(PythonDriver(bare_machine()), root)
    async with (
        an_execution(root, spec, timeout_s=None) as one,
        trio.open_nursery() as nursery,
    ):
        nursery.start_soon(ProcessDriver(bare_machine()).run, one, Recorder())
        nursery.start_soon(lease.serve)
        nursery.start_soon(lease.outcome, pickled_function(call), arguments)
        await until(
            lambda: len(list(root.glob("*daemon"))) >= 2 and (root / "python").exists(), 60
        )
        # A copy of the node with all of its sockets, as multiprocessing makes them.
        copy = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        copy.start()
        print(copy.pid, flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


def test_a_killed_node_takes_its_tasks_and_their_daemons_with_it(tmp_path: Path) -> None:
    node = subprocess.Popen(
        [sys.executable, "-c", NODE, str(tmp_path)], stdout=subprocess.PIPE, cwd=Path.cwd()
    )
    assert node.stdout is not None
    copy = int(node.stdout.readline())
    try:
        names = ("process", "daemon", "python", "python-daemon")
        pids = {name: int((tmp_path / name).read_text()) for name in names}
        assert all(alive(pid) for pid in pids.values())
        node.kill()
        node.wait()

        async def story() -> None:
            for pid in pids.values():
                await until(lambda pid=pid: not alive(pid))  # type: ignore[misc]

        within(HANGS_S, story)
    finally:
        os.kill(copy, signal.SIGKILL)
        node.kill()
        node.stdout.close()


def test_a_node_that_forks_at_the_worst_moment_still_sees_its_tasks_end_and_can_kill_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[int] = []
    start = trio.lowlevel.open_process

    async def start_and_fork(*args: Any, **options: Any) -> trio.Process:
        started = await start(*args, **options)
        # Now the node holds both ends of everything, and so does the copy.
        copies.append(os.fork())
        if copies[-1] == 0:
            signal.pause()
            os._exit(0)
        return started

    monkeypatch.setattr(trio.lowlevel, "open_process", start_and_fork)
    crash = (pickled_function(os._exit), cloudpickle.dumps(((7,), {})))
    sleep = ProcessSpec(("sleep", "600")).encode()

    async def story() -> None:
        lease = ALease(PythonDriver(bare_machine()), tmp_path)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lease.serve)
            outcome = await lease.outcome(*crash)
            assert outcome == Failed(FailureKind.EXIT, "ended with exit code 7")
            await lease.end()
        async with an_execution(tmp_path, sleep) as execution:
            with trio.move_on_after(0.2):
                await ProcessDriver(bare_machine()).run(execution, Recorder())

    try:
        within(HANGS_S, story)
    finally:
        for copy in copies:
            os.kill(copy, signal.SIGKILL)
            os.waitpid(copy, 0)


def test_a_task_that_kills_its_supervisor_dies_with_it(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    script = f"echo $$ > {pid}; kill -9 $PPID; sleep 600"
    outcome = run(bare_machine(), tmp_path, "sh", "-c", script)
    assert outcome == Failed(
        FailureKind.DRIVER,
        "its supervisor ended without a word",
        ProcessResult(-signal.SIGKILL).encode(),
    )

    async def story() -> None:
        await until(lambda: not alive(int(pid.read_text())))

    within(HANGS_S, story)


@pytest.mark.parametrize(
    ("written", "ending"),
    [
        (b"exit 3", Ending("exit", 3)),
        (b"signal 11", Ending("signal", 11)),
        (b"exit 3\nused 52428800 1250\n", Ending("exit", 3, used=Usage(52428800, 1250))),
        (b"exit 3\nused 52428800\n", Ending("exit", 3)),
        (b"exit 3\nused -1 " + b"1" * 8000, Ending("exit", 3)),
        (b"silent 0\n", Ending("silent")),
        (b"memory 734003200", Ending("memory", 734003200)),
        (b"processes 4097", Ending("processes", 4097)),
        (b"start no: such\nexit 127", Ending("start", problem="no: such")),
        (b"", Ending("lost")),
        (b"exit", Ending("lost")),
        (b"exit 256", Ending("lost")),
        (b"exit -1", Ending("lost")),
        (b"signal 65", Ending("lost")),
        (b"exit " + b"1" * 8000, Ending("lost")),
        (b"\xff\xfe 1", Ending("lost")),
    ],
)
def test_the_word_of_a_supervisor_is_checked(written: bytes, ending: Ending) -> None:
    assert read_ending(written) == ending


@in_trio
async def test_a_process_that_keeps_changing_its_number_is_caught(tmp_path: Path) -> None:
    hops = tmp_path / "hops"
    # Each lives for the time it takes to fork, is an orphan from then on, and has the lock.
    hopper = (
        "import fcntl, os\n"
        f"hops = open({str(hops)!r}, 'a')\n"
        "fcntl.flock(hops, fcntl.LOCK_EX)\n"
        "while True:\n"
        " if os.fork(): os._exit(0)\n"
        " os.write(hops.fileno(), b'.')\n"
    )
    script = (
        f'{sys.executable} -I -S -c "$HOP"; until [ $(wc -c <{hops}) -gt 10 ]; do sleep 0.02; done'
    )
    payload = ProcessSpec(("sh", "-c", script), env={"HOP": hopper}).encode()
    async with an_execution(tmp_path, payload) as execution:
        outcome = await ProcessDriver(bare_machine()).run(execution, Recorder())
        assert isinstance(outcome, Succeeded)
    assert hops.stat().st_size > 10
    with hops.open() as file:

        def none_has_the_lock() -> bool:
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            return False

        await until(none_has_the_lock)


@in_trio
async def test_a_failed_start_gives_back_all_that_it_took(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = open_descriptors()
    monkeypatch.setattr(sys, "executable", "/no/interpreter")
    drivers: dict[Driver | LeaseDriver, tuple[bytes, bytes]] = {
        ProcessDriver(machine): (b"", ProcessSpec(("true",)).encode()),
        PythonDriver(machine): (pickled_function(len), b""),
    }
    for driver, work in drivers.items():
        lease = ALease(driver, tmp_path)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lease.serve)
            outcome = await lease.outcome(*work)
            assert isinstance(outcome, Failed)
            assert outcome.kind is FailureKind.DRIVER
            await lease.end()
    assert open_descriptors() == before
    assert set(machine.cores.tasks.values()) == {0}
    assert holds_nothing(tmp_path)


@in_trio
async def test_a_hundred_tasks_leave_no_descriptor_and_no_zombie(
    machine: Machine, tmp_path: Path
) -> None:
    before, children = open_descriptors(), set(psutil.Process().children())
    driver = ProcessDriver(machine)
    payload = ProcessSpec(("true",)).encode()

    async def some() -> None:
        for _ in range(5):
            async with an_execution(tmp_path, payload) as execution:
                assert isinstance(await driver.run(execution, Recorder()), Succeeded)

    async with trio.open_nursery() as nursery:
        for _ in range(4):
            nursery.start_soon(some)
    await driver.end_lease("lease")
    assert open_descriptors() == before
    assert set(psutil.Process().children()) <= children  # those of earlier tests may be there
    assert holds_nothing(tmp_path)


# -- control groups -------------------------------------------------------------------------

HOST = "25 1 0:24 / /sys rw - sysfs sysfs rw\n30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw"


@pytest.mark.parametrize(
    ("mounts", "own", "place"),
    [
        pytest.param(HOST, "0::/", "/sys/fs/cgroup", id="alone in a container"),
        pytest.param(HOST, "0::/node", "/sys/fs/cgroup", id="one below the root"),
        pytest.param(HOST, "0::/user.slice/session.scope", None, id="not delegated"),
        pytest.param(HOST, "3:cpu:/", None, id="no v2 hierarchy for this process"),
        pytest.param(HOST.split("\n")[0], "0::/", None, id="no v2 hierarchy mounted"),
        pytest.param(HOST.replace("26 / /", "26 /a /"), "0::/b", None, id="mounted elsewhere"),
    ],
)
def test_groups_go_where_nobody_else_keeps_theirs(mounts: str, own: str, place: str | None) -> None:
    assert _place(mounts, own) == (None if place is None else Path(place))


def test_a_group_below_a_delegated_one_is_found_and_cleared_of_the_dead(tmp_path: Path) -> None:
    """On a machine that lets us; on any other there must be no groups at all."""
    found = Groups.found()
    if found is None:
        root = re.search(r" (\S+) \S+ - cgroup2", Path("/proc/self/mountinfo").read_text())
        assert root is None or not os.access(root[1], os.W_OK)
        return
    unit = found.parent / f"test-{os.getpid()}.service"
    (unit / "node").mkdir(parents=True)
    try:
        own = f"/{unit.relative_to(found.parent)}/node"
        mount = f"30 25 0:26 / {found.parent} rw - cgroup2 cgroup2 rw"
        assert _place(mount, f"0::{own}") is None
        os.setxattr(unit, "user.delegate", b"1")
        assert _place(mount, f"0::{own}") == unit

        dead = subprocess.Popen(["true"])
        dead.wait()
        here = Path("/proc/self/ns/pid").stat().st_ino
        # A process of that number may live in another namespace.
        left = {f"formation-{os.getpid()}-{here}-0", f"formation-{dead.pid}-{here + 1}-0"}
        for name in (*left, f"formation-{dead.pid}-{here}-0"):
            (unit / name).mkdir()
        Groups(unit).sweep()
        assert {path.name for path in unit.glob("formation-*")} == left
        for name in left:
            (unit / name).rmdir()
    finally:
        (unit / "node").rmdir()
        unit.rmdir()


async def groups_of_two(parent: Path) -> None:
    limits = TaskLimits(1000, 64 * MIB)
    async with Groups(parent).group(limits) as one, Groups(parent).group(limits) as other:
        assert one != other


def test_two_nodes_of_a_process_have_groups_at_the_same_time() -> None:
    """A lease keeps its group. On a machine without groups there is nothing to tell apart."""
    if (found := Groups.found()) is not None:
        trio.run(groups_of_two, found.parent)


# Prints in which group a child begins, and whether that is what the supervisor takes it for.
BORN = """
import os, sys
from formation_p2p.drivers import supervisor
child, is_in_group = supervisor.fork(os.open(sys.argv[1], os.O_PATH | os.O_DIRECTORY))
if child == 0:
    print(next(x for x in open("/proc/self/cgroup") if x.startswith("0::")).strip(), is_in_group)
    sys.stdout.flush()
    os._exit(3)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), is_in_group)
"""


def born_in(folder: Path) -> list[str]:
    born = subprocess.run(
        [sys.executable, "-c", BORN, str(folder)], capture_output=True, text=True, check=True
    )
    return born.stdout.splitlines()


@in_trio
async def test_a_task_begins_in_its_group() -> None:
    """On a machine with groups, of a kernel that can do that (Linux 5.7)."""
    if (found := Groups.found()) is None:
        return
    async with Groups(found.parent).group(TaskLimits(1000, 64 * MIB)) as group:
        child, parent = born_in(group.path)
        assert child.endswith(f"/{group.path.name} True")
        assert parent == "3 True"


def test_a_task_moves_to_its_group_where_it_cannot_begin_there(tmp_path: Path) -> None:
    child, parent = born_in(tmp_path)  # which is none
    assert child.endswith(" False")
    assert parent == "3 False"


def test_what_left_its_supervisor_dies_with_its_group(tmp_path: Path) -> None:
    """Where there are groups; without them such a process may live on, which is documented. In
    a sandbox the supervisor cannot be killed (test_drivers_sandbox.py)."""
    machine = Machine.found(sandbox="off")
    if machine.groups is None or not (machine.groups.parent / "cgroup.procs").exists():
        return
    daemon = tmp_path / "daemon"
    script = f"{' '.join(PYTHON)} '{DAEMON}' {daemon}; kill -9 $PPID; sleep 600"
    outcome = run(machine, tmp_path, "sh", "-c", script)
    assert isinstance(outcome, Failed)
    assert not alive(int(daemon.read_text()))
    assert list(machine.groups.parent.glob(f"formation-{os.getpid()}-*")) == []


def test_a_group_tells_whether_the_kernel_killed_in_it(tmp_path: Path) -> None:
    (tmp_path / "counted").mkdir()
    (tmp_path / "counted" / "memory.max").touch()
    bare, counted = ProcessGroup(tmp_path), ProcessGroup(tmp_path / "counted")
    assert [group.holds_memory for group in (bare, counted)] == [False, True]
    assert bare.ran_out_of_memory() is False
    for kills in (0, 1):
        events = f"low 0\nmax 3\noom 1\noom_kill {kills}\n"
        (counted.path / "memory.events").write_text(events)
        assert counted.ran_out_of_memory() is (kills > 0)


# -- scratch folders ------------------------------------------------------------------------


@in_trio
async def test_a_scratch_folder_is_that_of_the_next_while_it_is_as_it_was_made(
    tmp_path: Path,
) -> None:
    folders = ScratchFolders(tmp_path)
    seen: list[Path] = []
    for left in (None, "file", None, "mode", "link", "gone", None):
        async with folders.next() as folder:
            assert (folder.lstat().st_mode & 0o7777, [*folder.iterdir()]) == (0o700, [])
            seen.append(folder)
            if left == "file":
                (folder / "file").touch()
            elif left == "mode":
                folder.chmod(0o770)
            elif left is not None:
                folder.rmdir()
            if left == "link":
                folder.symlink_to(tmp_path)
    assert seen[0] == seen[1]
    assert seen[2] == seen[3]
    assert len(set(seen)) == 5
    await folders.close()
    assert holds_nothing(tmp_path)


@in_trio
async def test_a_scratch_folder_is_private_and_goes_whatever_is_left_in_it(tmp_path: Path) -> None:
    async with scratch_folder(tmp_path) as folder:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        (folder / "locked" / "inner").mkdir(parents=True)
        (folder / "locked" / "inner" / "file").touch()
        (folder / "link").symlink_to(tmp_path)
        (folder / "locked" / "inner").chmod(0)
        (folder / "locked").chmod(0)
        folder.chmod(0o500)
    assert holds_nothing(tmp_path)


def test_what_a_killed_node_left_is_cleared_at_the_next_start(tmp_path: Path) -> None:
    (tmp_path / "task-1" / "a").mkdir(parents=True)
    (tmp_path / "lease-2").mkdir()
    within(HANGS_S, lambda: clear_scratch(tmp_path))
    assert holds_nothing(tmp_path)


def test_no_depth_of_folders_keeps_a_node_from_starting_again(tmp_path: Path) -> None:
    # Deeper than Python recurses, and with paths longer than the kernel takes.
    nested = "import os\nfor _ in range(3000):\n os.mkdir('d')\n os.chdir('d')"
    (tmp_path / "task-1").mkdir()
    subprocess.run([sys.executable, "-c", nested], cwd=tmp_path / "task-1", check=True, timeout=60)
    within(HANGS_S, lambda: clear_scratch(tmp_path))
    assert holds_nothing(tmp_path)


def test_a_link_that_a_task_left_among_the_folders_is_not_followed(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.mkdir(mode=0o500)
    root = tmp_path / "scratch"
    root.mkdir()
    (root / "link").symlink_to(kept)
    (root / "file").touch()
    within(HANGS_S, lambda: clear_scratch(root))
    assert holds_nothing(root)
    assert stat.S_IMODE(kept.stat().st_mode) == 0o500
