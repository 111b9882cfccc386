"""A small world of DHT nodes on a virtual clock: the shipped `Kademlia`, and little above it.

    world = DhtWorld(seed=1)
    gate, alice, bob = world.join("gate", "alice", "bob")
    operation = find_closest(alice.dht, name, world.now)
    world.perform(alice)
    world.elapse(5)
    assert bob.contact in alice.searched(operation).closest

Every message passes through its own encoder and parser. A node may lie, fall silent or die.
"""

import hashlib
import heapq
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final, Protocol

from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import Identity, PeerId, key_of_peer
from formation_p2p.core.keyspace import KEY_BITS, MAX_DEPTH, Key, Span, key_of
from formation_p2p.core.refusals import Denied
from formation_p2p.core.units import GIB
from formation_p2p.dht.core import messages
from formation_p2p.dht.core import messages as kad
from formation_p2p.dht.core.kademlia import Kademlia
from formation_p2p.dht.core.operations import Asked, OperationId, Published, Searched
from formation_p2p.dht.core.parameters import DhtParameters
from formation_p2p.dht.core.rpc import (
    RequestFailed,
    RequestReceived,
    ResponseReceived,
    SendRequest,
    SendResponse,
)
from formation_p2p.dht.core.store import CheckedProfile, RecordStore, Shelf
from formation_p2p.discovery.core.finder import suits
from formation_p2p.discovery.core.shard_membership import names_of
from formation_p2p.machine.core.capability import Capability, idle
from formation_p2p.records.core.profile import Profile, SignedProfile, open_profile, seal_profile
from tests.support.dht_messages import parse_reply, parse_request

EPOCH_UNIX_S: Final = 1_700_000_000.0
NOW: Final = Moment(1000.0, EPOCH_UNIX_S)
LATENCY_S: Final = 0.01
NETWORK: Final = b"n" * 32
DHT: Final = DhtParameters()
MACHINE: Final = Capability(cpu_milli=8000, memory_bytes=32 * GIB)

Lie = Callable[[kad.Request, kad.Reply | None], kad.Reply | None]


@lru_cache(maxsize=4096)
def person(name: str) -> Identity:
    return Identity.from_seed(hashlib.sha256(name.encode()).digest())


@lru_cache(maxsize=4096)
def contact(name: str) -> Contact:
    a, b, c, _ = hashlib.sha256(name.encode()).digest()[:4]
    return Contact(person(name).peer_id, (f"/ip4/10.{a}.{b}.{c}/tcp/4001",))


def profile(name: str, now: Moment, *, sequence: int | None = None, ttl_s: int = 120) -> Profile:
    """What a person's machine says of itself, as of now."""
    return Profile(
        peer_id=person(name).peer_id,
        sequence=int(now.unix_s * 1000) if sequence is None else sequence,
        issued_unix_s=int(now.unix_s),
        expires_unix_s=int(now.unix_s) + ttl_s,
        capability=MACHINE,
        capacity=idle(MACHINE),
        drivers=("process",),
        addresses=contact(name).addresses,
    )


def sealed(unsigned: Profile, by: Identity) -> SignedProfile:
    return SignedProfile(unsigned, seal_profile(by, unsigned))


def signed(name: str, now: Moment, *, sequence: int | None = None) -> SignedProfile:
    return sealed(profile(name, now, sequence=sequence), person(name))


def tombstone(name: str, now: Moment, *, sequence: int | None = None) -> SignedProfile:
    gone = replace(profile(name, now, sequence=sequence), withdrawn=True)
    return sealed(gone, person(name))


def added(signed: SignedProfile, *names: bytes, acknowledged: bool = False) -> kad.AddProvider:
    """What an author sends to have its profile kept under these names."""
    first, *more = names
    author = Contact(signed.profile.peer_id, signed.profile.addresses)
    return kad.AddProvider(first, kad.Provider(author, signed.raw), tuple(more), acknowledged)


def checked(signed: SignedProfile, names: Mapping[bytes, tuple[int, Span]]) -> CheckedProfile:
    """As a store has it after it has verified it."""
    return CheckedProfile(signed, names)


def any_count(rng: random.Random) -> kad.ShardCount:
    """Whatever a peer may say of a shard, likely or not."""
    members, settled, shallower, deeper, beyond = rng.choices([0, 1, 5, 9, 40, 900], k=5)
    return kad.ShardCount(members, settled, shallower, deeper, rng.randint(0, MAX_DEPTH), beyond)


def admit_all(profile: Profile, now: Moment) -> Denied | None:
    return None


def names_in_network(profile: Profile) -> Mapping[bytes, tuple[int, Span]]:
    return names_of(profile, NETWORK)


