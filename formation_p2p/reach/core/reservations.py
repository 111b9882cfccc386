"""At which gates a node that others cannot dial is reachable, and when it asks them again.

It reserves at two, so that one may go; takes a reservation anew in half of its time, and at once
where the connection that carries it breaks; and never gives up. A gate that refuses, lies or does
not answer costs the time until the next one is asked.

The gates of its network come first. Those of strangers, which it meets, serve a network that names
none, and where none of its own does: else strangers whose ids are near to a node's could be all
that leads to it.

A gate is, for a reservation: free -> asked; asked -> held, free; held -> renewing, free;
renewing -> held, free.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

from formation_p2p.core.effects import Contact, Effect, Moment
from formation_p2p.core.identity import PeerId, key_of_peer
from formation_p2p.core.units import KIB
from formation_p2p.dht.core.reachability import Reach
from formation_p2p.reach.core.circuit_messages import Reserved

# Whose turn it is to be relayed, where a gate's owner has set a bandwidth: peers share its bytes.
#
# Each piece is stamped with how much its peer has had by then, and the lowest stamp goes first. So
# a peer with many circuits, or much to send, has no more bytes than another, and one that sends
# little does not wait for what others have queued.
#
# Source: Goyal, Vin, Cheng: Start-time Fair Queuing (SIGCOMM 1996).

# What may go at once after a pause, in seconds of the rate.
BURST_S: Final = 0.25
# The largest piece, in seconds of the rate: so long a small one may wait for one that is before it.
PIECE_S: Final = 0.02
# Less costs more in frames than it saves in waits.
LEAST_PIECE_BYTES: Final = KIB


class _Piece(NamedTuple):
    stamp_bytes: int
    number: int
    size: int


class FairShares:
    """`ask` for each piece, of `piece_bytes` at most, and take from `granted` whose turn has come;
    again at `at_s`. The asker bounds the pieces that it has waiting."""

    def __init__(self, bytes_per_s: int) -> None:
        self.piece_bytes = max(int(bytes_per_s * PIECE_S), LEAST_PIECE_BYTES)
        self._bytes_per_s = bytes_per_s
        self._left = bytes_per_s * BURST_S
        self._filled_s = float("-inf")
        self._waiting: list[_Piece] = []  # a heap
        # The stamp of the last piece that went, and of each peer's next one where it is later.
        self._stamp_bytes = 0
        self._next_bytes: dict[PeerId, int] = {}
        self._next = 1

    def ask(self, peer: PeerId, size: int) -> int:
        """Returns the piece's number."""
        number, self._next = self._next, self._next + 1
        stamp_bytes = self._next_bytes.get(peer, self._stamp_bytes)
        self._next_bytes[peer] = stamp_bytes + size
        heapq.heappush(self._waiting, _Piece(stamp_bytes, number, size))
        return number

    def forget(self, number: int) -> None:
        """The piece does not go any more."""
        self._waiting = [piece for piece in self._waiting if piece.number != number]
        heapq.heapify(self._waiting)
        self._prune()

    def granted(self, now_s: float) -> list[int]:
        """The pieces that may go now. The last one may exceed the rate, which those after it wait
        for."""
        most = self._bytes_per_s * BURST_S
        self._left = min(self._left + (now_s - self._filled_s) * self._bytes_per_s, most)
        self._filled_s = now_s
        numbers = []
        while self._waiting and self._left > 0:
            self._stamp_bytes, number, size = heapq.heappop(self._waiting)
            self._left -= size
            numbers.append(number)
        self._prune()
        return numbers

    def _prune(self) -> None:
        """Where none waits, none has had too much."""
        stamps = self._next_bytes.items() if self._waiting else ()
        self._next_bytes = {peer: each for peer, each in stamps if each > self._stamp_bytes}

    @property
    def at_s(self) -> float:
        """When the next piece may go."""
        if not self._waiting:
            return float("inf")
        return self._filled_s + max(-self._left, 0.0) / self._bytes_per_s


