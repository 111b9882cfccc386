"""`formation agent`: a node that only submits, for the commands of this machine."""

from __future__ import annotations

import asyncio
from typing import Final

from formation_p2p.command.exits import DONE
from formation_p2p.command.interrupt import Interrupt, end_with
from formation_p2p.command.node_options import NODE_OPTIONS, NodeOptions
from formation_p2p.command.words import put

AGENT_EPILOG: Final = """
\b
Examples:
  formation agent &
  formation run -- uname -a       through the agent: it joins nothing

A worker or a gate of the same home does the same for commands. Commands with --state, --metrics or
--join have a node of their own.
"""


@NODE_OPTIONS
def agent(*, options: NodeOptions) -> None:
    """Stay in the network until Ctrl-C, so that commands start at once.

    For a machine that submits and does not work. `run`, `submit`, `workers` and `explain` go
    through its node and need not join. It lends nothing, and others cannot connect to it.
    """
    place = options.place()

    async def stay(interrupt: Interrupt) -> int:
        from formation_p2p.api.node import Node
        from formation_p2p.command.local.methods import commands_served

        leave = asyncio.Event()
        joining = Node.join(home=place.path, listen=(), **options.kwargs())
        async with joining as node, commands_served(node, place.path):
            interrupt.first(leave.set, "leaving the network")
            if options.as_json:
                put({"event": "ready", "peer_id": node.peer_id, "name": node.name})
            else:
                print(f"agent {node.peer_id}")
                print(f"  goes by the name {node.name}", flush=True)
            await leave.wait()
        if options.as_json:
            put({"event": "left"})
        return DONE

    end_with(stay)
