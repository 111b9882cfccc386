"""A world of peers on a virtual clock: the shipped `Peer`, and nothing else that is real.

    world = World(seed=7)
    gate = world.add("gate")
    alice = world.add("alice", serve=world.machine(cpu=2))
    bob = world.add("bob")
    world.elapse(5)
    bob.submit(job)
    world.elapse(30)

Every message passes through its own encoder and parser, and is kept in `sent`; every peer checks
its invariants after every event. With thousands of nodes none of that is done (`lean`). What was
said is counted by its cause in any world. Chance comes from the seed alone, so that the same seed
gives the same story.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Final

from formation_p2p.assembly import DEFAULT_PARAMETERS, Peer, PeerEffect, PeerEvent, PeerParameters
from formation_p2p.core.effects import Contact, Moment
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.core.units import GIB
from formation_p2p.dht.core import messages as kad
from formation_p2p.leases.core import messages as work
from formation_p2p.leases.core.session import Received, Undelivered
from formation_p2p.machine.core.capability import Capability
from formation_p2p.peer.core.events import Joined, Serve, Tick
from formation_p2p.trust.core.grants import Rights, issue
from formation_p2p.trust.core.network import Network
from formation_p2p.workload.core.outcome import Succeeded
from simulations.simulator.connections import Connections, private_address, public_address
from simulations.simulator.executor import Run, Running
from simulations.simulator.node import TRUE, Clock, Residents, SimNode, SimPeer
from simulations.simulator.performer import Performer
from simulations.simulator.routers import Router, Routers
from simulations.simulator.streams import Streams

# 2026-01-01, so that records and grants have plausible times.
EPOCH_UNIX_S: Final = 1_767_225_600.0
# One way, between any two peers, unless `latency` says otherwise.
LATENCY_S: Final = 0.010
# A world that does more than this in one `elapse` is in a loop, if it is not told otherwise.
MAX_STEPS: Final = 5_000_000


@dataclass(frozen=True, slots=True)
class Sent:
    """One message on a wire of this world."""

    at_s: float
    sender: str
    receiver: str
    message: kad.Message | work.WorkMessage


class World:
    """`run` says what executions do; the default takes a second and echoes the payload.

    `latency` is one way; `loss` is the share of messages that never arrive. With `connections`
    messages wait for a dial where there is none.
    """

    def __init__(
        self,
        seed: int,
        run: Run | None = None,
        *,
        lean: bool = False,
        loss: float = 0.0,
        connections: Connections | None = None,
        trace: Callable[[float, str, str, object], None] | None = None,
        parameters: PeerParameters = DEFAULT_PARAMETERS,
    ) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.now_s = 0.0
        self.nodes: dict[str, SimNode] = {}
        self.gates: list[SimNode] = []
        self.sent: list[Sent] = []
        self.messages: Counter[str] = Counter()  # requests and replies, by the requests' cause
        self.latency: Callable[[SimNode, SimNode], float] = lambda a, b: LATENCY_S
        self.run: Run = run or (lambda running: (1.0, Succeeded(running.work.payload)))
        self.residents: Residents | None = None  # nodes that are added asleep, there for long
        self.connections = connections
        # With streams that break, where the network is to fail; else it only is cut.
        self.streams: Streams | None = None
        self.routers: Routers | None = None  # then a connection is kept until something breaks it
        # How long it takes to end what runs under a lease.
        self.fence_s: Callable[[], float] = lambda: 0.0
        # How long what is given notice takes to end.
        self.noticed_s: Callable[[Running], float] = lambda running: 0.5
        # Sees each event, and what came of it, before that is performed.
        self.witness: Callable[[SimNode, PeerEvent, list[PeerEffect]], None] = lambda *seen: None
        self.peer: Callable[..., Peer] = Peer
        self.max_steps = MAX_STEPS
        self.clock_of: Callable[[str], Clock] = lambda name: TRUE
        self.lean = lean
        self.loss = loss
        self._trace = trace
        self._parameters = parameters if lean else replace(parameters, validate=True)
        self._loss_rng = random.Random(f"{seed}/loss")
        self.root = self._identity("root")
        self.peers: dict[PeerId, SimNode] = {}
        self.numbered: list[SimNode] = []
        self.undialable: set[str] = set()  # by name: nodes that cannot be dialled back
        self._cuts: set[frozenset[str]] = set()
        self._queue: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self._count = 0
        self.performer = Performer(self)

    def add(
        self,
        name: str,
        *,
        serve: Serve | None = None,
        rights: Rights | None = None,
        stranger: bool = False,
        gates: Sequence[SimNode] | None = None,
        site: int = 0,
        public: bool = False,
        router: Router | None = None,
        disguise: Callable[[Peer], SimPeer] | None = None,
        asleep: bool = False,
    ) -> SimNode:
        """A new node, joining through `gates`, or the first one of the world.

        A stranger's grant is of another network. Those with `public` addresses are each in a
        subnet of their own; one behind a `router` has none. With a `disguise` its peer is not the
        shipped one. One that is `asleep` is not there before it is told to `wake` or gets any
        event; asking one of the `residents` wakes it, so that they wake as they are needed.
        """
        identity = self._identity(name)
        number = len(self.numbered)
        address = public_address(number) if public and not router else private_address(number)
        contact = Contact(identity.peer_id, () if router else (address,))

        @cache
        def joined() -> Network:
            root = self.root if not stranger else self._identity("another root")
            granted = issue(root, rights or Rights(int(EPOCH_UNIX_S) + 10**7), identity.peer_id)
            network = Network(root.public_key, (), granted)
            # A stranger knows the network's public side, and shows a grant that is worth nothing.
            return _disguised(network, self.root.public_key) if stranger else network

        def born(incarnation: int) -> SimPeer:
            which = f"/life {incarnation}" if incarnation else ""
            rng = random.Random(f"{self.seed}/{name}{which}")
            peer = self.peer(identity, joined(), rng, parameters=self._parameters)
            return peer if disguise is None else disguise(peer)

        if gates is None:
            gates = list(self.nodes.values())[:1]
        known = tuple(gate.contact for gate in gates)
        node = SimNode(
            name, number, self, identity, contact, address, known, born, joined, router, site
        )
        node.clock = self.clock_of(name)
        self.nodes[name] = node
        self.peers[identity.peer_id] = node
        self.numbered.append(node)
        if not asleep:
            self.wake(node)
        if serve is not None:
            self.deliver(node, serve)
        return node

    def machine(
        self,
        *,
        cpu: int = 1,
        memory_bytes: int = 16 * GIB,
        drivers: tuple[str, ...] = ("process",),
        labels: tuple[tuple[str, str], ...] = (),
    ) -> Serve:
        """A worker's machine with `cpu` cores."""
        capability = Capability(cpu_milli=cpu * 1000, memory_bytes=memory_bytes)
        return Serve(capability, drivers, labels)

    def elapse(self, seconds: float) -> None:
        """Let virtual time pass."""
        until_s = self.now_s + seconds
        queue, pop = self._queue, heapq.heappop
        for _ in range(self.max_steps):
            if not queue or queue[0][0] > until_s:
                self.now_s = until_s
                return
            self.now_s, _, action, arguments = pop(queue)
            action(*arguments)
        most = self.max_steps
        raise AssertionError(f"more than {most} steps in {seconds} s; seed {self.seed}")

    def after(self, delay_s: float, action: Callable[..., None], *arguments: Any) -> None:
        """Have something happen in a while."""
        self.at(self.now_s + delay_s, action, *arguments)

    def at(self, at_s: float, action: Callable[..., None], *arguments: Any) -> None:
        """Have something happen at a time, or now where that has passed."""
        self._count += 1
        heapq.heappush(self._queue, (max(at_s, self.now_s), self._count, action, arguments))

    def later(self, delay_s: float, node: SimNode, event: PeerEvent) -> None:
        """Tell a node of something in a while, unless it dies before."""
        self.after(delay_s, self.deliver_to, node.incarnation, node, event)

    def wake(self, node: SimNode, *events: PeerEvent) -> None:
        """Have a node join; one of the `residents` is there at once, after these `events`."""
        if node.awake:
            return
        node.awake = True
        if self.residents is not None and node in self.residents:
            self.residents.wake(node, events)
        else:
            addresses = node.contact.addresses
            if self.routers is not None:
                addresses = self.routers.began(node)
            self.deliver(node, Joined(addresses, node.gates, node.remembered))

    def kill(self, node: SimNode) -> None:
        """As SIGKILL: nothing more is heard, and connections to it break."""
        gone = Undelivered(node.identity.peer_id, "the connection broke")
        for other in self._die(node):
            if self.streams is None and not self.is_cut(node, other):
                self.later(LATENCY_S, other, gone)

    def vanish(self, node: SimNode) -> None:
        """As when the power fails: peers are not told, and requests to it time out."""
        node.silent = True
        node.forget()
        self._die(node)

    def restart(self, node: SimNode, *events: PeerEvent) -> None:
        """Begin a dead node's next incarnation. Of `events` it is told after it has joined."""
        if self.streams is not None:
            self.streams.restarted(node)
        if self.routers is not None:
            self.routers.restarted(node)
        node.begin_again()
        self.wake(node)
        for event in events:
            self.deliver(node, event)

    def suspend(self, node: SimNode) -> None:
        """As a machine that sleeps: nothing on it goes on, and its clock does."""
        node.suspended = True
        node.executor.suspend()

    def resume(self, node: SimNode) -> None:
        """All that has come meanwhile is there at once."""
        if not node.alive or not node.suspended:
            return
        node.suspended = False
        node.executor.resume()
        waiting, node.inbox = node.inbox, []
        for event in waiting:
            self.deliver(node, event)

    def cut(self, a: SimNode, b: SimNode) -> None:
        """Nothing passes between the two until `heal`. They are not told: packets just vanish."""
        self._cuts.add(frozenset((a.name, b.name)))
        if self.routers is not None:
            self.routers.cut(a, b)
        elif self.streams is not None:
            self.streams.cut(a, b)

    def heal(self, a: SimNode, b: SimNode) -> None:
        self._cuts.discard(frozenset((a.name, b.name)))
        if self.routers is not None:
            self.routers.heal(a, b)
        elif self.streams is not None:
            self.streams.heal(a, b)

    def deliver(self, node: SimNode, event: PeerEvent) -> None:
        """Hand an event to a node, and perform what comes of it."""
        if not node.alive:
            return
        if node.suspended:
            node.inbox.append(event)
            return
        if not node.awake:
            self.wake(node)
        peer = node.peer
        now = self.moment(node)
        effects = peer.handle(event, now)
        self.witness(node, event, effects)
        for effect in effects:
            self.performer.take(node, effect)
        self._arm(node)

    def moment(self, node: SimNode) -> Moment:
        """What its clocks show now."""
        unix_s = EPOCH_UNIX_S + self.now_s + node.clock.unix_off_s
        return Moment(node.clock.mono_s(self.now_s), unix_s)

    def _identity(self, name: str) -> Identity:
        return Identity.from_seed(hashlib.sha256(f"{self.seed}/{name}".encode()).digest())

    def _due_s(self, node: SimNode) -> float:
        """When a node is to be ticked next."""
        return max(node.clock.world_s(node.peer.next_timeout()), self.now_s)

    def _arm(self, node: SimNode) -> None:
        due_s = self._due_s(node)
        if due_s < node.tick_s and due_s != float("inf"):
            node.tick_s = due_s
            self.at(due_s, self._tick, node, due_s)

    def _tick(self, node: SimNode, due_s: float) -> None:
        if node.tick_s != due_s:
            return
        node.tick_s = float("inf")
        if not node.alive:
            return
        if self._due_s(node) > self.now_s:
            self._arm(node)  # what was due then is due later by now
        else:
            self.deliver(node, Tick())

    def deliver_to(self, incarnation: int, node: SimNode, event: PeerEvent) -> None:
        if node.incarnation == incarnation:
            self.deliver(node, event)

    def _die(self, node: SimNode) -> list[SimNode]:
        """The peers that were connected to it: all others, if connections are not kept."""
        node.alive = False
        node.executor.stop()
        neighbours = self.numbered
        if self.connections is not None:
            neighbours = [self.numbered[number] for number in self.connections.close(node.number)]
        elif self.routers is not None:
            neighbours = self.routers.neighbours(node)
        others = [other for other in neighbours if other is not node]
        if self.streams is not None:
            self.streams.died(node, others)
        if self.routers is not None:
            self.routers.died(node)
        return others

    def is_cut(self, a: SimNode, b: SimNode) -> bool:
        """Whether what one of them sends now does not get to the other."""
        if self.is_apart(a, b):
            return True
        link = None if self.routers is None else self.routers.link(a, b)
        return link is not None and link.is_stalled

    def is_apart(self, a: SimNode, b: SimNode) -> bool:
        """Whether the network between them is cut."""
        return a.side != b.side or (bool(self._cuts) and frozenset((a.name, b.name)) in self._cuts)

    def is_lost(self) -> bool:
        return self.loss > 0 and self._loss_rng.random() < self.loss

    def is_in_vain(self, a: SimNode, b: SimNode, to: Contact) -> bool:
        """Whether nothing that `a` sends reaches `b`, which it knows as `to`: it may need a dial,
        and have no way to it."""
        if not b.alive or self.is_cut(a, b):
            return True
        if self.routers is not None:
            link = self.routers.way(a, to)
            return link is None or link.is_stalled
        if b.name not in self.undialable or self.connections is None:
            return False
        return not self.connections.are_connected(a.number, b.number)

    def refusal_s(self, node: SimNode, other: SimNode | None) -> float:
        """Until a host says that nothing listens there, or that no node has this address."""
        return 2 * (LATENCY_S if other is None else self.latency(node, other))

    def one_way_s(self, a: SimNode, b: SimNode) -> float:
        """Along the connection that they have."""
        if self.routers is None or (link := self.routers.link(a, b)) is None:
            return self.latency(a, b)
        return self.routers.one_way_s(link)

    def delay_s(self, a: SimNode, b: SimNode) -> float:
        """Until what is sent now is there, dialling included."""
        if self.routers is not None and (link := self.routers.link(a, b)) is not None:
            return self.routers.delay_s(link)
        one_way_s = self.latency(a, b)
        if self.connections is None:
            return one_way_s
        return self.connections.delay_s(a.number, b.number, one_way_s, self.now_s)

    def note(self, a: SimNode, b: SimNode, message: kad.Message | work.WorkMessage) -> None:
        """Note a message that is on its way and will arrive."""
        if not self.lean:
            self.sent.append(Sent(self.now_s, a.name, b.name, message))
        if self._trace is not None:
            self._trace(self.now_s, a.name, b.name, message)

    def delivered(self, a: SimNode, b: SimNode, message: work.WorkMessage) -> None:
        """What a stream brings."""
        self.note(a, b, message)
        self.deliver(b, Received(a.contact, message))


def _disguised(network: Network, root_public_key: bytes) -> Network:
    """A stranger's network object: the right root, and a grant that it did not issue."""
    disguised = object.__new__(Network)
    object.__setattr__(disguised, "root_public_key", root_public_key)
    object.__setattr__(disguised, "gates", ())
    object.__setattr__(disguised, "grant", network.grant)
    return disguised
