"""Our nodes, as many as told, in one process: the shipped peer behind the shipped shell and
network stack. Every call into the DHT is in `FormationNode`.

Orders: start, finds_all, announce, find, closest, serve, workers.
"""

from __future__ import annotations

import gc
import os
import random
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import trio

from benchmarks.dht.lines import Line, answer, next_order
from formation_p2p.assembly import Peer
from formation_p2p.content.exchange import Exchange
from formation_p2p.content.store import BlobStore
from formation_p2p.core.effects import Contact, Effect
from formation_p2p.core.identity import Identity, PeerId, peer_id_of, peer_id_to_bytes
from formation_p2p.core.keyspace import key_of
from formation_p2p.core.units import GIB
from formation_p2p.dht.core.messages import (
    AddProvider,
    FindNode,
    GetProviders,
    Provider,
    ProviderQuery,
)
from formation_p2p.dht.core.operations import Asked, OperationId, Published, Searched
from formation_p2p.dht.core.rpc import DhtEffect
from formation_p2p.discovery.core.parameters import DiscoveryParameters
from formation_p2p.machine.clock import moment
from formation_p2p.machine.core.capability import Capability, idle
from formation_p2p.peer.core.effects import Explained
from formation_p2p.peer.core.events import Explain, Serve, Tick
from formation_p2p.peer.runtime_config import RuntimeConfig
from formation_p2p.peer.shell import Shell
from formation_p2p.reach.stack import Stack
from formation_p2p.records.core.buckets import bucket_key
from formation_p2p.records.core.profile import Profile, SignedProfile, seal_profile
from formation_p2p.trust.core.grants import Rights, issue
from formation_p2p.trust.core.network import Network

LISTEN: Final = "/ip4/127.0.0.1/tcp/0"
# How many peers keep an announcement.
REPLICAS: Final = DiscoveryParameters().replicas
MACHINE: Final = Capability(cpu_milli=1000, memory_bytes=GIB)
DRIVERS: Final = ("process",)
# One operation: a lookup, and writes. On an idle machine it takes milliseconds.
OPERATION_S: Final = 60.0
# How often a node that does not find all the others yet looks again.
AGAIN_S: Final = 0.1


Completed = Published | Searched[SignedProfile] | Asked


class MeasuredPeer(Peer):
    """The shipped peer, which lets the benchmark wait for the end of a DHT operation."""

    def __init__(self, identity: Identity, network: Network, rng: random.Random) -> None:
        super().__init__(identity, network, rng)
        self.ended: dict[OperationId, Completed] = {}
        self.more = trio.Event()

        self._take = self.dht.take
        self.dht.take = self._taken  # type: ignore[method-assign]  # to see what passes

    def _taken(self) -> tuple[list[DhtEffect], list[Completed]]:
        effects, ended = self._take()
        for completed in ended:
            self.ended[completed.operation] = completed
            self.more.set()
            self.more = trio.Event()
        return effects, ended


