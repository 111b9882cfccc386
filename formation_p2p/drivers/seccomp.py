"""The system calls that tasks do without: a filter that the kernel runs (seccomp(2)).

What a task of this machine needs no privilege for, and reaches parts of the kernel that hold what
is not the task's, or that its namespaces do not part: keyrings, other processes' memory, programs
that the kernel itself runs, mounts and further namespaces. Each is refused by its name. Numbers
that the kernel got later than this table are as they were before, so that C libraries and programs
take the way around that they have for older kernels.

Sources: <linux/filter.h>, <linux/seccomp.h>, <linux/audit.h>, <asm/unistd.h>, clone(2).
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from functools import cache
from typing import Final

# By name, the numbers on x86_64 and on aarch64, 0 where there is none.
REFUSED: Final = {
    # What the user keeps in the kernel.
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # Other processes.
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "pidfd_getfd": (438, 438),
    "kcmp": (312, 272),
    # Programs in the kernel, and work that it does in the place of calls.
    "perf_event_open": (298, 241),
    "bpf": (321, 280),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "modify_ldt": (154, 0),
    # Memory that is counted nowhere, and watches that are counted for the user alone.
    "memfd_secret": (447, 447),
    "fanotify_init": (300, 262),
    # Mounts, and files by other ways than their paths.
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_by_handle_at": (304, 265),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    "setns": (308, 268),
    # A task's turns at the disk, which are to come after the node's.
    "ioprio_set": (251, 30),
    # The machine as a whole, for a worker that root runs.
    "acct": (163, 89),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "syslog": (103, 116),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "vhangup": (153, 58),
    "iopl": (172, 0),
    "ioperm": (173, 0),
}
# Refused where the kernel does not hold a task to its share of the cores.
AFFINITY: Final = {"sched_setaffinity": (203, 122)}
# Allowed without the flags for new namespaces: their first argument.
NAMESPACES: Final = {"clone": (56, 220), "unshare": (272, 97)}
# Allowed without S_ISUID and S_ISGID, in the argument of that place: in a folder that is lent to be
# written to, other users of the machine would find a program that runs as the worker's user.
MODES: Final = {
    "chmod": (90, 0),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
}
_PLACE: Final = {"chmod": 1, "fchmod": 1, "fchmodat": 2, "fchmodat2": 2}
# Allowed for these families alone: AF_UNIX, AF_INET, AF_INET6, AF_NETLINK. Others reach what no
# network namespace parts, such as the hypervisor and programs of the machine by AF_VSOCK.
SOCKETS: Final = {"socket": (41, 198), "socketpair": (53, 199)}
FAMILIES: Final = (1, 2, 10, 16)
# Of others, which are a task's supervisor or where there is no sandbox the node: a limit may be
# read, and none set. By one of open files a supervisor saw no process of its task any more.
LIMITS: Final = {"prlimit64": (302, 261)}
# Its flags are in memory, which no filter sees. The C library uses clone where it is not there.
ABSENT: Final = {"clone3": (435, 435)}
# file_setattr, of Linux 6.17.
NEWEST: Final = 469
OWN: Final = {"seccomp": (317, 277)}
# By the name of the machine (uname(2)): the column, and AUDIT_ARCH.
MACHINES: Final = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

# CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET; to unshare also NEWTIME, which is
# part of a signal's number to clone.
_NEW: Final = 0x7E020000
_NEW_TIME: Final = 0x80
_SET_ID: Final = 0o6000
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
# In struct seccomp_data; of an argument the lower half comes first.
_NUMBER, _MACHINE, _FIRST_ARGUMENT, _THIRD_ARGUMENT = 0, 4, 16, 32
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_GET_ACTION_AVAIL: Final = 2


def number_of(call: str, machine: str = os.uname().machine) -> int:
    """0 where the machine has no such call, or is none of MACHINES."""
    some = {**NAMESPACES, **MODES, **SOCKETS, **LIMITS}
    numbers = {**REFUSED, **AFFINITY, **some, **ABSENT, **OWN}[call]
    return numbers[MACHINES[machine][0]] if machine in MACHINES else 0


@cache
def program(*, holds_cores: bool, machine: str = os.uname().machine) -> bytes:
    """For SECCOMP_SET_MODE_FILTER, on one of MACHINES."""
    column, architecture = MACHINES[machine]
    refused = REFUSED if holds_cores else {**REFUSED, **AFFINITY}
    rules = {each[column]: errno.EPERM for each in refused.values() if each[column]}
    rules |= {each[column]: errno.ENOSYS for each in ABSENT.values()}
    # A program for another machine, such as i386, has other numbers.
    code = [
        (_LOAD, 0, 0, _MACHINE),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        # Those of x32 have a high bit too.
        (_AT_LEAST, 0, 1, NEWEST + 1),
        (_RETURN, 0, 0, _ERROR | errno.ENOSYS),
    ]
    for number, error in rules.items():
        code += [(_EQUAL, 0, 1, number), (_RETURN, 0, 0, _ERROR | error)]
    flagged = [(NAMESPACES["clone"], 0, _NEW), (NAMESPACES["unshare"], 0, _NEW | _NEW_TIME)]
    flagged += [(numbers, _PLACE[call], _SET_ID) for call, numbers in MODES.items()]
    for numbers, place, flags in flagged:
        if numbers[column]:
            code += [
                (_EQUAL, 0, 4, numbers[column]),
                (_LOAD, 0, 0, _FIRST_ARGUMENT + 8 * place),
                (_ANY_BIT, 0, 1, flags),
                (_RETURN, 0, 0, _ERROR | errno.EPERM),
                (_RETURN, 0, 0, _ALLOW),
            ]
    for numbers in SOCKETS.values():
        code += [
            (_EQUAL, 0, len(FAMILIES) + 2, numbers[column]),
            (_LOAD, 0, 0, _FIRST_ARGUMENT),
            *((_EQUAL, len(FAMILIES) - at, 0, each) for at, each in enumerate(FAMILIES)),
            (_RETURN, 0, 0, _ERROR | errno.EAFNOSUPPORT),
        ]
    code += [
        (_EQUAL, 0, 8, LIMITS["prlimit64"][column]),
        (_LOAD, 0, 0, _FIRST_ARGUMENT),
        (_EQUAL, 4, 0, 0),  # its own
        (_LOAD, 0, 0, _THIRD_ARGUMENT),
        (_EQUAL, 0, 3, 0),
        (_LOAD, 0, 0, _THIRD_ARGUMENT + 4),
        (_EQUAL, 0, 1, 0),
        (_RETURN, 0, 0, _ALLOW),
        (_RETURN, 0, 0, _ERROR | errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]
    return b"".join(struct.pack("=HBBI", *each) for each in code)


@cache
def why_none() -> str | None:
    """Why no filter holds tasks here; None where one does."""
    if (machine := os.uname().machine) not in MACHINES:
        return f"there is no filter of system calls for {machine}"
    action, number = ctypes.c_uint32(_ERROR), number_of("seccomp")
    if ctypes.CDLL(None).syscall(number, _GET_ACTION_AVAIL, 0, ctypes.byref(action)):
        return "this kernel filters no system calls (CONFIG_SECCOMP_FILTER, Linux 4.14)"
    return None
