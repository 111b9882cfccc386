"""The filter of system calls: as instructions, against the headers, and on this kernel."""

import ctypes
import errno
import os
import re
import socket
import struct
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from formation_p2p.drivers import seccomp
from formation_p2p.drivers.machine import Machine
from formation_p2p.workload.core.outcome import Failed
from tests.support.drivers_world import bare_machine, outcome_of_process, printed
from tests.support.sandboxes import WHY_NONE

PYTHON = (sys.executable, "-I", "-S", "-c")
HEADERS = {
    "x86_64": Path("/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    "aarch64": Path("/usr/include/asm-generic/unistd.h"),
}
ALLOWED, KILLED = 0x7FFF0000, 0x80000000
NEW_NET, THREAD_FLAGS = 0x40000000, 0x3D0F00

needs_filter = pytest.mark.skipif(
    seccomp.why_none() is not None, reason=f"no filter: {seccomp.why_none()}"
)


def judged(program: bytes, machine: int, number: int, *arguments: int) -> int:
    """What the kernel does with a call: the interpreter of <linux/filter.h>, as far as needed."""
    data = struct.pack("=iI8x6Q", number, machine, *arguments, *(6 - len(arguments)) * (0,))
    code = list(struct.iter_unpack("=HBBI", program))
    at = held = 0
    while True:
        kind, yes, no, value = code[at]
        at += 1
        if kind == 0x20:
            (held,) = struct.unpack_from("=I", data, value)
        elif kind == 0x06:
            return int(value)
        else:
            tests = {0x15: held == value, 0x35: held >= value, 0x45: bool(held & value)}
            at += yes if tests[kind] else no


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_each_call_of_the_table_is_refused_and_others_are_not(machine: str) -> None:
    column, architecture = seccomp.MACHINES[machine]
    program = seccomp.program(holds_cores=True, machine=machine)

    def verdict(number: int, argument: int = 0) -> int:
        return judged(program, architecture, number, argument)

    refused = {each[column] for each in seccomp.REFUSED.values()} - {0}
    absent = {each[column] for each in seccomp.ABSENT.values()}
    for number in range(seccomp.NEWEST + 1):
        error = errno.EPERM if number in refused else errno.ENOSYS if number in absent else 0
        assert verdict(number, 1) == (0x50000 | error if error else ALLOWED)
    for number in (seccomp.NEWEST + 1, 0x40000000 + 39, 0xFFFFFFFF - (1 << 32)):
        assert verdict(number) == 0x50000 | errno.ENOSYS
    for call in seccomp.NAMESPACES:
        number = seccomp.number_of(call, machine)
        assert verdict(number, NEW_NET) == 0x50000 | errno.EPERM
        assert verdict(number, THREAD_FLAGS) == ALLOWED
    assert verdict(seccomp.number_of("unshare", machine), 0x80) == 0x50000 | errno.EPERM
    for call in seccomp.SOCKETS:
        number = seccomp.number_of(call, machine)
        for family in range(64):
            allowed = family in (socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, 16)
            expected = ALLOWED if allowed else 0x50000 | errno.EAFNOSUPPORT
            assert verdict(number, family) == expected
    assert judged(program, 0x40000003, 20) == KILLED  # i386
    prlimit = seccomp.number_of("prlimit64", machine)
    for pid, limit, of_others in ((0, 1, False), (1, 0, False), (1, 1, True), (1, 1 << 32, True)):
        expected = 0x50000 | errno.EPERM if of_others else ALLOWED
        assert judged(program, architecture, prlimit, pid, 0, limit) == expected
    for call, place in {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2}.items():
        number = seccomp.number_of(call, machine)
        for mode in (0o4755, 0o2755, 0o1777, 0o755) if number else ():
            expected = 0x50000 | errno.EPERM if mode & 0o6000 else ALLOWED
            assert judged(program, architecture, number, *place * (1,), mode) == expected

    affinity = seccomp.number_of("sched_setaffinity", machine)
    without = seccomp.program(holds_cores=False, machine=machine)
    assert verdict(affinity) == ALLOWED
    assert judged(without, architecture, affinity) == 0x50000 | errno.EPERM


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_the_numbers_are_those_of_the_kernel(machine: str) -> None:
    """Where its headers are installed, as far as they go."""
    text = HEADERS[machine].read_text() if HEADERS[machine].exists() else ""
    found = {name: int(n) for name, n in re.findall(r"#define __NR(?:3264)?_(\w+)\s+(\d+)", text)}
    tables = [seccomp.REFUSED, seccomp.AFFINITY, seccomp.NAMESPACES, seccomp.SOCKETS]
    tables += [seccomp.MODES, seccomp.LIMITS, seccomp.ABSENT, seccomp.OWN]
    for call in (call for table in tables for call in table):
        assert found.get(call, seccomp.number_of(call, machine)) == seccomp.number_of(call, machine)


# Arguments that are valid nowhere: nothing is done where a call is not refused.
CALLS = """
import ctypes, sys
libc = ctypes.CDLL(None, use_errno=True)
for number in map(int, sys.argv[1:]):
    ctypes.set_errno(0)
    libc.syscall(number, *(ctypes.c_long(-1) for _ in range(6)))
    print(ctypes.get_errno(), end=" ")
"""


@pytest.fixture(params=["bare", "sandbox"])
def machine(request: pytest.FixtureRequest, tmp_path: Path) -> Machine:
    """On which the kernel holds nobody to a share of the cores."""
    if request.param == "bare":
        return bare_machine()
    if WHY_NONE:
        pytest.skip(f"no sandbox: {WHY_NONE}")
    return replace(Machine.found(tmp_path / "home", "required"), groups=None)


def ran(machine: Machine, root: Path, *argv: str) -> str:
    return printed(outcome_of_process(machine, root, *argv))


@needs_filter
def test_the_kernel_refuses_each(machine: Machine, tmp_path: Path) -> None:
    calls = [*seccomp.REFUSED, *seccomp.AFFINITY, *seccomp.NAMESPACES]
    numbers = [str(number) for call in calls if (number := seccomp.number_of(call))]
    told = ran(machine, tmp_path, *PYTHON, CALLS, *numbers).split()
    assert told == [str(errno.EPERM)] * len(numbers)
    clone3 = str(seccomp.number_of("clone3"))
    assert ran(machine, tmp_path, *PYTHON, CALLS, clone3) == f"{errno.ENOSYS} "


SOCKETS = """
import socket, sys
for family in map(int, sys.argv[1:]):
    try: socket.socket(family, socket.SOCK_STREAM if family < 16 else socket.SOCK_DGRAM).close()
    except OSError as error: print(error.errno, end=" ")
    else: print("made", end=" ")
"""
# Of the host and the hypervisor, whatever the network namespace; of packets; of TIPC.
AF_VSOCK, AF_PACKET, AF_TIPC = 40, 17, 30


@needs_filter
def test_sockets_lead_to_networks_and_to_programs_inside_alone(
    machine: Machine, tmp_path: Path
) -> None:
    allowed = map(str, (socket.AF_UNIX, socket.AF_INET, 16))
    assert ran(machine, tmp_path, *PYTHON, SOCKETS, *allowed) == "made made made "
    others = map(str, (AF_VSOCK, AF_PACKET, AF_TIPC))
    assert ran(machine, tmp_path, *PYTHON, SOCKETS, *others) == f"{errno.EAFNOSUPPORT} " * 3


# mov eax, 20 (getpid on i386); int 0x80; ret
I386 = """
import ctypes, mmap
page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
page.write(b"\\xb8\\x14\\0\\0\\0\\xcd\\x80\\xc3")
place = ctypes.addressof(ctypes.c_char.from_buffer(page))
print(ctypes.CFUNCTYPE(ctypes.c_int)(place)())
"""


@needs_filter
@pytest.mark.skipif(os.uname().machine != "x86_64", reason="it has no second set of numbers")
def test_no_other_set_of_numbers_leads_around_it(machine: Machine, tmp_path: Path) -> None:
    outcome = outcome_of_process(machine, tmp_path, *PYTHON, I386)
    assert isinstance(outcome, Failed)
    # The latter where the kernel runs no such programs at all.
    assert outcome.message.startswith(("ended by SIGSYS", "ended by SIGSEGV"))


WORKS = """
import multiprocessing, subprocess, threading
import numpy
def square(number): return number * number
if __name__ == "__main__":
    done = []
    threads = [threading.Thread(target=done.append, args=(1,)) for _ in range(8)]
    for each in threads: each.start()
    for each in threads: each.join()
    for way in ("fork", "spawn"):
        with multiprocessing.get_context(way).Pool(2) as pool:
            done.append(sum(pool.map(square, range(10))))
    matrix = numpy.ones((300, 300))
    said = subprocess.run(["sh", "-c", "echo child | cat"], capture_output=True, text=True)
    print(len(done), done[-2:], int((matrix @ matrix).sum()), said.stdout.strip())
"""


@needs_filter
def test_ordinary_programs_notice_nothing(machine: Machine, tmp_path: Path) -> None:
    script = f"cat > works.py <<'END'\n{WORKS}\nEND\n{sys.executable} works.py"
    outcome = outcome_of_process(machine, tmp_path, "sh", "-c", script, timeout_s=None)
    assert printed(outcome) == "10 [285, 285] 27000000 child\n"


@needs_filter
def test_a_task_takes_no_more_cores_than_it_leased(machine: Machine, tmp_path: Path) -> None:
    program = (
        "import os\n"
        "try: os.sched_setaffinity(0, range(os.cpu_count()))\n"
        "except PermissionError: print(len(os.sched_getaffinity(0)))"
    )
    assert ran(machine, tmp_path, *PYTHON, program) == "1\n"


@needs_filter
def test_a_task_does_not_limit_its_supervisor(machine: Machine, tmp_path: Path) -> None:
    """Which with so few open files would see no process, and so neither memory nor whom to end."""
    program = (
        "import os, resource\n"
        "over, what = os.getppid(), resource.RLIMIT_NOFILE\n"
        "resource.setrlimit(what, resource.prlimit(0, what))\n"
        "soft, hard = resource.prlimit(over, what)\n"
        "try: resource.prlimit(over, what, (8, hard))\n"
        "except PermissionError: print(soft == resource.prlimit(over, what)[0])\n"
    )
    assert ran(machine, tmp_path, *PYTHON, program) == "True\n"


@needs_filter
def test_a_task_makes_no_program_that_others_run_as_its_user(
    machine: Machine, tmp_path: Path
) -> None:
    """As in a folder that is lent to be written to."""
    program = (
        "import os\n"
        "os.close(os.open('sh', os.O_CREAT | os.O_WRONLY))\n"
        "os.chmod('sh', 0o1755)\n"
        "for mode in (0o4755, 0o2755):\n"
        "    for what in ('sh', os.open('sh', os.O_RDONLY)):\n"
        "        try: os.chmod(what, mode)\n"
        "        except PermissionError: print(oct(os.stat(what).st_mode))\n"
    )
    assert ran(machine, tmp_path, *PYTHON, program) == "0o101755\n" * 4


KEYCTL_SEARCH, SESSION = 10, -3
SEARCH = f"""
import ctypes, sys
found = ctypes.CDLL(None).syscall({seccomp.number_of("keyctl")}, {KEYCTL_SEARCH}, {SESSION},
    b"user", b"formation-test", 0)
print(found > 0)
"""


@needs_filter
def test_a_task_has_a_session_keyring_of_its_own(machine: Machine, tmp_path: Path) -> None:
    """Also where the kernel does not refuse the call."""
    libc = ctypes.CDLL(None)
    add_key, keyctl = seccomp.number_of("add_key"), seccomp.number_of("keyctl")
    key = libc.syscall(add_key, b"user", b"formation-test", b"secret", 6, SESSION)
    try:
        assert key > 0
        found = libc.syscall(keyctl, KEYCTL_SEARCH, SESSION, b"user", b"formation-test", 0)
        assert found == key
        unfiltered = replace(machine, filters=False)
        assert ran(unfiltered, tmp_path, *PYTHON, SEARCH) == "False\n"
    finally:
        libc.syscall(keyctl, 9, key, SESSION)  # KEYCTL_UNLINK
