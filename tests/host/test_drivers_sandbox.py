"""Tasks in bubblewrap, and on machines that have none."""

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import cloudpickle
import pytest
import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import Identity
from formation_p2p.core.units import MIB
from formation_p2p.drivers.bubblewrap import Bubblewrap, NoSandbox
from formation_p2p.drivers.lent import Lent
from formation_p2p.drivers.machine import Machine
from formation_p2p.drivers.process import ProcessDriver
from formation_p2p.drivers.python import PythonDriver
from formation_p2p.features.gangs.core.events import JoinGang
from formation_p2p.features.gangs.core.roster import Roster
from formation_p2p.features.gangs.host.place import MemberPlace
from formation_p2p.workload.core.outcome import Failed, FailureKind, Outcome, Succeeded
from formation_p2p.workload.core.process import ProcessResult, ProcessSpec
from tests.support.calls import pickled_function
from tests.support.drivers_world import (
    SPOKEN_S,
    ALease,
    Recorder,
    an_execution,
    bare_machine,
    holds_nothing,
    open_descriptors,
    outcome_of_process,
    printed,
    spoken,
    within,
)
from tests.support.sandboxes import needs_sandbox
from tests.support.waiting import HANGS_S, in_trio, until

PYTHON = (sys.executable, "-I", "-S", "-c")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A node's home with a secret, and a folder for scratch."""
    home = tmp_path / "home"
    (home / "scratch").mkdir(parents=True)
    (home / "identity.key").write_text("the key to everything")
    return home


def run(home: Path, *argv: str, machine: Machine | None = None, **held: Any) -> Outcome:
    found = machine or Machine.found(home, "required")
    return outcome_of_process(found, home / "scratch", *argv, **held)


def sleeping(mark: str) -> bool:
    """Whether a `sleep mark` runs, whatever its number."""
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):  # it has ended
            if place.read_bytes().split(b"\0")[:2] == [b"sleep", mark.encode()]:
                return True
    return False


# -- what is hidden -------------------------------------------------------------------------


@needs_sandbox
def test_a_task_sees_no_secret_of_the_node_and_no_file_of_other_tasks(home: Path) -> None:
    theirs = home / "scratch" / "task-of-another"
    theirs.mkdir()
    script = f"ls -A {home} {home}/scratch; ls -A {Path.home()} /home /run; cat {home}/identity.key"
    outcome = run(home, "sh", "-c", script)
    assert isinstance(outcome, Failed)
    result = ProcessResult.decode(outcome.result)
    assert b"identity.key: No such file" in result.stderr_tail
    assert b"identity" not in result.stdout_tail
    assert b"task-of-another" not in result.stdout_tail
    assert b".bashrc" not in result.stdout_tail


@needs_sandbox
def test_a_task_reads_no_secret_of_the_machine_even_where_root_runs_it(home: Path) -> None:
    script = "cat /etc/shadow* /etc/gshadow* /etc/sudoers /etc/ssh/*_key; ls -A /etc/ssl/private"
    assert printed(run(home, "sh", "-c", f"({script}) 2>/dev/null; id -u")) == f"{os.getuid()}\n"


@needs_sandbox
def test_nothing_of_the_machine_is_inside_but_software(home: Path) -> None:
    """Such as the home of another node of the same user, with sockets of its own."""
    places = [Path(place) for place in ("/srv", "/mnt", "/opt", "/var/tmp")]
    folder = next(place for place in places if os.access(place, os.W_OK))
    with tempfile.TemporaryDirectory(dir=folder) as made, socket.socket(socket.AF_UNIX) as command:
        (Path(made) / "root.key").touch()
        command.bind(f"{made}/command.sock")
        places_inside = f"/srv /mnt /opt /var /run /home {made}"
        look = f"ls -m /; find {places_inside} -type s -o -name root.key 2>/dev/null; true"
        names, *found = printed(run(home, "sh", "-c", look)).splitlines()
    installed = {Path(path).parts[1] for path in (sys.prefix, sys.base_prefix, __file__)}
    software = {"bin", "gnu", "lib", "lib32", "lib64", "libx32", "nix", "sbin", "usr"}
    own = {"dev", "etc", "proc", "sys", "tmp", "var", home.parts[1]}
    assert set(names.split(", ")) <= software | own | installed
    assert found == []


