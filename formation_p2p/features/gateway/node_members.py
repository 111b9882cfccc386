"""The workers that speak HTTP only, as the node of their gateway has them: it claims that they
serve, and leads the streams of other peers to the gateway, which asks one of them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from formation_p2p.features.services.core.events import MembersServe
from formation_p2p.features.services.core.messages import ANY
from formation_p2p.features.services.core.spec import MAX_REQUESTS, ServiceSpec
from formation_p2p.workload.core.scope import Scope

if TYPE_CHECKING:
    from formation_p2p.features.services.host.server import ServiceServer
    from formation_p2p.peer.shell import Shell

# As much as one replica may take at most.
_MOST: Final = MAX_REQUESTS


@dataclass(frozen=True, slots=True)
class Share:
    """So many members serve this, and have so many requests."""

    spec: ServiceSpec
    members: int
    outstanding: int = 0


class Call(Protocol):
    """Runs a function on the node's thread."""

    def __call__(self, act: Callable[[Shell], object]) -> None: ...


class MembersHere:
    """Of one service, for the node's thread: where a stream to it is led."""

    digest = ANY
    is_stopping = False

    def __init__(self, of: NodeMembers, service: str) -> None:
        self._of = of
        self._service = service
        self.outstanding = 0

    @property
    def scope(self) -> Scope:
        share = self._of.shares.get(self._service)
        return Scope.COMMONS if share is None else share.spec.scope

    @property
    def max_requests(self) -> int:
        share = self._of.shares.get(self._service)
        return 0 if share is None else min(share.members * share.spec.max_requests, _MOST)

    async def connect(self) -> socket.socket:
        """Raises OSError."""
        own, its = socket.socketpair()
        own.setblocking(False)
        its.setblocking(False)
        try:
            self._of.lead(self._service, its)
        except RuntimeError as error:  # the gateway has been left
            own.close()
            its.close()
            raise ConnectionRefusedError(str(error)) from error
        return own

    def count(self, change: int) -> None:
        self.outstanding += change

    def refused(self) -> None:
        """How many members there are is not for this network to say."""


class NodeMembers:
    """Of one gateway. `call` reaches the node; `begin` has `opened` called, on this loop, for each
    stream to a service that members serve, and `tell` says which those are."""

    def __init__(self, call: Call) -> None:
        self._call = call
        self.shares: Mapping[str, Share] = {}
        self._server: ServiceServer | None = None
        self._here: dict[str, MembersHere] = {}
        self._loop = asyncio.get_running_loop()
        self._opened: Callable[[str, socket.socket], None] | None = None

    def begin(self, opened: Callable[[str, socket.socket], None]) -> None:
        self._opened = opened

        def attach(shell: Shell) -> None:
            self._server = shell.services.server
            self._server.members = self

        self._call(attach)

    def tell(self, shares: Mapping[str, Share]) -> None:
        """What is told again costs nothing."""
        before, self.shares = self.shares, dict(shares)
        told = [
            MembersServe(name, 0 if share is None else share.members, _outstanding(share))
            for name in {*before, *shares}
            if (share := shares.get(name)) != before.get(name)
        ]

        def feed(shell: Shell) -> None:
            for event in told:
                shell.feed(event)

        if told:
            self._call(feed)

    def leads(self, service: str) -> bool:
        """Whether a stream to the service on this node is led here."""
        server = self._server
        is_own = server is not None and server.replicas.here(service) is not None
        return service in self.shares and not is_own

    def lead(self, service: str, end: socket.socket) -> None:
        """From the node's thread. Raises RuntimeError where the loop has ended."""
        assert self._opened is not None, "it has begun"
        self._loop.call_soon_threadsafe(self._opened, service, end)

    def here(self, service: str) -> MembersHere | None:
        """On the node's thread."""
        if service not in self.shares:
            return None
        return self._here.setdefault(service, MembersHere(self, service))


def _outstanding(share: Share | None) -> int:
    return 0 if share is None else share.outstanding
