"""A small world of peers on a virtual clock: the shipped `Peer`, and nothing else that is real.

    world = World(seed=7)
    gate = world.add("gate")
    alice = world.add("alice", serve=world.machine(cpu=2))
    bob = world.add("bob")
    world.elapse(5)
    bob.submit(job)
    world.elapse(30)

Every message passes through its own encoder and parser. Chance comes from the seed alone, so
that the same seed gives the same story.
"""

from __future__ import annotations

import hashlib
import heapq
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from formation_p2p.dht import messages as kad
from formation_p2p.dht.rpc import Answer, Answered, Ask, Asked, AskFailed
from formation_p2p.dispatch.job_events import JobEvent, Tell
from formation_p2p.effects import Contact, Effect, Moment
from formation_p2p.execution.effects import Execute, ExecutionEnded, ExecutionStarted, Kill
from formation_p2p.identity import Identity, PeerId
from formation_p2p.negotiation import messages as work
from formation_p2p.negotiation.fencing import Fence, Fenced
from formation_p2p.negotiation.session import Received, Send, Undelivered
from formation_p2p.peer.events import (
    CancelJob,
    Event,
    Explain,
    Explained,
    Joined,
    Leave,
    Left,
    Refuse,
    Serve,
    Submit,
    Tick,
)
from formation_p2p.peer.peer import Peer
from formation_p2p.resources.capability import Capability
from formation_p2p.resources.requirements import Requirements
from formation_p2p.trust.grants import Rights, issue
from formation_p2p.trust.network import Network
from formation_p2p.units import GIB
from formation_p2p.workload.outcome import Failed, FailureKind, Outcome, Succeeded
from formation_p2p.workload.task import Job

# 2026-01-01, so that records and grants have plausible times.
EPOCH_UNIX_S: Final = 1_767_225_600.0
# One way, between any two peers, unless `latency` says otherwise.
LATENCY_S: Final = 0.010
# A world that does more than this in one `elapse` is in a loop.
MAX_STEPS: Final = 5_000_000

Run = Callable[[Execute], tuple[float, Outcome]]
"""What an execution does in this world: how long it takes, and how it ends."""


@dataclass(frozen=True, slots=True)
class Sent:
    """One message on a wire of this world."""

    at_s: float
    sender: str
    receiver: str
    message: kad.Message | work.WorkMessage


@dataclass(slots=True, eq=False)
class SimNode:
    """A peer of the world, by name. `told` is what its jobs told, `explained` its queries'."""

    name: str
    world: World
    identity: Identity
    peer: Peer
    contact: Contact
    alive: bool = True
    left: bool = False
    told: list[JobEvent] = field(default_factory=list)
    refused: list[Refuse] = field(default_factory=list)
    explained: list[Explained] = field(default_factory=list)
    running: dict[tuple[str, str], int] = field(default_factory=dict)
    tick_s: float = float("inf")

    def submit(self, job: Job) -> None:
        self.world.tell(self, Submit(job))

    def cancel(self, job_id: str) -> None:
        self.world.tell(self, CancelJob(job_id))

    def explain(self, needs: Requirements | None, name: str = "a task") -> None:
        self.world.tell(self, Explain(0, needs, name))

    def leave(self) -> None:
        self.world.tell(self, Leave())