NEVER_S: Final = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationParameters:
    # One may go without that work stops; more would cost gates places for nothing.
    wanted: int = 2
    # A node that does not know yet whether others can dial it waits so long to learn it.
    unknown_s: float = 2.0
    # Between two attempts at a gate that does not answer, doubled each time up to the second: a
    # gate that restarts is back within seconds. After `patient_s` the third.
    first_retry_s: float = 0.25
    last_retry_s: float = 4.0
    patient_s: float = 120.0
    patient_retry_s: float = 15.0
    # At one that says no, which it will not think better of at once.
    refused_retry_s: float = 30.0
    last_refused_retry_s: float = 600.0
    # A reservation of less is none: it would be asked for all the time. Of more it is asked anew
    # all the same, at half of this.
    least_s: float = 60.0
    most_s: float = 4 * 3600.0
    # Gates known: those of the network, and others that were met. One of these that fails goes
    # for the next that is met.
    max_gates: int = 16
    # Of each gate that holds a reservation; a node has few addresses to announce.
    max_addresses: int = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ReserveAt(Effect):
    """Ask this gate; tell `reserved`, `refused` or `unreachable`, once."""

    gate: Contact


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitsChanged(Effect):
    """This node is reachable through these addresses from now on."""

    addresses: tuple[str, ...]


ReservationEffect = ReserveAt | CircuitsChanged


@dataclass(slots=True)
class _Gate:
    contact: Contact
    own: bool  # of the network, and never forgotten
    asked: bool = False
    until_s: float = 0.0  # held, if later than now
    at_s: float = 0.0  # when to ask it again
    failures: int = 0
    failing_since_s: float = NEVER_S


