"""What a node has of services: streams to those of the network, and streams to its own."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from formation_p2p.core.effects import Contact
from formation_p2p.core.identity import Identity
from formation_p2p.features.services.core.balancer import Replica
from formation_p2p.features.services.core.claim import ClaimState
from formation_p2p.features.services.core.events import ServicesRead
from formation_p2p.features.services.host.reads import ServiceReads
from formation_p2p.features.services.host.replicas import Replicas
from formation_p2p.features.services.host.router import Listing, Router
from formation_p2p.features.services.host.server import PROTOCOL, ServiceServer
from formation_p2p.features.services.host.tending import Tending
from formation_p2p.net.logged import logged
from formation_p2p.secrets.store import Secrets
from formation_p2p.trust.core.network import Circles, Network, narrowed

if TYPE_CHECKING:
    from formation_p2p.content.exchange import Exchange
    from formation_p2p.reach.stack import Stack

# Those that take requests. One that drains does until it stops.
_SERVING = (ClaimState.READY, ClaimState.DRAINING)


class ServiceRouting:
    """Of one node: `server` is for its own replicas, `router` for those of all."""

    def __init__(
        self,
        stack: Stack,
        exchange: Exchange,
        identity: Identity,
        network: Network,
        reads: ServiceReads,
        secrets: Secrets,
        do: Callable[..., None],
    ) -> None:
        """Make it before the stack runs. `do` runs a task beside it, which must not raise."""

        def spawn(task: Callable[[], Awaitable[None]]) -> None:
            do(logged, task)

        me = identity.peer_id
        self._circles = Circles(me, network)
        self.server = ServiceServer(exchange.readers.admit, self._circles.scope_of)
        stack.served.by_protocol[PROTOCOL] = self.server.accept
        rng = random.Random(random.SystemRandom().getrandbits(128))
        directory = ClaimDirectory(reads)

        def grant(on_behalf: bytes) -> bytes:
            return narrowed(exchange.grant, network.root_public_key, on_behalf, circles=True)

        show = exchange.readers.admit, lambda: exchange.grant
        self.tending = Tending(stack, identity, secrets, reads, *show, self._own, spawn)
        exchange.secret_of = self.tending.secret
        self.router = Router(stack, me, self.server, grant, directory, spawn, rng)

    def _own(self) -> Replicas | None:
        replicas = self.server.replicas
        return replicas if isinstance(replicas, Replicas) else None

    def renewed(self, network: Network) -> None:
        """This node has another grant."""
        self._circles.moved(network)

    async def run(self) -> None:
        await self.router.hang_ups.run()


class ClaimDirectory:
    """Reads the claims of a service in the DHT."""

    def __init__(self, reads: ServiceReads) -> None:
        self._reads = reads

    async def read(self, service: str) -> Listing | None:
        return listed(service, await self._reads.read(service))


def listed(service: str, found: ServicesRead) -> Listing | None:
    """What was read of it; None where that says nothing."""
    if service in found.unknown:
        return None
    claims = [
        each.claim
        for each in found.claims
        if each.claim.service == service and each.claim.state in _SERVING
    ]
    is_known = bool(claims) or any(
        each.spec.name == service and not each.spec.withdrawn for each in found.catalog
    )
    if not is_known and not found.heard:
        return None
    replicas = tuple(
        Replica(
            each.peer_id,
            each.capacity,
            each.outstanding,
            is_draining=each.state is ClaimState.DRAINING,
        )
        for each in claims
    )
    contacts = {each.peer_id: Contact(each.peer_id, each.addresses) for each in claims}
    return Listing(replicas, contacts, is_known)
