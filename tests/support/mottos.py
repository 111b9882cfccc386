"""A feature of another package (formation_p2p/peer/feature.py): each node has a motto, a signed
record of the DHT, and nodes wave to each other. The test installs this file as a package."""

import asyncio
import itertools
from dataclasses import dataclass
from typing import Annotated, Any, Final

import click

from formation_p2p import SyncNode
from formation_p2p.api.bridge import Bridge
from formation_p2p.core.effects import Contact, Effect, Moment, OwnedEvent
from formation_p2p.core.errors import FormationError
from formation_p2p.core.identity import PeerId, is_signed_by, peer_id_from_bytes, peer_id_to_bytes
from formation_p2p.dht.core import messages as kad
from formation_p2p.dht.core.operations import Searched
from formation_p2p.leases.core.messages import WORK, WorkMessage
from formation_p2p.leases.core.session import Send
from formation_p2p.peer.core.part import Completed, Part, on, reads
from formation_p2p.peer.core.peer import Kernel
from formation_p2p.peer.feature import FIRST_NUMBER, Feature
from formation_p2p.peer.node_part import NodePart, performs
from formation_p2p.peer.shell import Shell
from formation_p2p.records.core.schema import text

PREFIX: Final = b"/motto/"
SIGNATURE_BYTES: Final = 64
# One of a peer's 100 characters at most; a test has three peers.
MAX_MOTTO_BYTES: Final = 400
MAX_MOTTOS: Final = 64


@WORK.message(FIRST_NUMBER)
@dataclass(frozen=True, slots=True)
class Wave(WorkMessage):
    words: Annotated[str, text(100)]


@dataclass(frozen=True, slots=True)
class SetMotto:
    motto: str


@dataclass(frozen=True, slots=True)
class AskMotto:
    asker: str
    of: PeerId


@dataclass(frozen=True, slots=True)
class SendWave:
    to: Contact
    words: str


@dataclass(frozen=True, slots=True)
class TellMotto(OwnedEvent):
    """Of a motto that was found, or of a wave."""


class MottoShelf:
    """Mottos under `/motto/<peer id>`: a signature of the peer, then the text."""

    untimely = 0

    def __init__(self) -> None:
        self.kept: dict[bytes, bytes] = {}

    def holds(self, name: bytes) -> bool:
        return name.startswith(PREFIX)

    def keep(self, name: bytes, raw: bytes, now: Moment) -> bool:
        signature, motto = raw[:SIGNATURE_BYTES], raw[SIGNATURE_BYTES:]
        try:
            author = peer_id_from_bytes(name.removeprefix(PREFIX))
        except FormationError:
            return False
        signed = is_signed_by(author, signature, PREFIX + motto)
        room = name in self.kept or len(self.kept) < MAX_MOTTOS
        if not signed or not room or len(motto) > MAX_MOTTO_BYTES:
            return False
        self.kept[name] = raw
        return True

    def heard(self, name: bytes, raw: bytes, now: Moment) -> None:
        self.keep(name, raw, now)

    def providers(self, request: kad.GetProviders, now: Moment) -> kad.Providers:
        return kad.Providers(())

    def value(self, name: bytes, now: Moment) -> bytes | None:
        return self.kept.get(name)

    def expire(self, now: Moment) -> None:
        pass


class Mottos:
    def __init__(self, kernel: Kernel[Any, Any]) -> None:
        self.kernel = kernel
        self.shelf = MottoShelf()
        kernel.records.shelve(self.shelf)
        self.asked: dict[int, AskMotto | kad.PutValue] = {}
        self.part = Part(
            reads=reads(self.waved, Wave),
            handles=on(self.set, SetMotto) | on(self.ask, AskMotto) | on(self.wave, SendWave),
            ended=self.ended,
        )

    def set(self, event: SetMotto, now: Moment) -> None:
        own, motto = self.kernel.identity, event.motto.encode()
        name = PREFIX + peer_id_to_bytes(own.peer_id)
        put = kad.PutValue(name, own.sign(PREFIX + motto) + motto)
        self.shelf.keep(name, put.value, now)
        self.asked[self.kernel.dht.search(kad.FindNode(name), now, "a motto")] = put

    def ask(self, event: AskMotto, now: Moment) -> None:
        request = kad.GetValue(PREFIX + peer_id_to_bytes(event.of))
        self.asked[self.kernel.dht.search(request, now, "a motto is wanted")] = event

    def ended(self, completed: Completed, now: Moment) -> list[Effect] | None:
        match self.asked.pop(completed.operation, None):
            case kad.PutValue() as put if isinstance(completed, Searched):
                writes = [(contact, put) for contact in completed.closest]
                self.kernel.dht.operations.deliver(writes, now, "a motto")
                return []
            case AskMotto(asker, peer):
                raw = self.shelf.kept.get(PREFIX + peer_id_to_bytes(peer), b"")
                motto = raw[SIGNATURE_BYTES:].decode()
                return [TellMotto(cause="a motto was found", owned=asker, event=motto)]
        return None

    def wave(self, event: SendWave, now: Moment) -> list[Effect]:
        return [Send(cause="a wave", to=event.to, message=Wave(event.words))]

    def waved(self, sender: Contact, message: Wave, now: Moment) -> list[Effect]:
        words = (sender.peer_id, message.words)
        return [TellMotto(cause="a peer waved", owned="waves", event=words)]


class Heard:
    """The first event for what it owns."""

    def __init__(self) -> None:
        self.first: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    def notify(self, event: Any, /) -> None:
        if not self.first.done():
            self.first.set_result(event)

    def fail(self, error: FormationError) -> None:
        if not self.first.done():
            self.first.set_exception(error)


class MottoApi:
    numbers = itertools.count()

    def __init__(self, bridge: Bridge) -> None:
        self.bridge = bridge
        self.waves = Heard()
        bridge.owners["waves"] = self.waves

    def _feed(self, event: Any) -> None:
        def feed(shell: Shell) -> None:
            shell.feed(event)

        self.bridge.call(feed)

    async def set(self, motto: str) -> None:
        self._feed(SetMotto(motto))

    async def of(self, peer: PeerId) -> str:
        asker = f"motto-{next(self.numbers)}"
        heard = self.bridge.owners[asker] = Heard()
        try:
            self._feed(AskMotto(asker, peer))
            motto: str = await asyncio.wait_for(heard.first, 30)
            return motto
        finally:
            del self.bridge.owners[asker]

    async def wave(self, peer: PeerId, address: str, words: str) -> None:
        self._feed(SendWave(Contact(peer, (address,)), words))

    async def waved(self) -> tuple[PeerId, str]:
        wave: tuple[PeerId, str] = await self.waves.first
        return wave


FEATURE: Final = Feature(
    part=lambda kernel: Mottos(kernel).part,
    beside=lambda means: NodePart(performs(means.tell, TellMotto)),
    api=MottoApi,
)


@click.command(help="Print the motto of a peer.")
@click.argument("peer")
@click.option("--home", required=True)
def motto(peer: str, home: str) -> None:
    with SyncNode.join(home=home, listen=()) as node:
        click.echo(node.feature("mottos").of(PeerId(peer)))