class Alone:
    """Alice's node, whose peers are played by the test."""

    def __init__(
        self,
        *,
        knows: tuple[Contact, ...] = (),
        parameters: DhtParameters = DHT,
        shelf: Shelf | None = None,
    ) -> None:
        self.own = contact("alice")
        self.records = RecordStore(
            admit_all, names_in_network, suits, shelves=[shelf] if shelf else []
        )
        self.dht = Kademlia(self.own.peer_id, self.records, random.Random(1), parameters=parameters)
        for known in knows:
            self.dht.table.saw(known, NOW.mono_s)

    def requests(self) -> list[SendRequest]:
        effects, completed = self.dht.take()
        assert completed == []
        assert all(isinstance(effect, SendRequest) for effect in effects)
        return [effect for effect in effects if isinstance(effect, SendRequest)]

    def respond(self, sent: SendRequest, reply: kad.Reply | None, now: Moment = NOW) -> None:
        self.dht.handle(ResponseReceived(sent.request_id, sent.to, reply), now)

    def time_out(self, sent: SendRequest, now: Moment = NOW) -> None:
        self.dht.handle(RequestFailed(sent.request_id, "no answer"), now)

    def reply_to(
        self, request: kad.Request, sender: Contact | None = None, now: Moment = NOW
    ) -> kad.Reply | None:
        """What alice answers, whatever else she does about it."""
        self.dht.handle(RequestReceived(7, sender or contact("bob"), request), now)
        effects, _ = self.dht.take()
        [answer] = [effect for effect in effects if isinstance(effect, SendResponse)]
        assert answer.request_id == 7
        return answer.message


def common_prefix(a: Key, b: Key) -> int:
    """How many leading bits two keys share."""
    return KEY_BITS - (a ^ b).bit_length()


def find_closest(dht: Kademlia[SignedProfile], name: bytes, now: Moment) -> OperationId:
    """Ends as Searched, whose `closest` are the k peers nearest to a name."""
    return dht.search(kad.FindNode(name), now, "a test", width=dht.parameters.k)


def nearest_first(name: bytes, *contacts: Contact) -> list[Contact]:
    return sorted(contacts, key=lambda each: key_of_peer(each.peer_id) ^ key_of(name))


Completed = Searched[SignedProfile] | Published | Asked


class Upper(Protocol):
    """What stands on a node's DHT: a finder, an announcer."""

    def completed(self, completed: Completed, now: Moment) -> None: ...
    def tick(self, now: Moment) -> None: ...
    def next_timeout(self) -> float: ...


@dataclass(slots=True, eq=False)
class DhtNode:
    name: str
    identity: Identity
    contact: Contact
    dht: Kademlia[SignedProfile]
    records: RecordStore
    alive: bool = True
    silent: bool = False
    lie: Lie | None = None
    denied: Denied | None = None  # why it admits no profile
    upper: Upper | None = None
    completed: list[tuple[float, Completed]] = field(default_factory=list)
    tick_s: float = float("inf")

    @property
    def peer_id(self) -> PeerId:
        return self.identity.peer_id

    def keep(self, name: bytes, signed: SignedProfile, now: Moment) -> bool:
        """As if the author had sent it."""
        return self.records.keep(self.contact, added(signed, name), now)

    def held(self, name: bytes, now: Moment) -> list[Profile]:
        """The profiles that this node would tell of under a name, all of them."""
        everyone = kad.GetProviders(name, kad.ProviderQuery(Key(0), b"", 1 << 32))
        providers = self.records.providers(everyone, now).providers
        return [open_profile(each.profile, now.unix_s).profile for each in providers]

    def searched(self, operation: OperationId) -> Searched[SignedProfile]:
        ended = self.ended(operation)
        assert isinstance(ended, Searched)
        return ended

    def published(self, operation: OperationId) -> Published:
        ended = self.ended(operation)
        assert isinstance(ended, Published)
        return ended

    def ended(self, operation: OperationId) -> Completed:
        ended = [each for _, each in self.completed if each.operation == operation]
        assert len(ended) == 1, f"{len(ended)} ends of operation {operation} of {self.name}"
        return ended[0]


@dataclass(frozen=True, slots=True)
class Carried:
    """One message on a wire of this world."""

    at_s: float
    sender: str
    receiver: str
    message: kad.Request | kad.Reply


