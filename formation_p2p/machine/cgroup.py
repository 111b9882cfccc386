"""What the control groups around this process allow it: the container's limits, not the host's.

Version 1, version 2 and both side by side. A limit may sit on any group from the process's own
up to the topmost that is mounted here; the least on that path holds.

Source: the kernel's admin guide, cgroup-v1/memory, cgroup-v2 and scheduler/sched-bwc; proc(5) for
`mountinfo` and cgroups(7) for `/proc/self/cgroup`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from formation_p2p.core.units import MAX_BYTES

# `id parent major:minor root mountpoint options [optional…] - type source superoptions`
MOUNT: Final = re.compile(r"^\S+ \S+ \S+ (\S+) (\S+) .*? - (cgroup2?) \S+ (\S+)$", re.MULTILINE)
_OCTAL: Final = re.compile(r"\\([0-7]{3})")

# The limit, the use, and what memory.stat calls the cache that is dropped before anyone is
# killed: version 2, then version 1. The names differ, so a folder has one set or none.
_MEMORY_FILES: Final = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


@dataclass(frozen=True, slots=True)
class CgroupLimits:
    """None where nothing limits. `memory_free_bytes` is what the tightest group has left.

    `notes` name, in words, what could not be read.
    """

    cpu_milli: int | None = None
    memory_bytes: int | None = None
    memory_free_bytes: int | None = None
    notes: tuple[str, ...] = ()


def read_cgroup(proc: Path = Path("/proc/self"), root: Path = Path("/")) -> CgroupLimits:
    """Reads `proc`/cgroup and `proc`/mountinfo, and what these name below `root`.

    Never raises: what cannot be read limits nothing, and a note says so.
    """
    cpu: list[int] = []
    memory: list[tuple[int, int]] = []
    notes: list[str] = []
    try:
        folders = list(_own_folders(proc, root))
    except (OSError, ValueError) as problem:
        folders = []
        notes.append(f"the control groups cannot be read: {problem}")
    for folder in folders:
        try:
            cpu += _cpu_limit(folder)
            memory += _memory_limit(folder)
        except (OSError, ValueError) as problem:
            notes.append(f"a limit in {folder} cannot be read: {problem}")
    return CgroupLimits(
        min(cpu, default=None),
        min((limit for limit, _ in memory), default=None),
        min((max(0, limit - used) for limit, used in memory), default=None),
        tuple(notes),
    )


def _own_folders(proc: Path, root: Path) -> Iterator[Path]:
    """The folders of this process's groups and of all their parents, in every hierarchy."""
    group_of: dict[str, str] = {}
    for line in (proc / "cgroup").read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        # Version 2 has a single entry, without controllers.
        group_of.update(dict.fromkeys(controllers.split(","), path))
    for mounted, point, kind, options in MOUNT.findall((proc / "mountinfo").read_text()):
        names = [""] if kind == "cgroup2" else options.split(",")
        group = next((group_of[name] for name in names if name in group_of), None)
        if group is None:
            continue
        top = root / _unescaped(point).lstrip("/")
        own = _below(PurePosixPath(_unescaped(mounted)), PurePosixPath(group))
        yield from filter(Path.is_dir, (top / each for each in (own, *own.parents)))


def _below(mounted: PurePosixPath, group: PurePosixPath) -> PurePosixPath:
    """Where a group is in a tree whose root shows `mounted`; that root if it is not in it.

    The latter is what a container sees that has the host's /proc but its own mount, or a
    process outside its cgroup namespace (`/../other`).
    """
    if not group.is_relative_to(mounted) or ".." in group.parts:
        return PurePosixPath()
    return group.relative_to(mounted)


def _unescaped(path: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), path)


def _read(file: Path) -> str | None:
    """None where the file does not exist: the controller is off here, or this is the root."""
    try:
        return file.read_text().strip()
    except FileNotFoundError:
        return None


def _cpu_limit(folder: Path) -> list[int]:
    """Thousandths of a core that the bandwidth quota comes to; empty where there is none."""
    both = _read(folder / "cpu.max")
    if both is None:  # version 1, or no such controller
        quota = _read(folder / "cpu.cfs_quota_us") or "-1"
        both = f"{quota} {_read(folder / 'cpu.cfs_period_us')}"
    quota, period = both.split()
    if quota in ("max", "-1"):
        return []
    if int(period) <= 0:
        raise ValueError(f"a period of {period}")
    return [max(1, int(quota) * 1000 // int(period))]


def _memory_limit(folder: Path) -> Iterator[tuple[int, int]]:
    """Limit and use in bytes; nothing where memory is unlimited."""
    for limit_file, usage_file, cache_key in _MEMORY_FILES:
        limit = _read(folder / limit_file)
        # Version 1 writes "no limit" as the largest multiple of a page below 2**63.
        if limit is None or limit == "max" or int(limit) > MAX_BYTES:
            continue
        used = int(_read(folder / usage_file) or 0)
        stat = dict(line.split() for line in (_read(folder / "memory.stat") or "").splitlines())
        yield int(limit), max(0, used - int(stat.get(cache_key, 0)))
