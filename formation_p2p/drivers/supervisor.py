"""Runs a task as its child, and sees to it that nothing of the task outlives either of them.

Run as a file, `python -I -S supervisor.py <order fd>`, in a session of its own. It imports only
what starts quickly, and nothing of this package. `supervised.py` is its other end and says what is
guaranteed. In a sandbox it is the first process there: the node is watched by its pidfd, since it
has no number there and is not a parent.

It reads its order (a marshalled dict, made by the same interpreter), and then waits for the task
to end, for `STOP` over the control socket (ask the task to end, then kill it; `NOTICE` only asks
it), or for the end of the socket or of the node, or a node that is stopped for longer than its
leases live (kill it now; see `heartbeat.py`). Once all that the task started is dead it writes one
line on how the task ended, another with the bytes of memory and milliseconds of processor time
that it has used, and exits:

    exit 3
    signal 9
    memory 734003200
    storage 1073745920
    processes 4097
    silent 0
    start sotr: No such file or directory

    used 52428800 1250

Where its order says that more tasks may follow, the task has ended by itself, and has left nothing
that the next one would find, it writes `AGAIN` and stays. `NEXT` over the control socket then says
that there is another order in the same file. To start a sandbox and this interpreter anew takes
longer than most small programs run.
"""

# pathlib and contextlib would take longer to import than all else here.
# ruff: noqa: SIM105

from __future__ import annotations

import errno
import marshal
import os
import resource
import select
import stat
import sys
import time

TYPE_CHECKING = False  # typing itself takes 5 ms to import
if TYPE_CHECKING:
    import signal
    from collections.abc import Iterator
    from typing import IO, Any

    Order = dict[str, Any]
else:
    # What `signal` has without its enums, which take 7 ms to make.
    import _signal as signal

STOP = b"T"
# Ask the task to end, and wait.
NOTICE = b"Q"
# There is another order.
NEXT = b"N"
# The node asks for a socket of the network that this is in: connected to a port of 127.0.0.1, or
# listening there. One of these, two bytes with the port, and one that the answer repeats after an
# error number or 0; with 0 the socket goes along.
REACH, LISTEN = b"R", b"L"
# Likewise: run a program beside the task. A byte that the answer repeats follows, and the program's
# words, marshalled; with it come its three streams, and a socket that is told its exit code, and
# whose end has it killed.
BEGIN = b"B"
MAX_BEGIN_BYTES = 1 << 17
# A line of its own after the others: nothing runs, and another order may come.
AGAIN = b"again\n"
# The node stood still for longer than its leases live: nothing that the task did.
SILENT = "silent 0"
# While it waits for one, it looks this often whether the node is alive.
IDLE_S = 1.0
# What a task gets between SIGTERM and SIGKILL, unless its order says more: enough to write a last
# line, not to go on.
GRACE_S = 2.0
# How long killing goes on without a pause. Whatever still lives then is held by the kernel.
HASTE_S = 2.0
# Memory is sampled ten times a second, and less often where sampling would take more than a
# hundredth of a core, on a machine that runs thousands of processes.
SAMPLE_S = 0.1
SAMPLE_SHARE = 100
# A quarter of a core where the machine is short of memory: to count processes that share what they
# have not written to yet takes long, and meanwhile a task could take all that is left.
SHORT_SHARE = 4
SHORT_PART = 10  # of all memory
# What it has written, and what its descriptors hold in memory, is each counted for this long ten
# times a second, and on from there the next time: a twentieth of a core, however many files there
# are. That is some 800 descriptors each time.
WALK_S = 0.005
# Every file counts as so much at least, as one with a byte takes on most disks: of files without
# any a file system has a limited number too, ext4 one for each 16 KiB of its size.
LEAST_FILE_BYTES = 4096
# That the kernel takes for a file in memory and its name, beside what is in it (/proc/slabinfo).
NAME_BYTES = 1024
# <linux/memfd.h>: of usual pages; and of huge ones (4), with the logarithms of their sizes.
MEMFD_KINDS = (0, *(4 | size << 26 for size in (16, 21, 25, 29, 30, 34)))
# A thread's stack in the kernel, on all machines that Python runs on or less.
STACK_KIB = 16
# That the kernel takes for a mapping; and how many a process has at most, as Linux is set up.
MAPPING_BYTES = 200
MAX_MAPPINGS = 65530
# What of System V takes memory, by the columns of its lists, and how many bytes each.
SYSTEM_V = {
    "shm": ((b"rss", 1),),
    "sem": ((b"nsems", 64),),
    "msg": ((b"cbytes", 1), (b"qnum", 64)),
}
# A folder whose path is too long to be read: more than any lease holds.
UNCOUNTABLE = 1 << 59
# Behind the node in every queue for a core: a late heartbeat costs the task its lease.
NICENESS = 5
# Of as many descriptors as the node may have, its tasks have this part each. The kernel counts
# those that are on their way over sockets for all processes of a user together, and refuses a
# process more once they are above its own limit: past that of tasks the node still has room.
NODES_SHARE = 4
# So are signals that wait and messages in queues.
OF_USER = ("RLIMIT_NOFILE", "RLIMIT_SIGPENDING", "RLIMIT_MSGQUEUE")
# Half way to "take this one first": when the machine runs out of memory the kernel is to end a
# task, not the node.
OOM_SCORE = 500

