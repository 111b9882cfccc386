"""What holds a task to the share of the machine that its lease reserved, as numbers.

Two sets of limits follow from one share. Resource limits (setrlimit(2)) work everywhere, one
process at a time. Control groups (Linux, cgroup-v2.rst) hold a task and all that it starts
together, where the node may make them. `drivers/` applies both.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from formation_p2p.core.units import GIB, MIB
from formation_p2p.workload.core.work import MIN_MEMORY_BYTES

# setrlimit(2): what a process may map for itself and write to, touched or not. Allocators and
# thread stacks map more than they touch, so this does not measure memory; it stops the process
# that would grow faster than memory is sampled.
_DATA_SLACK_BYTES: Final = 512 * MIB
# As many as a service gets from systemd before select(2) breaks, times four.
MAX_OPEN_FILES: Final = 4096
# A checkpoint of a large model fits; a log that never ends does not fill the disk.
MAX_FILE_BYTES: Final = 64 * GIB
# Processes and threads of one task: the thread pools of a large machine fit, a fork bomb does
# not. Only a control group can hold it: RLIMIT_NPROC counts all that the user runs, the node too.
MAX_PROCESSES: Final = 4096
# Of messages in queues (mq_overview(7)), which the kernel counts for all processes of a user: one
# with ten messages of the usual size, twice.
_MAX_QUEUED_BYTES: Final = 192 * 1024
# A page of a page table stands for so many pages of address space.
_TABLE_PAGES: Final = 512
# cgroup-v2.rst: the kernel's own default period for cpu.max, in microseconds.
_CPU_PERIOD_US: Final = 100_000


@dataclass(frozen=True, slots=True)
class TaskLimits:
    """The share of one task, or of one warm environment: thousandths of a core, and bytes.

    `storage_bytes` is what it may leave in its own folder, without limit where it is 0. `network`
    is whether it asked for one; a sandbox gives it to no other.
    """

    cpu_milli: int
    memory_bytes: int
    storage_bytes: int = 0
    network: bool = False

    @property
    def cores(self) -> int:
        """Whole cores to run on: the share, rounded up, and never none."""
        return max(1, -(-self.cpu_milli // 1000))

    @property
    def enforced_memory_bytes(self) -> int:
        return max(self.memory_bytes, MIN_MEMORY_BYTES)

    @property
    def resource_limits(self) -> dict[str, int]:
        """By their names in setrlimit(2); each is meant as soft and hard limit."""
        return {
            "RLIMIT_CORE": 0,
            "RLIMIT_DATA": 2 * self.enforced_memory_bytes + _DATA_SLACK_BYTES,
            "RLIMIT_FSIZE": min(MAX_FILE_BYTES, self.storage_bytes or MAX_FILE_BYTES),
            "RLIMIT_NOFILE": MAX_OPEN_FILES,
            # Signals that wait, and timers: one for each of its threads.
            "RLIMIT_SIGPENDING": MAX_PROCESSES,
            "RLIMIT_MSGQUEUE": _MAX_QUEUED_BYTES,
        }

    @property
    def address_space(self) -> dict[str, int]:
        """Where the kernel counts no memory: so much that its page tables can take as much as its
        data. What programs reserve and do not touch fits: 320 GiB is the least."""
        return {"RLIMIT_AS": _TABLE_PAGES * self.resource_limits["RLIMIT_DATA"]}

    @property
    def group_files(self) -> dict[str, str]:
        """What to write into the files of a control group (v2), by file.

        Swap is held at none: a task that swaps holds back its neighbours, not just itself.
        """
        # cgroup-v2.rst: a quota below 1 ms is refused.
        quota_us = max(1000, self.cpu_milli * _CPU_PERIOD_US // 1000)
        return {
            "cpu.max": f"{quota_us} {_CPU_PERIOD_US}",
            "memory.max": str(self.enforced_memory_bytes),
            "memory.oom.group": "1",
            "memory.swap.max": "0",
            "pids.max": str(MAX_PROCESSES),
        }
