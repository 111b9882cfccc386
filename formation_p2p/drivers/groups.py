"""Control groups (Linux, cgroup-v2.rst), where this process may make them.

They hold a task and all that it starts together: processor time, memory, number of processes,
and one file that kills the lot. Where they are not to be had (no v2 hierarchy, not delegated)
the drivers do without, and `supervised.py` says what that costs.

systemd hands them over with, in the unit of the node:

    Delegate=yes
    DelegateSubgroup=node
"""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

import trio

from formation_p2p.drivers.core.limits import TaskLimits
from formation_p2p.machine.cgroup import MOUNT

_log = logging.getLogger(__name__)

_PREFIX: Final = "formation-"
# Of all nodes of this process: a group is there for as long as a lease.
_NUMBERS: Final = itertools.count()
# What the limits need (drivers/core/limits.py).
CONTROLLERS: Final = ("cpu", "memory", "pids")
# A killed process leaves its group within milliseconds, unless the kernel itself holds it; then
# the group stays until a later start of the node sweeps it.
_REMOVE_TRIES: Final = 50
_REMOVE_PAUSE_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class ProcessGroup:
    """The group of one task, in force for whatever is put into its `cgroup.procs`."""

    path: Path

    @property
    def holds_memory(self) -> bool:
        """Whether the kernel keeps it to its memory limit."""
        return (self.path / "memory.max").exists()

    @property
    def holds_cores(self) -> bool:
        """Whether the kernel keeps it to its share of the processor."""
        return (self.path / "cpu.max").exists()

    def ran_out_of_memory(self) -> bool:
        """Whether the kernel killed in it at its memory limit."""
        with suppress(OSError):
            events = (self.path / "memory.events").read_text().split()
            return dict(zip(events[::2], events[1::2], strict=False)).get("oom_kill", "0") != "0"
        return False


@dataclass(frozen=True, slots=True)
class Groups:
    """Makes groups below one folder of the hierarchy that is this process's to use."""

    parent: Path

    @classmethod
    def found(cls) -> Groups | None:
        """None where this process may make no groups. Removes those of nodes that were killed.

        A group that limits its children may hold no processes itself (cgroup-v2.rst, "no internal
        processes"), so the tasks' groups go beside the node's own. They go below a parent that
        was delegated, or the root of the hierarchy as this process sees it, and nowhere else.
        """
        try:
            parent = _place(
                Path("/proc/self/mountinfo").read_text(), Path("/proc/self/cgroup").read_text()
            )
        except OSError:
            return None
        if parent is None or not os.access(parent, os.W_OK):
            return None
        groups = cls(parent)
        groups.sweep()
        for controller in CONTROLLERS:
            # Refused where it is not offered, or where processes stand in the way. The groups
            # then lack its files, and their limits fall to what the supervisor does.
            with suppress(OSError):
                (parent / "cgroup.subtree_control").write_text(f"+{controller}")
        return groups

    def sweep(self) -> None:
        """Removes the groups of processes that are no more. Of those in other namespaces, such as
        the containers of this machine, nobody can tell here."""
        for path in self.parent.glob(f"{_PREFIX}*-{_namespace()}-*"):
            owner = path.name.removeprefix(_PREFIX).partition("-")[0]
            if not Path("/proc", owner).exists():
                _kill(path)
                _removed(path)  # or else at the next start, should the kernel hold it

    @asynccontextmanager
    async def group(self, limits: TaskLimits) -> AsyncIterator[ProcessGroup]:
        """A new group; at the end it is removed with all that still runs in it.

        Raises OSError. Limits whose controller is not to be had are left out.
        """
        path = self.parent / f"{_PREFIX}{os.getpid()}-{_namespace()}-{next(_NUMBERS)}"
        path.mkdir()
        try:
            for name, value in limits.group_files.items():
                # Opened without creating: a group has only the files of its controllers.
                with suppress(FileNotFoundError), (path / name).open("r+") as file:
                    file.write(value)
            yield ProcessGroup(path)
        finally:
            with trio.CancelScope(shield=True):
                await _remove(path)


def _namespace() -> int:
    """In which the number of this process is its own (pid_namespaces(7))."""
    return Path("/proc/self/ns/pid").stat().st_ino


def _place(mountinfo: str, own_groups: str) -> Path | None:
    """The folder for tasks' groups, of proc_pid_mountinfo(5) and the process's cgroups(7)."""
    own = next((line[3:] for line in own_groups.splitlines() if line.startswith("0::")), "")
    for shown, mount, kind, _ in MOUNT.findall(mountinfo):
        if kind == "cgroup2" and PurePosixPath(own).is_relative_to(shown):
            below = PurePosixPath(own).relative_to(shown)
            parent = Path(mount) / below.parent
            return parent if len(below.parts) <= 1 or _delegated(parent) else None
    return None


def _delegated(group: Path) -> bool:
    """systemd.resource-control(5) marks what it hands over."""
    with suppress(OSError):
        return os.getxattr(group, "user.delegate") == b"1"
    return False


def _kill(group: Path) -> None:
    with suppress(OSError):  # the file exists from Linux 5.14 on
        (group / "cgroup.kill").write_text("1")


async def _remove(group: Path) -> None:
    _kill(group)
    for _ in range(_REMOVE_TRIES):
        if _removed(group):
            return
        await trio.sleep(_REMOVE_PAUSE_S)
    _log.warning("control group %s stays: the kernel still holds what ran in it", group)


def _removed(group: Path) -> bool:
    with suppress(OSError):
        group.rmdir()
        return True
    return False