# <linux/prctl.h>
PR_SET_PDEATHSIG = 1
PR_SET_DUMPABLE = 4
PR_SET_CHILD_SUBREAPER = 36
PR_SET_NO_NEW_PRIVS = 38
PR_CAPBSET_DROP = 24
PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
# <linux/capability.h>
CAP_SETPCAP, CAP_SYS_PTRACE, CAP_SYS_RESOURCE = 8, 19, 24
CAPABILITY_VERSION_3 = 0x20080522
# <linux/sched.h>, and <asm/unistd.h> of all machines that Python runs on but Alpha.
CLONE_INTO_CGROUP = 0x200000000
# <linux/keyctl.h>, <linux/seccomp.h>
KEYCTL_JOIN_SESSION_KEYRING = 1
SECCOMP_SET_MODE_FILTER = 1
# Memory accesses may be speculated about as without a filter: for kernels before 5.16, which slow a
# filtered process down otherwise. Not known before 4.17, which knows no such slowing down either.
SECCOMP_FILTER_FLAG_SPEC_ALLOW = 4
SYS_CLONE3 = 435
SYS_PIDFD_GETFD = 438
# <linux/kcmp.h>, and <asm/unistd.h>.
KCMP_VM = 1
SYS_KCMP = 312 if os.uname().machine == "x86_64" else 272


def main() -> None:
    file = int(sys.argv[1])
    order = read_order(file)
    os.set_inheritable(file, False)
    fds = order["fds"]
    for fd in fds.values():
        os.set_inheritable(fd, False)
    with open_in(fds["proc"], "self/oom_score_adj", "w") as score:
        score.write(str(OOM_SCORE))  # all that it starts has it as well
    if "node" in fds:
        # A process that traces it could stop it, and take the files that it holds, also from
        # inside: the /proc of the machine is among them.
        prctl(PR_SET_DUMPABLE, 0)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    if number := order["keyctl"]:
        # What is left in the session's would be there for the tasks of others. A kernel without
        # keyrings refuses it.
        call("syscall", number, KEYCTL_JOIN_SESSION_KEYRING, 0)
    if order["limits_user"]:
        limit_user(fds["proc"])
        # Without it a process that makes itself undumpable does not show the files that it holds.
        keep_capabilities(1 << CAP_SYS_PTRACE)
    wake, waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    for number in (signal.SIGCHLD, signal.SIGALRM):
        signal.signal(number, lambda *_: None)
    # Python handles it, and what is handled reaches the first process of a sandbox from inside.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.set_wakeup_fd(waker, warn_on_full_buffer=False)
    os.set_blocking(fds["control"], False)
    clean = left_in(order)
    while run(order, wake, clean) and another(order):
        order = read_order(file)


def run(order: Order, wake: int, clean: list[tuple[int, ...]]) -> bool:
    """One task, and what is to be told of it. Whether another may follow."""
    supervisor = os.getpid()
    for fd in (1, 2):
        os.set_blocking(fd, True)  # a task may have changed that
    used = Used()
    task, is_in_group = fork(order["fds"].get("group_folder"))
    if task == 0:
        become(order, supervisor, is_in_group)
    ending, stopped = watch(order, task, wake, used)
    kill_all(used)
    again = order["again"] and not stopped and left_in(order) == clean
    told = f"{ending}\nused {used.memory_bytes} {round(used.cpu_s * 1000)}\n".encode()
    try:
        os.write(order["fds"]["control"], told + (AGAIN if again else b""))
    except OSError:
        return False  # the node is gone, or the task has filled the socket
    return again


