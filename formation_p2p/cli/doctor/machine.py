"""Checks of the machine: pure, of what readings.py has read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Final

from formation_p2p.cli.doctor.finding import Finding, failure, ok, warning
from formation_p2p.core.records.lifetime import MAX_CLOCK_SKEW_S
from formation_p2p.core.resources.gpu import Gpu
from formation_p2p.core.units import GIB, MIB, format_bytes
from formation_p2p.host.drivers.groups import CONTROLLERS
from formation_p2p.host.environments.uv import INSTALL_UV
from formation_p2p.host.machine.hardware import STORAGE_KEPT_BYTES
from formation_p2p.host.machine.kernel_clock import KernelClock

# Machines with NTP differ by milliseconds. Seconds shorten every lease and record.
NOTABLE_SKEW_S: Final = 5.0
# A worker signs its profile anew at least as often (core/discovery/parameters.py), so that the
# youngest of several is younger, unless our clock is ahead.
MAX_YOUNGEST_S: Final = 90.0
# A node writes its journal, its histories and its logs.
LEAST_DISK_BYTES: Final = 100 * MIB
_SET_CLOCK: Final = "start an NTP service, with `timedatectl set-ntp true` where systemd runs"


def check_clock(kernel: KernelClock | None, profile_ages_s: Sequence[float]) -> Finding:
    """`kernel` None where it does not tell. The ages are of profiles, by this machine's clock: one
    from the future is of a worker whose clock is ahead of ours."""
    youngest_s = min(profile_ages_s, default=None)
    if youngest_s is not None and youngest_s < -NOTABLE_SKEW_S:
        found = f"it is {-youngest_s:.0f} s behind that of a worker, or more"
        report = failure if -youngest_s > MAX_CLOCK_SKEW_S else warning
        return report("clock", found, _SET_CLOCK)
    if youngest_s is not None and youngest_s > MAX_YOUNGEST_S:
        found = f"by it the youngest profile of a worker is {youngest_s:.0f} s old: it is ahead"
        return warning("clock", found, _SET_CLOCK)
    compared = "" if youngest_s is None else "; those of the workers agree"
    if kernel is None:
        return ok("clock", f"whether NTP sets it cannot be seen here{compared}")
    if not kernel.synchronised:
        return warning("clock", f"NTP does not set it{compared}", _SET_CLOCK)
    return ok("clock", f"NTP sets it, to {max(1, round(kernel.max_error_s * 1000))} ms{compared}")


def check_disk(home: Path, free_bytes: int, used_bytes: Mapping[str, int]) -> Finding:
    """`used_bytes` is what the home's caches take, by their names."""
    takes = ", ".join(f"{name} take {format_bytes(size)}" for name, size in used_bytes.items())
    found = f"{format_bytes(free_bytes)} free at {home}; {takes or 'nothing is kept there'}"
    if free_bytes < LEAST_DISK_BYTES:
        return failure("disk", found, "make room, or move the home to another disk with --home")
    if free_bytes < STORAGE_KEPT_BYTES + GIB:
        problem = f"make room: {format_bytes(STORAGE_KEPT_BYTES)} are kept from tasks"
        return warning("disk", found, problem)
    return ok("disk", found)


def check_sandbox(problem: str | None, unfiltered: str | None) -> Finding:
    """Of a program that was really started in it; `problem` is why that failed, `unfiltered` why no
    system calls are refused."""
    if problem is None and unfiltered is None:
        return ok(
            "sandbox", "bubblewrap starts programs, and the kernel filters their system calls"
        )
    if problem is None:
        found = f"bubblewrap starts programs, which may use all system calls: {unfiltered}"
        return warning("sandbox", found, "use a kernel with CONFIG_SECCOMP_FILTER for strangers")
    found, _, advice = problem.partition("; ")
    found = f"tasks run without one, and read what this user can: {found}"
    return warning("sandbox", found, advice or "install the package bubblewrap")


def check_cgroups(
    parent: Path | None, controllers: Collection[str], unfiltered: str | None = None
) -> Finding:
    """`parent` is where this process may make groups, with these controllers; `unfiltered` is why
    tasks are not kept from taking more cores by a system call."""
    delegate = "run the node as a service with Delegate=yes (docs/deploy.md), or by systemd-run"
    missing = [each for each in CONTROLLERS if each not in controllers]
    cores = "cores are advisory" if unfiltered else "tasks keep to whole cores"
    cores = f"; {cores}" if "cpu" in missing else ""
    if parent is None:
        found = "none may be made here: limits are watched by the node, not held by the kernel"
        return warning("cgroups", f"{found}{cores}", delegate)
    if missing:
        return warning("cgroups", f"{parent} lacks {', '.join(missing)}{cores}", delegate)
    return ok("cgroups", f"{parent} has {', '.join(CONTROLLERS)}")


def check_gpus(on_bus: Mapping[str, int], gpus: Sequence[Gpu], notes: Sequence[str]) -> Finding:
    """`on_bus` counts the cards that the kernel sees, by vendor; `gpus` are those that answer."""
    kinds = sorted(Counter(f"{gpu.vendor} {gpu.model}" for gpu in gpus).items())
    seen = ", ".join(f"{count} of {kind}" for kind, count in kinds)
    cards = ", ".join(f"{count} by {vendor}" for vendor, count in sorted(on_bus.items()))
    answer = Counter(gpu.vendor for gpu in gpus)
    if all(answer[vendor] >= count for vendor, count in on_bus.items()):
        return ok("gpu", seen or "this machine has none that tasks could use")
    why = "; ".join(notes) or "no driver is loaded"
    found = f"{cards} on the bus, {seen or 'none'} to be used: {why}"
    mend = "install the driver of that vendor, or restart where it was upgraded"
    return warning("gpu", found, f"{mend}; --gpus 0 offers none")


def check_pythons(own: str, others: Sequence[str]) -> Finding:
    offered = f"a worker offers {own}"
    if not others:
        return ok("python", f"{offered}; this user has no other version")
    return ok("python", f"{offered}, and with --python also {', '.join(others)}")


def check_uv(version: str | None) -> Finding:
    if version is None:
        found = "there is none: tasks that bring packages are refused"
        return warning("uv", found, f"install it with {INSTALL_UV}")
    return ok("uv", version)
