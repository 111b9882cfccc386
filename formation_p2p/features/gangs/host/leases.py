"""The gangs that leases of this machine belong to: what is set up for one, and taken down."""

from __future__ import annotations

import logging
import os
import socket
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final, Self

import trio

from formation_p2p.drivers.ports import TaskPorts
from formation_p2p.features.gangs.core.events import JoinGang
from formation_p2p.features.gangs.core.roster import Roster, is_gang_of
from formation_p2p.features.gangs.core.tunnel import RESERVED
from formation_p2p.features.gangs.host.gangs import NodeGangs
from formation_p2p.features.gangs.host.place import MemberPlace
from formation_p2p.features.gangs.host.programs import Programs, splice
from formation_p2p.features.gangs.host.seat import Seat, Tunnel
from formation_p2p.features.gangs.host.store_socket import StoreSocket
from formation_p2p.features.gangs.host.tunnels import Serve
from formation_p2p.machine.clock import moment
from formation_p2p.machine.descriptors import raise_descriptor_limit
from formation_p2p.machine.folders import remove_folder
from formation_p2p.machine.unix_socket import connected_to, reachable

# The folder in which the tasks of a gang's member reach the others: `FORMATION_GANG`. - `connect`:
# a program connects, writes `<rank> <service>\n` (`owner` is a rank too), and reads `ok\n` or
# `error <why>\n`; after the first it is the stream. Instead it may write `forward <port> <rank>
# <service>`: from then on that port of its 127.0.0.1 leads there, until the lease ends. A service
# may be a port: `:8080`. - `services/`: a program listens on a unix socket of its own there, which
# others reach by its name. A task puts what it likes into `services/`. The node opens a name there
# without following a link, takes it only if it is a socket, and connects to what it has opened,
# whatever lies there by then.
CONNECT: Final = "connect"
SERVICES: Final = "services"
# Programs that wait in the kernel.
BACKLOG: Final = 128


