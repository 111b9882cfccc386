"""Small worlds of stacks on the loopback interface, for the tests of the network."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import trio

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.dht.core.rpc import InboundConnection, PeerIdentified
from formation_p2p.leases.core.session import Disconnected, Undelivered
from formation_p2p.net.handlers import NetworkEvent
from formation_p2p.net.transport.parameters import DEFAULTS, NetParameters
from formation_p2p.peer.core.events import AddressesChanged, Measured
from formation_p2p.reach.circuit_settings import NO_CIRCUITS, CircuitSettings
from formation_p2p.reach.stack import Stack
from tests.support.loopback import LISTEN
from tests.support.waiting import HANGS_S
from tests.support.waiting import run as run

Answer = Callable[[bytes | None], None]


@dataclass
class Recorder:
    """Handlers that write down what they are told. Requests are answered with `re:…`."""

    requests: list[tuple[Contact, bytes]] = field(default_factory=list)
    frames: list[tuple[Contact, bytes]] = field(default_factory=list)
    lost: list[tuple[PeerId, str]] = field(default_factory=list)
    gone: list[PeerId] = field(default_factory=list)
    dialled: list[tuple[PeerId, str]] = field(default_factory=list)
    met: list[Contact] = field(default_factory=list)
    moved: list[tuple[tuple[str, ...], tuple[str, ...]]] = field(default_factory=list)
    rtts_us: dict[PeerId, list[int]] = field(default_factory=dict)
    respond: Callable[[bytes, Answer], None] = lambda frame, answer: answer(b"re:" + frame)
    take: Callable[[bytes], None] = lambda frame: None

    def asked(self, sender: Contact, frame: bytes, answer: Answer) -> None:
        self.requests.append((sender, frame))
        self.respond(frame, answer)

    def received(self, sender: Contact, frame: bytes) -> None:
        self.frames.append((sender, frame))
        self.take(frame)

    def feed(self, event: NetworkEvent) -> None:
        match event:
            case Undelivered(to, reason):
                self.lost.append((to, reason))
            case InboundConnection(peer_id, host):
                self.dialled.append((peer_id, host))
            case Measured(peer_id, rtt_us):
                self.rtts_us.setdefault(peer_id, []).append(rtt_us)
            case PeerIdentified(peer):
                self.met.append(peer)
            case Disconnected(peer_id):
                self.gone.append(peer_id)
            case AddressesChanged(direct, announced):
                self.moved.append((direct, announced))

    @property
    def payloads(self) -> list[bytes]:
        return [frame for _, frame in self.frames]


class Node(Recorder):
    """A stack and what it was told."""

    def __init__(
        self,
        listen: tuple[str, ...] = LISTEN,
        seed: bytes | None = None,
        parameters: NetParameters = DEFAULTS,
        circuits: CircuitSettings = NO_CIRCUITS,
        gates: Iterable[PeerId] = (),
    ) -> None:
        super().__init__()
        self.identity = Identity.from_seed(seed if seed is not None else os.urandom(32))
        self.stack = Stack(
            self.identity, listen, gates=gates, parameters=parameters, circuits=circuits
        )

    @property
    def peer_id(self) -> PeerId:
        return self.identity.peer_id

    @property
    def contact(self) -> Contact:
        return Contact(self.peer_id, self.stack.addresses)

    @property
    def port(self) -> int:
        return int(self.stack.addresses[0].rsplit("/", 1)[1])

    async def ask(
        self, to: Node | Contact, frame: bytes, timeout_s: float = HANGS_S
    ) -> bytes | None:
        contact = to if isinstance(to, Contact) else to.contact
        return await self.stack.ask(contact, frame, timeout_s=timeout_s)


@asynccontextmanager
async def running(*nodes: Node) -> AsyncIterator[None]:
    """Stacks that run for the length of a block and are closed after it."""
    async with trio.open_nursery() as nursery:
        for node in nodes:
            await nursery.start(node.stack.run, node)
        for node in nodes:
            for other in nodes:
                node.stack.note_lease(other.peer_id)
        yield
        for node in nodes:
            await node.stack.close()
