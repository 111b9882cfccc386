"""Workers in processes of their own, to be killed."""

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from formation_p2p.machine.home import Home
from formation_p2p.trust.core.network import parse_invite
from tests.support.commands import LOOPBACK, started
from tests.support.programs import Program


async def working(
    folder: Path,
    invitation: Callable[[], str],
    names: Sequence[str],
    until: ExitStack,
    options: Sequence[str] = (),
) -> dict[str, Program]:
    """Workers of one core and 1 GiB, ready, by their peer ids; they end with `until`. `options` are
    further ones of the command."""
    running = {}
    for name in names:
        home = folder / name
        Home(home).join(parse_invite(invitation()))
        argv = ("worker", "--json", *LOOPBACK, "--cpu", "1", "--memory", "1GiB", *options)
        worker = until.enter_context(started(home, *argv))
        line = await asyncio.to_thread(worker.line_with, "ready")
        running[json.loads(line)["peer_id"]] = worker
    return running