class GangFolder:
    """`run` it until cancelled; then `close` it. `made` raises OSError."""

    def __init__(self, path: Path, services: int, listening: socket.socket) -> None:
        self.path = path
        self._services = services
        self._listening = listening

    @classmethod
    def made(cls, root: Path) -> Self:
        path = Path(tempfile.mkdtemp(prefix="gang-", dir=root))
        (path / SERVICES).mkdir(mode=0o700)
        # Opened before any task can put another in its place.
        services = os.open(path / SERVICES, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            with reachable(path / CONNECT) as name:
                listening.bind(name)
            listening.listen(BACKLOG)
        except BaseException:
            listening.close()
            os.close(services)
            raise
        return cls(path, services, listening)

    async def close(self) -> None:
        """`run` is over, and the tasks of the lease are dead."""
        os.close(self._services)
        await remove_folder(self.path)

    async def run(self, programs: Programs) -> None:
        """Serve the programs that connect. Afterwards they are refused."""
        with self._listening:
            await programs.run(self._listening)

    def find(self, service: str) -> Callable[[Tunnel], Awaitable[None]] | None:
        """A program that listens under this name. It is connected to already."""
        if service.startswith((RESERVED, ":")):
            return None
        end = connected_to(self._services, service)
        return None if end is None else partial(splice, end=end)


log = logging.getLogger(__name__)


@dataclass(eq=False)
class _Place:
    """Of one lease. Without a folder where none could be made: its tasks cannot connect."""

    joined: JoinGang
    since_unix_s: float
    folder: GangFolder | None
    store: StoreSocket | None
    ports: TaskPorts = field(default_factory=TaskPorts)
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    ended: trio.Event = field(default_factory=trio.Event)


class LeaseGangs:
    """`root` is where the folders of leases are made, `do` runs a task of the node's own."""

    def __init__(self, gangs: NodeGangs, root: Path, do: Callable[..., None]) -> None:
        self._gangs = gangs
        self._tunnels = tunnels = gangs.tunnels
        self._root = root
        self._do = do
        self._places: dict[str, _Place] = {}
        tunnels.find = self._find

    def get(self, lease_id: str) -> JoinGang | None:
        """What the lease is a member of, by the newest roster."""
        place = self._places.get(lease_id)
        return None if place is None else place.joined

    def joined(self) -> Iterator[JoinGang]:
        """Of all leases that are not being fenced."""
        return (x.joined for x in list(self._places.values()) if not x.scope.cancel_called)

    def since_unix_s(self, lease_id: str) -> float:
        """When the lease became a member; of one that is."""
        return self._places[lease_id].since_unix_s

    def folder(self, lease_id: str) -> Path | None:
        """Where its tasks reach the others."""
        place = self._places.get(lease_id)
        return None if place is None or place.folder is None else place.folder.path

    def place(self, lease_id: str) -> MemberPlace | None:
        """What drivers have of it; None where the lease is in no gang."""
        joined = self.get(lease_id)
        if joined is None:
            return None
        relay = self._gangs.networks.of(*_seat(joined))
        return MemberPlace(joined, self.folder(lease_id), relay, self._places[lease_id].ports)

    def join(self, effect: JoinGang) -> None:
        """Before anything of the gang runs under the lease, and at each new roster. A lease stays
        the member that it became first, and what has left comes back by a new lease alone."""
        place = self._places.get(effect.lease_id)
        if place is None:
            if is_gang_of(effect.roster.gang_id, effect.roster.owner.peer_id):
                self._end_others(effect.roster)
            if self._tunnels.is_of_another(effect.roster):
                log.warning(
                    "lease %s of %s is for a gang that another peer owns: its tasks run alone",
                    effect.lease_id,
                    effect.roster.owner.peer_id,
                )
                return
            raise_descriptor_limit()
            folder = store = None
            try:
                folder = GangFolder.made(self._root)
                store = StoreSocket(folder.path)
            except OSError as why:
                log.warning("tasks of a gang cannot reach its members: %s", why)
            place = self._places[effect.lease_id] = _Place(effect, moment().unix_s, folder, store)
            self._do(self._run, place)
        elif (
            place.scope.cancel_called
            or _seat(effect) != _seat(place.joined)
            or effect.roster.sequence <= place.joined.roster.sequence
        ):
            return
        place.joined = effect
        self._tunnels.join(effect.rank, effect.roster)

    def _end_others(self, roster: Roster) -> None:
        """What is in a gang of this name that is not of the owner whose name it is: a member knows
        the name, and may lease this machine itself."""
        for lease_id, place in list(self._places.items()):
            other = place.joined.roster
            if other.gang_id == roster.gang_id and other.owner.peer_id != roster.owner.peer_id:
                log.warning("lease %s is in the gang of another owner no more", lease_id)
                self.leave(lease_id)

    def leave(self, lease_id: str) -> None:
        """The lease is being fenced: streams end at once."""
        place = self._places.get(lease_id)
        if place is None or place.scope.cancel_called:
            return
        place.scope.cancel()
        # It may be that member by another lease already.
        others = (each for each in self._places.values() if not each.scope.cancel_called)
        if _seat(place.joined) not in [_seat(each.joined) for each in others]:
            self._tunnels.leave(*_seat(place.joined), "the lease of this member has ended")

    async def forget(self, lease_id: str) -> None:
        """After `leave`: its tasks are dead."""
        place = self._places.pop(lease_id, None)
        if place is None:
            return
        await place.ended.wait()
        if place.store is not None:
            place.store.close()
        if place.folder is not None:
            await place.folder.close()

    async def _run(self, place: _Place) -> None:
        gang_id, rank = _seat(place.joined)
        try:
            with place.scope:
                async with trio.open_nursery() as nursery:
                    if place.store is not None:
                        link = partial(self._gangs.links.of, gang_id, rank)
                        nursery.start_soon(place.store.run, link)
                    if place.folder is not None:
                        opened = partial(self._tunnels.open, gang_id, rank)
                        await place.folder.run(Programs(opened, place.ports.listening))
        finally:
            place.ended.set()

    async def _find(self, seat: Seat, service: str) -> Serve | str:
        for place in reversed(list(self._places.values())):  # the latest lease of that member
            if _seat(place.joined) == (seat.gang_id, seat.rank) and place.folder is not None:
                if not service.startswith(":"):
                    return place.folder.find(service) or "no program of its task listens for it"
                end = await place.ports.reached(int(service[1:]))
                return end if isinstance(end, str) else partial(splice, end=end)
        return "its tasks cannot be reached; the log of its worker says why"


def _seat(joined: JoinGang) -> tuple[str, int]:
    return joined.roster.gang_id, joined.rank
