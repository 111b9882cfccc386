"""Hole punching: two peers that talk over a circuit dial each other at the same moment.

The peer that was dialled over the circuit (the listener) begins: reversal first, which is a plain
dial of the other's addresses; then an exchange of CONNECT, CONNECT and SYNC. The listener dials
half a round trip after its SYNC, the other one when the SYNC arrives, so that both dials meet in
the routers. The listener takes the part of the server in that connection, the other one that of
the client.

    effects = punch.handle(event, now_s)

Sources: libp2p's DCUtR specification; go-libp2p, whose roles are reversed before v0.48 (its issue
3171), so that here the last attempt of each round has them swapped, as go-libp2p does now.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, assert_never

from formation_p2p.core.errors import ProtocolViolation
from formation_p2p.core.units import KIB
from formation_p2p.reach.core import dcutr_pb2 as pb
from formation_p2p.records.core.addresses import address_bytes, read_addresses
from formation_p2p.records.core.protobuf import read_protobuf

PROTOCOL: Final = "/libp2p/dcutr"
# The specification's bound.
MAX_MESSAGE_BYTES: Final = 4 * KIB
# Read of one message: a foreign peer lists those of all its transports, of which we dial few.
MAX_READ_ADDRESSES: Final = 16
# Exchanges of a round. 97.6 % of the punches that succeed at all do so in the first.
ATTEMPTS: Final = 3
# An exchange takes two round trips over the circuit.
EXCHANGE_S: Final = 5.0
# The dials of one attempt: the kernel sends a SYN at 0, 1 and 3 s. go-libp2p gives up then, too.
DIAL_S: Final = 5.0
# To dial a public address, with its handshake. What lies behind a router does not answer at all.
REVERSAL_S: Final = 1.5
# Longer than the two routers may be apart; go-libp2p measures what it measures, too.
MAX_ROUND_TRIP_S: Final = 4.0
# After a round that failed, doubled each time. Some routers are only full for a while.
FIRST_RETRY_S: Final = 30.0
LAST_RETRY_S: Final = 600.0
# The exchanges that a peer begins within this time are of one round: three that fail take 15 s.
ROUND_S: Final = 25.0


# -- messages -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Connect:
    """Where its sender may be dialled. As the peer says it: see `paths.dialled_at_its_word`."""

    addresses: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Sync:
    """Dial now."""


Message = Connect | Sync

_CONNECT: Final = 100
_SYNC: Final = 300


def pack(message: Message) -> bytes:
    """`HolePunch`, without the length that the stream has before it."""
    match message:
        case Connect(addresses):
            wire = pb.HolePunch(type=_CONNECT, addrs=map(address_bytes, addresses))
        case Sync():
            wire = pb.HolePunch(type=_SYNC)
        case _:
            assert_never(message)
    return wire.SerializeToString()


def parse(raw: bytes) -> Message:
    """At most MAX_READ_ADDRESSES, those that cannot be read left out. Fields that are not known are
    skipped. Raises ProtocolViolation."""
    if len(raw) > MAX_MESSAGE_BYTES:
        raise ProtocolViolation(f"a message of hole punching has {len(raw)} bytes")
    wire = read_protobuf(pb.HolePunch, raw, "a message of hole punching")
    if wire.type == _CONNECT:
        return Connect(read_addresses(wire.addrs[:MAX_READ_ADDRESSES]))
    if wire.type == _SYNC:
        return Sync()
    raise ProtocolViolation(f"a message of hole punching of type {wire.type}")


# -- the machine --------------------------------------------------------------------------------


class Role(StrEnum):
    """In the connection that is punched: who begins its handshakes."""

    CLIENT = "client"
    SERVER = "server"

    @property
    def other(self) -> Role:
        return Role.SERVER if self is Role.CLIENT else Role.CLIENT


class State(StrEnum):
    WAITING = "waiting"  # the listener: for its next round; the other one: for an exchange
    REVERSING = "reversing"  # plain dials of what the peer says of itself
    OPENING = "opening"  # a stream for the next exchange
    ASKED = "asked"  # our CONNECT is sent, and the peer's awaited
    ANSWERED = "answered"  # both were sent, and the peer's SYNC is awaited
    DIALLING = "dialling"


@dataclass(frozen=True, slots=True)
class Began:
    """The stream for an exchange is open: opened by the listener, accepted by the other one. `own`
    is where we may be dialled."""

    own: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Arrived:
    message: Message


@dataclass(frozen=True, slots=True)
class Failed:
    """What was asked for by the last effect came to nothing: no stream, no connection, or an
    exchange that broke off."""


@dataclass(frozen=True, slots=True)
class NetworkChanged:
    """Our addresses are others now: what failed before may succeed."""


@dataclass(frozen=True, slots=True)
class Tick:
    pass


Event = Began | Arrived | Failed | NetworkChanged | Tick


@dataclass(frozen=True, slots=True)
class Reverse:
    """Dial the peer where it says that it listens, within REVERSAL_S. Ends in Failed, where it does
    not end in a connection."""


@dataclass(frozen=True, slots=True)
class OpenExchange:
    """Open a stream to the peer. Ends in Began or Failed."""


@dataclass(frozen=True, slots=True)
class Say:
    message: Message


@dataclass(frozen=True, slots=True)
class DialAt:
    """Dial these at `at_s`, from the port that the peer was told, in this role, within DIAL_S.
    The exchange is over. Ends in Failed, where it does not end in a connection."""

    addresses: tuple[str, ...]
    role: Role
    at_s: float


Effect = Reverse | OpenExchange | Say | DialAt


class Listener:
    """The side that was dialled over the circuit, for as long as there is nothing direct.

    A round of reversal and ATTEMPTS exchanges begins at `at_s`, which is at once, and when the
    network changes; and after a round that failed with back-off.
    """

    def __init__(self, now_s: float) -> None:
        self.state = State.WAITING
        self.at_s = now_s
        self._retry_s = FIRST_RETRY_S
        self._attempt = 0
        self._asked_s = now_s

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Raises ProtocolViolation for a message out of turn; then feed it Failed."""
        match event:
            case NetworkChanged():
                self._retry_s = FIRST_RETRY_S
                if self.state is State.WAITING:
                    self.at_s = now_s
            case Tick():
                if self.state is State.WAITING and now_s >= self.at_s:
                    self._attempt = 0
                    self.state = State.REVERSING
                    self.at_s = math.inf
                    return [Reverse()]
            case Began(own):
                self.state = State.ASKED
                self._asked_s = now_s
                return [Say(Connect(own))]
            case Arrived(message):
                return self._arrived(message, now_s)
            case Failed():
                return self._failed(now_s)
            case _:
                assert_never(event)
        return []

    def _arrived(self, message: Message, now_s: float) -> list[Effect]:
        if self.state is not State.ASKED or not isinstance(message, Connect):
            raise ProtocolViolation(f"{type(message).__name__} while {self.state} in hole punching")
        self.state = State.DIALLING
        round_trip_s = min(now_s - self._asked_s, MAX_ROUND_TRIP_S)
        role = role_of(self._attempt, Role.SERVER)
        return [Say(Sync()), DialAt(message.addresses, role, now_s + round_trip_s / 2)]

    def _failed(self, now_s: float) -> list[Effect]:
        self._attempt += 1
        if self._attempt <= ATTEMPTS:
            self.state = State.OPENING
            return [OpenExchange()]
        self.state = State.WAITING
        self.at_s = now_s + self._retry_s
        self._retry_s = min(2 * self._retry_s, LAST_RETRY_S)
        return []


