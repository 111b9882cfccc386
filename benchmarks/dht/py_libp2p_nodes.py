"""Nodes of py-libp2p with its KadDHT, as many as told, in one process: TCP, Noise, yamux.

Orders: start, finds_all, announce (its `provide`), find (its `find_providers`), closest.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from typing import Any, Final

import trio
from libp2p import new_host
from libp2p.kad_dht.kad_dht import DHTMode, KadDHT
from libp2p.network.config import ConnectionConfig
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import info_from_p2p_addr
from libp2p.tools.anyio_service import background_trio_service
from multiaddr import Multiaddr

from benchmarks.dht.lines import Line, answer, next_order

LISTEN: Final = "/ip4/127.0.0.1/tcp/0"
# A call of its DHT is not bounded by itself.
OPERATION_S: Final = 60.0
AGAIN_S: Final = 1.0


def multihash(name: str) -> bytes:
    return b"\x12\x20" + hashlib.sha256(name.encode()).digest()


class Nodes:
    def __init__(self, nursery: trio.Nursery) -> None:
        self.all: list[KadDHT] = []
        self._nursery = nursery

    async def start(self, count: int, gates: list[str]) -> None:
        """Each connects to the gate, enters it into its table, and has the table refreshed."""
        for _ in range(count):
            dht = await self._nursery.start(self._run)
            gate = gates[0] if gates else str(self.all[0].host.get_addrs()[0])
            self.all.append(dht)
            if gates or dht is not self.all[0]:
                info = info_from_p2p_addr(Multiaddr(gate))
                await dht.host.connect(info)
                await dht.add_peer(info.peer_id)
        async with trio.open_nursery() as joining:
            for dht in self.all:
                joining.start_soon(dht.refresh_routing_table)

    async def _run(self, task_status: Any = trio.TASK_STATUS_IGNORED) -> None:
        host = new_host(connection_config=ConnectionConfig(min_connections=0, low_watermark=0))
        async with host.run([Multiaddr(LISTEN)]):
            # All are on one address, which its table takes for one subnet.
            dht = KadDHT(host, DHTMode.SERVER, max_peers_per_subnet=0)
            if not self.all:
                self.all.append(dht)
            async with background_trio_service(dht):
                task_status.started(dht)
                await trio.sleep_forever()

    async def finds(self, dht: KadDHT, others: list[str]) -> None:
        for other in others:
            peer = ID.from_base58(other)
            if peer == dht.host.get_id():
                continue
            while True:
                if await dht.find_peer(peer) is not None:
                    break
                await trio.sleep(AGAIN_S)

    async def obey(self, order: Line) -> Line:
        if order["do"] == "start":
            await self.start(order["count"], order["gates"])
            ids = [dht.host.get_id() for dht in self.all]
            return {
                "ids": [str(peer) for peer in ids],
                "keys": [hashlib.sha256(peer.to_bytes()).hexdigest() for peer in ids],
                "gate": str(self.all[0].host.get_addrs()[0]),
            }
        if order["do"] == "finds_all":
            async with trio.open_nursery() as looking:
                for dht in self.all:
                    looking.start_soon(self.finds, dht, order["ids"])
            return {}
        dht, reply = self.all[order["node"]], Line()
        began_s = time.perf_counter()
        with trio.fail_after(OPERATION_S):
            match order["do"]:
                case "announce":
                    key = multihash(order["name"])
                    stored = await dht.provide(key.hex())
                    reply = {"stored": int(stored), "key": hashlib.sha256(key).hexdigest()}
                case "find":
                    found = await dht.find_providers(multihash(order["name"]).hex())
                    reply = {"found": [str(info.peer_id) for info in found]}
                case "closest":
                    peers = await dht.peer_routing.find_closest_peers_network(os.urandom(32))
                    reply = {"found": [str(peer) for peer in peers]}
                case other:
                    raise ValueError(f"no order {other!r}")
        return {**reply, "s": time.perf_counter() - began_s}


async def main() -> None:
    # What other nodes do not answer in time, it logs as an error each time.
    logging.getLogger("libp2p").setLevel(logging.CRITICAL)
    async with trio.open_nursery() as nursery:
        nodes = Nodes(nursery)
        while (order := await trio.to_thread.run_sync(next_order)) is not None:
            answer(await nodes.obey(order))
        nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
