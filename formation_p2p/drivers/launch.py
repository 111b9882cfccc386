"""What to start under a supervisor, and how `supervisor.py` is told."""

from __future__ import annotations

import marshal
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from formation_p2p.drivers import seccomp
from formation_p2p.drivers.bubblewrap import Bubblewrap
from formation_p2p.drivers.core.limits import MAX_PROCESSES, TaskLimits
from formation_p2p.drivers.heartbeat import SILENCE_S
from formation_p2p.drivers.machine import vendors_of
from formation_p2p.drivers.place import OwnNetwork
from formation_p2p.drivers.ports import PortUser
from formation_p2p.drivers.supervisor import GRACE_S


@dataclass(frozen=True, slots=True)
class Launch:
    """What to start: `folder` is where, `passed_fds` are the descriptors it gets beside 0 to 2,
    `shown` the folders that it may read in a sandbox beside what all tasks may, `writable` those
    that it may write to beside its own, `counted` those of them whose content its lease has to
    hold. `root` is its own folder where that is not `folder` but a folder above it, for several
    tasks of a lease. `network` is one of its own, if any; `ports` is given the ports that it has in
    its network; `lease_id` is the lease that it is for; `grace_s` is how long it may take to end
    once it is asked to."""

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    limits: TaskLimits
    stdin: bytes = b""
    passed_fds: tuple[int, ...] = ()
    shown: tuple[Path, ...] = ()
    writable: tuple[Path, ...] = ()
    counted: tuple[Path, ...] = ()
    root: Path | None = None
    network: OwnNetwork | None = None
    ports: PortUser | None = None
    lease_id: str = ""
    grace_s: float = GRACE_S

    @property
    def own(self) -> Path:
        return self.root or self.folder


@dataclass(frozen=True, slots=True)
class Orders:
    """What the tasks under one supervisor have in common. `holds_memory`: the kernel counts it."""

    fds: dict[str, int]  # that of a control group too, since a sandbox shows none to write to
    cores: tuple[int, ...]
    sandbox: Bubblewrap | None
    in_memory: tuple[str, ...]
    holds_memory: bool
    stays: bool
    filter: tuple[int, bytes] | None = None  # of system calls, with the number of seccomp(2)

    def order(self, launch: Launch) -> bytes:
        """For the next of them. Both ends are the same interpreter, and no other program writes
        it: that is what marshal is for, and json takes 9 ms to import."""
        limits, sandbox = launch.limits, self.sandbox
        resource_limits = limits.resource_limits
        if sandbox is not None:
            resource_limits |= sandbox.resource_limits
        # CUDA reserves as much address space as all memory of the machine and of its GPUs.
        if not self.holds_memory and not vendors_of(launch.environment):
            resource_limits |= limits.address_space
        return marshal.dumps(
            {
                "node": os.getpid(),
                "fds": self.fds,
                "argv": list(launch.argv),
                "env": dict(launch.environment),
                "stdin": launch.stdin,
                "folder": str(launch.folder),
                "counted": [str(each) for each in (launch.own, *launch.counted)],
                "again": self.stays,
                "silence_s": SILENCE_S,
                "cores": list(self.cores),
                "resource_limits": resource_limits,
                "processes": MAX_PROCESSES,
                "limits_user": sandbox is not None and sandbox.limits_user,
                # 0 where the kernel itself counts.
                "memory_bytes": 0 if self.holds_memory else limits.enforced_memory_bytes,
                "in_memory": list(self.in_memory),
                "storage_bytes": limits.storage_bytes,
                "grace_s": launch.grace_s,
                "filter": self.filter,
                "keyctl": seccomp.number_of("keyctl"),
            }
        )