class Dialled:
    """The side that dialled the circuit: it answers the listener's exchanges, ATTEMPTS in a
    round and no more, since each has it dial where the peer says."""

    def __init__(self) -> None:
        self.state = State.WAITING
        self._attempt = 0
        self._round_ends_s = -math.inf
        self._addresses: tuple[str, ...] = ()
        self._own: tuple[str, ...] = ()

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Raises ProtocolViolation for a message out of turn, and for an exchange too many; then
        feed it Failed."""
        match event:
            case Began(own):
                self._begin(own, now_s)
            case Arrived(Connect(addresses)) if self.state is State.OPENING:
                self.state = State.ANSWERED
                self._addresses = addresses
                return [Say(Connect(self._own))]
            case Arrived(Sync()) if self.state is State.ANSWERED:
                self.state = State.DIALLING
                return [DialAt(self._addresses, role_of(self._attempt, Role.CLIENT), now_s)]
            case Arrived(message):
                raise ProtocolViolation(
                    f"{type(message).__name__} while {self.state} in hole punching"
                )
            case Failed():
                self.state = State.WAITING
            case NetworkChanged() | Tick():
                pass
            case _:
                assert_never(event)
        return []

    def _begin(self, own: tuple[str, ...], now_s: float) -> None:
        if self.state not in (State.WAITING, State.DIALLING):  # whose dials the peer has given up
            raise ProtocolViolation("two exchanges of hole punching at once")
        if now_s >= self._round_ends_s:
            self._attempt = 0
            self._round_ends_s = now_s + ROUND_S
        self._attempt += 1
        if self._attempt > ATTEMPTS:
            raise ProtocolViolation(f"more than {ATTEMPTS} exchanges of hole punching in a round")
        self.state = State.OPENING
        self._own = own


def role_of(attempt: int, by_specification: Role) -> Role:
    return by_specification.other if attempt == ATTEMPTS else by_specification
