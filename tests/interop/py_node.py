"""py-libp2p's own KadDHT on its own host, as they come: `python -m tests.interop.py_node`; with
`--hosted` on our connections.
"""

import logging
import sys
from typing import Any

import trio
from libp2p import new_host
from libp2p.abc import IHost
from libp2p.kad_dht.kad_dht import DHTMode, KadDHT
from libp2p.peer.id import ID
from libp2p.peer.peerinfo import PeerInfo
from libp2p.records.validator import Validator
from libp2p.tools.anyio_service import background_trio_service
from multiaddr import Multiaddr

from formation_p2p.features.libp2p.host import hosted
from tests.interop.lines import Command, obey
from tests.support.stacks import Node, running

LOOPBACK = "/ip4/127.0.0.1/tcp/0"


class Texts(Validator):
    """As in `plain_node.py`."""

    def validate(self, key: str, value: bytes) -> None:
        value.decode()

    def select(self, key: str, values: list[bytes]) -> int:
        return values.index(max(values))


class PyNode:
    def __init__(self, host: IHost) -> None:
        self._host = host
        # No bound on peers of one subnet: here all are on the loopback interface.
        self.dht = KadDHT(host, DHTMode.SERVER, max_peers_per_subnet=0)
        self.dht.set_namespace_validator("text", Texts())

    def commands(self) -> dict[str, Command]:
        return {
            "connect": self._connect,
            "closest": self._closest,
            "provide": self._provide,
            "find_providers": self._find_providers,
            "put_value": self._put_value,
            "get_value": self._get_value,
        }

    async def _connect(self, asked: dict[str, Any]) -> None:
        peer = ID.from_base58(asked["peer"])
        await self._host.connect(PeerInfo(peer, [Multiaddr(each) for each in asked["addresses"]]))
        # It takes in only who tells in identify that it speaks the protocol, and that may take
        # a moment to arrive.
        with trio.fail_after(5):
            while not await self.dht.add_peer(peer):  # noqa: ASYNC110  # it has no event for it
                await trio.sleep(0.05)

    async def _closest(self, asked: dict[str, Any]) -> list[str]:
        name = ID.from_base58(asked["peer"]).to_bytes()
        closest = await self.dht.peer_routing.find_closest_peers_network(name)
        return [peer.to_base58() for peer in closest]

    async def _provide(self, asked: dict[str, Any]) -> bool:
        return await self.dht.provide(asked["name"])

    async def _find_providers(self, asked: dict[str, Any]) -> list[dict[str, object]]:
        return [
            {"peer": info.peer_id.to_base58(), "addresses": [str(each) for each in info.addrs]}
            for info in await self.dht.find_providers(asked["name"])
        ]

    async def _put_value(self, asked: dict[str, Any]) -> None:
        name = bytes.fromhex(asked["name"]).decode()
        await self.dht.put_value(name, bytes.fromhex(asked["value"]))

    async def _get_value(self, asked: dict[str, Any]) -> str | None:
        value = await self.dht.get_value(bytes.fromhex(asked["name"]).decode())
        return None if value is None else value.hex()


async def serve(host: IHost) -> None:
    node = PyNode(host)
    async with background_trio_service(node.dht):
        addresses = [str(each).partition("/p2p/")[0] for each in host.get_addrs()]
        await obey(node.commands(), {"peer": host.get_id().to_base58(), "addresses": addresses})


async def main(is_hosted: bool) -> None:
    if is_hosted:
        async with running(ours := Node()):
            (await hosted(ours.stack, ours.identity, serve))()
        return
    host = new_host()
    async with host.run(listen_addrs=[Multiaddr(LOOPBACK)]):
        await serve(host)
        await host.close()


if __name__ == "__main__":
    logging.basicConfig(level=logging.WARNING)
    trio.run(main, "--hosted" in sys.argv)
