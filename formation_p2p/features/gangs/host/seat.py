"""What a node has in a gang: a seat, and the tunnels that lead to it.

A node has a seat for each member that it is, by a lease, and one as the owner. What may be opened
there is said by its newest roster alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

import trio

from formation_p2p.core.units import KIB
from formation_p2p.features.gangs.core.roster import OWNER, Member, Roster
from formation_p2p.features.gangs.core.tunnel import TunnelError, party
from formation_p2p.net.transport.errors import IOException, StreamEOF
from formation_p2p.net.tunnels import SMALL_BYTES, TunnelStream

# Turns: what is bounded at several levels at once, such as of a pair, of a member, of a node.


@dataclass(frozen=True, slots=True, eq=False)
class Turns:
    """One of each of `levels` at a time, the narrowest first."""

    levels: tuple[trio.Semaphore, ...]

    async def acquire(self) -> None:
        """Waits until each has one."""
        taken: list[trio.Semaphore] = []
        try:
            for each in self.levels:
                await each.acquire()
                taken.append(each)
        except BaseException:
            for each in taken:
                each.release()
            raise

    def lacking(self) -> int | None:
        """The first level that has none now; None where each has one."""
        return next((n for n, each in enumerate(self.levels) if not each.value), None)

    def take(self) -> None:
        """One of each; none is `lacking`."""
        for each in self.levels:
            each.acquire_nowait()

    def release(self) -> None:
        for each in self.levels:
            each.release()


# That a member opens to another, and as many that the other opens; further ones wait for their
# turn. A program that has one for each of its threads has fewer.
MAX_TUNNELS: Final = 64
# Of one member, with all others, in both directions: what a task cannot keep from other leases.
# Eight with each of 64 members.
MAX_SEAT_TUNNELS: Final = 512
# Read of a tunnel at a time, where the caller does not say.
READ_BYTES: Final = 256 * KIB


@dataclass(eq=False, slots=True)
class Traffic:
    """Bytes of the tunnels with one member."""

    sent_bytes: int = 0
    received_bytes: int = 0


@dataclass(eq=False)
class Tunnel:
    """One end of a tunnel. One task may read and one may write at a time."""

    stream: TunnelStream
    seat: Seat
    peer_rank: int
    """Of the other end; OWNER for the owner of the gang."""
    service: str
    over: trio.Event = field(default_factory=trio.Event, init=False)
    """Whether it has ended in both directions, or broken."""

    async def read(self, n: int = READ_BYTES) -> bytes:
        """Up to `n` bytes, whatever is there; nothing where the other end has finished. Raises
        TunnelError where it has broken."""
        try:
            data = await self.stream.read(n)
        except StreamEOF:
            return b""
        except IOException as error:
            raise self._broken(error) from error
        self.seat.traffic[self.peer_rank].received_bytes += len(data)
        return data

    async def read_pieces(self, n: int = READ_BYTES) -> list[memoryview]:
        """As `read`, where it lies."""
        try:
            pieces = await self.stream.read_pieces(n)
        except StreamEOF:
            return []
        except IOException as error:
            raise self._broken(error) from error
        self.seat.traffic[self.peer_rank].received_bytes += sum(map(len, pieces))
        return pieces

    async def write(self, data: bytes | memoryview) -> None:
        """All of it. Waits for as long as the other end does not read. Raises TunnelError."""
        try:
            if len(data) > SMALL_BYTES or not self.stream.write_now(bytes(data)):
                await self.stream.write(data)
        except IOException as error:
            raise self._broken(error) from error
        self.seat.traffic[self.peer_rank].sent_bytes += len(data)

    async def write_pieces(self, pieces: Sequence[memoryview]) -> None:
        """As `write`, from where they lie. They stay as they are until it returns."""
        size = sum(map(len, pieces))
        if size <= SMALL_BYTES:
            await self.write(b"".join(pieces))
            return
        try:
            await self.stream.write_pieces(pieces)
        except IOException as error:
            raise self._broken(error) from error
        self.seat.traffic[self.peer_rank].sent_bytes += size

    async def finish(self) -> None:
        """Nothing more is written. What the other end writes can still be read."""
        await self.stream.close()

    def abort(self, reason: str) -> None:
        """Both directions end at once, and the other end is told."""
        self.stream.abort(reason)

    def _broken(self, error: IOException) -> TunnelError:
        what = f"the stream with {name_of(self.peer_rank)} for {self.service} has broken"
        return TunnelError(f"{what}: {self.stream.broken or error}; connect again")


@dataclass(eq=False)
class Seat:
    """This node's part in a gang: as a member, by a lease, or as its owner (`rank` OWNER)."""

    rank: int
    roster: Roster
    of_node: trio.Semaphore
    """The turns of all tunnels of the node."""
    ended: str | None = field(default=None, init=False)
    traffic: dict[int, Traffic] = field(default_factory=dict, init=False)
    """By the rank of the other end."""
    watchers: list[Callable[[], None]] = field(default_factory=list, init=False)
    """Are called with each newer roster. Must not raise."""

    def __post_init__(self) -> None:
        self._parties: dict[TunnelStream, Member] = {}
        self._waiting: set[trio.CancelScope] = set()
        self._turns: dict[tuple[int, bool], Turns] = {}
        self._of_seat = trio.Semaphore(MAX_SEAT_TUNNELS)

    @property
    def gang_id(self) -> str:
        return self.roster.gang_id

    def turns(self, rank: int, *, inbound: bool) -> Turns:
        """Of the tunnels with another end: as many as may be, less those that are. Of the pair, of
        this seat, of the node."""
        turns = self._turns.get((rank, inbound))
        if turns is None:
            levels = (trio.Semaphore(MAX_TUNNELS), self._of_seat, self.of_node)
            turns = self._turns[rank, inbound] = Turns(levels)
        return turns

    def carry(self, stream: TunnelStream, there: Member, service: str, turns: Turns) -> Tunnel:
        """A tunnel with that party, until it is over, or the party gone; then its turn is the
        next one's."""

        self.traffic.setdefault(there.rank, Traffic())
        tunnel = Tunnel(stream, self, there.rank, service)

        def over() -> None:
            del self._parties[stream]
            turns.release()
            tunnel.over.set()

        self._parties[stream] = there
        stream.on_over = over
        if stream.broken is not None:
            over()
        return tunnel

    def wait(self) -> trio.CancelScope:
        """A scope that is cancelled when the seat ends. `done` with it."""
        scope = trio.CancelScope()
        self._waiting.add(scope)
        return scope

    def done(self, scope: trio.CancelScope) -> None:
        self._waiting.discard(scope)

    def changed(self, roster: Roster) -> None:
        """A newer roster: those who are not in it have left."""
        self.roster = roster
        for stream, there in list(self._parties.items()):
            if not self._has(there):
                stream.abort(f"{there} has left the gang")
        for each in self.watchers:
            each()

    def end(self, reason: str) -> None:
        self.ended = reason
        for stream in list(self._parties):
            stream.abort(reason)
        for scope in list(self._waiting):
            scope.cancel()

    def __len__(self) -> int:
        """How many tunnels there are."""
        return len(self._parties)

    def _has(self, there: Member) -> bool:
        now = party(self.roster, there.rank)
        return now is not None and (now.peer_id, now.fence) == (there.peer_id, there.fence)


def name_of(rank: int) -> str:
    return "the owner" if rank == OWNER else f"member {rank}"
