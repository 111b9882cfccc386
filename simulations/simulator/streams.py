"""The work streams between the peers of a world in which networks fail.

It keeps the contract of `leases/core/session.py`, and no more than that. Frames of one stream
arrive in order. Each side sends on the stream that it opened, or on one that it knows the other
has opened; where both opened one at once, there are two. A stream that breaks loses the last of
what is on its way, and what it still brings may come after frames of the next stream. The peer
that sent on it not long ago is told `Undelivered`; when a connection breaks both sides are told
`Disconnected` too.

Between two that are cut off from each other packets are sent again and again, as TCP does: heal
the cut soon and all arrives, late; later than that the connection is broken.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from formation_p2p.core.effects import Contact
from formation_p2p.leases.core.messages import WorkMessage, pack, parse
from formation_p2p.leases.core.session import Disconnected, Undelivered

if TYPE_CHECKING:
    from simulations.simulator.node import SimNode
    from simulations.simulator.world import World

# As net/protocols/work.py and net/transport/tcp.py have it.
UNSURE_S: Final = 30.0
OPEN_S: Final = 20.0
DEAD_S: Final = 30.0
# A frame that a broken stream still brings comes up to this much later than it would have.
LATE_S: Final = 1.0
# Until a side finds that a stream broke.
TOLD_S: Final = 0.05
# Of the frames that a broken stream still brings, so many come a second time.
TWICE_SHARE: Final = 0.02


@dataclass(slots=True, eq=False)
class _Frame:
    sender: SimNode
    receiver: SimNode
    message: WorkMessage
    at_s: float


@dataclass(slots=True, eq=False)
class _Stream:
    """`known` are the numbers of those who know it: its opener, and the other side once a frame
    has arrived; `incarnations` are what it connects, by number. `flying` are the frames on their
    way, and `sent_s` and `last_s` when each side last sent, and when that arrives."""

    ends: tuple[SimNode, SimNode]
    incarnations: dict[int, int]
    known: set[int]
    flying: list[_Frame] = field(default_factory=list)
    sent_s: dict[int, float] = field(default_factory=dict)
    last_s: dict[int, float] = field(default_factory=dict)

    @property
    def is_whole(self) -> bool:
        """Whether both of its ends are still of the incarnation in which it was opened."""
        return all(x.alive and x.incarnation == self.incarnations[x.number] for x in self.ends)


class Streams:
    """Of one world. `rng` draws what becomes of the frames of a stream that breaks."""

    def __init__(self, world: World, rng: random.Random) -> None:
        self._world = world
        self._rng = rng
        self._streams: dict[tuple[int, int], list[_Stream]] = {}
        # The stream that each sends on, by its number and the other's.
        self._sending: dict[tuple[int, int], _Stream] = {}
        self._cuts: dict[tuple[int, int], float] = {}

    def send(
        self, node: SimNode, other: SimNode, message: WorkMessage, to: Contact | None = None
    ) -> None:
        """`to` is how it knows the other one, which is dialled where there is no connection."""
        world = self._world
        known = (s for s in self._streams.get(_pair(node, other), ()) if node.number in s.known)
        stream = self._sending.get((node.number, other.number)) or next(known, None)
        if stream is None:
            if not other.alive or self._is_cut(node, other) or not _has_way(node, to):
                self._refuse(node, other)
                return
            incarnations = {node.number: node.incarnation, other.number: other.incarnation}
            stream = _Stream((node, other), incarnations, {node.number})
            self._streams.setdefault(_pair(node, other), []).append(stream)
        self._sending[node.number, other.number] = stream
        stream.sent_s[node.number] = world.now_s
        one_way_s = world.one_way_s(node, other)
        sent_s = world.now_s + world.delay_s(node, other) - one_way_s  # once it is dialled
        at_s = sent_s + one_way_s * (1 + self._rng.random())
        at_s = stream.last_s[node.number] = max(at_s, stream.last_s.get(node.number, 0.0))
        frame = _Frame(node, other, parse(pack(message)), at_s)
        stream.flying.append(frame)
        world.at(at_s, self._arrive, stream, frame)

    def lose(self, a: SimNode, b: SimNode) -> None:
        """A frame is lost, and the stream with it; the connection lives."""
        for stream in list(self._streams.get(_pair(a, b), ())):
            self._break(stream, "the stream was reset")

    def disconnect(self, a: SimNode, b: SimNode, reason: str = "the connection broke") -> None:
        incarnations = {a.number: a.incarnation, b.number: b.incarnation}
        for stream in list(self._streams.get(_pair(a, b), ())):
            incarnations = stream.incarnations
            self._break(stream, reason)
        for node, other in ((a, b), (b, a)):
            if node.alive and node.incarnation == incarnations[node.number]:
                gone = Disconnected(other.identity.peer_id)
                self._world.later(self._world.latency(a, b), node, gone)
        if self._world.routers is not None:
            self._world.routers.drop(a, b, told=True)

    def cut(self, a: SimNode, b: SimNode) -> None:
        since_s = self._cuts.setdefault(_pair(a, b), self._world.now_s)
        self._world.after(DEAD_S, self._gave_up, a, b, since_s)

    def heal(self, a: SimNode, b: SimNode) -> None:
        if self._cuts.pop(_pair(a, b), None) is None:
            return
        now_s = self._world.now_s
        for stream in list(self._streams.get(_pair(a, b), ())):
            if not stream.is_whole:
                self.disconnect(a, b, "the peer knows nothing of it")
                return
            for frame in stream.flying:
                if frame.at_s <= now_s:  # it was due, and is sent once more
                    sender = frame.sender.number
                    late_s = max(now_s + self._world.one_way_s(a, b), stream.last_s[sender])
                    frame.at_s = stream.last_s[sender] = late_s
                    self._world.at(late_s, self._arrive, stream, frame)

    def died(self, node: SimNode, others: list[SimNode]) -> None:
        """A process died, or a machine. Peers of a machine are told once packets have stayed
        unanswered for long, and so are those that are cut off."""
        for other in others:
            streams = self._streams.get(_pair(node, other), ())
            self._sending.pop((node.number, other.number), None)
            for stream in streams:
                stream.known.discard(node.number)
            if node.silent or self._is_cut(node, other):
                for stream in streams:
                    stream.flying.clear()
                    self._world.after(DEAD_S, self._is_dead, stream)
            else:
                self.disconnect(node, other, "the peer is gone")

    def restarted(self, node: SimNode) -> None:
        """Its next incarnation knows nothing of the streams of the last, and says so."""
        for pair, streams in list(self._streams.items()):
            if node.number in pair and pair not in self._cuts and streams:
                self.disconnect(*streams[0].ends, "the peer knows nothing of it")

    def _is_cut(self, a: SimNode, b: SimNode) -> bool:
        return _pair(a, b) in self._cuts

    def _gave_up(self, a: SimNode, b: SimNode, since_s: float) -> None:
        if self._cuts.get(_pair(a, b)) == since_s:
            self.disconnect(a, b, "nothing was acknowledged for long")

    def _is_dead(self, stream: _Stream) -> None:
        if stream in self._streams[_pair(*stream.ends)]:
            self.disconnect(*stream.ends, "nothing was acknowledged for long")

    def _refuse(self, node: SimNode, other: SimNode) -> None:
        one_way_s = self._world.latency(node, other)
        silent = other.silent or self._is_cut(node, other)
        delay_s = self._rng.uniform(1.0, OPEN_S) if silent else 2 * one_way_s
        refused = Undelivered(other.identity.peer_id, "no session could be opened")
        self._world.later(delay_s, node, refused)

    def _arrive(self, stream: _Stream, frame: _Frame) -> None:
        is_due = frame in stream.flying and frame.at_s <= self._world.now_s
        if is_due and not self._is_cut(frame.sender, frame.receiver):
            stream.flying.remove(frame)
            stream.known.add(frame.receiver.number)
            self._world.delivered(frame.sender, frame.receiver, frame.message)

    def _break(self, stream: _Stream, reason: str) -> None:
        """What is on its way from each side arrives up to somewhere, and the rest never."""
        a, b = stream.ends
        self._streams[_pair(a, b)].remove(stream)
        flying, stream.flying = stream.flying, []
        for node, other in ((a, b), (b, a)):
            frames = [frame for frame in flying if frame.sender is node]
            kept = 0 if self._is_cut(a, b) else self._rng.randint(0, len(frames))
            at_s, late_s = self._world.now_s, self._rng.choice((0.0, LATE_S))
            for frame in frames[:kept]:
                at_s = max(at_s, frame.at_s) + late_s * self._rng.random()
                for _ in range(1 + (self._rng.random() < TWICE_SHARE)):
                    self._world.at(at_s, self._bring, frame, stream.incarnations[other.number])
            if self._sending.get((node.number, other.number)) is stream:
                del self._sending[node.number, other.number]
                if self._world.now_s - stream.sent_s[node.number] < UNSURE_S:
                    lost = Undelivered(other.identity.peer_id, reason)
                    self._world.later(self._rng.random() * TOLD_S, node, lost)

    def _bring(self, frame: _Frame, incarnation: int) -> None:
        if frame.receiver.incarnation == incarnation:
            self._world.delivered(frame.sender, frame.receiver, frame.message)


def _has_way(node: SimNode, to: Contact | None) -> bool:
    routers = node.world.routers
    return routers is None or to is None or routers.way(node, to) is not None


def _pair(a: SimNode, b: SimNode) -> tuple[int, int]:
    return (min(a.number, b.number), max(a.number, b.number))
