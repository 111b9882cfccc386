"""Routers between simulated nodes: who can dial whom, through which gate, and what is punched.

What each kind lets in is measured (`docs/explanation/reach.md`): a full cone router whatever comes
to a port that a node behind it has used; the others nothing that was not asked for. Two cone
routers, or any with a full cone one, can be punched; a symmetric one with a cone or a symmetric one
cannot.

Simplified: a connection lives until an end of it, its gate or a router's table goes; a router
gives every node one port. The exchange that punches is not said: what comes of it is looked up.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import PeerId
from formation_p2p.leases.core.session import Disconnected
from formation_p2p.reach.core.circuit_messages import Connect
from formation_p2p.reach.core.own_addresses import OwnAddresses
from formation_p2p.reach.core.paths import Path
from formation_p2p.reach.core.relay import Circuit, Refusal, Relay
from simulations.simulator.connections import DIAL_ROUND_TRIPS, public_address
from simulations.simulator.streams import DEAD_S
from simulations.simulator.whereabouts import Whereabouts

if TYPE_CHECKING:
    from simulations.simulator.node import SimNode
    from simulations.simulator.world import World

# Reversal fails, or a round of CONNECT, CONNECT, SYNC and the dials at once.
PUNCH_ROUND_TRIPS: Final = 3.0
_CIRCUIT: Final = "/p2p-circuit"
# The numbers of routers' public addresses: nodes have those below.
_FIRST_ROUTER: Final = 50_000_000
# Of a router, for the nodes behind it.
_FIRST_PORT: Final = 20_000
_PORTS: Final = 40_000


class Kind(StrEnum):
    FULL = "full"
    CONE = "cone"
    SYMMETRIC = "symmetric"


@dataclass(slots=True, eq=False)
class Router:
    """`flushed` counts how often its table was lost."""

    kind: Kind
    host: str
    flushed: int = 0

    def port_of(self, node: SimNode, gate: SimNode) -> int:
        to = gate.number * 7 if self.kind is Kind.SYMMETRIC else 0
        return _FIRST_PORT + (node.number + to + self.flushed * 997) % _PORTS

    def address_of(self, node: SimNode, gate: SimNode) -> str:
        """Where a connection from `node` to `gate` seems to come from."""
        return f"/ip4/{self.host}/tcp/{self.port_of(node, gate)}"


@dataclass(slots=True, eq=False)
class Link:
    """A connection, usable from `ready_s` on. `circuit` is the relay's, while it is relayed. While
    it `is_stalled`, what is sent vanishes."""

    ends: tuple[SimNode, SimNode]
    ready_s: float
    path: Path = Path.DIRECT
    via: SimNode | None = None
    relay: Relay | None = None
    circuit: Circuit | None = None
    stalled_s: float | None = None

    @property
    def is_stalled(self) -> bool:
        return self.stalled_s is not None

    def other(self, node: SimNode) -> SimNode:
        return self.ends[self.ends[0] is node]


class Routers:
    """Of one world: make it before nodes are added. `gates` are the names of the nodes that
    relay; other nodes do not."""

    def __init__(self, world: World, gates: frozenset[str]) -> None:
        self._world = world
        self._gates = gates
        self._routers: list[Router] = []
        self._links: dict[frozenset[int], Link] = {}
        self._of: dict[int, dict[int, Link]] = {}  # by a node's number, and the other's
        self._carried: dict[int, list[Link]] = {}  # by the gate's
        self._where: dict[int, Whereabouts] = {}
        self.made = dict.fromkeys(Path, 0)
        """Connections so far, by how they ended up."""

    def add(self, kind: Kind) -> Router:
        number = _FIRST_ROUTER + len(self._routers)
        router = Router(kind, public_address(number).split("/")[2])
        self._routers.append(router)
        return router

    # -- nodes ----------------------------------------------------------------------------------

    def began(self, node: SimNode) -> tuple[str, ...]:
        """An incarnation of a node is up. Returns where it is dialled, as far as it knows."""
        relays = node.name in self._gates
        where = Whereabouts(self, node, node.address, relays=relays)
        self._where[node.number] = where
        return where.began()

    def where(self, node: SimNode) -> Whereabouts:
        return self._where[node.number]

    def relay_of(self, node: SimNode) -> Relay | None:
        return self._where[node.number].relay if node.alive else None

    def contact_of(self, node: SimNode, own: OwnAddresses) -> Contact:
        """As its peers know it: with what is dialled from anywhere, and no circuits."""
        host = node.router.host if node.router else node.address.split("/")[2]
        prefix = f"/ip4/{host}/"
        dialled = (each for each in own.announced if each.startswith(prefix))
        open_now = filter(lambda each: _CIRCUIT not in each, dialled)
        return Contact(node.identity.peer_id, tuple(open_now))

    def lets_in(self, node: SimNode, dialling: SimNode) -> bool:
        """Whether a connection of `dialling` that `node` did not ask for gets to it."""
        router = node.router
        return router is None or router is dialling.router or router.kind is Kind.FULL

    # -- connections ----------------------------------------------------------------------------

    def link(self, a: SimNode, b: SimNode) -> Link | None:
        return self._of.get(a.number, {}).get(b.number)

    def is_there(self, link: Link) -> bool:
        a, b = link.ends
        return self.link(a, b) is link and not link.is_stalled

    def neighbours(self, node: SimNode) -> list[SimNode]:
        return [link.other(node) for link in self._of.get(node.number, {}).values()]

    def way(self, node: SimNode, to: Contact) -> Link | None:
        """The connection to a peer, which is dialled at these addresses where there is none. None
        where nothing leads there."""
        other = self._world.peers[to.peer_id]
        link = self.link(node, other)
        if link is not None or not other.alive or self._world.is_apart(node, other):
            return link
        direct = [each for each in to.addresses if _CIRCUIT not in each]
        if self._open_at(other, node).intersection(direct):
            return self._make(Link((node, other), self._dialled_s(node, other)))
        for address in to.addresses:
            if _CIRCUIT in address and (link := self._through(node, other, address)) is not None:
                return link
        return None

    def one_way_s(self, link: Link) -> float:
        a, b = link.ends
        if link.via is None:
            return self._world.latency(a, b)
        return self._world.latency(a, link.via) + self._world.latency(link.via, b)

    def delay_s(self, link: Link) -> float:
        """Until what is sent now is there."""
        return max(link.ready_s - self._world.now_s, 0.0) + self.one_way_s(link)

    def _dialled_s(self, node: SimNode, other: SimNode) -> float:
        return self._world.now_s + DIAL_ROUND_TRIPS * 2 * self._world.latency(node, other)

    def _open_at(self, node: SimNode, dialling: SimNode) -> set[str]:
        """The addresses at which `dialling` gets a connection to `node`."""
        router = node.router
        if router is None or router is dialling.router:
            return {node.address}
        return {router.address_of(node, node)} if router.kind is Kind.FULL else set()

    def _through(self, node: SimNode, other: SimNode, circuit: str) -> Link | None:
        """By a circuit, where the gate that it names has a place for `other`."""
        gate = self._world.peers[PeerId(circuit.split("/")[6])]
        relay = self.relay_of(gate)
        if relay is None or gate in (node, other):
            return None
        near = self.way(node, gate.contact)
        far = self.link(gate, other)
        if near is None or near.is_stalled or near.via or far is None or far.is_stalled:
            return None
        if not self.where(other).holds(gate):
            return None
        request = Connect(other.identity.peer_id, node.network().grant)
        sender = node.identity.peer_id
        said = relay.connect(sender, request, self._world.moment(gate), relayed=False)
        if isinstance(said, Refusal):
            return None
        link = Link((node, other), 0.0, Path.RELAYED, gate, relay, said)
        ready_s = max(self._world.now_s, near.ready_s) + 2 * self.one_way_s(link)
        link.ready_s = ready_s + DIAL_ROUND_TRIPS * 2 * self.one_way_s(link)
        self._carried.setdefault(gate.number, []).append(link)
        upgraded_s = link.ready_s + PUNCH_ROUND_TRIPS * 2 * self.one_way_s(link)
        self._world.at(upgraded_s, self._upgrade, link)
        return self._make(link)

    def _make(self, link: Link) -> Link:
        a, b = link.ends
        self._of.setdefault(a.number, {})[b.number] = link
        self._of.setdefault(b.number, {})[a.number] = link
        self.made[link.path] += 1
        if link.via is None:
            for node, gate in ((a, b), (b, a)):
                if gate.name in self._gates and node.router is not None:
                    address = node.router.address_of(node, node)
                    self._world.at(link.ready_s, self._seen, link, node, gate, address)
        return link

    def _seen(self, link: Link, node: SimNode, gate: SimNode, address: str) -> None:
        if self.is_there(link):
            self.where(node).seen_at(gate, address)

    def _upgrade(self, link: Link) -> None:
        """The side that was dialled dials back, or both dial at once."""
        a, b = link.ends
        if not self.is_there(link) or not punches(a.router, b.router):
            return
        if self._world.is_apart(a, b):
            return
        self._let_go(link)
        link.path = Path.DIRECT if a.router in (None, b.router) else Path.PUNCHED
        self.made[Path.RELAYED] -= 1
        self.made[link.path] += 1

    def _let_go(self, link: Link) -> None:
        """Of its circuit."""
        if link.via is not None and link.relay is not None and link.circuit is not None:
            self._carried[link.via.number].remove(link)
            link.relay.ended(link.circuit)
            link.via = link.relay = link.circuit = None

    # -- what befalls them ----------------------------------------------------------------------

    def stall(self, a: SimNode, b: SimNode) -> None:
        """Packets between the two vanish, on a connection that is there."""
        link = self.link(a, b)
        if link is None or link.is_stalled:
            return
        link.stalled_s = self._world.now_s
        self._world.after(DEAD_S, self._gave_up, link, link.stalled_s)
        if self._world.streams is not None:
            self._world.streams.cut(a, b)
        for carried in self._on(link):
            self.stall(*carried.ends)

    def resume(self, a: SimNode, b: SimNode) -> None:
        """Packets pass again, soon enough."""
        link = self.link(a, b)
        if link is None or not link.is_stalled or self._is_blocked(link):
            return
        link.stalled_s = None
        if self._world.streams is not None:
            self._world.streams.heal(a, b)
        for carried in self._on(link):
            self.resume(*carried.ends)

    def flush(self, router: Router) -> None:
        """Its table is lost, or it has another address: all that crosses it is dead, and its ends
        are to find out."""
        router.flushed += 1
        for link in [x for links in self._of.values() for x in links.values()]:
            a, b = link.ends
            if a.router is not b.router and router in (a.router, b.router):
                self.stall(a, b)

    def died(self, node: SimNode) -> None:
        """A process, whose connections break, or a machine, of which others hear nothing."""
        for other in self.neighbours(node):
            if node.silent:
                self.stall(node, other)
            else:
                self.drop(node, other)

    def cut(self, a: SimNode, b: SimNode) -> None:
        """Nothing passes between the two."""
        if self.link(a, b) is not None:
            self.stall(a, b)
        elif self._world.streams is not None:
            self._world.streams.cut(a, b)

    def heal(self, a: SimNode, b: SimNode) -> None:
        if self.link(a, b) is not None:
            self.resume(a, b)
        elif self._world.streams is not None:
            self._world.streams.heal(a, b)

    def restarted(self, node: SimNode) -> None:
        """Its next incarnation knows nothing of the connections of the last, and says so."""
        for other in self.neighbours(node):
            if not self._world.is_apart(node, other):
                self.drop(node, other)

    def drop(self, a: SimNode, b: SimNode, *, told: bool = False) -> None:
        """The connection is over, and both that live are told, unless they have been."""
        link = self.link(a, b)
        if link is None:
            return
        del self._of[a.number][b.number], self._of[b.number][a.number]
        carried = self._on(link)
        self._let_go(link)
        self._tell(a, b, told=told)
        for each in carried:
            self.drop(*each.ends)
        for gate, node in ((a, b), (b, a)):
            if gate.name in self._gates:
                relay = self.where(gate).relay
                assert relay is not None, "a gate relays"
                relay.disconnected(node.identity.peer_id)
                self._world.after(self._world.latency(a, b), self.where(node).disconnected, gate)

    def _tell(self, a: SimNode, b: SimNode, *, told: bool) -> None:
        world = self._world
        if world.streams is not None:
            if not told:
                world.streams.disconnect(a, b)
            if not world.is_apart(a, b):
                world.streams.heal(a, b)
            return
        for node, other in ((a, b), (b, a)):
            gone = Disconnected(other.identity.peer_id)
            world.later(world.latency(a, b), node, gone)

    def _on(self, link: Link) -> list[Link]:
        """The circuits that run over a connection with a gate."""
        a, b = link.ends
        return [
            each
            for gate, node in ((a, b), (b, a))
            for each in list(self._carried.get(gate.number, ()))
            if node in each.ends
        ]

    def _is_blocked(self, link: Link) -> bool:
        """Whether a part of its way is dead for good, or still cut."""
        a, b = link.ends
        if self._world.is_apart(a, b) or not (a.alive and b.alive):
            return True
        legs = () if link.via is None else tuple(self.link(end, link.via) for end in link.ends)
        return any(leg is None or leg.is_stalled for leg in legs)

    def _gave_up(self, link: Link, since_s: float) -> None:
        a, b = link.ends
        if self.link(a, b) is link and link.stalled_s == since_s:
            self.drop(a, b)


def punches(a: Router | None, b: Router | None) -> bool:
    """Whether two nodes behind these come to a connection without a gate: the table of
    `docs/explanation/reach.md`."""
    if a is None or b is None or a is b:
        return True
    kinds = {a.kind, b.kind}
    return Kind.FULL in kinds or kinds == {Kind.CONE}
