"""Tunnels between the members of gangs: opened, proved by the roster, carried, ended with a lease.

A node has a `Seat` in each gang for each member that it is, and one as the owner. What may be
opened is said by the seat's newest roster alone (features/gangs/core/tunnel.py). All tunnels of a
seat end with it, and those with another member when a roster comes without it, or with it under
another lease.

A program may leave its tunnel unread for as long as it likes, and it costs others nothing: see
`MuxedStream.become_tunnel`. Its connection takes them in turn, behind all that is small.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from formation_p2p.core.errors import InvalidInput, ProtocolViolation, RemoteError
from formation_p2p.core.identity import PeerId
from formation_p2p.features.gangs.core.roster import OWNER, Member, Roster
from formation_p2p.features.gangs.core.tunnel import (
    MAX_MESSAGE_BYTES,
    RESERVED,
    OpenTunnel,
    TunnelError,
    TunnelOpened,
    TunnelRefusal,
    TunnelRefused,
    is_service,
    opening,
    pack,
    parse,
    party,
    refused,
)
from formation_p2p.features.gangs.host.seat import (
    MAX_SEAT_TUNNELS,
    MAX_TUNNELS,
    Seat,
    Tunnel,
    Turns,
    name_of,
)
from formation_p2p.net.transport.errors import IOException
from formation_p2p.net.transport.frames import encode_frame, read_frame
from formation_p2p.net.tunnels import LocalStream, Openings, TunnelStream

if TYPE_CHECKING:
    from formation_p2p.net.connection import Connection
    from formation_p2p.net.transport.stream import MuxedStream
    from formation_p2p.reach.stack import Stack

log = logging.getLogger(__name__)

PROTOCOL: Final = "/formation/tunnel/1.0.0"
# Of a node, in all its gangs: each that leads to a task is a file descriptor, and up to 1 MiB that
# is not read. Four members that have all that they may (MAX_SEAT_TUNNELS).
MAX_NODE_TUNNELS: Final = 2048
# Why there are no more, at each level of a seat's turns.
BUSY: Final = (
    f"you have {MAX_TUNNELS} streams to this member; end some",
    f"this member has {MAX_SEAT_TUNNELS} streams with all others; end some",
    "this node has as many streams as it can; try again later",
)
# For the member to be there, and for a program of it to listen, unless the caller says otherwise.
WAIT_S: Final = 30.0
# To dial, also by a circuit, and to agree on the protocol.
OPEN_S: Final = 20.0
# To say what for, and to answer that, beside the time that the service may take.
ANSWER_S: Final = 10.0
# A service that is there is reached, also by one who does not wait.
LEAST_WAIT_S: Final = 1.0
# Between two looks whether a service is there, or two tries to open: at first, and at most.
FIRST_LOOK_S: Final = 0.01
LAST_LOOK_S: Final = 0.25
LAST_TRY_S: Final = 1.0


Serve = Callable[[Tunnel], Awaitable[None]]
Answer = Callable[[TunnelOpened | TunnelRefused], Awaitable[None]]
# What serves a service of a member here, or why nothing does now.
Find = Callable[["Seat", str], Awaitable[Serve | str]]


class Tunnels:
    """Of one node. Methods are for its thread. `find` looks for what a task serves."""

    def __init__(
        self, stack: Stack, me: PeerId, spawn: Callable[[Callable[[], Awaitable[None]]], None]
    ) -> None:
        """Call it before the stack runs. `spawn` runs a task of the node's own."""
        self.find: Find = _nothing
        self.answer_s = ANSWER_S
        self._stack = stack
        self._me = me
        self._spawn = spawn
        self._seats: dict[tuple[str, int], Seat] = {}
        self._served: dict[str, Serve] = {}
        self._openings = Openings()
        self._turns = trio.Semaphore(MAX_NODE_TUNNELS)
        stack.served.by_protocol[PROTOCOL] = self.accept

    # -- where this node belongs to ---------------------------------------------------------

    def join(self, rank: int, roster: Roster) -> Seat:
        """This node is that member, or the owner, from now on; or the roster has changed. One that
        is older than the newest changes nothing."""
        seat = self._seats.get((roster.gang_id, rank))
        if seat is None:
            seat = self._seats[roster.gang_id, rank] = Seat(rank, roster, self._turns)
        elif roster.sequence > seat.roster.sequence:
            seat.changed(roster)
        return seat

    def is_of_another(self, roster: Roster) -> bool:
        """Whether a gang of this id and of another owner has a seat here. What comes second is no
        part of it, unless the id is its owner's (features/gangs/host/leases.py)."""
        owner = roster.owner.peer_id
        return any(
            seat.gang_id == roster.gang_id and seat.roster.owner.peer_id != owner
            for seat in self.seats()
        )

    def leave(self, gang_id: str, rank: int, reason: str) -> None:
        """This node is that member no more: all its tunnels end."""
        seat = self._seats.pop((gang_id, rank), None)
        if seat is not None:
            seat.end(reason)

    def seat(self, gang_id: str, rank: int) -> Seat | None:
        return self._seats.get((gang_id, rank))

    def seats(self) -> Iterator[Seat]:
        return iter(list(self._seats.values()))

    # -- ours -------------------------------------------------------------------------------

    def serve(self, service_prefix: str, serve: Serve) -> None:
        """Have `serve` take the tunnels to services of this library whose names begin so, at all
        seats of this node. It runs until it returns; what it raises breaks the tunnel."""
        assert service_prefix.startswith(RESERVED), "other names are the tasks'"
        self._served[service_prefix] = serve

    async def open(
        self, gang_id: str, rank: int, to_rank: int, service: str, *, wait_s: float = WAIT_S
    ) -> Tunnel:
        """A tunnel from `rank`, which is here, to a service of another member: once there are fewer
        than MAX_TUNNELS, and then within `wait_s`. OWNER is the owner's rank.

        Raises TunnelError, InvalidInput.
        """
        if not is_service(service):
            problem = f"{service!r} is not a name of letters, digits, '_', '.' and '-', nor ':8080'"
            raise InvalidInput("service", problem)
        seat = self.seat(gang_id, rank)
        if seat is None:
            raise TunnelError(f"{name_of(rank)} of that gang is not here, or its lease has ended")
        if to_rank != OWNER and not 0 <= to_rank < seat.roster.size:
            size = seat.roster.size
            raise InvalidInput("rank", f"{to_rank}, of a gang of {size}; they begin with 0")
        turns = seat.turns(to_rank, inbound=False)
        scope = seat.wait()
        try:
            with scope:
                await turns.acquire()
                try:
                    return await self._opened(seat, to_rank, service, wait_s, turns)
                except BaseException:
                    turns.release()
                    raise
        finally:
            seat.done(scope)
        raise TunnelError(f"no stream to {name_of(to_rank)}: {seat.ended}")

    async def _opened(
        self, seat: Seat, to_rank: int, service: str, wait_s: float, turns: Turns
    ) -> Tunnel:
        until_s = trio.current_time() + wait_s
        pause_s = FIRST_LOOK_S
        while True:
            left_s = until_s - trio.current_time()
            wait_ms = max(round(left_s * 1000), 0)
            asked = opening(seat.roster, seat.rank, to_rank, service, wait_ms)
            there = party(seat.roster, to_rank)
            try:
                if asked is None or there is None:
                    why = f"{name_of(to_rank)} is being replaced; connect again later"
                    raise TunnelError(why, TunnelRefusal.NOT_HERE)
                if there.peer_id == self._me:
                    return await self._locally(seat, asked, there, turns)
                return await self._remotely(seat, asked, there, turns)
            except (RemoteError, IOException, trio.TooSlowError) as error:
                refusal = error.refusal if isinstance(error, TunnelError) else None
                if refusal is TunnelRefusal.NO_SERVICE or left_s <= pause_s:
                    why = f"no stream to {service} of {name_of(to_rank)}: {error}"
                    raise TunnelError(why, refusal) from error
            await trio.sleep(pause_s)
            pause_s = min(2 * pause_s, LAST_TRY_S)

    async def _remotely(self, seat: Seat, asked: OpenTunnel, there: Member, turns: Turns) -> Tunnel:
        async with self._openings.of(there.peer_id):
            stream = await self._stack.open(there.contact, PROTOCOL, timeout_s=OPEN_S)
            try:
                with trio.fail_after(ANSWER_S):
                    await stream.write(encode_frame(pack(asked)))
            except BaseException:
                stream.abort("it was not opened")
                raise
        try:
            with trio.fail_after(asked.wait_ms / 1000 + ANSWER_S):
                answer = parse(await read_frame(stream, MAX_MESSAGE_BYTES))
            if isinstance(answer, TunnelRefused):
                raise TunnelError(answer.why, answer.refusal)
            if not isinstance(answer, TunnelOpened):
                raise ProtocolViolation("an answer that is none")
            if stream.broken is not None:
                raise TunnelError(stream.broken)
            stream.become_tunnel()
            return seat.carry(stream, there, asked.service, turns)
        except BaseException:
            stream.abort("it was not opened")
            raise

    async def _locally(self, seat: Seat, asked: OpenTunnel, there: Member, turns: Turns) -> Tunnel:
        """To another member on this node."""
        here, its = LocalStream.pair()
        tunnel = self._admitted(asked, self._me, its)
        if isinstance(tunnel, TunnelRefused):
            raise TunnelError(tunnel.why, tunnel.refusal)
        answers, answered = trio.open_memory_channel[TunnelOpened | TunnelRefused](1)
        self._spawn(partial(self._serve_locally, tunnel, asked, answers.send))
        try:
            with trio.fail_after(asked.wait_ms / 1000 + self.answer_s):  # what finds it may fail
                answer = await answered.receive()
            if isinstance(answer, TunnelRefused):
                raise TunnelError(answer.why, answer.refusal)
        except BaseException:
            here.abort("it was not opened")
            raise
        return seat.carry(here, there, asked.service, turns)

    async def _serve_locally(self, tunnel: Tunnel, asked: OpenTunnel, answer: Answer) -> None:
        try:
            await self._serve(tunnel, asked, answer)
        except (RemoteError, IOException) as error:
            log.debug("a tunnel on this node ends: %r", error)
            tunnel.abort(f"ended here: {error}")
        except Exception:
            # As of one from another node (connection.py): it costs the tunnel alone.
            log.exception("what serves %s failed; the tunnel ends", asked.service)
            tunnel.abort("failed here")
        else:
            await tunnel.finish()

    # -- theirs -----------------------------------------------------------------------------

    async def accept(self, stream: MuxedStream, connection: Connection) -> None:
        """One that a peer opens, until its service returns. Raises RemoteError, IOException,
        TooSlowError."""

        async def answer(message: TunnelOpened | TunnelRefused) -> None:
            with trio.fail_after(self.answer_s):
                await stream.write(encode_frame(pack(message)))

        with trio.fail_after(self.answer_s):
            asked = parse(await read_frame(stream, MAX_MESSAGE_BYTES))
        if not isinstance(asked, OpenTunnel):
            raise ProtocolViolation("a tunnel that does not begin with OpenTunnel")
        tunnel = self._admitted(asked, connection.peer, stream)
        if isinstance(tunnel, TunnelRefused):
            log.debug("no tunnel for %s: %s", connection.peer, tunnel)
            await answer(tunnel)
            return
        connection.tunnels(stream)
        await self._serve(tunnel, asked, answer)

    def _admitted(
        self, asked: OpenTunnel, remote: PeerId, stream: TunnelStream
    ) -> Tunnel | TunnelRefused:
        """A tunnel from now on, whether or not it leads anywhere yet; or why it may not be."""
        seat = self.seat(asked.gang_id, asked.to_rank)
        no = refused(asked, remote, None if seat is None else seat.roster)
        there = None if seat is None else party(seat.roster, asked.rank)
        if no is not None or seat is None or there is None:
            assert no is not None, "it is not in the roster"
            return no
        turns = seat.turns(asked.rank, inbound=True)
        # One that keeps to the bounds seldom waits here, so that waiting costs nothing here.
        lacking = turns.lacking()
        if lacking is not None:
            return TunnelRefused(TunnelRefusal.BUSY, BUSY[lacking])
        turns.take()
        return seat.carry(stream, there, asked.service, turns)

    async def _serve(self, tunnel: Tunnel, asked: OpenTunnel, answer: Answer) -> None:
        serve = await self._found(tunnel, max(asked.wait_ms / 1000, LEAST_WAIT_S))
        if isinstance(serve, str):
            await answer(TunnelRefused(TunnelRefusal.NO_SERVICE, serve))
            return
        try:
            await answer(TunnelOpened())
        except (IOException, trio.TooSlowError) as error:
            tunnel.abort(f"not answered: {error}")  # which its service is told, and lets go
        await serve(tunnel)

    async def _found(self, tunnel: Tunnel, within_s: float) -> Serve | str:
        """What serves it, once something does; or why nothing does in time."""
        why = "it is over"
        until_s, pause_s = trio.current_time() + within_s, FIRST_LOOK_S
        for prefix, own in self._served.items():
            if tunnel.service.startswith(prefix):
                return own
        while not tunnel.over.is_set() and trio.current_time() < until_s:
            found = await self._look(tunnel) or why
            if not isinstance(found, str):
                return found
            why = found
            with trio.move_on_after(pause_s):
                await tunnel.over.wait()
            pause_s = min(2 * pause_s, LAST_LOOK_S)
        return why

    async def _look(self, tunnel: Tunnel) -> Serve | str | None:
        """Once. A peer that opens tunnels and breaks them leaves no looks behind, which may wait
        for a task: None then."""
        found: Serve | str | None = None
        async with trio.open_nursery() as nursery:

            async def give_up() -> None:
                await tunnel.over.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(give_up)
            found = await self.find(tunnel.seat, tunnel.service)
            nursery.cancel_scope.cancel()
        return found


async def _nothing(seat: Seat, service: str) -> str:
    return "no tasks run there"
