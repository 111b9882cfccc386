"""A small world of nodes that hold data, over real libp2p on loopback."""

import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

from formation_p2p.content.core.fetch import PATIENCE_S, STALL_S
from formation_p2p.content.data_stream import PROTOCOL
from formation_p2p.content.exchange import Exchange
from formation_p2p.content.memory import PrivateBlobs
from formation_p2p.content.private import PrivateExchange
from formation_p2p.content.remote import RemoteBlobs
from formation_p2p.content.store import BlobStore
from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import Identity
from formation_p2p.core.units import GIB
from formation_p2p.net.limits import PeerLimits
from formation_p2p.net.transport.parameters import DEFAULTS, NetParameters
from formation_p2p.net.transport.stream import MuxedStream
from formation_p2p.trust.core.grants import Rights, issue
from formation_p2p.trust.core.membership import Membership
from formation_p2p.trust.core.network import Network
from formation_p2p.workload.core.blob import Blob
from tests.support.loopback import LOOPBACK
from tests.support.stacks import Node

ROOT = Identity.from_seed(bytes(range(32)))
RIGHTS = Rights(int(time.time()) + 3600)


class Holder(Node):
    """A node with a cache, and a grant of the network unless it is given another."""

    def __init__(
        self,
        folder: Path,
        *,
        listen: tuple[str, ...] = (LOOPBACK,),
        limit_bytes: int = GIB,
        root: Identity = ROOT,
        grant: bytes | None = None,
        parameters: NetParameters = DEFAULTS,
        stall_s: float = STALL_S,
        patience_s: float = PATIENCE_S,
        membership: Membership | None = None,
    ) -> None:
        super().__init__(listen, parameters=parameters)
        self.folder = folder
        folder.mkdir(exist_ok=True)
        granted = grant if grant is not None else issue(root, RIGHTS, self.peer_id)
        self.network = Network(root.public_key, (), granted)
        self.store = BlobStore(folder / "blobs", limit_bytes)
        self.store.load()
        self.private = PrivateBlobs()
        self.private.open(folder / "blobs")
        remote = RemoteBlobs(self.stack, granted, patience_s=patience_s)
        self.others = PrivateExchange(self.private, self.identity, remote, local=False)
        self.exchange = Exchange(
            self.store, self.stack, self.peer_id, self.network, stall_s, self.others, membership
        )

    def put(self, content: bytes, name: str = "content") -> Blob:
        path = self.folder / name
        path.write_bytes(content)
        return replace(self.store.put(path), sources=(self.contact,))

    async def fetch(self, blob: Blob) -> None:
        """Into the cache."""
        with self.store.pinned(blob.cid):
            await self.exchange.fetch(blob)

    async def get(self, blob: Blob, name: str = "got") -> bytes:
        await self.exchange.download(blob, self.folder / name)
        return (self.folder / name).read_bytes()

    @property
    def sent_bytes(self) -> int:
        return self.exchange.server.sent_bytes


class Liar(Node):
    """A peer that serves data as `serve` does, whatever is asked for."""

    def __init__(self, serve: Callable[[MuxedStream], Awaitable[None]]) -> None:
        super().__init__()

        async def serve_stream(stream: MuxedStream, peer: Contact, share: PeerLimits) -> None:
            await serve(stream)

        self.stack.serve(PROTOCOL, serve_stream)


def content(mebibytes: float) -> bytes:
    return os.urandom(int(mebibytes * 2**20))


def from_(blob: Blob, *nodes: Node) -> Blob:
    return replace(blob, sources=tuple(node.contact for node in nodes))
