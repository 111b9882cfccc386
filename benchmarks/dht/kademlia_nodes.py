"""Nodes of the PyPI package `kademlia`, as many as told, in one process: UDP, in the clear.

Orders: start, finds_all, announce (its `set`), find (its `get`), closest.
"""

from __future__ import annotations

import asyncio
import os
import time
from typing import Final

from kademlia.crawling import NodeSpiderCrawl
from kademlia.network import Server
from kademlia.node import Node
from kademlia.utils import digest

from benchmarks.dht.lines import Line, answer, next_order

LOOPBACK: Final = "127.0.0.1"


async def closest(server: Server, target: bytes) -> list[str]:
    """What `Server.set` does to find where to store."""
    node = Node(target)
    nearest = server.protocol.router.find_neighbors(node)
    spider = NodeSpiderCrawl(server.protocol, node, nearest, server.ksize, server.alpha)
    return [found.id.hex() for found in await spider.find()]


async def finds(server: Server, other: str) -> bool:
    """Whether another is in the table, or is named by a lookup of the key beside its id: of the
    id itself nobody who has it in the table would say so."""
    node = Node(bytes.fromhex(other))
    if node.id == server.node.id or not server.protocol.router.is_new_node(node):
        return True
    beside = node.id[:-1] + bytes([node.id[-1] ^ 1])
    return other in await closest(server, beside)


class Nodes:
    def __init__(self) -> None:
        self.all: list[Server] = []

    async def start(self, count: int, gates: list[int]) -> None:
        for _ in range(count):
            server = Server()
            await server.listen(0, LOOPBACK)
            self.all.append(server)
        newcomers = self.all if gates else self.all[1:]
        gate = (LOOPBACK, gates[0] if gates else self.port)
        await asyncio.gather(*(server.bootstrap([gate]) for server in newcomers))

    async def _finds(self, server: Server, others: list[str]) -> None:
        """Those that joined at the same moment know the gate, and not each other; so each looks
        its own id up once more when all are there, and again while somebody is missing."""
        missing = others
        while missing:
            await closest(server, server.node.id)
            missing = [other for other in missing if not await finds(server, other)]

    @property
    def port(self) -> int:
        port: int = self.all[0].transport.get_extra_info("sockname")[1]
        return port

    async def obey(self, order: Line) -> Line:
        if order["do"] == "start":
            await self.start(order["count"], order["gates"])
            ids = [server.node.id.hex() for server in self.all]
            return {"ids": ids, "keys": ids, "gate": self.port}
        if order["do"] == "finds_all":
            await asyncio.gather(*(self._finds(server, order["ids"]) for server in self.all))
            return {}
        server, reply = self.all[order["node"]], Line()
        began_s = time.perf_counter()
        match order["do"]:
            case "announce":
                stored = await server.set(order["name"], b"a record of some length" * 20)
                reply = {"stored": stored, "key": digest(order["name"]).hex()}
            case "find":
                reply = {"found": [] if await server.get(order["name"]) is None else [""]}
            case "closest":
                reply = {"found": await closest(server, os.urandom(20))}
            case other:
                raise ValueError(f"no order {other!r}")
        return {**reply, "s": time.perf_counter() - began_s}


async def main() -> None:
    nodes = Nodes()
    while (order := await asyncio.to_thread(next_order)) is not None:
        answer(await nodes.obey(order))


if __name__ == "__main__":
    asyncio.run(main())