class Reservations:
    """Tell what happens; each returns what is to be done. Call `tick` when `at_s` has passed."""

    def __init__(
        self, own: PeerId, parameters: ReservationParameters = ReservationParameters()
    ) -> None:
        self._own = key_of_peer(own)
        self._parameters = parameters
        self._gates: dict[PeerId, _Gate] = {}
        self._reach = Reach.SERVER  # until `began`
        self._since_s = 0.0
        self._announced: tuple[str, ...] = ()
        self.at_s = NEVER_S

    def began(self, gates: Iterable[Contact], now: Moment) -> list[ReservationEffect]:
        """The node listens. `gates` are those of its network."""
        self._gates = {gate.peer_id: _Gate(gate, own=True) for gate in gates}
        self._reach, self._since_s = Reach.UNKNOWN, now.mono_s
        return self._pursue(now, "the node began")

    def met(self, gate: Contact, now: Moment) -> list[ReservationEffect]:
        """A peer that relays, and that can be dialled."""
        known = self._gates.get(gate.peer_id)
        if known is not None and not known.own:
            known.contact = gate
        elif known is None and self._make_place(now):
            self._gates[gate.peer_id] = _Gate(gate, own=False)
        return self._pursue(now, "a gate was met")

    def reached(self, reach: Reach, now: Moment) -> list[ReservationEffect]:
        """Whether others can dial this node."""
        if reach is not self._reach:
            self._reach, self._since_s = reach, now.mono_s
        return self._pursue(now, f"this node is {reach.value}")

    def reserved(self, peer: PeerId, said: Reserved, now: Moment) -> list[ReservationEffect]:
        """A gate that was asked says yes."""
        holds_s = min(said.expires_unix_s - now.unix_s, self._parameters.most_s)
        if holds_s < self._parameters.least_s:
            return self.refused(peer, now)
        if (gate := self._gates.get(peer)) is not None:
            gate.asked, gate.failures, gate.failing_since_s = False, 0, NEVER_S
            gate.until_s, gate.at_s = now.mono_s + holds_s, now.mono_s + holds_s / 2
        return self._pursue(now, "a gate has a place for this node")

    def refused(self, peer: PeerId, now: Moment) -> list[ReservationEffect]:
        """A gate that was asked says no, or what makes no sense."""
        limits = self._parameters
        self._failed(peer, now, limits.refused_retry_s, limits.last_refused_retry_s)
        return self._pursue(now, "a gate refuses")

    def unreachable(self, peer: PeerId, now: Moment) -> list[ReservationEffect]:
        """A gate that was asked does not answer."""
        limits = self._parameters
        gate = self._gates.get(peer)
        long = gate is not None and now.mono_s - gate.failing_since_s > limits.patient_s
        last_s = limits.patient_retry_s if long else limits.last_retry_s
        self._failed(peer, now, limits.first_retry_s, last_s)
        return self._pursue(now, "a gate does not answer")

    def disconnected(self, peer: PeerId, now: Moment) -> list[ReservationEffect]:
        """The last connection with a peer is over, and so is what it carried."""
        gate = self._gates.get(peer)
        if gate is None or gate.until_s <= now.mono_s:
            return []
        gate.until_s, gate.at_s = 0.0, now.mono_s
        return self._pursue(now, "the connection with a gate broke")

    def tick(self, now: Moment) -> list[ReservationEffect]:
        return self._pursue(now, "time passes")

    def holds(self, peer: PeerId, now: Moment) -> bool:
        """Whether this gate may bring us circuits."""
        gate = self._gates.get(peer)
        return gate is not None and gate.until_s > now.mono_s

    @property
    def needed(self) -> bool:
        """Whether this node is to be reachable through gates, as far as it knows."""
        return self._reach is not Reach.SERVER

    # -- what follows -----------------------------------------------------------------------

    def _failed(self, peer: PeerId, now: Moment, first_s: float, last_s: float) -> None:
        gate = self._gates.get(peer)
        if gate is None:
            return
        gate.asked = False
        gate.failing_since_s = min(gate.failing_since_s, now.mono_s)
        wait_s = min(first_s * 2.0 ** min(gate.failures, 16), last_s)
        gate.failures += 1
        # No two nodes ask at the same moment again.
        spread = (self._own ^ key_of_peer(peer)) % 1024 / 4096
        gate.at_s = now.mono_s + wait_s * (1 + spread)

    def _make_place(self, now: Moment) -> bool:
        """For one more gate, which may take that of one that was met and fails."""
        if len(self._gates) < self._parameters.max_gates:
            return True
        failing = [
            peer
            for peer, gate in self._gates.items()
            if not gate.own and gate.failures and not gate.asked and gate.until_s <= now.mono_s
        ]
        if not failing:
            return False
        del self._gates[max(failing, key=lambda peer: self._gates[peer].failures)]
        return True

    def _pursue(self, now: Moment, cause: str) -> list[ReservationEffect]:
        """Ask the gates that are to be asked now, and tell where we are reachable."""
        effects: list[ReservationEffect] = []
        starts_s = now.mono_s
        if self._reach is Reach.UNKNOWN:
            starts_s = self._since_s + self._parameters.unknown_s
        if not self.needed:
            starts_s = NEVER_S
        gates = sorted(self._gates.values(), key=self._preference)
        there = [g for g in gates if g.until_s > now.mono_s]
        own = [g for g in gates if g.own]
        of_use = own if any(g in there or not g.failures for g in own) else gates
        kept = [g for g in there if g in of_use][: self._parameters.wanted]

        def enough(of: list[_Gate]) -> bool:
            return sum(g.asked or g in kept for g in of) >= self._parameters.wanted

        self.at_s = min((gate.until_s for gate in there), default=NEVER_S)
        for gate in (*kept, *(g for g in of_use if g not in there)):
            # Two others do not keep it from one of its own.
            if gate.asked or (gate not in kept and enough(own if gate.own else of_use)):
                continue
            if (due_s := max(gate.at_s, starts_s)) > now.mono_s:
                self.at_s = min(self.at_s, due_s)
                continue
            gate.asked = True
            effects.append(ReserveAt(gate=gate.contact, cause=cause))
        addresses = tuple(
            f"{address}/p2p/{gate.contact.peer_id}/p2p-circuit"
            for gate in kept
            for address in gate.contact.addresses[: self._parameters.max_addresses]
            if self.needed
        )
        if addresses != self._announced:
            self._announced = addresses
            effects.append(CircuitsChanged(addresses=addresses, cause=cause))
        return effects

    def _preference(self, gate: _Gate) -> tuple[bool, int]:
        """Its own first, the nearest of them: of many gates, each node has two others."""
        return not gate.own, self._own ^ key_of_peer(gate.contact.peer_id)
