"""Where others reach this node: following the interfaces and what peers see, and telling others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

import trio

from formation_p2p.core.identity import PeerId
from formation_p2p.net.transport import interfaces
from formation_p2p.net.transport.addresses import expand
from formation_p2p.net.transport.own_port import OwnPort
from formation_p2p.peer.core.events import AddressesChanged
from formation_p2p.reach.core.own_addresses import OwnAddresses

if TYPE_CHECKING:
    from formation_p2p.net.connection import Connection
    from formation_p2p.net.swarm import Swarm

# Between two changes that peers are told of: one change of the network makes several, and each
# costs a stream on each connection.
GATHER_S: Final = 0.5
# Peers may say another address each second. Where nothing else changed, the wait after each change
# that is told is twice the one before, up to this; and begins anew after as long without one.
LONGEST_S: Final = 60.0


class Moves:
    """`own` is where others reach us; after any call of it `changed` is to be called, or `seen` for
    the word of a peer that is no gate. `addresses` is where we really listen."""

    def __init__(self, fixed: Iterable[str], gates: Iterable[PeerId]) -> None:
        self._gates = frozenset(gates)
        self.own = OwnAddresses(fixed, self._gates)
        self.addresses: tuple[str, ...] = ()
        self._ports: frozenset[int] = frozenset()
        self._ips: frozenset[interfaces.Ip] = frozenset()
        self._bound_ips: frozenset[interfaces.Ip] = frozenset()
        self._told = self._now()
        self._any, self._changed = trio.Event(), trio.Event()
        self._own_port = OwnPort()

    def changed(self) -> None:
        self._changed.set()
        self._any.set()

    def seen(self) -> None:
        self._any.set()

    def begin(self, swarm: Swarm) -> None:
        """The swarm listens by now."""
        self._ports = frozenset(address.port for address in swarm.bound)
        self._own_port = swarm.own_port
        self._ips = interfaces.all_ips()
        self._bound_ips = frozenset(a.ip for a in swarm.bound if a.ip is not None) & self._ips
        self.addresses = expand(swarm.bound)
        self.own.listening(self.addresses)
        self._told = self._now()

    def observed(self, connection: Connection) -> None:
        """A peer has told where it sees us come from, or dialled us."""
        if connection.observed and connection.remote_host is not None:
            ports = self._ports | self._own_port.ports
            is_exact = connection.local is not None and connection.local[1] in ports
            host, seen = connection.remote_host, connection.observed
            self.own.observed(connection.peer, host, seen, is_exact=is_exact)
            if connection.peer in self._gates:
                self.changed()
            else:
                self.seen()

    async def follow(self, swarm: Swarm) -> None:
        """Until cancelled: the addresses are those of the interfaces. Connections end that were
        bound to one that is gone, or that are not heard any more: they would break half a minute
        later."""

        def changed(now: frozenset[interfaces.Ip]) -> None:
            gone, self._ips = {str(ip) for ip in self._ips - now}, now
            for connection in swarm.all():
                if connection.local is None or ip_address(connection.local[0]).is_loopback:
                    continue
                if connection.local[0] in gone:
                    connection.abort("this machine has left that network")
                else:  # the other network may have the same addresses
                    swarm.nursery.start_soon(connection.prove)
            lost = self._bound_ips - now
            self.addresses = expand(address for address in swarm.bound if address.ip not in lost)
            self.own.listening(self.addresses)
            for connection in swarm.all():
                if not connection.is_closed:
                    self.observed(connection)
            self.changed()

        await interfaces.watch(self._ips, changed)

    def _now(self) -> AddressesChanged:
        return AddressesChanged(self.own.direct, self.own.announced)

    async def tell(
        self,
        feed: Callable[[AddressesChanged], None],
        push: Callable[[], None],
        elsewhere: Callable[[], None],
    ) -> None:
        """Until cancelled, `push` each change to the peers, and `feed` it to the shell, which may
        ask them to dial us there. `elsewhere` is called first where we are to be dialled elsewhere
        than before."""
        wait_s, again_s = GATHER_S, float("-inf")
        while True:
            await self._any.wait()
            with trio.move_on_at(again_s):
                await self._changed.wait()
            is_seen = not self._changed.is_set()
            self._any, self._changed = trio.Event(), trio.Event()
            if (now := self._now()) == self._told:
                continue
            before, self._told = self._told, now
            if now.direct != before.direct:
                elsewhere()
            push()
            feed(now)
            if is_seen:
                now_s = trio.current_time()
                wait_s = GATHER_S if now_s > again_s + LONGEST_S else min(wait_s * 2, LONGEST_S)
                again_s = now_s + wait_s
            await trio.sleep(GATHER_S)
