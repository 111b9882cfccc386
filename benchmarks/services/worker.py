"""A node with one replica, in a process of its own, until its standard input ends.

python -m benchmarks.services.worker HOME SOCKET [INVITE]

The program listens already: what is measured is the way to it. Prints `peer_id, addresses, invite`
as JSON.
"""

from __future__ import annotations

import asyncio
import json
import socket
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from formation_p2p import Home, Node, Rights
from formation_p2p.core.workload.scope import Scope
from formation_p2p.host.shell import Shell

LISTEN = ("/ip4/127.0.0.1/tcp/0",)


@dataclass
class Program:
    """As a replica is to those who call it. It answers to every name."""

    path: str
    digest: bytes = bytes(32)
    scope: Scope = Scope.COMMONS
    max_requests: int = 1024
    outstanding: int = 0
    is_stopping: bool = False

    def here(self, service: str) -> Program:
        return self

    async def connect(self) -> socket.socket:
        end = socket.socket(socket.AF_UNIX)
        end.setblocking(False)
        try:
            end.connect(self.path)
        except OSError:
            end.close()
            raise
        return end

    def count(self, change: int) -> None:
        self.outstanding += change

    def refused(self) -> None:
        pass


def _serve(program: Program, shell: Shell) -> None:
    shell.services.server.replicas = program


class OpenNode(Node):
    def serve(self, program: Program) -> None:
        self._services.call(partial(_serve, program))


async def main(folder: Path, path: str, invite: str) -> None:
    home = Home(folder)
    if not invite:
        home.create_network()
    joined = OpenNode.join(invite or None, home=folder, listen=LISTEN)
    async with joined as node:
        node.serve(Program(path))
        said = {"peer_id": node.peer_id, "addresses": node.addresses, "invite": ""}
        if not invite:
            home.add_gate(node.addresses[0])
            said["invite"] = home.invite(Rights(int(time.time()) + 86_400))
        print(json.dumps(said), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), sys.argv[2], sys.argv[3] if sys.argv[3:] else ""))