class World:
    """`run` says what executions do; the default takes a second and echoes the payload."""

    def __init__(self, seed: int, run: Run | None = None) -> None:
        self.rng = random.Random(seed)
        self.seed = seed
        self.now_s = 0.0
        self.nodes: dict[str, SimNode] = {}
        self.sent: list[Sent] = []
        self.latency: Callable[[str, str], float] = lambda a, b: LATENCY_S
        self.run: Run = run or (lambda execute: (1.0, Succeeded(execute.payload)))
        self._root = self._identity("root")
        self._by_id: dict[PeerId, SimNode] = {}
        self._cuts: set[frozenset[str]] = set()
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self._asks: dict[int, tuple[SimNode, int, kad.Request]] = {}
        self._delivered_s: dict[tuple[str, str], float] = {}

    # -- the people -----------------------------------------------------------------------------

    def add(
        self,
        name: str,
        *,
        serve: Serve | None = None,
        rights: Rights | None = None,
        stranger: bool = False,
    ) -> SimNode:
        """A new node, joining through the first one of the world. A stranger's grant is of
        another network."""
        identity = self._identity(name)
        root = self._identity("another root") if stranger else self._root
        granted = issue(root, rights or Rights(int(EPOCH_UNIX_S) + 10**7), identity.peer_id)
        network = Network(root.public_key, (), granted)
        if stranger:
            # It knows the network's public side, and shows a grant that is worth nothing there.
            network = _disguised(network, self._root.public_key)
        rng = random.Random(f"{self.seed}/{name}")
        a, b, c = (len(self.nodes) + 1).to_bytes(3, "big")
        contact = Contact(identity.peer_id, (f"/ip4/10.{a}.{b}.{c}/tcp/4001",))
        node = SimNode(name, self, identity, Peer(identity, network, rng), contact)
        gates = tuple(n.contact for n in list(self.nodes.values())[:1])
        self.nodes[name] = node
        self._by_id[identity.peer_id] = node
        self.tell(node, Joined(contact.addresses, gates))
        if serve is not None:
            self.tell(node, serve)
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

    # -- what happens ---------------------------------------------------------------------------

    def elapse(self, seconds: float) -> None:
        """Let virtual time pass."""
        until_s = self.now_s + seconds
        for _ in range(MAX_STEPS):
            if not self._queue or self._queue[0][0] > until_s:
                self.now_s = until_s
                return
            at_s, _, action = heapq.heappop(self._queue)
            self.now_s = at_s
            action()
        raise AssertionError(f"more than {MAX_STEPS} steps in {seconds} s; seed {self.seed}")

    def kill(self, node: SimNode) -> None:
        """As SIGKILL: nothing more is heard, and connections to it break."""
        node.alive = False
        node.running.clear()
        gone = Undelivered(node.identity.peer_id, "the connection broke")
        for other in self.nodes.values():
            if other is not node and not self._is_cut(node, other):
                self._later(LATENCY_S, partial(self.tell, other, gone))

    def cut(self, a: SimNode, b: SimNode) -> None:
        """Nothing passes between the two until `heal`. Nobody is told: packets just vanish."""
        self._cuts.add(frozenset((a.name, b.name)))

    def heal(self, a: SimNode, b: SimNode) -> None:
        self._cuts.discard(frozenset((a.name, b.name)))

    def tell(self, node: SimNode, event: Event) -> None:
        """Hand an event to a node, and perform what comes of it."""
        if not node.alive:
            return
        now = Moment(self.now_s, EPOCH_UNIX_S + self.now_s)
        for effect in node.peer.handle(event, now):
            self._perform(node, effect)
        due_s = max(node.peer.next_timeout(), self.now_s)
        if due_s < node.tick_s and due_s != float("inf"):
            node.tick_s = due_s
            self._at(due_s, lambda: self._tick(node, due_s))

    # -- the insides ----------------------------------------------------------------------------

    def _identity(self, name: str) -> Identity:
        return Identity.from_seed(hashlib.sha256(f"{self.seed}/{name}".encode()).digest())

    def _tick(self, node: SimNode, due_s: float) -> None:
        if node.tick_s == due_s:
            node.tick_s = float("inf")
            self.tell(node, Tick())

    def _at(self, at_s: float, action: Callable[[], None]) -> None:
        self._count += 1
        heapq.heappush(self._queue, (at_s, self._count, action))

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        self._at(self.now_s + delay_s, action)

    def _is_cut(self, a: SimNode, b: SimNode) -> bool:
        return frozenset((a.name, b.name)) in self._cuts

    def _perform(self, node: SimNode, effect: Effect) -> None:
        match effect:
            case Ask():
                self._ask(node, effect)
            case Answer(ask_id, message):
                self._answer(node, ask_id, message)
            case Send(to, message):
                self._send(node, to, message)
            case Execute():
                self._execute(node, effect)
            case Kill(lease_id, attempt_id):
                cancelled = Failed(FailureKind.CANCELLED, "killed")
                self._end(node, (lease_id, attempt_id), cancelled, 0)
            case Fence(lease_id):
                for key in [key for key in node.running if key[0] == lease_id]:
                    del node.running[key]
                self._later(0, lambda: self.tell(node, Fenced(lease_id)))
            case Tell(event=event):
                node.told.append(event)
            case Explained():
                node.explained.append(effect)
            case Refuse():
                node.refused.append(effect)
            case Left():
                node.left = True
                self.kill(node)  # the shell closes the network
            case _:
                raise AssertionError(f"the world does not know the effect {effect}")

    def _reach(self, a: SimNode, b: PeerId) -> SimNode | None:
        other = self._by_id.get(b)
        if other is None or not other.alive:
            return None
        return other

    def _ask(self, node: SimNode, ask: Ask) -> None:
        other = self._reach(node, ask.to.peer_id)
        delay_s = self.latency(node.name, ask.to.peer_id if other is None else other.name)
        if other is None:
            refused = AskFailed(ask.ask_id, "connection refused")
            self._later(2 * delay_s, lambda: self.tell(node, refused))
            return
        if self._is_cut(node, other):
            late = AskFailed(ask.ask_id, "no answer in time")
            self._later(ask.timeout_s, lambda: self.tell(node, late))
            return
        request = kad.parse_request(kad.encode(ask.message))
        self.sent.append(Sent(self.now_s, node.name, other.name, request))
        self._later(delay_s, lambda: self._asked(node, ask.ask_id, other, request))

    def _asked(self, node: SimNode, ask_id: int, other: SimNode, request: kad.Request) -> None:
        if not other.alive:
            broke = AskFailed(ask_id, "the connection broke")
            self._later(self.latency(other.name, node.name), lambda: self.tell(node, broke))
            return
        self._count += 1
        self._asks[self._count] = (node, ask_id, request)
        self.tell(other, Asked(self._count, node.contact, request))

    def _answer(self, node: SimNode, asked_id: int, message: kad.Message | None) -> None:
        asker, ask_id, request = self._asks.pop(asked_id)
        reply = None if message is None else kad.parse_reply(kad.encode(message), request)
        if reply is not None:
            self.sent.append(Sent(self.now_s, node.name, asker.name, reply))
        answered = Answered(ask_id, node.contact, reply)
        delay_s = self.latency(node.name, asker.name)
        self._later(delay_s, lambda: self.tell(asker, answered))

    def _send(self, node: SimNode, to: Contact, message: work.WorkMessage) -> None:
        other = self._reach(node, to.peer_id)
        delay_s = self.latency(node.name, to.peer_id if other is None else other.name)
        if other is None:
            lost = Undelivered(to.peer_id, "connection refused")
            self._later(2 * delay_s, lambda: self.tell(node, lost))
            return
        if self._is_cut(node, other):
            return
        parsed = work.parse(work.pack(message))
        self.sent.append(Sent(self.now_s, node.name, other.name, parsed))
        # One stream for each pair: what was sent first arrives first.
        wire = (node.name, other.name)
        at_s = max(self.now_s + delay_s, self._delivered_s.get(wire, 0.0))
        self._delivered_s[wire] = at_s
        received = Received(node.contact, parsed)
        self._at(at_s, lambda: self.tell(other, received))

    def _execute(self, node: SimNode, execute: Execute) -> None:
        key = (execute.lease_id, execute.attempt_id)
        self._count += 1
        run = node.running[key] = self._count
        started = ExecutionStarted(execute.lease_id, execute.attempt_id)
        self._later(0, lambda: self.tell(node, started))
        duration_s, outcome = self.run(execute)
        if execute.timeout_s is not None and duration_s > execute.timeout_s:
            duration_s = execute.timeout_s
            outcome = Failed(FailureKind.TIMEOUT, f"it ran past its {duration_s:g} s")
        ran_ms = round(duration_s * 1000)

        def ended() -> None:
            if node.running.get(key) == run:
                self._end(node, key, outcome, ran_ms)

        self._later(duration_s, ended)

    def _end(self, node: SimNode, key: tuple[str, str], outcome: Outcome, ran_ms: int) -> None:
        if node.running.pop(key, None) is not None:
            ended = ExecutionEnded(*key, outcome, ran_ms)
            self._later(0, lambda: self.tell(node, ended))


def _disguised(network: Network, root_public_key: bytes) -> Network:
    """A stranger's network object: the right root, and a grant that it did not issue."""
    disguised = object.__new__(Network)
    object.__setattr__(disguised, "root_public_key", root_public_key)
    object.__setattr__(disguised, "gates", ())
    object.__setattr__(disguised, "grant", network.grant)
    return disguised
