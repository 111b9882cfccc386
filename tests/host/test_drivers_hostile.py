"""What tasks in a sandbox do to get around what holds them, or to what others need."""

import math
import os
import resource
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from formation_p2p.core.units import MIB
from formation_p2p.drivers import supervisor
from formation_p2p.drivers.machine import Machine, Sandboxing
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome
from tests.support.drivers_world import outcome_of_process, printed
from tests.support.sandboxes import needs_sandbox
from tests.support.waiting import HANGS_S

PYTHON = (sys.executable, "-I", "-S", "-c")

pytestmark = needs_sandbox


def run(root: Path, *argv: str, bwrap: str = "", **held: Any) -> Outcome:
    # The same wherever this runs: where the kernel counts, it counts all of this.
    machine = replace(Machine.found(root / "home", "required"), groups=None)
    if bwrap and machine.sandbox is not None:
        machine = replace(machine, sandbox=replace(machine.sandbox, program=bwrap))
    return outcome_of_process(machine, root, *argv, **held)


# -- signals --------------------------------------------------------------------------------


def test_no_signal_from_inside_ends_the_supervisor(tmp_path: Path) -> None:
    program = (
        "import os, signal, time\n"
        "for number in signal.valid_signals(): os.kill(1, number)\n"
        "time.sleep(0.5)\n"
        "print('still here')"
    )
    assert printed(run(tmp_path, *PYTHON, program)) == "still here\n"


def test_a_task_begins_with_the_usual_signals(tmp_path: Path) -> None:
    """What is ignored is inherited."""
    ignored = int(printed(run(tmp_path, "grep", "SigIgn", "/proc/self/status")).split()[1], 16)
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
        assert not ignored & 1 << number - 1


# -- memory ---------------------------------------------------------------------------------

FILE = "import os, time\nfile = os.memfd_create('x')\n"
WRITES = f"for _ in range(200): os.write(file, bytes({MIB}))\ntime.sleep(60)\n"
# What such a process has open no other of its user is shown (PR_SET_DUMPABLE, execve(2)).
HIDDEN = "import ctypes\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n" + FILE + WRITES
UNREADABLE = f"""
import os, shutil, sys
shutil.copy(os.path.realpath(sys.executable), "hidden")
os.chmod("hidden", 0o111)
program = {FILE + WRITES!r}
os.execve("./hidden", ["hidden", "-S", "-c", program], {{"PYTHONHOME": sys.base_prefix}})
"""
# Filled, and then mapped by nobody.
SEGMENTS = """
import ctypes, time
libc = ctypes.CDLL(None)
libc.shmat.restype = ctypes.c_void_p
for _ in range(SEGMENTS):
    segment = libc.shmget(0, BYTES, 0o1600)
    place = libc.shmat(segment, None, 0)
    ctypes.memset(place, 1, BYTES)
    libc.shmdt(ctypes.c_void_p(place))
time.sleep(60)
"""
# Sets of semaphores; and queues, each with messages that are as many as it takes.
SEMAPHORES = """
import ctypes, time
libc = ctypes.CDLL(None)
for _ in range(100): assert libc.semget(0, 32000, 0o1600) >= 0
time.sleep(60)
"""
MESSAGES = """
import ctypes, time
libc = ctypes.CDLL(None)
message = ctypes.create_string_buffer(b"\\1" * 8200)
for _ in range(16000):
    queue = libc.msgget(0, 0o1600)
    assert queue >= 0
    for _ in range(2): assert libc.msgsnd(queue, message, 8192, 0) == 0
time.sleep(60)
"""
# Each page that is read takes a page of a table beside the one page of zeros that all are.
TABLES = """
import mmap, time
much = 200 << 30
held = mmap.mmap(-1, much, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, mmap.PROT_READ)
held.madvise(15)  # MADV_NOHUGEPAGE
for place in range(0, much, 1 << 21): held[place]
time.sleep(60)
"""
# Each page is a mapping of its own, of which nothing is in memory, and each fork has them again.
MAPPINGS = """
import ctypes, os, time
libc = ctypes.CDLL(None)
libc.mmap.restype = ctypes.c_void_p
place = libc.mmap(None, ctypes.c_size_t(60_000 << 12), 0, 0x4022, -1, 0)  # PROT_NONE, NORESERVE
for page in range(0, 60_000, 2): libc.mprotect(ctypes.c_void_p(place + (page << 12)), 4096, 1)
for _ in range(20):
    if os.fork() == 0: time.sleep(60)
time.sleep(60)
"""
# By programs that show nobody what they have.
UNREADABLE_MAPPINGS = """
import os, shutil, sys
shutil.copy(os.path.realpath(sys.executable), "hidden")
os.chmod("hidden", 0o111)
program = PROGRAM
os.execve("./hidden", ["hidden", "-S", "-c", program], {"PYTHONHOME": sys.base_prefix})
""".replace("PROGRAM", repr(MAPPINGS))
# Without a byte in them.
NAMES = """
import os, time
for name in range(300_000): os.symlink("x", f"/tmp/{name}")
time.sleep(60)
"""
# The first thread ends, and the process does not.
THREAD = """
import ctypes, threading, time
def hold():
    time.sleep(0.5)
    held = b"x" * (200 * 2**20)
    time.sleep(60)
threading.Thread(target=hold).start()
SYS_exit = {"x86_64": 60}.get(__import__("os").uname().machine, 93)
ctypes.CDLL(None).syscall(SYS_exit, 0)
"""
# Likewise the first thread of the process above it: of neither the kernel shows whose memory it has
# had.
THREADS = THREAD.replace(
    "threading.Thread(target=hold)",
    "holds = __import__('os').fork() == 0\n"
    "threading.Thread(target=hold if holds else partial(time.sleep, 60))",
).replace("import ", "from functools import partial\nimport ", 1)