@needs_sandbox
def test_a_task_does_not_see_the_folder_of_the_program_that_embeds_the_worker(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor what else is on its path, but for installed packages."""
    program, installed = home.parent / "program", home.parent / "more" / "site-packages"
    for folder in (program, installed):
        folder.mkdir(parents=True)
        (folder / "module.py").touch()
    (program / ".env").write_text("PASSWORD=1")
    (program / ".env").chmod(0o600)
    monkeypatch.setattr(sys, "path", [str(program), *sys.path, str(installed)])
    script = f"ls {program} 2>/dev/null; cd {installed}; ls; touch theirs.py 2>&1 || echo refused"
    text = printed(run(home, "sh", "-c", script))
    assert text.split()[0] == "module.py"
    assert text.split()[-1] == "refused"
    assert ".env" not in text


@needs_sandbox
@pytest.mark.parametrize("whose", ["project", "home"])
def test_of_a_prefix_with_other_things_in_it_python_alone_is_shown(
    home: Path, monkeypatch: pytest.MonkeyPatch, whose: str
) -> None:
    """A virtual environment in the folder of a project; and Python installed to a person's home."""
    prefix = home.parent
    (prefix / "diary").touch()
    (prefix / "bin").mkdir()
    if whose == "project":
        (prefix / "pyvenv.cfg").touch()
    else:
        monkeypatch.setenv("HOME", str(prefix))
    monkeypatch.setattr(sys, "prefix", str(prefix))
    shown = set(printed(run(home, "ls", "-A", str(prefix))).split())
    assert shown == {"bin", "home"} | ({"pyvenv.cfg"} if whose == "project" else set())


@needs_sandbox
def test_programs_find_users_the_time_zone_certificates_and_libraries(home: Path) -> None:
    program = (
        "import ctypes.util, os, pwd, socket, ssl\n"
        "print(pwd.getpwuid(os.getuid()).pw_name, ctypes.util.find_library('c'),"
        " os.path.exists('/etc/localtime'), socket.getservbyname('http'),"
        " len(ssl.create_default_context().get_ca_certs()))"
    )
    here = subprocess.run([*PYTHON, program], capture_output=True, text=True, check=True).stdout
    assert printed(run(home, *PYTHON, program)) == here


@needs_sandbox
def test_programs_find_their_settings_but_none_that_may_hold_a_password(home: Path) -> None:
    settings = ("*-release", "debian_version", "chromium.d/*", "maven/m2.conf", "xml")
    there = {str(path) for each in settings for path in Path("/etc").glob(each)}
    listed = printed(run(home, "sh", "-c", 'ls -d "$@" || true', "sh", "/etc/maven/*", *there))
    assert set(listed.split()) == there


@needs_sandbox
def test_a_task_sees_no_process_of_the_machine_and_cannot_end_its_supervisor(home: Path) -> None:
    script = (
        "kill -9 1; kill -STOP 1; ls /proc | grep -c '^[0-9]'; "
        "cat /proc/1/environ >/dev/null 2>&1 || echo closed; echo still here"
    )
    text = printed(run(home, "sh", "-c", script))
    count, *rest = text.splitlines()
    assert int(count) <= 4  # the supervisor, sh, ls and grep
    assert rest == ["closed", "still here"]


@needs_sandbox
def test_a_task_cannot_trace_its_supervisor(home: Path) -> None:
    trace = (
        "import ctypes; libc = ctypes.CDLL(None, use_errno=True);"
        "PTRACE_SEIZE = 0x4206;"
        "print(libc.ptrace(PTRACE_SEIZE, 1, 0, 0), ctypes.get_errno())"
    )
    assert printed(run(home, *PYTHON, trace)) == "-1 1\n"


# -- what is read-only, and what can be written ---------------------------------------------


@needs_sandbox
def test_a_task_writes_to_its_own_folder_and_to_a_tmp_that_goes_with_it(home: Path) -> None:
    outside = home.parent / "outside"
    outside.mkdir()
    mine = Path("/tmp") / f"formation-test-{os.getpid()}"
    script = (
        f"for place in /etc /usr /dev /run /home {outside} {home}; do "
        "touch $place/x 2>/dev/null && echo wrote to $place; done; "
        f"touch mine {mine} /dev/shm/formation-test && ls"
    )
    assert printed(run(home, "sh", "-c", script)) == "mine\n"
    assert list(outside.iterdir()) == []
    assert not mine.exists()
    assert not Path("/dev/shm/formation-test").exists()


@needs_sandbox
def test_a_task_reads_the_folders_that_are_lent_and_writes_where_it_may(
    home: Path, tmp_path: Path
) -> None:
    """Also below /tmp, which is otherwise hidden."""
    data, place = tmp_path / "data", tmp_path / "place"
    for folder in (data, place):
        folder.mkdir()
    (data / "set").write_text("the data")
    machine = Machine.found(home, lent=(Lent(data), Lent(place, writable=True)))
    script = f"cat {data}/set; echo new > {place}/file; echo no > {data}/file"
    outcome = run(home, "sh", "-c", script, machine=machine)
    assert isinstance(outcome, Failed)
    result = ProcessResult.decode(outcome.result)
    assert (result.stdout_tail, b"Read-only" in result.stderr_tail) == (b"the data", True)
    assert (place / "file").read_text() == "new\n"
    assert [path.name for path in data.iterdir()] == ["set"]
    hidden = run(home, "cat", f"{data}/set")
    assert isinstance(hidden, Failed)


@needs_sandbox
def test_files_in_memory_count_as_memory(home: Path) -> None:
    for place in ("/tmp", "/dev/shm"):
        script = f"head -c {200 * MIB} /dev/zero > {place}/big; sleep 30"
        outcome = run(home, "sh", "-c", script, memory_bytes=128 * MIB)
        assert isinstance(outcome, Failed)
        assert outcome.kind is FailureKind.MEMORY


@needs_sandbox
def test_a_task_has_no_capabilities_and_gets_none_by_a_namespace(home: Path) -> None:
    program = (
        "import os, re\n"
        "print(*re.findall('Cap(?:Eff|Bnd).*?(0+)$', open('/proc/self/status').read(), re.M))\n"
        "libc = __import__('ctypes').CDLL(None, use_errno=True)\n"
        "print(libc.unshare(0x10000000))\n"  # CLONE_NEWUSER
        "print(libc.mount(b'none', b'/etc', b'tmpfs', 0, None))\n"
    )
    assert printed(run(home, *PYTHON, program)) == f"{'0' * 16} {'0' * 16}\n-1\n-1\n"


@needs_sandbox
def test_a_task_cannot_change_the_settings_of_the_kernel(tmp_path: Path) -> None:
    """As root it could name a program there that the kernel starts outside."""
    sandbox = Bubblewrap.found(tmp_path, {})
    folder = tmp_path / "task"
    folder.mkdir()
    # Opened, and nothing written: where it can be opened, nothing is changed by that.
    look = 'import os; os.open("/proc/sys/kernel/core_pattern", os.O_WRONLY)'
    done = subprocess.run(
        [*sandbox.command(folder, network=False, gpus=()), sys.executable, "-I", "-c", look],
        env={},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 1
    assert b"Read-only file system" in done.stderr or b"Permission denied" in done.stderr


@needs_sandbox
def test_a_task_starts_no_more_processes_than_it_may(home: Path) -> None:
    # Nobody is held to it who is root.
    bomb = (
        "import os, resource, time\n"
        "print(resource.getrlimit(resource.RLIMIT_NPROC), flush=True)\n"
        "resource.setrlimit(resource.RLIMIT_NPROC, (20, 20))\n"
        "started = 0\n"
        "try:\n"
        "    while started < 30:\n"
        "        if os.fork() == 0: time.sleep(60)\n"
        "        started += 1\n"
        "except BlockingIOError: pass\n"
        "print(started < 20)\n"
    )
    text = printed(run(home, *PYTHON, bomb))
    assert text == f"(4096, 4096)\n{os.getuid() != 0}\n"


@needs_sandbox
def test_a_task_sees_the_devices_of_gpus_where_its_lease_holds_some(home: Path) -> None:
    # Any device stands for a GPU: one that a sandbox does not have anyway.
    usual = set(printed(run(home, "ls", "/dev")).split())
    others = [path.name for path in Path("/dev").iterdir() if path.is_char_device()]
    (device, *_) = sorted(set(others) - usual)
    found = Machine.found(home, "required")
    assert found.sandbox is not None
    machine = replace(found, sandbox=replace(found.sandbox, devices={"nvidia": (device,)}))
    for device_ids, seen in ((), usual), (("GPU-a",), {*usual, device}):
        listed = printed(run(home, "ls", "/dev", device_ids=device_ids, machine=machine))
        assert set(listed.split()) == seen


@needs_sandbox
def test_a_task_in_a_sandbox_is_in_its_control_group_where_there_are_any(home: Path) -> None:
    machine = Machine.found(home, "required")
    grouped = f"/formation-{os.getpid()}-" in printed(
        run(home, "cat", "/proc/self/cgroup", machine=machine)
    )
    assert grouped is (machine.groups is not None)


# -- the network ----------------------------------------------------------------------------

CONNECT = """
import socket, sys
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), 2).close()
    print("reached")
except OSError as error:
    print(error.strerror)
"""


@needs_sandbox
def test_a_task_reaches_no_network_unless_it_asked_for_one(home: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = str(server.getsockname()[1])
        assert printed(run(home, *PYTHON, CONNECT, port)) == "Connection refused\n"
        assert printed(run(home, *PYTHON, CONNECT, port, network=True)) == "reached\n"


# -- as without it --------------------------------------------------------------------------


@needs_sandbox
def test_exit_codes_signals_and_last_words_are_as_without_a_sandbox(home: Path) -> None:
    for machine in (bare_machine(), Machine.found(home, "required")):
        for script, message in (
            ("echo why >&2; exit 139", "ended with exit code 139: why"),
            ("kill -SEGV $$", "ended by SIGSEGV"),
            ("exec no-such-program", "ended with exit code 127: sh: 1: exec: no-such-program"),
        ):
            outcome = run(home, "sh", "-c", script, machine=machine)
            assert isinstance(outcome, Failed)
            assert outcome.message.startswith(message)
        script = "trap 'echo saved; exit 0' TERM; echo up; sleep 600 & wait"
        said = {"report": Recorder(react=spoken), "timeout_s": SPOKEN_S}
        outcome = run(home, "sh", "-c", script, machine=machine, **said)
        assert isinstance(outcome, Failed)
        assert outcome.kind is FailureKind.TIMEOUT
        assert ProcessResult.decode(outcome.result).stdout_tail == b"up\nsaved\n"


@needs_sandbox
@in_trio
async def test_all_that_a_task_started_dies_when_it_is_cancelled(home: Path) -> None:
    # Numbers inside are not those outside: each sleeps for a time of its own.
    marks = [f"{600 + os.getpid() % 1000}.{number}" for number in (1, 2)]
    script = f"setsid sleep {marks[0]} & sleep {marks[1]}"
    payload = ProcessSpec(("sh", "-c", script)).encode()
    driver = ProcessDriver(Machine.found(home, "required"))
    async with an_execution(home / "scratch", payload) as execution, trio.open_nursery() as nursery:
        nursery.start_soon(driver.run, execution, Recorder())
        await until(lambda: all(map(sleeping, marks)))
        nursery.cancel_scope.cancel()
    assert not any(map(sleeping, marks))


NODE = """
import multiprocessing, sys, time, trio
from pathlib import Path
from formation_p2p.drivers.process import ProcessDriver
from formation_p2p.drivers.machine import Machine
from formation_p2p.workload.core.process import ProcessSpec
from tests.support.drivers_world import Recorder, an_execution

home = Path(sys.argv[1])

async def main():
    spec = ProcessSpec(("sh", "-c", "echo begun; sleep " + sys.argv[2])).encode()
    async with (
        an_execution(home / "scratch", spec, timeout_s=None) as execution,
        trio.open_nursery() as nursery,
    ):
        begun = trio.Event()
        driver = ProcessDriver(Machine.found(home, "required"))
        nursery.start_soon(driver.run, execution, Recorder(lambda _: begun.set()))
        await begun.wait()
        # A copy of the node with all of its sockets, as multiprocessing makes them.
        copy = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
        copy.start()
        print(copy.pid, flush=True)
        await trio.sleep_forever()

trio.run(main)
"""


@needs_sandbox
def test_a_killed_node_takes_its_tasks_in_sandboxes_with_it(home: Path) -> None:
    mark = f"{700 + os.getpid() % 1000}.7"
    node = subprocess.Popen(
        [sys.executable, "-c", NODE, str(home), mark], stdout=subprocess.PIPE, cwd=Path.cwd()
    )
    assert node.stdout is not None
    copy = int(node.stdout.readline())
    try:
        within(HANGS_S, lambda: until(lambda: sleeping(mark)))
        node.kill()
        node.wait()
        within(HANGS_S, lambda: until(lambda: not sleeping(mark)))
    finally:
        os.kill(copy, signal.SIGKILL)
        node.kill()
        node.stdout.close()


@needs_sandbox
def test_a_sandbox_that_fails_says_why(home: Path) -> None:
    found = Machine.found(home, "required")
    assert found.sandbox is not None
    broken = replace(found, sandbox=replace(found.sandbox, user=("--no-such-option",)))
    outcome = run(home, "true", machine=broken)
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.DRIVER
    assert "bwrap: Unknown option --no-such-option" in outcome.message


@needs_sandbox
@in_trio
async def test_calls_of_python_run_in_the_sandbox_too(home: Path) -> None:
    def look(secret: str) -> tuple[bool, int, bool]:
        from pathlib import Path as Place

        Place("mine").touch()
        return Place(secret).exists(), os.getppid(), Place("mine").exists()

    function = pickled_function(look)
    arguments = cloudpickle.dumps(((str(home / "identity.key"),), {}))
    lease = ALease(PythonDriver(Machine.found(home, "required")), home / "scratch")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lease.serve)
        for _ in range(2):
            outcome = await lease.outcome(function, arguments)
            assert isinstance(outcome, Succeeded), outcome
            assert cloudpickle.loads(outcome.result) == (False, 1, True)
        await lease.end()
    assert list((home / "scratch").iterdir()) == []


@needs_sandbox
@in_trio
async def test_a_call_that_locks_up_the_folder_of_its_lease_harms_no_later_one(home: Path) -> None:
    def lock_up() -> None:
        from pathlib import Path as Place

        Place.home().chmod(0)
        os._exit(3)

    lease = ALease(PythonDriver(Machine.found(home, "required")), home / "scratch")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(lease.serve)
        arguments = cloudpickle.dumps(((), {}))
        ended = await lease.outcome(pickled_function(lock_up), arguments)
        assert isinstance(ended, Failed), ended
        assert "code 3" in ended.message
        after = await lease.outcome(pickled_function(os.getppid), arguments)
        assert isinstance(after, Succeeded), after
        await lease.end()
    assert list((home / "scratch").iterdir()) == []


# -- storage --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "script",
    [
        "for i in $(seq 40); do head -c 1048576 /dev/zero > $i; done",
        "mkdir a; chmod 300 a; cd a; for i in $(seq 40); do head -c 1048576 /dev/zero > $i; done",
        'python3 -c \'import os\nfor _ in range(1500): os.mkdir("deep"); os.chdir("deep")\'',
    ],
    ids=["in many files", "where nobody may look", "deeper than can be seen"],
)
@pytest.mark.parametrize("sandbox", ["off", "auto"])
def test_a_task_that_leaves_more_than_it_leased_storage_for_is_stopped(
    home: Path, script: str, sandbox: Any
) -> None:
    machine = Machine.found(home, sandbox)
    argv = ("sh", "-c", f"{script}; sleep 30")
    outcome = run(home, *argv, machine=machine, storage_bytes=16 * MIB)
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.STORAGE
    assert outcome.message == "stopped at its storage limit of 16MiB; ask for more storage"


@needs_sandbox
def test_what_a_task_leaves_in_the_folder_of_its_gang_counts_too(home: Path) -> None:
    owner = Contact(Identity.from_seed(bytes(32)).peer_id)
    joined = JoinGang("lease", 0, Roster("ab" * 16, 1, 1, owner, ()), cause="a test")
    folder = home / "scratch" / "gang"
    folder.mkdir(parents=True)
    script = "cd $FORMATION_GANG; for i in $(seq 40); do head -c 1048576 /dev/zero > $i; done"
    argv = ("sh", "-c", f"{script}; sleep 30")
    outcome = run(home, *argv, place=MemberPlace(joined, folder), storage_bytes=16 * MIB)
    assert isinstance(outcome, Failed)
    assert outcome.kind is FailureKind.STORAGE, outcome


def test_no_file_is_longer_than_the_storage_that_was_leased(home: Path) -> None:
    script = "head -c 33554432 /dev/zero > big"
    outcome = run(home, "sh", "-c", script, machine=bare_machine(), storage_bytes=16 * MIB)
    assert isinstance(outcome, Failed)
    assert outcome.kind in (FailureKind.EXIT, FailureKind.STORAGE)


def test_links_and_what_is_gone_count_no_storage(home: Path) -> None:
    script = (
        "head -c 10485760 /dev/zero > one; ln one two; ln -s /usr three; sleep 0.5; "
        "rm one two; head -c 10485760 /dev/zero > four; sleep 0.5"
    )
    outcome = run(home, "sh", "-c", script, machine=bare_machine(), storage_bytes=16 * MIB)
    assert isinstance(outcome, Succeeded), outcome


# -- where there is none --------------------------------------------------------------------


def a_bwrap(folder: Path, script: str) -> None:
    folder.mkdir()
    (folder / "bwrap").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "bwrap").chmod(0o755)


