"""What a gate relays: who is reachable through it, and which circuits there are.

A peer that none can dial reserves a place at a gate, which then connects others to it: a circuit
is two streams that the gate copies between. Who is refused is told why, and costs next to nothing:
its requests are counted before its grant is read.

Members have circuits without an end. A gate that relays for anyone gives others what the
specification suggests.

Source: libp2p circuit relay v2 specification; go-libp2p's defaults for peers that are not members.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar

from formation_p2p.core.effects import Moment
from formation_p2p.core.identity import Identity, PeerId
from formation_p2p.core.latest import Latest
from formation_p2p.core.units import KIB
from formation_p2p.reach.core.circuit_messages import (
    UNLIMITED,
    Connect,
    Limit,
    Reserve,
    Reserved,
    Status,
    make_voucher,
)
from formation_p2p.reach.core.crowding import crowded_out

_T = TypeVar("_T")

# The specification's, for peers that are not members.
FOREIGN_LIMIT: Final = Limit(120, 128 * KIB)


class RelayFor(Enum):
    MEMBERS = "members"
    ANYONE = "anyone"


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayParameters:
    # go-libp2p's. A reservation ends with its connection; this bounds what a grant that ended, or
    # a peer that is silent, may still have.
    reservation_s: int = 3600
    # Each is a connection that is never evicted: 0.15 MB and a file descriptor.
    max_reservations: int = 1024
    # Of peers that are not members, so that these cannot take all places. go-libp2p's.
    max_foreign_reservations: int = 128
    # At one peer's end, opened by it or to it. A connection has 64 streams for what else there is
    # as well; a scheduler has one circuit for each worker that cannot be dialled.
    max_circuits_of_member: int = 48
    # Likewise, of those that are not between two members: the rest is left for these. The
    # specification's.
    max_foreign_circuits_of_peer: int = 16
    # From one peer to another: one that carries a connection, the next one where each is cut, and
    # as many that are about to end. One peer must not take all of another's.
    max_circuits_of_pair: int = 4
    # Each may hold a window of 256 KiB in each direction, which is 512 MiB at the very worst.
    max_circuits: int = 1024
    # Of these, those that are not between two members.
    max_foreign_circuits: int = 256
    foreign_limit: Limit = FOREIGN_LIMIT
    # Requests of one peer: a scheduler that starts wants many circuits at once.
    requests_per_s: float = 2.0
    request_burst: int = 96
    # Peers whose requests are counted: some times as many as may be connected.
    max_counted: int = 4096


class Refusal(Enum):
    """Why a request is refused; the status is what the peer is told."""

    RELAYED = "it came over a circuit", Status.PERMISSION_DENIED
    FOR_ANOTHER = "it reserves for another peer", Status.PERMISSION_DENIED
    NO_MEMBER = "its grant is of no member", Status.PERMISSION_DENIED
    TOO_FAST = "too many requests", Status.RESOURCE_LIMIT_EXCEEDED
    TOO_MANY_RESERVATIONS = "no place is free", Status.RESERVATION_REFUSED
    NOT_RESERVED = "no other peer of that id has a reservation", Status.NO_RESERVATION
    TOO_MANY_OF_SENDER = "the sender has too many circuits", Status.RESOURCE_LIMIT_EXCEEDED
    TOO_MANY_OF_PEER = "that peer has too many circuits", Status.RESOURCE_LIMIT_EXCEEDED
    TOO_MANY_OF_PAIR = "the two have too many circuits", Status.RESOURCE_LIMIT_EXCEEDED
    TOO_MANY = "there are too many circuits", Status.RESOURCE_LIMIT_EXCEEDED

    def __init__(self, words: str, status: Status) -> None:
        self.words = words
        self.status = status


@dataclass(frozen=True, slots=True)
class Circuit:
    """From `source`, which asked for it, to `target`, which has a reservation."""

    number: int
    source: PeerId
    target: PeerId
    limit: Limit


@dataclass(slots=True)
class _Place:
    """What a peer reserved."""

    until_s: float
    member: bool


class Relay:
    """`admits` says whether a grant shows its bearer to be a member now. Each circuit that
    `connect` returns is there until `ended` is told of it, open or not."""

    def __init__(
        self,
        identity: Identity,
        serves: RelayFor,
        admits: Callable[[bytes, PeerId, Moment], bool],
        parameters: RelayParameters = RelayParameters(),
    ) -> None:
        self._identity = identity
        self.serves = serves
        self._admits = admits
        self._parameters = parameters
        self._places: dict[PeerId, _Place] = {}
        self._circuits: dict[int, Circuit] = {}
        self._of: Counter[PeerId] = Counter()  # circuits, at either end
        self._foreign: set[int] = set()  # circuits that are not between two members
        self._foreign_of: Counter[PeerId] = Counter()  # those, at either end
        self._between: Counter[tuple[PeerId, PeerId]] = Counter()
        self._requests = Latest[PeerId, tuple[float, float]](parameters.max_counted)  # left, when
        self._next = 1
        self.refused: Counter[Refusal] = Counter()
        self.displaced: list[Circuit] = []
        """Those that are over for others' sake: take them."""

    @property
    def reservations(self) -> int:
        return len(self._places)

    @property
    def circuits(self) -> int:
        return len(self._circuits)

    def circuits_of(self, peer: PeerId) -> int:
        """At that end, opened by either side."""
        return self._of[peer]

    def is_reserved(self, peer: PeerId) -> bool:
        return peer in self._places

    def reserve(
        self,
        sender: PeerId,
        request: Reserve,
        addresses: tuple[str, ...],
        now: Moment,
        *,
        relayed: bool,
    ) -> Reserved | Refusal:
        """A place for the sender, or its old one for longer. `addresses` are our own."""
        refusal = self._refuses(sender, now, relayed)
        if refusal is None and request.peer not in (None, sender):
            refusal = Refusal.FOR_ANOTHER
        if refusal is not None:
            return self._refuse(refusal)
        member = self._admits(request.grant, sender, now)
        if not member and self.serves is RelayFor.MEMBERS:
            return self._refuse(Refusal.NO_MEMBER)
        self.tick(now)
        others = [place for peer, place in self._places.items() if peer != sender]
        foreign = sum(not place.member for place in others)
        limits = self._parameters
        if len(others) >= limits.max_reservations or (
            not member and foreign >= limits.max_foreign_reservations
        ):
            return self._refuse(Refusal.TOO_MANY_RESERVATIONS)
        self._places[sender] = _Place(now.mono_s + limits.reservation_s, member)
        expires_unix_s = int(now.unix_s) + limits.reservation_s
        voucher = make_voucher(self._identity, sender, expires_unix_s)
        return Reserved(expires_unix_s, addresses, voucher, self._limit(member))

    def connect(
        self, sender: PeerId, request: Connect, now: Moment, *, relayed: bool
    ) -> Circuit | Refusal:
        """A circuit, which counts from now on, while its far end is asked as well."""
        refusal = self._refuses(sender, now, relayed)
        if refusal is not None:
            return self._refuse(refusal)
        self.tick(now)
        place = self._places.get(request.peer)
        if place is None or request.peer == sender:
            return self._refuse(Refusal.NOT_RESERVED)
        member = self._admits(request.grant, sender, now)
        if not member and self.serves is RelayFor.MEMBERS:
            return self._refuse(Refusal.NO_MEMBER)
        members = member and place.member
        in_the_way = self._in_the_way(sender, request.peer, members=members)
        if isinstance(in_the_way, Refusal):
            return self._refuse(in_the_way)
        for each in in_the_way:
            self.ended(each)
        self.displaced += in_the_way
        circuit = Circuit(self._next, sender, request.peer, self._limit(members))
        self._next += 1
        self._circuits[circuit.number] = circuit
        ends = (circuit.source, circuit.target)
        self._of.update(ends)
        self._between[ends] += 1
        if not members:
            self._foreign.add(circuit.number)
            self._foreign_of.update(ends)
        return circuit

    def ended(self, circuit: Circuit) -> None:
        """It is over, or its far end did not take it; or was `displaced` before."""
        if self._circuits.pop(circuit.number, None) is None:
            return
        ends = (circuit.source, circuit.target)
        _take(self._of, ends)
        _take(self._between, (ends,))
        if circuit.number in self._foreign:
            self._foreign.remove(circuit.number)
            _take(self._foreign_of, ends)

    def disconnected(self, peer: PeerId) -> None:
        """The last connection with it is over, and its reservation with that."""
        self._places.pop(peer, None)

    def tick(self, now: Moment) -> None:
        """What has lapsed goes."""
        for peer in [p for p, place in self._places.items() if place.until_s <= now.mono_s]:
            del self._places[peer]

    def _refuses(self, sender: PeerId, now: Moment, relayed: bool) -> Refusal | None:
        limits = self._parameters
        left, at_s = self._requests.get(sender, (float(limits.request_burst), now.mono_s))
        left = min(left + (now.mono_s - at_s) * limits.requests_per_s, limits.request_burst)
        fast = left < 1
        self._requests[sender] = (left if fast else left - 1, now.mono_s)
        if relayed:
            return Refusal.RELAYED
        return Refusal.TOO_FAST if fast else None

    def _refuse(self, refusal: Refusal) -> Refusal:
        self.refused[refusal] += 1
        return refusal

    def _limit(self, members: bool) -> Limit:
        return UNLIMITED if members else self._parameters.foreign_limit

    def _in_the_way(
        self, source: PeerId, target: PeerId, *, members: bool
    ) -> list[Circuit] | Refusal:
        """What ends for the sake of one more circuit: so peers that have many keep none away."""
        limits, over = self._parameters, list[Circuit]()
        for peer, other, refusal in (
            (source, target, Refusal.TOO_MANY_OF_SENDER),
            (target, source, Refusal.TOO_MANY_OF_PEER),
        ):
            foreign = not members and self._foreign_of[peer] >= limits.max_foreign_circuits_of_peer
            if foreign or self._of[peer] >= limits.max_circuits_of_member:
                far_ends = {
                    c: c.target if c.source == peer else c.source
                    for c in self._open_to(members=members)
                    if peer in (c.source, c.target)
                }
                found = crowded_out(far_ends, other)
                if found is None:
                    return refusal
                over.append(found)
        if self._between[source, target] >= limits.max_circuits_of_pair:
            return Refusal.TOO_MANY_OF_PAIR
        foreign = not members and len(self._foreign) >= limits.max_foreign_circuits
        if not over and (foreign or len(self._circuits) >= limits.max_circuits):
            sources = {c: c.source for c in self._open_to(members=members)}
            oldest = crowded_out(sources, source)
            return Refusal.TOO_MANY if oldest is None else [oldest]
        return over

    def _open_to(self, *, members: bool) -> list[Circuit]:
        """Those whose places a member, or a foreigner, may take."""
        return [c for c in self._circuits.values() if members or c.number in self._foreign]


def _take(counts: Counter[_T], keys: Iterable[_T]) -> None:
    """One less of each."""
    for key in keys:
        counts[key] -= 1
        if not counts[key]:
            del counts[key]