def another(order: Order) -> bool:
    """Waits for another order. False where none will come."""
    control, node_fd = order["fds"]["control"], order["fds"].get("node")
    poll = select.poll()
    for fd in filter(None, (control, node_fd)):
        poll.register(fd, select.POLLIN)
    silent = 0
    while silent < 2:
        ready = [fd for fd, _ in poll.poll(IDLE_S * 1000)]
        if node_fd in ready:
            return False
        if control in ready:
            return read_control(control) == NEXT
        # Twice: what is read while it is written may be half of each.
        silent = silent + 1 if silent_for(order["fds"]["heart"]) > order["silence_s"] else 0
    try:
        os.write(control, SILENT.encode() + b"\n")  # an order may be on its way
    except OSError:
        pass  # the node is gone
    return False


def left_in(order: Order) -> list[tuple[int, ...]]:
    """What the dead leave, beside their own folder, changes this: files in memory, or System V's
    memory, semaphores and queues, of which a sandbox has its own."""
    folders = map(os.statvfs, order["in_memory"])
    files = [(each.f_blocks - each.f_bfree, each.f_files - each.f_ffree) for each in folders]
    lists = [read_proc(f"/proc/sysvipc/{name}") for name in ("shm", "sem", "msg")]
    return [*files, tuple(each.count(b"\n") for each in lists)]


def read_order(file: int) -> Order:
    order: Order = marshal.loads(os.pread(file, os.fstat(file).st_size, 0))
    return order


def call(name: str, *arguments: int | bytes) -> int:
    """A function of C."""
    # Not ctypes, which takes 6 ms to import, as long as it has its core under this name.
    try:
        import _ctypes

        own = _ctypes.dlopen(None, 0)  # type: ignore[arg-type]  # this program itself
        result: int = _ctypes.call_function(_ctypes.dlsym(own, name), arguments)
    except (ImportError, AttributeError):
        import ctypes

        result = ctypes.CDLL(None)[name](*arguments)
    return result


def prctl(option: int, value: int) -> None:
    if call("prctl", option, value, 0, 0, 0):
        raise OSError(errno.EPERM, f"prctl({option}) is refused here")


def fork(group_folder: int | None) -> tuple[int, bool]:
    """As `os.fork`, and whether the child begins in the control group: where this kernel can do
    that. To move there takes 8 ms, until no core is amid what it was before (percpu-rwsem.h)."""
    if group_folder is not None:
        # struct clone_args (clone(2)): the flags, the signal to the parent, and the group.
        asked = (CLONE_INTO_CGROUP, 0, 0, 0, signal.SIGCHLD, 0, 0, 0, 0, 0, group_folder)
        packed = b"".join(each.to_bytes(8, sys.byteorder) for each in asked)
        # This process has one thread, so that the child needs none of what `os.fork` mends.
        child = call("syscall", SYS_CLONE3, packed, len(packed))
        if child >= 0:
            return child, True
    return os.fork(), False