@pytest.mark.parametrize(
    ("script", "why"),
    [
        ("", "bwrap is not on PATH; install the package bubblewrap"),
        (
            "echo 'bwrap: No permissions to create new namespace' >&2; exit 1",
            "does not work here (bwrap: No permissions to create new namespace); allow",
        ),
        ("exit 7", "bin/bwrap ended with 7)"),
    ],
)
def test_a_machine_without_a_sandbox_says_so_and_runs_tasks_unless_one_is_required(
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    script: str,
    why: str,
) -> None:
    path = home.parent / "bin"
    if script:
        a_bwrap(path, script)
    monkeypatch.setenv("PATH", str(path))
    with pytest.raises(NoSandbox) as refused:
        Machine.found(home, "required")
    assert why in str(refused.value)

    with caplog.at_level(logging.WARNING):
        machine = Machine.found(home)
    assert machine.sandbox is None
    assert why in caplog.text
    assert printed(run(home, "echo", "anyway", machine=machine)) == "anyway\n"

    caplog.clear()
    assert Machine.found(home, "off").sandbox is None
    assert caplog.text == ""


# -- several under one lease: one sandbox, one after the other --------------------------------

# The first task of a sandbox is its second process: the supervisor is the first.
FRESH = "2"
NUMBER = "echo $$"