class DhtWorld:
    def __init__(self, seed: int, *, parameters: DhtParameters = DHT) -> None:
        self.now_s = 0.0
        self.nodes: dict[str, DhtNode] = {}
        self.carried: list[Carried] = []
        self._seed = seed
        self._parameters = parameters
        self._by_id: dict[PeerId, DhtNode] = {}
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    @property
    def now(self) -> Moment:
        return Moment(self.now_s, EPOCH_UNIX_S + self.now_s)

    def add(self, name: str) -> DhtNode:
        """A node that has not joined anybody. One of this name, if any, is replaced."""
        store = RecordStore(lambda profile, now: self.nodes[name].denied, names_in_network, suits)
        rng = random.Random(f"{self._seed}/{name}")
        dht = Kademlia(person(name).peer_id, store, rng, parameters=self._parameters)
        node = DhtNode(name, person(name), contact(name), dht, store)
        if name in self.nodes:
            self.nodes[name].alive = False
        self.nodes[name] = self._by_id[node.peer_id] = node
        return node

    def join(self, *names: str, every_s: float = 0.2) -> list[DhtNode]:
        """Nodes that join through the first one of the world, one after the other."""
        joined = []
        for name in names:
            gates = [node.contact for node in list(self.nodes.values())[:1]]
            node = self.add(name)
            node.dht.bootstrap(gates, self.now, "join")
            self.perform(node)
            self.elapse(every_s)
            joined.append(node)
        return joined

    def perform(self, node: DhtNode) -> None:
        """What came of calling a node: send its requests, keep what it completed."""
        while True:
            effects, completed = node.dht.take()
            for effect in effects:
                assert isinstance(effect, SendRequest), f"{effect} outside of a request"
                self._send(node, effect)
            for each in completed:
                node.completed.append((self.now_s, each))
                if node.upper is not None:
                    node.upper.completed(each, self.now)
            if not completed:
                break
        upper_s = float("inf") if node.upper is None else node.upper.next_timeout()
        due_s = max(min(node.dht.next_timeout(), upper_s), self.now_s)
        if due_s < node.tick_s:
            node.tick_s = due_s
            self._at(due_s, lambda: self._tick(node, due_s))

    def publish(self, node: DhtNode, write: kad.Write) -> tuple[Searched[SignedProfile], Published]:
        """Have a node write to the k peers nearest to a name."""
        looking = find_closest(node.dht, write.name, self.now)
        self.perform(node)
        self.elapse(1)
        searched = node.searched(looking)
        nearest = node.dht.nearest(write.name, searched.closest, self._parameters.k)
        writes = [(to, write) for to in nearest]
        writing = node.dht.operations.deliver(writes, self.now, "a test")
        self.perform(node)
        self.elapse(1)
        return searched, node.published(writing)

    def elapse(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        for _ in range(2_000_000):
            if not self._queue or self._queue[0][0] > until_s:
                self.now_s = until_s
                return
            self.now_s, _, action = heapq.heappop(self._queue)
            action()
        raise AssertionError(f"the world spins at {self.now_s} s; seed {self._seed}")

    def said(self, kind: type[kad.Request | kad.Reply]) -> list[Carried]:
        return [each for each in self.carried if isinstance(each.message, kind)]

    def nearest(self, key: int, count: int, among: Iterable[DhtNode] = ()) -> list[PeerId]:
        """The truth that a lookup is to find."""
        nodes = [node for node in among or self.nodes.values() if node.alive]
        nodes.sort(key=lambda node: node.identity.key ^ key)
        return [node.peer_id for node in nodes[:count]]

    def _at(self, at_s: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (at_s, self._count, action))

    def _tick(self, node: DhtNode, due_s: float) -> None:
        if node.alive and node.tick_s == due_s:
            node.tick_s = float("inf")
            node.dht.tick(self.now)
            if node.upper is not None:
                node.upper.tick(self.now)
            self.perform(node)

    def _tell(self, node: DhtNode, event: ResponseReceived | RequestFailed) -> None:
        if node.alive:
            node.dht.handle(event, self.now)
            self.perform(node)

    def _send(self, node: DhtNode, sent: SendRequest) -> None:
        request = parse_request(messages.encode(sent.message))
        other = self._by_id.get(sent.to.peer_id)
        at_s = self.now_s + LATENCY_S
        self._at(at_s, lambda: self._arrive(node, other, sent, request))

    def _arrive(
        self, node: DhtNode, other: DhtNode | None, sent: SendRequest, request: kad.Request
    ) -> None:
        if other is None or not other.alive or other.silent:
            # The dead refuse at once; the silent let the asker wait for its whole timeout.
            late_s = sent.timeout_s if other is not None and other.silent else LATENCY_S
            failed = RequestFailed(sent.request_id, "no answer")
            self._at(self.now_s + late_s, lambda: self._tell(node, failed))
            return
        self.carried.append(Carried(self.now_s, node.name, other.name, request))
        other.dht.handle(RequestReceived(self._count, node.contact, request), self.now)
        effects, _ = other.dht.take()
        answer, *requests = effects
        assert isinstance(answer, SendResponse)
        for each in requests:
            assert isinstance(each, SendRequest)
            self._send(other, each)
        message = answer.message if other.lie is None else other.lie(request, answer.message)
        reply = None if message is None else parse_reply(messages.encode(message), request)
        if reply is not None:
            self.carried.append(Carried(self.now_s, other.name, node.name, reply))
        answered = ResponseReceived(sent.request_id, other.contact, reply)
        self._at(self.now_s + LATENCY_S, lambda: self._tell(node, answered))


def village(seed: int, size: int, *, k: int) -> DhtWorld:
    town = DhtWorld(seed, parameters=DhtParameters(k=k))
    town.join(*(f"node {number}" for number in range(size)))
    town.elapse(5)
    return town
