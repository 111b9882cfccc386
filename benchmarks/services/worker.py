"""A node with one replica, in a process of its own, until its standard input ends.

python -m benchmarks.services.worker HOME SOCKET SLOTS [INVITE]

The program listens already: what is measured is the way to it. Prints `peer_id, addresses, invite`
as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from functools import partial
from pathlib import Path

from benchmarks.services.stand_in import StandIn
from formation_p2p import Home, Node, Rights
from formation_p2p.peer.shell import Shell

LISTEN = ("/ip4/127.0.0.1/tcp/0",)


class Program(StandIn):
    """It answers to every name."""

    def here(self, service: str) -> StandIn:
        return self


def _serve(program: Program, shell: Shell) -> None:
    shell.features.services.server.replicas = program


class OpenNode(Node):
    def serve(self, program: Program) -> None:
        self._services.call(partial(_serve, program))


async def main(folder: Path, path: str, slots: int, invite: str) -> None:
    home = Home(folder)
    if not invite:
        home.create_network()
    joined = OpenNode.join(invite or None, home=folder, listen=LISTEN)
    async with joined as node:
        node.serve(Program(path, max_requests=slots))
        said = {"peer_id": node.peer_id, "addresses": node.addresses, "invite": ""}
        if not invite:
            home.add_gate(node.addresses[0])
            said["invite"] = home.invite(Rights(int(time.time()) + 86_400))
        print(json.dumps(said), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    folder, path, slots, *invite = sys.argv[1:]
    asyncio.run(main(Path(folder), path, int(slots), "".join(invite)))
