"""Runs one task as its child, and sees to it that nothing of the task outlives either of them.

Run as a file, `python -I -S supervisor.py <control fd> <pid of the node>`, in a session of its
own. It imports only what starts quickly, and nothing of this package. `supervised.py` is its
other end and says what is guaranteed.

Over the control socket it reads one order (a length of 4 bytes and a marshalled dict, made by
the same interpreter), and then waits for the task to end, for `STOP` (ask the task to end, then
kill it), or for the end of the socket or of the node (kill it now). Once everything that the
task started is dead it writes one line saying how the task ended, and exits:

    exit 3
    signal 9
    memory 734003200
    start sotr: No such file or directory
"""

# pathlib and contextlib would take longer to import than all else here.
# ruff: noqa: SIM105

from __future__ import annotations

import ctypes
import marshal
import os
import resource
import select
import signal
import sys
import time

TYPE_CHECKING = False  # typing itself takes 5 ms to import
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    Order = dict[str, Any]

STOP = b"T"
# What a task gets between SIGTERM and SIGKILL: enough to write a last line, not to go on.
GRACE_S = 2.0
# How long killing goes on without a pause. Whatever still lives then is held by the kernel.
HASTE_S = 2.0
# Memory is sampled ten times a second, and less often where sampling would take more than a
# hundredth of a core, on a machine that runs thousands of processes.
SAMPLE_S = 0.1
SAMPLE_SHARE = 100
# Behind the node in every queue for a core: a late heartbeat costs the task its lease.
NICENESS = 5
# Half way to "take this one first": when the machine runs out of memory the kernel is to end a
# task, not the node.
OOM_SCORE = 500

# <linux/prctl.h>
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38

_libc = ctypes.CDLL(None, use_errno=True)


def main() -> None:
    control, node = int(sys.argv[1]), int(sys.argv[2])
    os.set_inheritable(control, False)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    order = read_order(control)
    if order is None:
        return
    wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    supervisor = os.getpid()
    task = os.fork()
    if task == 0:
        become(order, control, supervisor)
    ending = watch(task, control, wake, node, order["memory_bytes"])
    kill_all()
    os.set_blocking(control, False)
    try:
        os.write(control, ending.encode())
    except OSError:
        pass  # the node is gone, or the task has filled the socket: there is nobody to tell


def prctl(option: int, value: int) -> None:
    if _libc.prctl(option, value, 0, 0, 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"prctl({option}): {os.strerror(number)}")


def read_order(control: int) -> Order | None:
    """The order, or None where the node went away before it had written it."""
    size = read_exactly(control, 4)
    order = size and read_exactly(control, int.from_bytes(size, "big"))
    return marshal.loads(order) if order else None


