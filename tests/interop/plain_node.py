"""Our node as other implementations meet it: the shipped stack and Kademlia, under the protocol
prefix `/ipfs` and with the specification's own records. `python -m tests.interop.plain_node`.

Production never speaks this protocol: there, records carry signatures.
"""

import itertools
import logging
import os
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final

import trio

from formation_p2p.core.effects import Contact, Effect, Moment
from formation_p2p.core.errors import FormationError, ProtocolViolation
from formation_p2p.core.identity import Identity, PeerId, parse_peer_id, peer_id_to_bytes
from formation_p2p.dht.core import messages
from formation_p2p.dht.core import messages as kad
from formation_p2p.dht.core.kademlia import Kademlia
from formation_p2p.dht.core.operations import Asked, OperationId, Published, Searched
from formation_p2p.dht.core.rpc import (
    DhtEvent,
    InboundConnection,
    PeerIdentified,
    ProbeReachability,
    ReachabilityProbed,
    RequestFailed,
    RequestReceived,
    ResponseReceived,
    SendRequest,
    SendResponse,
)
from formation_p2p.leases.core.session import Disconnected, Undelivered
from formation_p2p.machine.clock import moment
from formation_p2p.net.handlers import Answer, NetworkEvent
from formation_p2p.reach.stack import Stack
from tests.interop.lines import obey
from tests.interop.plain_records import Found, PlainRecords, PublicKeys, ValueRecord
from tests.support.dht_messages import parse_reply, parse_request

KAD_PROTOCOL: Final = "/ipfs/kad/1.0.0"
LOOPBACK: Final = "/ip4/127.0.0.1/tcp/0"


class Texts:
    """`/text/…`: any value in UTF-8, of which the greatest is the best."""

    def validate(self, name: bytes, value: bytes) -> bool:
        try:
            value.decode()
        except UnicodeDecodeError:
            return False
        return True

    def select(self, name: bytes, values: Sequence[bytes]) -> int:
        return values.index(max(values))


