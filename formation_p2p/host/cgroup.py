"""What the control groups around this process allow it: the container's limits, not the host's.

Version 1, version 2 and both side by side; a limit may sit on any group from the process's own
up to the root that is mounted here, so the least on that path holds.

Source: the kernel's admin-guide, cgroup-v1/memory, scheduler/sched-bwc and cgroup-v2; proc(5) and
cgroups(7) for `/proc/self/cgroup` and `mountinfo`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

# `id parent major:minor root mountpoint options [optional…] - type source superoptions`
_MOUNT: Final = re.compile(r"\S+ \S+ \S+ (\S+) (\S+) .*? - (cgroup2?) \S+ (\S+)")
_OCTAL: Final = re.compile(r"\\([0-7]{3})")


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """None where nothing limits. `memory_free_bytes` is what the tightest group has left.

    Memory that holds cached files counts as free, as the kernel drops it before it kills.
    `notes` tell, in words, of what was there and could not be read.
    """

    cpu_milli: int | None = None
    memory_bytes: int | None = None
    memory_free_bytes: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Hierarchy:
    """A mounted cgroup tree, and the names of the files in it."""

    root: PurePosixPath  # which group is mounted
    mounted_at: Path
    cpu: bool
    memory_files: tuple[str, str, str] | None  # limit, usage, the cache's key in memory.stat
    version: int


_V2_MEMORY: Final = ("memory.max", "memory.current", "inactive_file")
_V1_MEMORY: Final = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def read_cgroup(proc: Path = Path("/proc/self"), root: Path = Path("/")) -> CgroupLimits:
    """Reads `proc`/cgroup and `proc`/mountinfo; mount points are taken below `root`.

    Never raises: what cannot be read limits nothing, and a note says so.
    """
    try:
        memberships = _memberships((proc / "cgroup").read_text())
        mounts = _MOUNT.findall((proc / "mountinfo").read_text())
    except (OSError, ValueError) as problem:
        return CgroupLimits(notes=(f"control groups cannot be read: {problem}",))
    cpu: list[int] = []
    memory: list[int] = []
    memory_free: list[int] = []
    notes: list[str] = []
    for mounted_group, mount_point, kind, options in mounts:
        controllers = frozenset() if kind == "cgroup2" else frozenset(options.split(","))
        group = _own_group(memberships, controllers)
        if group is None:
            continue
        mounted_at = root / _unescaped(mount_point).lstrip("/")
        for folder in _path_up(PurePosixPath(_unescaped(mounted_group)), mounted_at, group):
            try:
                cpu += _cpu_limit(folder)
                for limit, used in _memory_limit(folder):
                    memory.append(limit)
                    memory_free.append(max(0, limit - used))
            except (OSError, ValueError) as problem:
                notes.append(f"a limit in {folder} cannot be read: {problem}")
    return CgroupLimits(
        min(cpu, default=None),
        min(memory, default=None),
        min(memory_free, default=None),
        tuple(notes),
    )