def read_exactly(fd: int, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = os.read(fd, size - len(data))
        if not more:
            return b""
        data += more
    return data


def become(order: Order, control: int, supervisor: int) -> None:
    """In the child: take on the limits, then be the task. Never returns."""
    what = "the limits of its lease"
    try:
        os.setsid()
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:
            os._exit(127)
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        if order["group"]:
            write_file(order["group"] + "/cgroup.procs", "0")
        write_file("/proc/self/oom_score_adj", str(OOM_SCORE))
        os.nice(NICENESS)
        os.sched_setaffinity(0, order["cores"])
        for name, limit in order["resource_limits"].items():
            number = getattr(resource, name)
            hard = resource.getrlimit(number)[1]
            if hard != resource.RLIM_INFINITY:
                limit = min(limit, hard)
            resource.setrlimit(number, (limit, limit))
        os.chdir(order["folder"])
        what = order["argv"][0]
        os.execvpe(what, order["argv"], order["env"])
    except BaseException as problem:  # noqa: BLE001 - in the child of a fork nothing may go on
        why = problem.strerror if isinstance(problem, OSError) else repr(problem)
        # Before the supervisor's own line, so that the node reads this one.
        os.write(control, f"start {what}: {why}\n".encode())
    finally:
        os._exit(127)


def write_file(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def watch(task: int, control: int, wake: int, node: int, memory_bytes: int) -> str:
    """Until the task has ended or is to be ended; how it ended, in words."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    poll.register(wake, select.POLLIN)
    sample_at, stop_at = 0.0, None
    while True:
        ready = [fd for fd, _ in poll.poll(SAMPLE_S * 1000)]
        if wake in ready:
            os.read(wake, 4096)
        status = reap(task)[1]
        if status is not None:
            code = os.waitstatus_to_exitcode(status)
            return f"exit {code}" if code >= 0 else f"signal {-code}"
        if os.getppid() != node or (control in ready and not read_stop(control)):
            return "signal 9"
        now = time.monotonic()
        if control in ready and stop_at is None:
            stop_at = now + GRACE_S
            try:
                os.killpg(task, signal.SIGTERM)
            except ProcessLookupError:
                pass  # it has no group yet: SIGKILL will have to do
        if stop_at is not None and now >= stop_at:
            return "signal 9"
        if memory_bytes and now >= sample_at:
            used = memory_of_descendants(memory_bytes)
            if used > memory_bytes:
                return f"memory {used}"
            took_s = time.monotonic() - now
            sample_at = now + SAMPLE_SHARE * took_s


def read_stop(control: int) -> bool:
    try:
        return os.read(control, 1) == STOP
    except OSError:
        return False


def reap(task: int) -> tuple[bool, int | None]:
    """Whether children are left, and the status of the task where it is among the dead.

    As a subreaper this process is the parent of every orphan that the task leaves.
    """
    found = None
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return False, found
        if pid == 0:
            return True, found
        if pid == task:
            found = status


def kill_all() -> None:
    """Ends when nothing that the task started is left alive.

    Only children are killed, since only their numbers cannot have passed to another process
    before they are reaped; theirs become children of this process, and are next.
    """
    in_haste_until = time.monotonic() + HASTE_S
    while True:
        # At once when seen: what forks and exits without end is gone a moment later.
        for pid, parent in processes():
            if parent == os.getpid():
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass  # it may not be killed: the next round will show
        if not reap(0)[0]:
            return
        if time.monotonic() > in_haste_until:
            time.sleep(SAMPLE_S)


def processes() -> Iterator[tuple[int, int]]:
    """Every process of the machine, and its parent."""
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            # proc_pid_stat(5): the parent comes second after the name in brackets.
            stat = read_proc(f"/proc/{entry.name}/stat").rpartition(b")")[2].split()
            if len(stat) > 1:
                yield int(entry.name), int(stat[1])


def memory_of_descendants(memory_bytes: int) -> int:
    """Bytes of memory, neither files nor swap, in use by all that the task has started.

    Pages that several of them share are counted once for each at first, and only where that is
    more than `memory_bytes` in proportion, as that takes the kernel long.
    """
    family: dict[int, list[int]] = {}
    for pid, parent in processes():
        family.setdefault(parent, []).append(pid)
    found = family.get(os.getpid(), [])
    for pid in found:
        found.extend(family.get(pid, ()))
    rough = {pid: kib_in(f"/proc/{pid}/status", b"RssAnon:", b"RssShmem:") for pid in found}
    if sum(rough.values()) * 1024 <= memory_bytes:
        return 0
    return 1024 * sum(
        kib_in(f"/proc/{pid}/smaps_rollup", b"Pss_Anon:", b"Pss_Shmem:") or kib
        for pid, kib in rough.items()
    )


def kib_in(path: str, *names: bytes) -> int:
    found = 0
    for line in read_proc(path).splitlines():
        if line.startswith(names):
            found += int(line.split()[1])
    return found


def read_proc(path: str) -> bytes:
    """Empty where the process is gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 65536)
    except OSError:
        return b""
    finally:
        os.close(fd)


if __name__ == "__main__":
    main()