# What the machine keeps apart for programs that ask for it, such as a database.
HUGE = f"""
import mmap, os, time
flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000  # MAP_HUGETLB
held = mmap.mmap(-1, {200 * MIB}, flags)
for place in range(0, len(held), {2 * MIB}): held[place] = 1
time.sleep(60)
"""
HUGE_FILE = f"""
import os, time
file = os.memfd_create("x", os.MFD_HUGETLB)
os.posix_fallocate(file, 0, {200 * MIB})
time.sleep(60)
"""
_FREE = Path("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
HUGE_FREE = int(_FREE.read_text()) if _FREE.exists() else 0


@pytest.mark.parametrize(
    "program",
    [
        FILE + WRITES,
        # Behind a thousand others that are open.
        "import os\nfor _ in range(900): os.dup(0)\n" + FILE + WRITES,
        # In a process of its own.
        FILE + "if os.fork() == 0:\n " + "os.setsid()\n" + WRITES,
        HIDDEN,
        UNREADABLE,
        SEGMENTS.replace("SEGMENTS", "4").replace("BYTES", str(50 * MIB)),
        # More than one read of the kernel's list of them.
        SEGMENTS.replace("SEGMENTS", "800").replace("BYTES", str(MIB // 4)),
        SEMAPHORES,
        MESSAGES,
        TABLES,
        MAPPINGS,
        UNREADABLE_MAPPINGS,
        NAMES,
        THREAD,
        THREADS,
    ],
    ids=[
        *(
            "file",
            "among others",
            "orphan",
            "hidden",
            "unreadable",
            "segments",
            "small segments",
        ),
        *(
            "semaphores",
            "messages",
            "tables",
            "mappings",
            "unreadable mappings",
            "names",
            "thread",
            "threads",
        ),
    ],
)
def test_memory_counts_wherever_it_is_held(tmp_path: Path, program: str) -> None:
    outcome = run(tmp_path, sys.executable, "-c", program, memory_bytes=128 * MIB)
    assert isinstance(outcome, Failed), outcome
    assert outcome.kind is FailureKind.MEMORY


@pytest.mark.parametrize("program", [HUGE, HUGE_FILE], ids=["mapped", "file"])
def test_huge_pages_count_and_where_the_machine_keeps_none_there_are_none(
    tmp_path: Path, program: str
) -> None:
    outcome = run(tmp_path, sys.executable, "-c", program, memory_bytes=128 * MIB)
    assert isinstance(outcome, Failed), outcome
    assert outcome.kind is (FailureKind.MEMORY if HUGE_FREE >= 100 else FailureKind.EXIT)


def test_huge_pages_tables_and_stacks_are_a_process_s_own(tmp_path: Path) -> None:
    lines = ("RssAnon:\t 5 kB", "VmPTE:\t 7 kB", "HugetlbPages:\t 2048 kB", "Threads:\t2")
    (tmp_path / "status").write_text("\n".join(lines))
    assert supervisor.held_at(str(tmp_path)) == (5, 7 + 2048 + 2 * supervisor.STACK_KIB, 2)


# A program that is being started waits in the memory of the task (vfork(2)), for a second.
STARTS = """
import os, subprocess
held = b"x" * (80 * 2**20)
os.mkfifo("opens")
with subprocess.Popen(["sh", "-c", "sleep 1; : > opens"]):
    opening = [(os.POSIX_SPAWN_OPEN, 0, "opens", os.O_RDONLY, 0)]
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}, file_actions=opening), 0)
print("begun", len(held))
"""


@pytest.mark.parametrize("sandbox", ["off", "required"])
def test_a_program_that_is_being_started_does_not_count_twice(
    tmp_path: Path, sandbox: Sandboxing
) -> None:
    machine = replace(Machine.found(tmp_path / "home", sandbox), groups=None)
    outcome = outcome_of_process(machine, tmp_path, *PYTHON, STARTS, memory_bytes=128 * MIB)
    assert "begun" in printed(outcome)


def test_a_task_that_takes_long_to_count_is_counted_at_once_where_memory_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hundreds of processes that share what they have not written to yet, and then write."""
    order = {"fds": {}, "in_memory": [], "memory_bytes": 1, "storage_bytes": 0, "counted": []}
    limits = supervisor.Limits({**order, "processes": 1 << 30}, supervisor.Used())
    limits.sample_at = math.inf
    with subprocess.Popen(["sleep", "60"]) as child:
        monkeypatch.setattr(supervisor, "is_short", lambda: False)
        assert limits.passed(1.0) is None
        monkeypatch.setattr(supervisor, "is_short", lambda: True)
        assert (limits.passed(2.0) or "").startswith("memory ")
        assert limits.passed(2.0) is None  # for a while
        child.kill()


def test_memory_is_short_where_little_is_left() -> None:
    left = psutil.virtual_memory()
    assert supervisor.is_short() == (left.available < left.total // supervisor.SHORT_PART)


@pytest.mark.parametrize("most", range(3, 10))
def test_a_supervisor_that_its_task_has_limited_does_not_go_on_without_counting(
    tmp_path: Path, most: int
) -> None:
    """On a kernel that filters no system calls."""
    program = (
        "import os, resource, time\n"
        f"resource.prlimit(os.getppid(), resource.RLIMIT_NOFILE, ({most}, {most}))\n"
        f"held = b'x' * {200 * MIB}\n"
        "time.sleep(60)"
    )
    machine = replace(Machine.found(tmp_path / "home", "required"), groups=None, filters=False)
    outcome = outcome_of_process(machine, tmp_path, *PYTHON, program, memory_bytes=128 * MIB)
    assert isinstance(outcome, Failed)
    assert outcome.kind in (FailureKind.MEMORY, FailureKind.DRIVER)


def test_a_task_keeps_its_place_among_those_that_end_where_memory_runs_out(tmp_path: Path) -> None:
    program = (
        "try: open('/proc/self/oom_score_adj', 'w').write('0')\n"
        "except OSError: print(open('/proc/self/oom_score_adj').read())"
    )
    assert printed(run(tmp_path, *PYTHON, program)) == "500\n\n"


def test_address_space_is_held_unless_a_gpu_is_leased(tmp_path: Path) -> None:
    """Of which CUDA reserves as much as there is memory of all kinds."""
    program = "import resource; print(resource.getrlimit(resource.RLIMIT_AS)[1] >> 30)"
    memory_bytes = 256 * MIB
    held = printed(run(tmp_path, *PYTHON, program, memory_bytes=memory_bytes))
    assert int(held) == 512  # 512 times what data may be, which is 1 GiB
    on_gpu = printed(run(tmp_path, *PYTHON, program, device_ids=("GPU-a",)))
    assert int(on_gpu) == resource.getrlimit(resource.RLIMIT_AS)[1] >> 30


def test_a_file_in_memory_that_is_mapped_counts_once(tmp_path: Path) -> None:
    program = (
        "import mmap, os, time\n"
        "file = os.memfd_create('x')\n"
        f"for _ in range(80): os.write(file, bytes({MIB}))\n"
        "held = mmap.mmap(file, 0)\n"
        f"print(sum(held[::{MIB // 256}]))\n"
        "time.sleep(0.5)"
    )
    assert printed(run(tmp_path, *PYTHON, program, memory_bytes=128 * MIB)) == "0\n"


def test_what_a_process_has_open_is_handed_over_where_no_list_shows_it() -> None:
    """As of one that hides it, where this is not root (see `open_at`)."""
    holds = (
        "import os, sys\n"
        "file = os.memfd_create('x')\n"
        f"os.truncate(file, {4 * MIB})\n"
        f"os.pwrite(file, b'x' * {2 * MIB}, 0)\n"
        "print('held', flush=True)\n"
        "sys.stdin.read()"
    )
    pipe = subprocess.PIPE
    with subprocess.Popen([*PYTHON, holds], text=True, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        found = list(supervisor.handed_over(f"/proc/{process.pid}"))
        process.communicate()
    assert 2 * MIB in [each.st_blocks * 512 for each in found if each is not None]
    assert None in found
    assert list(supervisor.handed_over(f"/proc/{process.pid}")) == []


# What is handed over of a process is a socket, whose end waits an hour for the program at the other
# end to read. The process ends just as its socket was handed over.
LINGERS = """
import os, signal, socket, stat, struct, subprocess, sys
from formation_p2p.drivers import supervisor
HOLDS = '''
import socket, struct, sys
end = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
end.setblocking(False)
try:
    while True: end.send(bytes(65536))
except BlockingIOError: pass
end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 3600))
print("held", flush=True)
sys.stdin.read()
'''
listening = socket.create_server(("127.0.0.1", 0))
port, pipe = str(listening.getsockname()[1]), subprocess.PIPE
holder = subprocess.Popen([sys.executable, "-c", HOLDS, port], stdin=pipe, stdout=pipe)
unread, _ = listening.accept()
holder.stdout.readline()
look = os.fstat
def ends(file):
    found = look(file)
    if stat.S_ISSOCK(found.st_mode):
        holder.kill()
        holder.wait()
    return found
os.fstat = ends
signal.signal(signal.SIGALRM, lambda *_: None)
list(supervisor.handed_over(f"/proc/{holder.pid}"))
print(holder.returncode)
"""


def test_a_socket_that_a_task_leaves_does_not_hold_up_who_counts_for_it() -> None:
    argv = (sys.executable, "-c", LINGERS)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=HANGS_S, check=True)
    assert done.stdout == "-9\n"


def test_a_look_at_many_descriptors_goes_on_where_the_one_before_ended() -> None:
    unnamed = supervisor.Unnamed(in_sandbox=False)
    unnamed.places = ["/proc/self"]
    much = 64 * MIB  # other tests have files in memory too
    memory = os.memfd_create("x")
    try:
        os.posix_fallocate(memory, 0, much)
        looks = 0
        while unnamed.bytes < much:
            unnamed.look(0.0)  # at one
            looks += 1
        assert looks > memory - 2  # 0 to 2 are not always open
    finally:
        os.close(memory)
    for _ in range(2 * looks + 100):
        unnamed.look(0.0)
    assert unnamed.bytes < much


# -- what the kernel counts for a user ------------------------------------------------------

WATCH = """
import ctypes
libc = ctypes.CDLL(None)
count = 0
while count < 1000 and libc.inotify_init1(0) >= 0: count += 1
print(count)
"""


def test_a_task_takes_a_part_of_the_instances_of_inotify_that_its_user_may_have(
    tmp_path: Path,
) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_user_instances").read_text())
    assert int(printed(run(tmp_path, *PYTHON, WATCH))) <= most // 4


WATCHES = """
import ctypes, os
libc = ctypes.CDLL(None)
paths = [os.path.join(at, name).encode() for at, _, names in os.walk("/usr") for name in names]
def watched():
    while (instance := libc.inotify_init1(0)) >= 0:
        for path in paths:
            watch = libc.inotify_add_watch(instance, path, 2)  # one of each file
            if watch >= 0: yield instance, watch
            elif os.path.exists(path): return
print(len(set(watched())))
"""


def test_a_task_takes_a_part_of_the_watches_that_its_user_may_have(tmp_path: Path) -> None:
    most = int(Path("/proc/sys/fs/inotify/max_user_watches").read_text())
    assert 0 < int(printed(run(tmp_path, *PYTHON, WATCHES))) <= most // 4


def test_a_task_takes_a_part_of_the_signals_and_messages_of_its_user(tmp_path: Path) -> None:
    program = (
        "import resource\n"
        "for name in ('SIGPENDING', 'MSGQUEUE'):\n"
        "    print(*resource.getrlimit(getattr(resource, 'RLIMIT_' + name)))"
    )
    lines = printed(run(tmp_path, *PYTHON, program)).splitlines()
    for line, name, most in zip(lines, ("SIGPENDING", "MSGQUEUE"), (4096, 196608), strict=True):
        has = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[1]
        has = has if has != resource.RLIM_INFINITY else 4 * most
        assert line.split() == [str(min(most, has // 4))] * 2


def test_threads_count_as_processes_do() -> None:
    """The kernel counts none of root's: the supervisor does."""
    waits = "threading.Thread(target=sys.stdin.read).start()\n"
    program = f"import sys, threading\nfor _ in range(5): {waits}print(flush=True)"
    unnamed = supervisor.Unnamed(in_sandbox=False)
    supervisor.memory_in_use(0, [], unnamed)
    before = unnamed.threads
    argv = (sys.executable, "-c", program)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        supervisor.memory_in_use(0, [], unnamed)
        child.communicate()
    assert unnamed.threads == before + 6


def test_the_supervisor_keeps_one_capability_and_tasks_have_none(tmp_path: Path) -> None:
    """With CAP_SYS_PTRACE it looks into processes that show no other what they hold."""
    text = printed(run(tmp_path, "grep", "-h", "^Cap", "/proc/1/status", "/proc/self/status"))
    held = [int(line.split()[1], 16) for line in text.splitlines()]
    traces = 1 << 19
    assert held == [0, traces, traces, 0, 0] + [0] * 5  # Inh, Prm, Eff, Bnd, Amb


# -- descriptors ----------------------------------------------------------------------------


def test_a_task_has_a_quarter_of_the_nodes_descriptors(tmp_path: Path) -> None:
    """The kernel counts those that are on their way for all processes of a user together."""
    bwrap = tmp_path / "bwrap"
    bwrap.write_text('#!/bin/sh\nulimit -n 400\nexec bwrap "$@"\n')
    bwrap.chmod(0o755)
    limits = "import resource; print(resource.getrlimit(resource.RLIMIT_NOFILE))"
    assert printed(run(tmp_path, *PYTHON, limits, bwrap=str(bwrap))) == "(100, 100)\n"


def test_a_node_with_tasks_has_all_descriptors_that_it_may(tmp_path: Path) -> None:
    had, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard // 2, hard))
    try:
        Machine.found(tmp_path, "required")
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (had, hard))


# -- storage --------------------------------------------------------------------------------


def test_files_without_a_byte_count_as_storage(tmp_path: Path) -> None:
    """A file system has a limited number of them."""
    program = (
        "import os, time\n"
        "for number in range(10_000): os.close(os.open(str(number), os.O_CREAT))\n"
        "time.sleep(60)"
    )
    outcome = run(tmp_path, *PYTHON, program, storage_bytes=16 * MIB)
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.STORAGE


def test_names_of_one_file_count_once_and_take_their_turn(tmp_path: Path) -> None:
    """What is counted goes on from there the next time, also among those."""
    (tmp_path / "0").write_bytes(bytes(MIB))
    for number in range(1, 100):
        (tmp_path / str(number)).hardlink_to(tmp_path / "0")
    counted = list(supervisor.storage_below([str(tmp_path)]))
    assert len(counted) == 100
    assert len(set(counted)) == 1
