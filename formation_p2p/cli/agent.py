"""`formation agent`: a node that only submits, for the commands of this machine."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Final

from formation_p2p.cli import flags
from formation_p2p.cli.exits import DONE
from formation_p2p.cli.interrupt import Interrupt, end_with
from formation_p2p.cli.words import put

AGENT_EPILOG: Final = """
\b
Examples:
  formation agent &
  formation run -- uname -a       through the agent: it joins nothing

A worker or a gate of the same home does the same for commands. Commands with --state, --metrics or
--join have a node of their own.
"""


def agent(
    name: str | None = flags.NAME,
    no_renew: bool = flags.NO_RENEW,
    no_mdns: bool = flags.NO_MDNS,
    metrics: str | None = flags.METRICS,
    home: Path | None = flags.HOME,
    join: str | None = flags.JOIN,
    as_json: bool = flags.JSON,
) -> None:
    """Stay in the network until Ctrl-C, so that commands start at once.

    For a machine that submits and does not work. `run`, `submit`, `workers` and `explain` go
    through its node and need not join. It lends nothing, and others cannot connect to it.
    """
    place = flags.home_of(home, join, name)

    async def stay(interrupt: Interrupt) -> int:
        from formation_p2p.api.node import Node
        from formation_p2p.cli.local.server import commands_served

        leave = asyncio.Event()
        joining = Node.join(
            home=place.path,
            listen=(),
            metrics=metrics,
            renew=not no_renew,
            mdns=False if no_mdns else None,
        )
        async with joining as node, commands_served(node, place.path):
            interrupt.first(leave.set, "leaving the network")
            if as_json:
                put({"event": "ready", "peer_id": node.peer_id, "name": node.name})
            else:
                print(f"agent {node.peer_id}")
                print(f"  goes by the name {node.name}", flush=True)
            await leave.wait()
        if as_json:
            put({"event": "left"})
        return DONE

    end_with(stay)