def limit_user(proc: int) -> None:
    """Instances of inotify, 128 as Linux is set up, and their watches are counted for all processes
    of a user, and in each user namespace by themselves: a task has a part of them
    (namespaces(7))."""
    try:
        for kind in ("instances", "watches"):
            with open_in(proc, f"sys/fs/inotify/max_user_{kind}", "r") as file:
                most = int(file.read())
            with open_in(proc, f"sys/user/max_inotify_{kind}", "w") as file:
                file.write(str(max(1, most // NODES_SHARE)))
    except OSError:
        pass  # a container that has /proc/sys read-only


def keep_capabilities(kept: int) -> None:
    """No others, before anything of a task runs; and none for programs that are started. Raises
    OSError."""
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL)
    for capability in (CAP_SYS_RESOURCE, CAP_SYS_PTRACE, CAP_SETPCAP):
        prctl(PR_CAPBSET_DROP, capability)
    hold_capabilities(kept)


def hold_capabilities(kept: int) -> None:
    header = CAPABILITY_VERSION_3.to_bytes(4, sys.byteorder) + bytes(4)
    held = kept.to_bytes(4, sys.byteorder)  # effective, permitted; inheritable are none
    if call("capset", header, held + held + bytes(16)):
        raise OSError(errno.EPERM, "capabilities cannot be dropped here")


def open_in(proc: int, path: str, mode: str) -> IO[str]:
    return open(path, mode, opener=lambda path, flags: os.open(path, flags, dir_fd=proc))


def be_nice_as_session(order: Order) -> None:
    """Where the kernel shares cores among sessions (sched(7), "The autogroup feature"), the
    niceness of a process counts in its session alone. It takes one such word of all users in
    100 ms, and refuses others: then this task shares the cores evenly with the node."""
    in_sandbox = "node" in order["fds"]
    if in_sandbox and not order["limits_user"]:
        return
    # An ordinary user writes there only for a process that others may look into. Those inside may
    # not look into one with more capabilities than theirs.
    prctl(PR_SET_DUMPABLE, 1)
    try:
        with open_in(order["fds"]["proc"], "self/autogroup", "w") as file:
            file.write(str(NICENESS))
    except OSError:
        pass  # another was a moment earlier, or this kernel has no autogroups
    finally:
        prctl(PR_SET_DUMPABLE, int(not in_sandbox))


def become(order: Order, supervisor: int, is_in_group: bool) -> None:
    """In the child: take on the limits, then be the task. Never returns. Until then it holds what
    the supervisor holds, and programs of the task may run."""
    what = "the limits of its lease"
    try:
        os.setsid()
        be_nice_as_session(order)
        if order["limits_user"]:
            hold_capabilities(0)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != supervisor:
            os._exit(127)
        prctl(PR_SET_NO_NEW_PRIVS, 1)
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGPIPE, signal.SIGXFSZ):
            signal.signal(number, signal.SIG_DFL)
        if order["stdin"]:
            give_input(order["stdin"])
        if "group" in order["fds"] and not is_in_group:
            os.write(order["fds"]["group"], b"0")
        os.nice(NICENESS)
        os.sched_setaffinity(0, order["cores"])
        for name, limit in order["resource_limits"].items():
            number = getattr(resource, name)
            hard = resource.getrlimit(number)[1]
            if hard != resource.RLIM_INFINITY:
                limit = min(limit, hard // NODES_SHARE if name in OF_USER else hard)
            resource.setrlimit(number, (limit, limit))
        if order["filter"]:
            filter_calls(*order["filter"])
        os.chdir(order["folder"])
        what = order["argv"][0]
        os.execvpe(what, order["argv"], order["env"])
    except BaseException as problem:  # noqa: BLE001 - in the child of a fork nothing may go on
        why = problem.strerror if isinstance(problem, OSError) else repr(problem)
        # Before the supervisor's own line, so that the node reads this one.
        os.write(order["fds"]["control"], f"start {what}: {why}\n".encode())
    finally:
        os._exit(127)


def filter_calls(number: int, program: bytes) -> None:
    """From here on, for this process and all that it starts (seccomp.py)."""
    # The core of ctypes again; array takes 5 ms to import.
    from _ctypes import _SimpleCData

    class Pointer(_SimpleCData):  # type: ignore[type-arg]
        _type_ = "z"

    # struct sock_fprog: how many instructions of 8 bytes, and where they are.
    asked = (len(program) // 8).to_bytes(8, "little") + bytes(memoryview(Pointer(program)))
    for flags in (SECCOMP_FILTER_FLAG_SPEC_ALLOW, 0):
        if call("syscall", number, SECCOMP_SET_MODE_FILTER, flags, asked) == 0:
            return
    raise OSError(errno.EPERM, "this kernel takes no filter of system calls")


def give_input(content: bytes) -> None:
    """As standard input: a file in memory, to be read from its beginning."""
    os.dup2(os.memfd_create("stdin"), 0)
    left = memoryview(content)
    while left:
        left = left[os.write(0, left) :]
    os.lseek(0, 0, os.SEEK_SET)


class Used:
    """What all that a task started has used. Memory is the most that was seen in use at once; what
    came and went in between is known of the largest process, with its files."""

    def __init__(self) -> None:
        self.memory_bytes = 0
        self.cpu_s = 0.0

    def by(self, dead: resource.struct_rusage) -> None:
        """Of one that was waited for, with those that it had waited for itself."""
        self.memory_bytes = max(self.memory_bytes, dead.ru_maxrss * 1024)
        self.cpu_s += dead.ru_utime + dead.ru_stime


def watch(order: Order, task: int, wake: int, used: Used) -> tuple[str, bool]:
    """Until the task has ended or is to be ended; how it ended, in words, and whether it did not
    do so by itself."""
    control, node_fd = order["fds"]["control"], order["fds"].get("node")
    ports = order["fds"].get("ports")
    poll = select.poll()
    for fd in filter(None, (control, wake, node_fd, ports)):
        poll.register(fd, select.POLLIN)
    limits = Limits(order, used)
    stop_at, silent = None, 0
    now, read_at = 0.0, time.monotonic()
    while True:
        ready = [fd for fd, _ in poll.poll(SAMPLE_S * 1000)]
        if wake in ready:
            os.read(wake, 4096)
        if ports in ready and not lead(ports, order):
            poll.unregister(ports)
        status = reap(task, used)[1]
        if status is not None:
            code = os.waitstatus_to_exitcode(status)
            return (f"exit {code}" if code >= 0 else f"signal {-code}"), stop_at is not None
        gone = node_fd in ready if node_fd else os.getppid() != order["node"]
        said = read_control(control) if control in ready else b""
        if gone or (control in ready and said not in (STOP, NOTICE)):
            return "signal 9", True
        # Twice: what is read while it is written may be half of each.
        silent = silent + 1 if silent_for(order["fds"]["heart"]) > order["silence_s"] else 0
        if silent == 2:
            return SILENT, True
        # A machine that stood still has taken little of the task's grace.
        now += min(time.monotonic() - read_at, 2 * SAMPLE_S)
        read_at = time.monotonic()
        if said and stop_at is None:
            if said == STOP:
                stop_at = now + order["grace_s"]
            try:
                os.killpg(task, signal.SIGTERM)
            except ProcessLookupError:
                pass  # it has no group yet: SIGKILL will have to do
        if stop_at is not None and now >= stop_at:
            return "signal 9", True
        if (passed := limits.passed(now)) is not None:
            return passed, True


class Limits:
    """Of what the task, with all that it started, uses; `used` is told of its memory."""

    def __init__(self, order: Order, used: Used) -> None:
        self.order = order
        self.used = used
        self.sample_at = self.short_at = self.walk_at = 0.0
        self.walk = storage_below(order["counted"])
        self.unnamed = Unnamed(in_sandbox=order["fds"].get("node") is not None)

    def passed(self, now: float) -> str | None:
        """How the task ends, in words, where it is past one of them."""
        memory_bytes, past = self.order["memory_bytes"], None
        walks = now >= self.walk_at  # not each time that a child ends
        if walks:
            self.walk_at = now + SAMPLE_S
        if memory_bytes and walks:
            self.unnamed.look()
        if now >= self.sample_at or (now >= self.short_at and is_short()):
            before_s = time.process_time()
            past = self.past_memory(memory_bytes)
            # Of the processor, not of the clock: on a busy machine the limit holds as soon.
            took_s = time.process_time() - before_s
            self.sample_at, self.short_at = now + SAMPLE_SHARE * took_s, now + SHORT_SHARE * took_s
        if past is None and walks and self.order["storage_bytes"]:
            past = self.past_storage(self.order["storage_bytes"])
        return past

    def past_memory(self, memory_bytes: int) -> str | None:
        in_use = memory_in_use(memory_bytes, self.order["in_memory"], self.unnamed)
        self.used.memory_bytes = max(self.used.memory_bytes, in_use)
        if in_use > memory_bytes > 0:
            return f"memory {in_use}"
        # Of root's the kernel counts none.
        if self.unnamed.threads > self.order["processes"]:
            return f"processes {self.unnamed.threads}"
        return None

    def past_storage(self, storage_bytes: int) -> str | None:
        """As far as it is counted in a moment."""
        until = time.monotonic() + WALK_S
        for stored in self.walk:
            if stored > storage_bytes:
                return f"storage {stored}"
            if time.monotonic() > until:
                return None
        self.walk = storage_below(self.order["counted"])
        return None


def lead(ports: int, order: Order) -> bool:
    """Hands a socket to the node, or begins a program. False where that asks no more."""
    import _socket  # which few tasks need

    channel = _socket.socket(fileno=os.dup(ports))
    made = _socket.socket(_socket.AF_INET, _socket.SOCK_STREAM | _socket.SOCK_NONBLOCK)
    try:
        size, fds = 4 * 4, []
        asked, handed_over, _, _ = channel.recvmsg(MAX_BEGIN_BYTES, _socket.CMSG_LEN(size))
        for _, _, data in handed_over:
            fds = [int.from_bytes(data[n : n + 4], sys.byteorder) for n in range(0, size, 4)]
        if asked[:1] == BEGIN and len(fds) == 4:
            begin(order, marshal.loads(asked[2:]), fds)
            channel.send(b"\0" + asked[1:2])
            return True
        if len(asked) < 4:
            return False
        problem, address = 0, ("127.0.0.1", int.from_bytes(asked[1:3], "big"))
        try:
            if asked[:1] == LISTEN:
                made.setsockopt(_socket.SOL_SOCKET, _socket.SO_REUSEADDR, 1)
                made.bind(address)
                made.listen(64)
            else:
                made.connect(address)
        except BlockingIOError:
            pass  # it is being connected
        except OSError as error:
            problem = error.errno or errno.EIO
        fd = made.fileno().to_bytes(4, sys.byteorder)
        handed = [] if problem else [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, fd)]
        channel.sendmsg([bytes([problem]) + asked[3:]], handed)
    except OSError:
        return False  # the node is gone
    finally:
        made.close()
        channel.close()
    return True


def begin(order: Order, argv: list[str], fds: list[int]) -> None:
    """A program in the place and within the limits of the task, under a process that waits for
    it."""
    keeper = os.fork()
    if keeper:
        for fd in fds:
            os.close(fd)
        return
    try:
        signal.set_wakeup_fd(-1)
        keeper = os.getpid()
        child, is_in_group = fork(order["fds"].get("group_folder"))
        if child == 0:
            for number, fd in enumerate(fds):
                os.set_inheritable(fd, False)
                if number < 3:
                    os.dup2(fd, number)
            # What cannot be started is said where its user reads it.
            its = {**order["fds"], "control": 2}
            become({**order, "argv": argv, "stdin": b"", "fds": its}, keeper, is_in_group)
        for fd in (0, 1, 2, *fds[:3]):
            os.close(fd)
        poll = select.poll()
        poll.register(fds[3], 0)
        ended, status = 0, 0
        while not ended:
            if poll.poll(SAMPLE_S * 1000):
                os.killpg(child, signal.SIGKILL)
            ended, status = os.waitpid(child, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status)
        os.write(fds[3], bytes([code if code >= 0 else 128 - code]))
    finally:
        os._exit(0)


def silent_for(heart: int) -> float:
    """For how many seconds, asleep or awake, the node has shown no life that it said it would."""
    beat_ns = int.from_bytes(os.pread(heart, 8, 0), "little")
    return (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - beat_ns) / 1e9 if beat_ns else 0.0


def read_control(control: int) -> bytes:
    """STOP, NOTICE, NEXT, or nothing where the node has ended the talk."""
    try:
        return os.read(control, 1)
    except OSError:
        return b""


def reap(task: int, used: Used) -> tuple[bool, int | None]:
    """Whether children are left, and the status of the task where it is among the dead.

    As a subreaper this process is the parent of every orphan that the task leaves.
    """
    found = None
    while True:
        try:
            pid, status, dead = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return False, found
        if pid == 0:
            return True, found
        used.by(dead)
        if pid == task:
            found = status


def kill_all(used: Used) -> None:
    """Ends when nothing that the task started is left alive.

    Only children are killed, since only their numbers cannot have passed to another process
    before they are reaped; theirs become children of this process, and are next.
    """
    in_haste_until = time.monotonic() + HASTE_S
    while reap(0, used)[0]:
        # At once when seen: what forks and exits without end is gone a moment later.
        for pid, parent in processes():
            if parent == os.getpid():
                try:
                    os.kill(pid, signal.SIGKILL)
                except OSError:
                    pass  # it may not be killed: the next round will show
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


class Unnamed:
    """Memory that no folder and no process shows, as far as it is found: of files that the
    processes in `places` hold open (memfd_create(2)), of the kernel for their mappings, and in a
    sandbox what System V holds. Not seen are files that are only mapped, or on their way over a
    socket. `threads` is how many the processes have."""

    def __init__(self, *, in_sandbox: bool) -> None:
        self.places: list[str] = []  # as of `shown_at`, looked into from the next round on
        self.threads = 0
        self.bytes = 0
        self._in_sandbox = in_sandbox
        self._devices = {each for flags in MEMFD_KINDS if (each := device_of(flags)) is not None}
        self._found = 0
        self._round: Iterator[int] = iter(())

    def look(self, for_s: float = WALK_S) -> None:
        """For so long. What was found in the round before counts until there is more."""
        until = time.monotonic() + for_s
        for found in self._round:
            self._found = found
            self.bytes = max(self.bytes, found)
            if time.monotonic() > until:
                return
        self.bytes, self._found = self._found, 0
        self._round = self._all()

    def _all(self) -> Iterator[int]:
        """Bytes, after every segment, descriptor and some mappings."""
        used = 0
        if self._in_sandbox:  # others are those of the machine
            for used in segments():
                yield used
        seen: set[int] = set()
        for place in self.places:
            for found in open_at(place, self._in_sandbox):
                if found is not None and found.st_dev in self._devices and found.st_ino not in seen:
                    seen.add(found.st_ino)
                    used += found.st_blocks * 512
                yield used
            for mappings in mapped_at(place, self._in_sandbox):
                used += MAPPING_BYTES * mappings
                yield used


def mapped_at(place: str, in_sandbox: bool) -> Iterator[int]:
    """How many mappings a process has, part by part. In a sandbox one that shows none may have all
    that Linux allows."""
    try:
        with open(f"{place}/maps", "rb", buffering=0) as lines:
            while part := lines.read(65536):
                yield part.count(b"\n")
    except PermissionError:
        yield MAX_MAPPINGS if in_sandbox else 0
    except OSError:
        pass  # it is gone


def device_of(flags: int) -> int | None:
    """Of the files in memory that memfd_create(2) makes; None where it makes none such."""
    try:
        memory = os.memfd_create("", flags)
    except OSError:
        return None
    try:
        return os.fstat(memory).st_dev
    finally:
        os.close(memory)


def open_at(place: str, in_sandbox: bool) -> Iterator[os.stat_result | None]:
    """What a process has open; None for each that cannot be seen. Of one that shows nobody what it
    holds the list is that of the machine's root (proc_pid_fd(5)): in a sandbox, whose supervisor
    may trace it, the kernel hands over each (pidfd_getfd(2))."""
    try:
        names = os.listdir(f"{place}/fd")
    except PermissionError:
        if in_sandbox:
            yield from handed_over(place)
        return
    except OSError:
        return  # it is gone
    for name in names:
        try:
            yield os.stat(f"{place}/fd/{name}")
        except OSError:
            yield None  # closed meanwhile


def handed_over(place: str) -> Iterator[os.stat_result | None]:
    size = sum_in(read_proc(f"{place}/status"), b"FDSize:")
    try:
        process = os.pidfd_open(int(place.split("/")[2]))
    except OSError:
        return  # it is gone
    try:
        for number in range(size):
            copy = call("syscall", SYS_PIDFD_GETFD, process, number, 0)
            found = None
            if copy >= 0:
                found = os.fstat(copy)
                let_go(copy)
            yield found
    finally:
        os.close(process)


def let_go(copy: int) -> None:
    """The process may have ended, so that this closes a socket: the kernel waits for its other end,
    for as long as the task has set (SO_LINGER in socket(7)), or until a signal comes."""
    signal.setitimer(signal.ITIMER_REAL, WALK_S, WALK_S)
    try:
        os.close(copy)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def segments() -> Iterator[int]:
    """Bytes in memory of System V's shared memory, semaphores and messages, after each segment,
    set and queue (proc_sysvipc(5)). Semaphores and messages take 64 bytes each, beside a message's
    own."""
    used = 0
    for name, sizes in SYSTEM_V.items():
        try:
            with open(f"/proc/sysvipc/{name}", "rb") as lines:
                columns = next(lines).split()
                places = [(columns.index(column), size) for column, size in sizes]
                for line in lines:
                    found = line.split()
                    used += sum(int(found[place]) * size for place, size in places)
                    yield used
        except FileNotFoundError:
            pass  # a kernel without any


def memory_in_use(memory_bytes: int, in_memory: list[str], unnamed: Unnamed) -> int:
    """Bytes of memory, neither files nor swap, in use by all that the task has started, with its
    page tables, huge pages and stacks, and by the files in the folders `in_memory`, and those
    `unnamed`.

    Pages that several of them share are counted once for each at first, and only where that is
    more than `memory_bytes` in proportion, as that takes the kernel long. 0 leaves
    that out.
    """
    parents = dict(processes())
    family: dict[int, list[int]] = {}
    for pid, parent in parents.items():
        family.setdefault(parent, []).append(pid)
    found = family.get(os.getpid(), [])
    for pid in found:
        found.extend(family.get(pid, ()))
    files = unnamed.bytes + sum(
        (folder.f_blocks - folder.f_bfree) * folder.f_frsize
        + (folder.f_files - folder.f_ffree) * NAME_BYTES
        for folder in map(os.statvfs, in_memory)
    )
    shown = [shown_at(pid) for pid in found]
    unnamed.places = [place for place, *_ in shown]
    unnamed.threads = sum(threads for *_, threads in shown)
    places = zip(found, unnamed.places, strict=True)
    threads = {pid: int(place.rpartition("/")[2]) for pid, place in places}
    own = [
        each
        for pid, each in zip(found, shown, strict=True)
        if parents[pid] not in threads or not is_in_memory_of(threads[parents[pid]], threads[pid])
    ]
    tables = 1024 * sum(kib for _, _, kib, _ in own)
    most = 1024 * sum(kib for _, kib, _, _ in own) + tables + files
    if most <= memory_bytes or memory_bytes == 0:
        return most
    held = shared = 0
    for place, *_ in own:
        if 1024 * held > memory_bytes:
            break  # it is enough to know that
        rollup = read_proc(f"{place}/smaps_rollup")
        anonymous = sum_in(rollup, b"Pss_Anon:")
        shared += sum_in(rollup, b"Pss_Shmem:") if anonymous else 0
        # Of one that may not be looked into; of one that has ended meanwhile this is nothing.
        held += anonymous or held_at(place)[0]
    # A file of these that is mapped counts in both.
    return 1024 * held + tables + max(1024 * shared, files)


def is_short() -> bool:
    """Whether the machine has little memory left (proc_meminfo(5))."""
    memory = read_proc("/proc/meminfo")
    return sum_in(memory, b"MemAvailable:") < sum_in(memory, b"MemTotal:") // SHORT_PART


def is_in_memory_of(parent: int, child: int) -> bool:
    """As a program that is being started is until it has begun (vfork(2)): the kernel shows the
    same memory twice. False where the kernel does not tell. Both are threads that have not ended:
    those that have ended have no memory, which is the same for the kernel."""
    return call("syscall", SYS_KCMP, parent, child, KCMP_VM, 0, 0) == 0


def shown_at(pid: int) -> tuple[str, int, int, int]:
    """Where the kernel shows what a process holds, and what it tells there (`held_at`): at its
    first thread, or at another where that has ended before the process."""
    first = f"/proc/{pid}"
    found = first, *held_at(first)
    if found[1]:
        return found
    try:
        others = os.listdir(f"{first}/task")
    except OSError:
        return found  # it is gone
    for other in others:
        place = f"{first}/task/{other}"
        held = held_at(place)
        if held[0]:
            return place, *held
    return found


def held_at(place: str) -> tuple[int, int, int]:
    """KiB of memory, and of what else its process takes alone, and threads."""
    status = read_proc(f"{place}/status")
    memory, threads = sum_in(status, b"RssAnon:", b"RssShmem:"), sum_in(status, b"Threads:")
    alone = sum_in(status, b"VmPTE:", b"HugetlbPages:") + STACK_KIB * threads
    return memory, alone, threads


def storage_below(folders: list[str]) -> Iterator[int]:
    """Bytes on the disk that all below the folders takes, as far as counted; after every entry,
    of which each counts as LEAST_FILE_BYTES at least."""
    used = 0
    linked: set[int] = set()
    waiting = list(folders)
    while waiting:
        place = waiting.pop()
        try:
            with os.scandir(place) as entries:
                for entry in entries:
                    found = entry.stat(follow_symlinks=False)
                    if stat.S_ISDIR(found.st_mode):
                        waiting.append(entry.path)
                    elif found.st_nlink > 1 and found.st_ino in linked:
                        yield used
                        continue
                    elif found.st_nlink > 1:
                        linked.add(found.st_ino)
                    used += max(found.st_blocks * 512, LEAST_FILE_BYTES)
                    yield used
        except FileNotFoundError:
            pass  # meanwhile; what else is there is counted the next time
        except PermissionError:
            os.chmod(place, 0o700)  # it is the task's own, which cannot hide there
        except OSError as problem:
            if problem.errno == errno.ENAMETOOLONG:
                yield UNCOUNTABLE


def sum_in(text: bytes, *names: bytes) -> int:
    return sum(int(line.split()[1]) for line in text.splitlines() if line.startswith(names))


def read_proc(path: str) -> bytes:
    """Empty where the process is gone."""
    try:
        with open(path, "rb", buffering=0) as file:
            return file.read(65536)
    except OSError as problem:
        if problem.errno == errno.EMFILE:
            raise  # the task has limited this process: it is not to go uncounted
        return b""


if __name__ == "__main__":
    main()