class Lease:
    """`report` is of the last task."""

    def __init__(self, driver: ProcessDriver, root: Path) -> None:
        self._driver = driver
        self._root = root
        self.report = Recorder()

    async def outcome(self, spec: ProcessSpec, **held: Any) -> Outcome:
        self.report = Recorder()
        async with an_execution(self._root, spec.encode(), **held) as execution:
            return await self._driver.run(execution, self.report)

    async def says(self, script: str, stdin: bytes = b"") -> str:
        return printed(await self.outcome(ProcessSpec(("sh", "-c", script), stdin=stdin))).strip()


def under_a_lease(home: Path, story: Callable[[Lease], Awaitable[None]]) -> None:
    """Nothing is left of it at its end."""
    scratch = home / "scratch"
    driver = ProcessDriver(Machine.found(home, "required"))

    async def whole() -> None:
        before = open_descriptors()
        await story(Lease(driver, scratch))
        await driver.end_lease("lease")
        assert open_descriptors() == before
        assert holds_nothing(scratch)

    within(HANGS_S, whole)


@needs_sandbox
def test_tasks_of_a_lease_have_a_sandbox_in_common_and_each_its_own_input(home: Path) -> None:
    async def story(lease: Lease) -> None:
        assert await lease.says(f"{NUMBER}; ls; cat", b"one") == f"{FRESH}\none"
        assert await lease.says("cat; touch a; echo 2 >&2", b"x" * 2**20) != ""
        assert lease.report.text("stderr") == "2\n"
        assert await lease.says("ls; cat; echo $MINE") == ""
        outcome = await lease.outcome(ProcessSpec(("no-such-program",)))
        assert isinstance(outcome, Failed)
        assert "could not start: no-such-program: No such file or directory; " in outcome.message
        burn = "x = b'x' * 2**26\nimport time\nwhile time.process_time() < 0.3: pass"
        await lease.outcome(ProcessSpec((*PYTHON, burn)))
        assert (lease.report.usage.cpu_ms or 0) >= 300
        # Of its own alone, not of those before.
        assert int(await lease.says(NUMBER)) > int(FRESH)
        assert (lease.report.usage.cpu_ms or 0) < 300
        assert 0 < (lease.report.usage.memory_bytes or 0) < 2**26

    under_a_lease(home, story)


