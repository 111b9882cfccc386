"""The dials of a punch: both ends dial each other from one port to the other, and what comes to
that port meanwhile is theirs.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from formation_p2p.core.identity import PeerId
from formation_p2p.core.nat import dcutr
from formation_p2p.core.nat.dcutr import Role
from formation_p2p.host.net.addresses import TcpAddress
from formation_p2p.host.net.connection import Connection
from formation_p2p.host.net.token_bucket import TokenBucket
from formation_p2p.host.net.transport.accepting import next_client
from formation_p2p.host.net.transport.errors import IOException, SwarmException
from formation_p2p.host.net.transport.negotiation import greeting
from formation_p2p.host.net.transport.own_port import TAKEN
from formation_p2p.host.net.transport.tcp import TcpStream, meet_tcp
from formation_p2p.host.net.transport.upgrade import upgrade

if TYPE_CHECKING:
    from formation_p2p.host.net.swarm import Swarm

log = logging.getLogger(__name__)

# Hosts from which a connection may come because a router let it in to answer us: that is no proof
# that others can dial us. So long a router remembers an attempt; so many hosts are remembered.
REMEMBERED_S: Final = 120.0
MAX_HOSTS: Final = 1024
# Where something refuses at once: the other side's router may not know the connection yet. So long
# until the second try at an address, and twice as long each time. A peer may name a third party, so
# tries have a bound: at an address, and in a second at a host, over all peers.
AGAIN_S: Final = 0.1
MAX_TRIES: Final = 5
MAX_TRIES_PER_S: Final = 8
# Beside the first connection that was punched: the client keeps one, and closes the others.
OTHERS_S: Final = 1.0
# After which a connection that came is taken for one that we punch. Who dials proposes at once.
SILENT_S: Final = 0.25
# After which the server of a connection that was punched becomes its client: go-libp2p before v0.48
# is a server as well then. Longer than the two ends may be apart.
BOTH_SERVE_S: Final = 1.0
# Between two looks whether a direct connection came by other means.
LOOK_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class _Meeting:
    """What is expected from a host that we punch to."""

    peer: PeerId
    role: Role


@dataclass(eq=False)
class _Host:
    """What is remembered of a host that we punched to."""

    until_s: float
    tries: TokenBucket = field(default_factory=lambda: TokenBucket(MAX_TRIES_PER_S))


@dataclass(eq=False)
class Meetings:
    """`punch` makes a connection, or fails to, in dcutr.DIAL_S."""

    swarm: Swarm

    def __post_init__(self) -> None:
        self._meetings: dict[str, _Meeting] = {}
        self._hosts: OrderedDict[str, _Host] = OrderedDict()
        self.swarm.expected = self._expected
        self.swarm.was_punched = self._was_punched

    async def punch(
        self, peer: PeerId, addresses: Sequence[TcpAddress], dial: dcutr.DialAt
    ) -> bool:
        """Whether there is a direct connection now. `addresses` are those of `dial` that may be
        dialled."""
        if not addresses or not self.swarm.make_room(inbound=dial.role is Role.SERVER):
            return False
        await trio.sleep_until(dial.at_s)
        log.debug("punching to %s at %s as %s", peer, ", ".join(map(str, addresses)), dial.role)
        done = trio.Event()
        with (
            self._meeting(peer, addresses, dial.role),
            trio.move_on_after(dcutr.DIAL_S) as deadline,
        ):
            async with trio.open_nursery() as nursery:

                async def watch() -> None:
                    # It may come to our listener, or by other means.
                    while self.swarm.direct_to(peer) is None and not done.is_set():
                        with trio.move_on_after(LOOK_S):
                            await done.wait()
                    if dial.role is Role.CLIENT:
                        nursery.cancel_scope.cancel()
                    else:
                        deadline.deadline = trio.current_time() + OTHERS_S

                async def dial_one(address: TcpAddress) -> None:
                    tcp = await self._met(address)
                    if tcp is None:
                        return
                    connection = await self._upgraded(tcp, peer, dial.role)
                    if connection is None:
                        return
                    if done.is_set() and dial.role is Role.CLIENT:
                        await connection.muxer.close()
                        return
                    self.swarm.adopt_dialled(connection)
                    done.set()

                nursery.start_soon(watch)
                if dial.role is Role.CLIENT:
                    nursery.start_soon(self._listen_meanwhile)
                for address in addresses:
                    nursery.start_soon(dial_one, address)
        return self.swarm.direct_to(peer) is not None

    async def _met(self, address: TcpAddress) -> TcpStream | None:
        """Dial until the other side's dial meets ours; cancelled at the end of the attempt. None
        where a connection with that address came by itself, or where all tries are refused."""
        for number in range(MAX_TRIES):
            host = self._hosts.get(address.host)
            if host is not None and host.tries.take():
                try:
                    return await meet_tcp(address, self.swarm.own_port)
                except OSError as error:
                    if error.errno in TAKEN:
                        return None
                    log.debug("punching to %s: %s", address, error)
            await trio.sleep(AGAIN_S * 2**number)
        return None

    async def _upgraded(self, tcp: TcpStream, peer: PeerId, role: Role) -> Connection | None:
        """The handshakes on a connection that was punched. Where they fail, the next attempt may
        have the same ports."""
        swarm = self.swarm
        tcp.reset_on_close(True)
        try:
            if role is Role.SERVER and not await _proposes(tcp, BOTH_SERVE_S):
                log.debug("%s is a server in a connection that was punched, too", peer)
                role = Role.CLIENT
            to = peer if role is Role.CLIENT else None
            muxer = await upgrade(
                swarm.keys, swarm.parameters, tcp, to, confirmed=role is Role.CLIENT
            )
        except BaseException as error:
            await tcp.close()
            if not isinstance(error, SwarmException | IOException):
                raise
            log.debug("a connection that was punched to %s: %s", peer, error)
            return None
        tcp.reset_on_close(False)
        connection = Connection(muxer, inbound=role is Role.SERVER, local=tcp.local, punched=True)
        if connection.peer != peer:
            await muxer.close()
            return None
        return connection

    # -- what comes to our port -------------------------------------------------------------------

    @contextmanager
    def _meeting(self, peer: PeerId, addresses: Sequence[TcpAddress], role: Role) -> Iterator[None]:
        hosts = {each.host for each in addresses}
        meeting = _Meeting(peer, role)
        for host in hosts:
            self._meetings[host] = meeting
            remembered = self._hosts.pop(host, None) or _Host(0.0)
            remembered.until_s = trio.current_time() + REMEMBERED_S
            self._hosts[host] = remembered
        while len(self._hosts) > MAX_HOSTS:
            self._hosts.popitem(last=False)
        try:
            yield
        finally:
            for host in hosts:
                if self._meetings.get(host) is meeting:
                    del self._meetings[host]

    async def _listen_meanwhile(self) -> None:
        """Where this node does not listen: a router may let the other end's dial come first."""
        try:
            listeners = await self.swarm.own_port.listeners()
        except OSError as error:
            log.debug("no punch is listened for: %s", error)
            return
        try:
            async with trio.open_nursery() as nursery:
                for each in listeners:
                    nursery.start_soon(self._accept_all, each)
        finally:
            for each in listeners:
                each.close()

    async def _accept_all(self, listener: trio.socket.SocketType) -> None:
        while True:
            tcp = TcpStream(trio.SocketStream(await next_client(listener)))
            remote = tcp.get_remote_address()
            meeting = None if remote is None else self._meetings.get(remote[0])
            if meeting is None or not await self._accepted(meeting, tcp):
                await tcp.close()

    def _expected(self, host: str) -> Callable[[TcpStream], Awaitable[bool]] | None:
        """What is done with a connection that comes from there: it may be one that we punch."""
        meeting = self._meetings.get(host)
        return None if meeting is None else partial(self._accepted, meeting)

    async def _accepted(self, meeting: _Meeting, tcp: TcpStream) -> bool:
        """Whether it is what we punch, and its other end takes us for the client: it proposes
        nothing then. Who does, for that or for another reason, is served as any other."""
        within_s = SILENT_S if meeting.role is Role.CLIENT else BOTH_SERVE_S
        try:
            if await _proposes(tcp, within_s):
                return False
        except IOException:
            return False
        connection = await self._upgraded(tcp, meeting.peer, Role.CLIENT)
        if connection is not None:
            self.swarm.adopt_dialled(connection)
        return True

    def _was_punched(self, host: str) -> bool:
        """Whether a connection from there may have been let in because we dialled that host."""
        remembered = self._hosts.get(host)
        return remembered is not None and remembered.until_s > trio.current_time()


async def _proposes(tcp: TcpStream, within_s: float) -> bool:
    """Whether the other end acts as the client. A server may greet. Raises IOException."""
    return await tcp.has_spoken(within_s, beyond=greeting())
