"""A network of nodes in this process, over real libp2p on loopback."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil

from formation_p2p import Node
from formation_p2p.core.trust.grants import Rights
from formation_p2p.host.machine.home import Home
from tests.support.loopback import LISTEN

# No test of these takes longer; one that does hangs.
DEADLINE_S = 60.0


@asynccontextmanager
async def gate_at(folder: Path) -> AsyncIterator[Callable[..., str]]:
    """A running gate of a new network; what it gives makes invites, of rights that are
    limited as `Rights` says."""
    home = Home(folder / "gate")
    home.create_network()
    async with Node.join(home=home.path, listen=LISTEN) as gate:
        home.add_gate(gate.addresses[0])
        yield lambda **limits: home.invite(Rights(int(time.time()) + 3600, **limits))


def runs(argument: str) -> bool:
    """Whether a program of this machine was called with this argument."""
    return any(
        argument in (each.info["cmdline"] or ()) for each in psutil.process_iter(["cmdline"])
    )