@needs_sandbox
def test_what_a_task_leaves_beside_its_folder_is_not_there_for_the_next(home: Path) -> None:
    mark = f"{800 + os.getpid() % 100}.3"
    left = (
        "echo secret > /tmp/left",
        "mkdir -p /dev/shm/left",
        "echo secret > ../left",
        "mv ../task ../moved; ln -s /etc ../task",
        f"{sys.executable} -I -c 'import ctypes; ctypes.CDLL(None).shmget(1, 4096, 0o1600)'",
    )

    paths = "/tmp/left /dev/shm/left ../left ../moved"

    async def story(lease: Lease) -> None:
        for script in left:
            await lease.says(script)
            assert await lease.says(NUMBER) == FRESH
            assert await lease.says(f"ls -d {paths} 2> /dev/null; true") == ""
        await lease.says(f"setsid sleep {mark} > /dev/null &")
        assert not sleeping(mark)
        assert await lease.says(NUMBER) != FRESH

    under_a_lease(home, story)


@needs_sandbox
def test_a_sandbox_whose_task_was_ended_takes_no_other(home: Path) -> None:
    async def story(lease: Lease) -> None:
        for _ in range(2):
            await lease.says("true")
        slow = await lease.outcome(ProcessSpec(("sleep", "600")), timeout_s=0.2)
        assert isinstance(slow, Failed)
        assert slow.kind is FailureKind.TIMEOUT
        assert await lease.says(NUMBER) == FRESH
        await lease.says("true")
        with trio.move_on_after(0.2):
            await lease.outcome(ProcessSpec(("sleep", "60")))
        assert await lease.says(NUMBER) == FRESH

    under_a_lease(home, story)
