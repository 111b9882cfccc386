"""This machine, lent by a node to its network."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from formation_p2p.api.calling import Enterable
from formation_p2p.api.job import MAX_GRACE_S
from formation_p2p.api.opened import Makers
from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.drivers.assembly import SetUpDrivers, set_up_drivers
from formation_p2p.drivers.lent import labels_of, lent_folders
from formation_p2p.drivers.machine import Sandboxing
from formation_p2p.environments.settings import EnvironmentSettings
from formation_p2p.environments.uv import can_install
from formation_p2p.machine.core.bounds import HOST, MAX_LABELS, refuse_host_label, sorted_labels
from formation_p2p.machine.core.capability import Limits
from formation_p2p.machine.hardware import Hardware, probe
from formation_p2p.machine.platform import check_worker
from formation_p2p.machine.pythons import Interpreter, interpreters
from formation_p2p.node_assembly import LABELS
from formation_p2p.peer.core.events import Serve
from formation_p2p.state.usage import USAGE, UsageFile
from formation_p2p.workload.core.scope import EVERYTHING, ScopeShares
from formation_p2p.workload.core.work import PythonCall

# Reading the hardware takes under a second, unless a GPU's driver hangs.
PROBE_S: Final = 20.0
# What runs gets so long to save what it has: minutes of computing are written in less.
GRACE_S: Final = 30.0


class LendingNode(Enterable):
    """The part of `Node` that works for others."""

    async def worker(
        self,
        *,
        drivers: Iterable[str] | Makers = ("process", "python"),
        sandbox: Sandboxing = "auto",
        limits: Limits | None = None,
        labels: Mapping[str, str] | None = None,
        price_micro: int = 0,
        permissive: bool = False,
        shares: ScopeShares = EVERYTHING,
        pythons: Iterable[str] = (),
        environments: EnvironmentSettings | None = None,
        bind: Iterable[str] = (),
    ) -> Hardware:
        """Lease this machine to the network, with these drivers and no others.

        `drivers` are names of those built in, or a mapping from names to factories. Those built in
        run tasks in a `sandbox` where there is one; `required` refuses to work without.
        `price_micro` is what a core-hour costs, in millionths of the network's currency unit. A
        `permissive` worker logs what the quotas, hours and labels of grants forbid, and allows it
        (docs/explanation/charter.md). `shares` is what each circle may have of the cores
        (docs/explanation/placement.md). `bind` are folders that tasks of the drivers process and
        python see at the same path: `/data` read-only, `/scratch:rw` to write to. They need a
        sandbox, and are labels of the worker (docs/explanation/data.md).

        `pythons` are the versions that calls may use, such as `3.12`, or paths of interpreters:
        this process's own if none is named. `environments` says what the packages of tasks may
        take, and where they come from (docs/explanation/environments.md).

        Can be called once. Raises InvalidInput; LocalError where this machine lacks what a driver
        needs, StateError where the home's record of usage is damaged.
        """
        check_worker()
        self._lifecycle.check_loop()
        refuse_host_label(labels or {})
        lending, home, pythons = self._services.lending, self._services.home.path, tuple(pythons)
        async with lending.beginning:
            lending.check_idle()
            lent = await asyncio.to_thread(lent_folders, bind)
            offered = await asyncio.to_thread(interpreters, pythons)
            if not isinstance(drivers, Mapping):
                given = drivers, home, sandbox, pythons, environments, lent
                drivers = await asyncio.to_thread(set_up_drivers, *given)
            found = offered.values() if PythonCall.driver in drivers else None
            hardware = await _probed(self._services.entered()[1].scratch, limits, found)
            said = (
                *{**(labels or {}), HOST: self._services.name}.items(),
                *labels_of(lent).items(),
            )
            if isinstance(drivers, SetUpDrivers) and drivers.in_sandbox:
                for labels_said in LABELS:
                    room = MAX_LABELS - len(said)
                    said += await asyncio.to_thread(labels_said, home, room)
            pairs = sorted_labels(said)
            usage = await asyncio.to_thread(UsageFile, home / USAGE)
            what = hardware.capability, tuple(sorted(drivers)), pairs
            lending.begin(Serve(*what, price_micro, (), permissive, shares), drivers, usage)
            self._services.call(lending.serve)
            return hardware

    async def vacate(self, grace_s: float = GRACE_S) -> None:
        """Take no more work, and have what runs here for others go on elsewhere: it is given
        notice, and so long to save what it has. Returns once nothing runs. To `close` the node
        comes next, as a rule; `reopen` has it take work again."""
        if not 0 < grace_s <= MAX_GRACE_S:
            raise InvalidInput("grace_s", f"{grace_s:g} s is not up to {MAX_GRACE_S:g} s")
        await self._bridge.perform(lambda shell: shell.vacate(grace_s))

    async def reopen(self) -> None:
        """Take work again, after `vacate`."""
        self._lifecycle.check_loop()
        self._services.call(lambda shell: shell.reopen())


async def _probed(
    scratch: Path, limits: Limits | None, pythons: Iterable[Interpreter] | None
) -> Hardware:
    """With the versions of Python for calls, where they run here. Raises LocalError."""

    def probed() -> Hardware:
        scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        return probe(scratch, limits)

    try:
        found = await asyncio.wait_for(asyncio.to_thread(probed), PROBE_S)
    except TimeoutError:
        problem = f"the probe took longer than {PROBE_S:.0f} s"
        raise LocalError(f"{problem}; if a GPU driver hangs, offer no GPU (--gpus 0)") from None
    can = replace(found.capability, installs=can_install())
    if pythons is not None:
        can = replace(can, pythons=tuple(each.python for each in pythons))
    return replace(found, capability=can)
