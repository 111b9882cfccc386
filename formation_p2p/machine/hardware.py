"""What this machine is and what of it is free, as far as this process may use it.

What is kept for the rest of the machine where a person sets nothing: a tenth of the memory,
between 256 MiB and 4 GiB, for the system and the node itself; 1 GiB of storage, so that a task
that fills its disk does not take the node's own state with it; no core, since the scheduler of
the operating system shares those fairly.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil
import pynvml

from formation_p2p.core.errors import InvalidInput
from formation_p2p.core.units import GIB, MIB
from formation_p2p.machine.cgroup import CgroupLimits, read_cgroup
from formation_p2p.machine.core.bounds import MAX_NETWORK_MBPS
from formation_p2p.machine.core.capability import Capability, Capacity, GpuFree, Limits, limited
from formation_p2p.machine.core.gpu import WHOLE_GPU_MILLI
from formation_p2p.machine.gpus import (
    Found,
    GpuReading,
    read_all,
    read_amd,
    read_apple,
    read_gpus,
    read_intel,
)
from formation_p2p.machine.platform import usable_cores

LEAST_MEMORY_KEPT_BYTES: Final = 256 * MIB
MOST_MEMORY_KEPT_BYTES: Final = 4 * GIB
STORAGE_KEPT_BYTES: Final = GIB


@dataclass(frozen=True, slots=True)
class Hardware:
    """`capability` is what tasks may use; `capacity` what of that is idle at the moment.

    `capacity` counts all programs of the machine, this node's tasks among them. Storage is what
    is free now in both. `gpu_utilisation` has device ids and percent, for display. `notes` say,
    in words, what could not be read.
    """

    capability: Capability
    capacity: Capacity
    gpu_utilisation: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = ()


def probe(
    scratch: Path,
    limits: Limits | None = None,
    *,
    nvml: Any = pynvml,
    proc: Path = Path("/proc/self"),
    root: Path = Path("/"),
) -> Hardware:
    """Measures the machine; `scratch` is the folder that tasks will write to.

    Blocks (see `Read` in gpus.py). Raises InvalidInput for a limit that the hardware does not have,
    and for a scratch folder that is not there.
    """
    cgroup = read_cgroup(proc, root)
    # A person who offers no GPU also has a way past a driver that hangs.
    no_gpus = limits is not None and limits.gpu_count == 0
    gpus, gpu_notes = ((), ()) if no_gpus else gpus_of_machine(nvml, root)
    hardware = Capability(
        # The cores that it may be scheduled on (cpusets included), or its quota if less.
        cpu_milli=_least(usable_cores() * 1000, cgroup.cpu_milli),
        memory_bytes=_least(psutil.virtual_memory().total, cgroup.memory_bytes),
        storage_bytes=_storage_free(scratch),
        network_mbps=network_mbps(root / "sys/class/net"),
        gpus=tuple(each.gpu for each in gpus),
        arch=_name(platform.machine()),
        os=_name(platform.system()),
    )
    memory_kept = max(
        LEAST_MEMORY_KEPT_BYTES, min(hardware.memory_bytes // 10, MOST_MEMORY_KEPT_BYTES)
    )
    offered = replace(
        hardware,
        memory_bytes=max(0, hardware.memory_bytes - memory_kept),
        storage_bytes=max(0, hardware.storage_bytes - STORAGE_KEPT_BYTES),
    )
    capability = limited(limits or Limits(), offered, hardware)
    used = gpus[: len(capability.gpus)]
    return Hardware(
        capability,
        _free(capability, cgroup, used),
        tuple(
            (each.gpu.device_id, each.utilisation_percent)
            for each in used
            if each.utilisation_percent is not None
        ),
        (*cgroup.notes, *gpu_notes),
    )


def gpus_of_machine(nvml: Any = pynvml, root: Path = Path("/")) -> Found:
    """Of all vendors, with notes on what is left out. Blocks; never raises."""
    own = (partial(read_gpus, nvml), partial(read_amd, root), partial(read_intel, root))
    return read_all((*own, read_apple))


def network_mbps(interfaces: Path = Path("/sys/class/net")) -> int:
    """The speed of the fastest physical interface that is up, in megabits a second.

    1 where a network exists and its speed is unknown: wireless interfaces and those of
    virtual machines report nothing, and the 10 Gbit/s of bridges and container links (they have
    no `device`) are made up. 0 for a machine that has none.
    """
    speeds = [0]
    for name, stats in psutil.net_if_stats().items():
        if stats.isup and name != "lo":
            physical = (interfaces / name / "device").exists()
            known = physical and 0 < stats.speed <= MAX_NETWORK_MBPS
            speeds.append(stats.speed if known else 1)
    return max(speeds)


def _storage_free(scratch: Path) -> int:
    try:
        return shutil.disk_usage(scratch).free
    except OSError as problem:
        raise InvalidInput("scratch", f"{problem}; name a folder that is there") from None


def _free(capability: Capability, cgroup: CgroupLimits, gpus: tuple[GpuReading, ...]) -> Capacity:
    """What is idle on the machine, at most what tasks may use of it."""
    idle_milli = (os.cpu_count() or 1) * 1000 - round(os.getloadavg()[0] * 1000)
    available = _least(psutil.virtual_memory().available, cgroup.memory_free_bytes)
    return Capacity(
        max(0, min(capability.cpu_milli, idle_milli)),
        min(capability.memory_bytes, available),
        capability.storage_bytes,
        capability.network_mbps,
        tuple(
            GpuFree(each.gpu.device_id, WHOLE_GPU_MILLI, each.memory_free_bytes) for each in gpus
        ),
    )


def _least(has: int, limit: int | None) -> int:
    return has if limit is None else min(has, limit)


def _name(text: str) -> str:
    """`Linux` as `linux`; `unknown` for what no profile could carry."""
    lower = text.lower()
    return lower if re.fullmatch(r"[a-z0-9][a-z0-9_-]{0,31}", lower) else "unknown"
