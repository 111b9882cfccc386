"""What the soak's calls compute. The code travels with them."""

# The code that looks for ways out starts fast, and uses few modules.
# ruff: noqa: PTH118, PTH110, PTH114, PTH123, PTH208

import ctypes
import hashlib
import mmap
import os
import platform
import signal
import stat
import threading
import time
from typing import Any


def squared(number: int) -> int:
    time.sleep(0.02)
    return number * number


def doubled(data: bytes) -> bytes:
    return data + data


def digest(numbered: tuple[int, bytes]) -> tuple[int, str]:
    number, data = numbered
    return number, hashlib.sha256(data).hexdigest()


def _is_socket(path: str) -> bool:
    try:
        return stat.S_ISSOCK(os.lstat(path).st_mode)
    except FileNotFoundError:
        return False  # removed meanwhile


def escaped(checkout: str) -> list[str]:
    """The ways out of its sandbox that a task finds: none. `checkout` is the folder of the program
    that has it done."""
    found = []
    for top in os.listdir("/"):
        if top in ("proc", "sys", "usr", "nix", "gnu") or os.path.islink(f"/{top}"):
            continue
        for folder, _, names in os.walk(f"/{top}"):
            paths = [os.path.join(folder, name) for name in names]
            found += [path for path in paths if _is_socket(path)]
            found += [path for path in paths if path.endswith(("/identity.key", "/root.key"))]
    found += [
        name for name in ("setup.cfg", "tests", ".git") if os.path.exists(f"{checkout}/{name}")
    ]
    try:
        with open("/proc/self/oom_score_adj", "w") as file:
            file.write("0")
        found.append("oom_score_adj")
    except OSError:
        pass
    if platform.machine() == "x86_64":
        # keyctl(KEYCTL_GET_KEYRING_ID, the user's), ptrace(PTRACE_TRACEME), unshare(CLONE_NEWUSER),
        # io_uring_setup, bpf, of <asm/unistd_64.h>.
        system = ctypes.CDLL(None, use_errno=True).syscall
        calls: list[tuple[Any, ...]] = [(250, 0, -4, 0), (101, 0, 0, 0), (272, 0x10000000)]
        calls += [(425, 1, 0), (321, 0, 0, 0)]
        # prlimit64, the open files of another; fchmod, setuid.
        limit = (ctypes.c_uint64 * 2)()
        system(302, os.getppid(), 7, 0, limit)
        own = os.memfd_create("own")
        calls += [(302, os.getppid(), 7, limit, 0), (91, own, 0o4755)]
        found += [f"system call {call[0]}" for call in calls if system(*call) >= 0]
        os.close(own)
    watches: list[int] = []
    notify = ctypes.CDLL(None).inotify_init
    while len(watches) < 100 and (made := notify()) >= 0:
        watches.append(made)
    for made in watches:
        os.close(made)
    if len(watches) == 100:
        found.append("inotify")
    # Of those that may wait for all processes of a user, 4,096 are a task's.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGRTMIN})
    queue = ctypes.CDLL(None).sigqueue
    if all(queue(os.getpid(), signal.SIGRTMIN, None) == 0 for _ in range(5000)):
        found.append("signals")
    return found


def takes(what: str) -> str:
    """Take more than a lease, of what is no data of the task's. It is ended meanwhile, or refused:
    returns what it still has after some time."""
    if what == "tables":
        # Each page that is read takes a page of a table, beside the one page of zeros that all are.
        much = 200 << 30
        held = mmap.mmap(-1, much, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x4000, mmap.PROT_READ)
        held.madvise(15)  # MADV_NOHUGEPAGE
        for place in range(0, much, 1 << 21):
            held[place]
    elif what == "messages":
        libc = ctypes.CDLL(None)
        message = ctypes.create_string_buffer(b"\1" * 8200)
        queues = [libc.msgget(0, 0o1600) for _ in range(32000)]
        for queue in queues * 2:
            libc.msgsnd(queue, message, 8192, 0o4000)  # IPC_NOWAIT
    else:
        # Of those of a user all may be taken.
        threading.stack_size(32768)
        try:
            for _ in range(5000):
                threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        except RuntimeError:
            return ""
    time.sleep(30)
    return what
