"""go-libp2p-kad-dht: one `p2pd` daemon for each node, driven through its control socket."""

from __future__ import annotations

import asyncio
import hashlib
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TypeVar

from benchmarks.dht.sides import Announced, BenchmarkError, NotFound, Side
from formation_p2p.core.identity import peer_id_to_bytes
from tests.interop.fetch import HIVEMIND, p2pd
from tests.interop.p2pd import Daemon, DaemonError, cid_of, daemons

Result = TypeVar("Result")
# As many as a lookup of ours asks for.
ALL = 20


class P2pdSide(Side):
    """The daemon has no more than one thread for each core, and a process for each node."""

    def __init__(self, name: str, count: int) -> None:
        p2pd()  # fetched before anything is timed
        self.name = name
        self.version = f"p2pd of {HIVEMIND}"
        self.keys = []
        self._count = count
        self._daemons: list[Daemon] = []
        self._exit = ExitStack()
        self._stopping = threading.Event()
        self._starting = threading.Lock()

    async def start(self) -> None:
        await asyncio.to_thread(self._start)

    def _start(self) -> None:
        """In a thread, which goes on when nobody waits for it any more."""
        with self._starting:
            self._start_all()

    def _start_all(self) -> None:
        [gate] = self._exit.enter_context(daemons(1))
        address = f"{gate.addresses[0]}/p2p/{gate.peer_id}"
        bootstrap = ("-b", f"-bootstrapPeers={address}")
        self._daemons = [gate, *self._exit.enter_context(daemons(self._count - 1, *bootstrap))]
        for daemon in self._daemons:
            digest = hashlib.sha256(peer_id_to_bytes(daemon.peer_id)).digest()
            self.keys.append(int.from_bytes(digest, "big"))
        for daemon in self._daemons:
            for other in self._daemons:
                while other is not daemon and not _finds(daemon, other):
                    if self._stopping.wait(0.1):
                        return

    async def announce(self, node: int, name: str) -> Announced:
        multihash = b"\x12\x20" + hashlib.sha256(name.encode()).digest()
        took_s, _ = await _timed(lambda: self._daemons[node].provide(cid_of(multihash)))
        return Announced(took_s, int.from_bytes(hashlib.sha256(multihash).digest(), "big"))

    async def find(self, node: int, name: str, author: int) -> float:
        """Until the first answer, which is the author: more would go on to the lookup's end."""
        return await self._find(node, name, author, 1)

    async def find_all(self, node: int, name: str, author: int) -> float:
        """Until the lookup ends, since there may be further providers."""
        return await self._find(node, name, author, ALL)

    async def _find(self, node: int, name: str, author: int, count: int) -> float:
        cid = cid_of(b"\x12\x20" + hashlib.sha256(name.encode()).digest())
        took_s, found = await _timed(lambda: self._daemons[node].find_providers(cid, count))
        if self._daemons[author].peer_id not in {contact.peer_id for contact in found}:
            raise NotFound(f"{self.name}: {name} was not found")
        return took_s

    async def closest(self, node: int) -> float:
        name = hashlib.sha256(time.time_ns().to_bytes(8, "big")).digest()
        took_s, found = await _timed(lambda: self._daemons[node].get_closest_peers(name))
        if not found:
            raise BenchmarkError(f"{self.name}: nobody is close")
        return took_s

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._stopping.set()
        with self._starting:  # a daemon that is started meanwhile is ended too
            self._exit.close()


async def _timed(call: Callable[[], Result]) -> tuple[float, Result]:
    def timed() -> tuple[float, Result]:
        began_s = time.perf_counter()
        result = call()
        return time.perf_counter() - began_s, result

    return await asyncio.to_thread(timed)


def _finds(daemon: Daemon, other: Daemon) -> bool:
    try:
        return bool(daemon.find_peer(other.peer_id).addresses)
    except DaemonError:
        return False