class FormationNode:
    """One node. The times that it gives are in seconds."""

    def __init__(self, root: Identity, gates: tuple[str, ...], scratch: Path) -> None:
        self.identity = Identity.from_seed(os.urandom(32))
        rights = Rights(int(time.time()) + 3600)
        self.network = Network(root.public_key, gates, issue(root, rights, self.identity.peer_id))
        self.stack = Stack(self.identity, [LISTEN])
        config = RuntimeConfig(
            identity=self.identity,
            network=self.network,
            listen=(LISTEN,),
            announce=(),
            scratch_root=scratch,
            blobs=BlobStore(scratch),
        )
        exchange = Exchange(config.blobs, self.stack, self.identity.peer_id, self.network)
        self.shell = Shell(config, self.stack, exchange, self._tell)
        self.peer = MeasuredPeer(self.identity, self.network, random.Random(os.urandom(16)))
        self.shell.peer = self.peer
        self.rpcs = 0
        self._explained: Explained | None = None
        self._told = trio.Event()
        self._sequence = 0

    @property
    def contact(self) -> Contact:
        return Contact(self.identity.peer_id, self.stack.addresses)

    async def announce(self, label: str) -> tuple[float, int]:
        """One signed profile under one name, as a worker does that has never announced there:
        the nearest peers are looked up where they are not known, told, and one of them says that
        it has it. At how many."""
        name, provider, dht = self._name(label), self._provider(label), self.peer.dht
        began_s = time.perf_counter()
        closest = dht.surely_nearest(name, REPLICAS, moment())
        if not closest:
            query = GetProviders(name, ProviderQuery(key_of(name), b"", 0))
            found = await self._until(dht.search(query, moment(), "benchmark", width=REPLICAS))
            assert isinstance(found, Searched)
            closest = found.closest
        holders = dht.nearest(name, closest, REPLICAS)
        others = [holder for holder in holders if holder.peer_id != self.identity.peer_id]
        writes = [
            (holder, AddProvider(name, provider, (), acknowledged=holder is others[0]))
            for holder in holders
        ]
        ended = await self._until(dht.operations.deliver(writes, moment(), "benchmark"))
        took_s = time.perf_counter() - began_s
        assert isinstance(ended, Published)
        return took_s, len(ended.stored_at)

    async def find(self, label: str) -> tuple[float, list[PeerId]]:
        """The providers of a name, verified. A finder that holds the record itself is refused."""
        name, dht = self._name(label), self.peer.dht
        query = ProviderQuery(key_of(name), b"", 20)
        if dht.records.providers(GetProviders(name, query), moment()).providers:
            raise RuntimeError("the finder holds the record itself")
        began_s = time.perf_counter()
        ended = await self._until(dht.search(GetProviders(name, query), moment(), "benchmark"))
        took_s = time.perf_counter() - began_s
        assert isinstance(ended, Searched)
        return took_s, [signed.profile.peer_id for signed in ended.found]

    async def closest(self, target: PeerId) -> tuple[float, list[PeerId]]:
        began_s = time.perf_counter()
        name = peer_id_to_bytes(target)
        ended = await self._until(
            self.peer.dht.search(
                FindNode(name), moment(), "benchmark", width=self.peer.dht.parameters.k
            )
        )
        took_s = time.perf_counter() - began_s
        assert isinstance(ended, Searched)
        self.rpcs += ended.asked
        return took_s, [contact.peer_id for contact in ended.closest]

    async def finds(self, others: list[PeerId]) -> None:
        """Returns once each of `others` is in the table (it has answered us), or is named by a
        lookup of its id."""
        for other in others:
            while other != self.identity.peer_id and other not in self.peer.dht.table:
                _, found = await self.closest(other)
                if other in found:
                    break
                await trio.sleep(AGAIN_S)

    async def workers(self) -> tuple[float, list[PeerId]]:
        """The product's own query: who is there that works? (`formation workers`)"""
        began_s = time.perf_counter()
        self._told = trio.Event()
        self.shell.feed(Explain(1, None, os.urandom(8).hex()))
        with trio.fail_after(OPERATION_S):
            await self._told.wait()
        took_s = time.perf_counter() - began_s
        assert self._explained is not None
        return took_s, [ranked.profile.peer_id for ranked in self._explained.decision.ranked]

    def _tell(self, effects: Iterable[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Explained):
                self._explained = effect
                self._told.set()

    async def _until(self, operation: OperationId) -> Completed:
        self.shell.feed(Tick())  # performs what the operation asks for
        with trio.fail_after(OPERATION_S):
            while operation not in self.peer.ended:
                await self.peer.more.wait()
        ended = self.peer.ended[operation]
        self.peer.ended.clear()
        return ended

    def _name(self, label: str) -> bytes:
        return bucket_key(self.network.network_id, f"label/name/{label}")

    def _provider(self, label: str) -> Provider:
        self._sequence = max(self._sequence + 1, time.time_ns() // 1000)
        profile = Profile(
            peer_id=self.identity.peer_id,
            sequence=self._sequence,
            issued_unix_s=int(time.time()),
            expires_unix_s=int(time.time() + DiscoveryParameters().ttl_s),
            capability=MACHINE,
            capacity=idle(MACHINE),
            labels=(("name", label),),
            drivers=DRIVERS,
            addresses=self.stack.addresses,
            grant=self.network.grant,
        )
        return Provider(self.contact, seal_profile(self.identity, profile))


class Nodes:
    """The nodes of this process."""

    def __init__(self, nursery: trio.Nursery, scratch: Path) -> None:
        self.all: list[FormationNode] = []
        self._nursery = nursery
        self._scratch = scratch

    async def start(self, root: Identity, count: int, gates: tuple[str, ...]) -> None:
        """All at once, through the gate; without one the first is the gate of the others."""
        if not gates:
            gates = (await self._start(root, ()),)
            count -= 1
        async with trio.open_nursery() as starting:
            for _ in range(count):
                starting.start_soon(self._start, root, gates)

    async def _start(self, root: Identity, gates: tuple[str, ...]) -> str:
        node = FormationNode(root, gates, self._scratch / str(len(self.all)))
        self.all.append(node)
        await self._nursery.start(node.shell.run)
        return f"{node.stack.addresses[0]}/p2p/{node.identity.peer_id}"

    async def find_all(self, ids: list[PeerId]) -> None:
        async with trio.open_nursery() as looking:
            for node in self.all:
                looking.start_soon(node.finds, ids)

    async def obey(self, order: Line) -> Line:
        if order["do"] == "start":
            root = Identity.from_seed(bytes.fromhex(order["root"]))
            await self.start(root, order["count"], tuple(order["gates"]))
            first = self.all[0]
            return {
                "ids": [node.identity.peer_id for node in self.all],
                "keys": [f"{node.identity.key:064x}" for node in self.all],
                "gate": f"{first.stack.addresses[0]}/p2p/{first.identity.peer_id}",
            }
        if order["do"] == "finds_all":
            await self.find_all(order["ids"])
            return {}
        if order["do"] == "serve":
            for node in self.all:
                node.shell.serve(Serve(MACHINE, DRIVERS), {})
            return {}
        node = self.all[order["node"]]
        match order["do"]:
            case "announce":
                took_s, stored = await node.announce(order["name"])
                key = f"{key_of(node._name(order['name'])):064x}"
                return {"s": took_s, "stored": stored, "key": key}
            case "find":
                took_s, ids = await node.find(order["name"])
            case "closest":
                took_s, ids = await node.closest(peer_id_of(os.urandom(32)))
            case "workers":
                took_s, ids = await node.workers()
            case other:
                raise ValueError(f"no order {other!r}")
        return {"s": took_s, "found": ids}


async def main() -> None:
    gc.collect()
    gc.freeze()  # as `formation worker` and `formation gate` do once they have started
    with tempfile.TemporaryDirectory(prefix="formation-bench-") as scratch:
        async with trio.open_nursery() as nursery:
            nodes = Nodes(nursery, Path(scratch))
            while (order := await trio.to_thread.run_sync(next_order)) is not None:
                answer(await nodes.obey(order))
            nursery.cancel_scope.cancel()


if __name__ == "__main__":
    trio.run(main)