class PlainNode:
    """What the shell is to the peer, this is to a bare Kademlia."""

    def __init__(self, listen: Sequence[str] = (LOOPBACK,)) -> None:
        self._identity = Identity.from_seed(os.urandom(32))
        self._records = PlainRecords({b"pk": PublicKeys(), b"text": Texts()})
        rng = random.Random(random.SystemRandom().getrandbits(128))
        self._dht: Kademlia[Found] = Kademlia(self._identity.peer_id, self._records, rng)
        self._stack = Stack(self._identity, listen, kad_protocol=KAD_PROTOCOL)
        self._ask_ids = itertools.count(1)
        self._answers: dict[int, Answer] = {}
        self._results: dict[OperationId, Searched[Found] | Published | Asked] = {}
        self._changed = trio.Condition()
        self._nursery: trio.Nursery | None = None

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await nursery.start(self._stack.run, self)
            nursery.start_soon(self._keep_time)
            yield
            await self._stack.close()
            nursery.cancel_scope.cancel()

    async def run(self) -> None:
        async with self.running():
            commands = {
                "connect": self._connect,
                "closest": self._closest,
                "provide": self._provide,
                "find_providers": self._find_providers,
                "put_value": self._put_value,
                "get_value": self._get_value,
                "held": self._held,
            }
            hello = {"peer": self._identity.peer_id, "addresses": self._stack.announced}
            await obey(commands, hello)

    # -- commands ----------------------------------------------------------------------------

    async def _connect(self, asked: dict[str, Any]) -> None:
        """Join through a peer."""
        gate = Contact(parse_peer_id(asked["peer"]), tuple(asked["addresses"]))
        now = moment()
        operation = self._dht.bootstrap([gate], now, "join")
        joined = await self._searched(operation)
        if not joined.closest:
            raise FormationError(f"{gate} does not answer")

    async def _closest(self, asked: dict[str, Any]) -> list[PeerId]:
        found = await self._closest_to(peer_id_to_bytes(parse_peer_id(asked["peer"])))
        return [contact.peer_id for contact in found]

    async def _closest_to(self, name: bytes) -> tuple[Contact, ...]:
        width = self._dht.parameters.k
        search = self._dht.search(kad.FindNode(name), moment(), "test", width=width)
        return tuple((await self._searched(search)).closest)

    async def _provide(self, asked: dict[str, Any]) -> list[PeerId]:
        provider = kad.Provider(Contact(self._identity.peer_id, self._stack.announced))
        return await self._write(kad.AddProvider(bytes.fromhex(asked["name"]), provider), asked)

    async def _put_value(self, asked: dict[str, Any]) -> list[PeerId]:
        name, value = bytes.fromhex(asked["name"]), bytes.fromhex(asked["value"])
        return await self._write(kad.PutValue(name, value), asked)

    async def _write(self, write: kad.Write, asked: dict[str, Any]) -> list[PeerId]:
        """To the nearest, or to those in `only`. Returns who took it."""
        if "only" in asked:
            to = tuple(
                Contact(parse_peer_id(each["peer"]), tuple(each["addresses"]))
                for each in asked["only"]
            )
        else:
            found = await self._closest_to(write.name)
            to = self._dht.nearest(write.name, found, self._dht.parameters.k)
        writes = [(each, write) for each in to]
        result = await self._result(self._dht.operations.deliver(writes, moment(), "test"))
        assert isinstance(result, Published)
        return [contact.peer_id for contact in result.stored_at]

    async def _find_providers(self, asked: dict[str, Any]) -> list[dict[str, object]]:
        name = bytes.fromhex(asked["name"])
        found = await self._searched(
            self._dht.search(kad.GetProviders(name, None), moment(), "test")
        )
        return [_contact(each) for each in found.found if isinstance(each, Contact)]

    async def _get_value(self, asked: dict[str, Any]) -> str | None:
        name = bytes.fromhex(asked["name"])
        found = await self._searched(self._dht.search(kad.GetValue(name), moment(), "test"))
        values = [each.value.hex() for each in found.found if isinstance(each, ValueRecord)]
        return values[0] if values else None

    async def _held(self, asked: dict[str, Any]) -> dict[str, object]:
        """What this very node keeps under a name."""
        name, now = bytes.fromhex(asked["name"]), moment()
        value = self._records.value(name, now)
        providers = self._records.providers(kad.GetProviders(name), now).providers
        return {
            "value": None if value is None else value.hex(),
            "providers": [_contact(each.contact) for each in providers],
        }

    async def _searched(self, operation: OperationId) -> Searched[Found]:
        result = await self._result(operation)
        assert isinstance(result, Searched)
        return result

    async def _result(self, operation: OperationId) -> Searched[Found] | Published | Asked:
        self._perform()
        async with self._changed:
            while operation not in self._results:
                await self._changed.wait()
        return self._results.pop(operation)

    # -- what comes from the network ------------------------------------------------------------

    def asked(self, sender: Contact, frame: bytes, answer: Answer) -> None:
        try:
            message = parse_request(frame, sender.peer_id)
        except ProtocolViolation as violation:
            answer(violation)
            self._stack.offended(sender.peer_id, str(violation))
            return
        request_id = next(self._ask_ids)
        self._answers[request_id] = answer
        self._feed(RequestReceived(request_id, sender, message))

    def received(self, sender: Contact, frame: bytes) -> None:
        raise AssertionError("nobody here speaks the work protocol")

    def feed(self, event: NetworkEvent) -> None:
        match event:
            case InboundConnection() | PeerIdentified():
                self._feed(event)
            case Disconnected(peer_id):
                logging.info("disconnected from %s", peer_id)
            case Undelivered():
                raise AssertionError("nobody here speaks the work protocol")

    # -- performing ---------------------------------------------------------------------------

    def _feed(self, event: DhtEvent) -> None:
        self._dht.handle(event, moment())
        self._perform()

    def _perform(self) -> None:
        assert self._nursery is not None
        effects, completed = self._dht.take()
        for effect in effects:
            self._perform_one(effect, self._nursery)
        self._results.update((each.operation, each) for each in completed)
        if completed:
            self._nursery.start_soon(self._notify)

    def _perform_one(self, effect: Effect, nursery: trio.Nursery) -> None:
        match effect:
            case SendRequest():
                nursery.start_soon(self._ask, effect)
            case SendResponse(request_id, kad.Stored(value=b"")):
                self._answers.pop(request_id)(ProtocolViolation("the value is not kept"))
            case SendResponse(request_id, message):
                self._answers.pop(request_id)(None if message is None else messages.encode(message))
            case ProbeReachability():
                nursery.start_soon(self._dial_back, effect)
            case _:
                raise AssertionError(f"{effect} is not of the DHT")

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    async def _ask(self, ask: SendRequest) -> None:
        message = ask.message
        expects_answer = not isinstance(message, kad.AddProvider) or message.acknowledged
        try:
            raw = await self._stack.ask(
                ask.to,
                messages.encode(message),
                timeout_s=ask.timeout_s,
                expects_answer=expects_answer,
            )
            reply = None if raw is None else parse_reply(raw, message)
        except FormationError as error:
            logging.warning("asking %s failed: %s", ask.to.peer_id, error)
            self._feed(RequestFailed(ask.request_id, str(error)))
        else:
            self._feed(ResponseReceived(ask.request_id, self._stack.contact(ask.to), reply))

    async def _dial_back(self, effect: ProbeReachability) -> None:
        reached = await self._stack.dial_back(effect.to.peer_id, timeout_s=effect.timeout_s)
        self._feed(ReachabilityProbed(effect.request_id, reached))

    async def _keep_time(self) -> None:
        while True:
            now: Moment = moment()
            # A second at most: a join sets a timer that this does not hear of.
            await trio.sleep(min(1.0, max(0.0, self._dht.next_timeout() - now.mono_s)))
            self._dht.tick(moment())
            self._perform()


def _contact(contact: Contact) -> dict[str, object]:
    return {"peer": contact.peer_id, "addresses": contact.addresses}


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    trio.run(PlainNode().run)
