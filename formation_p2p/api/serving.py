"""This machine at work for others: what it offers, what runs the tasks, what was used of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from formation_p2p.core.errors import InvalidInput, LocalError
from formation_p2p.core.peer.events import Serve
from formation_p2p.core.resources.bounds import sorted_labels
from formation_p2p.core.resources.limits import Limits
from formation_p2p.core.workload.scope import Shares
from formation_p2p.host.drivers.driver import DriverMaker
from formation_p2p.host.drivers.installed import set_up_drivers
from formation_p2p.host.drivers.machine import Sandboxing
from formation_p2p.host.machine.claim import Claim
from formation_p2p.host.machine.hardware import Hardware, probe
from formation_p2p.host.shell import Shell
from formation_p2p.host.storage.usage import USAGE, UsageFile

# Reading the hardware takes under a second, unless a GPU's driver hangs.
PROBE_S: Final = 20.0

Makers = Mapping[str, DriverMaker]


class Serving:
    """`home` is the folder of the node's home."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self._usage: UsageFile | None = None
        self._serving: tuple[Serve, Makers] | None = None

    async def prepare(
        self,
        claim: Claim,
        drivers: Iterable[str] | Makers,
        sandbox: Sandboxing,
        limits: Limits | None,
        labels: Mapping[str, str] | None,
        price_micro: int,
        permissive: bool,
        shares: Shares,
    ) -> Hardware:
        """See `Node.worker`. It begins with the next `begin`."""
        if self._serving is not None:
            raise InvalidInput("worker", "this node works already; leave and join to change that")
        makers = (
            drivers
            if isinstance(drivers, Mapping)
            else await asyncio.to_thread(set_up_drivers, drivers, self._home, sandbox)
        )
        claim.scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            hardware = await asyncio.wait_for(
                asyncio.to_thread(probe, claim.scratch, limits), PROBE_S
            )
        except TimeoutError:
            problem = f"the probe took longer than {PROBE_S:.0f} s"
            raise LocalError(f"{problem}; if a GPU driver hangs, offer no GPU (--gpus 0)") from None
        said = sorted_labels(tuple((labels or {}).items()))
        if self._usage is None:
            self._usage = await asyncio.to_thread(UsageFile, self._home / USAGE)
        serve = Serve(
            hardware.capability,
            tuple(sorted(makers)),
            said,
            price_micro,
            permissive=permissive,
            shares=shares,
        )
        self._serving = (serve, makers)
        return hardware

    def begin(self, shell: Shell) -> None:
        """On the node's thread, with each new shell: nothing, where the machine does not work."""
        if self._serving is not None:
            serve, makers = self._serving
            if self._usage is not None:
                serve = replace(serve, used=self._usage.load())
            shell.serve(serve, {name: make() for name, make in makers.items()}, self._usage)

    def close(self) -> None:
        """In a thread, once the node's own has ended."""
        if self._usage is not None:
            self._usage.close()
